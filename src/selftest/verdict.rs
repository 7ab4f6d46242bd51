//! How often the verdicts of a series would be right: its own starts are drawn again, with known losses planted, and judged
//! by the code and the tolerances that judge tonight.

use jiff::SignedDuration;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::compare::{self, higher_is_better};
use crate::history::Trend;
use crate::measure::{Distribution, MetricValue};
use crate::record::index;
use crate::record::model::{Record, StepResult, VerdictKind};
use crate::record::{Baseline, Earlier};

/// Fewer starts tell nothing of how they vary.
pub const LEAST_STARTS: usize = 8;

/// How a drawn comparison is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Drawn {
    /// Starts of the baseline.
    pub before: u32,
    /// Starts that are judged.
    pub now: u32,
    /// Earlier starts that the history has.
    pub earlier: u32,
    /// Comparisons for each loss.
    pub count: u32,
}

/// How verdicts of a loss come out, as shares of the comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// The loss that was planted, as a share.
    pub loss: f64,
    /// Called regressed: at no loss these are false alarms.
    pub regressed: f64,
    /// Called inconclusive.
    pub inconclusive: f64,
    /// Called improved: always false.
    pub improved: f64,
    /// Called ok.
    pub ok: f64,
}

/// How starts of a trend differ from the mean of their time, in logarithms: a lasting change is taken out.
pub fn residuals(trend: &Trend) -> Vec<f64> {
    let logarithms: Vec<f64> = trend.points.iter().map(|point| point.value.ln()).collect();
    let bounds: Vec<usize> =
        [0].into_iter().chain(trend.moved.iter().map(|moved| moved.index)).chain([logarithms.len()]).collect();
    let about = |part: &[f64]| -> Vec<f64> {
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        // A mean of few values follows them: what they differ by is made as wide as it was.
        let wider = (part.len() as f64 / (part.len() as f64 - 1.0)).sqrt();
        part.iter().map(|value| (value - mean) * wider).filter(|value| value.is_finite()).collect()
    };
    bounds.windows(2).flat_map(|pair| about(&logarithms[pair[0]..pair[1]])).collect()
}

/// The rates for each of these losses. `like` is a run whose step is drawn again, `pool` how its starts differ.
pub fn rates(like: &Record, step: &str, pool: &[f64], drawn: &Drawn, losses: &[f64]) -> Vec<Rates> {
    let mut draw = Draw { random: ChaCha8Rng::seed_from_u64(7), like, step, pool, next: 0 };
    let tolerances = compare::tolerances(like);
    let mut of = |loss: &f64| {
        let mut counts = [0u32; 4];
        for _ in 0..drawn.count {
            let mut baseline = Baseline::of((0..drawn.before).map(|_| draw.start(0.0)).collect());
            baseline.earlier = (0..drawn.earlier).map(|night| draw.earlier(drawn.earlier - night)).collect();
            let now: Vec<Record> = (0..drawn.now).map(|_| draw.start(*loss)).collect();
            let now: Vec<&Record> = now.iter().collect();
            let kind = compare::judge_all(&now, Some(&baseline), &tolerances).verdict.kind;
            let kinds = [VerdictKind::Regressed, VerdictKind::Inconclusive, VerdictKind::Improved, VerdictKind::Ok];
            if let Some(place) = kinds.iter().position(|each| *each == kind) {
                counts[place] += 1;
            }
        }
        let [regressed, inconclusive, improved, ok] = counts.map(|count| f64::from(count) / f64::from(drawn.count));
        Rates { loss: *loss, regressed, inconclusive, improved, ok }
    };
    losses.iter().map(&mut of).collect()
}

struct Draw<'a> {
    random: ChaCha8Rng,
    like: &'a Record,
    step: &'a str,
    pool: &'a [f64],
    next: u32,
}

impl Draw<'_> {
    /// A run on a start of its own.
    fn start(&mut self, loss: f64) -> Record {
        let speed = (self.pool.choose(&mut self.random).copied().unwrap_or(0.0) + (-loss).ln_1p()).exp();
        self.next += 1;
        let steps = self.like.steps.iter().filter(|step| step.name == self.step);
        Record {
            id: format!("drawn-{}", self.next),
            startup: None,
            left: None,
            writer: None,
            provenance: self
                .like
                .provenance
                .iter()
                .filter(|(key, _)| *key != "attached")
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            steps: steps.map(|step| scaled(step, speed)).collect(),
            ..self.like.clone()
        }
    }

    fn earlier(&mut self, nights_ago: u32) -> Earlier {
        let record = self.start(0.0);
        Earlier {
            step: self.step.to_owned(),
            run: record.id.clone(),
            start: record.id.clone(),
            settings: String::new(),
            started_at: record.started_at - SignedDuration::from_hours(24 * i64::from(nights_ago)),
            values: record.steps.first().map(index::numbers_of).unwrap_or_default(),
        }
    }
}

/// A step whose server is so many times as fast.
fn scaled(step: &StepResult, speed: f64) -> StepResult {
    let by = |id: &str| match higher_is_better(id) {
        Some(true) => speed,
        Some(false) => 1.0 / speed,
        None => 1.0,
    };
    let metric = |(id, value): (&String, &MetricValue)| {
        let by = by(id);
        let times = |value: Option<f64>| value.map(|value| value * by);
        let value = match value {
            MetricValue::Number(value) => MetricValue::Number(value * by),
            MetricValue::Distribution(all) => MetricValue::Distribution(Distribution {
                mean: times(all.mean),
                p50: times(all.p50),
                p90: times(all.p90),
                p95: times(all.p95),
                p99: times(all.p99),
                max: times(all.max),
                ..all.clone()
            }),
            MetricValue::Absent(()) => MetricValue::Absent(()),
        };
        (id.clone(), value)
    };
    StepResult { metrics: step.metrics.iter().map(metric).collect(), ..step.clone() }
}
