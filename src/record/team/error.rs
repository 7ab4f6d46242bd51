//! What can go wrong with a team's store.

use std::io;
use std::path::PathBuf;

use crate::record::store::StoreError;

/// What can go wrong with a team's store. None of it fails a run: its record is in the results folder.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum TeamError {
    /// It does not answer, or lets nobody in.
    #[error("the team's store {store} is away: {why}")]
    #[diagnostic(
        code(orch::store::away),
        help("records are kept in the results folder as ever, and sent when it is back")
    )]
    Away {
        /// Host and database.
        store: String,
        /// What was said.
        why: String,
    },
    /// A newer orch has made it.
    #[error(
        "the team's store {store} has version {found} of its tables, and this orch knows {known}: nothing is read or written there"
    )]
    #[diagnostic(code(orch::store::newer), help("use the orch that the rest of the team uses"))]
    Newer {
        /// Host and database.
        store: String,
        /// What it says.
        found: i32,
        /// What is known.
        known: i32,
    },
    /// It answers, and does not do what is asked.
    #[error("the team's store {store} does not {doing}: {why}")]
    #[diagnostic(
        code(orch::store::refused),
        help("docs/team.md says what its tables are, and which rights a user needs")
    )]
    Refused {
        /// Host and database.
        store: String,
        /// `take runs`, `give runs`.
        doing: &'static str,
        /// What was said.
        why: String,
    },
    /// What is known of it here cannot be kept.
    #[error("cannot {doing} {}: {source}", path.display())]
    #[diagnostic(
        code(orch::store::local),
        help("what was exchanged with a team's store is kept in the results folder")
    )]
    Local {
        /// `read`, `make`, `write`.
        doing: &'static str,
        /// What.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process of this results folder is at it.
    #[error("another orch exchanges records of this results folder with the team's store just now")]
    #[diagnostic(code(orch::store::busy), help("try again in a moment"))]
    Busy,
    /// The results folder itself.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Results(#[from] StoreError),
}

impl TeamError {
    /// Whether it may be otherwise in a while, with nothing changed by anybody.
    pub fn is_away(&self) -> bool {
        matches!(self, TeamError::Away { .. })
    }
}
