//! Phases that begin, go on and end.

use std::collections::BTreeSet;

use super::{At, Change, LAUNCH, Phase, SERVING, Startup, seconds};
use crate::clock::Nanos;
use crate::gate::log::causes::{Causes, Nature};
use crate::gate::log::progress::Bars;
use crate::gate::log::{Again, LogGrammar};

/// Between two reports of one bar.
const BAR_PAUSE: Nanos = 500_000_000;

/// A phase that is going on.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) name: String,
    began: Nanos,
    ended_by: BTreeSet<u32>,
    reported: Option<(Nanos, f64)>,
}

impl Open {
    pub(super) fn new(name: &str, began: Nanos) -> Self {
        Open { name: name.to_owned(), began, ended_by: BTreeSet::new(), reported: None }
    }
}

impl Startup {
    /// What a phase is for a rank that has been through it.
    pub(super) fn again<'g>(&self, grammar: &'g LogGrammar, phase: &str, rank: Option<u32>) -> Option<&'g Again> {
        let again = grammar.again(phase)?;
        self.done.contains(&(phase.to_owned(), rank)).then_some(again)
    }

    pub(super) fn end_all(&mut self, ends: &mut Vec<(String, Option<u32>)>, now: Nanos, changes: &mut Vec<Change>) {
        for (phase, rank) in ends.drain(..) {
            self.bars.ended(&phase);
            self.end(&phase, rank, now, changes);
            self.done.insert((phase, rank));
        }
    }

    /// The start-up is over: what is still open has ended.
    pub fn finish(&mut self, now: Nanos) -> Vec<Change> {
        let mut changes = Vec::new();
        while !self.open.is_empty() {
            self.close(0, now, &mut changes);
        }
        changes
    }

    /// Somebody has started the engine anew: what ended the attempt before explains this one if it says nothing.
    pub(super) fn restarts(&mut self, at: &At<'_>, phase: &str, changes: &mut Vec<Change>) {
        // The children of a router name themselves by a number in front.
        if phase != LAUNCH || at.message.text.starts_with('[') {
            return;
        }
        let root = self.causes.root().filter(|root| matches!(root.nature, Nature::Cause | Nature::Unknown)).cloned();
        if root.is_none() && !self.is_serving() {
            return;
        }
        if let Some(root) = root {
            let phase = root.phase.clone();
            self.before.get_or_insert((root, phase));
        }
        changes.extend(self.finish(self.last_at));
        self.causes = Causes::default();
        self.bars = Bars::default();
        self.furthest = None;
        self.done.clear();
        self.in_phase.clear();
        self.phases.clear();
    }

    pub(super) fn begin(
        &mut self,
        grammar: &LogGrammar,
        phase: &str,
        rank: Option<u32>,
        now: Nanos,
        changes: &mut Vec<Change>,
    ) {
        let place = grammar.phase_place(phase);
        // Who serves has started: what comes in the words of a phase is something else, such as an answer to a probe.
        if self.is_serving() && phase != SERVING {
            return;
        }
        self.in_phase.entry(phase.to_owned()).or_default().extend(rank);
        if let Some(number) = self.open.iter().position(|open| open.name == phase) {
            // What went on inside it is over.
            while self.open.len() > number + 1 && self.open.last().is_some_and(|last| grammar.is_nested(&last.name)) {
                self.close(self.open.len() - 1, now, changes);
            }
            return;
        }
        // Some words of an early phase also come later.
        if place.is_some() && place < self.furthest && !grammar.is_nested(phase) {
            return;
        }
        self.causes.goes_on(rank);
        if phase == SERVING {
            self.causes.survived();
        }
        self.furthest = self.furthest.max(place);
        self.bars.begins(phase);
        // A later phase has begun, so the earlier ones are over, whether or not every rank has said so.
        while let Some(earlier) = self.open.iter().position(|open| grammar.phase_place(&open.name) < place) {
            self.close(earlier, now, changes);
        }
        self.open.push(Open::new(phase, now));
        changes.push(Change::Began { phase: phase.to_owned() });
    }

    /// Sees to it that a phase whose end is told is open, unless it is over: of some only the end is told.
    pub(super) fn open_late(
        &mut self,
        grammar: &LogGrammar,
        phase: &str,
        rank: Option<u32>,
        now: Nanos,
        changes: &mut Vec<Change>,
    ) {
        let is_open = self.open.iter().any(|open| open.name == phase);
        // Another end of a phase that is over begins nothing.
        if is_open || self.is_over(phase) {
            return;
        }
        let began = self.boundary;
        self.begin(grammar, phase, rank, now, changes);
        if let Some(open) = self.open.last_mut().filter(|open| open.name == phase) {
            open.began = began;
        }
    }

    fn end(&mut self, phase: &str, rank: Option<u32>, now: Nanos, changes: &mut Vec<Change>) {
        self.in_phase.entry(phase.to_owned()).or_default().extend(rank);
        let Some(number) = self.open.iter().position(|open| open.name == phase) else { return };
        let open = &mut self.open[number];
        open.ended_by.extend(rank);
        let all = rank.is_none() || self.ranks.iter().all(|rank| open.ended_by.contains(rank));
        if all {
            self.close(number, now, changes);
        }
    }

    fn close(&mut self, number: usize, now: Nanos, changes: &mut Vec<Change>) {
        let open = self.open.remove(number);
        let s = seconds(now.saturating_sub(open.began));
        self.boundary = now;
        self.phases.push(Phase { name: open.name.clone(), s });
        changes.push(Change::Ended { phase: open.name, s });
    }

    pub(super) fn bar(
        &mut self,
        grammar: &LogGrammar,
        phase: &str,
        rank: Option<u32>,
        (done, total, unit, within): (f64, Option<f64>, String, bool),
        now: Nanos,
        changes: &mut Vec<Change>,
    ) {
        let second = grammar.again(phase).map(|again| again.phase.as_str());
        let second = second.filter(|second| self.open.iter().any(|open| open.name == *second));
        let phase = second.unwrap_or(phase);
        if within && !self.open.iter().any(|open| open.name == phase) {
            return;
        }
        // The last state of a bar often comes after the line that ends its phase.
        if self.is_over(phase) && !grammar.is_nested(phase) {
            return;
        }
        self.begin(grammar, phase, rank, now, changes);
        let Some(open) = self.open.iter_mut().find(|open| open.name == phase) else { return };
        let slowest = self.bars.moved(phase, done, total, unit.clone());
        let full = total == Some(slowest);
        let due = match open.reported {
            None => true,
            Some((_, before)) if before == slowest => false,
            Some((at, _)) => full || now.saturating_sub(at) >= BAR_PAUSE,
        };
        if due {
            open.reported = Some((now, slowest));
            changes.push(Change::Progress { phase: phase.to_owned(), done: slowest, total, unit });
        }
    }
}
