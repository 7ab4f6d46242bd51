//! Planted losses, each named by what the counters say.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::{judge, tolerances};
use crate::measure::{Distribution, MetricValue, Percentile};
use crate::record::model::{Cause, Effective, Reason, Record, VerdictKind};
use crate::record::samples::{entries, result, story};
use crate::record::{Baseline, fold};

/// What a server does at one request at a time, as its counters tell it.
#[derive(Clone, Copy)]
struct Server {
    steps_per_s: f64,
    requests_per_step: f64,
    tokens: f64,
    ttft_ms: f64,
    counted: bool,
}

const GOOD: Server = Server { steps_per_s: 26.2, requests_per_step: 1.0, tokens: 2.71, ttft_ms: 200.0, counted: true };

fn record(server: Server, change: impl FnOnce(&mut Record)) -> Record {
    let mut record = fold(entries(story())).record;
    record.startup = None;
    record.profile = json!({"name": "a", "series": "a", "speculative": {"method": "mtp", "steps": 3},
                            "flags": {"log-level": "info"}});
    let Server { steps_per_s, requests_per_step, tokens, ttft_ms, counted } = server;
    let output = steps_per_s * requests_per_step * tokens;
    let decode = output / requests_per_step;
    let number = MetricValue::Number;
    let mut metrics = BTreeMap::from([
        ("output_tokens_per_s".to_owned(), number(output)),
        ("decode_tokens_per_s_per_user".to_owned(), number(decode)),
        ("acceptance_length".to_owned(), number(tokens)),
        ("ttft_ms".to_owned(), around(ttft_ms)),
        ("e2e_ms".to_owned(), around(ttft_ms + 256.0 * 1000.0 / decode)),
    ]);
    if counted {
        metrics.insert("steps_per_s".to_owned(), number(steps_per_s));
        metrics.insert("requests_per_step".to_owned(), number(requests_per_step));
        metrics.insert("tokens_per_request_step".to_owned(), number(tokens));
    }
    record.steps = vec![crate::record::model::StepResult { metrics, ..result("single", 0.0) }];
    change(&mut record);
    record
}

fn around(middle: f64) -> MetricValue {
    let value = Some(middle);
    MetricValue::Distribution(Distribution {
        samples: 48,
        mean: value,
        p50: value,
        p90: value.map(|value| value * 1.01),
        enough: Some(Percentile::P90),
        ..Distribution::default()
    })
}

fn cause(was: Record, now: Record) -> Cause {
    let judgement = judge(&now, Some(&Baseline::of(vec![was])), &tolerances(&now));
    assert_eq!(judgement.verdict.kind, VerdictKind::Regressed, "{judgement:#?}");
    judgement.verdict.cause.expect("a cause")
}

fn set(path: &'static [&'static str], value: serde_json::Value) -> impl FnOnce(&mut Record) {
    move |record| {
        let mut place = &mut record.profile;
        for key in path {
            place = &mut place[*key];
        }
        *place = value;
    }
}

fn put(id: &'static str, value: f64) -> impl Fn(&mut Record) {
    move |record| {
        record.steps[0].metrics.insert(id.to_owned(), MetricValue::Number(value));
    }
}

#[test]
fn one_step_instead_of_three_is_acceptance_all_of_it() {
    let slow = Server { tokens: 1.41, steps_per_s: 26.8, ..GOOD };
    for counted in [true, false] {
        let was = record(Server { counted, ..GOOD }, |_| ());
        let now = record(Server { counted, ..slow }, |record| {
            set(&["speculative", "steps"], json!(1))(record);
            set(&["flags", "log-level"], json!("debug"))(record);
        });
        let cause = cause(was, now);
        assert_eq!(
            (cause.kind.as_str(), cause.sentence.as_str()),
            (
                "acceptance",
                "`single`: accepted tokens per step are 1.410, were 2.710 (-48.0 %): all of the loss, because \
                 `speculative.steps` is 1, was 3"
            )
        );
        assert!(cause.evidence[0].contains("(-48.0 %): all of the loss"), "{:?}", cause.evidence);
    }
}

#[test]
fn what_nobody_counted_is_not_named() {
    // Slower for each user, with drafts of which nothing says how many were accepted.
    let uncounted = |record: &mut Record| {
        record.steps[0].metrics.remove("acceptance_length");
    };
    let was = record(Server { counted: false, ..GOOD }, uncounted);
    let now = record(Server { counted: false, steps_per_s: 14.0, ..GOOD }, uncounted);
    let judgement = judge(&now, Some(&Baseline::of(vec![was])), &tolerances(&now));
    assert_eq!((judgement.verdict.kind, judgement.verdict.cause), (VerdictKind::Regressed, None));
}

#[test]
fn acceptance_that_falls_with_equal_settings_is_named_too() {
    let cause = cause(record(GOOD, |_| ()), record(Server { tokens: 1.9, ..GOOD }, |_| ()));
    assert_eq!(cause.kind, "acceptance");
    assert!(cause.sentence.ends_with("all of the loss, with the same settings, versions and host"), "{cause:?}");
}

#[test]
fn a_setting_that_differs_and_costs_nothing_is_not_named() {
    // The steps are slower, and beside that fewer are drafted, which the counters show to cost nothing.
    let now = record(Server { steps_per_s: 20.0, ..GOOD }, |record| {
        set(&["speculative", "steps"], json!(1))(record);
        set(&["flags", "log-level"], json!("debug"))(record);
    });
    let cause = cause(record(GOOD, |_| ()), now);
    assert_eq!(cause.kind, "step_time");
    let told = &cause.sentence;
    assert!(!told.contains("speculative") && !told.contains("log-level"), "{told}");
    assert!(told.ends_with("all of the loss, and nothing that differs is known to act on that"), "{told}");
}

#[test]
fn slower_steps_are_named_with_what_can_slow_them() {
    let slow = Server { steps_per_s: 20.0, ..GOOD };
    let now = record(slow, |record| record.profile["attention_backend"] = json!("triton"));
    let cause = cause(record(GOOD, |_| ()), now);
    assert_eq!(
        cause.sentence,
        "`single`: steps/s are 20.0, were 26.2 (-23.7 %): all of the loss, because `attention_backend` is triton, was \
         not set"
    );
}

#[test]
fn a_clock_loss_is_named() {
    let clocks = |mhz: f64| {
        move |record: &mut Record| {
            record.steps[0].counters.insert("gpu0_sm_clock_mhz.mean".to_owned(), mhz);
        }
    };
    let now = record(Server { steps_per_s: 20.0, ..GOOD }, clocks(1400.0));
    let cause = cause(record(GOOD, clocks(1800.0)), now);
    assert_eq!(cause.kind, "clocks");
    assert!(cause.sentence.contains("MHz 1400, were 1800 (-22.2 %)"), "{cause:?}");
}

#[test]
fn a_cold_cache_is_named() {
    let was = record(GOOD, put("cache_hit_ratio", 0.8));
    // The first token comes later; in steps a second that is the same loss.
    let now = record(Server { steps_per_s: 18.0, ttft_ms: 3500.0, ..GOOD }, |record| {
        put("cache_hit_ratio", 0.02)(record);
        record.steps[0].metrics.insert("e2e_ms".to_owned(), around(3500.0 + 256.0 * 1000.0 / 71.0));
        put("decode_tokens_per_s_per_user", 71.0)(record);
    });
    let cause = cause(was, now);
    assert_eq!(cause.kind, "cache");
    assert!(cause.sentence.contains("2.0 % of the prompts' tokens come from the cache, were 80.0 %"), "{cause:?}");
}

fn cap(read: u32) -> impl Fn(&mut Record) {
    move |record| {
        record.effective =
            vec![Effective { key: "max_running_requests".to_owned(), asked: Some(json!(16)), read: Some(json!(read)) }];
    }
}

#[test]
fn a_cap_is_named_whether_or_not_its_step_is_valid() {
    let full = Server { requests_per_step: 15.6, ..GOOD };
    let was = record(full, |record| {
        cap(16)(record);
        put("waiting_ratio", 0.0)(record);
    });
    let now = record(Server { requests_per_step: 9.8, ttft_ms: 4000.0, ..GOOD }, |record| {
        cap(10)(record);
        put("waiting_ratio", 0.9)(record);
    });
    let found = cause(was.clone(), now.clone());
    assert_eq!(found.kind, "cap");
    assert!(found.sentence.contains("the server runs 10 requests at once, was 16"), "{found:?}");
    assert!(found.sentence.contains("because `effective.max_running_requests` is 10, was 16"), "{found:?}");
    let mut invalid = now;
    invalid.steps[0].valid = false;
    invalid.steps[0].reasons = vec![Reason::new("over_running_cap", "16 at once, and the server runs 10")];
    let verdict = judge(&invalid, Some(&Baseline::of(vec![was])), &tolerances(&invalid)).verdict;
    assert_eq!((verdict.kind, verdict.cause.unwrap().kind.as_str()), (VerdictKind::Invalid, "cap"));
}
