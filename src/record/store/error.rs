//! What can go wrong with a results folder.

use std::io;
use std::path::PathBuf;

use crate::event::EmitError;
use crate::record::baselines::BaselinesError;
use crate::record::id::{NotAnId, RunId};
use crate::record::journal::JournalError;

/// What can go wrong with a results folder.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum StoreError {
    /// The results folder is something else.
    #[error("{} is not a folder", path.display())]
    #[diagnostic(code(orch::record::not_a_folder), help("`--results DIR` names the folder that records are kept in"))]
    NotAFolder {
        /// What was named.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    #[diagnostic(code(orch::record::io), help("records are kept in the folder that `--results DIR` names"))]
    Io {
        /// `read`, `make`, `write`.
        doing: &'static str,
        /// What.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The journal of a run.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Journal(#[from] JournalError),
    /// The journal of a run could not be written.
    #[error(transparent)]
    #[diagnostic(code(orch::record::emit))]
    Emit(#[from] EmitError),
    /// The baselines.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Baselines(#[from] BaselinesError),
    /// What was typed cannot be a run's name.
    #[error(transparent)]
    #[diagnostic(
        code(orch::record::not_an_id),
        help("a run is named by `r` and its 4 hex digits, by its whole id, or by `latest`; `orch list` shows them")
    )]
    BadName(NotAnId),
    /// There is no such run.
    #[error("no run `{text}` in {}", folder.display())]
    #[diagnostic(code(orch::record::no_such_run), help("`orch list` shows the runs; `--results DIR` looks elsewhere"))]
    NoSuchRun {
        /// What was typed.
        text: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// There are several.
    #[error("`{text}` is the short name of {} runs", ids.len())]
    #[diagnostic(code(orch::record::ambiguous), help("give one of the ids:\n{}", ids_text(ids)))]
    Ambiguous {
        /// What was typed.
        text: String,
        /// All of them.
        ids: Vec<RunId>,
    },
    /// There are no runs at all.
    #[error("no runs in {}", folder.display())]
    #[diagnostic(code(orch::record::no_runs), help("`orch run PROFILE` makes one; `--results DIR` looks elsewhere"))]
    NoRuns {
        /// Where it was looked.
        folder: PathBuf,
    },
    /// A record of a shape that this build does not know.
    #[error("the record {} has schema {found}, and this orch reads schema {known}", path.display())]
    #[diagnostic(code(orch::record::schema), help("a newer orch wrote it; read it with that one"))]
    Schema {
        /// The record.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What is known.
        known: u32,
    },
    /// A record that does not read.
    #[error("the record {} is damaged: {reason}", path.display())]
    #[diagnostic(code(orch::record::damaged), help("`journal.jsonl` beside it may still tell what happened"))]
    Damaged {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A run's folder without a record and without a journal that tells of one.
    #[error("{} holds no record", path.display())]
    #[diagnostic(code(orch::record::empty), help("orch was killed while it made this folder; it may be deleted"))]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// The database library refused, even in memory.
    #[error("cannot build the index of the runs: {0}")]
    #[diagnostic(code(orch::record::index))]
    Index(#[from] rusqlite::Error),
}

impl StoreError {
    /// Whether what was typed is at fault, and not the folder or orch.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            StoreError::NotAFolder { .. }
                | StoreError::BadName(_)
                | StoreError::NoSuchRun { .. }
                | StoreError::Ambiguous { .. }
                | StoreError::NoRuns { .. }
                | StoreError::Baselines(BaselinesError::Line { .. })
        )
    }
}

fn ids_text(ids: &[RunId]) -> String {
    ids.iter().map(|id| format!("  {id}")).collect::<Vec<_>>().join("\n")
}
