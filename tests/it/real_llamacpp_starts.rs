//! Starts of a real llama.cpp: its phases and numbers, and the ways in which it really fails, each explained.

use serde_json::Value;

use crate::launching::until;
use crate::support::{Home, Ran, free_port};

/// A profile of the small model with these keys on top.
fn profile(home: &Home, name: &str, port: u16, more: &str) -> String {
    let base = std::env::current_dir().unwrap().join("profiles/smollm2.yaml");
    let bench = "bench: {single: {use: chat, concurrency: 1, requests: 16, warmup: 1, output: null, output_tokens: 4}, ladder: null}";
    let text = format!("extends: {}\nname: {name}\nport: {port}\nexpect: null\n{bench}\n{more}\n", base.display());
    home.write(&format!("profiles/{name}.yaml"), &text).display().to_string()
}

fn failure(home: &Home) -> Value {
    home.record()["failure"].clone()
}

/// What the end of the screen says in the places that matter.
#[track_caller]
fn assert_told(ran: &Ran, words: &[&str]) {
    for word in words {
        assert!(ran.stdout.contains(word), "no `{word}` in\n{}", ran.stdout);
    }
}

#[test]
fn a_start_has_its_phases_numbers_caches_and_signs_of_life() {
    let Some(home) = Home::with_engine() else { return };
    let profile = profile(&home, "one", free_port(), "");
    let ran = home.run(&["run", &profile]);
    assert!([0, 5].contains(&ran.code), "{}{}", ran.stdout, ran.stderr);
    let startup = home.record()["startup"].clone();
    let phases = startup["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert!(names.starts_with(&["launch", "weights"]) && names.contains(&"warmup"), "{names:?}");
    let sum: f64 = phases.iter().map(|phase| phase["s"].as_f64().unwrap()).sum();
    let ready = startup["ready_s"].as_f64().unwrap();
    // The phases follow each other without gaps; a look at the log is up to a tenth of a second late.
    assert!((sum - ready).abs() < 1.0, "{sum} and {ready}");
    assert_eq!((&startup["facts"]["slots"], &startup["facts"]["context_len"]), (&4.into(), &2048.into()));
    assert!(["cold", "warm"].contains(&startup["weights_cache"].as_str().unwrap()), "{startup}");
    assert_eq!(startup["jit_cache"], "warm", "it compiles nothing");
    let journal = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    assert!(journal.contains("\"event\":\"sign_of_life\""));
    // The second start is compared with the first.
    let again = home.run(&["run", &profile]);
    assert!(again.stdout.contains("expect ready in "), "{}", again.stdout);
}

#[test]
fn a_cache_that_is_too_large_is_explained() {
    let Some(home) = Home::with_engine() else { return };
    let profile = profile(&home, "huge", free_port(), "context_length: 100000k");
    let ran = home.run(&["run", &profile]).expect(4);
    assert_eq!(failure(&home)["kind"], "oom_kv", "{}", failure(&home));
    assert_eq!(failure(&home)["start"]["rule"], "exited");
    assert_told(&ran, &["DID NOT START  no room for the KV cache", "kv cache", "`context_length`"]);
    assert_eq!(home.record()["left"]["processes"], 0);
}

#[test]
fn a_model_that_is_no_model_is_explained_and_a_missing_one_is_not_even_started() {
    let Some(home) = Home::with_engine() else { return };
    let model = home.write("text.gguf", "this is a text");
    let broken = profile(&home, "broken", free_port(), &format!("model: {{path: {}}}", model.display()));
    let ran = home.run(&["run", &broken]).expect(4);
    assert_eq!(failure(&home)["kind"], "weights_mismatch", "{}", failure(&home));
    assert_told(&ran, &["DID NOT START  the files do not fit the model", "server.log:"]);
    let missing = profile(&home, "missing", free_port(), "model: {path: /no/such/model.gguf}");
    let ran = home.run(&["run", &missing]).expect(3);
    assert_told(&ran, &["COULD NOT LAUNCH", "/no/such/model.gguf is not there"]);
}

#[test]
fn a_port_that_is_taken_in_the_last_moment_is_explained() {
    let Some(home) = Home::with_engine() else { return };
    let port = free_port();
    let profile = profile(&home, "taken", port, "");
    let mut command = home.orch(&["run", &profile]);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    // After the look at the port, and before the engine takes it.
    until("the launch", || {
        let runs = std::fs::read_dir(home.results().join("runs")).ok()?;
        let journal = runs.flatten().next()?.path().join("journal.jsonl");
        std::fs::read_to_string(journal).ok()?.contains("\"event\":\"launching\"").then_some(())
    });
    let Ok(_stranger) = std::net::TcpListener::bind(("127.0.0.1", port)) else {
        // The engine was quicker, and there is nothing to explain.
        let _ = child.wait_with_output();
        return;
    };
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(failure(&home)["kind"], "port_in_use", "{}", failure(&home));
    assert_told(&ran, &["DID NOT START  the port is taken", &format!("another process listens on port {port}")]);
}
