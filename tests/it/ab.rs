//! Someone wants to be sure: two settings by turns, a suspicious result again, each difference alone, the first bad value.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Home, free_port, read_json};

/// A quick simulated server, with more keys.
fn profile(home: &Home, name: &str, more: &str) -> String {
    let path = home.write(
        &format!("profiles/{name}.yaml"),
        &format!(
            "series: quick\nport: {}\nengine: {{kind: sim, as: sglang, scenario: {{speed: {{ttft: 10ms, step: 10ms, \
             noise: {{request: 1%}}}}, serve: {{prefix_cache: false}}, output: 40}}}}\n\
             model: {{path: m, served_name: m}}\n\
             bench: {{single: {{use: chat-short, concurrency: 4, requests: 24, warmup: 4}}}}\n{more}\n",
            free_port()
        ),
    );
    path.to_str().unwrap().to_owned()
}

fn records(home: &Home) -> Vec<Value> {
    let runs = std::fs::read_dir(home.newest_run().parent().unwrap()).unwrap();
    let mut records: Vec<Value> = runs.map(|entry| read_json(&entry.unwrap().path().join("run.json"))).collect();
    records.sort_by_key(|record| record["started_at"].as_str().unwrap().to_owned());
    records
}

fn trial(home: &Home) -> std::path::PathBuf {
    let trials = home.newest_run().parent().unwrap().parent().unwrap().join("trials");
    let mut folders: Vec<_> = std::fs::read_dir(trials).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.pop().unwrap()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn two_settings_take_turns_and_an_interrupted_trial_goes_on() {
    let home = Home::new();
    let path = profile(&home, "quick", "");
    let slower = "engine.scenario.speed.step=18ms";
    let ran = home.run(&["ab", &path, "--set-b", slower, "--starts", "3", "--json"]);
    assert_eq!(ran.code, 6, "{}{}", ran.stdout, ran.stderr);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["verdict"]["kind"], "regressed");
    assert_eq!(told["verdict"]["cause"]["kind"], "step_time", "{}", told["verdict"]);
    let order: Vec<String> = records(&home)
        .iter()
        .map(|record| {
            format!("{}{}", record["group"]["arm"].as_str().unwrap(), record["group"]["start"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(order, ["a1", "b1", "b2", "a2", "a3", "b3"]);

    // As if it had been killed before its last run ended.
    let folder = trial(&home);
    let journal = folder.join("journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    let kept: Vec<&str> = text.lines().take(5).collect();
    std::fs::write(&journal, format!("{}\n{{\"at", kept.join("\n"))).unwrap();
    let again = home.run(&["ab", "--resume", &name(&folder)]);
    assert_eq!(again.code, 6, "{}{}", again.stdout, again.stderr);
    assert_eq!(records(&home).len(), 7, "one run and no more");
    assert!(again.stdout.contains("3 starts a side, by turns"), "{}", again.stdout);
    let none = home.run(&["ab", "--resume", "no-such"]);
    assert!(none.code == 2 && none.stderr.contains("no trial `no-such`"), "{}", none.stderr);
}

#[test]
fn an_upgrade_is_measured_by_turns_and_says_what_it_changes_by_itself() {
    let home = Home::new();
    let path = profile(&home, "quick", "");
    let words = ["ab", &path, "--engine", "sglang==0.5.12", "--engine", "sglang==0.5.23", "--starts", "2", "--json"];
    let ran = home.run(&words);
    assert!(matches!(ran.code, 0 | 6), "{}{}", ran.stdout, ran.stderr);
    // The simulated server is told its version in its scenario, which is the one flag that differs.
    assert!(ran.stderr.contains("no longer given: --scenario") && ran.stderr.contains("0.5.23"), "{}", ran.stderr);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    let versions: Vec<String> = records(&home).iter().map(|record| record["engine"]["version"].to_string()).collect();
    assert_eq!(versions, ["\"0.5.12\"", "\"0.5.23\"", "\"0.5.23\"", "\"0.5.12\""]);
    // The simulated servers tell the same arguments, whatever their version.
    assert_eq!(told["upgrade"]["moved_defaults"], json!([]), "{}", told["upgrade"]);

    for (words, said) in [
        (&["--engine", "sglang==0.5.12"][..], "`--engine` stands 1 times"),
        (&["--engine", "vllm==0.1", "--engine", "vllm==0.2"], "the profile's engine is `sim`"),
        (&["--engine", "sglang", "--engine", "sglang==0.2"], "names no engine with an exact version"),
    ] {
        let refused = home.run(&[&["ab", &path][..], words].concat());
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let flat = refused.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(said), "{}", refused.stderr);
    }
}

#[test]
fn a_profile_says_how_often_it_is_started_and_measured() {
    let home = Home::new();
    let path = profile(&home, "quick", "repeat: {starts: 2, runs: 2}");
    let ran = home.run(&["run", &path]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let records = records(&home);
    let groups: Vec<_> = records.iter().map(|each| (&each["group"]["start"], &each["group"]["run"])).collect();
    assert_eq!(
        groups,
        [(&json!(1), &json!(1)), (&json!(1), &json!(2)), (&json!(2), &json!(1)), (&json!(2), &json!(2))]
    );
    assert_eq!(
        records[1]["provenance"]["attached"], records[0]["left"]["kept"],
        "the second run is on the first's server"
    );
    assert!(home.run(&["ps"]).stdout.lines().all(|line| !line.contains("quick")), "no server stays");
}

#[test]
fn a_suspicious_result_is_started_again_and_held_against_a_control() {
    let home = Home::new();
    let path = profile(&home, "quick", "suspect: {restarts: 1, control: baseline}");
    let first = home.run(&["run", &path]);
    assert_eq!(first.code, 0, "{}{}", first.stdout, first.stderr);
    assert_eq!(records(&home).len(), 1, "nothing is suspicious");
    assert_eq!(home.run(&["baseline", "set"]).code, 0);
    let slow = home.run(&["run", &path, "--set", "engine.scenario.speed.step=25ms"]);
    assert_eq!(slow.code, 6, "{}{}", slow.stdout, slow.stderr);
    let arms: Vec<String> =
        records(&home)[1..].iter().map(|each| each["group"]["arm"].as_str().unwrap().to_owned()).collect();
    assert_eq!(arms, ["own", "own", "control"]);
    assert!(slow.stdout.contains("confirmed by a second start"), "{}", slow.stdout);
    assert!(slow.stdout.contains("so it is not the machine"), "{}", slow.stdout);
    let reasons = records(&home)[1]["verdict"]["reasons"].to_string();
    assert!(reasons.contains("control_good"), "the first run's record says it too: {reasons}");
}

#[test]
fn each_difference_is_measured_alone() {
    let home = Home::new();
    let good = profile(&home, "good", "");
    let bad = std::fs::read_to_string(&good).unwrap();
    let bad = home.write(
        "profiles/bad.yaml",
        &format!("{}\nmax_running_requests: 32\n", bad.replace("step: 10ms", "step: 25ms")),
    );
    let bad = bad.to_str().unwrap();
    let plan = home.run(&["ablate", &good, bad, "--dry-run"]);
    assert!(plan.code == 0 && plan.stderr.contains("2 differences, 6 starts"), "{}", plan.stderr);
    let ran = home.run(&["ablate", &good, bad, "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let effects: Value = serde_json::from_str(&ran.stdout).unwrap();
    let effect = |path: &str| {
        let of = effects.as_array().unwrap().iter().find(|each| each["part"]["path"] == path).unwrap();
        (of["alone"].as_f64().unwrap(), of["taken_back"].as_f64().unwrap())
    };
    let (alone, back) = effect("engine.scenario.speed.step");
    assert!(alone < -0.3 && back > 0.4, "{effects}");
    let (alone, back) = effect("max_running_requests");
    assert!(alone.abs() < 0.25 && back.abs() < 0.25, "{effects}");
}

#[test]
fn the_first_bad_value_is_found_and_one_that_does_not_start_is_passed_by() {
    let home = Home::new();
    let path = profile(&home, "quick", "");
    let values = ["10ms", "10.1ms", "25ms", "25.1ms"];
    let words = [&["bisect", &path, "engine.scenario.speed.step"], &values[..]].concat();
    let ran = home.run(&words);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("the first that is worse: engine.scenario.speed.step=25ms\n"), "{}", ran.stdout);
}
