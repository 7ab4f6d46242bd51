use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Normal};

use super::*;
use crate::measure::MetricValue;
use crate::record::fold;
use crate::record::model::StepResult;
use crate::record::samples::{entries, result, story};

/// A complete run with one step of these metrics.
fn with(metrics: BTreeMap<String, MetricValue>) -> Record {
    let mut record = fold(entries(story())).record;
    record.startup = None;
    record.steps = vec![StepResult { metrics, ..result("single", 0.0) }];
    record
}

fn outputs(values: &[f64]) -> Baseline {
    Baseline::of(values.iter().map(|&value| with(output(value))).collect())
}

fn output(value: f64) -> BTreeMap<String, MetricValue> {
    BTreeMap::from([("output_tokens_per_s".to_owned(), MetricValue::Number(value))])
}

fn none() -> IndexMap<String, Tolerance> {
    IndexMap::new()
}

#[test]
fn one_comparison_by_hand() {
    let judgement = judge(&with(output(60.0)), Some(&outputs(&[70.0])), &none());
    let one = &judgement.comparisons[0];
    assert_eq!((one.was, one.now, one.verdict), (Some(70.0), Some(60.0), VerdictKind::Regressed));
    assert!((one.change_ratio.unwrap() + 0.142857).abs() < 1e-6);
    // Both runs: 2 % between starts, 1 % within, as nothing tells that. 2.3263 x root of (2 x (0.02^2 + 0.01^2)) =
    // 0.07357, of which the ratio is 1 - exp(-0.07357).
    assert!((one.can_see_ratio.unwrap() - 0.07093).abs() < 1e-4, "{one:?}");
    assert_eq!(judgement.verdict.reasons[0].was, Some(70.0));
}

#[test]
fn an_error_that_was_measured_counts_as_it_is() {
    let noisy = |error: f64| {
        let mut record = with(output(60.0));
        record.steps[0].errors = BTreeMap::from([("output_tokens_per_s".to_owned(), error)]);
        judge(&record, Some(&outputs(&[70.0])), &none()).comparisons[0].clone()
    };
    assert_eq!(noisy(0.06).verdict, VerdictKind::Regressed);
    // 10 % within the run: 2.3263 x root of (0.02^2 + 0.1^2 + 0.02^2 + 0.01^2) = 0.2429.
    let very = noisy(6.0);
    assert_eq!(very.verdict, VerdictKind::Inconclusive);
    assert!((very.can_see_ratio.unwrap() - 0.2156).abs() < 1e-3, "{very:?}");
}

/// The rule keeps its promise under the noise that it states: of a thousand runs of an unchanged server, one in a
/// hundred may be called regressed, and a loss beyond what it can see is called so at least every second time.
#[test]
fn of_a_hundred_unchanged_servers_one_is_called_regressed() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let start = Normal::new(0.0, 0.02).unwrap();
    let mut measured = |true_value: f64| {
        let factor: f64 = start.sample(&mut random);
        let mut record = with(output(true_value * factor.exp()));
        record.steps[0].errors = BTreeMap::from([("output_tokens_per_s".to_owned(), 0.0)]);
        record
    };
    let mut count = |loss: f64| {
        let regressed = |_: &usize| {
            let baseline = Baseline::of(vec![measured(70.0)]);
            judge(&measured(70.0 * (1.0 - loss)), Some(&baseline), &none()).verdict.kind == VerdictKind::Regressed
        };
        (0..1000).filter(regressed).count()
    };
    let (false_alarms, found) = (count(0.0), count(0.0637));
    assert!(false_alarms <= 20, "{false_alarms} of 1000");
    assert!((450..=550).contains(&found), "{found} of 1000");
}

#[test]
fn differences_are_told_path_by_path_and_only_of_what_can_matter() {
    let was = fold(entries(story())).record;
    let mut now = was.clone();
    now.id = "20261130-151503-demo-0a50".into();
    now.profile = serde_json::json!({"name": "other", "port": 30001, "memory": {"fraction": 0.9, "kv_dtype": "fp8"}});
    now.engine.as_mut().unwrap().version = "b10500".into();
    now.effective[0].read = Some(16.into());
    now.provenance.insert("driver".into(), "580.2".into());
    let told: Vec<String> = differences(&was, &now).iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "memory.fraction is 0.9, was 0.88",
            "memory.kv_dtype is fp8, was not set",
            "effective.max_running_requests is 16, was 10",
            "engine.version that ran is b10500, was b10434",
            "provenance.driver is 580.2, was 570.1",
        ]
    );
    assert_eq!(differences(&was, &was), []);
}

#[test]
fn conditions_are_read_with_their_units() {
    let expect = |conditions: serde_json::Value| {
        let mut record = with(BTreeMap::from([
            ("output_tokens_per_s".to_owned(), MetricValue::Number(1234.5)),
            ("cache_hit_ratio".to_owned(), MetricValue::Number(0.5)),
        ]));
        record.startup = Some(crate::record::model::Startup { ready_s: Some(41.2), ..Default::default() });
        record.profile = serde_json::json!({"expect": conditions});
        unmet(&record).iter().map(|reason| reason.text.clone()).collect::<Vec<_>>()
    };
    let nothing: Vec<String> = vec![];
    let met = serde_json::json!({
        "output_tokens_per_s": ">= 1.2k", "single.output_tokens_per_s": 1234.5, "cache_hit_ratio": ">= 50 %",
        "startup_s": "<= 42s", "effective.max_running_requests": "10"
    });
    assert_eq!(expect(met), nothing);
    let told = expect(
        serde_json::json!({"startup_s": "< 40000ms", "cache_hit_ratio": "!= 50%", "output_tokens_per_s": "fast"}),
    );
    assert_eq!(
        told,
        [
            "startup_s is 41.2, and was expected to be < 40000ms",
            "`single`: cache_hit_ratio is 0.5, and was expected to be != 50%",
            "`single`: output_tokens_per_s is 1234.5, and was expected to be fast",
        ]
    );
}

#[test]
fn a_percentile_that_the_samples_do_not_carry_meets_no_expectation_and_breaks_none() {
    let ttft = crate::measure::Distribution {
        samples: 20,
        p50: Some(100.0),
        p99: Some(400.0),
        max: Some(400.0),
        enough: Some(crate::measure::Percentile::P50),
        ..Default::default()
    };
    let mut record = with(BTreeMap::from([("ttft_ms".to_owned(), MetricValue::Distribution(ttft))]));
    let mut expect = |conditions: serde_json::Value| {
        record.profile = serde_json::json!({"expect": conditions});
        unmet(&record).into_iter().map(|reason| (reason.id, reason.text)).collect::<Vec<_>>()
    };
    for limit in ["< 500ms", "< 200ms"] {
        let text = format!("`single`: ttft_ms.p99 was expected to be {limit}, and too few samples carry it");
        let told = expect(serde_json::json!({"ttft_ms.p99": limit}));
        assert_eq!(told, [("expectation_not_carried".to_owned(), text)]);
    }
    assert_eq!(expect(serde_json::json!({"ttft_ms.p50": "< 200ms", "ttft_ms.max": "<= 400ms"})), []);
    assert_eq!(expect(serde_json::json!({"ttft_ms.max": "< 200ms"}))[0].0, "expectation_unmet");
}

#[test]
fn a_phase_of_the_start_up_can_be_expected() {
    let mut record = with(output(60.0));
    let phases = vec![crate::record::model::PhaseTime { name: "weights".to_owned(), s: 12.5 }];
    record.startup = Some(crate::record::model::Startup { phases, ..Default::default() });
    record.profile = serde_json::json!({"expect": {"startup_weights_s": "< 20s"}});
    assert_eq!(unmet(&record), []);
    record.profile = serde_json::json!({"expect": {"startup_weights_s": "< 12s", "startup_capture_s": "< 1s"}});
    let told: Vec<_> = unmet(&record).into_iter().map(|reason| reason.text).collect();
    assert_eq!(
        told,
        [
            "startup_weights_s is 12.5, and was expected to be < 12s",
            "startup_capture_s was expected to be < 1s, and has no value",
        ]
    );
}

#[test]
fn what_another_start_got_wrong_is_not_lost() {
    let good = with(output(70.0));
    let odd = |change: fn(&mut Record)| {
        let mut record = with(output(70.0));
        record.id = format!("{}-other", record.id);
        record.started_at -= jiff::SignedDuration::from_hours(1);
        change(&mut record);
        judge_all(&[&record, &good], Some(&outputs(&[70.0])), &none()).verdict
    };
    assert_eq!(odd(|_| {}).kind, VerdictKind::Ok);
    let unmet = odd(|record| record.profile = serde_json::json!({"expect": {"output_tokens_per_s": "> 80"}}));
    assert_eq!((unmet.kind, unmet.reasons[0].id.as_str()), (VerdictKind::Invalid, "expectation_unmet"));
    assert!(unmet.reasons[0].text.contains("-other: "), "{unmet:?}");
    // The numbers of the rest still count, and it is told what does not.
    let invalid = odd(|record| record.steps[0].valid = false);
    assert_eq!((invalid.kind, invalid.reasons[0].id.as_str()), (VerdictKind::Ok, "left_out"));
}

#[test]
fn a_step_that_may_not_be_used_makes_the_run_invalid_also_where_it_does_not_say_why() {
    let mut record = with(output(70.0));
    record.steps[0].valid = false;
    record.steps[0].reasons.clear();
    let verdict = judge(&record, Some(&outputs(&[70.0])), &tolerances(&record)).verdict;
    assert_eq!((verdict.kind, verdict.reasons[0].id.as_str()), (VerdictKind::Invalid, "step_invalid"));
}

#[test]
fn a_tolerance_that_cannot_be_read_makes_the_run_invalid() {
    let mut record = with(output(70.0));
    record.profile = serde_json::json!({"tolerance": null});
    assert_eq!(judge(&record, Some(&outputs(&[70.0])), &tolerances(&record)).verdict.kind, VerdictKind::Ok);
    record.profile = serde_json::json!({"tolerance": {"output_tokens_per_s": "much"}});
    let verdict = judge(&record, Some(&outputs(&[70.0])), &tolerances(&record)).verdict;
    assert_eq!((verdict.kind, verdict.reasons[0].id.as_str()), (VerdictKind::Invalid, "tolerance_unreadable"));
}

#[test]
fn every_headline_metric_is_in_the_table_and_one_way_of_it_is_better() {
    let ids = |tolerance: &IndexMap<String, Tolerance>| -> Vec<String> {
        metric::judged(tolerance).into_iter().map(|judged| judged.id).collect()
    };
    let headline = ["output_tokens_per_s", "decode_tokens_per_s_per_user", "tpot_ms.p50", "ttft_ms.p50", "e2e_ms.p50"];
    assert_eq!(ids(&none()), headline);
    // Of a cache's hits neither more nor fewer are better in themselves.
    let own = ["itl_ms.p99", "cache_hit_ratio", "ttft_ms.p50"];
    let own = own.map(|id| (id.to_owned(), Tolerance { relative: Some(0.1), absolute: None })).into_iter().collect();
    assert_eq!(ids(&own), [&headline[..], &["itl_ms.p99"]].concat());
}

proptest! {
    /// Whatever stands in a record, it is judged without a panic, a smaller value is never called better, and what a
    /// comparison says of itself holds.
    #[test]
    fn every_judgement_is_consistent(was in proptest::collection::vec(-1.0..1e6f64, 1..6), now in -1.0..1e6f64) {
        let judgement = judge(&with(output(now)), Some(&outputs(&was)), &none());
        for one in &judgement.comparisons {
            if let (Some(change), Some(sees)) = (one.change_ratio, one.can_see_ratio) {
                prop_assert!(one.verdict != VerdictKind::Regressed || -change > sees - 1e-9);
                prop_assert!(one.verdict != VerdictKind::Improved || change > 0.0);
            }
        }
        let worst = judgement.comparisons.iter().map(|one| one.verdict).min();
        prop_assert_eq!(judgement.verdict.kind, worst.unwrap_or(VerdictKind::NoBaseline));
    }
}
