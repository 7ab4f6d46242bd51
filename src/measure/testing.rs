//! Timelines and steps for tests.

use super::{Chunk, ChunkKind, Outcome, Timeline, Usage};
use crate::render::{Api, Arrival, Load, Step, Stop, Workload};

const MS: u64 = 1_000_000;

/// An ok request: sent, first and last chunk in ms, tokens (the first and the last chunk hold one each, the rest, if
/// any, is spread between them as one chunk each). Its prompt had 7 tokens.
pub(crate) fn ok(sent: u64, first: u64, last: u64, tokens: u64) -> Timeline {
    let step = (last - first) as f64 / (tokens - 1) as f64;
    let chunks = (0..tokens).map(|n| {
        let at = first * MS + (step * n as f64 * MS as f64).round() as u64;
        Chunk { at, tokens: Some(1), kind: ChunkKind::Content }
    });
    Timeline {
        due: sent * MS,
        sent: Some(sent * MS),
        chunks: chunks.collect(),
        done: Some(last * MS),
        outcome: Outcome::Ok,
        http_status: Some(200),
        attempts: 1,
        usage: Some(Usage { completion_tokens: Some(tokens), prompt_tokens: Some(7), ..Usage::default() }),
        ..Timeline::default()
    }
}

pub(crate) fn closed(concurrency: u32) -> Arrival {
    Arrival::Closed { concurrency }
}

pub(crate) fn step(arrival: Arrival) -> Step {
    Step {
        name: "single".to_owned(),
        workload: Workload {
            name: "inline".to_owned(),
            hash: String::new(),
            api: Api::Chat,
            prompts: Vec::new(),
            stop: Stop::Natural { max_tokens: 8 },
            body: serde_json::Map::new(),
            cold_prefix: false,
            seed: 0,
            lengths: Default::default(),
            special: Default::default(),
        },
        load: Load { arrival, requests: None, duration_s: None, warmup: None },
        goodput: None,
    }
}
