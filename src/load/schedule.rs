//! When the requests of an open loop are due: fixed before the first is sent, whatever the server does. No I/O.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::LoadError;

/// How the gaps between requests are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All gaps are alike.
    Constant,
    /// Gaps are exponential: requests that know nothing of each other.
    Poisson,
}

impl Shape {
    /// Reads its name.
    pub fn parse(word: &str) -> Result<Self, LoadError> {
        match word {
            "constant" => Ok(Shape::Constant),
            "poisson" => Ok(Shape::Poisson),
            other => Err(LoadError::Unsupported {
                what: format!("the arrival `{other}`"),
                help: "`poisson` and `constant` are there",
            }),
        }
    }
}

/// Moments after the beginning at which requests are due. The same seed gives the same moments.
#[derive(Clone, Debug)]
pub struct Schedule {
    shape: Shape,
    rate: f64,
    generator: ChaCha8Rng,
    /// The number of the next one, and for Poisson the seconds so far.
    number: u64,
    at_s: f64,
}

impl Schedule {
    /// `rate` requests a second; `stream` keeps the warm-up's moments apart from the measured ones.
    pub fn new(shape: Shape, rate: f64, seed: u64, stream: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Schedule { shape, rate, generator, number: 0, at_s: 0.0 }
    }

    /// The first `count` moments, again and again: each round begins one mean gap after the end of the one before.
    pub(super) fn in_rounds_of(self, count: u64) -> impl Iterator<Item = Duration> + Send + 'static {
        let gap = Duration::try_from_secs_f64(1.0 / self.rate).unwrap_or_default();
        Rounds {
            whole: self.clone(),
            round: self,
            count,
            left: count,
            began: Duration::ZERO,
            last: Duration::ZERO,
            gap,
        }
    }
}

/// A schedule's beginning over and over, drawn anew each time: nothing of it is kept, however many moments it has.
struct Rounds {
    whole: Schedule,
    round: Schedule,
    count: u64,
    left: u64,
    began: Duration,
    last: Duration,
    gap: Duration,
}

impl Iterator for Rounds {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.left == 0 {
            self.round = self.whole.clone();
            self.left = self.count;
            self.began = self.last.saturating_add(self.gap);
        }
        // A moment that cannot be told ends it, and so does a round of nothing.
        self.left = self.left.checked_sub(1)?;
        self.last = self.began.checked_add(self.round.next()?)?;
        Some(self.last)
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let at = match self.shape {
            // Computed from the number, so that no rounding adds up.
            Shape::Constant => self.number as f64 / self.rate,
            Shape::Poisson => {
                let uniform: f64 = self.generator.random();
                self.at_s += -(1.0 - uniform).ln() / self.rate;
                self.at_s
            }
        };
        self.number += 1;
        Duration::try_from_secs_f64(at).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(rate: f64, seed: u64) -> Vec<f64> {
        let due: Vec<_> = Schedule::new(Shape::Poisson, rate, seed, 1).take(4000).collect();
        due.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
    }

    #[test]
    fn poisson_gaps_vary_as_much_as_their_mean() {
        for (rate, seed) in [(50.0, 1), (200.0, 2), (0.5, 3)] {
            let gaps = gaps(rate, seed);
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let variation = variance.sqrt() / mean;
            assert!((mean * rate - 1.0).abs() < 0.06, "mean {mean} at {rate}");
            assert!((variation - 1.0).abs() < 0.1, "coefficient of variation {variation} at {rate}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_moments_and_another_others() {
        assert_eq!(gaps(10.0, 7), gaps(10.0, 7));
        assert_ne!(gaps(10.0, 7), gaps(10.0, 8));
        let warm: Vec<_> = Schedule::new(Shape::Poisson, 10.0, 7, 0).take(5).collect();
        assert_ne!(warm, Schedule::new(Shape::Poisson, 10.0, 7, 1).take(5).collect::<Vec<_>>());
    }

    #[test]
    fn rounds_repeat_their_moments_and_are_drawn_as_they_are_wanted() {
        let schedule = |rate| Schedule::new(Shape::Poisson, rate, 7, 0);
        let three: Vec<_> = schedule(10.0).take(3).collect();
        let twice: Vec<_> = schedule(10.0).in_rounds_of(3).take(6).collect();
        let begin = three[2] + Duration::from_millis(100);
        assert_eq!(twice, [three[0], three[1], three[2], begin + three[0], begin + three[1], begin + three[2]]);
        // A round too large to be held begins at once, and moments that are beyond any clock end it.
        assert_eq!(schedule(10.0).in_rounds_of(u64::MAX).next(), Some(three[0]));
        assert_eq!(schedule(1e-300).in_rounds_of(3).next(), None);
        assert_eq!(schedule(10.0).in_rounds_of(0).next(), None);
    }

    #[test]
    fn constant_moments_do_not_drift() {
        let due: Vec<_> = Schedule::new(Shape::Constant, 3.0, 0, 0).take(3_000_001).collect();
        assert_eq!(
            (due[0], due[3], due[3_000_000]),
            (Duration::ZERO, Duration::from_secs(1), Duration::from_secs(1_000_000))
        );
    }

    #[test]
    fn an_arrival_that_is_not_there_is_refused() {
        assert!(Shape::parse("gamma").unwrap_err().to_string().contains("gamma"));
        assert_eq!(Shape::parse("poisson").unwrap(), Shape::Poisson);
    }
}
