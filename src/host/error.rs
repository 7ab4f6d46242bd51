//! What can go wrong with a host.

use std::io;
use std::path::PathBuf;

/// Something could not be done on a host.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum HostError {
    /// The line to the host went away. Nobody knows whether what was asked for happened.
    #[error("lost the connection to {host}: {why}")]
    #[diagnostic(code(orch::host::lost))]
    Lost {
        /// The host.
        host: String,
        /// What was seen.
        why: String,
    },
    /// A word cannot be passed to a program.
    #[error("the word {word:?} holds a NUL byte, which no program can be given")]
    #[diagnostic(code(orch::host::nul))]
    Nul {
        /// The word.
        word: String,
    },
    /// There was no word at all.
    #[error("there is no program to run: the command has no words")]
    #[diagnostic(code(orch::host::no_words))]
    NoWords,
    /// The program could not be started.
    #[error("cannot run `{program}`: {source}")]
    #[diagnostic(code(orch::host::cannot_run))]
    CannotRun {
        /// Its first word.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be written or read.
    #[error("cannot {what} {}: {source}", path.display())]
    #[diagnostic(code(orch::host::file))]
    File {
        /// `write`, `read`, `rename`, …
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing answers there.
    #[error("cannot connect to {address}: {source}")]
    #[diagnostic(code(orch::host::cannot_connect))]
    CannotConnect {
        /// Where to.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}
