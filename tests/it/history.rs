//! Someone asks how a series went: which run moved, and what changed there.

use orch::measure::MetricValue;
use serde_json::json;

use crate::built::{orch, run};

/// Thirty nights of one start each; from the eighteenth on with another backend, and slower.
fn nights(results: &std::path::Path) {
    for night in 0..30u32 {
        let slower = night >= 18;
        let wobble = 1.0 + 0.004 * f64::from((night * 7) % 5) - 0.008;
        let decode = if slower { 66.0 } else { 70.0 } * wobble;
        let id = format!("202611{:02}-220000-qwen-mtp3-0a{night:02x}", night + 1);
        let mut built = run(&id).step("single", 1, decode).with(|record| {
            record.steps[0].metrics.insert("peak_memory_bytes".into(), MetricValue::Number(44.1e9));
        });
        if slower {
            built = built.setting("attention_backend", json!("triton"));
        }
        built.keep(results);
    }
}

#[test]
fn the_run_that_moved_is_told_with_what_changed_there() {
    let results = tempfile::tempdir().unwrap();
    nights(results.path());
    let told = orch(results.path(), &["history", "qwen36-27b"]);
    assert_eq!(told.code, 0, "{}", told.err);
    insta::assert_snapshot!(told.out);
    let json =
        orch(results.path(), &["history", "qwen36-27b", "--metric", "output_tokens_per_s", "--format", "json"]).json();
    let moved = &json[0]["moved"];
    assert_eq!(moved.as_array().unwrap().len(), 1, "{moved}");
    assert_eq!((&moved[0]["index"], &moved[0]["worse"]), (&json!(18), &json!(true)));
    assert_eq!(json[0]["differs"][0][0]["path"], "attention_backend");
    assert_eq!(json[0]["points"].as_array().unwrap().len(), 30);
}

#[test]
fn a_history_is_read_by_other_tools() {
    let results = tempfile::tempdir().unwrap();
    nights(results.path());
    let words = ["history", "qwen36-27b", "--step", "single", "--metric", "tpot_ms.p50", "--format", "otava"];
    let csv = orch(results.path(), &words).out;
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time,run,single.tpot_ms.p50"));
    assert!(lines.next().unwrap().starts_with("2026-11-01T22:00:00Z,20261101-220000-qwen-mtp3-0a00,14.4"), "{csv}");
    assert_eq!(csv.lines().count(), 31);
}

#[test]
fn what_is_not_there_is_an_error_that_says_so() {
    let results = tempfile::tempdir().unwrap();
    nights(results.path());
    let none = orch(results.path(), &["history", "no-such"]);
    assert!(none.code == 2 && none.err.contains("no complete, valid run of the series `no-such`"), "{}", none.err);
    let unknown = orch(results.path(), &["history", "qwen36-27b", "--metric", "speed"]);
    assert!(unknown.code == 2 && unknown.err.contains("`speed` is not the id of a metric"), "{}", unknown.err);
}

#[test]
fn the_index_is_made_anew_from_the_folders() {
    let results = tempfile::tempdir().unwrap();
    nights(results.path());
    std::fs::write(results.path().join("index.sqlite"), b"not an index").unwrap();
    let made = orch(results.path(), &["index"]);
    assert!(made.code == 0 && made.out.starts_with("30 runs in the index of "), "{}{}", made.out, made.err);
    assert_eq!(orch(results.path(), &["list", "--limit", "3", "--json"]).json().as_array().unwrap().len(), 3);
}

#[test]
fn earlier_nights_tell_how_much_starts_vary() {
    let results = tempfile::tempdir().unwrap();
    nights(results.path());
    assert_eq!(orch(results.path(), &["baseline", "set", "r0a10"]).code, 0);
    // Of one start against one, what is stated would allow 8 %. Sixteen nights that vary by half a percent say more.
    let json = orch(results.path(), &["compare", "r0a11", "--json"]).json();
    let sees = json["comparisons"][0]["can_see_ratio"].as_f64().unwrap();
    assert!(sees < 0.04, "{sees}");
    assert_eq!(orch(results.path(), &["compare", "r0a12"]).code, 6);
}

#[test]
fn someone_learns_how_often_the_verdicts_of_their_series_are_right() {
    let results = tempfile::tempdir().unwrap();
    nights(results.path());
    let words = ["selftest", "verdict", "qwen36-27b", "--draws", "40"];
    let json = orch(results.path(), &[&words[..], &["--json"]].concat()).json();
    let rate = |index: usize, word: &str| json["rates"][index][word].as_f64().unwrap();
    assert_eq!(json["starts"], 30);
    assert!(rate(0, "regressed") <= 0.05 && rate(0, "improved") <= 0.05, "{json}");
    assert!(rate(5, "regressed") >= 0.95, "a tenth is found: {json}");
    let text = orch(results.path(), &words).out;
    assert!(text.contains("30 starts that vary by 0."), "{text}");
    let few = orch(results.path(), &["selftest", "verdict", "no-such"]);
    assert!(few.code == 2 && few.err.contains("0 starts that can be compared"), "{}", few.err);
}
