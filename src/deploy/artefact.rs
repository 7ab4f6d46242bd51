//! What is deployed: a process, a unit or a container, with all that it takes to start it again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::launch::systemd::Manager;
use crate::render::{Readiness, StopRule};

/// Version of the record's shape.
pub(super) const VERSION: u32 = 1;

/// In which form a server is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum As {
    /// A process under orch's own supervisor.
    Process,
    /// A systemd unit.
    Unit,
    /// A container that its engine keeps.
    Docker,
}

impl As {
    /// The word for it, as in `--as`.
    pub fn word(self) -> &'static str {
        match self {
            As::Process => "process",
            As::Unit => "unit",
            As::Docker => "docker",
        }
    }
}

/// A deployment as its folder has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deployed {
    /// Version of this shape.
    pub v: u32,
    /// Its name, which `orch down` takes.
    pub name: String,
    /// The profile that it was rendered from.
    pub profile: String,
    /// The profile's series.
    pub series: String,
    /// The run that deployed it.
    pub run: String,
    /// Since when.
    pub since: Timestamp,
    /// Where it listens.
    pub port: u16,
    /// The GPUs that it is for, by UUID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// How it proves itself.
    pub readiness: Readiness,
    /// How it is stopped.
    pub stop: StopRule,
    /// Names of its secrets; the values lie beside, readable by their owner alone.
    pub secrets: Vec<String>,
    /// What is started.
    pub artefact: Artefact,
}

/// What is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "as", rename_all = "lowercase")]
pub enum Artefact {
    /// A process.
    Process {
        /// Its words.
        argv: Vec<String>,
        /// What is added to its environment.
        env: BTreeMap<String, String>,
        /// Where it begins.
        folder: PathBuf,
    },
    /// A unit.
    Unit {
        /// Who has it.
        manager: Manager,
        /// Its name.
        unit: String,
        /// Its text.
        text: String,
    },
    /// A container.
    Docker {
        /// Its name.
        container: String,
        /// The words of `docker run`, but for the label of the run.
        words: Vec<String>,
    },
}

impl Deployed {
    /// In which form.
    pub fn form(&self) -> As {
        match self.artefact {
            Artefact::Process { .. } => As::Process,
            Artefact::Unit { .. } => As::Unit,
            Artefact::Docker { .. } => As::Docker,
        }
    }

    /// What a person calls it.
    pub fn shown(&self) -> String {
        match &self.artefact {
            Artefact::Process { .. } => format!("deployment {}", self.name),
            Artefact::Unit { unit, .. } => unit.clone(),
            Artefact::Docker { container, .. } => format!("container {container}"),
        }
    }

    /// The whole definition as text, a flag a line: what a difference is shown of. No value of a secret is in it.
    pub fn text(&self) -> String {
        match &self.artefact {
            Artefact::Unit { text, .. } => text.clone(),
            Artefact::Docker { words, .. } => lines(words),
            Artefact::Process { argv, env, folder } => {
                let mut text = format!("cd {}\n", folder.display());
                env.iter().for_each(|(name, value)| text.push_str(&format!("{name}={value}\n")));
                self.secrets.iter().for_each(|name| text.push_str(&format!("{name}=(secret)\n")));
                text + &lines(argv)
            }
        }
    }
}

fn lines(words: &[String]) -> String {
    let mut text = String::new();
    for (place, word) in words.iter().enumerate() {
        let is_flag = word.starts_with('-') && word.parse::<f64>().is_err();
        text.push_str(match (place, is_flag) {
            (0, _) => "",
            (_, true) => "\n  ",
            (_, false) => " ",
        });
        text.push_str(&crate::host::quote(word));
    }
    text + "\n"
}
