//! What this machine's client can read at most, and where that is remembered.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Outcome, SelfTestError};
use crate::launch::WorkFolder;
use crate::measure::Distribution;
use crate::preflight;

/// The file in the state folder.
const FILE: &str = "selftest-client.json";
/// Above this share of its core the client itself was the limit.
const BUSY: f64 = 0.9;

/// What the client can read at a number of streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Requests in flight.
    pub streams: u32,
    /// Chunks per second that were read,
    pub chunks_per_s: f64,
    /// with this share of a core.
    pub busy_ratio: f64,
    /// Chunks per second with all of it: measured where the client was the limit, else projected from its share.
    pub ceiling_chunks_per_s: f64,
    /// `client`, or `server` where that could send no more.
    pub limited_by: String,
}

impl Ceiling {
    /// From a course whose server sent as fast as it could; `None` where the system tells no processor time.
    pub fn of(outcome: &Outcome) -> Option<Self> {
        let busy_ratio = outcome.client.busy_ratio.filter(|ratio| *ratio > 0.0)?;
        Some(Ceiling {
            streams: outcome.streams,
            chunks_per_s: outcome.chunks_per_s,
            busy_ratio,
            ceiling_chunks_per_s: outcome.chunks_per_s / busy_ratio.min(1.0),
            limited_by: if busy_ratio >= BUSY { "client" } else { "server" }.to_owned(),
        })
    }
}

/// What is remembered. It holds for one machine and one build.
#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    orch: String,
    hardware: String,
    ceiling_chunks_per_s: f64,
}

fn here() -> (String, String) {
    let hardware = preflight::hardware().map(|host| host.hardware).unwrap_or_default();
    (env!("CARGO_PKG_VERSION").to_owned(), hardware)
}

/// Remembers the lowest of the ceilings for later runs.
pub fn remember(work: &WorkFolder, ceilings: &[Ceiling]) -> Result<(), SelfTestError> {
    let lowest = ceilings.iter().map(|ceiling| ceiling.ceiling_chunks_per_s).min_by(f64::total_cmp);
    let Some(ceiling_chunks_per_s) = lowest else { return Ok(()) };
    let (orch, hardware) = here();
    write(&work.root().join(FILE), &Remembered { orch, hardware, ceiling_chunks_per_s })
}

fn write(path: &Path, remembered: &Remembered) -> Result<(), SelfTestError> {
    let fail = |source| SelfTestError::File { path: path.to_owned(), source };
    let text = serde_json::to_vec(remembered).map_err(|error| fail(error.into()))?;
    // By another name first: a reader never sees half of it.
    let new = path.with_extension("new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(fail)
}

/// Chunks per second that this machine's client can read, if its self-test was run with this build.
pub fn known_ceiling(work: &WorkFolder) -> Option<f64> {
    let text = std::fs::read(work.root().join(FILE)).ok()?;
    let remembered: Remembered = serde_json::from_slice(&text).ok()?;
    let (orch, hardware) = here();
    (remembered.orch == orch && remembered.hardware == hardware).then_some(remembered.ceiling_chunks_per_s)
}

/// How much later than asked this machine wakes a sleeping thread, in milliseconds.
pub fn timer_error() -> Distribution {
    const SLEEP: Duration = Duration::from_millis(2);
    let late = (0..200).map(|_| {
        let began = Instant::now();
        std::thread::sleep(SLEEP);
        began.elapsed().saturating_sub(SLEEP).as_secs_f64() * 1000.0
    });
    Distribution::of(late.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Client;

    fn outcome(chunks_per_s: f64, busy: f64) -> Outcome {
        Outcome {
            streams: 64,
            tokens_per_chunk: 1,
            ok: 1,
            failed: 0,
            counts_agree: true,
            chunks_per_s,
            client: Client { busy_ratio: Some(busy), ..Client::default() },
            compared: Vec::new(),
        }
    }

    #[test]
    fn a_client_that_was_not_busy_could_read_more() {
        let ceiling = Ceiling::of(&outcome(100_000.0, 0.5)).unwrap();
        assert_eq!((ceiling.ceiling_chunks_per_s, ceiling.limited_by.as_str()), (200_000.0, "server"));
        assert_eq!(Ceiling::of(&outcome(90_000.0, 0.95)).unwrap().limited_by, "client");
    }

    #[test]
    fn the_lowest_ceiling_is_remembered_for_this_machine_and_build() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("work")).unwrap();
        assert_eq!(known_ceiling(&work), None);
        let ceilings: Vec<_> = [2e5, 1e5].iter().filter_map(|rate| Ceiling::of(&outcome(*rate, 1.0))).collect();
        remember(&work, &ceilings).unwrap();
        assert_eq!(known_ceiling(&work), Some(1e5));
        let mut other = Remembered { orch: "0.0.0".to_owned(), hardware: here().1, ceiling_chunks_per_s: 1.0 };
        write(&work.root().join(FILE), &other).unwrap();
        assert_eq!(known_ceiling(&work), None, "another build reads at another speed");
        other.orch = here().0;
        other.hardware = "another machine".to_owned();
        write(&work.root().join(FILE), &other).unwrap();
        assert_eq!(known_ceiling(&work), None);
    }
}
