//! The difference between two sides, each of several server starts with several runs on each.
//!
//! A start may be slow for its whole life, so starts are what counts: the runs on one are averaged, and the error of the
//! difference follows from how much starts vary. All values are logarithms, so that half and double weigh the same.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// From so many degrees of freedom on the spread that was measured speaks for itself; below, what is stated beforehand
/// stands in for it.
const ENOUGH_DEGREES: f64 = 4.0;

/// How many degrees of freedom what is stated weighs as much as, until then.
const STATED_WEIGHT: f64 = 4.0;

/// Starts that happen to agree are not believed to vary by less than this share of what is stated.
const LEAST_SHARE: f64 = 0.25;

/// So often must the sides change in the order of time for a drift to be told from a difference.
const CHANGES_TO_TELL_DRIFT: usize = 3;

/// One start of a server, with the runs that were made on it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Start {
    /// Logarithms of what each run measured; at least one.
    pub(super) values: Vec<f64>,
    /// The relative standard error of one of these runs.
    pub(super) within: f64,
    /// When, in hours from some moment that all starts of a comparison share.
    pub(super) at: f64,
}

impl Start {
    pub(super) fn mean(&self) -> f64 {
        mean(self.values.iter().copied())
    }

    /// The variance of its mean that comes from within its runs.
    fn error_variance(&self) -> f64 {
        self.within.powi(2) / self.values.len().max(1) as f64
    }
}

/// How much starts vary, from elsewhere than the two sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    /// The relative standard deviation that is stated beforehand.
    pub(super) stated: f64,
    /// The variance between earlier starts of the same settings, noise within their runs included.
    pub(super) variance: f64,
    /// How much that was measured on; 0 without earlier starts.
    pub(super) degrees: f64,
}

/// By how much one side differs from the other, and how well that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Difference {
    /// Now minus before, in logarithms.
    pub(super) rise: f64,
    /// Its standard error.
    pub(super) error: f64,
    /// Degrees of freedom of that; `None` where it rests on what is stated.
    pub(super) degrees: Option<f64>,
    /// The variance of one start.
    start_variance: f64,
}

impl Difference {
    /// Of two sides of at least one start each.
    pub(super) fn of(was: &[Start], now: &[Start], spread: &Spread) -> Self {
        let own = Own::of(was, now);
        let plain = own.without_drift();
        let own = if interleaved(was, now) { own.with_drift().unwrap_or(plain) } else { plain };
        let (measured, degrees) = match own.degrees >= ENOUGH_DEGREES {
            true => (own.variance, own.degrees),
            false => pooled((own.variance, own.degrees), (spread.variance, spread.degrees)),
        };
        let within = |side: &[Start]| mean(side.iter().map(Start::error_variance)) / side.len() as f64;
        if degrees >= ENOUGH_DEGREES {
            let least = (LEAST_SHARE * spread.stated).powi(2);
            let start_variance = measured.max(least);
            // A run that is noisier within than the starts it is held against vary is believed to be.
            let error = (start_variance * own.factor).max(within(was) + within(now)).sqrt();
            return Difference { rise: own.rise, error, degrees: Some(degrees), start_variance };
        }
        let mixed = (STATED_WEIGHT * spread.stated.powi(2) + degrees * measured) / (STATED_WEIGHT + degrees);
        // A spread that is larger than what was stated is taken as it is; a smaller one only as far as it is known.
        let between = mixed.max(measured);
        // Several starts spread by what is within them too, so that it is in `between` already.
        let alone = |side: &[Start]| if side.len() == 1 { within(side) } else { 0.0 };
        let inside = alone(was) + alone(now);
        let error = (between * own.factor + inside).sqrt();
        Difference { rise: own.rise, error, degrees: None, start_variance: between + inside / 2.0 }
    }

    /// The probability of a rise of at least `rise` where there is none.
    pub(super) fn tail(&self, rise: f64) -> f64 {
        let scaled = rise / self.error;
        if scaled.is_nan() {
            return 1.0;
        }
        match self.degrees {
            Some(degrees) => student(degrees).map_or(1.0, |t| t.sf(scaled)),
            None => Normal::standard().sf(scaled),
        }
    }

    /// The smallest rise whose [`Difference::tail`] is below `tail`.
    pub(super) fn sees(&self, tail: f64) -> f64 {
        self.quantile(tail) * self.error
    }

    fn quantile(&self, tail: f64) -> f64 {
        match self.degrees {
            Some(degrees) => student(degrees).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - tail)),
            None => Normal::standard().inverse_cdf(1.0 - tail),
        }
    }

    /// How many starts on each side would show a loss of `loss`; `None` when more than a person would make.
    pub(super) fn starts_to_see(&self, loss: f64, tail: f64) -> Option<u32> {
        let needed = |starts: u32| {
            let degrees = f64::from(2 * starts - 2);
            let quantile = student(degrees).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - tail));
            quantile * (2.0 * self.start_variance / f64::from(starts)).sqrt()
        };
        (3..=100).find(|&starts| needed(starts) < loss)
    }
}

fn student(degrees: f64) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, degrees).ok()
}

/// What the two sides tell of themselves.
#[derive(Clone, Copy, Debug)]
struct Fit {
    rise: f64,
    /// Variance of a start, and the degrees of freedom that it rests on.
    variance: f64,
    degrees: f64,
    /// The variance of the rise, in variances of a start.
    factor: f64,
}

/// Sums over the two sides, each about its own mean.
struct Own {
    rise: f64,
    later: f64,
    starts: f64,
    reciprocals: f64,
    value_value: f64,
    time_value: f64,
    time_time: f64,
}

impl Own {
    fn of(was: &[Start], now: &[Start]) -> Self {
        let sums = |side: &[Start]| {
            let (value, time) = (mean(side.iter().map(Start::mean)), mean(side.iter().map(|start| start.at)));
            let about = side.iter().map(|start| (start.mean() - value, start.at - time));
            let sums = about.fold([0.0; 3], |[vv, tv, tt], (v, t)| [vv + v * v, tv + t * v, tt + t * t]);
            (value, time, sums)
        };
        let ((was_value, was_time, a), (now_value, now_time, b)) = (sums(was), sums(now));
        Own {
            rise: now_value - was_value,
            later: now_time - was_time,
            starts: (was.len() + now.len()) as f64,
            reciprocals: 1.0 / was.len() as f64 + 1.0 / now.len() as f64,
            value_value: a[0] + b[0],
            time_value: a[1] + b[1],
            time_time: a[2] + b[2],
        }
    }

    fn without_drift(&self) -> Fit {
        let degrees = self.starts - 2.0;
        let variance = if degrees > 0.0 { self.value_value / degrees } else { 0.0 };
        Fit { rise: self.rise, variance, degrees, factor: self.reciprocals }
    }

    /// The same with a drift that is even in time, common to both sides, taken out. `None` where the times do not tell.
    fn with_drift(&self) -> Option<Fit> {
        let degrees = self.starts - 3.0;
        let slope = self.time_value / self.time_time;
        let variance = (self.value_value - slope * self.time_value).max(0.0) / degrees;
        let factor = self.reciprocals + self.later.powi(2) / self.time_time;
        let rise = self.rise - slope * self.later;
        let fit = Fit { rise, variance, degrees, factor };
        (degrees >= ENOUGH_DEGREES && [slope, variance, factor].iter().all(|each| each.is_finite())).then_some(fit)
    }
}

/// Whether the two sides were measured by turns.
fn interleaved(was: &[Start], now: &[Start]) -> bool {
    let mut order: Vec<(f64, bool)> = was.iter().map(|start| (start.at, false)).collect();
    order.extend(now.iter().map(|start| (start.at, true)));
    order.sort_by(|one, other| one.0.total_cmp(&other.0));
    order.windows(2).filter(|pair| pair[0].1 != pair[1].1).count() >= CHANGES_TO_TELL_DRIFT
}

fn pooled(one: (f64, f64), other: (f64, f64)) -> (f64, f64) {
    let degrees = one.1.max(0.0) + other.1.max(0.0);
    if degrees <= 0.0 {
        return (0.0, 0.0);
    }
    ((one.0 * one.1.max(0.0) + other.0 * other.1.max(0.0)) / degrees, degrees)
}

pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

/// The spread of earlier starts by the differences between neighbours in time: `groups` are series of logarithms, each of
/// starts with the same settings, oldest first. A slow drift and a lasting change hardly widen it.
pub(super) fn earlier(groups: &[Vec<f64>], stated: f64) -> Spread {
    let (mut squares, mut pairs) = (0.0, 0.0);
    for group in groups {
        for pair in group.windows(2) {
            squares += (pair[1] - pair[0]).powi(2);
            pairs += 1.0;
        }
    }
    match pairs > 0.0 {
        // Neighbouring differences share a start each, which costs a third of the degrees of freedom.
        true => Spread { stated, variance: squares / (2.0 * pairs), degrees: 2.0 * pairs / 3.0 },
        false => Spread { stated, variance: 0.0, degrees: 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(values: &[f64]) -> Vec<Start> {
        values
            .iter()
            .enumerate()
            .map(|(index, value)| Start { values: vec![value.ln()], within: 0.0, at: index as f64 })
            .collect()
    }

    fn noisy(value: f64, within: f64) -> Vec<Start> {
        vec![Start { values: vec![value.ln()], within, at: 0.0 }]
    }

    const STATED: Spread = Spread { stated: 0.02, variance: 0.0, degrees: 0.0 };

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-3 * other.abs()
    }

    #[test]
    fn one_start_against_one_sees_what_the_stated_noise_allows() {
        // 2.326 x 2 % x root of 2.
        let plain = Difference::of(&side(&[70.0]), &side(&[70.0]), &STATED);
        assert!(near(plain.sees(0.01), 0.0658), "{plain:?}");
        // Noise within the runs adds to it: 2.326 x root of (2 x 2^2 + 3^2 + 4^2) %.
        let noisy = Difference::of(&noisy(70.0, 0.03), &noisy(70.0, 0.04), &STATED);
        assert!(near(noisy.sees(0.01), 0.1336), "{noisy:?}");
    }

    #[test]
    fn starts_that_agree_let_it_see_more_and_starts_that_do_not_less() {
        let sees = |was: &[f64]| Difference::of(&side(was), &side(&[70.0]), &STATED).sees(0.01);
        let one = sees(&[70.0]);
        let (agreeing, spread) = (sees(&[70.0, 70.1, 69.9, 70.0, 70.1, 69.9]), sees(&[70.0, 60.0, 80.0]));
        assert!(agreeing < one && one < spread, "{agreeing} {one} {spread}");
        // sd of ln(60, 70, 80) = 0.14402; 2.326 x 0.14402 x root of (1 + 1/3).
        assert!(near(spread, 0.3869), "{spread}");
    }

    #[test]
    fn enough_starts_speak_for_themselves() {
        // By hand: variances of ln are 1.5e-4 and so pooled; t of 8 degrees at 1 % is 2.896.
        let was = side(&[100.0, 101.0, 99.0, 102.0, 98.0]);
        let mut now = side(&[97.0, 98.0, 96.0, 99.0, 95.0]);
        now.iter_mut().for_each(|start| start.at += 24.0);
        let found = Difference::of(&was, &now, &STATED);
        let variance = |values: &[f64]| {
            let logs: Vec<f64> = values.iter().map(|value: &f64| value.ln()).collect();
            let mean = logs.iter().sum::<f64>() / 5.0;
            logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / 4.0
        };
        let pooled = (variance(&[100.0, 101.0, 99.0, 102.0, 98.0]) + variance(&[97.0, 98.0, 96.0, 99.0, 95.0])) / 2.0;
        assert_eq!(found.degrees, Some(8.0));
        assert!(near(found.error, (pooled * 0.4).sqrt()), "{found:?}");
        assert!(near(found.sees(0.01), 2.896_46 * found.error));
        assert!(near(found.tail(found.sees(0.01)), 0.01));
    }

    #[test]
    fn runs_on_one_start_are_one_start() {
        let start = |values: &[f64]| Start { values: values.to_vec(), within: 0.03, at: 0.0 };
        let three = vec![start(&[4.0, 4.1, 4.2])];
        let found = Difference::of(&three, &three, &STATED);
        // Three runs: 3 % within falls to 3 % / root of 3, and the start's own 2 % stay.
        let expected = (2.0 * 0.02f64.powi(2) + 2.0 * 0.03f64.powi(2) / 3.0).sqrt();
        assert!(near(found.error, expected), "{found:?}");
    }

    #[test]
    fn a_drift_is_told_from_a_difference_where_the_sides_took_turns() {
        // A B B A A B B A over eight hours, in which everything becomes 8 % slower.
        let start = |hour: usize, loss: f64| Start {
            values: vec![-0.01 * hour as f64 - loss + if hour.is_multiple_of(3) { 0.001 } else { 0.0 }],
            within: 0.0,
            at: hour as f64,
        };
        let was: Vec<Start> = [0, 3, 4, 7].map(|hour| start(hour, 0.0)).into();
        let now: Vec<Start> = [1, 2, 5, 6].map(|hour| start(hour, 0.03)).into();
        let found = Difference::of(&was, &now, &STATED);
        assert!((found.rise + 0.03).abs() < 0.001, "{found:?}");
        assert!(found.sees(0.01) < 0.015, "{found:?}");
        let unchanged: Vec<Start> = [1, 2, 5, 6].map(|hour| start(hour, 0.0)).into();
        assert!(Difference::of(&was, &unchanged, &STATED).tail(0.0) > 0.1);
    }

    #[test]
    fn earlier_starts_tell_how_much_a_single_one_varies() {
        // A lasting change in the middle and a slow drift: neighbours differ by 1 % all the same.
        let nights: Vec<f64> = (0..20).map(|night| if night % 2 == 0 { 0.0 } else { 0.01 }).collect();
        let spread = earlier(&[nights], 0.02);
        assert!(near(spread.variance.sqrt(), 0.00707), "{spread:?}");
        let found = Difference::of(&noisy(70.0, 0.0), &noisy(70.0, 0.0), &spread);
        assert!(found.degrees.is_some() && found.sees(0.01) < 0.03, "{found:?}");
        assert_eq!(earlier(&[], 0.02).degrees, 0.0);
    }

    #[test]
    fn it_says_how_many_starts_would_decide() {
        let found = Difference::of(&side(&[70.0]), &side(&[70.0]), &STATED);
        // Seven: t of 12 degrees at 1 % is 2.681; 2.681 x 2 % x root of 2/7 = 2.87 %.
        assert_eq!(found.starts_to_see(0.03, 0.01), Some(7));
        assert_eq!(found.starts_to_see(0.001, 0.01), None);
    }
}
