//! A metric of a step with everything that its verdict follows from: both sides, start by start, and earlier starts.

use indexmap::IndexMap;

use super::alike::{again, alike, run_difference};
use super::metric::{self, Judged};
use super::modes::{self, Modes};
use super::nested::{self, Difference, Spread, Start};
use super::{START, noise};
use crate::record::model::{Reason, Record, StepResult};
use crate::record::{Baseline, Earlier};
use crate::units::Tolerance;

/// The metric that depends on limits of its own.
const GOODPUT: &str = "goodput_requests_per_s";

/// What a server that gives nothing any more counts as: a logarithm needs a value above zero.
const NOTHING: f64 = 1e-12;

/// So many earlier starts are needed to tell two speeds of them from one that was slow by chance.
const EARLIER_FOR_MODES: usize = 6;

/// A metric of a step.
pub(super) struct Measured {
    pub(super) step: String,
    pub(super) judged: Judged,
    pub(super) was: Vec<Start>,
    pub(super) now: Vec<Start>,
    /// Earlier starts, by what they ran with, oldest first, in logarithms.
    earlier: Vec<Vec<f64>>,
    /// Whether it is shown and not judged.
    pub(super) only_shown: bool,
}

/// A run with one of its steps.
type Run<'a> = (&'a Record, &'a StepResult);

impl Measured {
    /// The value before, over all its starts.
    pub(super) fn was(&self) -> Option<f64> {
        value(&self.was)
    }

    /// The value now.
    pub(super) fn now(&self) -> Option<f64> {
        value(&self.now)
    }

    /// The difference between the sides, if both are there.
    pub(super) fn difference(&self) -> Option<Difference> {
        let both = !self.was.is_empty() && !self.now.is_empty();
        both.then(|| Difference::of(&self.was, &self.now, &self.spread()))
    }

    fn spread(&self) -> Spread {
        nested::earlier(&self.earlier, self.judged.start_sd)
    }

    /// The two speeds that starts come in, where they do: on either side, or among earlier starts.
    pub(super) fn modes(&self) -> Option<Modes> {
        let stated = self.judged.start_sd;
        let means = |side: &[Start]| side.iter().map(Start::mean).collect::<Vec<_>>();
        let sides = [means(&self.was), means(&self.now)];
        let earlier = self.earlier.iter().filter(|group| group.len() >= EARLIER_FOR_MODES);
        sides
            .iter()
            .chain(earlier)
            .filter_map(|values| modes::modes(values, stated))
            .max_by(|one, other| one.gap.total_cmp(&other.gap))
    }
}

fn value(side: &[Start]) -> Option<f64> {
    if side.is_empty() {
        return None;
    }
    let value = nested::mean(side.iter().map(Start::mean)).exp();
    Some(if value <= NOTHING * 1.01 { 0.0 } else { rounded(value) })
}

/// Without the last digits, which a logarithm and back may change: what was measured as 70 is shown as 70.
fn rounded(value: f64) -> f64 {
    let scale = 10f64.powi(12 - value.log10().ceil() as i32);
    (value * scale).round() / scale
}

/// Everything that is compared of `lead`, the newest of `runs`, and the runs of the baseline that it was compared with.
pub(super) fn all<'a>(
    lead: &Record,
    runs: &[&'a Record],
    baseline: &'a Baseline,
    tolerance: &IndexMap<String, Tolerance>,
) -> (Vec<Measured>, Vec<&'a Record>, Vec<Reason>) {
    let (mut measured, mut compared, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for step in lead.steps.iter().filter(|step| step.valid && !step.probe) {
        match alike(lead, step, baseline) {
            Ok(before) => {
                for (run, _) in &before {
                    if !compared.iter().any(|known: &&Record| known.id == run.id) {
                        compared.push(run);
                    }
                }
                let now = again(lead, step, runs);
                measured.extend(of_step(step, &before, &now, &baseline.earlier, tolerance));
            }
            Err(why) => reasons.extend(why),
        }
    }
    if !compared.is_empty() || lead.steps.is_empty() {
        measured.extend(of_start(lead, runs, baseline));
    }
    (measured, compared, reasons)
}

fn of_step(
    step: &StepResult,
    before: &[Run<'_>],
    now: &[Run<'_>],
    earlier: &[Earlier],
    tolerance: &IndexMap<String, Tolerance>,
) -> Vec<Measured> {
    let mut measured = Vec::new();
    for judged in metric::judged(tolerance) {
        let id = &judged.id;
        // Against other limits it is another number.
        let alike = |other: &StepResult| id != GOODPUT || other.goodput == step.goodput;
        let value = |(_, other): Run<'_>| metric::carried(other, id).filter(|value| value.is_finite());
        let was = starts(before.iter().filter(|(_, other)| alike(other)).copied(), id, |run| {
            value(run).filter(|was| *was > 0.0)
        });
        // What neither side has does not apply. What only this run has is no comparison.
        if was.is_empty() {
            continue;
        }
        let now = starts(now.iter().copied(), id, |run| value(run).filter(|now| *now >= 0.0));
        let earlier = earlier_values(earlier, &step.name, id);
        measured.push(Measured { step: step.name.clone(), judged, was, now, earlier, only_shown: false });
    }
    measured
}

/// What the runs of one start measured, each with its error and when it was.
#[derive(Default)]
struct Runs {
    values: Vec<f64>,
    errors: Vec<f64>,
    hours: Vec<f64>,
}

/// The starts behind these runs, each with its values of a metric.
fn starts<'a>(runs: impl Iterator<Item = Run<'a>>, id: &str, value: impl Fn(Run<'a>) -> Option<f64>) -> Vec<Start> {
    let mut starts: IndexMap<String, Runs> = IndexMap::new();
    for run in runs {
        if let Some(value) = value(run) {
            let runs = starts.entry(run.0.start_key()).or_default();
            runs.values.push(value.max(NOTHING).ln());
            runs.errors.push(noise::within(run.1, id));
            runs.hours.push(hours(run.0));
        }
    }
    let start = |runs: Runs| Start {
        within: noise::root_mean_square(runs.errors.into_iter()),
        at: nested::mean(runs.hours.into_iter()),
        values: runs.values,
    };
    starts.into_values().map(start).collect()
}

fn hours(record: &Record) -> f64 {
    record.started_at.as_second() as f64 / 3600.0
}

/// Earlier values of a metric by what ran, oldest first; each start is one value.
fn earlier_values(earlier: &[Earlier], step: &str, id: &str) -> Vec<Vec<f64>> {
    let mut groups: IndexMap<&str, IndexMap<&str, Vec<f64>>> = IndexMap::new();
    for each in earlier.iter().filter(|each| each.step == step) {
        if let Some(value) = each.values.get(id).filter(|value| **value > 0.0 && value.is_finite()) {
            groups.entry(&each.settings).or_default().entry(&each.start).or_default().push(value.ln());
        }
    }
    let means = |starts: IndexMap<&str, Vec<f64>>| -> Vec<f64> {
        starts.into_values().map(|values| nested::mean(values.into_iter())).collect()
    };
    groups.into_values().map(means).collect()
}

/// The start-up, compared with starts that found the same in their caches.
fn of_start(lead: &Record, runs: &[&Record], baseline: &Baseline) -> Option<Measured> {
    let startup = runs.iter().rev().find_map(|run| run.startup.as_ref().filter(|startup| startup.ready_s.is_some()))?;
    let caches = [&startup.weights_cache, &startup.jit_cache];
    let same_caches =
        |run: &&Record| run.startup.as_ref().is_some_and(|other| [&other.weights_cache, &other.jit_cache] == caches);
    let before: Vec<&Record> = baseline.runs.iter().filter(|run| run_difference(lead, run).is_none()).collect();
    let (was, only_shown) = match before.iter().copied().any(|run| same_caches(&run) && ready(run).is_some()) {
        // A first start reads from the disk what a second finds in memory. Unless it is known which this was, a change
        // tells of the caches as likely as of the server.
        true => (before.into_iter().filter(same_caches).collect(), startup.weights_cache.is_none()),
        false => (before, true),
    };
    let was: Vec<Start> = was.into_iter().filter_map(start).collect();
    if was.is_empty() {
        return None;
    }
    Some(Measured {
        step: START.to_owned(),
        judged: Judged::startup(),
        was,
        now: runs.iter().copied().filter(same_caches).filter_map(start).collect(),
        earlier: Vec::new(),
        only_shown,
    })
}

fn ready(run: &Record) -> Option<f64> {
    run.startup.as_ref()?.ready_s.filter(|ready_s| *ready_s > 0.0)
}

/// A start is one value: all of its noise is noise between starts.
fn start(run: &Record) -> Option<Start> {
    ready(run).map(|ready_s| Start { values: vec![ready_s.ln()], within: 0.0, at: hours(run) })
}
