//! The load's own part in a measurement: how its warm-up ended, and how near this machine came to its own limits.

use serde::{Deserialize, Serialize};

use super::request::ms;
use super::{Distribution, Measured};

/// How a warm-up by convergence ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// Whether the last two windows agreed and nothing was compiled in them.
    pub settled: bool,
    /// Rounds that were complete.
    pub rounds: u64,
    /// By how much the throughput of the last window differs from that of the one before it, as a share; `null` with
    /// fewer than two windows.
    pub difference_ratio: Option<f64>,
    /// Whether something was compiled in the last two windows.
    pub compiled: bool,
}

/// The requests before the measured ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// How many there were.
    pub requests: u64,
    /// Seconds from the opening of the first connection to the end of the last of them.
    pub s: f64,
    /// How it converged; absent where the number of requests was given.
    #[serde(flatten)]
    pub settled: Option<Settled>,
}

/// How the client itself fared while it measured. What it adds to the server's times is bounded by these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// How late the load's thread was when it looked, 50 times a second: so much later may a chunk have been noted than it
    /// came. The timer behind it has a grain of 1 ms.
    pub lag_ms: Distribution,
    /// Open loop: how long after its moment a request was taken up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<Distribution>,
    /// Share of the measured time in which the load's thread was busy: 1 is its ceiling, whatever it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ratio: Option<f64>,
    /// Generating chunks per second as a share of what this machine's client can read by `orch selftest client`; absent
    /// where that was never run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling_ratio: Option<f64>,
    /// The cores that the load was held to, apart from the server's, as the kernel lists them (`8-15`); absent where the
    /// system chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
    /// Share of the time of those cores, or of all, that a hypervisor gave to others while it measured; absent where the
    /// system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_ratio: Option<f64>,
}

impl Client {
    /// How the client fared; `ceiling` is the chunks per second that it can read, where that is known.
    pub fn of(measured: &Measured, ceiling: Option<f64>) -> Self {
        let spread = |spans: &[u64]| Distribution::of(spans.iter().copied().map(ms).collect());
        let span = measured.ended.saturating_sub(measured.began);
        let share = |part: f64| (span > 0).then(|| part / span as f64);
        let chunks: usize = measured.timelines.iter().map(|timeline| timeline.chunks.len()).sum();
        Client {
            lag_ms: spread(&measured.lags),
            late_ms: measured.scheduled.then(|| spread(&measured.late)),
            busy_ratio: measured.cpu.and_then(|cpu| share(cpu as f64)),
            ceiling_ratio: ceiling
                .filter(|ceiling| *ceiling > 0.0)
                .and_then(|ceiling| share(chunks as f64 * 1e9 / ceiling)),
            cores: Some(measured.cores.clone()).filter(|cores| !cores.is_empty()),
            steal_ratio: measured.stolen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::ok;

    #[test]
    fn shares_are_of_the_measured_time() {
        let measured = Measured {
            timelines: vec![ok(0, 100, 900, 5), ok(0, 100, 900, 5)],
            began: 1_000_000_000,
            ended: 3_000_000_000,
            cpu: Some(500_000_000),
            lags: vec![1_000_000, 3_000_000],
            cores: "8-15".to_owned(),
            stolen: Some(0.01),
            ..Measured::default()
        };
        let client = Client::of(&measured, Some(50.0));
        assert_eq!((client.busy_ratio, client.ceiling_ratio, client.late_ms), (Some(0.25), Some(0.1), None));
        assert_eq!(client.lag_ms.max, Some(3.0));
        assert_eq!((client.cores.as_deref(), client.steal_ratio), (Some("8-15"), Some(0.01)));
        let unknown = Client::of(&Measured { scheduled: true, late: vec![2_000_000], ..Measured::default() }, None);
        assert_eq!((unknown.busy_ratio, unknown.ceiling_ratio), (None, None));
        assert_eq!(unknown.late_ms.unwrap().p50, Some(2.0));
    }

    #[test]
    fn a_warm_up_reads_back_with_and_without_its_convergence() {
        let counted = WarmUp { requests: 3, s: 1.5, settled: None };
        assert_eq!(serde_json::to_value(counted).unwrap(), serde_json::json!({"requests": 3, "s": 1.5}));
        let settled = Some(Settled { settled: true, rounds: 2, difference_ratio: Some(0.01), compiled: false });
        for warm_up in [counted, WarmUp { settled, ..counted }] {
            let text = serde_json::to_string(&warm_up).unwrap();
            assert_eq!(serde_json::from_str::<WarmUp>(&text).unwrap(), warm_up, "{text}");
        }
    }
}
