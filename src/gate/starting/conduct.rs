//! By what a start is judged, and by which rules it is ended.

use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;

use crate::gate::life::Worker;
use crate::gate::patience::{LEAST_LIMIT, Patience};

/// By what a start is judged.
#[derive(Clone, Debug)]
pub struct Conduct {
    /// How long a start may take.
    pub limit: Duration,
    /// Whether nobody said that limit. Then the time in which the engine stores what it downloads does not count, and a
    /// start that gives signs of life is waited for longer. A limit that a person set is what it says.
    pub limit_is_auto: bool,
    /// How long phases may be silent.
    pub patience: Patience,
    /// Whether a line that looks like the cause ends the start before the engine confirms it.
    pub fail_fast: bool,
    /// Finds the processes that do the work of a rank, by their titles.
    pub worker: Option<Regex>,
    /// How many ranks have a worker of their own here; `None` where that is not known.
    pub ranks: Option<u32>,
    /// What the files of the weights hold, where that is known.
    pub weights_bytes: Option<u64>,
    /// Where evidence of a silent end is kept.
    pub evidence: Option<PathBuf>,
}

impl Default for Conduct {
    fn default() -> Self {
        Conduct {
            limit: LEAST_LIMIT,
            limit_is_auto: true,
            patience: Patience::default(),
            fail_fast: false,
            worker: None,
            ranks: None,
            weights_bytes: None,
            evidence: None,
        }
    }
}

/// A rule that ends a start whose main process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A rank is gone, and a line says why.
    DeadRank(Worker),
    /// The engine itself says that it failed.
    Confirmed,
    /// A line looks like the cause, and nothing more was to be waited for.
    FailFast,
    /// The limit passed.
    TimedOut,
}
