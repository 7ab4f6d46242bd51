//! What the engine counts of itself, in its own terms; `metrics` says it in each engine's words.

use crate::clock::Nanos;

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// Tokens of prompts of requests that began to run, cached ones included.
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: u64,
    /// Generating requests that arrived.
    pub(super) requests: u64,
    /// Those that ended where the model stopped, at their limit, by an error, and because their client went.
    pub(super) stopped: u64,
    pub(super) limited: u64,
    pub(super) failed: u64,
    pub(super) aborted: u64,
    /// Steps of requests after their first, one request each.
    pub(super) request_steps: u64,
    /// Steps of the engine. Requests here keep time each for itself, so that a step of one of `r` running requests
    /// counts as the `r`-th part of one.
    pub(super) engine_steps: f64,
    /// The same, for steps within the captured graphs.
    pub(super) graph_steps: f64,
    /// Prompts that were read.
    pub(super) prefills: u64,
    /// Verify steps, one request each.
    pub(super) drafts: u64,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
    /// Drafts whose token at this position was accepted.
    pub(super) accepted_at: Vec<u64>,
    /// Requests that were retracted for want of room.
    pub(super) retracted: u64,
    /// Most tokens of one request.
    pub(super) longest: u64,
    /// Time from running to the first token, and from there to the last, in seconds.
    pub(super) prompt_seconds: f64,
    pub(super) output_seconds: f64,
    pub(super) ttft: Histogram,
    pub(super) itl: Histogram,
    pub(super) tpot: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queued: Histogram,
    pub(super) prompt_lengths: Histogram,
    pub(super) output_lengths: Histogram,
    pub(super) rate: Rate,
    /// Whether the last step was within the captured graphs; `None` before any.
    pub(super) last_in_graph: Option<bool>,
}

/// Values in buckets.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    values: Vec<u64>,
    pub(super) sum: f64,
    pub(super) count: u64,
}

/// Upper bounds of buckets for seconds.
const SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Upper bounds of buckets for tokens.
const TOKENS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];

impl Histogram {
    /// Adds a span, `times` times.
    pub(super) fn seconds(&mut self, span: Nanos, times: u64) {
        self.add(SECONDS, span as f64 / 1e9, times);
    }

    /// Adds a number of tokens.
    pub(super) fn tokens(&mut self, tokens: u64) {
        self.add(TOKENS, tokens as f64, 1);
    }

    fn add(&mut self, bounds: &[f64], value: f64, times: u64) {
        self.values.resize(bounds.len(), 0);
        if let Some(bucket) = bounds.iter().position(|bound| value <= *bound) {
            self.values[bucket] += times;
        }
        self.sum += value * times as f64;
        self.count += times;
    }

    /// Bounds and how many values are at most so much; the last bound is missing, it is infinity.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = if self.values.len() == TOKENS.len() { TOKENS } else { SECONDS };
        let mut below = 0;
        bounds.iter().enumerate().map(move |(index, bound)| {
            below += self.values.get(index).copied().unwrap_or(0);
            (*bound, below)
        })
    }
}

/// Tokens per second over the last full second, as an engine's log and gauge say it: it stays when nothing comes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    since: Nanos,
    tokens: u64,
    pub(super) last: f64,
}

impl Rate {
    fn add(&mut self, tokens: u64, now: Nanos) {
        const SECOND: Nanos = 1_000_000_000;
        if self.since == 0 {
            self.since = now;
        }
        self.tokens += tokens;
        let span = now.saturating_sub(self.since);
        if span >= SECOND {
            self.last = self.tokens as f64 * 1e9 / span as f64;
            (self.since, self.tokens) = (now, 0);
        }
    }
}

impl Counters {
    /// A request gave tokens, while `running` requests ran.
    pub(super) fn step(&mut self, step: super::draw::Step, drafted: u32, running: u64, in_graph: bool, now: Nanos) {
        self.output_tokens += u64::from(step.tokens);
        self.rate.add(u64::from(step.tokens), now);
        if let Some(accepted) = step.accepted {
            self.drafts += 1;
            self.drafted += u64::from(drafted);
            self.accepted += u64::from(accepted);
            self.accepted_at.resize(self.accepted_at.len().max(drafted as usize), 0);
            self.accepted_at.iter_mut().take(accepted as usize).for_each(|count| *count += 1);
        }
        self.request_steps += 1;
        let part = 1.0 / running.max(1) as f64;
        self.engine_steps += part;
        self.graph_steps += if in_graph { part } else { 0.0 };
        self.last_in_graph = Some(in_graph);
    }

    /// A request gave its first tokens.
    pub(super) fn first(&mut self, step: super::draw::Step, now: Nanos) {
        self.output_tokens += u64::from(step.tokens);
        self.rate.add(u64::from(step.tokens), now);
    }

    /// Tokens of a verify step on average, 1 without an accepted draft; `None` without a verify step.
    pub(super) fn acceptance_length(&self) -> Option<f64> {
        (self.drafts > 0).then(|| 1.0 + self.accepted as f64 / self.drafts as f64)
    }

    /// Requests of an engine step on average, those for prompts among them.
    pub(super) fn requests_per_step(&self) -> f64 {
        let (steps, prefills) = (self.engine_steps, self.prefills as f64);
        if steps + prefills > 0.0 { (self.request_steps as f64 + prefills) / (steps + prefills) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::Step;
    use super::*;

    #[test]
    fn verify_steps_add_up() {
        let mut counters = Counters::default();
        for accepted in [3, 0, 2] {
            counters.step(Step { tokens: accepted + 1, accepted: Some(accepted) }, 3, 2, true, 0);
        }
        assert_eq!((counters.drafts, counters.drafted, counters.accepted), (3, 9, 5));
        assert_eq!((counters.accepted_at.clone(), counters.output_tokens), (vec![2, 2, 1], 8));
        assert_eq!(counters.acceptance_length(), Some(1.0 + 5.0 / 3.0));
        assert!((counters.engine_steps - 1.5).abs() < 1e-9 && (counters.requests_per_step() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn buckets_count_all_below() {
        let mut histogram = Histogram::default();
        histogram.seconds(3_000_000, 2);
        histogram.seconds(9_000_000_000_000, 1);
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(
            (buckets[0], buckets[1], buckets.last().unwrap().1, histogram.count),
            ((0.001, 0), (0.005, 2), 2, 3)
        );
    }
}
