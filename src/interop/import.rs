//! Result files of `vllm bench serve` and `sglang.bench_serving` as steps of a record.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::export::{ARRIVAL, Lossy};
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
    let told = map.get("errors").and_then(Value::as_array);
    let told =
        told.map(|all| all.iter().filter(|text| text.as_str().is_some_and(|text| !text.is_empty())).count() as u64);
    let failed =
        count("failed").or_else(|| count("num_prompts").map(|all| all.saturating_sub(ok))).or(told).unwrap_or(0);
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
    let own = map.get(ARRIVAL).and_then(Value::as_str);
    let arrival = match map.get("request_rate") {
        _ if own == Some("trace") => Arrival::Trace { speed: 1.0 },
        Some(Value::String(word)) if word == "trace" => Arrival::Trace { speed: 1.0 },
        Some(Value::Number(rate)) => {
            let burstiness = map.get("burstiness").and_then(Value::as_f64).filter(|shape| *shape != 1.0);
            let shape = own.unwrap_or(if burstiness.is_some() { "gamma" } else { "poisson" });
            Arrival::Open { rate: rate.as_f64().unwrap_or_default(), shape: shape.to_owned(), burstiness }
        }
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
mod tests;
