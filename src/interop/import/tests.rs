//! There and back, and what is refused.

use super::super::{Format, of_step};
use super::*;
use crate::measure::{Row, testing};
use crate::record::fold;
use crate::record::samples::{entries, result, story};

fn record() -> crate::record::model::Record {
    fold(entries(story())).record
}

/// A step of twenty requests, one of which failed, and their rows.
fn measured() -> (StepResult, Vec<Row>) {
    let mut timelines: Vec<_> = (0..19).map(|n| testing::ok(n, n + 100 + n * n, n + 900, 9)).collect();
    timelines.push(crate::measure::Timeline {
        error: Some("no".to_owned()),
        outcome: crate::measure::Outcome::HttpError,
        ..Default::default()
    });
    timelines.iter_mut().for_each(|one| one.first_chunk = one.chunks.first().map(|chunk| chunk.at));
    let rows = timelines.iter().map(|timeline| Row::of(timeline, "single", true)).collect();
    let measured = crate::measure::Measured { timelines, ..Default::default() };
    let summary = crate::measure::summarize(&measured, &testing::step(testing::closed(4)), &Default::default());
    let step = StepResult { metrics: summary.metrics, counts: summary.counts, ..result("single", 0.0) };
    (step, rows)
}

/// What is read of a file of each tool: numbers, and distributions.
const READ: [(Format, Tool, &[&str], &[&str]); 2] = [
    (
        Format::Vllm,
        Tool::Vllm,
        &["requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_requests_per_s", "acceptance_length"],
        &["first_chunk_ms", "tpot_ms", "chunk_gap_ms", "e2e_ms"],
    ),
    (
        Format::Sglang,
        Tool::Sglang,
        &["requests_per_s", "output_tokens_per_s", "input_tokens_per_s", "total_tokens_per_s", "acceptance_length"],
        &["ttft_content_ms", "tpot_ms", "chunk_gap_ms", "e2e_ms"],
    ),
];

#[test]
fn every_field_that_is_exported_is_imported_back_with_the_same_value() {
    let (mut step, rows) = measured();
    for (id, value) in [("goodput_requests_per_s", 1.25), ("acceptance_length", 2.7)] {
        step.metrics.insert(id.to_owned(), MetricValue::Number(value));
    }
    for (format, tool, numbers, distributions) in READ {
        let (value, lossy) = of_step(format, &record(), &step, &rows);
        assert!(!lossy.is_empty());
        let back = read(tool, &value.to_string()).unwrap().remove(0);
        assert_eq!((back.step.counts.ok, back.step.counts.failed), (19, 1), "{tool:?}");
        let known: Vec<&str> = back.step.metrics.keys().map(String::as_str).collect();
        let mut wanted: Vec<&str> = numbers.iter().chain(distributions).copied().collect();
        wanted.sort_unstable();
        assert_eq!(known, wanted, "{tool:?}");
        for id in numbers {
            assert_eq!(back.step.metrics.get(*id), step.metrics.get(*id), "{id} of {tool:?}");
        }
        for id in distributions {
            let (MetricValue::Distribution(one), MetricValue::Distribution(two)) =
                (&back.step.metrics[*id], &step.metrics[*id])
            else {
                panic!("{id} of {tool:?}")
            };
            assert_eq!((one.samples, one.enough), (two.samples, two.enough), "{id} of {tool:?}");
            let parts = |of: &Distribution| [of.mean, of.p50, of.p90, of.p95, of.p99].map(Option::unwrap);
            for (one, two) in parts(one).into_iter().zip(parts(two)) {
                assert!((one - two).abs() < 1e-6, "{id} of {tool:?}: {one} {two}");
            }
        }
    }
}

#[test]
fn a_load_is_imported_back_as_it_was() {
    let (mut step, rows) = measured();
    let open = |shape: &str, burstiness| Arrival::Open { rate: 4.0, shape: shape.to_owned(), burstiness };
    for arrival in [
        Arrival::Closed { concurrency: 4 },
        open("poisson", None),
        open("constant", None),
        open("gamma", Some(0.5)),
        Arrival::Trace { speed: 1.0 },
    ] {
        step.load.arrival = arrival.clone();
        for (format, tool, ..) in READ {
            let (value, _) = of_step(format, &record(), &step, &rows);
            let back = read(tool, &value.to_string()).unwrap().remove(0);
            assert_eq!((&back.step.load.arrival, back.step.load.requests), (&arrival, Some(20)), "{tool:?}");
            let rate = &value["request_rate"];
            assert!(tool == Tool::Sglang || rate.is_number() || rate == "inf", "{rate}");
        }
    }
}

#[test]
fn a_result_without_details_is_its_sums() {
    let text = r#"{"date":"20261130-113300","backend":"openai-chat","model_id":"m","num_prompts":64,"request_rate":4.0,
        "burstiness":0.5,"max_concurrency":null,"duration":16.5,"completed":64,"total_output_tokens":8192,
        "request_throughput":3.9,"request_goodput":null,"output_throughput":496.0,"total_token_throughput":900.0,
        "mean_ttft_ms":50.0,"median_ttft_ms":48.0,"std_ttft_ms":3.0,"p99_ttft_ms":80.0}"#;
    let found = read(Tool::Vllm, text).unwrap().remove(0);
    let MetricValue::Distribution(ttft) = &found.step.metrics["first_chunk_ms"] else { panic!() };
    assert_eq!((ttft.samples, ttft.p50, ttft.p99, ttft.max), (64, Some(48.0), Some(80.0), None));
    assert!(found.step.valid && !found.step.metrics.contains_key("goodput_requests_per_s"));
    assert_eq!(found.step.load.arrival, Arrival::Open { rate: 4.0, shape: "gamma".to_owned(), burstiness: Some(0.5) });
    assert_eq!((found.model.as_deref(), found.date.as_deref()), (Some("m"), Some("20261130-113300")));
}

#[test]
fn lines_are_results_each_and_what_is_none_says_why() {
    let line = r#"{"duration":1.0,"completed":20,"output_throughput":5.0,"request_rate":"inf","max_concurrency":8}"#;
    let found = read(Tool::Sglang, &format!("{line}\n{line}\n")).unwrap();
    let names: Vec<_> = found.iter().map(|one| one.step.name.as_str()).collect();
    assert_eq!(names, ["bench-1", "bench-2"]);
    assert_eq!(found[0].step.load.arrival, Arrival::Closed { concurrency: 8 });
    for (text, why) in [
        ("", "it is empty"),
        ("{}", "it has no `duration`"),
        ("[1]", "line 1 is no object"),
        ("Serving Benchmark Result", "line 1: expected value"),
    ] {
        let error = read(Tool::Vllm, text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn the_report_of_llm_d_has_what_its_schema_asks_for() {
    let (step, rows) = measured();
    let (report, _) = of_step(Format::Llmd, &record(), &step, &rows);
    assert_eq!(report["version"], "0.1");
    for pointer in [
        "/scenario/model/name",
        "/scenario/load/name",
        "/metrics/time/duration",
        "/metrics/requests/total",
        "/metrics/requests/input_length/mean",
        "/metrics/requests/output_length/mean",
        "/metrics/latency/time_to_first_token/mean",
        "/metrics/throughput/total_tokens_per_sec",
    ] {
        assert!(report.pointer(pointer).is_some_and(|value| !value.is_null()), "{pointer}");
    }
    assert_eq!(report.pointer("/metrics/latency/time_per_output_token/units"), Some(&json!("ms/token")));
}
