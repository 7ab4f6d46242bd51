//! A server is deployed again with one draft token instead of three. The verdict says that it is slower and why.

use serde_json::{Value, json};

use crate::support::{Home, free_port, read_json};

/// A simulated server that drafts as many tokens as the profile asks; each place is accepted as often as the other's.
fn profile(home: &Home, name: &str, more: &str) -> String {
    let scenario = "{speed: {ttft: 40ms, step: 25ms, noise: {request: 1%}}, acceptance: [0.85, 0.65, 0.45], \
                    serve: {prefix_cache: false}, output: 80}";
    let path = home.write(
        &format!("profiles/{name}.yaml"),
        &format!(
            "series: qwen\nengine: {{kind: sim, as: sglang, scenario: {scenario}}}\nmodel: {{path: m, served_name: m}}\n\
             speculative: {{method: mtp, steps: 3}}\n{more}\n\
             bench: {{single: {{use: chat-short, concurrency: 2, requests: 24, warmup: 2}}}}\n"
        ),
    );
    path.to_str().unwrap().to_owned()
}

fn run(home: &Home, path: &str, set: &[&str]) -> (i32, Value, String) {
    let port = format!("port={}", free_port());
    let mut words = vec!["run", path, "--set", &port];
    for each in set {
        words.extend(["--set", each]);
    }
    let ran = home.run(&words);
    (ran.code, read_json(&home.newest_run().join("run.json")), format!("{}{}", ran.stdout, ran.stderr))
}

/// A home whose baseline is the server as it was.
fn deployed() -> (Home, String) {
    let home = Home::new();
    let path = profile(&home, "qwen", "");
    let (code, _, text) = run(&home, &path, &[]);
    assert_eq!(code, 0, "{text}");
    let set = home.run(&["baseline", "set"]);
    assert_eq!(set.code, 0, "{}", set.stderr);
    (home, path)
}

fn cause(record: &Value) -> (String, String) {
    let cause = &record["verdict"]["cause"];
    (cause["kind"].as_str().unwrap_or("none").to_owned(), cause["sentence"].as_str().unwrap_or("").to_owned())
}

#[test]
fn one_draft_instead_of_three_is_acceptance_all_of_it() {
    let (home, path) = deployed();
    // As it was again: whatever a busy machine makes of it, there is no regression.
    let (code, record, text) = run(&home, &path, &[]);
    assert!(code == 0 && record["verdict"]["cause"].is_null(), "{text}");
    let set = ["speculative.steps=1", "engine.scenario.acceptance=[0.85]", "max_running_requests=32"];
    let (code, record, text) = run(&home, &path, &set);
    assert_eq!((code, &record["verdict"]["kind"]), (6, &json!("regressed")), "{text}");
    let (kind, sentence) = cause(&record);
    assert_eq!(kind, "acceptance", "{sentence}");
    assert!(sentence.contains("of the loss, because `speculative.steps` is 1, was 3"), "{sentence}");
    assert!(!sentence.contains("max_running"), "{sentence}");
    assert!(text.contains("`speculative.steps` is 1, was 3"), "{text}");
}

#[test]
fn acceptance_that_falls_with_the_same_settings_is_named() {
    let (home, path) = deployed();
    // The scenario is what the server really does. Nobody asked for anything else.
    let (code, mut record, text) = run(&home, &path, &["engine.scenario.acceptance=[0.3, 0.1, 0.05]"]);
    assert_eq!(code, 6, "{text}");
    let (kind, sentence) = cause(&record);
    assert_eq!(kind, "acceptance", "{sentence}");
    assert!(!sentence.contains("`speculative.steps`"), "{sentence}");
    // The same with settings that are the same to the letter.
    record["profile"]["engine"] = read_json(&oldest(&home)).pointer("/profile/engine").unwrap().clone();
    std::fs::write(home.newest_run().join("run.json"), serde_json::to_vec(&record).unwrap()).unwrap();
    let json: Value = serde_json::from_str(&home.run(&["compare", "latest", "--json"]).stdout).unwrap();
    let sentence = json["verdict"]["cause"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("of the loss, with the same settings, versions and host"), "{sentence}");
}

fn oldest(home: &Home) -> std::path::PathBuf {
    let runs = home.newest_run().parent().unwrap().to_owned();
    let mut folders: Vec<_> = std::fs::read_dir(runs).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort_by_key(|path| read_json(&path.join("run.json"))["started_at"].as_str().unwrap().to_owned());
    folders[0].join("run.json")
}

#[test]
fn slower_steps_a_cap_and_slower_prompts_are_each_named() {
    let (home, path) = deployed();
    let (code, record, text) = run(&home, &path, &["engine.scenario.speed.step=50ms"]);
    assert_eq!((code, cause(&record).0.as_str()), (6, "step_time"), "{text}{}", record["verdict"]);
    let (code, record, text) = run(&home, &path, &["engine.scenario.speed.ttft=3s"]);
    assert_eq!((code, cause(&record).0.as_str()), (6, "prefill"), "{text}{}", record["verdict"]);
    // A closed loop beyond the cap measures another load than its name says: not valid, and told why.
    let (code, record, text) = run(&home, &path, &["engine.scenario.serve.cap_running=1"]);
    assert_eq!((code, cause(&record).0.as_str()), (5, "cap"), "{text}{}", record["verdict"]);
}
