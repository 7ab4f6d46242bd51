//! Verdicts on a real llama.cpp: half the threads are a regression, the same setting again is none, and what `ab` and
//! `ablate` say of two settings is what a measurement by hand says.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use serde_json::Value;

use crate::support::{Home, free_port, read_json};

/// The shipped profile with a short step. `more` is further keys.
fn profile(home: &Home, name: &str, more: &str) -> String {
    let shipped = std::env::current_dir().unwrap().join("profiles/smollm2.yaml");
    let path = home.write(
        &format!("profiles/{name}.yaml"),
        &format!(
            "extends: {}\nseries: threads\nport: {}\nexpect: null\n\
             bench: {{ladder: null, single: {{use: chat, concurrency: 1, requests: 16, output: null, output_tokens: 24, warmup: 2}}}}\n{more}",
            shipped.display(),
            free_port()
        ),
    );
    path.to_str().unwrap().to_owned()
}

/// Gives the step prompts and answers of one length each.
fn sized(path: &str, output_tokens: u32) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let lengths = format!("output: null, input_tokens: {PROMPT_TOKENS}, output_tokens: {output_tokens}");
    let text = text.replace("use: chat,", "use: null,").replace("output: null, output_tokens: 24", &lengths);
    assert!(text.contains(&lengths), "{text}");
    std::fs::write(path, text).unwrap();
    path.to_owned()
}

/// Verdict and exit code of a run.
fn verdict(home: &Home, path: &str, set: &[&str]) -> (String, i32) {
    let mut words = vec!["run", path];
    set.iter().for_each(|set| words.extend(["--set", set]));
    let ran = home.run(&words);
    let record = home.record();
    (record["verdict"]["kind"].as_str().unwrap_or_else(|| panic!("{ran:#?}")).to_owned(), ran.code)
}

#[test]
#[ignore = "takes a quiet machine; by choice: cargo test --test it real_verdicts -- --ignored"]
fn half_the_threads_are_a_regression() {
    let Some(home) = Home::with_engine() else { return };
    // Long prompts and short answers: reading a prompt is arithmetic, which two threads share. An answer's tokens come one
    // by one, and on two cores that are one core's hyper-threads a second thread makes them slower.
    let path = sized(&profile(&home, "threads", "tolerance: null\n"), 4);
    assert_eq!(verdict(&home, &path, &[]), ("no_baseline".to_owned(), 0));
    home.run(&["baseline", "set"]).expect(0);
    let (kind, code) = verdict(&home, &path, &["flags.threads=1"]);
    let record = home.record();
    assert_eq!((kind.as_str(), code), ("regressed", 6), "{:#}", record["comparisons"]);
    // The setting that differs stands among the suspects.
    assert!(record["verdict"].to_string().contains("flags.threads"), "{:#}", record["verdict"]);
}

#[test]
#[ignore = "takes minutes and a quiet machine; by choice: cargo test --test it real_verdicts -- --ignored"]
fn eight_runs_of_the_same_setting_raise_no_alarm() {
    let Some(home) = Home::with_engine() else { return };
    // A shared machine is faster in one minute than in the next. What is suspicious is started again, and then the
    // baseline's settings are, as on any machine whose noise nobody has measured.
    let path = profile(&home, "same", "tolerance: null\nsuspect: {restarts: 1, control: baseline}\n");
    assert_eq!(verdict(&home, &path, &[]), ("no_baseline".to_owned(), 0));
    home.run(&["baseline", "set"]).expect(0);
    let told: Vec<(String, i32)> = (0..8).map(|_| verdict(&home, &path, &[])).collect();
    println!("{told:?}");
    assert!(told.iter().all(|(kind, code)| kind != "regressed" && *code == 0), "{told:?}");
}

/// A prompt of the length that the step sends.
const PROMPT_TOKENS: usize = 200;

/// Tokens a second that llama.cpp says of itself, its reading of the prompt included, started and asked by hand: the
/// median of 16 answers as long as those of the step.
fn by_hand(home: &Home, path: &str, set: &[String]) -> f64 {
    let mut words = vec!["render".to_owned(), path.to_owned(), "--format".to_owned(), "argv".to_owned()];
    set.iter().for_each(|set| words.extend(["--set".to_owned(), set.clone()]));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let argv: Vec<String> = serde_json::from_str(&home.run(&words).expect(0).stdout).unwrap();
    let port: u16 = argv[argv.iter().position(|word| word == "--port").unwrap() + 1].parse().unwrap();
    let log = std::fs::File::create(home.path("by-hand.log")).unwrap();
    let mut server = std::process::Command::new(&argv[0])
        .args(&argv[1..])
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    crate::launching::until("llama-server", || ask(port, 1));
    let mut rates: Vec<f64> = (0..16).map(|_| ask(port, 24).unwrap()).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    rates.sort_by(f64::total_cmp);
    (rates[7] + rates[8]) / 2.0
}

/// Asks for so many tokens; gives how many came in a second, by the times in the answer's `timings`.
fn ask(port: u16, tokens: u32) -> Option<f64> {
    let prompt: Vec<String> = (0..PROMPT_TOKENS).map(|k| (1000 + k * 37).to_string()).collect();
    let body = format!(
        r#"{{"prompt": [{}], "n_predict": {tokens}, "ignore_eos": true, "cache_prompt": false}}"#,
        prompt.join(", ")
    );
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    let head =
        format!("POST /completion HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).ok()?;
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status).ok()?;
    let mut rest = String::new();
    reader.read_to_string(&mut rest).ok()?;
    if !status.contains(" 200 ") {
        return None;
    }
    let (from, to) = (rest.find('{')?, rest.rfind('}')?);
    let answer: Value = serde_json::from_str(&rest[from..=to]).ok()?;
    let timings = &answer["timings"];
    let ms = timings["prompt_ms"].as_f64()? + timings["predicted_ms"].as_f64()?;
    Some(timings["predicted_n"].as_f64()? / ms * 1000.0)
}

fn newest_trial(home: &Home) -> std::path::PathBuf {
    let mut trials: Vec<_> =
        std::fs::read_dir(home.results().join("trials")).unwrap().map(|entry| entry.unwrap().path()).collect();
    trials.sort();
    trials.pop().unwrap()
}

/// The logarithm of the second side's rate over the first's, over all runs of a trial.
fn effect_of(home: &Home) -> f64 {
    let runs = std::fs::read_dir(home.results().join("runs")).unwrap();
    let trial = newest_trial(home).file_name().unwrap().to_str().unwrap().to_owned();
    let records: Vec<Value> = runs.map(|entry| read_json(&entry.unwrap().path().join("run.json"))).collect();
    let side = |arm: &str| {
        let of = records
            .iter()
            .filter(|record| record["group"]["arm"] == arm && record["group"].to_string().contains(&trial));
        let rates: Vec<f64> =
            of.map(|record| record["steps"][0]["metrics"]["output_tokens_per_s"].as_f64().unwrap().ln()).collect();
        assert!(!rates.is_empty(), "{arm} of {trial}");
        rates.iter().sum::<f64>() / rates.len() as f64
    };
    side("b") - side("a")
}

#[test]
#[ignore = "takes minutes and a quiet machine; by choice: cargo test --test it real_verdicts -- --ignored"]
fn the_effects_of_two_settings_are_those_that_are_measured_by_hand() {
    let Some(home) = Home::with_engine() else { return };
    let path = sized(&profile(&home, "hand", "repeat: {starts: 2, runs: 1}\n"), 24);
    let installed = |record: &Value| record["command"][0].as_str().unwrap().to_owned();
    home.run(&["run", &path, "--set", "repeat=null"]).expect(0);
    // A renderer looks at no machine: what was started is told by the run.
    let program = format!("engine.executable={}", installed(&home.record()));
    let by_hand = |set: &str| by_hand(&home, &path, &[program.clone(), set.to_owned()]).ln();
    let base = by_hand("flags.threads=2");
    for set in ["flags.threads=1", "memory.kv_dtype=q8_0"] {
        let hand = by_hand(set) - base;
        let ran = home.run(&["ab", &path, "--set-b", set]);
        assert!(matches!(ran.code, 0 | 6), "{ran:#?}");
        let told = effect_of(&home);
        println!("{set}: by hand {:+.1} %, orch ab {:+.1} %", hand.exp_m1() * 100.0, told.exp_m1() * 100.0);
        assert!((told - hand).abs() < 0.1, "{set}: {told} and by hand {hand}");
    }
    let worse = sized(&profile(&home, "worse", "flags: {threads: 1}\nmemory: {kv_dtype: q8_0}\n"), 24);
    let ran = home.run(&["ablate", &path, &worse, "--json"]).expect(0);
    let effects: Value = serde_json::from_str(&ran.stdout).unwrap();
    println!("{effects:#}");
    let alone = |part: &str| {
        let of = effects.as_array().unwrap().iter().find(|each| each["part"]["path"] == part);
        of.unwrap_or_else(|| panic!("{part}: {effects}"))["alone"].as_f64().unwrap()
    };
    let hand = (by_hand("flags.threads=1") - base).exp_m1();
    assert!((alone("flags.threads") - hand).abs() < 0.15, "{effects} and by hand {hand}");
    assert!(Path::new(&newest_trial(&home)).is_dir());
}
