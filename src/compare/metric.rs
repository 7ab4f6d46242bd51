//! Which metrics are judged, which way is better, and how a loss is counted.

use indexmap::IndexMap;

use crate::measure::{self, Better, MetricValue, Percentile};
use crate::record::model::StepResult;
use crate::units::Tolerance;

/// A loss that is not worth a verdict unless the profile says otherwise, as a share of the baseline's value.
const FLOOR: f64 = 0.01;

/// What judging a metric needs to know of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Judged {
    /// Metric id, with `.p50` and the like for distributions.
    pub(super) id: String,
    better: Better,
    /// How much it is assumed to vary from one start to the next, as a relative standard deviation.
    pub(super) start_sd: f64,
    /// A loss that is not worth a verdict, in the metric's unit.
    absolute: f64,
}

/// The metrics that every step is judged by. The standard deviations between starts are stated, not measured: they hold
/// until there is a history to measure them in.
const HEADLINE: [(&str, f64, f64); 5] = [
    ("output_tokens_per_s", 0.02, 0.0),
    ("decode_tokens_per_s_per_user", 0.02, 0.0),
    ("tpot_ms.p50", 0.02, 0.05),
    ("ttft_ms.p50", 0.05, 1.0),
    ("e2e_ms.p50", 0.02, 1.0),
];

/// For every other metric that a profile gives a tolerance for.
const OTHER_SD: f64 = 0.05;

impl Judged {
    /// A metric by its id; `None` if neither way of it is better, or the table of metrics does not have it.
    fn of(id: &str, start_sd: f64, absolute: f64) -> Option<Self> {
        let better = measure::metric(id)?.better?;
        Some(Judged { id: id.to_owned(), better, start_sd, absolute })
    }

    /// The time from launch to ready. It depends on disks and caches more than anything else does.
    pub(super) fn startup() -> Self {
        Judged { id: "startup_s".to_owned(), better: Better::Lower, start_sd: 0.08, absolute: 0.5 }
    }

    /// Whether it is the one that most is decided by.
    pub(super) fn is_headline(&self) -> bool {
        self.id == HEADLINE[0].0
    }

    /// By how much a rise, as a difference of logarithms, makes it worse: halving and doubling weigh the same.
    pub(super) fn worse(&self, rise: f64) -> f64 {
        match self.better {
            Better::Higher => -rise,
            Better::Lower => rise,
        }
    }

    /// A loss in logarithms as a share of the baseline's value.
    pub(super) fn ratio(&self, loss: f64) -> f64 {
        match self.better {
            Better::Higher => 1.0 - (-loss).exp(),
            Better::Lower => loss.exp() - 1.0,
        }
    }

    /// The loss in logarithms that is not worth a verdict: the larger of the relative and the absolute one.
    pub(super) fn floor(&self, was: f64, tolerance: Option<&Tolerance>) -> f64 {
        let (relative, absolute) = match tolerance {
            Some(Tolerance { relative: None, absolute: None }) | None => (FLOOR, self.absolute),
            Some(own) => (own.relative.unwrap_or(0.0), own.absolute.unwrap_or(0.0)),
        };
        let share = relative.max(absolute / was);
        match self.better {
            Better::Higher if share < 1.0 => -(1.0 - share).ln(),
            Better::Higher => f64::INFINITY,
            Better::Lower => share.ln_1p(),
        }
    }
}

/// The metrics to judge: the headline ones, and those that the profile gives a tolerance for, as far as one way of them
/// is better.
pub(super) fn judged(tolerance: &IndexMap<String, Tolerance>) -> Vec<Judged> {
    let headline = HEADLINE.into_iter().map(|(id, start_sd, absolute)| Judged::of(id, start_sd, absolute));
    let mut all: Vec<Judged> = headline.flatten().collect();
    for id in tolerance.keys() {
        if !all.iter().any(|known| known.id == *id) {
            all.extend(Judged::of(id, OTHER_SD, 0.0));
        }
    }
    all
}

/// Whether more of a metric is better; `None` where neither way is, or the metric is not known.
pub fn higher_is_better(id: &str) -> Option<bool> {
    measure::metric(id)?.better.map(|better| better == Better::Higher)
}

/// How much a metric is assumed to vary from one start to the next, as a relative standard deviation.
pub fn stated_sd(id: &str) -> f64 {
    HEADLINE.iter().find(|(known, ..)| *known == id).map_or(OTHER_SD, |(_, sd, _)| *sd)
}

/// The value at a path such as `output_tokens_per_s` or `ttft_ms.p50`.
pub fn value(step: &StepResult, path: &str) -> Option<f64> {
    read(step, path).map(|(value, _)| value)
}

/// The same, if the samples carry it: a percentile beyond `enough` is not judged.
pub(super) fn carried(step: &StepResult, path: &str) -> Option<f64> {
    read(step, path).filter(|(_, carried)| *carried).map(|(value, _)| value)
}

/// Whether the metric is a sample itself rather than reckoned from samples: a largest value is true of however few.
pub(super) fn is_observed(path: &str) -> bool {
    path.ends_with(".max")
}

fn read(step: &StepResult, path: &str) -> Option<(f64, bool)> {
    let (id, part) = path.split_once('.').map_or((path, None), |(id, part)| (id, Some(part)));
    match (step.metrics.get(id)?, part) {
        (MetricValue::Number(value), None) => Some((*value, true)),
        (MetricValue::Distribution(all), Some(part)) => {
            let enough = |needed| all.enough >= Some(needed);
            let (value, carried) = match part {
                "mean" => (all.mean, enough(Percentile::P50)),
                "p50" => (all.p50, enough(Percentile::P50)),
                "p90" => (all.p90, enough(Percentile::P90)),
                "p95" => (all.p95, enough(Percentile::P95)),
                "p99" => (all.p99, enough(Percentile::P99)),
                "max" => (all.max, false),
                _ => (None, false),
            };
            value.map(|value| (value, carried))
        }
        _ => None,
    }
}
