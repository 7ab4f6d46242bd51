//! What became of a series over time: the trend of each metric, and the runs at which it moved for good. Pure.

mod changes;

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::Serialize;

pub use changes::{Change, WINDOW, changes};

use crate::compare;
use crate::record::index::Past;

/// The metrics that a history shows unless told otherwise, as far as a series has them.
pub const SHOWN: [&str; 9] = [
    "output_tokens_per_s",
    "decode_tokens_per_s_per_user",
    "tpot_ms.p50",
    "ttft_ms.p50",
    "e2e_ms.p50",
    "acceptance_length",
    "steps_per_s",
    "startup_s",
    "peak_memory_bytes",
];

/// A metric of a step on a host, over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// The step; `start` for the start-up.
    pub step: String,
    /// Metric id, with `.p50` and the like for distributions.
    pub metric: String,
    /// The host's name.
    pub host: String,
    /// Its hardware.
    pub hardware: String,
    /// What the caches of its starts held; of the start-up only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caches: Option<String>,
    /// One a start of the server, oldest first.
    pub points: Vec<Point>,
    /// Where it moved for good, oldest first.
    pub moved: Vec<Moved>,
}

/// A start of the server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The first run that measured it.
    pub run: String,
    /// When that began.
    pub at: Timestamp,
    /// The mean of its runs.
    pub value: f64,
}

/// A lasting change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// The first run after it.
    pub run: String,
    /// The last run before it.
    pub from: String,
    /// When the first run after it began.
    pub at: Timestamp,
    /// The place of that run among the points.
    pub index: usize,
    /// The mean before.
    pub before: f64,
    /// The mean since.
    pub after: f64,
    /// `after / before - 1`.
    pub change_ratio: f64,
    /// Whether it became worse; `null` where neither way is better.
    pub worse: Option<bool>,
    /// How often chance alone would show as much.
    pub probability: f64,
}

/// The trends of these metrics in the past of one series. Runs are only put beside runs that measured the same: step,
/// workload, load, host, hardware, version of the metrics.
pub fn trends(past: &[Past], metrics: &[String]) -> Vec<Trend> {
    let mut groups: IndexMap<String, Vec<&Past>> = IndexMap::new();
    for each in past {
        let load = each.load.as_ref().map(|load| (&load.arrival, load.requests, load.duration_s));
        let Past { step, workload, host, hardware, simulated, metrics_version, .. } = each;
        let key = format!("{step} {workload} {load:?} {host} {hardware} {simulated} {metrics_version}");
        groups.entry(key).or_default().push(each);
    }
    groups.values().flat_map(|group| metrics.iter().filter_map(|metric| trend(group, metric))).collect()
}

fn trend(group: &[&Past], metric: &str) -> Option<Trend> {
    let first = group.first()?;
    let mut starts: IndexMap<&str, (&Past, Vec<f64>)> = IndexMap::new();
    for past in group {
        if let Some(value) = past.numbers.get(metric).filter(|value| value.is_finite()) {
            starts.entry(&past.start).or_insert_with(|| (past, Vec::new())).1.push(*value);
        }
    }
    let points: Vec<Point> = starts
        .into_values()
        .map(|(past, values)| Point {
            run: past.run.clone(),
            at: past.started_at,
            value: values.iter().sum::<f64>() / values.len() as f64,
        })
        .collect();
    if points.is_empty() {
        return None;
    }
    let moved = moved(&points, metric);
    let caches = first.load.is_none().then(|| first.workload.clone());
    Some(Trend {
        step: first.step.clone(),
        metric: metric.to_owned(),
        host: first.host.clone(),
        hardware: first.hardware.clone(),
        caches,
        points,
        moved,
    })
}

fn moved(points: &[Point], metric: &str) -> Vec<Moved> {
    let values: Vec<f64> = points.iter().map(|point| point.value).collect();
    let higher = compare::higher_is_better(metric);
    let of = |change: Change| {
        let Change { index, before, after, probability } = change;
        Moved {
            run: points[index].run.clone(),
            from: points[index - 1].run.clone(),
            at: points[index].at,
            index,
            before,
            after,
            change_ratio: after / before - 1.0,
            worse: higher.map(|higher| (after < before) == higher),
            probability,
        }
    };
    changes(&values).into_iter().map(of).collect()
}
