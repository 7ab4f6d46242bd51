//! What a profile asks for and an engine, or this place, cannot give.

use std::fmt;

use miette::Diagnostic;

/// The code of what is right in a profile and not done by this build.
pub const NOT_YET: &str = "not_yet";

/// Why a profile cannot be rendered: which key, what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Stable: the last part of `orch::render::<code>`.
    pub code: &'static str,
    /// The key of the profile, as in `--set`.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl Fault {
    /// A fault of a key.
    pub fn new(code: &'static str, key: impl Into<String>, message: impl Into<String>) -> Self {
        Fault { code, key: key.into(), message: message.into(), help: None }
    }

    /// A key that this build knows and cannot act on.
    pub fn not_yet(key: impl Into<String>, what: &str) -> Self {
        Fault::new(NOT_YET, key, format!("this build of orch cannot {what} yet"))
    }

    /// Adds what to do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.key, self.message)
    }
}

impl std::error::Error for Fault {}

impl Diagnostic for Fault {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(format!("orch::render::{}", self.code)))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }
}
