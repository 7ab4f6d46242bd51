//! What a run of this kind usually does.

use crate::record::history::{PastStart, PastStarts};
use crate::record::model::MemoryPoint;

/// What a run of this kind usually does, from the starts of the same profile on the same host whose caches were alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usual {
    past: PastStarts,
    weights_cache: Option<String>,
    jit_cache: Option<String>,
}

impl Usual {
    /// From starts of before, newest first. Until more is known, the caches are thought to be as they were the last time.
    pub fn of(past: PastStarts) -> Self {
        let newest = past.0.first();
        let weights_cache = newest.and_then(|start| start.weights_cache.clone());
        let jit_cache = newest.and_then(|start| start.jit_cache.clone());
        Usual { past, weights_cache, jit_cache }
    }

    /// Takes in what is known of the caches by now.
    pub(super) fn learn(&mut self, key: &str, value: &str) {
        match key {
            "weights_cache" => self.weights_cache = Some(value.to_owned()),
            "jit_cache" => self.jit_cache = Some(value.to_owned()),
            _ => {}
        }
    }

    fn state(&self) -> (Option<&str>, Option<&str>) {
        (self.weights_cache.as_deref(), self.jit_cache.as_deref())
    }

    /// The newest start that was alike.
    pub(super) fn newest(&self) -> Option<&PastStart> {
        let (weights, jit) = self.state();
        self.past.alike(weights, jit).into_iter().next()
    }

    pub(super) fn phase_s(&self, phase: &str) -> Option<f64> {
        let (weights, jit) = self.state();
        self.past.phase_s(phase, weights, jit)
    }

    pub(super) fn ready_s(&self) -> Option<f64> {
        let (weights, jit) = self.state();
        self.past.ready_s(weights, jit)
    }

    /// What the graphs after so many of them took the last time, in gigabytes on the rank whose bar is drawn.
    pub(super) fn rest_of_graphs_gb(&self, phase: &str, done: u64) -> Option<f64> {
        let memory = &self.newest()?.memory;
        let of_phase = || memory.iter().filter(|point| point.phase == phase);
        // Memory that did not change is not told again.
        let before = |point: &&MemoryPoint| point.graphs.is_some_and(|graphs| graphs <= done);
        let then = of_phase().filter(before).max_by_key(|point| point.graphs)?;
        let last = of_phase().find(|point| point.rank == then.rank && point.graphs.is_none())?;
        Some((then.free_gb - last.free_gb).max(0.0))
    }
}
