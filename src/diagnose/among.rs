//! Several logs of one server, as of the nodes that it is spread over: in which of them the cause stands.

use serde::Serialize;

use super::{Diagnosis, State};
use crate::gate::log::Nature;

/// A day, in seconds.
const DAY_S: u64 = 24 * 3600;

/// One of the logs.
#[derive(Clone, Debug)]
pub struct Part {
    /// What it is called.
    pub name: String,
    /// What it means alone.
    pub diagnosis: Diagnosis,
    /// What part its root line plays, if it has one.
    pub nature: Option<Nature>,
    /// When that line was written, in seconds of a day, where a clock tells.
    pub clock_s: Option<u64>,
}

/// Several logs together.
#[derive(Debug, Serialize)]
pub struct Together {
    /// The one in which the cause stands; else the first.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// What that log is called.
    pub log: String,
    /// The others, in the order in which they were given.
    pub others: Vec<Other>,
}

/// Another log than the one with the cause.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Other {
    /// What it is called.
    pub log: String,
    /// What it means alone.
    pub state: State,
    /// The last phase that was reached there; `null` where nothing was ever said.
    pub phase: Option<String>,
    /// The kind of failure that it tells of,
    pub failure_kind: Option<String>,
    /// and the number of the line.
    pub root_cause_line_no: Option<u64>,
}

/// Says which log has the cause. A line that says what went wrong comes before one that is often a consequence, and among
/// such lines the one that was written first counts; without clocks, the one in the log that was given first. `None`
/// without a log.
pub fn together(parts: Vec<Part>) -> Option<Together> {
    let mut chosen = 0;
    for number in 1..parts.len() {
        let (best, other) = (&parts[chosen], &parts[number]);
        let is_earlier = || earlier(other.clock_s, best.clock_s);
        if weight(other) < weight(best) || (weight(other) == weight(best) && is_earlier()) {
            chosen = number;
        }
    }
    let mut rest = parts;
    if rest.is_empty() {
        return None;
    }
    let Part { name, diagnosis, .. } = rest.remove(chosen);
    let others = rest.into_iter().map(Other::from).collect();
    Some(Together { diagnosis, log: name, others })
}

impl From<Part> for Other {
    fn from(Part { name, diagnosis, .. }: Part) -> Self {
        let Diagnosis { state, phase, failure_kind, root_cause_line_no, .. } = diagnosis;
        Other { log: name, state, phase, failure_kind, root_cause_line_no }
    }
}

/// The less, the more a log explains.
fn weight(part: &Part) -> u8 {
    match (part.nature, part.diagnosis.state) {
        (Some(Nature::Cause | Nature::Unknown), _) => 0,
        (Some(Nature::Yields), _) => 1,
        (Some(_), _) => 2,
        (None, State::Failed) => 3,
        (None, State::Stalled | State::Degraded) => 4,
        (None, _) => 5,
    }
}

/// Whether a clock is before another. Two that are more than half a day apart have midnight between them.
fn earlier(one: Option<u64>, other: Option<u64>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    let ahead = (other + DAY_S - one) % DAY_S;
    ahead > 0 && ahead < DAY_S / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::{Context, diagnose};
    use crate::gate::LogGrammar;
    use crate::gate::log::{FailureRule, LogRules, read_all};

    fn part(name: &str, text: &str, clock_s: Option<u64>) -> Part {
        let rule = |kind: &str, pattern: &str, yields| FailureRule {
            kind: kind.into(),
            pattern: pattern.into(),
            yields,
            ..FailureRule::default()
        };
        let failures = vec![rule("oom_runtime", "out of memory", false), rule("nccl", "peer closed", true)];
        let grammar = LogGrammar::new(&LogRules { failures, ..LogRules::default() }).unwrap();
        let startup = read_all(text.as_bytes(), &grammar).unwrap();
        Part {
            name: name.into(),
            diagnosis: diagnose(&startup, &grammar, None, &Context::default()),
            nature: startup.root().map(|root| root.nature),
            clock_s,
        }
    }

    fn cause(parts: Vec<Part>) -> (String, Option<String>) {
        let together = together(parts).unwrap();
        (together.log, together.diagnosis.failure_kind)
    }

    #[test]
    fn a_peer_that_went_away_is_explained_by_the_peer() {
        let head = || part("head", "loading\nRuntimeError: peer closed\n", Some(100));
        let follower = || part("follower", "loading\nCUDA out of memory\n", Some(101));
        let expected = ("follower".to_owned(), Some("oom_runtime".to_owned()));
        assert_eq!(cause(vec![head(), follower()]), expected);
        assert_eq!(cause(vec![follower(), head()]), expected);
        let together = together(vec![head(), follower()]).unwrap();
        let head = &together.others[0];
        assert_eq!(
            (head.log.as_str(), head.failure_kind.as_deref(), head.root_cause_line_no),
            ("head", Some("nccl"), Some(2))
        );
    }

    #[test]
    fn of_two_causes_the_earlier_counts_also_around_midnight() {
        let of = |name: &str, at| part(name, "CUDA out of memory\n", at);
        let first = |a, b| cause(vec![of("a", a), of("b", b)]).0;
        assert_eq!(first(Some(100), Some(99)), "b");
        assert_eq!(first(Some(99), Some(100)), "a");
        assert_eq!(first(Some(5), Some(DAY_S - 5)), "b", "b wrote before midnight");
        assert_eq!(first(None, Some(1)), "a", "without clocks, as they were given");
    }

    #[test]
    fn a_log_in_which_nothing_stands_is_one_of_the_others() {
        let told =
            together(vec![part("silent", "", None), part("head", "loading\nCUDA out of memory\n", None)]).unwrap();
        assert_eq!((told.log.as_str(), told.others[0].phase.as_deref()), ("head", None));
        assert!(together(Vec::new()).is_none());
    }
}
