//! Records that look like failures, and those that turn out to be causes.

use super::{At, Change, SERVING, Startup};
use crate::gate::log::causes::{Failure, Nature};
use crate::gate::log::prefix::Level;
use crate::gate::log::{FailureRule, Observation, fill};

/// How many harmless records are kept that a later failure may name.
const MOST_SUSPECTS: usize = 200;
/// After so many records of its work a server has survived what failed before them.
const SURVIVED_AFTER: u32 = 3;

impl Startup {
    /// The rule that a record which begins a traceback fits.
    pub(super) fn opener(&self, at: &At<'_>, what: &Observation) -> Option<usize> {
        let Observation::Failure { rules } = what else { return None };
        rules.iter().copied().find(|rule| at.grammar.failure(*rule).is_some_and(|rule| rule.kind != "unknown"))
    }

    /// A record of its work: what failed a while ago it has survived.
    pub(super) fn worked(&mut self) {
        self.works = self.works.saturating_add(1);
        if self.works >= SURVIVED_AFTER && !self.causes.all().is_empty() {
            self.causes.survived();
        }
    }

    /// What looked like a failure until now was survived; hands it out. The next one is looked for anew.
    pub fn survived(&mut self) -> Vec<Failure> {
        self.before = None;
        self.causes.survived()
    }

    /// The rule that holds among those that fit: the first that fits the phase and the traceback.
    pub(super) fn rule<'g>(&self, at: &At<'g>, rules: &[usize]) -> Option<&'g FailureRule> {
        let phase = self.phase();
        // A record that says of itself that it goes on reports no cause.
        let quiet = at.message.level == Some(Level::Quiet);
        let known = rules.iter().filter(|rule| at.grammar.frames_fit(**rule, at.frames));
        let (is_over, serves) = (self.open.is_empty(), self.is_serving());
        known.filter_map(|rule| at.grammar.failure(*rule)).find(|rule| {
            rule.phase
                .as_ref()
                .is_none_or(|only| *only == phase && (rule.over == is_over || !rule.over && phase == SERVING))
                && (!quiet || rule.yields || rule.wraps || rule.degrades)
                && !(rule.starts && serves)
        })
    }

    pub(super) fn fail(&mut self, at: &At<'_>, rules: &[usize], rank: Option<u32>, changes: &mut Vec<Change>) {
        let Some(rule) = self.rule(at, rules) else { return };
        let nature = match rule {
            FailureRule { wraps: true, yields: true, .. } => Nature::Result,
            FailureRule { wraps: true, .. } => Nature::Wraps,
            FailureRule { degrades: true, .. } => Nature::Degrades,
            FailureRule { yields: true, .. } => Nature::Yields,
            rule if rule.kind == "unknown" => Nature::Unknown,
            _ => Nature::Cause,
        };
        let failure = self.failure(at, rule, nature, rank);
        if rule.names
            && let Some(named) = self.causes.name(&failure)
        {
            // Who heard of it under another kind hears of it again.
            changes.extend(named.is_new.then(|| Change::Failure(named.failure)));
            return;
        }
        let failure = self.accused(at, failure);
        self.add(failure, changes);
    }

    fn failure(&self, at: &At<'_>, rule: &FailureRule, nature: Nature, rank: Option<u32>) -> Failure {
        let fill = |remedy: &String| fill::fill(remedy, self.facts(), at.grammar.settings());
        Failure {
            kind: rule.kind.clone(),
            nature,
            line: at.piece.text.clone(),
            line_no: at.piece.line_no,
            rank,
            phase: rule.at.clone().unwrap_or_else(|| self.phase().to_owned()),
            proves: rule.at.is_some(),
            remedy: rule.remedy.as_ref().map(fill),
            retry: rule.retry.clone(),
        }
    }

    /// What went wrong and no rule knows. A traceback that a known record began is of that record's kind.
    pub(super) fn fail_unknown(
        &mut self,
        at: &At<'_>,
        opener: Option<&FailureRule>,
        rank: Option<u32>,
        changes: &mut Vec<Change>,
    ) {
        if opener.is_none() && at.message.level == Some(Level::Quiet) {
            return;
        }
        let unknown = FailureRule { kind: "unknown".to_owned(), ..FailureRule::default() };
        let nature = if opener.is_some() { Nature::Cause } else { Nature::Unknown };
        let failure = self.failure(at, opener.unwrap_or(&unknown), nature, rank);
        self.add(failure, changes);
    }

    fn add(&mut self, failure: Failure, changes: &mut Vec<Change>) {
        self.works = 0;
        if self.causes.add(failure.clone()) {
            changes.push(Change::Failure(failure));
        }
    }

    pub(super) fn suspect(&mut self, at: &At<'_>, number: usize, name: String, rank: Option<u32>) {
        let Some(rule) = at.grammar.suspect(number) else { return };
        if self.suspects.len() >= MOST_SUSPECTS
            || self.suspects.iter().any(|(known, about, _)| *known == number && *about == name)
        {
            return;
        }
        let as_failure = FailureRule { kind: rule.kind.clone(), remedy: rule.remedy.clone(), ..FailureRule::default() };
        let failure = self.failure(at, &as_failure, Nature::Cause, rank);
        self.suspects.push((number, name, failure));
    }

    /// The harmless record that turns out to be the cause of a failure, else that failure.
    fn accused(&self, at: &At<'_>, failure: Failure) -> Failure {
        for (rule, named) in at.grammar.accuses(&failure.line) {
            let suspects = self.suspects.iter().filter(|(number, _, _)| *number == rule);
            let about = suspects.filter(|(_, about, _)| fill::is_about(about, named));
            if let Some((_, _, cause)) =
                about.max_by_key(|(_, about, cause)| (about.len(), std::cmp::Reverse(cause.line_no)))
            {
                return Failure { phase: failure.phase, ..cause.clone() };
            }
        }
        failure
    }
}
