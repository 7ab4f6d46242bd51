//! What the server's own log told while a step was measured.

/// Sums over the lines between the beginning and the end of a step. What a log cannot tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logged {
    /// Lines that told how the engine was at that moment.
    pub samples: u64,
    /// Those of them that told whether the step ran in a captured graph,
    pub graph_samples: u64,
    /// and said that it did.
    pub in_graph: u64,
    /// Those that told how many requests waited,
    pub queue_samples: u64,
    /// and said that some did.
    pub queued: u64,
    /// The most requests that ran at once, by these lines.
    pub most_running: Option<u64>,
    /// Requests that the engine took back for want of memory.
    pub retracted: Option<u64>,
    /// Lines that told of something that was compiled.
    pub compiled: Option<u64>,
    /// The first of those.
    pub compiled_line: Option<String>,
}

impl Logged {
    /// The share of the lines that say that the step ran in a captured graph. Engines write such a line every so many
    /// steps, so it is the share of steps.
    pub fn in_graph_ratio(&self) -> Option<f64> {
        ratio(self.in_graph, self.graph_samples)
    }

    /// The share of the lines that say that requests waited: as the lines come at intervals, the share of time.
    pub fn queued_ratio(&self) -> Option<f64> {
        ratio(self.queued, self.queue_samples)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
