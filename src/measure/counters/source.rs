//! Where a figure of the engine's comes from, and so how exact it is.

use serde::{Deserialize, Serialize};

/// Where a figure of the engine's comes from, the most exact first. It stands in the record beside the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The engine's counters, as a difference over the measured requests alone: exact.
    Counters,
    /// What the engine said with each answer, summed up: exact for the requests that ended `ok`.
    Requests,
    /// Lines of the engine's log from the time of the measurement: exact where there is one a request, else of intervals
    /// that need not begin and end with it.
    Log,
    /// A gauge of the engine's, read once a second while the load was on: an estimate.
    Sampled,
    /// An average of the engine's since it started, other work and the warm-up included: an estimate.
    Average,
    /// Reckoned from figures that leave a part open: an estimate.
    Estimate,
}

impl Source {
    /// All of them, with what they mean.
    pub const ALL: &'static [(Source, &'static str)] = &[
        (Source::Counters, "the engine's counters, as a difference over the measured requests alone: exact"),
        (Source::Requests, "what the engine said with each answer, summed up: exact for the requests that ended `ok`"),
        (
            Source::Log,
            "lines of the engine's log from the time of the measurement: exact where there is one a request (llama.cpp), else of intervals that need not begin and end with it",
        ),
        (Source::Sampled, "a gauge of the engine's, read once a second while the load was on: an estimate"),
        (Source::Average, "an average since the server started, other work and the warm-up included: an estimate"),
        (Source::Estimate, "reckoned from figures that leave a part open: an estimate"),
    ];

    /// Its name in files.
    pub fn word(self) -> &'static str {
        match self {
            Source::Counters => "counters",
            Source::Requests => "requests",
            Source::Log => "log",
            Source::Sampled => "sampled",
            Source::Average => "average",
            Source::Estimate => "estimate",
        }
    }
}
