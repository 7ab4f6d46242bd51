//! What a metric's value looks like: a number, or a distribution with the percentiles its samples can carry.

use serde::{Deserialize, Serialize};

/// The one shape of every distribution. Values are in the unit of the metric that holds it (`ttft_ms`: milliseconds).
///
/// Each value is there as soon as there is one sample and `null` without; none is ever zero for want of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// How many values went in.
    pub samples: u64,
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// The highest percentile that so many samples can carry (`p50`, `p90`, `p95` or `p99`); none above it is judged,
    /// or shown without a mark. `null` when the samples carry none.
    pub enough: Option<Percentile>,
}

/// A percentile by name, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Percentile {
    /// The median.
    P50,
    /// The 90th.
    P90,
    /// The 95th.
    P95,
    /// The 99th.
    P99,
}

/// The value of one metric in a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricValue {
    /// A single number.
    Number(f64),
    /// Many samples, summed up.
    Distribution(Distribution),
    /// Known to apply, but without a value: JSON `null`.
    Absent(()),
}

impl Percentile {
    /// Its name, as in ids: `p50`.
    pub fn word(self) -> &'static str {
        match self {
            Percentile::P50 => "p50",
            Percentile::P90 => "p90",
            Percentile::P95 => "p95",
            Percentile::P99 => "p99",
        }
    }
}
