//! Records read by a few made rules.

use serde_json::{Value, json};

use super::*;
use crate::gate::log::{BarRule, LogRules, PhaseRule, values};

fn grammar() -> LogGrammar {
    let phase = |phase: &str, begin: &str, end: Option<&str>| PhaseRule {
        phase: phase.into(),
        begin: Some(begin.into()),
        end: end.map(Into::into),
        scope: Some("rank".into()),
        ..PhaseRule::default()
    };
    let failure = |kind: &str, pattern: &str, wraps: bool| FailureRule {
        kind: kind.into(),
        pattern: pattern.into(),
        wraps,
        ..FailureRule::default()
    };
    LogGrammar::new(&LogRules {
        rank: Some(r"TP(\d+)".into()),
        record: Some(r"^\[\d{4}-".into()),
        benign: vec!["error: ignored".into()],
        heartbeat: vec!["still waiting".into()],
        phases: vec![
            phase("weights", "Load weight begin", Some(r"Load weight end.*mem usage=(?<weights_gb>[\d.]+) GB")),
            phase("graph_capture", "Capture cuda graph begin", None),
        ],
        bars: vec![BarRule {
            pattern: "Capturing batches|Loading".into(),
            unit: "graphs".into(),
            phase: "graph_capture".into(),
            within: false,
        }],
        failures: vec![
            failure("oom_capture", "(?i)out of memory|error", false),
            failure("unknown", "child failed", true),
        ],
        facts: vec![
            r"#tokens: (?<kv_tokens>[\d,]+), K size: (?<kv_type>\w+)".into(),
            r"rate (?<hit_ratio>[\d.]+%)".into(),
        ],
        ..LogRules::default()
    })
    .unwrap()
}

fn read(text: &str) -> Vec<Seen> {
    grammar().read(&Piece { line_no: 1, text: text.to_owned(), cut: false })
}

#[test]
fn a_phase_its_rank_and_its_facts_are_seen() {
    let seen = read("[2025-11-10 10:00:26 TP1] Load weight end. type=X, avail mem=70.50 GB, mem usage=7.60 GB.");
    let end = Observation::End { phase: "weights".into(), by_rank: true };
    let fact = Observation::Fact { key: "weights_gb".into(), value: json!(7.6) };
    assert_eq!(seen, [Seen { rank: Some(1), what: end }, Seen { rank: Some(1), what: fact }]);
}

#[test]
fn a_bar_and_a_record_on_one_line_are_two() {
    let seen = read(
        "  0%| | 0/23 [00:00<?]Capturing batches (bs=8): 13%|█| 3/23 [00:01][2025-11-10 10:00:27 TP2] Capture cuda graph begin.",
    );
    let bar = Observation::Bar {
        phase: "graph_capture".into(),
        done: 3.0,
        total: Some(23.0),
        unit: "graphs".into(),
        within: false,
    };
    let begin = Observation::Begin { phase: "graph_capture".into(), by_rank: true };
    assert_eq!(seen, [Seen { rank: None, what: bar }, Seen { rank: Some(2), what: begin }]);
}

#[test]
fn a_bar_tells_its_count_else_its_share() {
    let bar = |text: &str| match &read(text)[0].what {
        Observation::Bar { done, total, unit, .. } => (*done, *total, unit.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(bar("/a/1/2 Loading 45.5% done"), (45.5, Some(100.0), "percent".into()));
    assert_eq!(bar("Loading: 10% | 1/10INFO: glued"), (1.0, Some(10.0), "graphs".into()));
    assert_eq!(read("Loading model"), []);
}

#[test]
fn numbers_are_numbers_and_words_are_words() {
    let seen = read("#tokens: 262,144, K size: fp8, rate 93.5%");
    let values: Vec<&Value> = seen
        .iter()
        .map(|seen| match &seen.what {
            Observation::Fact { value, .. } => value,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(values, [&json!(262_144), &json!("fp8"), &json!(0.935)]);
    assert_eq!(values::value("1e5"), json!("1e5"));
    assert_eq!(values::value("-"), json!("-"));
    assert_eq!(values::value("5.0"), json!(5.0));
}

#[test]
fn a_benign_line_is_no_failure() {
    assert_eq!(read("error: ignored (out of memory)"), []);
    assert_eq!(read("CUDA out of memory")[0].what, Observation::Failure { rules: vec![0] });
    assert_eq!(read("error: child failed")[0].what, Observation::Failure { rules: vec![0, 1] });
}

#[test]
fn a_rule_that_is_no_expression_is_named_by_its_place() {
    let rules = LogRules { facts: vec!["ok".into(), "(".into()], ..LogRules::default() };
    let error = LogGrammar::new(&rules).unwrap_err().to_string();
    assert!(error.starts_with("`log.facts[1]` is not a regular expression: "), "{error}");
}
