//! What of a run's numbers the index keeps, so that a history is read without its folders.

use std::collections::BTreeMap;

use crate::measure::{Distribution, MetricValue, Percentile};
use crate::record::model::{Record, StepResult};

/// The step that the numbers of a start stand under. No step of a profile can have this name beside it, since its
/// workload is none.
pub(crate) const START: &str = "start";

/// Reads a part of a distribution.
type Read = fn(&Distribution) -> Option<f64>;

/// Parts of a distribution, each with what it needs to be carried by the samples.
const PARTS: [(&str, Percentile, Read); 5] = [
    ("mean", Percentile::P50, |all| all.mean),
    ("p50", Percentile::P50, |all| all.p50),
    ("p90", Percentile::P90, |all| all.p90),
    ("p95", Percentile::P95, |all| all.p95),
    ("p99", Percentile::P99, |all| all.p99),
];

/// The numbers of a step, by metric id, with `.p50` and the like for distributions. What its samples do not carry is not
/// there.
pub(crate) fn of_step(step: &StepResult) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    for (id, value) in &step.metrics {
        match value {
            MetricValue::Number(value) => drop(numbers.insert(id.clone(), *value)),
            MetricValue::Distribution(all) => {
                for (part, needs, read) in PARTS {
                    if let Some(value) = read(all).filter(|_| all.enough >= Some(needs)) {
                        numbers.insert(format!("{id}.{part}"), value);
                    }
                }
            }
            MetricValue::Absent(()) => {}
        }
    }
    numbers.retain(|_, value| value.is_finite());
    numbers
}

/// The numbers of a start.
pub(super) fn of_start(record: &Record) -> Option<BTreeMap<String, f64>> {
    let startup = record.startup.as_ref()?;
    let mut numbers = BTreeMap::from([("startup_s".to_owned(), startup.ready_s?)]);
    numbers.extend(startup.phases.iter().map(|phase| (format!("startup_{}_s", phase.name), phase.s)));
    // The most memory that was in use is of the whole run, as a start is.
    let peaks = record.steps.iter().filter_map(|step| match step.metrics.get("peak_memory_bytes") {
        Some(MetricValue::Number(value)) => Some(*value),
        _ => None,
    });
    numbers.extend(peaks.reduce(f64::max).map(|peak| ("peak_memory_bytes".to_owned(), peak)));
    Some(numbers)
}

/// In the place of a workload: starts that found the same in their caches are alike.
pub(super) fn caches(record: &Record) -> String {
    let word = |cache: &Option<String>| cache.clone().unwrap_or_else(|| "unknown".to_owned());
    let startup = record.startup.as_ref();
    let caches = startup.map(|startup| (word(&startup.weights_cache), word(&startup.jit_cache)));
    caches.map_or_else(String::new, |(weights, jit)| format!("weights {weights}, jit {jit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::samples::result;

    #[test]
    fn a_mean_is_kept_beside_the_percentiles_that_the_samples_carry() {
        let ttft = Distribution {
            samples: 20,
            mean: Some(110.0),
            p50: Some(100.0),
            p99: Some(400.0),
            enough: Some(Percentile::P50),
            ..Distribution::default()
        };
        let metrics = BTreeMap::from([("ttft_ms".to_owned(), MetricValue::Distribution(ttft))]);
        let numbers = of_step(&StepResult { metrics, ..result("single", 0.0) });
        assert_eq!(numbers, BTreeMap::from([("ttft_ms.mean".to_owned(), 110.0), ("ttft_ms.p50".to_owned(), 100.0)]));
    }
}
