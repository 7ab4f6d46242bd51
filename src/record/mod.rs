//! What is kept: the journal, the record that is its fold, the store of runs, the index, the baselines.
//!
//! The journal is the truth. `run.json` is its fold, written whole; the index and every lookup are derived from the
//! folders and may be deleted at any time.

mod append;
mod baseline;
pub mod baselines;
mod fold;
mod id;
pub mod index;
pub mod journal;
pub mod model;
mod store;

pub use baseline::{Baseline, NoBaseline};
#[cfg(test)]
pub(crate) use fold::tests as samples;
pub use fold::{Progress, RunState, ServerState, Stage, fold};
pub use id::{RunId, Which};
pub use journal::{Heard, Journal, JournalError, Listener};
pub use model::Record;
pub use store::{Found, NewRun, RunFolder, Store, StoreError};
