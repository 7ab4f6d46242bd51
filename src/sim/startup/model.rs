//! What a start is made of: how long its phases take, how memory falls, and where it fails.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::engine::Version;
use crate::sim::Played;
use crate::sim::scenario::Scenario;

/// Shards of a checkpoint that nobody says more of.
const SHARDS: u32 = 4;
/// How long a phase takes that the scenario says nothing of.
const SHORT: Duration = Duration::from_millis(15);

/// A start in numbers. Memory is of one GPU, in the gigabytes of the engine's own lines.
#[derive(Clone, Debug)]
pub struct Model {
    /// The engine that is played.
    pub played: Played,
    /// The version that it says.
    pub version: Version,
    /// Workers.
    pub ranks: u32,
    /// Where it listens.
    pub port: u16,
    /// What it serves.
    pub name: String,
    /// Tokens drafted a verify; 0 without speculation.
    pub steps: u32,
    /// Requests at once.
    pub running: u32,
    /// Tokens of a request.
    pub context: u64,
    /// Tokens of the cache.
    pub kv_tokens: u64,
    /// Memory of a GPU.
    pub total_gb: f64,
    /// The fraction of it that weights and cache may take.
    pub fraction: f64,
    /// Batches whose graphs are captured, largest first.
    pub batches: Vec<u32>,
    /// Shards of its checkpoint.
    pub shards: u32,
    /// Where and how it fails.
    pub(super) fails: Option<Fails>,
    lengths: std::collections::BTreeMap<String, Duration>,
    lags: Vec<Duration>,
}

/// A failure that will come.
#[derive(Clone, Debug)]
pub(super) struct Fails {
    pub(super) kind: String,
    pub(super) at: String,
    /// After the phase began; `None` is in its middle.
    pub(super) after: Option<Duration>,
    pub(super) rank: u32,
}

impl Model {
    /// The start of a scenario.
    pub fn of(scenario: &Scenario, port: u16) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(scenario.seed.unwrap_or(0));
        let ranks = scenario.ranks.unwrap_or(1).max(1);
        let running = scenario.running_cap().unwrap_or(256);
        let total_gb = scenario.memory.total_gb;
        let fraction = scenario.memory.fraction.unwrap_or(0.88);
        let lags = (0..ranks).map(|_| Duration::from_micros(rng.random_range(0..9_000))).collect();
        let mut model = Model {
            played: scenario.played(),
            version: Version(scenario.said_version().to_owned()),
            ranks,
            port,
            name: scenario.served_name.clone().unwrap_or_else(|| "simulated".to_owned()),
            steps: scenario.draft_steps(),
            running,
            context: scenario.context(),
            kv_tokens: 0,
            total_gb,
            fraction,
            batches: batches(scenario.serve.graph_max_batch.unwrap_or(running)),
            shards: SHARDS,
            fails: None,
            lengths: scenario.startup.clone(),
            lags,
        };
        model.kv_tokens = scenario.kv_room();
        let rank = rng.random_range(0..ranks);
        model.fails = model.failure(scenario, rank);
        model
    }

    fn failure(&self, scenario: &Scenario, rank: u32) -> Option<Fails> {
        if let Some(fail) = &scenario.fail {
            let at = fail.at.clone().unwrap_or_else(|| super::failure::usual_phase(self.played, &fail.kind).to_owned());
            return Some(Fails { kind: fail.kind.clone(), at, after: fail.after, rank });
        }
        let beyond = scenario.memory.cliff.is_some_and(|cliff| self.fraction > cliff);
        beyond.then(|| Fails { kind: "oom_capture".to_owned(), at: "graph_capture".to_owned(), after: None, rank })
    }

    /// How long a phase takes.
    pub fn length(&self, phase: &str) -> Duration {
        self.lengths.get(phase).copied().unwrap_or(SHORT)
    }

    /// Whether the scenario speaks of a phase.
    pub fn has(&self, phase: &str) -> bool {
        self.lengths.contains_key(phase) || self.fails.as_ref().is_some_and(|fails| fails.at == phase)
    }

    /// How much later than the first a rank writes.
    pub fn lag(&self, rank: u32) -> Duration {
        self.lags.get(rank as usize).copied().unwrap_or_default()
    }

    /// Whether the version comes before another.
    pub fn before(&self, version: &str) -> bool {
        self.version.is_before(&version.into())
    }

    /// Free memory with nothing loaded.
    pub fn free_at_first(&self) -> f64 {
        self.total_gb * 0.985
    }

    /// What the weights take.
    pub fn weights_gb(&self) -> f64 {
        self.total_gb * 0.36
    }

    /// Free memory with the weights.
    pub fn free_with_weights(&self) -> f64 {
        self.free_at_first() - self.weights_gb()
    }

    /// What the cache takes: what the fraction leaves after the weights.
    pub fn pool_gb(&self) -> f64 {
        self.total_gb * self.fraction - self.weights_gb() - self.total_gb * 0.015
    }

    /// Free memory with the cache.
    pub fn free_with_pool(&self) -> f64 {
        (self.free_with_weights() - self.pool_gb().max(0.0)).max(0.05)
    }

    /// Free memory before the graph of a batch is captured: it falls from the largest to the smallest.
    pub fn free_at_graph(&self, number: usize) -> f64 {
        let share = number as f64 / self.batches.len().max(1) as f64;
        (self.free_with_pool() - self.graphs_gb() * share).max(0.02)
    }

    /// What the graphs take.
    pub fn graphs_gb(&self) -> f64 {
        self.total_gb * 0.014
    }

    /// Free memory with the graphs.
    pub fn free_with_graphs(&self) -> f64 {
        (self.free_with_pool() - self.graphs_gb()).max(0.02)
    }

    /// What the draft takes.
    pub fn draft_gb(&self) -> f64 {
        self.total_gb * 0.014
    }

    /// Free memory with the draft.
    pub fn free_with_draft(&self) -> f64 {
        (self.free_with_graphs() - self.draft_gb()).max(0.02)
    }

    /// Free memory when everything is there.
    pub fn free_at_last(&self) -> f64 {
        match self.steps {
            0 => self.free_with_graphs(),
            _ => (self.free_with_draft() - self.graphs_gb() * 0.3).max(0.01),
        }
    }
}

/// The batches up to the largest, largest first: 1, 2, 4, 8, then in steps that grow.
fn batches(largest: u32) -> Vec<u32> {
    let mut all: Vec<u32> = [1, 2, 4, 8, 12, 16].into_iter().collect();
    let mut next = 24;
    while next <= largest && next <= 512 {
        all.push(next);
        next += if next < 256 { 8 } else { 32 };
    }
    all.retain(|batch| *batch <= largest);
    if !all.contains(&largest) && largest <= 512 {
        all.push(largest);
    }
    all.reverse();
    all
}
