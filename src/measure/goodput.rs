//! Goodput: which requests were as fast as was asked for.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::Timeline;

/// Limits that a request must meet, in milliseconds by metric id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Goodput(pub IndexMap<String, f64>);

/// The metrics that may have a limit: latencies of one request.
pub const GOODPUT_METRICS: &[&str] =
    &["ttft_ms", "ttft_content_ms", "tpot_ms", "e2e_ms", "ttft_from_due_ms", "e2e_from_due_ms"];

impl Goodput {
    /// Whether a request counts: it ended `ok` and met every limit.
    ///
    /// An answer of one token has no time per output token and so cannot have missed a limit on it. One that has more,
    /// and of which no such time can be told, did not show that it met the limit.
    pub fn is_met_by(&self, timeline: &Timeline) -> bool {
        timeline.is_ok()
            && self.0.iter().all(|(id, limit)| match value(timeline, id) {
                Some(value) => value <= *limit,
                None => id == "tpot_ms" && timeline.output_tokens().0 <= 1,
            })
    }
}

fn value(timeline: &Timeline, id: &str) -> Option<f64> {
    let from_due = |after: Option<f64>| Some(after? + timeline.queued_ms()?);
    match id {
        "ttft_ms" => timeline.ttft_ms(),
        "ttft_content_ms" => timeline.ttft_content_ms(),
        "tpot_ms" => timeline.tpot_ms(),
        "e2e_ms" => timeline.e2e_ms(),
        "ttft_from_due_ms" => from_due(timeline.ttft_ms()),
        "e2e_from_due_ms" => from_due(timeline.e2e_ms()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::ok;
    use crate::measure::{Outcome, Usage};

    fn limits(limits: &[(&str, f64)]) -> Goodput {
        Goodput(limits.iter().map(|(id, limit)| ((*id).to_owned(), *limit)).collect())
    }

    /// TTFT 100 ms, TPOT 20 ms, E2E 200 ms.
    fn request() -> Timeline {
        ok(1000, 1100, 1200, 6)
    }

    #[test]
    fn every_limit_must_be_met_and_the_limit_itself_meets_it() {
        assert!(limits(&[("ttft_ms", 100.0), ("tpot_ms", 20.0), ("e2e_ms", 200.0)]).is_met_by(&request()));
        for missed in [("ttft_ms", 99.9), ("tpot_ms", 19.9), ("e2e_ms", 199.9), ("ttft_content_ms", 99.9)] {
            assert!(!limits(&[("ttft_ms", 500.0), missed]).is_met_by(&request()), "{missed:?}");
        }
        let failed = Timeline { outcome: Outcome::TimedOut, ..request() };
        assert!(!limits(&[("ttft_ms", 500.0)]).is_met_by(&failed), "a failure is no good request");
    }

    #[test]
    fn lateness_of_the_schedule_counts_where_it_is_asked_for() {
        let late = Timeline { due: 950_000_000, ..request() };
        assert!(limits(&[("ttft_ms", 100.0)]).is_met_by(&late));
        assert!(!limits(&[("ttft_from_due_ms", 149.0)]).is_met_by(&late));
        assert!(limits(&[("ttft_from_due_ms", 150.0), ("e2e_from_due_ms", 250.0)]).is_met_by(&late));
    }

    #[test]
    fn an_answer_of_one_token_cannot_miss_a_limit_on_the_time_per_token() {
        let mut one = request();
        one.chunks.truncate(1);
        one.usage = Some(Usage { completion_tokens: Some(1), ..Usage::default() });
        assert_eq!(one.tpot_ms(), None);
        assert!(limits(&[("tpot_ms", 1.0)]).is_met_by(&one));
        // Six tokens in one chunk: how fast they came cannot be told, so that they were fast enough is not shown.
        one.usage = Some(Usage { completion_tokens: Some(6), ..Usage::default() });
        assert_eq!(one.tpot_ms(), None);
        assert!(!limits(&[("tpot_ms", 1000.0)]).is_met_by(&one));
    }
}
