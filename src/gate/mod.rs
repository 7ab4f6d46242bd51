//! When a server is ready, or why it will not be.
//!
//! Ready means that it generated tokens for a request that was made for this: a log line or a health page is a sign, and
//! signs have been seen minutes before a server could answer. The gate receives an engine's knowledge as data (how its
//! log reads, which paths it has) and has never heard of an engine.

mod answers;
mod attached;
mod error;
mod evidence;
pub mod life;
pub mod log;
mod lookout;
pub mod patience;
mod probe;
mod prober;
mod proof;
mod readback;
mod reading;
pub mod starting;
mod wait;

pub use answers::answers;
pub use attached::prove;
pub use error::{GateError, LogState};
pub use log::LogGrammar;
pub use patience::{Patience, auto_limit};
pub use readback::{Beside, flush, read_back};
pub use starting::Conduct;
pub use wait::{Pace, Ready, wait, wait_at};
