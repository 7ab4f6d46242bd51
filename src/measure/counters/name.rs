//! The neutral names of what engines count.

use serde::{Deserialize, Serialize};

/// Something that an engine counts or shows, under one name for all engines.
///
/// What counts up is used as a difference between two readings; what is shown as it stands ([`Counter::is_gauge`]) is
/// sampled while the load is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counter {
    /// Prompt tokens of requests, cached ones included.
    PromptTokens,
    /// Those of them that came from the prefix cache.
    CachedPromptTokens,
    /// Tokens generated.
    OutputTokens,
    /// Requests that ended.
    Requests,
    /// Steps of the model: forward passes, of prompts too.
    Steps,
    /// Request-steps: for each step, the requests that it gave a token to.
    RequestSteps,
    /// Verify steps of speculation, counted for each request: a step that verifies drafts of three requests is three.
    VerifySteps,
    /// Tokens drafted.
    DraftTokens,
    /// Drafted tokens accepted.
    AcceptedTokens,
    /// Drafted tokens accepted, by their place in the draft.
    AcceptedByPosition,
    /// Decode steps that ran as a captured graph.
    GraphSteps,
    /// Decode steps that did not.
    EagerSteps,
    /// Requests that lost their place in the cache and were computed again (preemptions, retractions).
    Preemptions,
    /// Seconds that requests waited in the engine's queue.
    QueueSeconds,
    /// Requests that those seconds are of.
    QueuedRequests,
    /// Gauge: requests running.
    RunningRequests,
    /// Gauge: requests waiting.
    WaitingRequests,
    /// Gauge: share of the KV cache in use, 0 to 1.
    KvUsageRatio,
    /// Gauge: acceptance length over the engine's last interval. 0 means that there is none.
    IntervalAcceptanceLength,
    /// Gauge: acceptance length since the server started. 0 means that there is none.
    AverageAcceptanceLength,
    /// Gauge: when the server's process started, in seconds since 1970. Another value means another server.
    StartedAt,
}

impl Counter {
    /// Its name in files.
    pub fn word(self) -> &'static str {
        match self {
            Counter::PromptTokens => "prompt_tokens",
            Counter::CachedPromptTokens => "cached_prompt_tokens",
            Counter::OutputTokens => "output_tokens",
            Counter::Requests => "requests",
            Counter::Steps => "steps",
            Counter::RequestSteps => "request_steps",
            Counter::VerifySteps => "verify_steps",
            Counter::DraftTokens => "draft_tokens",
            Counter::AcceptedTokens => "accepted_tokens",
            Counter::AcceptedByPosition => "accepted_by_position",
            Counter::GraphSteps => "graph_steps",
            Counter::EagerSteps => "eager_steps",
            Counter::Preemptions => "preemptions",
            Counter::QueueSeconds => "queue_seconds",
            Counter::QueuedRequests => "queued_requests",
            Counter::RunningRequests => "running_requests",
            Counter::WaitingRequests => "waiting_requests",
            Counter::KvUsageRatio => "kv_usage_ratio",
            Counter::IntervalAcceptanceLength => "interval_acceptance_length",
            Counter::AverageAcceptanceLength => "average_acceptance_length",
            Counter::StartedAt => "started_at",
        }
    }

    /// Whether it is shown as it stands instead of counting up.
    pub fn is_gauge(self) -> bool {
        matches!(
            self,
            Counter::RunningRequests
                | Counter::WaitingRequests
                | Counter::KvUsageRatio
                | Counter::IntervalAcceptanceLength
                | Counter::AverageAcceptanceLength
                | Counter::StartedAt
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_in_files_and_in_the_program() {
        for counter in [Counter::PromptTokens, Counter::AcceptedByPosition, Counter::IntervalAcceptanceLength] {
            assert_eq!(serde_json::to_value(counter).unwrap(), counter.word());
        }
    }
}
