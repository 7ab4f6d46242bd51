//! What can go wrong with a host.

use std::io;
use std::path::PathBuf;

use super::ssh::known::KeyFault;

/// Something could not be done on a host.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum HostError {
    /// The line to the host went away, or a host that was there cannot be reached again. Nobody knows whether what was
    /// asked for happened.
    #[error("lost the connection to {host}: {why}")]
    #[diagnostic(code(orch::host::lost))]
    Lost {
        /// The host.
        host: String,
        /// What was seen.
        why: String,
    },
    /// There is no way to the host. Nothing was done there.
    #[error("cannot reach {host}: {why}")]
    #[diagnostic(code(orch::host::unreachable), help("{help}"))]
    Unreachable {
        /// The host.
        host: String,
        /// What was seen.
        why: String,
        /// What to do.
        help: String,
    },
    /// The key that the host shows is not one to trust.
    #[error("refused the key of {host}: {fault}")]
    #[diagnostic(code(orch::host::key), help("{}", fault.help()))]
    Key {
        /// The host.
        host: String,
        /// What is wrong with it.
        fault: Box<KeyFault>,
    },
    /// The host does not let this user in.
    #[error("{host} does not let {user} in: {tried}")]
    #[diagnostic(code(orch::host::refused), help("{help}"))]
    Refused {
        /// The host.
        host: String,
        /// The user there.
        user: String,
        /// What was tried, and what came of it.
        tried: String,
        /// What to do.
        help: String,
    },
    /// What is said about the host (`hosts.yaml`, the configuration of `ssh`) cannot be followed.
    #[error("cannot tell how to reach {host}: {why}")]
    #[diagnostic(code(orch::host::config), help("{help}"))]
    Config {
        /// The host.
        host: String,
        /// What is wrong.
        why: String,
        /// What to do.
        help: String,
    },
    /// What answers there is no shell.
    #[error("{host} ran no command: {said}")]
    #[diagnostic(
        code(orch::host::no_shell),
        help(
            "orch needs a POSIX shell there: `ssh HOST true` must work, and a forced command must run $SSH_ORIGINAL_COMMAND"
        )
    )]
    NoShell {
        /// The host.
        host: String,
        /// What came instead.
        said: String,
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

impl HostError {
    /// Whether the line was at fault and not the host: the same may work later. Whether a command ran is not known.
    pub fn is_lost(&self) -> bool {
        matches!(self, HostError::Lost { .. })
    }

    /// Whether trying later may help, without anybody mending anything: the line is down, or the host is.
    pub fn may_pass(&self) -> bool {
        matches!(self, HostError::Lost { .. } | HostError::Unreachable { .. } | HostError::CannotConnect { .. })
    }
}
