//! What was seen of the server while a step was measured, beside its answers.

use super::counters::{AcceptanceLines, Window};
use super::{Capacity, Logged, Machine};

/// What was seen of the server while a step was measured. `Default`: nothing was looked at, and what would follow from
/// it is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The engine's own counters over the measured part alone. `None`: it has none, or they could not be read.
    pub counters: Option<Window>,
    /// What its log told over the measured part alone. `None`: it was not read.
    pub log: Option<Logged>,
    /// What it says it can hold. `None`: it was not asked.
    pub capacity: Option<Capacity>,
    /// What the engine's log said of acceptance meanwhile. `None`: nothing, or there is no log to read.
    pub acceptance_lines: Option<AcceptanceLines>,
    /// What its machine read from the launch on. `None`: it was not looked at.
    pub machine: Option<Machine>,
    /// Whether the server was told to speculate.
    pub speculates: bool,
}
