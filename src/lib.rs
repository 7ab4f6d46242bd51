//! Launches LLM inference servers from a profile, measures them, and judges the result against a baseline.
//!
//! The program in one function is [`run`]; its nouns are the folders.

pub mod cli;
pub mod clock;
pub mod compare;
pub mod deploy;
pub mod diagnose;
pub mod drift;
pub mod engine;
pub mod event;
pub mod gate;
pub mod history;
pub mod host;
pub mod import;
pub mod interop;
pub mod launch;
pub mod load;
pub mod measure;
pub mod preflight;
pub mod profile;
pub mod record;
pub mod remote;
pub mod render;
pub mod report;
pub mod run;
pub mod selftest;
pub mod sim;
pub mod sweep;
pub mod trial;
pub mod units;
pub mod watch;
