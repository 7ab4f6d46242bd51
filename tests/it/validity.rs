//! Numbers that may not be used are said to be so, with exit 5 and the record kept, and a clean run has no such reason.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::sim::Sim;
use crate::support::{Home, Ran, free_port};

/// A server in the background with these options, gone with the test.
struct Beside {
    child: Child,
    url: String,
}

impl Beside {
    fn start(options: &[&str]) -> Self {
        let port = free_port();
        let mut command = Command::new("python3");
        command.arg("tests/data/servers/openai.py").args(["--port", &port.to_string()]).args(options);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let address = format!("127.0.0.1:{port}");
        for _ in 0..200 {
            if std::net::TcpStream::connect(&address).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Beside { child, url: format!("http://{address}") }
    }

    /// Measures it; the exit code, and the record that is printed and kept.
    fn bench(&self, home: &Home, words: &[&str]) -> (i32, Value) {
        let all = [&["bench", "--url", &self.url, "--share", "--warmup", "0", "--json"], words].concat();
        let ran = home.run(&all);
        let record: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        assert_eq!(home.record(), record, "it is kept whatever it says");
        (ran.code, record)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn reasons(record: &Value) -> Vec<&str> {
    let reasons = record["steps"][0]["reasons"].as_array().unwrap().iter();
    reasons.map(|reason| reason["id"].as_str().unwrap()).collect()
}

/// What the verdict says of known answers.
fn answered_wrong(record: &Value) -> Vec<&str> {
    let reasons = record["verdict"]["reasons"].as_array().unwrap().iter();
    reasons.filter(|reason| reason["id"] == "answers_wrong").map(|reason| reason["text"].as_str().unwrap()).collect()
}

fn warnings(record: &Value) -> Vec<&str> {
    record["warnings"].as_array().unwrap().iter().map(|warning| warning["id"].as_str().unwrap()).collect()
}

#[test]
fn each_fault_of_the_answers_is_found_and_a_clean_run_has_none() {
    let sixteen = ["--requests", "16", "--concurrency", "2"];
    let home = Home::new();
    for (options, words, code, expected) in [
        (&["--stop-after", "40"][..], &sixteen[..], 0, &[][..]),
        (&["--stop-after", "1"], &sixteen, 5, &["short_outputs"]),
        (&["--text", "loop"], &sixteen, 5, &["repetition"]),
        (&["--text", "replacement", "--stop-after", "40"], &sixteen, 5, &["invalid_text"]),
        // Forced past its end a text may be anything.
        (&["--text", "loop"], &["--requests", "16", "--concurrency", "2", "--output-tokens", "60"], 0, &[]),
        (&["--stop-after", "40"], &["--requests", "15", "--concurrency", "1"], 5, &["too_few_samples"]),
        // All at once, and one after the other from then on: hardly ever full.
        (&["--stop-after", "40"], &["--requests", "16", "--concurrency", "32"], 5, &["short_plateau"]),
    ] {
        let server = Beside::start(options);
        let (ended, record) = server.bench(&home, words);
        assert_eq!((ended, reasons(&record)), (code, expected.to_vec()), "{options:?} {words:?} {:#}", record["steps"]);
        assert_eq!(record["steps"][0]["valid"], code == 0);
    }
}

#[test]
fn a_server_that_runs_fewer_requests_than_are_sent_is_told_before_and_after_the_load() {
    let home = Home::new();
    let pages = json!({"/props": {"total_slots": 10, "default_generation_settings": {"n_ctx": 4096}}});
    let pages = home.write("pages.json", &pages.to_string());
    let server = Beside::start(&["--stop-after", "40", "--pages", pages.to_str().unwrap()]);
    let (code, record) = server.bench(&home, &["--requests", "64", "--concurrency", "16"]);
    let read: Vec<_> =
        record["effective"].as_array().unwrap().iter().map(|each| (&each["key"], &each["read"])).collect();
    assert_eq!(read, [(&json!("context_length"), &json!(4096)), (&json!("max_running_requests"), &json!(10))]);
    assert!(warnings(&record).contains(&"over_running_cap"), "{record:#}");
    assert_eq!((code, reasons(&record)), (5, vec!["over_running_cap"]));
    // Said before the first request of the step, and so on the screen too.
    let journal = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    let place = |word: &str| journal.find(word).unwrap_or_else(|| panic!("no {word} in {journal}"));
    assert!(place("over_running_cap") < place("\"warmup_began\""));
    let (code, record) = server.bench(&home, &["--requests", "64", "--concurrency", "10"]);
    assert_eq!((code, reasons(&record)), (0, vec![]));
}

#[test]
fn known_answers_are_asked_before_and_after_and_nothing_else_is_sent() {
    let home = Home::new();
    let good = home.write("good.jsonl", "{\"id\": \"count\", \"prompt\": \"Count\", \"expect\": \"^one two three\"}\n");
    let wrong = home.write("wrong.jsonl", "{\"prompt\": \"2 + 2?\", \"expect\": \"4\"}\n{\"prompt\": \"Anything\"}\n");
    let server = Beside::start(&["--stop-after", "40"]);
    let load = ["--requests", "16", "--concurrency", "2"];

    let (code, record) = server.bench(&home, &[&load[..], &["--quality", good.to_str().unwrap()]].concat());
    assert_eq!((code, &record["verdict"]["kind"]), (0, &json!("no_baseline")), "{record:#}");
    let rounds: Vec<_> = record["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|round| (&round["when"], &round["answers"][0]["right"]))
        .collect();
    assert_eq!(rounds, [(&json!("before"), &json!(true)), (&json!("after"), &json!(true))]);

    let (code, record) = server.bench(&home, &[&load[..], &["--quality", wrong.to_str().unwrap()]].concat());
    assert_eq!((code, &record["verdict"]["kind"]), (5, &json!("invalid")));
    let reasons = answered_wrong(&record);
    assert_eq!(reasons.len(), 2, "before and after, and of the question without an answer none: {reasons:#?}");
    let text = reasons[0];
    assert!(text.starts_with("`line 1` is answered wrong before the first step: `one two three"), "{text}");
    assert!(text.ends_with("and `4` was expected"), "{text}");
    assert_eq!(record["steps"][0]["valid"], true, "the step itself is");

    // One question before, sixteen requests, and from then on it is sick.
    let server = Beside::start(&["--stop-after", "40", "--sick-after", "18"]);
    let (code, record) = server.bench(&home, &[&load[..], &["--quality", good.to_str().unwrap()]].concat());
    let said = answered_wrong(&record);
    assert_eq!((code, said.len()), (5, 1), "{said:?}");
    assert!(said[0].starts_with("`count` is answered wrong after the last step"), "{said:?}");
    assert!(warnings(&record).contains(&"answers_changed"));
}

#[test]
fn a_file_of_questions_that_cannot_be_used_is_told_before_anything_is_sent() {
    let home = Home::new();
    let broken = home.write("broken.jsonl", "{\"prompt\": \"2 + 2?\", \"expect\": \"(\"}\n");
    let words = ["bench", "--url", "http://127.0.0.1:1", "--requests", "1", "--concurrency", "1", "--quality"];
    let ran: Ran = home.run(&[&words[..], &[broken.to_str().unwrap()]].concat()).expect(2);
    assert!(ran.stderr.contains("broken.jsonl:1: `expect` is not a regular expression"), "{}", ran.stderr);
    let profile = home.write(
        "p.yaml",
        "engine: {kind: command, command: [x, '{port}'], ready: {http: /}}\nmodel: m\nquality: {file: broken.jsonl}\nbench: {a: {use: chat-mix, concurrency: 1, requests: 16}}\n",
    );
    for verb in ["check", "run"] {
        let ran = home.run(&[verb, profile.to_str().unwrap()]).expect(2);
        assert!(ran.stderr.contains("broken.jsonl:1: `expect`"), "{verb}: {}", ran.stderr);
    }
}

/// A home whose `command` engine tells more than a bare command does.
fn with_definition(home: &Home, more: &str) -> PathBuf {
    let base = "kind: command\nmodel: anything\nsettings: {model.path: {silent: true}, model.served_name: {silent: true}, \
                host: {silent: true}, port: {silent: true}, instrument: {silent: true}}\n\
                endpoints: {models: /v1/models}\n";
    home.write("there/templates/command/engine.yaml", &format!("{base}{more}"));
    std::fs::copy("templates/command/launch.hbs", home.path("there/templates/command/launch.hbs")).unwrap();
    home.path("there")
}

/// Runs a profile for the test's server with these options, in a folder with a definition of its own.
fn run_there(home: &Home, definition: &str, options: &str, more: &str) -> (i32, Value) {
    let server = std::env::current_dir().unwrap().join("tests/data/servers/openai.py");
    let folder = with_definition(home, definition);
    let command = format!("[python3, {}, --port, '{{port}}', --stop-after, '40', {options}]", server.display());
    let port = free_port();
    let profile = home.write(
        "there/p.yaml",
        &format!(
            "port: {port}\nshare: true\nengine: {{kind: command, command: {command}, ready: {{http: /health}}}}\nmodel: {{path: tiny, served_name: tiny}}\n\
             bench: {{only: {{use: chat-mix, concurrency: 4, requests: 32}}}}\n{more}\n"
        ),
    );
    let output = home.orch(&["run", profile.to_str().unwrap(), "--json"]).current_dir(folder).output().unwrap();
    let ran = Ran::of(output);
    let record = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
    (ran.code, record)
}

const SERVING: &str = "log:\n  serving:\n    samples: [{match: 'Decode batch', fields: ['#running-req: (?<running_requests>\\d+)', '#queue-req: (?<waiting_requests>\\d+)', 'cuda graph: (?<in_graph>True|False)']}]\n    events: [{event: retracted, match: 'Retract requests. #retracted_reqs: (?<count>\\d+)'}, {event: compiled, match: 'JIT compiling'}]\n";

#[test]
fn what_the_log_says_under_load_is_read_from_where_the_load_began() {
    let home = Home::new();
    let line = "Decode batch, #running-req: 4, cuda graph: True, #queue-req: 2";
    let (code, record) = run_there(&home, SERVING, &format!("--say, '{line}'"), "");
    assert_eq!((code, reasons(&record)), (0, vec![]), "{record:#}");
    let metrics = &record["steps"][0]["metrics"];
    assert_eq!((&metrics["in_graph_ratio"], &metrics["waiting_ratio"]), (&json!(1.0), &json!(1.0)));
    let (code, record) =
        run_there(&home, SERVING, "--say, 'KV cache pool is full. Retract requests. #retracted_reqs: 1, #new: 2'", "");
    assert_eq!((code, reasons(&record)), (5, vec!["retractions"]));
    let (code, record) = run_there(&home, SERVING, "--say, 'JIT compiling kernel_7'", "");
    assert_eq!((code, reasons(&record)), (5, vec!["compiled"]));
    let text = record["steps"][0]["reasons"][0]["text"].as_str().unwrap();
    assert!(text.ends_with("first: JIT compiling kernel_7"), "{text}");
}

#[test]
fn an_expectation_of_what_the_server_took_is_held_against_what_it_says() {
    let home = Home::new();
    let readback = "readback: {max_running_requests: {path: /info, pointer: /cap}, kv_tokens: {path: /info, pointer: /kv}, graphs.max_batch: {path: /info, pointer: /graphs}}\n";
    let pages = |name: &str, info: Value| home.write(name, &json!({"/info": info}).to_string());
    let small = pages("small.json", json!({"cap": 10, "kv": 60, "graphs": 2}));
    let options = |file: &PathBuf| format!("--pages, {}", file.display());
    let (code, record) = run_there(&home, readback, &options(&small), "");
    assert_eq!(
        (code, reasons(&record)),
        (5, vec!["over_graphs"]),
        "nothing says that its KV cache was full: {record:#}"
    );
    let warned = warnings(&record);
    assert!(warned.contains(&"over_kv") && warned.contains(&"over_graphs"), "{warned:?}");
    let asked: Vec<_> =
        record["effective"].as_array().unwrap().iter().map(|each| (&each["asked"], &each["read"])).collect();
    assert_eq!(asked, [(&json!(null), &json!(2)), (&json!(null), &json!(60)), (&json!(null), &json!(10))]);
    // The cap of 10 is above this load of 4, so only the expectation is not met.
    let large = pages("large.json", json!({"cap": 10, "kv": 60000, "graphs": 16}));
    let (code, record) = run_there(&home, readback, &options(&large), "expect: {effective.max_running_requests: 16}");
    assert_eq!((code, reasons(&record)), (5, vec![]));
    let verdict = &record["verdict"]["reasons"];
    assert_eq!(verdict[0]["id"], "expectation_unmet");
    assert_eq!(verdict[0]["text"], "effective.max_running_requests is 10, and was expected to be 16");
    let (code, _) = run_there(&home, readback, &options(&large), "expect: {effective.max_running_requests: 10}");
    assert_eq!(code, 0);
}

/// Short answers, quickly.
const FAST: &str =
    "as: sglang\nseed: 3\nspeed: {ttft: 4ms, step: 2ms}\noutput: {mean: 40, stdev: 4, min: 34, max: 46}\n";

/// The reasons of a simulated server with this behaviour, as `orch bench` finds them at its address.
fn simulated(home: &Home, serve: &str, words: &[&str]) -> (i32, Vec<String>) {
    let sim = Sim::start(&format!("{FAST}serve: {serve}\n"));
    let url = sim.url();
    let ran = home.run(&[&["bench", "--url", url.as_str(), "--share", "--json"], words].concat());
    let record: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
    (ran.code, reasons(&record).into_iter().map(str::to_owned).collect())
}

#[test]
fn each_fault_of_a_simulated_server_is_found_and_a_clean_one_has_none() {
    let home = Home::new();
    let (two, sixteen) = (["--requests", "32", "--concurrency", "2"], ["--requests", "96", "--concurrency", "16"]);
    let exact = [&two[..], &["--output-tokens", "20"]].concat();
    // What it had counted before must be more than what it counts after its restart, or nothing shows it.
    let warm = [&two[..], &["--warmup", "16"]].concat();
    assert_eq!(simulated(&home, "{}", &two), (0, vec![]));
    assert_eq!(simulated(&home, "{}", &exact), (0, vec![]));
    for (serve, words, expected) in [
        ("{faults: [{kind: status, status: 500, every: 10}]}", &two[..], "failures"),
        ("{faults: [{kind: no_tokens, every: 10}]}", &two, "failures"),
        ("{faults: [{kind: short_output, every: 10}]}", &exact, "wrong_length"),
        ("{faults: [{kind: long_output, every: 10}]}", &exact, "impossible_count"),
        ("{faults: [{kind: wrong_usage, every: 2}]}", &two, "counts_disagree"),
        ("{faults: [{kind: repetition, every: 2}]}", &two, "repetition"),
        ("{faults: [{kind: replacement_characters, every: 4}]}", &two, "invalid_text"),
        ("{garbage: 1}", &two, "invalid_text"),
        ("{buffer: true}", &two, "not_streamed"),
        ("{cap_running: 10}", &sixteen, "over_running_cap"),
        ("{graph_max_batch: 8}", &sixteen, "over_graphs"),
        ("{kv_tokens: 300}", &sixteen, "over_kv"),
        ("{restart: {after: 40, for: 100ms}}", &warm, "server_restarted"),
    ] {
        let (code, found) = simulated(&home, serve, words);
        assert!(
            code == 5 && found.iter().any(|id| id == expected),
            "{serve}: {expected} is not in {found:?}, exit {code}"
        );
    }
}

/// A workload is cold unless it says otherwise: what came out of the cache was not computed.
#[test]
fn prompts_that_were_cached_are_no_cold_ones() {
    let home = Home::new();
    for (cached, step, expected) in [(0.5, "", 5), (0.5, ", prefix_cache: warm", 0), (0.0, "", 0)] {
        let text = format!(
            "port: {}\nmodel: {{path: m, served_name: m}}\nengine: {{kind: sim, as: sglang, scenario: {{seed: 1, \
             startup: {{weights: 50ms}}, speed: {{ttft: 4ms, step: 2ms}}, serve: {{cached: {cached}}}}}}}\n\
             bench: {{only: {{use: chat-short, concurrency: 2, requests: 32{step}}}}}\n",
            crate::support::free_port()
        );
        let profile = home.write("profiles/cached.yaml", &text);
        let ran = home.run(&["run", profile.to_str().unwrap(), "--json"]);
        let record: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        let told = reasons(&record);
        assert_eq!((ran.code, told.contains(&"cache_hits")), (expected, expected == 5), "{cached} {step}: {told:?}");
    }
}

/// What stops the client, and not the server, is told as the client's.
#[test]
fn a_client_that_was_held_up_says_so() {
    let home = Home::new();
    let sim = Sim::start(&format!("{FAST}serve: {{}}\n"));
    let url = sim.url();
    let words = ["bench", "--url", &url, "--share", "--json", "--rate", "50", "--requests", "100", "--warmup", "0"];
    let mut command = home.orch(&words);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    // It is the server's ledger that tells when the load goes on.
    crate::launching::until("the load to go on", || (sim.ledger().len() >= 10).then_some(()));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(800));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    let output = child.wait_with_output().unwrap();
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), reasons(&record)), (Some(5), vec!["client_late"]), "{:#}", record["steps"][0]);
}

/// Answers of three tokens a chunk from a server without counters: its tokenizer is all there is to hold its words against.
fn uncounted(home: &Home, serve: &str, words: &[&str]) -> (i32, Vec<String>, Value) {
    let fast = FAST.replace("step: 2ms", "step: 15ms, tokens_per_step: 3");
    let sim = Sim::start(&format!("{fast}serve: {{metrics: false{serve}}}\n"));
    let url = sim.url();
    let bench = ["bench", "--url", url.as_str(), "--share", "--json", "--requests", "40", "--concurrency", "4"];
    let ran = home.run(&[&bench[..], words].concat());
    let record: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
    let ledger = sim.stop();
    let sent: u64 = ledger.iter().skip(4).map(|line| line["output_tokens"].as_u64().unwrap()).sum();
    assert_eq!(ledger.len(), 44, "a tokenizer generates nothing");
    (ran.code, reasons(&record).into_iter().map(str::to_owned).collect(), json!({"record": record, "sent": sent}))
}

#[test]
fn what_answers_say_of_their_tokens_is_held_against_their_texts() {
    let home = Home::new();
    let exact = ["--output-tokens", "40"];
    let disagree = &["counts_disagree"][..];
    for (serve, words, expected) in [
        ("", &[][..], &[][..]),
        ("", &exact, &[]),
        (", reasoning: {tokens: 9}", &[], &[]),
        (", reasoning: {tokens: 9, hidden: true}", &[], &[]),
        (", faults: [{kind: chunk_usage, share: 100%}]", &[], disagree),
        (", faults: [{kind: double_usage, share: 100%}]", &[], disagree),
        (", continuous_usage: always, faults: [{kind: double_usage, share: 100%}]", &[], disagree),
        // Where there is no tokenizer, or what answers there counts nothing, nobody is accused.
        (", endpoints: {/tokenize: nonsense}, faults: [{kind: double_usage, share: 100%}]", &[], &[]),
        (", endpoints: {/tokenize: absent}, faults: [{kind: double_usage, share: 100%}]", &[], &[]),
    ] {
        let (code, found, told) = uncounted(&home, serve, words);
        assert_eq!(found, expected, "{serve} {words:?} {:#}", told["record"]["steps"][0]["reasons"]);
        assert_eq!(code, if expected.is_empty() { 0 } else { 5 }, "{serve}");
    }
}

#[test]
fn tokens_that_no_answer_counts_are_those_of_its_text() {
    let home = Home::new();
    let rows = home.path("rows.jsonl");
    let words = ["--requests-out", rows.to_str().unwrap(), "--keep-text"];
    let read = || -> Vec<Value> {
        std::fs::read_to_string(&rows).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    for words in [&words[..], &words[..2]] {
        let (code, found, told) = uncounted(&home, ", usage: never", words);
        assert_eq!((code, found), (0, vec![]));
        let rows = read();
        assert_eq!(rows.len(), 40);
        assert!(rows.iter().all(|row| row["token_source"] == "tokenizer" && row["tokens_exact"] == false), "{rows:#?}");
        let counted: u64 = rows.iter().map(|row| row["output_tokens"].as_u64().unwrap()).sum();
        assert_eq!(counted, told["sent"].as_u64().unwrap(), "here a text has the tokens that it was made of");
        assert!(warnings(&told["record"]).contains(&"tokens_estimated"));
    }
    let (code, _, told) = uncounted(&home, ", usage: never, endpoints: {/tokenize: error}", &words);
    assert_eq!(code, 0, "{told:#}");
    assert!(read().iter().all(|row| row["token_source"] == "chunks"));
}

#[test]
fn known_answers_that_turn_wrong_under_load_are_found() {
    let home = Home::new();
    let questions = home.write("q.jsonl", "{\"prompt\": \"What is 17 + 25?\", \"expect\": \"\\\\b42\\\\b\"}\n");
    let words = ["--requests", "16", "--concurrency", "2", "--quality", questions.to_str().unwrap()];
    assert_eq!(simulated(&home, "{}", &words), (0, vec![]));
    assert_eq!(simulated(&home, "{faults: [{kind: wrong_answer, from: 10}]}", &words).0, 5);
    let verdict = home.record()["verdict"].clone();
    assert_eq!(verdict["kind"], "invalid");
    let text = verdict["reasons"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("`line 1` is answered wrong after the last step"), "{text}");
    assert_eq!(simulated(&home, "{faults: [{kind: wrong_answer, to: 1}]}", &words).0, 5);
    let text = home.record()["verdict"]["reasons"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("`line 1` is answered wrong before the first step"), "{text}");
}
