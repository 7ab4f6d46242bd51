//! Verdicts. Pure over records, so that replayed history and planted losses go through the code that judges tonight.
//!
//! The rule, with its numbers and what it assumes, is in `docs/verdicts.md`. In short: a metric has *regressed* when its
//! loss is larger than what is tolerated and larger than what noise alone would do once in a hundred runs.

mod differences;
mod expect;
mod metric;
mod noise;

use indexmap::IndexMap;

pub use differences::{Difference, differences};
pub use expect::unmet;
pub use metric::value;

use crate::record::Baseline;
use crate::record::baselines::same_load;
use crate::record::model::{Comparison, Reason, Record, StepResult, Verdict, VerdictKind};
use crate::units::Tolerance;
use metric::Judged;
use noise::Noise;

/// The step that a comparison of the start-up stands under.
pub const START: &str = "start";

/// The metric that depends on limits of its own.
const GOODPUT: &str = "goodput_requests_per_s";

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Judgement {
    /// The verdict of the run: the worst of its steps.
    pub verdict: Verdict,
    /// Metric by metric, what it was compared with. `no_baseline` stands for a metric that is shown and not judged.
    pub comparisons: Vec<Comparison>,
    /// What differs from the newest run of the baseline, most telling first: suspects, not causes.
    pub differences: Vec<Difference>,
}

/// The tolerances of the record's own profile. None where they cannot be read, which [`judge`] gives as a reason.
pub fn tolerances(record: &Record) -> IndexMap<String, Tolerance> {
    read_tolerances(record).unwrap_or_default()
}

fn read_tolerances(record: &Record) -> Result<IndexMap<String, Tolerance>, serde_json::Error> {
    match record.profile.get("tolerance") {
        None | Some(serde_json::Value::Null) => Ok(IndexMap::new()),
        Some(own) => serde_json::from_value(own.clone()),
    }
}

/// Judges `record` against `baseline`.
pub fn judge(record: &Record, baseline: Option<&Baseline>, tolerance: &IndexMap<String, Tolerance>) -> Judgement {
    if !record.complete || record.failure.is_some() {
        return Judgement { verdict: failed(record), comparisons: Vec::new(), differences: Vec::new() };
    }
    let mut found = Found::default();
    found.validity(record);
    match baseline {
        Some(baseline) => found.compare(record, baseline, tolerance),
        None => found.reasons.push((
            VerdictKind::NoBaseline,
            Reason::new("no_baseline", format!("no baseline is set for the series `{}`", record.series)),
        )),
    }
    found.judgement()
}

/// A run that did not come to its end is not compared: whatever it has is a part of what was asked.
fn failed(record: &Record) -> Verdict {
    let reasons = match &record.failure {
        Some(failure) => vec![Reason::new(&failure.kind, failure.text.clone())],
        None if record.verdict.kind == VerdictKind::Failed && !record.verdict.reasons.is_empty() => {
            record.verdict.reasons.clone()
        }
        None => vec![Reason::new("interrupted", "the run was interrupted before its end")],
    };
    Verdict { kind: VerdictKind::Failed, reasons, cause: None }
}

/// What is found while a record is judged.
#[derive(Default)]
struct Found {
    reasons: Vec<(VerdictKind, Reason)>,
    comparisons: Vec<Comparison>,
    differences: Vec<Difference>,
}

/// A metric with everything that its verdict follows from.
struct Measured {
    step: String,
    judged: Judged,
    was: Vec<f64>,
    now: Option<f64>,
    /// Relative standard errors within the runs: of this one, and of a single run of the baseline.
    within: [f64; 2],
    /// Whether it is shown and not judged.
    only_shown: bool,
}

impl Found {
    fn validity(&mut self, record: &Record) {
        for step in record.steps.iter().filter(|step| !step.valid) {
            for reason in &step.reasons {
                let text = format!("`{}`: {}", step.name, reason.text);
                self.reasons.push((VerdictKind::Invalid, Reason { text, ..reason.clone() }));
            }
            if step.reasons.is_empty() {
                let text = format!("the numbers of `{}` may not be used", step.name);
                self.reasons.push((VerdictKind::Invalid, Reason::new("step_invalid", text)));
            }
        }
        for round in &record.answers {
            for answer in round.answers.iter().filter(|answer| answer.right == Some(false)) {
                let said = match &answer.problem {
                    Some(problem) => problem.clone(),
                    None => format!(
                        "`{}`, and `{}` was expected",
                        answer.text.trim(),
                        answer.expect.as_deref().unwrap_or("")
                    ),
                };
                let text = format!("`{}` is answered wrong {}: {said}", answer.id, round.when.words());
                self.reasons.push((VerdictKind::Invalid, Reason::new("answers_wrong", text)));
            }
        }
        // Judging by other tolerances than those that were asked for would be another verdict.
        if let Err(error) = read_tolerances(record) {
            let text = format!("the profile's `tolerance` cannot be read: {error}");
            self.reasons.push((VerdictKind::Invalid, Reason::new("tolerance_unreadable", text)));
        }
        self.reasons.extend(unmet(record).into_iter().map(|reason| (VerdictKind::Invalid, reason)));
    }

    fn compare(&mut self, record: &Record, baseline: &Baseline, tolerance: &IndexMap<String, Tolerance>) {
        let mut measured = Vec::new();
        let mut newest: Option<&Record> = None;
        for step in record.steps.iter().filter(|step| step.valid) {
            match alike(record, step, baseline) {
                Ok(runs) => {
                    newest = newest.max_by_started(runs.iter().map(|(run, _)| *run));
                    measured.extend(of_step(step, &runs, tolerance));
                }
                Err(reasons) => {
                    self.reasons.extend(reasons.into_iter().map(|reason| (VerdictKind::NoBaseline, reason)));
                }
            }
        }
        if newest.is_some() || record.steps.is_empty() {
            measured.extend(of_start(record, baseline));
        }
        // Each comparison is one more chance for noise to look like a loss; all of them together get the one in a
        // hundred.
        let judged = measured.iter().filter(|each| !each.only_shown).count();
        for each in measured {
            self.one(&each, judged, tolerance);
        }
        self.differences = newest.map(|newest| differences(newest, record)).unwrap_or_default();
    }

    fn one(&mut self, measured: &Measured, judged: usize, tolerance: &IndexMap<String, Tolerance>) {
        let Measured { step, judged: metric, was, now, within, only_shown } = measured;
        let noise = Noise::new(was, metric.start_sd, *within, judged);
        let was = noise::geometric_mean(was);
        let mut comparison = Comparison {
            step: step.clone(),
            metric: metric.id.clone(),
            was,
            now: *now,
            change_ratio: was.zip(*now).map(|(was, now)| now / was - 1.0),
            can_see_ratio: None,
            verdict: VerdictKind::NoBaseline,
        };
        if let (false, Some(was)) = (only_shown, was) {
            let floor = metric.floor(was, tolerance.get(&metric.id));
            comparison.can_see_ratio = Some(metric.ratio(floor.max(noise.sees)));
            comparison.verdict = match now {
                Some(now) => verdict(metric.loss(was, *now), floor, noise.sees),
                None => VerdictKind::Inconclusive,
            };
            self.reason(&comparison, metric, &noise);
        }
        self.comparisons.push(comparison);
    }

    fn reason(&mut self, comparison: &Comparison, metric: &Judged, noise: &Noise) {
        let Comparison { step, metric: id, was, now, verdict, .. } = comparison;
        let about = |id: &str, text: String| Reason {
            metric: Some(comparison.metric.clone()),
            was: *was,
            now: *now,
            ..Reason::new(id, text)
        };
        let (Some(was), Some(now)) = (*was, *now) else {
            let text = format!("`{step}`: {id} is missing, and the baseline has it");
            self.reasons.push((*verdict, about("metric_missing", text)));
            return;
        };
        let sees = comparison.can_see_ratio.map(percent).unwrap_or_default();
        let change = comparison.change_ratio.map(signed_percent).unwrap_or_default();
        let values = format!("`{step}`: {id} {}, was {} ({change}; can see {sees})", number(now), number(was));
        let reason = match verdict {
            VerdictKind::Regressed => about("regressed", values),
            VerdictKind::Improved => about("improved", values),
            VerdictKind::Inconclusive => {
                let more = match noise.starts_to_see(metric.loss(was, now)) {
                    Some(starts) => format!("; about {starts} starts a side would decide"),
                    None => String::new(),
                };
                about("inconclusive", format!("{values}{more}"))
            }
            _ => return,
        };
        self.reasons.push((*verdict, reason));
    }

    fn judgement(self) -> Judgement {
        let Found { mut reasons, comparisons, differences } = self;
        // Worst first is how the words are ordered; the sort keeps the order of steps within a word.
        reasons.sort_by_key(|(kind, _)| *kind);
        let of_metrics = comparisons.iter().map(|each| each.verdict);
        let kind = reasons.iter().map(|(kind, _)| *kind).chain(of_metrics).min().unwrap_or(VerdictKind::NoBaseline);
        let mut reasons: Vec<Reason> = reasons.into_iter().map(|(_, reason)| reason).collect();
        if matches!(kind, VerdictKind::Regressed | VerdictKind::HostChanged | VerdictKind::Inconclusive) {
            reasons.extend(differences.iter().map(|each| Reason::new("differs", each.to_string())));
        }
        Judgement { verdict: Verdict { kind, reasons, cause: None }, comparisons, differences }
    }
}

/// The word for a loss, all three as differences of logarithms: beyond what is tolerated, and beyond what noise does.
fn verdict(loss: f64, floor: f64, sees: f64) -> VerdictKind {
    if loss > floor && loss > sees {
        VerdictKind::Regressed
    } else if loss > floor {
        VerdictKind::Inconclusive
    } else if -loss > floor && -loss > sees {
        VerdictKind::Improved
    } else {
        VerdictKind::Ok
    }
}

/// The runs of the baseline whose `step` may be compared with `step`, or what keeps every one of them from it.
fn alike<'a>(
    record: &Record,
    step: &StepResult,
    baseline: &'a Baseline,
) -> Result<Vec<(&'a Record, &'a StepResult)>, Vec<Reason>> {
    let mut usable = Vec::new();
    let mut reasons = Vec::new();
    for run in baseline.for_step(&step.name)? {
        let there = run.steps.iter().find(|other| other.name == step.name);
        match there {
            // That it did not come to its end is why it lacks the step.
            None if !run.complete || run.failure.is_some() => reasons.extend(run_difference(record, run)),
            Some(other) => match hard_difference(record, step, run, other) {
                Some(reason) if reasons.contains(&reason) => {}
                Some(reason) => reasons.push(reason),
                None => usable.push((run, other)),
            },
            None => {
                reasons.push(Reason::new("step_not_in_baseline", format!("{} has no step `{}`", run.id, step.name)));
            }
        }
    }
    if usable.is_empty() { Err(reasons) } else { Ok(usable) }
}

/// What makes a comparison meaningless, if anything does.
fn hard_difference(record: &Record, step: &StepResult, run: &Record, other: &StepResult) -> Option<Reason> {
    run_difference(record, run).or_else(|| {
        let name = &step.name;
        if !other.valid {
            Some(Reason::new("baseline_invalid", format!("`{name}` is not valid in {}", run.id)))
        } else if step.workload != other.workload {
            Some(Reason::new("workload_differs", format!("the workload of `{name}` is not the one of {}", run.id)))
        } else if !same_load(&step.load, &other.load) {
            Some(Reason::new("load_differs", format!("the load of `{name}` is not the one of {}", run.id)))
        } else {
            None
        }
    })
}

/// The same, for what all steps of a run share.
fn run_difference(record: &Record, run: &Record) -> Option<Reason> {
    let simulated = |record: &Record| record.engine.as_ref().is_some_and(|engine| engine.simulated);
    if !run.complete || run.failure.is_some() {
        let why = run.failure.as_ref().map(|failure| failure.text.clone());
        let why = why.or_else(|| run.verdict.reasons.first().map(|reason| reason.text.clone()));
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        Some(Reason::new("baseline_incomplete", format!("{} did not come to its end{why}", run.id)))
    } else if simulated(record) != simulated(run) {
        let which = if simulated(record) { "this run's engine" } else { "the engine of the baseline" };
        Some(Reason::new("simulated_differs", format!("{which} is simulated, the other is real")))
    } else if record.metrics_version != run.metrics_version {
        let text = format!(
            "metrics are defined by version {} here and by version {} in {}",
            record.metrics_version, run.metrics_version, run.id
        );
        Some(Reason::new("metrics_version_differs", text))
    } else if record.host.hardware != run.host.hardware {
        let text = format!("other hardware: {}, was {}", record.host.hardware, run.host.hardware);
        Some(Reason::new("hardware_differs", text))
    } else {
        None
    }
}

fn of_step(
    step: &StepResult,
    runs: &[(&Record, &StepResult)],
    tolerance: &IndexMap<String, Tolerance>,
) -> Vec<Measured> {
    let mut measured = Vec::new();
    for judged in metric::judged(tolerance) {
        // Against other limits it is another number.
        let alike = |other: &StepResult| judged.id != GOODPUT || other.goodput == step.goodput;
        // A logarithm needs a value above zero. A server that gives nothing any more is the worst loss there is.
        let was = runs.iter().filter(|(_, other)| alike(other));
        let was = was.filter_map(|(_, other)| metric::carried(other, &judged.id));
        let was: Vec<f64> = was.filter(|was| *was > 0.0 && was.is_finite()).collect();
        let now = metric::carried(step, &judged.id).filter(|now| *now >= 0.0 && now.is_finite());
        // What neither side has does not apply. What only this run has is no comparison.
        if was.is_empty() {
            continue;
        }
        let errors = runs.iter().map(|(_, other)| noise::within(other, &judged.id));
        let within = [noise::within(step, &judged.id), noise::root_mean_square(errors)];
        measured.push(Measured { step: step.name.clone(), judged, was, now, within, only_shown: false });
    }
    measured
}

/// The start-up, compared with starts that found the same in their caches.
fn of_start(record: &Record, baseline: &Baseline) -> Option<Measured> {
    let startup = record.startup.as_ref()?;
    let now = startup.ready_s?;
    let caches = [&startup.weights_cache, &startup.jit_cache];
    let starts = baseline.runs.iter().filter(|run| run_difference(record, run).is_none());
    let starts: Vec<_> = starts.filter_map(|run| run.startup.as_ref()).collect();
    let alike = starts.iter().filter(|other| [&other.weights_cache, &other.jit_cache] == caches);
    let was: Vec<f64> = alike.filter_map(|other| other.ready_s).filter(|s| *s > 0.0).collect();
    let (was, only_shown) = match was.is_empty() {
        true => {
            let all: Vec<f64> = starts.iter().filter_map(|other| other.ready_s).collect();
            (all, true)
        }
        // A first start reads from the disk what a second finds in memory. Unless it is known which this was, a change
        // tells of the caches as likely as of the server.
        false => (was, startup.weights_cache.is_none()),
    };
    if was.is_empty() {
        return None;
    }
    // A start is one value: all of its noise is noise between starts.
    Some(Measured {
        step: START.to_owned(),
        judged: Judged::startup(),
        was,
        now: Some(now),
        within: [0.0; 2],
        only_shown,
    })
}

trait Newest<'a> {
    fn max_by_started(self, more: impl Iterator<Item = &'a Record>) -> Self;
}

impl<'a> Newest<'a> for Option<&'a Record> {
    fn max_by_started(self, more: impl Iterator<Item = &'a Record>) -> Self {
        self.into_iter().chain(more).max_by_key(|run| run.started_at)
    }
}

/// A number with as many digits as a reader needs.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn signed_percent(ratio: f64) -> String {
    format!("{:+.1} %", ratio * 100.0)
}

#[cfg(test)]
mod tests;
