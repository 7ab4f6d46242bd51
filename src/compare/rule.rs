//! The rule: from both sides of every metric to the word of a run.

use indexmap::IndexMap;

use super::family::Of;
use super::measured::{self, Measured};
use super::modes::Modes;
use super::words::{number, percent, signed_percent};
use super::{Difference, Judgement, START, cause, differences, family, nested, read_tolerances, unmet};
use crate::record::Baseline;
use crate::record::model::{Cause, Comparison, Reason, Record, Verdict, VerdictKind};
use crate::units::Tolerance;

/// A difference up to this many times the gap between two speeds may be a draw of them.
const WITHIN_MODES: f64 = 1.25;

/// What is found while a record is judged.
#[derive(Default)]
pub(super) struct Found {
    reasons: Vec<(VerdictKind, Reason)>,
    comparisons: Vec<Comparison>,
    differences: Vec<Difference>,
    cause: Option<Cause>,
}

/// A metric with what its two sides tell.
struct Weighed {
    measured: Measured,
    difference: Option<nested::Difference>,
    /// The probability of such a loss, and of such a gain, under noise alone.
    tails: [f64; 2],
    /// Its share of the chance of a false alarm.
    share: f64,
    /// Whether the loss, and the gain, is beyond noise.
    beyond: [bool; 2],
}

impl Found {
    pub(super) fn validity(&mut self, record: &Record) {
        for step in record.steps.iter().filter(|step| !step.valid && !step.probe) {
            for reason in &step.reasons {
                let text = format!("`{}`: {}", step.name, reason.text);
                self.reasons.push((VerdictKind::Invalid, Reason { text, ..reason.clone() }));
            }
            if step.reasons.is_empty() {
                let text = format!("the numbers of `{}` may not be used", step.name);
                self.reasons.push((VerdictKind::Invalid, Reason::new("step_invalid", text)));
            }
        }
        self.answers(record, "");
        // Judging by other tolerances than those that were asked for would be another verdict.
        if let Err(error) = read_tolerances(record) {
            let text = format!("the profile's `tolerance` cannot be read: {error}");
            self.reasons.push((VerdictKind::Invalid, Reason::new("tolerance_unreadable", text)));
        }
        self.reasons.extend(unmet(record).into_iter().map(|reason| (VerdictKind::Invalid, reason)));
    }

    /// Another run of the same settings: a server that answers wrong, or is not what was expected, on one of its starts
    /// makes all of them invalid. Steps of it that are not valid are left out of the means, and told.
    pub(super) fn beside(&mut self, record: &Record) {
        let name = format!("{}: ", record.id);
        for step in record.steps.iter().filter(|step| !step.valid && !step.probe) {
            let why = step.reasons.first().map_or("its numbers may not be used", |reason| reason.text.as_str());
            let text = format!("{name}`{}` is left out: {why}", step.name);
            self.reasons.push((VerdictKind::NoBaseline, Reason::new("left_out", text)));
        }
        self.answers(record, &name);
        let unmet = unmet(record).into_iter();
        let named = unmet.map(|reason| Reason { text: format!("{name}{}", reason.text), ..reason });
        self.reasons.extend(named.map(|reason| (VerdictKind::Invalid, reason)));
    }

    fn answers(&mut self, record: &Record, name: &str) {
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
                let text = format!("{name}`{}` is answered wrong {}: {said}", answer.id, round.when.words());
                self.reasons.push((VerdictKind::Invalid, Reason::new("answers_wrong", text)));
            }
        }
    }

    /// Nothing to compare with.
    pub(super) fn no_baseline(&mut self, text: String) {
        self.reasons.push((VerdictKind::NoBaseline, Reason::new("no_baseline", text)));
    }

    pub(super) fn compare(
        &mut self,
        lead: &Record,
        runs: &[&Record],
        baseline: &Baseline,
        tolerance: &IndexMap<String, Tolerance>,
    ) {
        let (all, compared, reasons) = measured::all(lead, runs, baseline, tolerance);
        self.reasons.extend(reasons.into_iter().map(|reason| (VerdictKind::NoBaseline, reason)));
        for each in weighed(all) {
            self.one(&each, tolerance);
        }
        // What is not valid is not compared, but its reason may be a cause.
        let invalid = lead.steps.iter().any(|step| !step.valid && !step.probe);
        let before: Vec<&Record> = match compared.is_empty() {
            true if invalid => baseline.runs.iter().collect(),
            _ => compared,
        };
        let newest = before.iter().copied().max_by_key(|run| run.started_at);
        self.differences = newest.map(|newest| differences(newest, lead)).unwrap_or_default();
        let sides = cause::Sides { now: runs, was: &before };
        if let Some(named) = cause::of(lead, &sides, &self.comparisons, &self.differences) {
            // Most likely first; the sort keeps the order of settings, what the server made of them, and versions.
            if let Some(kind) = named.kind {
                self.differences.sort_by_key(|each| cause::likely(each, kind));
            }
            self.cause = Some(named.cause);
        }
    }

    fn one(&mut self, weighed: &Weighed, tolerance: &IndexMap<String, Tolerance>) {
        let Weighed { measured, difference, share, beyond, .. } = weighed;
        let metric = &measured.judged;
        let (was, now) = (measured.was(), measured.now());
        let mut comparison = Comparison {
            step: measured.step.clone(),
            metric: metric.id.clone(),
            was,
            now,
            change_ratio: was.zip(now).map(|(was, now)| now / was - 1.0),
            can_see_ratio: None,
            loss_at_least_ratio: None,
            verdict: VerdictKind::NoBaseline,
        };
        if let (false, Some(was)) = (measured.only_shown, was) {
            let floor = metric.floor(was, tolerance.get(&metric.id));
            let tail = family::FALSE_ALARMS * share;
            match difference {
                None => {
                    comparison.verdict = VerdictKind::Inconclusive;
                    self.missing(&comparison);
                }
                Some(difference) => {
                    let (loss, sees) = (metric.worse(difference.rise), difference.sees(tail));
                    comparison.can_see_ratio = Some(metric.ratio(floor.max(sees)));
                    comparison.loss_at_least_ratio = Some(metric.ratio(loss - difference.sees(family::FALSE_ALARMS)));
                    let modes = measured.modes().filter(|modes| loss.abs() <= WITHIN_MODES * modes.gap);
                    comparison.verdict = match modes {
                        Some(_) if loss.abs() > floor => VerdictKind::Inconclusive,
                        Some(_) => VerdictKind::Ok,
                        None => word(loss, floor, *beyond),
                    };
                    let more = more(measured, difference, loss, tail, modes.as_ref());
                    self.reason(&comparison, modes.is_some(), &more);
                }
            }
        }
        self.comparisons.push(comparison);
    }

    fn missing(&mut self, comparison: &Comparison) {
        let text = format!("`{}`: {} is missing, and the baseline has it", comparison.step, comparison.metric);
        let reason = Reason { was: comparison.was, ..about(comparison, "metric_missing", text) };
        self.reasons.push((comparison.verdict, reason));
    }

    fn reason(&mut self, comparison: &Comparison, two_speeds: bool, more: &str) {
        let Comparison { step, metric: id, was, now, verdict, .. } = comparison;
        let (Some(was), Some(now)) = (*was, *now) else { return };
        let sees = comparison.can_see_ratio.map(percent).unwrap_or_default();
        let change = comparison.change_ratio.map(signed_percent).unwrap_or_default();
        let values = format!("`{step}`: {id} {}, was {} ({change}; can see {sees})", number(now), number(was));
        let (name, text) = match verdict {
            VerdictKind::Regressed => ("regressed", values),
            VerdictKind::Improved => ("improved", values),
            VerdictKind::Inconclusive if two_speeds => ("two_speeds", format!("{values}{more}")),
            VerdictKind::Inconclusive => ("inconclusive", format!("{values}{more}")),
            _ => return,
        };
        self.reasons.push((*verdict, about(comparison, name, text)));
    }

    pub(super) fn judgement(self) -> Judgement {
        let Found { mut reasons, comparisons, differences, cause } = self;
        // Worst first is how the words are ordered; the sort keeps the order of steps within a word.
        reasons.sort_by_key(|(kind, _)| *kind);
        let of_metrics = comparisons.iter().map(|each| each.verdict);
        let kind = reasons.iter().map(|(kind, _)| *kind).chain(of_metrics).min().unwrap_or(VerdictKind::NoBaseline);
        let mut reasons: Vec<Reason> = reasons.into_iter().map(|(_, reason)| reason).collect();
        if matches!(kind, VerdictKind::Regressed | VerdictKind::HostChanged | VerdictKind::Inconclusive) {
            reasons.extend(differences.iter().map(|each| Reason::new("differs", each.to_string())));
        }
        let cause = cause.filter(|_| matches!(kind, VerdictKind::Regressed | VerdictKind::Invalid));
        Judgement { verdict: Verdict { kind, reasons, cause }, comparisons, differences }
    }
}

/// A reason about a metric.
fn about(comparison: &Comparison, id: &str, text: String) -> Reason {
    let Comparison { metric, was, now, .. } = comparison;
    Reason { metric: Some(metric.clone()), was: *was, now: *now, ..Reason::new(id, text) }
}

/// What would decide, for a loss that noise could do too.
fn more(measured: &Measured, difference: &nested::Difference, loss: f64, tail: f64, modes: Option<&Modes>) -> String {
    if let Some(modes) = modes {
        let apart = percent(modes.gap.exp() - 1.0);
        return format!("; starts come in two speeds, {apart} apart ({} of {} the higher)", modes.high, modes.of);
    }
    let there = measured.was.len().min(measured.now.len()) as u32;
    match difference.starts_to_see(loss, tail) {
        Some(starts) if starts > there && there > 1 => {
            format!("; about {starts} starts a side would decide, {} more", starts - there)
        }
        Some(starts) if starts > there => format!("; about {starts} starts a side would decide"),
        _ => String::new(),
    }
}

/// Both sides of every metric, weighed against noise, all of them together.
fn weighed(all: Vec<Measured>) -> Vec<Weighed> {
    let mut weighed: Vec<Weighed> = all.into_iter().map(Weighed::new).collect();
    let judged: Vec<usize> = (0..weighed.len()).filter(|&index| !weighed[index].measured.only_shown).collect();
    let of: Vec<Of> = judged.iter().map(|&index| of(&weighed[index].measured)).collect();
    let shares = family::shares(&of);
    let found = [0, 1].map(|way| {
        let tails: Vec<f64> = judged.iter().map(|&index| weighed[index].tails[way]).collect();
        family::found(&tails, &shares)
    });
    for (place, &index) in judged.iter().enumerate() {
        weighed[index].share = shares[place];
        weighed[index].beyond = [found[0][place], found[1][place]];
    }
    weighed
}

fn of(measured: &Measured) -> Of {
    match measured.step == START {
        true => Of::Start,
        false if measured.judged.is_headline() => Of::Headline,
        false => Of::Step,
    }
}

impl Weighed {
    fn new(measured: Measured) -> Self {
        let difference = measured.difference();
        let tails = match &difference {
            Some(difference) => {
                let loss = measured.judged.worse(difference.rise);
                [difference.tail(loss), difference.tail(-loss)]
            }
            None => [1.0; 2],
        };
        Weighed { measured, difference, tails, share: 1.0, beyond: [false; 2] }
    }
}

/// The word for a loss: beyond what is tolerated, and beyond what noise does.
fn word(loss: f64, floor: f64, beyond: [bool; 2]) -> VerdictKind {
    match beyond {
        [true, _] if loss > floor => VerdictKind::Regressed,
        _ if loss > floor => VerdictKind::Inconclusive,
        [_, true] if -loss > floor => VerdictKind::Improved,
        _ => VerdictKind::Ok,
    }
}
