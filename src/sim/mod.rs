//! The simulated engine: a server of known behaviour that plays SGLang, vLLM or llama.cpp and says so.
//!
//! A [`Scenario`] says how it behaves, a [`Server`] does it, a [`ledger`] tells what was really sent. It knows nothing of
//! runs, measurements and records: who uses it starts `orch sim` and asks it over HTTP, as every engine.
//!
//! All of it runs on one thread. Each request keeps its own time, counted from its start by absolute moments: a real
//! engine steps all its requests together, and a measurement against that would not know what it measures.

mod admission;
mod answer;
mod arrival;
mod asked;
mod counters;
mod draw;
mod engine;
mod frame;
mod http;
pub mod ledger;
mod live;
mod metrics;
mod pace;
mod pages;
pub mod processes;
pub mod scenario;
mod serve;
pub mod startup;
mod tokens;
mod voice;
mod words;

pub use engine::{Happening, Log};
pub use live::{Ended, Life, Sink, live};
pub use scenario::{Played, Scenario};
pub use serve::{Options, Server, SimError};
