//! Another host as the place where orch itself runs.
//!
//! A run lives beside the server that it measures. So nothing of launching, reading logs or load knows of another host:
//! this program is put there ([`place`]), a job is laid down for it ([`Job`]), and there it is started so that it outlives
//! the connection ([`beside`]). What comes back is read from files by offset, and a line that is lost is opened anew
//! ([`Line`]); what was read once is never read twice.

pub mod beside;
mod carry;
mod error;
mod far;
mod job;
mod known;
mod line;
mod open;
mod place;
mod program;
mod pull;
mod shared;

pub use carry::{Carried, carry, judged_by};
pub use error::RemoteError;
pub use far::{Far, Said};
pub use job::{Job, JobId, Record};
pub use known::{FarRun, known_runs, remember};
pub use line::{Door, Line, LineEvent};
pub use open::{Named, Settings};
pub use place::{Placed, place};
pub use program::Program;
pub use pull::{Pulled, pull};
pub use shared::Shared;
