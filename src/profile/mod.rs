//! Profiles: YAML files in layers, read into a spanned tree, merged, expanded, and decoded with all faults at once.

mod builtin;
mod check;
mod expand;
mod fault;
mod fields;
mod find;
pub mod kinds;
mod layers;
mod load;
mod merge;
mod metrics;
mod model;
mod nearest;
mod places;
mod prompts;
mod questions;
mod read;
mod rules;
mod scenario;
mod schema;
mod search;
mod set;
mod short;
mod source;
mod sweep;
mod trace;
mod tree;
mod workload;

pub use builtin::{PROMPT_KINDS, prompts};
pub(crate) use expand::escape;
pub use fault::{FaultReport, ProfileError};
pub use kinds::{EngineKind, OtherKind};
pub use load::{Loaded, Request, default_folders, load, process_env};
pub use model::*;
pub(crate) use nearest::nearest;
pub use places::Misplaced;
pub use questions::{Question, QuestionsError, read_questions};
#[cfg(test)]
pub(crate) use scenario::fault_kinds;
pub use scenario::{failure_kinds, scenario_file, scenario_text};
pub use schema::schema;
pub use search::search_text;
pub use sweep::{AxisValues, Confirm, Goal, SweepFile, goal_of_words, sweep_file};
pub use trace::{Trace, TraceRow};
