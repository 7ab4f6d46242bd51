//! Why something could not be deployed, displaced or brought back.

use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

use crate::engine::EngineError;
use crate::event::EmitError;
use crate::gate::GateError;
use crate::launch::LaunchError;
use crate::render::unit::UnitError;

/// Why something could not be deployed, displaced or brought back.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum DeployError {
    /// A manager, an engine or a supervisor refused.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Launch(#[from] LaunchError),
    /// The server that should serve again does not.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Gate(#[from] GateError),
    /// The unit could not be rendered.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Unit(#[from] UnitError),
    /// The template of the unit could not be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Template(#[from] EngineError),
    /// systemd's own reader refuses the unit.
    #[error("systemd would not take the unit: {said}")]
    #[diagnostic(
        code(orch::deploy::bad_unit),
        help("nothing was changed; `orch render PROFILE --format unit` prints it")
    )]
    BadUnit {
        /// What it said.
        said: String,
    },
    /// No manager answers.
    #[error("no systemd manager answers here, neither the system's nor this user's")]
    #[diagnostic(
        code(orch::deploy::no_manager),
        help(
            "`--as process` keeps the server under orch's own supervisor; `--as docker` in a container; `orch render PROFILE --format unit` prints the unit"
        )
    )]
    NoManager,
    /// Something that orch did not write is in the place.
    #[error("{what} is there and was not written by orch")]
    #[diagnostic(
        code(orch::deploy::foreign),
        help("orch leaves it alone: choose another name with `--name`, or take it away yourself")
    )]
    Foreign {
        /// The file or container.
        what: String,
    },
    /// There is no such deployment.
    #[error("there is no deployment `{name}` here")]
    #[diagnostic(code(orch::deploy::none), help("{}", known_text(known)))]
    None {
        /// What was asked for.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Another orch is at it.
    #[error("{what} is in the hands of {by} since {since:.0}")]
    #[diagnostic(code(orch::deploy::busy), help("wait for its end; `orch ps` shows it"))]
    Busy {
        /// What.
        what: String,
        /// The run, or its restorer.
        by: String,
        /// Since when.
        since: Timestamp,
    },
    /// The process that would bring it back did not come up, so nothing was taken down.
    #[error("nothing was stopped, since the process that would bring it back did not start: {why}")]
    #[diagnostic(code(orch::deploy::restorer))]
    Restorer {
        /// What is known.
        why: String,
    },
    /// Production may be in use.
    #[error("{what} is not displaced: {why}")]
    #[diagnostic(code(orch::deploy::in_use), help("{help}"))]
    InUse {
        /// The unit or container.
        what: String,
        /// What was found.
        why: String,
        /// What to do.
        help: String,
    },
    /// Production does not answer after its start.
    #[error("{what} was started and does not generate tokens at {url}: {why}")]
    #[diagnostic(code(orch::deploy::not_back), help("it is left as it is; `orch restore` tries again"))]
    NotBack {
        /// The unit or container.
        what: String,
        /// Where it was asked.
        url: String,
        /// The last answer.
        why: String,
    },
    /// A command of `hosts.yaml` failed.
    #[error("the command `{words}` that {what}: {why}")]
    #[diagnostic(code(orch::deploy::command), help("it stands in hosts.yaml under `production.command`"))]
    Command {
        /// Its words.
        words: String,
        /// `stops production`, …
        what: &'static str,
        /// How it ended.
        why: String,
    },
    /// Production could not be stopped or started.
    #[error("{why}")]
    #[diagnostic(code(orch::deploy::act))]
    Act {
        /// What its manager or its command said.
        why: String,
        /// What to do.
        #[help]
        help: Option<String>,
    },
    /// The journal could not be written.
    #[error(transparent)]
    #[diagnostic(code(orch::deploy::journal))]
    Journal(#[from] EmitError),
    /// A file could not be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    #[diagnostic(code(orch::deploy::io))]
    Io {
        /// `read`, `write`, …
        doing: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The secret cannot be given in the way that its launcher wants it.
    #[error("the value of the secret `{name}` holds a line break, which a container's environment file cannot carry")]
    #[diagnostic(code(orch::deploy::secret))]
    Secret {
        /// Its name.
        name: String,
    },
}

impl DeployError {
    pub(super) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> DeployError {
        let path = path.into();
        move |source| DeployError::Io { doing, path, source }
    }
}

fn known_text(known: &[String]) -> String {
    match known {
        [] => "`orch up PROFILE` makes one".to_owned(),
        known => format!("`orch ps` shows them: {}", known.join(", ")),
    }
}
