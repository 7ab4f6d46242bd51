//! How exact a value is within its run: what the samples of one run tell of it.

use super::metric;
use crate::measure::{Distribution, MetricValue, Percentile};
use crate::record::model::StepResult;

/// The relative standard error within a run of a metric whose own is not known.
const WITHIN_UNKNOWN: f64 = 0.01;

/// For several runs, the error of one.
pub(super) fn root_mean_square(errors: impl Iterator<Item = f64>) -> f64 {
    let squares: Vec<f64> = errors.map(|error| error.powi(2)).collect();
    match squares.len() {
        0 => 0.0,
        count => (squares.iter().sum::<f64>() / count as f64).sqrt(),
    }
}

/// The relative standard error of a metric within a run: as measured, else as the spread of its samples tells, else as
/// that of the time per output token, else a stated one.
pub(super) fn within(step: &StepResult, id: &str) -> f64 {
    let measured = step.errors.get(id).copied().zip(metric::value(step, id));
    let measured = measured.and_then(|(error, value)| relative(error, value));
    let (name, part) = id.split_once('.').unwrap_or((id, ""));
    // Whole requests differ in length by design, alike in both runs, so that their spread tells nothing of noise.
    let own = || if name == "e2e_ms" { None } else { from_samples(step, name, part) };
    measured.or_else(own).or_else(|| from_samples(step, "tpot_ms", "p50")).unwrap_or(WITHIN_UNKNOWN)
}

fn from_samples(step: &StepResult, name: &str, part: &str) -> Option<f64> {
    match step.metrics.get(name)? {
        MetricValue::Distribution(all) => standard_error(all, part),
        MetricValue::Number(_) | MetricValue::Absent(()) => None,
    }
}

/// The relative standard error of a part of a distribution, whose standard deviation is read off its median and 90th
/// percentile: a few outliers do not blow that up.
fn standard_error(all: &Distribution, part: &str) -> Option<f64> {
    if all.enough < Some(Percentile::P90) {
        return None;
    }
    // Standard error of a quantile of normal samples, in standard deviations over the root of their number.
    let (value, factor) = match part {
        "mean" => (all.mean?, 1.0),
        "p50" => (all.p50?, 1.253),
        "p90" => (all.p90?, 1.709),
        "p95" => (all.p95?, 2.113),
        "p99" => (all.p99?, 3.733),
        _ => return None,
    };
    let deviation = (all.p90? - all.p50?) / 1.2816;
    relative(factor * deviation / (all.samples as f64).sqrt(), value)
}

fn relative(error: f64, value: f64) -> Option<f64> {
    let relative = error / value;
    (relative.is_finite() && relative >= 0.0).then_some(relative)
}
