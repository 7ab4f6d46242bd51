//! How much of a difference noise alone would make.
//!
//! A server start may be slow for its whole life, so the noise that matters most lies between starts, and a run has one
//! start. How much starts vary is stated beforehand, and the spread of the baseline's runs corrects that as they become
//! more.

use statrs::distribution::{ContinuousCDF, Normal};

use super::metric;
use crate::measure::{Distribution, MetricValue, Percentile};
use crate::record::model::StepResult;

/// How often all comparisons of a run together may find a loss where there is none.
const FALSE_ALARMS: f64 = 0.01;

/// How many starts the stated standard deviation weighs as much as.
const STATED_WEIGHT: f64 = 4.0;

/// The relative standard error within a run of a metric whose own is not known.
const WITHIN_UNKNOWN: f64 = 0.01;

/// The noise of one comparison, in differences of logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Noise {
    /// The smallest loss that is beyond it.
    pub(super) sees: f64,
    /// Its quantile, and the variance of one start.
    quantile: f64,
    start_variance: f64,
}

impl Noise {
    /// The noise between one run and the baseline's values `was`, when `judged` comparisons are made in all.
    pub(super) fn new(was: &[f64], stated: f64, within: [f64; 2], judged: usize) -> Self {
        let starts = was.len() as f64;
        let spread = spread(was);
        let degrees = (starts - 1.0).max(0.0);
        let stated = stated.powi(2);
        let mixed = (STATED_WEIGHT * stated + degrees * spread) / (STATED_WEIGHT + degrees);
        // A spread that is larger than what was stated is taken as it is; a smaller one only as far as it is known.
        let start_variance = mixed.max(spread);
        let [now, before] = within;
        let of_run = start_variance + now.powi(2);
        // Several runs spread by what is within them too, so that it is in `start_variance` already.
        let of_baseline = if was.len() > 1 { start_variance / starts } else { start_variance + before.powi(2) };
        let quantile = quantile(FALSE_ALARMS / judged.max(1) as f64);
        Noise { sees: quantile * (of_run + of_baseline).sqrt(), quantile, start_variance: of_run }
    }

    /// How many starts on each side would show a loss of `loss`; `None` when more than a person would make.
    pub(super) fn starts_to_see(&self, loss: f64) -> Option<u32> {
        let starts = 2.0 * (self.quantile / loss).powi(2) * self.start_variance;
        (starts.is_finite() && starts <= 100.0).then(|| (starts.ceil() as u32).max(2))
    }
}

/// The quantile of the standard normal distribution that is exceeded with probability `tail`.
fn quantile(tail: f64) -> f64 {
    Normal::standard().inverse_cdf(1.0 - tail)
}

/// Variance of the logarithms; 0 of a single value.
fn spread(values: &[f64]) -> f64 {
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let count = logarithms.len() as f64;
    if logarithms.len() < 2 {
        return 0.0;
    }
    let mean = logarithms.iter().sum::<f64>() / count;
    logarithms.iter().map(|each| (each - mean).powi(2)).sum::<f64>() / (count - 1.0)
}

/// The mean of the logarithms, as a value; `None` of nothing.
pub(super) fn geometric_mean(values: &[f64]) -> Option<f64> {
    match values {
        [] => None,
        // What is shown as the value before is that value, to its last digit.
        [only] => Some(*only),
        many => Some((many.iter().map(|value| value.ln()).sum::<f64>() / many.len() as f64).exp()),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_against_one_sees_what_the_stated_noise_allows() {
        // 2.326 x 2 % x root of 2.
        let noise = Noise::new(&[70.0], 0.02, [0.0, 0.0], 1);
        assert!((noise.sees - 0.0658).abs() < 0.0001, "{noise:?}");
        // Noise within the runs adds to it: 2.326 x root of (2 x 2^2 + 3^2 + 4^2) %.
        let noisy = Noise::new(&[70.0], 0.02, [0.03, 0.04], 1);
        assert!((noisy.sees - 0.1336).abs() < 0.0001, "{noisy:?}");
    }

    #[test]
    fn runs_that_agree_let_it_see_more_and_runs_that_do_not_less() {
        let one = Noise::new(&[70.0], 0.02, [0.0, 0.0], 1).sees;
        let agreeing = Noise::new(&[70.0, 70.1, 69.9, 70.0, 70.1, 69.9], 0.02, [0.0, 0.0], 1).sees;
        let spread = Noise::new(&[70.0, 60.0, 80.0], 0.02, [0.0, 0.0], 1).sees;
        assert!(agreeing < one && one < spread, "{agreeing} {one} {spread}");
        // sd of ln(60, 70, 80) = 0.14402; 2.326 x 0.14402 x root of (1 + 1/3).
        assert!((spread - 0.3869).abs() < 0.001, "{spread}");
    }

    #[test]
    fn more_comparisons_need_more_to_be_believed() {
        let few = Noise::new(&[70.0], 0.02, [0.0, 0.0], 1);
        let many = Noise::new(&[70.0], 0.02, [0.0, 0.0], 20);
        assert!((many.sees / few.sees - 3.2905 / 2.3263).abs() < 0.001);
    }

    #[test]
    fn it_says_how_many_starts_would_decide() {
        let noise = Noise::new(&[70.0], 0.02, [0.0, 0.0], 1);
        // 2 x (2.326 x 0.02 / 0.03)^2 = 4.8.
        assert_eq!(noise.starts_to_see(0.03), Some(5));
        assert_eq!(noise.starts_to_see(0.001), None);
    }
}
