//! What a record tells.

use serde_json::Value;

/// What a record tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// It comes at intervals whatever happens, and proves nothing.
    Heartbeat,
    /// A phase begins.
    Begin {
        /// Which.
        phase: String,
        /// Whether each rank has its own.
        by_rank: bool,
    },
    /// A phase ends.
    End {
        /// Which.
        phase: String,
        /// Whether each rank has its own.
        by_rank: bool,
    },
    /// A progress bar moved.
    Bar {
        /// The phase it belongs to.
        phase: String,
        /// So many are done,
        done: f64,
        /// of so many, if it says.
        total: Option<f64>,
        /// What is counted.
        unit: String,
        /// Whether it counts only while its phase goes on.
        within: bool,
    },
    /// The engine says something of itself.
    Fact {
        /// Under which key.
        key: String,
        /// What.
        value: Value,
    },
    /// Something failed. When several rules fit, all are given in their order: which of them holds depends on the phase.
    Failure {
        /// The rules that fit, by number: see `LogGrammar::failure`.
        rules: Vec<usize>,
    },
    /// What failed right before is tried in another way.
    Recovers,
    /// It is harmless, unless a later failure names what it is about.
    Suspect {
        /// The rule, by number.
        rule: usize,
        /// What it is about.
        name: String,
    },
    /// A traceback begins.
    Traceback,
    /// The next traceback belongs to the last.
    Chain,
    /// It holds a word by which Python names what went wrong.
    Error,
}

/// An observation, and the rank it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The rank, if the record says.
    pub rank: Option<u32>,
    /// What was observed.
    pub what: Observation,
}
