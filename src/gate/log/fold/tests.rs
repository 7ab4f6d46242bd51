//! Starts of a few made lines.

use serde_json::json;

use super::*;
use crate::gate::log::{BarRule, FailureRule, LogRules, PhaseRule};

const S: Nanos = 1_000_000_000;

fn phase(phase: &str, begin: Option<&str>, end: Option<&str>) -> PhaseRule {
    PhaseRule {
        phase: phase.into(),
        begin: begin.map(Into::into),
        end: end.map(Into::into),
        scope: Some("rank".into()),
        ..PhaseRule::default()
    }
}

fn failure(kind: &str, pattern: &str, phase: Option<&str>, wraps: bool) -> FailureRule {
    FailureRule {
        kind: kind.into(),
        pattern: pattern.into(),
        phase: phase.map(Into::into),
        wraps,
        retry: Some("never".into()),
        remedy: Some("{need} at {memory.fraction}, {other}".into()),
        ..FailureRule::default()
    }
}

fn rules() -> LogRules {
    LogRules {
        rank: Some(r"TP(\d+)".into()),
        phases: vec![
            phase("weights", Some("load begin"), Some("load end")),
            phase("kv_pool", None, Some("pool of (?<kv_tokens>\\d+)")),
            phase("graph_capture", Some("capture begin"), Some("capture end")),
        ],
        heartbeat: vec!["GET /health".into()],
        bars: vec![BarRule { pattern: "shards".into(), unit: "shards".into(), phase: "weights".into(), within: false }],
        failures: vec![
            failure("oom_weights", "out of memory.*allocate (?<need>[\\d.]+)", Some("weights"), false),
            failure("oom_capture", "out of memory.*allocate (?<need>[\\d.]+)", Some("graph_capture"), false),
            failure("killed", "child failed", None, true),
        ],
        ..LogRules::default()
    }
}

fn grammar() -> LogGrammar {
    LogGrammar::new(&rules())
        .unwrap()
        .with_settings(BTreeMap::from([("memory.fraction".to_owned(), "0.88".to_owned())]))
}

/// Folds lines that come at these seconds.
fn fold(lines: &[(u64, &str)]) -> (Startup, Vec<Change>) {
    let (grammar, mut startup) = (grammar(), Startup::new(0));
    let mut changes = Vec::new();
    for (number, (at, text)) in lines.iter().enumerate() {
        let piece = Piece { line_no: number as u64 + 1, text: (*text).to_owned(), cut: false };
        changes.extend(startup.take(&grammar, &piece, at * S));
    }
    (startup, changes)
}

fn began(phase: &str) -> Change {
    Change::Began { phase: phase.into() }
}

fn ended(phase: &str, s: f64) -> Change {
    Change::Ended { phase: phase.into(), s }
}

#[test]
fn a_phase_lasts_until_its_last_rank_is_done() {
    let (startup, changes) = fold(&[
        (4, "TP1 load begin"),
        (5, "TP0 load begin"),
        (9, "TP0 load end"),
        (12, "TP1 load end"),
        (13, "TP0 pool of 4096"),
        (13, "TP1 pool of 4096"),
        (14, "TP0 capture begin"),
    ]);
    let fact = |rank| Change::Fact { key: "kv_tokens".into(), value: json!(4096), rank: Some(rank) };
    let expected = [
        ended("launch", 4.0),
        began("weights"),
        ended("weights", 8.0),
        began("kv_pool"),
        fact(0),
        fact(1),
        ended("kv_pool", 1.0),
        began("graph_capture"),
    ];
    assert_eq!(changes, expected);
    assert_eq!(startup.phase(), "graph_capture");
}

#[test]
fn the_same_words_a_second_time_are_the_draft() {
    let mut rules = rules();
    rules.phases[0].again = Some(Again {
        phase: "draft_weights".into(),
        facts: BTreeMap::from([("weights_gb".to_owned(), Some("draft_weights_gb".to_owned()))]),
    });
    rules.phases[0].end = Some(r"load end (?<weights_gb>[\d.]+)".into());
    rules.phases.push(phase("draft_weights", None, None));
    let grammar = LogGrammar::new(&rules).unwrap();
    let mut startup = Startup::new(0);
    let lines = [
        "TP0 load begin",
        "TP1 load begin",
        "TP1 load end 7.5",
        "TP0 load end 7.0",
        "TP0 load begin",
        "TP0 load end 0.5",
        "TP1 load begin",
        "TP1 load end 0.6",
    ];
    for (number, text) in lines.into_iter().enumerate() {
        let number = number as u64 + 1;
        startup.take(&grammar, &Piece { line_no: number, text: text.to_owned(), cut: false }, number * S);
    }
    assert_eq!(startup.phase(), "draft_weights");
    let over: Vec<_> = startup.phases().iter().map(|phase| (phase.name.as_str(), phase.s)).collect();
    assert_eq!(over, [("launch", 1.0), ("weights", 3.0)]);
    assert_eq!(startup.facts()["weights_gb"], json!(7.0), "the lowest rank's");
    assert_eq!(startup.facts()["draft_weights_gb"], json!(0.5));
}

#[test]
fn a_later_phase_ends_those_before_it() {
    let (mut startup, changes) =
        fold(&[(1, "TP0 load begin"), (2, "TP1 load begin"), (5, "TP0 load end"), (6, "TP0 capture begin")]);
    assert_eq!(changes[2..], [ended("weights", 5.0), began("graph_capture")]);
    assert_eq!(startup.finish(10 * S), [ended("graph_capture", 4.0)]);
    assert_eq!(startup.phases().len(), 3);
}

#[test]
fn a_bar_is_reported_when_it_moved_and_not_too_often() {
    let (grammar, mut startup) = (grammar(), Startup::new(0));
    let mut reported = Vec::new();
    for (at_ms, text) in
        [(0, "shards 1/4"), (100, "shards 1/4"), (200, "shards 2/4"), (900, "shards 3/4"), (950, "shards 4/4")]
    {
        let piece = Piece { line_no: 1, text: text.into(), cut: false };
        for change in startup.take(&grammar, &piece, at_ms * 1_000_000) {
            if let Change::Progress { done, total, .. } = change {
                reported.push((done, total));
            }
        }
    }
    assert_eq!(reported, [(1.0, Some(4.0)), (3.0, Some(4.0)), (4.0, Some(4.0))]);
    assert_eq!(startup.last_words(), ["shards 4/4"], "a bar is one line");
}

#[test]
fn the_root_is_the_first_line_that_is_not_a_consequence() {
    let (startup, changes) = fold(&[
        (1, "TP0 load begin"),
        (2, "a child failed"),
        (3, "TP1 out of memory: tried to allocate 1.18 GiB"),
        (4, "TP0 out of memory: tried to allocate 2.00 GiB"),
        (5, "the child failed"),
    ]);
    let root = startup.root().unwrap();
    assert_eq!((root.kind.as_str(), root.line_no, root.rank), ("oom_weights", 3, Some(1)));
    assert_eq!(root.remedy.as_deref(), Some("1.18 at 0.88, {other}"));
    let told: Vec<&str> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Failure(failure) => Some(failure.kind.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["killed", "oom_weights"], "each kind once");
}

#[test]
fn a_failure_of_one_phase_is_none_in_another() {
    let (startup, _) = fold(&[(1, "out of memory: tried to allocate 1 GiB")]);
    assert_eq!(startup.root(), None);
    let (startup, _) = fold(&[(1, "TP0 capture begin"), (2, "out of memory: tried to allocate 1 GiB")]);
    assert_eq!(startup.root().unwrap().kind, "oom_capture");
}

#[test]
fn a_heartbeat_is_neither_a_last_word_nor_progress() {
    let (startup, _) = fold(&[(3, "TP0 load begin"), (4, "GET /health 503"), (5, "GET /health 503")]);
    assert_eq!((startup.last_words(), startup.last_at()), (vec!["TP0 load begin".to_owned()], 3 * S));
}

#[test]
fn only_the_last_words_are_kept() {
    let lines: Vec<(u64, String)> = (0..100).map(|number| (number, format!("line {number}"))).collect();
    let lines: Vec<(u64, &str)> = lines.iter().map(|(at, text)| (*at, text.as_str())).collect();
    let (startup, _) = fold(&lines);
    assert_eq!(startup.last_words().len(), words::LAST_WORDS);
    assert_eq!((startup.last_words()[0].as_str(), startup.last_at()), ("line 85", 99 * S));
}
