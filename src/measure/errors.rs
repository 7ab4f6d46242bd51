//! How well a run's own requests pin its rates down: standard errors within one run, by the jackknife over requests.
//!
//! A rate of a step is a ratio of sums over its requests. Leaving each request out in turn tells how much the ratio
//! hangs on single ones. What differs between starts of a server is not in it: that is the comparison's to know.

use std::collections::BTreeMap;

use super::{Measured, MetricValue, Timeline};

/// The fewest requests that say anything about spread.
const FEWEST: usize = 4;

/// Standard errors by metric id, in the metric's unit. A metric that is not here has none that is known.
pub fn standard_errors(measured: &Measured, metrics: &BTreeMap<String, MetricValue>) -> BTreeMap<String, f64> {
    let ok: Vec<&Timeline> = measured.timelines.iter().filter(|timeline| timeline.is_ok()).collect();
    let busy = |weight: fn(&Timeline) -> Option<f64>| -> Vec<(f64, f64)> {
        ok.iter().filter_map(|timeline| Some((weight(timeline)?, timeline.e2e_ms()?))).collect()
    };
    let decoding: Vec<(f64, f64)> =
        ok.iter().filter_map(|timeline| timeline.decoding()).map(|(span, tokens)| (tokens as f64, span)).collect();
    let output = |timeline: &Timeline| Some(timeline.output_tokens().0 as f64);
    let ratios = [
        ("output_tokens_per_s", busy(output)),
        ("output_tokens_per_s_plateau", busy(output)),
        ("decode_tokens_per_s_per_user", decoding),
    ];
    let mut errors = BTreeMap::new();
    for (id, pairs) in ratios {
        let Some(MetricValue::Number(value)) = metrics.get(id) else { continue };
        if let Some(relative) = jackknife(&pairs) {
            errors.insert(id.to_owned(), relative * value);
        }
    }
    errors
}

/// The relative standard error of `sum of the first / sum of the second`.
fn jackknife(pairs: &[(f64, f64)]) -> Option<f64> {
    let count = pairs.len();
    if count < FEWEST {
        return None;
    }
    let (top, bottom) = pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    let without: Vec<f64> = pairs.iter().map(|pair| (top - pair.0) / (bottom - pair.1)).collect();
    let mean = without.iter().sum::<f64>() / count as f64;
    let squares: f64 = without.iter().map(|ratio| (ratio - mean).powi(2)).sum();
    let relative = (squares * (count - 1) as f64 / count as f64).sqrt() / (top / bottom);
    relative.is_finite().then_some(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requests_leave_no_error() {
        assert!(jackknife(&[(10.0, 2.0); 8]).unwrap() < 1e-12);
    }

    #[test]
    fn the_error_of_a_mean_is_the_usual_one() {
        // With equal denominators the ratio is a mean: its standard error is that of the sample over its root.
        let pairs: Vec<(f64, f64)> = [1.0, 2.0, 3.0, 4.0, 5.0].into_iter().map(|value| (value, 1.0)).collect();
        let expected = (2.5f64 / 5.0).sqrt() / 3.0;
        assert!((jackknife(&pairs).unwrap() - expected).abs() < 1e-12);
    }

    #[test]
    fn too_few_requests_say_nothing() {
        assert_eq!(jackknife(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]), None);
    }
}
