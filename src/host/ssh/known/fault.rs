//! What can be wrong with the key of a host.

use std::path::PathBuf;

use super::Place;
use crate::host::quote;

/// Why the key that a host shows is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// Nobody has said yet that it is the right one.
    #[error("it is not known yet ({shown})")]
    Unknown {
        /// The algorithm and the fingerprint of the key.
        shown: String,
        /// The line that makes it known.
        line: String,
        /// The file that the line belongs into.
        file: PathBuf,
        /// The command that asks and then writes the line.
        accept: Option<String>,
    },
    /// Another key is known for the host.
    #[error("IT HAS CHANGED: it shows {shown}, and {place} knows {known}. Somebody may be answering in its place")]
    Changed {
        /// The algorithm and the fingerprint of the key that it shows.
        shown: String,
        /// Those of the key that is known.
        known: String,
        /// Where that stands.
        place: Place,
        /// The name of the host there.
        name: String,
    },
    /// The key was declared to be in the wrong hands.
    #[error("IT IS REVOKED: {place} says that {shown} must never be trusted")]
    Revoked {
        /// The algorithm and the fingerprint of the key.
        shown: String,
        /// Where that stands.
        place: Place,
    },
    /// It shows a certificate that is not to be trusted.
    #[error("its certificate is not to be trusted: {why}")]
    Certificate {
        /// Why.
        why: String,
    },
    /// The system's `ssh` does not trust it.
    #[error("{why}")]
    Told {
        /// What it said.
        why: String,
    },
}

impl KeyFault {
    /// What to do.
    pub fn help(&self) -> String {
        match self {
            KeyFault::Unknown { line, file, accept, .. } => {
                let append = format!("printf '%s\\n' {} >> {}", quote(line), quote(&file.to_string_lossy()));
                match accept {
                    Some(accept) => format!(
                        "ask whoever runs the host for its fingerprint; if it is this one, `{accept}` asks and remembers it, or: {append}"
                    ),
                    None => format!("ask whoever runs the host for its fingerprint; if it is this one: {append}"),
                }
            }
            KeyFault::Changed { place, name, .. } => format!(
                "do not go on before whoever runs the host has confirmed the new key; then `ssh-keygen -R {} -f {}` forgets the old one",
                quote(name),
                quote(&place.file.to_string_lossy())
            ),
            KeyFault::Revoked { .. } => {
                "ask whoever runs the host for its new key; as long as it shows this one, nobody knows who answers"
                    .to_owned()
            }
            KeyFault::Certificate { .. } => {
                "ask whoever runs the host for a certificate that is valid; `ssh-keygen -L -f FILE` shows what one says"
                    .to_owned()
            }
            KeyFault::Told { .. } => "`ssh HOST true` shows the key, and asks whether it is the right one".to_owned(),
        }
    }

    /// The same with the command that accepts an unknown key.
    #[must_use]
    pub(crate) fn accepted_by(mut self, command: String) -> Self {
        if let KeyFault::Unknown { accept, .. } = &mut self {
            *accept = Some(command);
        }
        self
    }
}
