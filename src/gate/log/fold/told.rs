//! What is known of a start-up.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{LAUNCH, Memory, Phase, SERVING, Startup, seconds};
use crate::clock::Nanos;
use crate::gate::log::Failure;
use crate::gate::log::progress::Progress;
use crate::gate::log::telling::Telling;

impl Startup {
    /// The phase it is in: the one that began last, or, between two, the one that ended last.
    pub fn phase(&self) -> &str {
        let last = self.phases.last().map_or(LAUNCH, |phase| phase.name.as_str());
        self.open.last().map_or(last, |open| open.name.as_str())
    }

    /// The phase that the log has reached, as a failure proves it where nothing else does.
    pub fn reached(&self) -> &str {
        match (self.causes.root(), &self.before) {
            (Some(root), _) if root.proves => &root.phase,
            (None, Some((_, phase))) if !self.is_serving() => phase,
            _ => self.phase(),
        }
    }

    /// Whether the engine has said that it serves.
    pub fn is_serving(&self) -> bool {
        self.open.iter().any(|open| open.name == SERVING)
    }

    /// The phases that are over, in the order of their ends.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// What the log has told.
    pub fn facts(&self) -> &BTreeMap<String, Value> {
        self.telling.facts()
    }

    /// What the log tells of how it serves.
    pub fn telling(&self) -> &Telling {
        &self.telling
    }

    /// The engine's version, if its log says.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// What is counted now, if anything is.
    pub fn progress(&self) -> Option<&Progress> {
        self.bars.newest().filter(|_| !self.is_serving())
    }

    /// Free memory of the GPUs, phase by phase and rank by rank, in the order in which it was told.
    pub fn memory(&self) -> &[Memory] {
        &self.memory
    }

    /// The ranks that have said something.
    pub fn ranks(&self) -> &BTreeSet<u32> {
        &self.ranks
    }

    /// The ranks that have begun or ended a phase.
    pub fn ranks_in(&self, phase: &str) -> Option<&BTreeSet<u32>> {
        self.in_phase.get(phase)
    }

    /// The line that looks like the cause: the first failure that is no consequence.
    pub fn root(&self) -> Option<&Failure> {
        let before = self.before.as_ref().filter(|_| !self.is_serving()).map(|(failure, _)| failure);
        match (self.causes.root(), before) {
            // A loop of starts fails in the same way each time: the first line counts.
            (Some(root), Some(before)) if root.kind == before.kind => Some(before),
            (root, before) => root.or(before),
        }
    }

    /// All lines that look like failures and were not survived, in their order.
    pub fn failures(&self) -> &[Failure] {
        self.causes.all()
    }

    /// The last lines that hold something, oldest first; of a progress bar only its last state.
    pub fn last_words(&self) -> Vec<String> {
        self.last_words.all()
    }

    /// When the log last grew by more than a heartbeat.
    pub fn last_at(&self) -> Nanos {
        self.last_at
    }

    /// Whether every line must be read: a traceback goes on.
    pub(in crate::gate::log) fn is_in_traceback(&self) -> bool {
        !self.traces.is_empty()
    }

    /// Seconds since the start-up began.
    pub fn elapsed_s(&self, now: Nanos) -> f64 {
        seconds(now.saturating_sub(self.began))
    }

    /// Whether a phase has ended and does not go on again.
    pub(super) fn is_over(&self, phase: &str) -> bool {
        self.phases.iter().any(|over| over.name == phase) && !self.open.iter().any(|open| open.name == phase)
    }
}
