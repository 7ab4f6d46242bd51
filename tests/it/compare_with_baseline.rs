//! A person sets a baseline, measures again, and is told whether it got worse.

use std::path::Path;

use orch::measure::MetricValue;
use orch::record::model::{Failure, Reason, Record, Verdict, VerdictKind};
use serde_json::json;

use crate::built::{Built, distribution, orch, run};

const BEFORE: &str = "20261121-220000-qwen-mtp3-0412";
const NOW: &str = "20261129-220000-qwen-mtp3-0420";

fn good(id: &str) -> Built {
    run(id).step("single", 1, 70.9).step("ladder@8", 8, 48.3)
}

/// A results folder with a good run that is the baseline, and `now`.
fn with_baseline(now: &Built) -> tempfile::TempDir {
    let results = tempfile::tempdir().unwrap();
    good(BEFORE).keep(results.path());
    let set = orch(results.path(), &["baseline", "set", "r0412"]);
    assert_eq!(set.code, 0, "{}", set.err);
    now.keep(results.path());
    results
}

/// How `orch compare` judges `now`: its exit code, the verdict, and the ids of the reasons.
fn judged(results: &Path, words: &[&str]) -> (i32, String, Vec<String>) {
    let ended = orch(results, &[&["compare"], words, &["--json"]].concat());
    let json = ended.json();
    let reasons = json["verdict"]["reasons"].as_array().unwrap();
    let ids = reasons.iter().map(|reason| reason["id"].as_str().unwrap().to_owned()).collect();
    (ended.code, json["verdict"]["kind"].as_str().unwrap().to_owned(), ids)
}

fn verdict_of(now: &Built) -> (i32, String, Vec<String>) {
    judged(with_baseline(now).path(), &["r0420"])
}

#[test]
fn a_drop_is_regressed_with_what_differs_as_its_suspects() {
    let now = run(NOW).step("single", 1, 37.8).step("ladder@8", 8, 47.9).setting("speculative.steps", json!(1));
    let results = with_baseline(&now);
    let ended = orch(results.path(), &["compare", "latest"]);
    assert_eq!(ended.code, 6);
    insta::assert_snapshot!(ended.out);
}

#[test]
fn the_same_again_is_ok() {
    let now = run(NOW).step("single", 1, 70.6).step("ladder@8", 8, 48.1);
    let results = with_baseline(&now);
    let ended = orch(results.path(), &["compare", "r0420"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    insta::assert_snapshot!(ended.out);
}

#[test]
fn better_is_improved_and_a_loss_within_noise_is_inconclusive() {
    let improved = run(NOW).step("single", 1, 90.0).step("ladder@8", 8, 48.3);
    let (code, verdict, ids) = verdict_of(&improved);
    assert_eq!((code, verdict.as_str()), (0, "improved"));
    assert!(ids.iter().all(|id| id == "improved"), "{ids:?}");
    let noisy = run(NOW).step("single", 1, 68.5).step("ladder@8", 8, 48.3);
    let results = with_baseline(&noisy);
    let (code, verdict, _) = judged(results.path(), &["r0420"]);
    assert_eq!((code, verdict.as_str()), (0, "inconclusive"));
    let text = orch(results.path(), &["compare", "r0420"]).out;
    assert!(text.contains("starts a side would decide"), "{text}");
    assert_eq!(judged(results.path(), &["r0420", "--strict"]).0, 7);
}

#[test]
fn can_see_is_always_told_and_a_loss_beyond_it_is_always_found() {
    let results = with_baseline(&good(NOW));
    let json = orch(results.path(), &["compare", "r0420", "--json"]).json();
    let comparisons = json["comparisons"].as_array().unwrap().clone();
    // Five metrics in each of two steps, and the start.
    assert_eq!(comparisons.len(), 11);
    for each in &comparisons {
        let sees = each["can_see_ratio"].as_f64().unwrap();
        assert!(sees > 0.01 && sees < 0.5, "{each}");
        assert_eq!(each["change_ratio"], 0.0);
    }
    let decode = &comparisons[1];
    assert_eq!((&decode["metric"], &decode["step"]), (&json!("decode_tokens_per_s_per_user"), &json!("single")));
    let sees = decode["can_see_ratio"].as_f64().unwrap();
    for (loss, expected) in [(sees + 0.002, "regressed"), (sees - 0.002, "inconclusive"), (0.009, "ok")] {
        let only_decode = |record: &mut Record| {
            let metrics = &mut record.steps[0].metrics;
            metrics.insert("decode_tokens_per_s_per_user".into(), MetricValue::Number(70.9 * (1.0 - loss)));
        };
        assert_eq!(verdict_of(&good(NOW).with(only_decode)).1, expected, "loss {loss}");
    }
}

#[test]
fn several_baseline_runs_that_agree_let_a_smaller_loss_be_seen() {
    let results = tempfile::tempdir().unwrap();
    let decodes = [70.9, 71.0, 70.8, 70.9, 70.7, 71.1, 70.9, 71.0];
    let mut words = vec!["baseline".to_owned(), "set".to_owned()];
    for (index, decode) in decodes.into_iter().enumerate() {
        run(&format!("2026112{index}-220000-qwen-mtp3-04a{index}")).step("single", 1, decode).keep(results.path());
        words.push(format!("r04a{index}"));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(orch(results.path(), &words).code, 0);
    run(NOW).step("single", 1, 66.5).keep(results.path());
    // -6.2 %: beyond what eight starts allow, within what a single one would.
    assert_eq!(judged(results.path(), &["r0420"]).1, "regressed");
    assert_eq!(judged(results.path(), &["r0420", "r04a0"]).1, "inconclusive");
}

#[test]
fn tolerance_says_what_is_not_worth_a_verdict() {
    let slower = run(NOW).step("single", 1, 60.0).step("ladder@8", 8, 48.3);
    assert_eq!(verdict_of(&slower).1, "regressed");
    let tolerated = json!({
        "output_tokens_per_s": {"relative": 0.2},
        "decode_tokens_per_s_per_user": {"relative": 0.2},
        "tpot_ms.p50": {"relative": 0.05, "absolute": 5.0},
        "e2e_ms.p50": {"absolute": 2000.0},
    });
    assert_eq!(verdict_of(&slower.setting("tolerance", tolerated)).1, "ok");
    // A metric that only the profile names is judged too.
    let tail = |record: &mut Record| {
        record.steps[0].metrics.insert("ttft_ms".into(), distribution(48, 212.0, 2.5));
    };
    assert_eq!(verdict_of(&good(NOW).with(tail)).1, "ok");
    let named = good(NOW).with(tail).setting("tolerance", json!({"ttft_ms.p90": {"relative": 0.1}}));
    let (code, verdict, ids) = verdict_of(&named);
    assert_eq!((code, verdict.as_str(), ids[0].as_str()), (6, "regressed", "regressed"));
}

#[test]
fn what_cannot_be_compared_has_no_baseline_and_says_why() {
    type Change = fn(&mut Record);
    let cases: [(Change, &str); 6] = [
        (|record| record.host.hardware = "1x RTX A6000".into(), "hardware_differs"),
        (|record| record.host.name = "ct130".into(), "host_differs"),
        (|record| record.steps.iter_mut().for_each(|step| step.workload = "sha256:ffff".into()), "workload_differs"),
        (|record| record.steps.iter_mut().for_each(|step| step.load.requests = Some(96)), "load_differs"),
        (|record| record.metrics_version += 1, "metrics_version_differs"),
        (|record| record.engine.as_mut().unwrap().simulated = true, "simulated_differs"),
    ];
    for (change, expected) in cases {
        let results = with_baseline(&good(NOW).with(change));
        let (code, verdict, ids) = judged(results.path(), &["r0420"]);
        assert_eq!((code, verdict.as_str()), (0, "no_baseline"), "{expected}");
        assert!(ids.iter().all(|id| id == expected), "{expected}: {ids:?}");
        assert_eq!(judged(results.path(), &["r0420", "--strict"]).0, 7, "{expected}");
        // A person who names the other run gets no comparison either, except of two hosts that are alike.
        let named = judged(results.path(), &["r0420", "r0412"]).1;
        assert_eq!(named, if expected == "host_differs" { "ok" } else { "no_baseline" }, "{expected}");
    }
}

#[test]
fn a_step_that_the_baseline_does_not_have_silences_no_other() {
    let now = run(NOW).step("single", 1, 37.8).step("extra", 2, 60.0);
    let (code, verdict, ids) = verdict_of(&now);
    assert_eq!((code, verdict.as_str()), (6, "regressed"));
    assert!(ids.contains(&"step_not_in_baseline".to_owned()), "{ids:?}");
}

#[test]
fn a_run_that_failed_or_is_invalid_is_not_compared() {
    let interrupted = good(NOW).with(|record| {
        record.complete = false;
        let reasons = vec![Reason::new("interrupted", "the run was interrupted before its end")];
        record.verdict = Verdict { kind: VerdictKind::Failed, reasons, cause: None };
    });
    assert_eq!(verdict_of(&interrupted), (5, "failed".into(), vec!["interrupted".into()]));
    let died = good(NOW).with(|record| {
        record.failure = Some(Failure {
            stage: "load".into(),
            kind: "server_died".into(),
            text: "the server died while it was measured".into(),
            line: None,
            line_no: None,
            remedy: None,
            last_words: Vec::new(),
            start: None,
        });
    });
    assert_eq!(verdict_of(&died), (5, "failed".into(), vec!["server_died".into()]));
    let invalid = run(NOW).step("single", 1, 37.8).with(|record| {
        record.steps[0].valid = false;
        record.steps[0].reasons = vec![Reason::new("errors", "12 of 48 requests failed")];
    });
    assert_eq!(verdict_of(&invalid), (5, "invalid".into(), vec!["errors".into()]));
}

#[test]
fn an_expectation_that_is_not_met_makes_a_result_invalid() {
    let expect = |conditions| verdict_of(&good(NOW).setting("expect", conditions));
    assert_eq!(expect(json!({"effective.max_running_requests": 10, "single.ttft_ms.p50": "< 0.5s"})).1, "ok");
    let (code, verdict, ids) = expect(json!({"effective.max_running_requests": 16}));
    assert_eq!((code, verdict.as_str(), ids[0].as_str()), (5, "invalid", "expectation_unmet"));
    // `ladder@8` has 48.3, and what has no value cannot be met.
    assert_eq!(expect(json!({"decode_tokens_per_s_per_user": ">= 50"})).1, "invalid");
    assert_eq!(expect(json!({"acceptance_length": ">= 2.4"})).1, "invalid");
}

#[test]
fn a_start_is_compared_with_starts_that_found_the_same_caches() {
    let slow = |cache: Option<&'static str>| {
        verdict_of(&good(NOW).with(move |record| {
            let startup = record.startup.as_mut().unwrap();
            startup.ready_s = Some(90.0);
            startup.weights_cache = cache.map(str::to_owned);
        }))
        .1
    };
    assert_eq!([slow(Some("warm")), slow(Some("cold")), slow(None)], ["regressed", "ok", "ok"]);
}

#[test]
fn a_metric_that_is_gone_is_not_ok() {
    let gone = good(NOW).with(|record| {
        record.steps[0].metrics.insert("output_tokens_per_s".into(), MetricValue::Absent(()));
    });
    let (_, verdict, ids) = verdict_of(&gone);
    assert_eq!((verdict.as_str(), ids[0].as_str()), ("inconclusive", "metric_missing"));
    let nothing = good(NOW).with(|record| {
        record.steps[0].metrics.insert("output_tokens_per_s".into(), MetricValue::Number(0.0));
    });
    assert_eq!(verdict_of(&nothing).1, "regressed");
}

#[test]
fn a_baseline_is_set_promoted_expired_and_cleared() {
    let results = tempfile::tempdir().unwrap();
    let results = results.path();
    let none = orch(results, &["baseline", "set"]);
    assert_eq!((none.code, none.err.contains("no complete run")), (2, true), "{}", none.err);
    good(BEFORE).keep(results);
    good("20261122-220000-qwen-mtp3-0413").with(|record| record.complete = false).keep(results);
    // Without a name it is the newest complete one.
    let set = orch(results, &["baseline", "set", "--why", "agreed on Friday"]);
    assert_eq!(set.code, 0, "{}", set.err);
    insta::assert_snapshot!(set.out, @r"
    baseline of qwen36-27b, step single, on ct129: r0412
    baseline of qwen36-27b, step ladder@8, on ct129: r0412
    ");
    let regressed = run(NOW).step("single", 1, 37.8).step("ladder@8", 8, 48.3);
    regressed.clone().with(|record| record.verdict.kind = VerdictKind::Regressed).keep(results);
    let refused = orch(results, &["baseline", "set", "r0420"]);
    assert_eq!(refused.code, 2);
    insta::assert_snapshot!(refused.err, @r"
    orch::baseline::regressed

      × r0420 has regressed against the baseline that holds, and would hide its
      │ own loss
      help: if the change is meant to last: `orch baseline promote r0420 --why
            TEXT`
    ");
    assert_eq!(orch(results, &["baseline", "promote", "r0420"]).code, 2, "without a reason");
    assert_eq!(orch(results, &["baseline", "promote", "r0420", "--why", "one step is meant"]).code, 0);
    assert_eq!(judged(results, &["r0420"]).1, "ok");
    let listed = orch(results, &["baseline", "list", "--json"]).json();
    let holds: Vec<_> = listed.as_array().unwrap().iter().map(|line| (&line["action"], &line["runs"][0])).collect();
    assert_eq!(holds, [(&json!("promote"), &json!(NOW)); 2]);

    assert_eq!(orch(results, &["baseline", "expire", "qwen36-27b", "--step", "single", "--why", "new driver"]).code, 0);
    let (_, verdict, ids) = judged(results, &["r0420"]);
    assert_eq!((verdict.as_str(), ids.as_slice()), ("ok", &["baseline_expired".to_owned()][..]));
    assert_eq!(orch(results, &["baseline", "clear", "qwen36-27b"]).code, 0);
    assert_eq!(judged(results, &["r0420"]).1, "no_baseline");
    let again = orch(results, &["baseline", "clear", "qwen36-27b"]);
    assert_eq!((again.code, again.err.contains("no baseline is set at all")), (2, true), "{}", again.err);
    // Every line is still there: what was compared with what can be told.
    let lines = std::fs::read_to_string(results.join("baselines.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 6);
}

#[test]
fn small_losses_do_not_add_up_to_a_baseline() {
    let results = tempfile::tempdir().unwrap();
    let results = results.path();
    // Each is within the noise of the one before it.
    for (index, decode) in [70.0, 67.5, 65.0, 62.5].into_iter().enumerate() {
        run(&format!("2026112{index}-220000-qwen-mtp3-04b{index}")).step("single", 1, decode).keep(results);
    }
    assert_eq!(orch(results, &["baseline", "set", "r04b0"]).code, 0);
    assert_eq!(judged(results, &["r04b3", "r04b2"]).1, "inconclusive");
    assert_eq!(orch(results, &["baseline", "set", "r04b1"]).code, 0);
    let refused = orch(results, &["baseline", "set", "r04b3"]);
    assert_eq!(refused.code, 2, "{}", refused.out);
    assert!(refused.err.contains("would hide a loss that came in small steps"), "{}", refused.err);
    assert_eq!(orch(results, &["baseline", "promote", "r04b3", "--why", "cooler room"]).code, 0);
    assert_eq!(orch(results, &["baseline", "set", "r04b3"]).code, 0);
}

#[test]
fn a_comparison_is_written_for_other_tools() {
    let now = run(NOW).step("single", 1, 37.8).step("ladder@8", 8, 47.9).setting("speculative.steps", json!(1));
    let results = with_baseline(&now);
    let written = |format: &str| {
        let ended = orch(results.path(), &["compare", "r0420", "--format", format]);
        assert_eq!(ended.code, 6, "{}", ended.err);
        ended.out
    };
    let markdown = written("markdown");
    assert!(markdown.starts_with("### qwen36-27b r0420: REGRESSED\n"), "{markdown}");
    assert!(markdown.contains("| single | decode tok/s/u | 37.8 | 70.9 | -47 % |"), "{markdown}");
    let junit = written("junit");
    assert!(junit.contains("<testsuite name=\"qwen36-27b r0420\" tests=\"11\" failures=\"4\""), "{junit}");
    assert!(junit.contains("<testcase classname=\"single\" name=\"tpot_ms.p50\"><failure message="), "{junit}");
    let annotations = written("annotations");
    assert!(annotations.lines().all(|line| line.starts_with("::error title=qwen36-27b r0420  regressed::")));
    let bencher: serde_json::Value = serde_json::from_str(&written("bencher")).unwrap();
    assert_eq!(bencher["qwen36-27b/single"]["decode_tokens_per_s_per_user"]["value"], json!(37.8));
}

#[test]
fn what_may_not_be_used_cannot_be_a_baseline() {
    let results = tempfile::tempdir().unwrap();
    let refused = |run: Built, why: &str| {
        run.keep(results.path());
        let ended = orch(results.path(), &["baseline", "set", "r0420"]);
        assert_eq!(ended.code, 2);
        assert!(ended.err.contains(why), "{why}: {}", ended.err);
        assert!(!results.path().join("baselines.jsonl").exists());
    };
    refused(good(NOW).with(|record| record.complete = false), "did not come to its end");
    refused(good(NOW).with(|record| record.verdict.kind = VerdictKind::Failed), "it failed");
    refused(good(NOW).with(|record| record.verdict.kind = VerdictKind::Invalid), "invalid");
    refused(good(NOW).with(|record| record.steps[1].valid = false), "not valid");
    refused(run(NOW), "it measured nothing");
    good(NOW).keep(results.path());
    good(BEFORE).with(|record| record.series = "other".into()).keep(results.path());
    let several = orch(results.path(), &["baseline", "set", "r0420", "r0412"]);
    assert!(several.code == 2 && several.err.contains("several series"), "{}", several.err);
}

#[test]
fn half_a_line_of_baselines_is_dropped_and_a_damaged_one_is_named() {
    let results = with_baseline(&good(NOW));
    let path = results.path().join("baselines.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    let first = whole.lines().next().unwrap();
    std::fs::write(&path, format!("{whole}{}", &first[..first.len() / 2])).unwrap();
    assert_eq!(judged(results.path(), &["r0420"]).1, "ok");
    // What is added next does not continue the half line.
    assert_eq!(orch(results.path(), &["baseline", "set", "r0420"]).code, 0);
    assert!(std::fs::read_to_string(&path).unwrap().lines().all(|line| line.ends_with('}')));
    std::fs::write(&path, format!("{first}\nnot json\n{first}\n")).unwrap();
    let ended = orch(results.path(), &["compare", "r0420"]);
    assert!(ended.code == 2 && ended.err.contains("line 2 of the baselines"), "{} {}", ended.code, ended.err);
}

#[test]
fn many_orchs_at_once_lose_no_line_of_the_baselines() {
    let results = with_baseline(&good(NOW));
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let results = results.path().to_owned();
            std::thread::spawn(move || orch(&results, &["baseline", "set", "r0412"]).code)
        })
        .collect();
    assert!(writers.into_iter().all(|writer| writer.join().unwrap() == 0));
    let text = std::fs::read_to_string(results.path().join("baselines.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 2 * 9);
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
}

#[test]
fn a_run_is_compared_with_another_by_name_of_run_or_profile() {
    let results = tempfile::tempdir().unwrap();
    good(BEFORE).keep(results.path());
    good(NOW).keep(results.path());
    assert_eq!(judged(results.path(), &["r0420", "--against", "r0412"]).1, "ok");
    let by_profile = orch(results.path(), &["compare", "r0420", "--against", "qwen-mtp3", "--json"]).json();
    assert_eq!(by_profile["against"], json!([BEFORE]));
    assert_eq!(orch(results.path(), &["compare", "r0420", "--against", "no-such"]).code, 2);
    assert_eq!(orch(results.path(), &["compare", "r9999"]).code, 2);
    // Nothing is set, and there is something that could be.
    let none = orch(results.path(), &["compare", "r0420"]);
    assert_eq!(none.code, 0);
    assert!(none.out.contains("`orch baseline set r0412` makes it the baseline"), "{}", none.out);
}

#[test]
fn a_baseline_run_that_is_gone_is_told() {
    let results = with_baseline(&good(NOW));
    std::fs::remove_dir_all(results.path().join("runs").join(BEFORE)).unwrap();
    let (code, verdict, ids) = judged(results.path(), &["r0420"]);
    assert_eq!((code, verdict.as_str(), ids[0].as_str()), (0, "no_baseline", "baseline_unreadable"));
}
