//! From samples to a distribution.

use super::{Distribution, Percentile};

/// How many samples each percentile needs before it is judged, or shown without a mark.
///
/// With about 6.5 samples expected beyond a percentile, the chance that at most one lies there is near 1 %; the median
/// is held to the same rule on each of its sides.
pub const ENOUGH: [(Percentile, u64); 4] =
    [(Percentile::P50, 13), (Percentile::P90, 64), (Percentile::P95, 130), (Percentile::P99, 662)];

impl Distribution {
    /// Sums samples up. Quantiles interpolate linearly between the two nearest samples (Hyndman and Fan's type 7, as
    /// numpy does unless told otherwise). Samples that are no number are a fault of the caller and are left out.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.retain(|sample| sample.is_finite());
        samples.sort_unstable_by(f64::total_cmp);
        let count = samples.len() as u64;
        let mean = (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64);
        Distribution {
            samples: count,
            mean,
            p50: quantile(&samples, 0.50),
            p90: quantile(&samples, 0.90),
            p95: quantile(&samples, 0.95),
            p99: quantile(&samples, 0.99),
            max: samples.last().copied(),
            enough: ENOUGH.iter().rev().find(|(_, needed)| count >= *needed).map(|(percentile, _)| *percentile),
        }
    }

    /// The value at a percentile.
    pub fn at(&self, percentile: Percentile) -> Option<f64> {
        match percentile {
            Percentile::P50 => self.p50,
            Percentile::P90 => self.p90,
            Percentile::P95 => self.p95,
            Percentile::P99 => self.p99,
        }
    }

    /// Whether the samples carry a percentile.
    pub fn carries(&self, percentile: Percentile) -> bool {
        self.enough.is_some_and(|enough| enough >= percentile)
    }
}

/// The quantile `q` (0 to 1) of sorted samples.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_twenty_thirty_forty() {
        let distribution = Distribution::of(vec![40.0, 10.0, 30.0, 20.0]);
        assert_eq!((distribution.samples, distribution.mean, distribution.max), (4, Some(25.0), Some(40.0)));
        assert_eq!(distribution.p50, Some(25.0));
        assert!((distribution.p90.unwrap() - 37.0).abs() < 1e-9);
        assert!((distribution.p99.unwrap() - 39.7).abs() < 1e-9);
        assert_eq!(distribution.enough, None);
    }

    #[test]
    fn without_samples_there_is_no_value() {
        assert_eq!(Distribution::of(vec![]), Distribution::default());
        let one = Distribution::of(vec![7.0]);
        assert_eq!((one.p50, one.p99, one.max, one.enough), (Some(7.0), Some(7.0), Some(7.0), None));
    }

    #[test]
    fn a_percentile_counts_only_with_the_samples_it_needs() {
        let enough = |count: usize| Distribution::of(vec![1.0; count]).enough;
        let steps = [
            (12, None),
            (13, Some(Percentile::P50)),
            (63, Some(Percentile::P50)),
            (64, Some(Percentile::P90)),
            (129, Some(Percentile::P90)),
            (130, Some(Percentile::P95)),
            (661, Some(Percentile::P95)),
            (662, Some(Percentile::P99)),
        ];
        for (count, expected) in steps {
            assert_eq!(enough(count), expected, "{count} samples");
        }
        assert!(Distribution::of(vec![1.0; 64]).carries(Percentile::P50));
        assert!(!Distribution::of(vec![1.0; 64]).carries(Percentile::P95));
    }

    proptest! {
        #[test]
        fn quantiles_rise_and_lie_within_the_samples(samples in proptest::collection::vec(0.0f64..1e6, 1..200), factor in 0.5f64..4.0) {
            let distribution = Distribution::of(samples.clone());
            let values = [distribution.p50, distribution.p90, distribution.p95, distribution.p99, distribution.max].map(Option::unwrap);
            prop_assert!(values.windows(2).all(|pair| pair[0] <= pair[1]));
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            prop_assert!(values[0] >= least && distribution.mean.unwrap() >= least - 1e-6 && distribution.mean.unwrap() <= values[4] + 1e-6);
            // In another unit it is the same distribution; in another order too.
            let scaled = Distribution::of(samples.iter().rev().map(|sample| sample * factor).collect());
            prop_assert!((scaled.p90.unwrap() - values[1] * factor).abs() <= 1e-6 * (1.0 + values[1] * factor));
            prop_assert_eq!(scaled.samples, samples.len() as u64);
        }
    }
}
