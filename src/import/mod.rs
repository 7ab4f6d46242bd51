//! From a command that somebody typed once to a profile: the inverse of `render`, over the same `settings` rows of
//! `engine.yaml`. Pure: what a file, a process or a server holds comes in as text.
//!
//! Reading goes in steps, each a plain value: a text becomes commands (`shell`, `unit`), one of them starts an engine
//! (`program`, out of a container, a job or a wrapper), its flags become settings (`invert`), and a [`Draft`] is
//! written down as a profile ([`Draft::yaml`]).

mod docker;
mod draft;
mod environment;
mod glob;
mod invert;
mod lex;
mod logic;
mod open;
mod options;
mod program;
mod secret;
pub mod server;
pub mod shell;
pub mod slurm;
mod typed;
pub mod unit;
mod version;
mod write;

pub use draft::{Draft, DraftEngine, Note};
pub use environment::of_a_process as process_environment;
pub use program::Program;
pub use secret::hide;

use indexmap::IndexMap;

use crate::engine::{Definition, EngineError, Version};
use crate::profile::EngineKind;

/// A command as it would be started, before anything is made of its words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launch {
    /// The words.
    pub words: Vec<String>,
    /// What is set in its environment.
    pub env: IndexMap<String, String>,
    /// The folder that it begins in.
    pub folder: Option<String>,
    /// The folder of programs that an activated Python environment put first.
    pub programs: Option<String>,
    /// What a person should know of how it was read.
    pub notes: Vec<String>,
    /// What it reads and was not there, as a sentence.
    pub unread: Vec<String>,
}

/// Why nothing was imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
pub enum ImportError {
    /// There is no command in it.
    #[error("there is no command in {place}")]
    #[diagnostic(
        code(orch::import::empty),
        help("give a command after `--`, a script, a unit, a process or an address")
    )]
    Empty {
        /// What was read.
        place: String,
    },
    /// More than one server is started.
    #[error("{place} starts {} servers, and a profile is one:\n{}", commands.len(), lines(commands))]
    #[diagnostic(code(orch::import::several), help("give the one that is meant after `--`"))]
    Several {
        /// What was read.
        place: String,
        /// Their commands, secrets hidden.
        commands: Vec<String>,
    },
    /// The text cannot be read.
    #[error("{place}:{line}: {why}")]
    #[diagnostic(code(orch::import::syntax))]
    Syntax {
        /// What was read.
        place: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        why: String,
    },
    /// No profile can say what it serves.
    #[error("the command names no model: {command}")]
    #[diagnostic(code(orch::import::model), help("add the model's path or name to the command"))]
    NoModel {
        /// The command, secrets hidden.
        command: String,
    },
    /// An engine's files are wrong.
    #[error("{why}")]
    #[diagnostic(code(orch::import::engine))]
    Engine {
        /// What is wrong.
        why: String,
    },
}

fn lines(commands: &[String]) -> String {
    commands.iter().map(|command| format!("  {command}")).collect::<Vec<_>>().join("\n")
}

/// What importing needs to know beside the command.
pub struct Beside<'a> {
    /// The definition of an engine.
    pub definitions: &'a dyn Fn(EngineKind) -> Result<Definition, EngineError>,
    /// Whether a variable is set where the profile will be read, so that `${NAME}` can stand in it.
    pub is_set: &'a dyn Fn(&str) -> bool,
    /// The engine's version, where somebody said it.
    pub version: Option<Version>,
}

/// Makes a profile of the one command among these that starts a server.
pub fn import(launches: Vec<Launch>, place: &str, beside: &Beside<'_>) -> Result<Draft, ImportError> {
    if launches.iter().all(|launch| launch.words.is_empty()) {
        return Err(ImportError::Empty { place: place.to_owned() });
    }
    let several = launches.len() > 1;
    let mut known: Vec<Program> = Vec::new();
    let mut unknown: Vec<Launch> = Vec::new();
    for launch in launches {
        match program::find(&launch) {
            Some(program) => known.push(program),
            None => unknown.push(launch),
        }
    }
    let program = match (known.pop(), known.is_empty()) {
        (Some(program), true) => program,
        (Some(last), false) => {
            known.push(last);
            let commands = known.iter().map(|program| secret::hide(&program.shown())).collect();
            return Err(ImportError::Several { place: place.to_owned(), commands });
        }
        // Of a script with a dozen commands none can be said to be the server.
        (None, _) if several && unknown.len() > 1 => match unknown.iter().rposition(|launch| launch.says_port()) {
            Some(at) => Program::command(unknown.swap_remove(at)),
            None => return Err(ImportError::Empty { place: format!("{place} that starts a server") }),
        },
        (None, _) => Program::command(unknown.remove(0)),
    };
    let definition =
        (beside.definitions)(program.kind).map_err(|error| ImportError::Engine { why: error.to_string() })?;
    invert::draft(program, &definition, beside)
}

/// Whether a command starts an engine that orch describes.
pub fn starts_an_engine(launch: &Launch) -> bool {
    program::find(launch).is_some()
}

impl Launch {
    /// A command of which only the words are known.
    pub fn of(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Launch { words: words.into_iter().map(Into::into).collect(), ..Launch::default() }
    }

    fn says_port(&self) -> bool {
        self.words.iter().any(|word| word == "--port" || word.starts_with("--port="))
    }
}
