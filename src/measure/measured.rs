//! What a step under load left behind.

use super::Timeline;
use crate::clock::Nanos;

/// A step as it was measured. Moments are on the load's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The measured requests, in the order in which they ended.
    pub timelines: Vec<Timeline>,
    /// The requests before them, which are not counted.
    pub warmup: Vec<Timeline>,
    /// When the first connection was asked for.
    pub opened: Nanos,
    /// How long each connection that was opened before the clock took.
    pub connects: Vec<Nanos>,
    /// When the first measured request could go. If the warm-up was not survived, when it ended.
    pub began: Nanos,
    /// When the last answer had ended.
    pub ended: Nanos,
    /// Whether someone asked to stop before it was done.
    pub interrupted: bool,
    /// How many of the measured requests orch ended because they went on after the grace of a timed step: `cancelled`,
    /// as those are that an interrupt ended, which are not among these.
    pub outlived_grace: u64,
    /// Why the load stopped by itself before it was done: the first answer said that no other would be better.
    pub gave_up: Option<String>,
    /// Whether the requests were due at the moments of a schedule (open loop).
    pub scheduled: bool,
    /// Open loop: how long after its moment each measured request was taken up by the load. This machine's own lateness:
    /// opening a connection comes after it.
    pub late: Vec<Nanos>,
    /// How late the load's thread was each time it looked, 50 times a second: a read may have been noted so much later
    /// than it could have been. The timer behind it has a grain of a millisecond.
    pub lags: Vec<Nanos>,
    /// Processor time of the load's thread while it measured; `None` where the system does not tell.
    pub cpu: Option<Nanos>,
    /// The cores that the load was held to, as the kernel lists them; empty where the system chose.
    pub cores: String,
    /// The share of the time of those cores, or of all, that the machine below gave to somebody else while it measured.
    pub stolen: Option<f64>,
}
