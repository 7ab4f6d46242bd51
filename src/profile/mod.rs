//! Profiles: YAML files in layers, read into a spanned tree, merged, expanded, and decoded with all faults at once.

mod builtin;
mod check;
mod expand;
mod fault;
mod fields;
mod find;
mod layers;
mod load;
mod merge;
mod metrics;
mod model;
mod nearest;
mod places;
mod questions;
mod read;
mod rules;
mod scenario;
mod schema;
mod set;
mod short;
mod source;
mod tree;
mod workload;

pub use builtin::{PROMPT_KINDS, prompts};
pub use fault::{FaultReport, ProfileError};
pub use load::{Loaded, Request, default_folders, load, process_env};
pub use model::*;
pub use places::Misplaced;
pub use questions::{Question, QuestionsError, read_questions};
#[cfg(test)]
pub(crate) use scenario::fault_kinds;
pub use scenario::{scenario_file, scenario_text};
pub use schema::schema;
