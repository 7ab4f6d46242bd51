//! Which hosts there are, and a connection to one of them.
//!
//! `local` is this machine. Of the entries of `hosts.yaml` those are reached here that only have to be entered from this
//! machine; others wait for their transport.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::Value;

use super::{Door, RemoteError};
use crate::host::{Address, BoxedIo, ByteStream, Host, HostError, HostPath, Local, Mode, Output, Words};

/// The name of this machine.
const LOCAL: &str = "local";

/// The hosts that a file names.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    path: Option<PathBuf>,
    entries: BTreeMap<String, Value>,
}

/// What of a host's entry orch beside the server goes by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The work folder there, where it is not the usual one.
    pub work: Option<String>,
    /// What a shell does before a run: it sets up the engine's environment.
    pub activate: Option<String>,
    /// What `--displace` stops there.
    pub production: Option<Value>,
}

impl Hosts {
    /// Reads the file that was asked for, else `hosts.yaml` in the first of the profile folders that has one.
    pub fn read(asked: Option<&Path>, folders: &[PathBuf]) -> Result<Self, RemoteError> {
        let found = folders.iter().map(|folder| folder.join("hosts.yaml")).find(|path| path.exists());
        let Some(path) = asked.map(Path::to_owned).or(found) else { return Ok(Hosts::default()) };
        let text = std::fs::read_to_string(&path).map_err(|source| RemoteError::File {
            what: "read",
            path: path.clone(),
            source,
        })?;
        let entries = serde_yaml::from_str(&text).map_err(|error| RemoteError::Host {
            name: path.display().to_string(),
            why: error.to_string(),
            help: "docs/hosts.md shows its keys".to_owned(),
        })?;
        Ok(Hosts { path: Some(path), entries })
    }

    fn entry(&self, name: &str) -> Result<&Value, RemoteError> {
        self.entries.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.entries.keys().map(String::as_str).collect();
            let why = match &self.path {
                Some(path) => format!("{} has no such entry (it has {})", path.display(), known.join(", ")),
                None => "there is no hosts.yaml".to_owned(),
            };
            let help = "`--hosts FILE` names the file of hosts; docs/hosts.md shows its keys".to_owned();
            RemoteError::Host { name: name.to_owned(), why, help }
        })
    }

    /// What orch goes by on that host.
    pub fn settings(&self, name: &str) -> Result<Settings, RemoteError> {
        if name == LOCAL && !self.entries.contains_key(LOCAL) {
            return Ok(Settings::default());
        }
        let entry = self.entry(name)?;
        let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Settings { work: text("work"), activate: text("activate"), production: entry.get("production").cloned() })
    }
}

/// Opens a connection to a host of that name.
async fn open(name: &str, hosts: &Hosts, _ssh_config: Option<&Path>) -> Result<Here, RemoteError> {
    if name == LOCAL && !hosts.entries.contains_key(LOCAL) {
        return Ok(Here { enter: Vec::new() });
    }
    let entry = hosts.entry(name)?;
    let is_here = entry.get("ssh").is_none_or(|ssh| ssh == LOCAL);
    if !is_here || entry.get("slurm").is_some() {
        return Err(RemoteError::Host {
            name: name.to_owned(),
            why: "this build reaches only hosts that are entered from this machine (`enter:`)".to_owned(),
            help: "run orch on that host itself".to_owned(),
        });
    }
    let enter = entry.get("enter").and_then(Value::as_str).unwrap_or_default();
    let enter = shell_words::split(enter).map_err(|error| RemoteError::Host {
        name: name.to_owned(),
        why: format!("`enter`: {error}"),
        help: "write the words that come before a command, as in a shell".to_owned(),
    })?;
    Ok(Here { enter })
}

/// This machine, with words before each command.
#[derive(Clone, Debug)]
pub struct Here {
    enter: Vec<String>,
}

impl Host for Here {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        let all = Words::new(self.enter.iter().chain(words.as_slice()).cloned())?;
        Local.run(&all, stdin).await
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        Local.put(path, content, mode).await
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        Local.read(path, from).await
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        Local.connect(to).await
    }
}

/// A host by its name.
#[derive(Clone, Debug)]
pub struct Named {
    name: String,
    hosts: Hosts,
    ssh_config: Option<PathBuf>,
}

impl Named {
    /// The host of that name among those of a file.
    pub fn new(name: &str, hosts: Hosts, ssh_config: Option<PathBuf>) -> Self {
        Named { name: name.to_owned(), hosts, ssh_config }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its entry says.
    pub fn settings(&self) -> Result<Settings, RemoteError> {
        self.hosts.settings(&self.name)
    }
}

impl Door for Named {
    type Host = Here;

    async fn open(&self) -> Result<Here, RemoteError> {
        open(&self.name, &self.hosts, self.ssh_config.as_deref()).await
    }
}
