//! What a start says of itself: real logs of llama-server, read by the rules of its definition.

use orch::gate::LogGrammar;
use orch::gate::log::{Startup, read};
use orch::profile::EngineKind;
use serde_json::json;

fn startup(log: &str) -> Startup {
    let definition = orch::engine::definition(EngineKind::Llamacpp, &[]).unwrap();
    let grammar = LogGrammar::new(&definition.log).unwrap();
    read(format!("tests/data/logs/llamacpp/{log}.log").as_ref(), &grammar, None).unwrap().startup
}

#[test]
fn a_healthy_start_goes_through_its_phases_and_tells_its_capacity() {
    let startup = startup("healthy");
    let over: Vec<&str> = startup.phases().iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(over, ["launch", "weights", "warmup"]);
    assert_eq!(startup.phase(), "serving");
    // In the end it was asked to stop, and that is all.
    assert_eq!(startup.root().map(|root| root.kind.as_str()), Some("killed_by_supervisor"));
    let fact = |key: &str| startup.facts().get(key).cloned();
    assert_eq!(fact("slots"), Some(json!(2)));
    assert_eq!(fact("context_len"), Some(json!(2048)));
    assert_eq!(fact("port"), Some(json!(38120)));
    let speed = fact("gen_tok_s").unwrap().as_f64().unwrap();
    let prompt_speed = fact("prompt_tok_s").unwrap().as_f64().unwrap();
    assert!(speed > 1.0 && prompt_speed > speed, "{speed} {prompt_speed}");
}

#[test]
fn a_draft_is_a_phase_of_its_own_and_its_acceptance_is_read() {
    let startup = startup("draft");
    assert!(startup.phases().iter().any(|phase| phase.name == "draft_weights"));
    assert_eq!(startup.facts().get("accept_rate"), Some(&json!(0.66667)));
    assert_eq!(startup.facts().get("accept_len"), Some(&json!(3.67)));
}

#[test]
fn each_failure_has_its_kind_its_line_and_a_remedy() {
    let roots = [
        ("bad-flag", "bad_flag", 1, "this build does not know `--tensor-parallel-size`"),
        ("missing-file", "weights_missing", 1, "mend `model.path`"),
        ("cut-file", "weights_mismatch", 7, "the file is cut off, damaged or another format"),
        ("not-gguf", "weights_mismatch", 7, "the file is cut off, damaged or another format"),
        ("port-in-use", "port_in_use", 5, "another process listens on port 38112"),
        ("cache-too-large", "oom_kv", 11, "the cache does not fit: lower `context_length`"),
    ];
    for (log, kind, line_no, remedy) in roots {
        let startup = startup(log);
        let root = startup.root().unwrap_or_else(|| panic!("{log}: no cause"));
        assert_eq!((root.kind.as_str(), root.line_no), (kind, line_no), "{log}: {}", root.line);
        let said = root.remedy.as_deref().unwrap_or_default();
        assert!(said.starts_with(remedy), "{log}: {said}");
    }
}
