//! What a start-up tells as it goes on.

use serde_json::Value;

use crate::gate::log::Failure;

/// What a piece of the log changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A phase began.
    Began {
        /// Which.
        phase: String,
    },
    /// A phase went on.
    Progress {
        /// Which.
        phase: String,
        /// So many are done,
        done: f64,
        /// of so many, if known.
        total: Option<f64>,
        /// What is counted.
        unit: String,
    },
    /// A phase ended.
    Ended {
        /// Which.
        phase: String,
        /// How long it took, in seconds.
        s: f64,
    },
    /// Something is known, or known otherwise than before.
    Fact {
        /// Under which key.
        key: String,
        /// What.
        value: Value,
        /// Of which rank, if the record says.
        rank: Option<u32>,
    },
    /// A line that looks like a failure; the first of its kind.
    Failure(Failure),
}

/// A phase that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How long it took, in seconds.
    pub s: f64,
}

/// Free memory of a GPU as a rank told it last in a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The phase.
    pub phase: String,
    /// The rank, if it says.
    pub rank: Option<u32>,
    /// Free memory, in the unit that the engine prints (GB or GiB).
    pub free_gb: f64,
}
