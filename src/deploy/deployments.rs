//! The folder of a deployment, `deployments/<name>/` of the work folder.
//!
//! | file | what |
//! |---|---|
//! | `current.json` | what serves, [`Deployed`] |
//! | `previous.json` | what served before |
//! | `secrets.json`, `secrets.env` | values of secrets, mode 0600; the second as a unit or a container reads them |
//! | `previous-secrets.json` | those of what served before |

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::artefact::{Artefact, Deployed};
use super::error::DeployError;
use crate::host::{self, Mode};
use crate::launch::WorkFolder;

/// All deployments of a work folder.
#[derive(Clone, Debug)]
pub struct Deployments {
    root: PathBuf,
}

impl Deployments {
    /// Those of this work folder.
    pub fn of(work: &WorkFolder) -> Self {
        Deployments { root: work.root().join("deployments") }
    }

    /// The place of one, whether it is there or not.
    pub fn place(&self, name: &str) -> Place {
        Place { path: self.root.join(name) }
    }

    /// The names of those that there are.
    pub fn names(&self) -> Result<Vec<String>, DeployError> {
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(DeployError::io("read", &self.root)(error)),
        };
        let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.retain(|name| self.root.join(name).join("current.json").exists());
        names.sort();
        Ok(names)
    }

    /// What serves, by name.
    pub fn all(&self) -> Result<Vec<Deployed>, DeployError> {
        Ok(self.names()?.iter().filter_map(|name| self.place(name).current().ok().flatten()).collect())
    }

    /// The deployment of this name, or that of the run with this id.
    pub fn find(&self, asked: &str) -> Result<Deployed, DeployError> {
        let all = self.all()?;
        let short = |run: &str| run.rsplit_once('-').map(|(_, hex)| format!("r{hex}")).unwrap_or_default();
        let fits = |one: &&Deployed| one.name == asked || one.run == asked || short(&one.run) == asked;
        let known = all.iter().map(|one| one.name.clone()).collect();
        all.iter().find(fits).cloned().ok_or(DeployError::None { name: asked.to_owned(), known })
    }
}

/// The place of a deployment.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
}

impl Place {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that a unit or a container reads its secrets from.
    pub fn secrets_file(&self) -> PathBuf {
        self.path.join("secrets.env")
    }

    /// What serves.
    pub fn current(&self) -> Result<Option<Deployed>, DeployError> {
        self.read("current.json")
    }

    /// What served before.
    pub fn previous(&self) -> Result<Option<Deployed>, DeployError> {
        self.read("previous.json")
    }

    /// The values of the secrets of what serves.
    pub fn secrets(&self) -> Result<BTreeMap<String, String>, DeployError> {
        Ok(self.read("secrets.json")?.unwrap_or_default())
    }

    /// Makes `next` what serves; what served so far is kept beside it.
    pub fn succeed(&self, next: &Deployed, secrets: &BTreeMap<String, String>) -> Result<(), DeployError> {
        if let Some(current) = self.current()? {
            self.write("previous-secrets.json", &self.secrets()?)?;
            self.write("previous.json", &current)?;
        }
        self.write("secrets.json", secrets)?;
        self.write("current.json", next)
    }

    /// Puts the values where the unit or container will read them.
    pub fn lay_out(&self, of: &Deployed, secrets: &BTreeMap<String, String>) -> Result<(), DeployError> {
        let text = match of.artefact {
            Artefact::Process { .. } => return Ok(()),
            Artefact::Unit { .. } => {
                secrets.iter().map(|(name, value)| format!("{name}={}\n", in_quotes(value))).collect()
            }
            Artefact::Docker { .. } => {
                if let Some((name, _)) = secrets.iter().find(|(_, value)| value.contains('\n')) {
                    return Err(DeployError::Secret { name: name.clone() });
                }
                secrets.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>()
            }
        };
        self.make()?;
        let path = self.secrets_file();
        host::write_whole(&path, text.as_bytes(), Mode::PRIVATE).map_err(DeployError::io("write", path))
    }

    /// Removes it all.
    pub fn remove(&self) -> Result<(), DeployError> {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DeployError::io("remove", &self.path)(error)),
            _ => Ok(()),
        }
    }

    fn make(&self) -> Result<(), DeployError> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(DeployError::io("make", &self.path))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, DeployError> {
        read_json(&self.path.join(name))
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), DeployError> {
        self.make()?;
        write_json(&self.path.join(name), value)
    }
}

/// A file of ours; `None` if it is not there. One that cannot be read is an error: what it says must not be forgotten.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, DeployError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map(Some).map_err(|error| DeployError::io("read", path)(error.into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DeployError::io("read", path)(error)),
    }
}

/// Writes a file whole, for its owner alone.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), DeployError> {
    let write = || {
        let mut bytes = serde_json::to_vec_pretty(value)?;
        bytes.push(b'\n');
        host::write_whole(path, &bytes, Mode::PRIVATE)
    };
    write().map_err(DeployError::io("write", path))
}

/// A value as systemd reads it in an environment file.
fn in_quotes(value: &str) -> String {
    let mut text = String::from("\"");
    for c in value.chars() {
        if matches!(c, '"' | '\\' | '$' | '`') {
            text.push('\\');
        }
        text.push(c);
    }
    text + "\""
}
