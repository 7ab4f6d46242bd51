//! Servers that stay: deployments that `orch up` makes and `orch down` takes away, and production that makes room for a
//! measurement and comes back.
//!
//! Whatever is taken down is written down first, under `undo/` of the work folder, and a small process of its own (the
//! restorer) waits for the end of whoever took it down. It acts only if nothing was put right by then, so a SIGKILL of
//! orch still brings production back; if both are gone, the next `orch` does.

mod act;
mod artefact;
mod deployments;
mod diff;
mod error;
mod hosts;
mod idle;
mod launcher;
mod production;
mod put_back;
mod restore;
mod undo;

pub use crate::host::{Hosts, HostsError, LOCAL};
pub use act::{Act, act, perform};
pub use artefact::{Artefact, As, Deployed};
pub use deployments::{Deployments, Place};
pub use diff::unified;
pub use error::DeployError;
pub use idle::{Idle, Look, look};
pub use launcher::{Running, Starting, is_up, remove, set_aside, start, stop};
pub use production::{Production, What as ProductionWhat};
pub use put_back::put_back;
pub(crate) use restore::Silent;
pub use restore::{Restored, restore, restorer, restorer_here, tell};
pub use undo::{Undo, Undone, What, catch_up, undone};
