//! The start-up: phases with their times, facts, and the trail of free memory.

use serde_json::Value;

use super::{Progress, RunState, Stage};
use crate::event::{Event, Scope};
use crate::record::model::{MemoryPoint, PhaseTime};

/// The fact that says how much device memory is left, in the log vocabulary.
const FREE_MEMORY: &str = "avail_mem_gb";
/// What is counted while graphs are captured.
const GRAPHS: &str = "graphs";

impl RunState {
    /// Takes in what the start-up says of itself. Everything here is about the latest start; an attached server has no
    /// start of ours.
    pub(super) fn starting(&mut self, scope: &Scope, event: &Event) {
        match event {
            Event::PhaseBegan { phase } => {
                self.phase = Some(phase.clone());
                self.progress = None;
            }
            Event::PhaseProgress { phase, done, total, unit } => {
                let (phase, unit) = (phase.clone(), unit.clone());
                self.progress = Some(Progress { phase, done: *done, total: *total, unit });
            }
            Event::PhaseEnded { phase, s } => self.phase_ended(phase, *s),
            Event::Fact { key, value } => self.fact(scope, key, value),
            Event::Ready { ready_s, model, base_url, .. } => {
                // A server that was up before has no start of ours.
                if ready_s.is_some() {
                    self.record.startup.get_or_insert_default().ready_s = *ready_s;
                }
                let server = self.server.get_or_insert_default();
                server.base_url = Some(base_url.clone());
                server.model = Some(model.clone());
                self.phase = None;
                self.progress = None;
                self.stage = Stage::Load;
            }
            _ => {}
        }
    }

    /// Ranks go through a phase side by side: it lasts as long as the slowest takes.
    fn phase_ended(&mut self, phase: &str, s: f64) {
        let phases = &mut self.record.startup.get_or_insert_default().phases;
        match phases.iter_mut().find(|known| known.name == phase) {
            Some(known) => known.s = known.s.max(s),
            None => phases.push(PhaseTime { name: phase.to_owned(), s }),
        }
        if self.phase.as_deref() == Some(phase) {
            self.phase = None;
            self.progress = None;
        }
    }

    /// Where ranks differ, the lowest counts; of one rank, the last value. The trail of memory keeps them all.
    fn fact(&mut self, scope: &Scope, key: &str, value: &Value) {
        let rank = super::rank(scope);
        let phase = self.phase.clone();
        // The gate tells where the bar is before the memory that it shows: what stands last at a place is what is left there.
        let graphs = self.progress.as_ref().filter(|progress| progress.unit == GRAPHS);
        let graphs =
            graphs.filter(|progress| Some(&progress.phase) == phase.as_ref()).map(|progress| progress.done as u64);
        let startup = self.record.startup.get_or_insert_default();
        if let (FREE_MEMORY, Some(free_gb), Some(phase)) = (key, value.as_f64(), phase) {
            let of = |graphs| MemoryPoint { phase: phase.clone(), rank, free_gb, graphs };
            for point in [of(None)].into_iter().chain(graphs.map(|done| of(Some(done)))) {
                let same = |known: &&mut MemoryPoint| {
                    known.phase == point.phase && known.rank == rank && known.graphs == point.graphs
                };
                match startup.memory.iter_mut().find(same) {
                    Some(known) => known.free_gb = free_gb,
                    None => startup.memory.push(point),
                }
            }
        }
        match (key, value.as_str()) {
            ("weights_cache", Some(word)) => startup.weights_cache = Some(word.to_owned()),
            ("jit_cache", Some(word)) => startup.jit_cache = Some(word.to_owned()),
            _ if rank <= *self.fact_ranks.get(key).unwrap_or(&u32::MAX) => {
                self.fact_ranks.insert(key.to_owned(), rank);
                startup.facts.insert(key.to_owned(), value.clone());
            }
            _ => {}
        }
    }
}
