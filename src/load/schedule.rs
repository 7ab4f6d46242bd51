//! When the requests of an open loop are due: fixed before the first is sent, whatever the server does. No I/O.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{LoadError, draw};
use crate::render::Stage;

/// How the gaps between requests are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// All gaps are alike.
    Constant,
    /// Gaps are exponential: requests that know nothing of each other.
    Poisson,
    /// Gaps are of a gamma distribution of this shape, as vLLM's burstiness: 1 is Poisson, less is burstier.
    Gamma(f64),
}

impl Shape {
    /// Reads its name.
    pub fn parse(word: &str, burstiness: Option<f64>) -> Result<Self, LoadError> {
        match (word, burstiness) {
            ("constant", _) => Ok(Shape::Constant),
            ("poisson", _) => Ok(Shape::Poisson),
            ("gamma", Some(shape)) if shape.is_finite() && shape > 0.0 => Ok(Shape::Gamma(shape)),
            (other, _) => Err(LoadError::Unsupported {
                what: format!("the arrival `{other}`"),
                help: "`poisson`, `constant`, and `gamma` with a burstiness above 0 are there",
            }),
        }
    }

    /// The next gap, where their mean is 1.
    fn gap(self, generator: &mut ChaCha8Rng) -> f64 {
        match self {
            Shape::Constant => 1.0,
            Shape::Poisson => draw::exponential(generator),
            Shape::Gamma(shape) => draw::gamma(shape, generator),
        }
    }
}

/// When the requests of a schedule are due.
#[derive(Clone, Debug)]
pub enum Timing {
    /// At a rate.
    Even {
        /// Requests per second.
        rate: f64,
        /// How gaps are spread.
        shape: Shape,
    },
    /// At rates that change with time.
    Stages {
        /// One after the other.
        stages: Arc<[Stage]>,
        /// How gaps are spread.
        shape: Shape,
    },
    /// So many at once.
    Bursts {
        /// How many.
        requests: u32,
        /// Seconds from one burst to the next.
        every_s: f64,
    },
    /// At these moments.
    Moments(Arc<[Duration]>),
}

impl Timing {
    /// The mean gap between two requests, in seconds; of stages, at their highest rate.
    pub(super) fn gap_s(&self) -> f64 {
        match self {
            Timing::Even { rate, .. } => 1.0 / rate,
            Timing::Stages { stages, .. } => 1.0 / highest(stages),
            Timing::Bursts { requests, every_s } => every_s / f64::from(*requests),
            Timing::Moments(moments) => {
                let span = moments.last().map_or(0.0, Duration::as_secs_f64);
                (span / moments.len().max(1) as f64).max(1e-5)
            }
        }
    }

    /// Requests that come together, as far as that is known before.
    pub(super) fn at_once(&self) -> u64 {
        match self {
            Timing::Bursts { requests, .. } => u64::from(*requests),
            other => ((1.0 / other.gap_s()).ceil() as u64).max(1),
        }
    }

    /// The timing of a warm-up: what changes with time is warmed up at its height.
    pub(super) fn warm(&self) -> Timing {
        match self {
            Timing::Stages { stages, shape } => Timing::Even { rate: highest(stages), shape: *shape },
            Timing::Moments(_) => Timing::Even { rate: 1.0 / self.gap_s(), shape: Shape::Poisson },
            other => other.clone(),
        }
    }
}

/// The highest rate of any stage.
fn highest(stages: &[Stage]) -> f64 {
    stages.iter().map(|stage| stage.from.max(stage.to)).fold(f64::MIN_POSITIVE, f64::max)
}

/// Moments after the beginning at which requests are due. The same seed gives the same moments.
#[derive(Clone, Debug)]
pub struct Schedule {
    timing: Timing,
    generator: ChaCha8Rng,
    /// The number of the next one.
    number: u64,
    /// How many requests should have come by it: the sum of the gaps so far.
    due: f64,
}

impl Schedule {
    /// `stream` keeps the warm-up's moments apart from the measured ones.
    pub fn new(timing: Timing, seed: u64, stream: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Schedule { timing, generator, number: 0, due: 0.0 }
    }

    /// The first `count` moments, again and again: each round begins one mean gap after the end of the one before.
    pub(super) fn in_rounds_of(self, count: u64) -> impl Iterator<Item = Duration> + Send + 'static {
        let gap = Duration::try_from_secs_f64(self.timing.gap_s()).unwrap_or_default();
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

    /// What comes after the gap that is drawn now, in requests since the beginning. The constant ones begin at 0.
    fn drawn(&mut self, shape: Shape) -> f64 {
        let gap = shape.gap(&mut self.generator);
        // Counted, so that no rounding adds up.
        let due = if shape == Shape::Constant { self.number as f64 } else { self.due + gap };
        self.due = due;
        due
    }
}

/// When so many requests have come, at rates that change with time: where the sum of the rates has reached that. `None`
/// beyond the last stage.
fn reached(stages: &[Stage], wanted: f64) -> Option<f64> {
    let (mut began, mut sum) = (0.0, 0.0);
    for Stage { from, to, duration_s } in stages {
        let whole = (from + to) / 2.0 * duration_s;
        if wanted < sum + whole {
            // The sum within a ramp is from * t + slope / 2 * t^2; solved so that a slope of 0 is no division by it.
            let (left, slope) = (wanted - sum, (to - from) / duration_s);
            let root = (from * from + 2.0 * slope * left).max(0.0).sqrt();
            return Some(began + if left > 0.0 { 2.0 * left / (from + root) } else { 0.0 });
        }
        sum += whole;
        began += duration_s;
    }
    None
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
        let at = match self.timing.clone() {
            Timing::Even { rate, shape } => self.drawn(shape) / rate,
            Timing::Stages { stages, shape } => reached(&stages, self.drawn(shape))?,
            Timing::Bursts { requests, every_s } => (self.number / u64::from(requests.max(1))) as f64 * every_s,
            Timing::Moments(moments) => {
                let moment = moments.get(usize::try_from(self.number).ok()?).copied();
                self.number += 1;
                return moment;
            }
        };
        self.number += 1;
        Duration::try_from_secs_f64(at).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(shape: Shape, rate: f64, seed: u64, stream: u64) -> Schedule {
        Schedule::new(Timing::Even { rate, shape }, seed, stream)
    }

    fn gaps(rate: f64, seed: u64) -> Vec<f64> {
        let due: Vec<_> = even(Shape::Poisson, rate, seed, 1).take(4000).collect();
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
        let warm: Vec<_> = even(Shape::Poisson, 10.0, 7, 0).take(5).collect();
        assert_ne!(warm, even(Shape::Poisson, 10.0, 7, 1).take(5).collect::<Vec<_>>());
    }

    #[test]
    fn rounds_repeat_their_moments_and_are_drawn_as_they_are_wanted() {
        let schedule = |rate| even(Shape::Poisson, rate, 7, 0);
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
        let due: Vec<_> = even(Shape::Constant, 3.0, 0, 0).take(3_000_001).collect();
        assert_eq!(
            (due[0], due[3], due[3_000_000]),
            (Duration::ZERO, Duration::from_secs(1), Duration::from_secs(1_000_000))
        );
    }

    #[test]
    fn stages_bring_as_many_requests_as_their_rates_say() {
        let stage = |from, to, duration_s| Stage { from, to, duration_s };
        let stages: Arc<[Stage]> = [stage(10.0, 10.0, 10.0), stage(10.0, 50.0, 20.0), stage(50.0, 0.0, 10.0)].into();
        let timing = |shape| Timing::Stages { stages: stages.clone(), shape };
        let due: Vec<f64> = Schedule::new(timing(Shape::Constant), 0, 0).map(|moment| moment.as_secs_f64()).collect();
        // 10 s at 10, 20 s at 30 on average, 10 s at 25 on average.
        assert_eq!(due.len(), 100 + 600 + 250);
        assert!((due[100] - 10.0).abs() < 1e-6 && (due[700] - 30.0).abs() < 1e-6, "{} {}", due[100], due[700]);
        assert!(due.windows(2).all(|pair| pair[0] <= pair[1]) && due[949] < 40.0);
        // Half of a ramp's time is less than half of its requests.
        let half = due.iter().filter(|at| **at < 20.0).count();
        assert_eq!(half, 100 + 200);
        let drawn = Schedule::new(timing(Shape::Poisson), 3, 1).count() as f64;
        assert!((drawn - 950.0).abs() < 4.0 * 950_f64.sqrt(), "{drawn}");
        assert_eq!(timing(Shape::Constant).gap_s(), 1.0 / 50.0);
    }

    #[test]
    fn bursts_come_at_once_and_recorded_moments_as_they_are() {
        let bursts = Schedule::new(Timing::Bursts { requests: 3, every_s: 2.0 }, 0, 0).take(7);
        let seconds: Vec<_> = bursts.map(|moment| moment.as_secs()).collect();
        assert_eq!(seconds, [0, 0, 0, 2, 2, 2, 4]);
        let moments: Arc<[Duration]> = [0, 5, 5, 900].map(Duration::from_millis).into();
        let timing = Timing::Moments(moments.clone());
        assert_eq!(Schedule::new(timing.clone(), 0, 1).collect::<Vec<_>>(), moments.to_vec());
        assert!(matches!(timing.warm(), Timing::Even { rate, .. } if (rate - 4.0 / 0.9).abs() < 1e-9));
    }

    #[test]
    fn an_arrival_that_is_not_there_is_refused() {
        assert!(Shape::parse("gamma", None).unwrap_err().to_string().contains("gamma"));
        assert!(Shape::parse("weibull", Some(1.0)).unwrap_err().to_string().contains("weibull"));
        assert_eq!(Shape::parse("poisson", None).unwrap(), Shape::Poisson);
        assert_eq!(Shape::parse("gamma", Some(0.5)).unwrap(), Shape::Gamma(0.5));
    }
}
