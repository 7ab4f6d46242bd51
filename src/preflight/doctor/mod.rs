//! Whether a machine is fit for a run: `orch doctor`.
//!
//! What is there is collected first ([`collect`]) into plain [`Facts`]; what stands against a run follows from them alone
//! ([`examine`]), so that any machine can be examined from what was once seen of it. Every question to a driver has a time
//! limit: a GPU that hangs is a finding, and hangs nobody.

mod collect;
mod facts;
mod gpus;
mod machine;
mod nvidia;
mod ours;
mod seen;
mod topology;

use serde::Serialize;

pub use collect::{Asked, collect};
pub use facts::{
    Disk, EngineFact, Facts, GpuFact, GpuProcess, JitLock, Limits, ModelFact, Nvidia, PortFact, Skew, Wanted, Xid,
};
pub use seen::LastTime;
pub use topology::{Link, Topology};

/// Something that stands against a run, or that a person should know before one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind it is.
    pub id: &'static str,
    /// What was found.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do about it.
    #[serde(rename = "do")]
    pub remedy: String,
    /// Whether no run should be begun before it is mended.
    pub blocking: bool,
}

impl Finding {
    fn new(id: &'static str, what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { id, what: what.into(), why: why.into(), remedy: remedy.into(), blocking: false }
    }

    fn blocking(self, blocking: bool) -> Self {
        Finding { blocking, ..self }
    }
}

/// All that stands against a run by these facts, what blocks one first.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    gpus::examine(facts, &mut findings);
    machine::examine(facts, &mut findings);
    ours::examine(facts, &mut findings);
    findings.sort_by_key(|finding| !finding.blocking);
    findings
}

#[cfg(test)]
mod tests;
