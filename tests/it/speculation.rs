//! Speculation on a real llama.cpp is proven by what the server says of itself, and its silent failure is found.

use serde_json::Value;

use crate::support::{Home, free_port};

/// What a run of a repository's profile read back for a setting, and its record.
fn run(home: &Home, name: &str, more: &str, code: i32) -> (Option<Value>, Value) {
    let base = std::env::current_dir().unwrap().join(format!("profiles/{name}.yaml"));
    let text = format!("extends: {}\nname: p\nport: {}\nbench: {{ladder: null}}\n{more}", base.display(), free_port());
    home.write("p.yaml", &text);
    let output = home.orch(&["run", "./p.yaml", "--json"]).current_dir(home.path("")).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let record = home.record();
    let effective = record["effective"].as_array().cloned().unwrap_or_default();
    let active = effective.into_iter().find(|each| each["key"] == "speculative.active");
    (active.map(|each| each["read"].clone()), record)
}

#[test]
fn a_draft_and_ngrams_are_read_back_as_active() {
    let Some(home) = Home::with_engine() else { return };
    for name in ["smollm2-draft", "smollm2-ngram"] {
        let (active, record) = run(&home, name, "", 0);
        assert_eq!(active, Some(Value::Bool(true)), "{name}");
        let step = &record["steps"][0];
        assert_eq!(step["valid"], true, "{name}: {step}");
        let length = step["metrics"]["acceptance_length"].as_f64().unwrap_or_default();
        // Where drafting is on, some of it is accepted: the draft is the model itself, and answers repeat their prompts.
        assert!(length > 1.0, "{name}: {length}");
    }
}

/// The trap of this engine: a draft model alone is loaded, costs its memory, and is never asked.
#[test]
fn a_draft_that_is_loaded_and_not_used_makes_the_run_invalid() {
    let Some(home) = Home::with_engine() else { return };
    let definition = std::fs::read_to_string("templates/llamacpp/engine.yaml").unwrap();
    let without = definition
        .replace("  speculative.method:\n    flag: --spec-type\n", "  speculative.method:\n    silent: true\n");
    assert_ne!(definition, without, "the definition spells the type of speculation elsewhere now");
    home.write("templates/llamacpp/engine.yaml", &without);
    let (active, record) = run(&home, "smollm2-draft", "", 5);
    assert!(!record["command"].to_string().contains("--spec-type"));
    assert!(record["command"].to_string().contains("--spec-draft-model"));
    assert_eq!(active, Some(Value::Bool(false)));
    let reasons = record["verdict"].to_string();
    assert!(reasons.contains("speculative.active"), "{reasons}");
    let warned = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    assert!(warned.contains("draft_inactive"));
}
