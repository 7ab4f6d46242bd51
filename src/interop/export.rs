//! A step of a record in the shape of another tool's result file.

use serde_json::{Map, Value, json};

use crate::measure::{Distribution, MetricValue, Row, quantile};
use crate::record::model::{Record, StepResult};
use crate::render::Arrival;

/// Whose shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The file of `vllm bench serve --save-result --save-detailed`.
    Vllm,
    /// A line of the file of `sglang.bench_serving --output-file`.
    Sglang,
    /// The llm-d benchmark report, version 0.1.
    Llmd,
}

/// Percentiles that are written. vLLM's client writes those that it was asked for.
const PERCENTILES: [u32; 3] = [90, 95, 99];
/// A key of our own, which their readers pass over.
pub(super) const ARRIVAL: &str = "arrival";

/// A name under which the other tool has another formula, and how it differs.
pub type Lossy = (&'static str, &'static str);

const TPOT: Lossy = ("tpot", "theirs takes 1 token for the first chunk, ours the tokens that were in it");
const DURATION: Lossy = ("duration", "theirs ends with the last response, ours with its last token");
const TTFT: Lossy = ("ttft", "theirs is of the client's own endpoint, ours of any generated token");
const GENERATOR: Lossy = ("scenario.load.name", "the schema knows no name for this program: `metadata.tool` has it");

/// A step in the shape of `format`, and the names that are lossy. `rows` are those of the step.
pub fn of_step(format: Format, record: &Record, step: &StepResult, rows: &[Row]) -> (Value, Vec<Lossy>) {
    let figures = Figures::of(step, rows);
    match format {
        Format::Vllm => (vllm(record, step, rows, &figures), vec![TPOT, DURATION]),
        Format::Sglang => (sglang(step, rows, &figures), vec![TPOT, DURATION, TTFT]),
        Format::Llmd => (llmd(record, step, rows, &figures), vec![TPOT, DURATION, GENERATOR]),
    }
}

/// What all of them need.
struct Figures<'a> {
    step: &'a StepResult,
    ok: Vec<&'a Row>,
    duration_s: Option<f64>,
}

impl<'a> Figures<'a> {
    fn of(step: &'a StepResult, rows: &'a [Row]) -> Self {
        let ok: Vec<&Row> = rows.iter().filter(|row| row.outcome == crate::measure::Outcome::Ok).collect();
        let mut figures = Figures { step, ok, duration_s: None };
        let rate = figures.number("requests_per_s").filter(|rate| *rate > 0.0);
        figures.duration_s = rate.map(|rate| step.counts.ok as f64 / rate);
        figures
    }

    fn number(&self, id: &str) -> Option<f64> {
        match self.step.metrics.get(id) {
            Some(MetricValue::Number(value)) => Some(*value),
            _ => None,
        }
    }

    fn distribution(&self, id: &str) -> Option<&Distribution> {
        match self.step.metrics.get(id) {
            Some(MetricValue::Distribution(found)) => Some(found),
            _ => None,
        }
    }

    fn input(&self) -> u64 {
        self.ok.iter().filter_map(|row| row.input_tokens).sum()
    }

    fn output(&self) -> u64 {
        self.ok.iter().map(|row| row.output_tokens).sum()
    }

    /// Values of the requests that count.
    fn each(&self, value: fn(&Row) -> Option<f64>) -> Vec<f64> {
        self.ok.iter().filter_map(|row| value(row)).collect()
    }

    /// Gaps between chunks, where their moments were kept.
    fn gaps(&self) -> Option<Vec<f64>> {
        let gaps =
            |row: &&Row| Some(row.chunk_ms.as_ref()?.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>());
        self.ok.iter().map(gaps).collect::<Option<Vec<_>>>().map(|each| each.concat())
    }
}

/// Mean, median, standard deviation and percentiles under the names that vLLM's and SGLang's clients share.
fn spread(into: &mut Map<String, Value>, name: &str, values: &[f64], percentiles: &[u32]) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mean = (!sorted.is_empty()).then(|| sorted.iter().sum::<f64>() / sorted.len() as f64);
    let variance = |mean: f64| sorted.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / sorted.len() as f64;
    into.insert(format!("mean_{name}_ms"), json!(mean));
    into.insert(format!("median_{name}_ms"), json!(quantile(&sorted, 0.5)));
    into.insert(format!("std_{name}_ms"), json!(mean.map(|mean| variance(mean).sqrt())));
    for percentile in percentiles {
        into.insert(format!("p{percentile}_{name}_ms"), json!(quantile(&sorted, f64::from(*percentile) / 100.0)));
    }
}

/// The same from a distribution whose samples were not kept: what it does not hold is `null`.
fn summed(into: &mut Map<String, Value>, name: &str, found: Option<&Distribution>, percentiles: &[u32]) {
    into.insert(format!("mean_{name}_ms"), json!(found.and_then(|found| found.mean)));
    into.insert(format!("median_{name}_ms"), json!(found.and_then(|found| found.p50)));
    into.insert(format!("std_{name}_ms"), Value::Null);
    for percentile in percentiles {
        let value = found.and_then(|found| match percentile {
            90 => found.p90,
            95 => found.p95,
            99 => found.p99,
            _ => None,
        });
        into.insert(format!("p{percentile}_{name}_ms"), json!(value));
    }
}

fn insert(into: &mut Map<String, Value>, fields: impl IntoIterator<Item = (&'static str, Value)>) {
    into.extend(fields.into_iter().map(|(key, value)| (key.to_owned(), value)));
}

fn seconds(values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|ms| ms / 1e3).collect()
}

fn vllm(record: &Record, step: &StepResult, rows: &[Row], figures: &Figures<'_>) -> Value {
    let model = record.profile.pointer("/model/path").or_else(|| record.profile.get("model"));
    let (rate, burstiness, concurrency) = load(&step.load.arrival);
    // Its readers take a rate for a number, or for `inf`.
    let rate = if rate == json!("trace") { json!(figures.number("requests_per_s")) } else { rate };
    let mut into = Map::new();
    insert(
        &mut into,
        [
            ("date", json!(record.started_at.strftime("%Y%m%d-%H%M%S").to_string())),
            ("endpoint_type", json!("openai-chat")),
            ("backend", json!("openai-chat")),
            ("label", json!(format!("orch {} {}", record.id, step.name))),
            ("model_id", json!(model)),
            ("tokenizer_id", json!(model)),
            ("num_prompts", json!(step.counts.ok + step.counts.failed)),
            ("request_rate", rate),
            ("burstiness", json!(burstiness)),
            ("max_concurrency", json!(concurrency)),
            (ARRIVAL, json!(arrival(&step.load.arrival))),
            ("duration", json!(figures.duration_s)),
            ("completed", json!(step.counts.ok)),
            ("failed", json!(step.counts.failed)),
            ("total_input_tokens", json!(figures.input())),
            ("total_output_tokens", json!(figures.output())),
            ("request_throughput", json!(figures.number("requests_per_s"))),
            ("request_goodput", json!(figures.number("goodput_requests_per_s"))),
            ("output_throughput", json!(figures.number("output_tokens_per_s"))),
            ("total_token_throughput", json!(figures.number("total_tokens_per_s"))),
            ("input_lens", json!(rows.iter().map(|row| row.input_tokens.unwrap_or(0)).collect::<Vec<_>>())),
            ("output_lens", json!(rows.iter().map(|row| row.output_tokens).collect::<Vec<_>>())),
            ("ttfts", json!(rows.iter().map(|row| row.first_chunk_ms.unwrap_or(0.0) / 1e3).collect::<Vec<_>>())),
            ("latencies", json!(rows.iter().map(|row| row.last_ms.unwrap_or(0.0) / 1e3).collect::<Vec<_>>())),
            ("errors", json!(rows.iter().map(|row| row.error.clone().unwrap_or_default()).collect::<Vec<_>>())),
        ],
    );
    if let Some(itls) = rows.iter().map(gaps_s).collect::<Option<Vec<_>>>() {
        into.insert("itls".to_owned(), json!(itls));
    }
    spread(&mut into, "ttft", &figures.each(|row| row.first_chunk_ms), &PERCENTILES);
    spread(&mut into, "tpot", &figures.each(|row| row.tpot_ms), &PERCENTILES);
    match figures.gaps() {
        Some(gaps) => spread(&mut into, "itl", &gaps, &PERCENTILES),
        None => summed(&mut into, "itl", figures.distribution("chunk_gap_ms"), &PERCENTILES),
    }
    spread(&mut into, "e2el", &figures.each(|row| row.last_ms), &PERCENTILES);
    if let Some(length) = figures.number("acceptance_length") {
        into.insert("spec_decode_acceptance_length".to_owned(), json!(length));
    }
    Value::Object(into)
}

fn gaps_s(row: &Row) -> Option<Vec<f64>> {
    Some(row.chunk_ms.as_ref()?.windows(2).map(|pair| (pair[1] - pair[0]) / 1e3).collect())
}

/// How requests came, in our own word: theirs do not tell a trace or even gaps from others.
fn arrival(arrival: &Arrival) -> Option<&str> {
    match arrival {
        Arrival::Open { shape, .. } => Some(shape),
        Arrival::Trace { .. } => Some("trace"),
        Arrival::Closed { .. } | Arrival::Stages { .. } | Arrival::Bursts { .. } | Arrival::Search(_) => None,
    }
}

/// Rate, burstiness and cap on requests in flight, as the clients write them.
fn load(arrival: &Arrival) -> (Value, f64, Option<u32>) {
    match arrival {
        Arrival::Closed { concurrency } => (json!("inf"), 1.0, Some(*concurrency)),
        Arrival::Open { rate, burstiness, .. } => (json!(rate), burstiness.unwrap_or(1.0), None),
        Arrival::Trace { .. } => (json!("trace"), 1.0, None),
        Arrival::Stages { .. } | Arrival::Bursts { .. } | Arrival::Search(_) => (Value::Null, 1.0, None),
    }
}

fn sglang(step: &StepResult, rows: &[Row], figures: &Figures<'_>) -> Value {
    let (rate, burstiness, concurrency) = load(&step.load.arrival);
    let mut into = Map::new();
    insert(
        &mut into,
        [
            ("tag", json!(format!("orch {}", step.name))),
            ("backend", json!("sglang-oai-chat")),
            ("dataset_name", json!(step.workload_name)),
            ("request_rate", rate),
            ("burstiness", json!(burstiness)),
            ("max_concurrency", json!(concurrency)),
            (ARRIVAL, json!(arrival(&step.load.arrival))),
            ("duration", json!(figures.duration_s)),
            ("completed", json!(step.counts.ok)),
            ("total_input_tokens", json!(figures.input())),
            ("total_output_tokens", json!(figures.output())),
            ("request_throughput", json!(figures.number("requests_per_s"))),
            ("input_throughput", json!(figures.number("input_tokens_per_s"))),
            ("output_throughput", json!(figures.number("output_tokens_per_s"))),
            ("total_throughput", json!(figures.number("total_tokens_per_s"))),
        ],
    );
    spread(&mut into, "e2e_latency", &figures.each(|row| row.last_ms), &PERCENTILES);
    spread(&mut into, "ttft", &figures.each(|row| row.first_content_ms), &PERCENTILES);
    spread(&mut into, "tpot", &figures.each(|row| row.tpot_ms), &PERCENTILES);
    match figures.gaps() {
        Some(gaps) => spread(&mut into, "itl", &gaps, &PERCENTILES),
        None => summed(&mut into, "itl", figures.distribution("chunk_gap_ms"), &PERCENTILES),
    }
    if let Some(itls) = rows.iter().map(gaps_s).collect::<Option<Vec<_>>>() {
        into.insert("itls".to_owned(), json!(itls));
    }
    let busy: f64 = figures.each(|row| row.last_ms).iter().sum();
    insert(
        &mut into,
        [
            ("concurrency", json!(figures.duration_s.map(|span| busy / 1e3 / span))),
            ("accept_length", json!(figures.number("acceptance_length"))),
            ("input_lens", json!(rows.iter().map(|row| row.input_tokens.unwrap_or(0)).collect::<Vec<_>>())),
            ("output_lens", json!(rows.iter().map(|row| row.output_tokens).collect::<Vec<_>>())),
            ("ttfts", json!(seconds(rows.iter().map(|row| row.first_content_ms.unwrap_or(0.0)).collect()))),
            ("errors", json!(rows.iter().map(|row| row.error.clone().unwrap_or_default()).collect::<Vec<_>>())),
        ],
    );
    Value::Object(into)
}

/// A distribution as the report has it; `None` without a sample.
fn statistics(units: &str, found: Option<&Distribution>) -> Option<Value> {
    let found = found?;
    let mut value = json!({"units": units, "mean": found.mean?});
    for (key, percentile) in
        [("p50", found.p50), ("p90", found.p90), ("p95", found.p95), ("p99", found.p99), ("max", found.max)]
    {
        if let Some(percentile) = percentile {
            value[key] = json!(percentile);
        }
    }
    Some(value)
}

fn llmd(record: &Record, step: &StepResult, rows: &[Row], figures: &Figures<'_>) -> Value {
    let of_rows = |units: &str, value: fn(&Row) -> Option<f64>| {
        statistics(units, Some(&Distribution::of(figures.each(value)))).unwrap_or(json!({"units": units, "mean": 0.0}))
    };
    let model = record.profile.pointer("/model/path").or_else(|| record.profile.get("model"));
    let name = model.and_then(Value::as_str).unwrap_or("not known");
    let mut latency = Map::new();
    for (key, units, id) in [
        ("time_to_first_token", "ms", "ttft_ms"),
        ("time_per_output_token", "ms/token", "tpot_ms"),
        ("inter_token_latency", "ms/token", "itl_ms"),
        ("request_latency", "ms", "e2e_ms"),
    ] {
        if let Some(found) = statistics(units, figures.distribution(id)) {
            latency.insert(key.to_owned(), found);
        }
    }
    latency.entry("time_to_first_token").or_insert(json!({"units": "ms", "mean": 0.0}));
    let mut throughput = json!({"total_tokens_per_sec": figures.number("total_tokens_per_s").unwrap_or(0.0)});
    for (key, id) in [
        ("input_tokens_per_sec", "input_tokens_per_s"),
        ("output_tokens_per_sec", "output_tokens_per_s"),
        ("requests_per_sec", "requests_per_s"),
    ] {
        if let Some(value) = figures.number(id) {
            throughput[key] = json!(value);
        }
    }
    json!({
        "version": "0.1",
        "scenario": {
            "description": format!("{}, step {}", record.series, step.name),
            "model": {"name": name},
            "load": {
                "name": "vllm-benchmark",
                "args": {"load": step.load, "workload": step.workload},
                "metadata": {"tool": "orch", "version": record.orch.version, "run": record.id},
            },
            "metadata": {"engine": record.engine, "host": record.host},
        },
        "metrics": {
            "time": {"duration": figures.duration_s.unwrap_or(0.0), "start": record.started_at.as_millisecond() as f64 / 1e3},
            "requests": {
                "total": rows.len().max((step.counts.ok + step.counts.failed) as usize),
                "failures": step.counts.failed,
                "input_length": of_rows("count", |row| row.input_tokens.map(|count| count as f64)),
                "output_length": of_rows("count", |row| Some(row.output_tokens as f64)),
            },
            "latency": latency,
            "throughput": throughput,
        },
    })
}
