//! What importing comes to: a profile that is not yet written down.

use indexmap::IndexMap;
use serde_json::Value;

use crate::engine::Version;
use crate::profile::{EngineKind, Flag};

/// A profile to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Its engine.
    pub engine: DraftEngine,
    /// The neutral settings that the command gives.
    pub settings: IndexMap<String, Value>,
    /// The engine's own flags.
    pub flags: IndexMap<String, Flag>,
    /// Words that are no flags, or whose flags are not known well enough.
    pub args: Vec<String>,
    /// The server's environment, without secrets.
    pub env: IndexMap<String, String>,
    /// The names of secrets.
    pub secrets: Vec<String>,
    /// The image of the container and the words for it.
    pub container: Option<(String, Vec<String>)>,
    /// What needs a person's eye.
    pub notes: Vec<Note>,
    /// What no profile says: `--host 0.0.0.0`, as shown, secrets hidden.
    pub apart: Vec<String>,
    /// Keys that the command gives a value which is not known here.
    pub unknown: Vec<String>,
    /// Files that the command reads and that were not there.
    pub unread: Vec<String>,
}

/// The engine of a draft.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftEngine {
    /// Its kind.
    pub kind: EngineKind,
    /// The condition on its version, if something tells.
    pub version: Option<String>,
    /// The program, when it is not the usual one.
    pub executable: Option<String>,
    /// `kind: command`: its words.
    pub command: Vec<String>,
    /// `kind: sim`: its scenario.
    pub scenario: Option<Value>,
}

/// Something that needs a person's eye.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The key of the profile that it is about; none for the whole.
    pub key: Option<String>,
    /// What it says.
    pub text: String,
}

impl Draft {
    /// Nothing but an engine.
    pub(super) fn of(kind: EngineKind) -> Self {
        Draft {
            engine: DraftEngine { kind, version: None, executable: None, command: Vec::new(), scenario: None },
            settings: IndexMap::new(),
            flags: IndexMap::new(),
            args: Vec::new(),
            env: IndexMap::new(),
            secrets: Vec::new(),
            container: None,
            notes: Vec::new(),
            apart: Vec::new(),
            unknown: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Says something of the whole.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.say(None, text.into());
    }

    /// Says something of a key.
    pub(super) fn note_on(&mut self, key: &str, text: impl Into<String>) {
        self.say(Some(key.to_owned()), text.into());
    }

    fn say(&mut self, key: Option<String>, text: String) {
        let note = Note { key, text };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Leaves something out and says why.
    pub(super) fn leave_out(&mut self, what: &str, why: &str) {
        let what = super::hide(&super::open::shown(what));
        self.note(format!("left out: `{what}`: {why}"));
        self.apart.push(what);
    }

    /// Leaves out a key whose value is not known here.
    pub(super) fn leave_open(&mut self, what: &str, key: String) {
        let what = super::hide(&super::open::shown(what));
        self.note(format!("left out: `{what}`: its value is not known here"));
        self.unknown.push(key);
    }

    /// The name of a secret.
    pub(super) fn secret(&mut self, name: &str) {
        if !self.secrets.iter().any(|known| known == name) {
            self.secrets.push(name.to_owned());
        }
    }

    /// The exact version, where one is said.
    pub(super) fn exact_version(&self) -> Option<Version> {
        let text = self.engine.version.as_deref()?.strip_prefix("==")?;
        Some(Version::from(text))
    }
}
