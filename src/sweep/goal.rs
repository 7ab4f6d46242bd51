//! What is best, and how sure that is.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::compare;
use crate::profile::Goal;
use crate::record::model::StepResult;

/// So many degrees of freedom weighs what is stated of the noise, beside the starts that there are.
const STATED_WEIGHT: f64 = 4.0;

/// A value with the range that it lies in with 95 % certainty.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    /// The geometric mean of the starts.
    pub mean: f64,
    /// The lower end; `null` with a single start.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// How many starts.
    pub starts: usize,
}

/// What the starts of a point tell of a metric. `None` without any, or where a value has no logarithm.
pub fn interval(values: &[f64], metric: &str) -> Option<Interval> {
    let spread = Spread::of(values)?;
    let mean = spread.mean.exp();
    if values.len() < 2 {
        return Some(Interval { mean, low: None, high: None, starts: values.len() });
    }
    let (sd, degrees) = spread.sd(compare::stated_sd(metric));
    let reach = quantile(0.975, degrees) * sd / (values.len() as f64).sqrt();
    let (low, high) = ((spread.mean - reach).exp(), (spread.mean + reach).exp());
    Some(Interval { mean, low: Some(low), high: Some(high), starts: values.len() })
}

/// Whether one could still be the best although the other looks better: noise alone could have made the difference, with
/// one chance in twenty.
pub fn could_win(best: &[f64], other: &[f64], metric: &str, maximize: bool) -> bool {
    let (Some(one), Some(two)) = (Spread::of(best), Spread::of(other)) else { return false };
    let lead = if maximize { one.mean - two.mean } else { two.mean - one.mean };
    let stated = compare::stated_sd(metric);
    let degrees = STATED_WEIGHT + (one.count + two.count - 2.0);
    let variance = (STATED_WEIGHT * stated.powi(2) + one.squares + two.squares) / degrees;
    let error = (variance * (1.0 / one.count + 1.0 / two.count)).sqrt();
    lead <= quantile(0.95, degrees) * error
}

/// Logarithms of values.
struct Spread {
    count: f64,
    mean: f64,
    /// Sum of the squares about the mean.
    squares: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !(value.is_finite() && *value > 0.0)) {
            return None;
        }
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let squares = logs.iter().map(|log| (log - mean).powi(2)).sum();
        Some(Spread { count, mean, squares })
    }

    fn sd(&self, stated: f64) -> (f64, f64) {
        let degrees = STATED_WEIGHT + self.count - 1.0;
        (((STATED_WEIGHT * stated.powi(2) + self.squares) / degrees).sqrt(), degrees)
    }
}

fn quantile(share: f64, degrees: f64) -> f64 {
    StudentsT::new(0.0, 1.0, degrees).map_or(2.0, |student| student.inverse_cdf(share))
}

/// Whether a step meets all conditions of a goal; `None` where it lacks one of the metrics, so that nobody knows.
pub fn meets(goal: &Goal, value: impl Fn(&str) -> Option<f64>) -> Option<bool> {
    let mut all = Some(true);
    for (metric, condition) in &goal.conditions {
        match value(metric).map(|value| compare::holds(metric, value, condition)) {
            Some(true) => {}
            Some(false) => return Some(false),
            None => all = None,
        }
    }
    all
}

/// A metric of a step.
pub(super) fn value(step: &StepResult, metric: &str) -> Option<f64> {
    compare::value(step, metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_noise_could_have_made_may_still_win() {
        let metric = "output_tokens_per_s";
        assert!(could_win(&[100.0], &[98.0], metric, true));
        assert!(!could_win(&[100.0], &[80.0], metric, true));
        // More starts see a smaller difference.
        assert!(could_win(&[100.0], &[96.0], metric, true));
        assert!(!could_win(&[100.0, 100.2, 99.9], &[96.0, 96.1, 95.9], metric, true));
        assert!(
            could_win(&[50.0], &[51.0], "ttft_ms.p50", false) && !could_win(&[50.0], &[80.0], "ttft_ms.p50", false)
        );
        let three = interval(&[100.0, 101.0, 99.0], metric).unwrap();
        assert!(
            (three.mean - 100.0).abs() < 0.1 && three.low.unwrap() > 96.0 && three.high.unwrap() < 104.0,
            "{three:?}"
        );
        assert_eq!(interval(&[100.0], metric).unwrap().low, None);
        assert_eq!(interval(&[0.0], metric), None);
    }

    #[test]
    fn a_condition_on_what_was_not_measured_is_not_known() {
        let goal = Goal {
            conditions: vec![("ttft_ms.p99".into(), "< 500".into()), ("e2e_ms.p50".into(), "< 9000".into())],
            ..Goal::default()
        };
        let of = |ttft: Option<f64>, e2e: Option<f64>| {
            meets(&goal, |metric| if metric.starts_with("ttft") { ttft } else { e2e })
        };
        assert_eq!(of(Some(400.0), Some(1.0)), Some(true));
        assert_eq!(of(Some(600.0), None), Some(false));
        assert_eq!(of(Some(400.0), None), None);
    }
}
