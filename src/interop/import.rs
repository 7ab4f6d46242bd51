//! Result files of `vllm bench serve` and `sglang.bench_serving` as steps of a record.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::export::Lossy;
use crate::measure::validity::LEAST_REQUESTS;
use crate::measure::{Distribution, ENOUGH, MetricValue};
use crate::record::model::{Counts, Reason, StepResult};
use crate::render::{Arrival, Load};

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `vllm bench serve --save-result`, with `--save-detailed` or without.
    Vllm,
    /// `sglang.bench_serving --output-file`, with `--output-details` or without.
    Sglang,
}

impl Tool {
    /// Its command.
    pub fn command(self) -> &'static str {
        match self {
            Tool::Vllm => "vllm bench serve",
            Tool::Sglang => "sglang.bench_serving",
        }
    }
}

/// A result of another tool.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// What it measured.
    pub step: StepResult,
    /// What it says of itself, without what it has of single requests.
    pub about: Value,
    /// The model, if it says.
    pub model: Option<String>,
    /// When it was made, as `YYYYMMDD-HHMMSS` of its clock.
    pub date: Option<String>,
    /// Figures whose formula differs from ours.
    pub lossy: Vec<Lossy>,
}

/// Why a file is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error("this is no result of `{}`: {why}", tool.command())]
#[diagnostic(
    code(orch::interop::bad_result),
    help("give the JSON file that it wrote with its results, not what it printed")
)]
pub struct BadResult {
    tool: Tool,
    why: String,
}

/// Reads a file: one result, or one in each line.
pub fn read(tool: Tool, text: &str) -> Result<Vec<Foreign>, BadResult> {
    let bad = |why: String| BadResult { tool, why };
    let lines: Vec<&str> = match serde_json::from_str::<Value>(text) {
        Ok(_) => vec![text],
        Err(_) => text.lines().filter(|line| !line.trim().is_empty()).collect(),
    };
    if lines.is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    let several = lines.len() > 1;
    let one = |(number, line): (usize, &&str)| {
        let value: Value = serde_json::from_str(line).map_err(|error| bad(format!("line {}: {error}", number + 1)))?;
        let map = value.as_object().ok_or_else(|| bad(format!("line {} is no object", number + 1)))?;
        let name = if several { format!("bench-{}", number + 1) } else { "bench".to_owned() };
        of_result(tool, map, name).map_err(bad)
    };
    lines.iter().enumerate().map(one).collect()
}

/// What is of single requests.
const DETAILS: [&str; 9] = [
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "errors",
];

fn of_result(tool: Tool, map: &Map<String, Value>, name: String) -> Result<Foreign, String> {
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let count = |key: &str| map.get(key).and_then(Value::as_u64);
    let need = |key: &str| number(key).ok_or_else(|| format!("it has no `{key}`"));
    need("duration")?;
    need("output_throughput")?;
    let ok = count("completed").ok_or("it has no `completed`")?;
    let failed = count("failed").or_else(|| count("num_prompts").map(|all| all.saturating_sub(ok))).unwrap_or(0);
    let (metrics, lossy) = metrics(tool, map, ok);
    let counts = Counts { ok, failed, ..Counts::default() };
    let reasons = reasons(&counts);
    let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    let about: Map<String, Value> = map
        .iter()
        .filter(|(key, _)| !DETAILS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let (arrival, requests) = arrival(map, ok + failed);
    let workload = json!({
        "tool": tool.command(), "model": text("model_id"), "dataset": text("dataset_name"), "requests": ok + failed,
        "input_tokens": count("total_input_tokens"),
    });
    let step = StepResult {
        name,
        valid: reasons.is_empty(),
        reasons,
        workload: hash(&workload),
        workload_name: text("dataset_name").unwrap_or_else(|| "imported".to_owned()),
        load: Load { arrival, requests: Some(requests), duration_s: None, warmup: None },
        goodput: None,
        load_path: "direct".to_owned(),
        counts,
        metrics,
        errors: BTreeMap::new(),
        counters: BTreeMap::new(),
        warmup: None,
        client: None,
        sources: BTreeMap::new(),
        acceptance_by_position: Vec::new(),
        probe: false,
    };
    Ok(Foreign { step, about: Value::Object(about), model: text("model_id"), date: text("date"), lossy })
}

fn hash(value: &Value) -> String {
    let hex: String = Sha256::digest(value.to_string()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn reasons(counts: &Counts) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let all = counts.ok + counts.failed;
    if counts.ok == 0 {
        reasons.push(Reason::new("no_successful_request", format!("no request of {all} succeeded")));
    } else if counts.failed as f64 > all as f64 * 0.01 {
        reasons.push(Reason::new("failures", format!("{} of {all} requests failed, more than 1 %", counts.failed)));
    } else if counts.ok < LEAST_REQUESTS {
        let text = format!("{} requests succeeded, at least {LEAST_REQUESTS} are needed", counts.ok);
        reasons.push(Reason::new("too_few_samples", text));
    }
    reasons
}

fn arrival(map: &Map<String, Value>, requests: u64) -> (Arrival, u64) {
    let most = map.get("max_concurrency").and_then(Value::as_u64).unwrap_or(requests).max(1);
    let arrival = match map.get("request_rate") {
        Some(Value::Number(rate)) => {
            let burstiness = map.get("burstiness").and_then(Value::as_f64).filter(|shape| *shape != 1.0);
            let shape = if burstiness.is_some() { "gamma" } else { "poisson" };
            Arrival::Open { rate: rate.as_f64().unwrap_or_default(), shape: shape.to_owned(), burstiness }
        }
        Some(Value::String(word)) if word == "trace" => Arrival::Trace { speed: 1.0 },
        // Without a rate all come at once, unless a cap holds them back.
        _ => Arrival::Closed { concurrency: u32::try_from(most).unwrap_or(u32::MAX) },
    };
    (arrival, requests)
}

/// Their figures under our names.
fn metrics(tool: Tool, map: &Map<String, Value>, ok: u64) -> (BTreeMap<String, MetricValue>, Vec<Lossy>) {
    let number = |key: &str| map.get(key).and_then(Value::as_f64).filter(|value| value.is_finite());
    let mut metrics = BTreeMap::new();
    let total = if tool == Tool::Vllm { "total_token_throughput" } else { "total_throughput" };
    let acceptance = if tool == Tool::Vllm { "spec_decode_acceptance_length" } else { "accept_length" };
    for (id, key) in [
        ("requests_per_s", "request_throughput"),
        ("output_tokens_per_s", "output_throughput"),
        ("input_tokens_per_s", "input_throughput"),
        ("total_tokens_per_s", total),
        ("goodput_requests_per_s", "request_goodput"),
        ("acceptance_length", acceptance),
    ] {
        if let Some(value) = number(key) {
            metrics.insert(id.to_owned(), MetricValue::Number(value));
        }
    }
    let is_native = map.get("backend").and_then(Value::as_str) == Some("sglang");
    let is_chat = map.get("backend").and_then(Value::as_str).is_some_and(|word| word.ends_with("chat"));
    // What each of their clients takes for the first token, and for a gap: see `docs/metrics.md`.
    let (ttft, itl) = match (tool, is_native, is_chat) {
        (Tool::Vllm, ..) => ("first_chunk_ms", "chunk_gap_ms"),
        (Tool::Sglang, true, _) => ("ttft_ms", "itl_ms"),
        (Tool::Sglang, false, true) => ("ttft_content_ms", "chunk_gap_ms"),
        (Tool::Sglang, false, false) => ("ttft_ms", "chunk_gap_ms"),
    };
    let e2e = if tool == Tool::Vllm { "e2el" } else { "e2e_latency" };
    let gaps =
        map.get("itls").and_then(Value::as_array).map(|all| all.iter().flat_map(numbers).map(|s| s * 1e3).collect());
    let detailed = [("ttft", of_ok(map, "ttfts")), (e2e, of_ok(map, "latencies")), ("itl", gaps)];
    for (id, name) in [(ttft, "ttft"), ("tpot_ms", "tpot"), (itl, "itl"), ("e2e_ms", e2e)] {
        let samples = detailed.iter().find(|(of, _)| *of == name).and_then(|(_, samples)| samples.clone());
        let found = match samples {
            Some(samples) => Some(Distribution::of(samples)),
            None => summed(map, name, ok),
        };
        if let Some(found) = found {
            metrics.insert(id.to_owned(), MetricValue::Distribution(found));
        }
    }
    let lossy = vec![
        ("tpot_ms", "theirs takes 1 token for the first chunk, ours the tokens that were in it"),
        ("output_tokens_per_s", "theirs is over the time to the end of the last response, ours to its last token"),
    ];
    (metrics, lossy)
}

fn numbers(list: &Value) -> impl Iterator<Item = f64> + '_ {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64)
}

/// Seconds of the requests that did not fail, in milliseconds; `None` where the file has no details.
fn of_ok(map: &Map<String, Value>, key: &str) -> Option<Vec<f64>> {
    let all = map.get(key)?.as_array()?;
    let errors = map.get("errors").and_then(Value::as_array);
    let failed = |at: usize| errors.and_then(|errors| errors.get(at)?.as_str()).is_some_and(|text| !text.is_empty());
    let values = all.iter().enumerate().filter(|(at, _)| !failed(*at)).filter_map(|(_, value)| value.as_f64());
    Some(values.map(|seconds| seconds * 1e3).collect())
}

/// A distribution of which only the sums are there.
fn summed(map: &Map<String, Value>, name: &str, samples: u64) -> Option<Distribution> {
    let number = |part: &str| map.get(&format!("{part}_{name}_ms")).and_then(Value::as_f64);
    let mean = number("mean")?;
    Some(Distribution {
        samples,
        mean: Some(mean),
        p50: number("median"),
        p90: number("p90"),
        p95: number("p95"),
        p99: number("p99"),
        max: None,
        enough: ENOUGH.iter().rev().find(|(_, needed)| samples >= *needed).map(|(percentile, _)| *percentile),
    })
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn what_is_exported_is_imported_back_with_the_same_values() {
        let (step, rows) = measured();
        for (format, tool, same) in [
            (Format::Vllm, Tool::Vllm, ["first_chunk_ms", "chunk_gap_ms", "e2e_ms"]),
            (Format::Sglang, Tool::Sglang, ["ttft_content_ms", "chunk_gap_ms", "e2e_ms"]),
        ] {
            let (value, lossy) = of_step(format, &record(), &step, &rows);
            assert!(!lossy.is_empty());
            let back = read(tool, &value.to_string()).unwrap().remove(0);
            assert_eq!((back.step.counts.ok, back.step.counts.failed), (19, if tool == Tool::Vllm { 1 } else { 0 }));
            for id in ["requests_per_s", "output_tokens_per_s", "total_tokens_per_s"] {
                assert_eq!(back.step.metrics.get(id), step.metrics.get(id), "{id} of {tool:?}");
            }
            for id in same {
                let (MetricValue::Distribution(one), MetricValue::Distribution(two)) =
                    (&back.step.metrics[id], &step.metrics[id])
                else {
                    panic!("{id} of {tool:?}")
                };
                for (one, two) in [(one.mean, two.mean), (one.p50, two.p50), (one.p99, two.p99)] {
                    assert!((one.unwrap() - two.unwrap()).abs() < 1e-6, "{id} of {tool:?}: {one:?} {two:?}");
                }
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
        assert_eq!(
            found.step.load.arrival,
            Arrival::Open { rate: 4.0, shape: "gamma".to_owned(), burstiness: Some(0.5) }
        );
        assert_eq!((found.model.as_deref(), found.date.as_deref()), (Some("m"), Some("20261130-113300")));
    }

    #[test]
    fn lines_are_results_each_and_what_is_none_says_why() {
        let line =
            r#"{"duration":1.0,"completed":20,"output_throughput":5.0,"request_rate":"inf","max_concurrency":8}"#;
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
}
