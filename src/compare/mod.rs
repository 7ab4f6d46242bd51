//! Verdicts. Pure over records, so that replayed history and planted losses go through the code that judges tonight.
//!
//! The rule, with its numbers and what it assumes, is in `docs/verdicts.md`. In short: a metric has *regressed* when its
//! loss is larger than what is tolerated and larger than what noise alone would do once in a hundred runs. What starts
//! vary by is measured on the starts of both sides, else on earlier ones, else stated.

mod alike;
mod cause;
mod differences;
mod expect;
mod family;
mod measured;
mod metric;
mod modes;
mod nested;
mod noise;
mod rule;
mod words;

use indexmap::IndexMap;

pub use differences::{Difference, differences, differences_of_settings};
pub use expect::{holds, unmet};
pub use metric::{higher_is_better, stated_sd, value};

use crate::record::Baseline;
use crate::record::model::{Cause, Comparison, Failure, Reason, Record, Verdict, VerdictKind};
use crate::units::Tolerance;
use rule::Found;

/// The step that a comparison of the start-up stands under.
pub const START: &str = "start";

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
    judge_all(&[record], baseline, tolerance)
}

/// Judges several runs of the same settings as one: each start of a server is one value, the mean of its runs. Those that
/// did not come to their end do not count, unless none did.
pub fn judge_all(runs: &[&Record], baseline: Option<&Baseline>, tolerance: &IndexMap<String, Tolerance>) -> Judgement {
    let ended: Vec<&Record> = runs.iter().copied().filter(|run| run.complete && run.failure.is_none()).collect();
    let valid = |run: &&&Record| run.steps.iter().all(|step| step.valid || step.probe);
    let newest = |run: &&&Record| run.started_at;
    let lead = ended.iter().filter(valid).max_by_key(newest).or_else(|| ended.iter().max_by_key(newest)).copied();
    let Some(lead) = lead else {
        let verdict = runs.last().map_or_else(nothing, |run| failed(run));
        return Judgement { verdict, comparisons: Vec::new(), differences: Vec::new() };
    };
    let mut found = Found::default();
    found.validity(lead);
    for run in ended.iter().filter(|run| run.id != lead.id) {
        found.beside(run);
    }
    match baseline {
        Some(baseline) => found.compare(lead, &ended, baseline, tolerance),
        None => found.no_baseline(format!("no baseline is set for the series `{}`", lead.series)),
    }
    found.judgement()
}

/// No run at all.
fn nothing() -> Verdict {
    let reason = Reason::new("no_run", "there is no run to judge");
    Verdict { kind: VerdictKind::Failed, reasons: vec![reason], cause: None }
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
    Verdict { kind: VerdictKind::Failed, reasons, cause: record.failure.as_ref().map(cause_of) }
}

/// What a failure says of its cause: the line that shows it, else the last words of the server's log.
fn cause_of(failure: &Failure) -> Cause {
    let line = failure.line.as_ref().map(|line| match failure.line_no {
        Some(number) => format!("server.log:{number}  {line}"),
        None => line.clone(),
    });
    let evidence = line.map_or_else(|| failure.last_words.clone(), |line| vec![line]);
    Cause { kind: failure.kind.clone(), sentence: failure.text.clone(), evidence }
}

#[cfg(test)]
mod tests;
