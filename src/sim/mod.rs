//! The simulated engine: a server of known behaviour that plays SGLang, vLLM or llama.cpp and says so.
//!
//! A [`Scenario`] says how it behaves. It knows nothing of runs, measurements and records: who uses it starts `orch sim`
//! and asks it over HTTP, as every engine.

pub mod processes;
pub mod scenario;
pub mod startup;

pub use scenario::{Played, Scenario};
