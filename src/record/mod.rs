//! What is kept: the journal, the record that is its fold, the store of runs, the index, the baselines, and what
//! is shared with a team.
//!
//! The journal is the truth. `run.json` is its fold, written whole; the index and every lookup are derived from the
//! folders and may be deleted at any time.

mod append;
mod baseline;
pub mod baselines;
pub mod bundle;
mod excerpt;
mod fold;
pub mod history;
mod id;
pub mod index;
pub mod journal;
pub mod mask;
pub mod model;
pub mod settings;
mod store;
pub mod team;

pub use baseline::{Baseline, Earlier, NoBaseline};
#[cfg(test)]
pub(crate) use fold::tests as samples;
pub use fold::{Progress, RunState, ServerState, Stage, fold};
pub use id::{RunId, Which};
pub use journal::{Heard, Journal, JournalError, Listener};
pub use model::Record;
pub use store::{Found, NewRun, RunFolder, Store, StoreError};
