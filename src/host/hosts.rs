//! `hosts.yaml`: what is known of each host. The one reader of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Words;
use super::entered::prefix;
use crate::launch::systemd::Manager;
use crate::units;

/// The entry of this machine.
pub const LOCAL: &str = "local";
/// A file of this size is no list of hosts.
const MAX_BYTES: u64 = 1 << 20;

/// The hosts that a file names.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    path: Option<PathBuf>,
    entries: BTreeMap<String, Entry>,
}

/// What is wrong with the file.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum HostsError {
    /// It cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    #[diagnostic(
        code(orch::hosts::read),
        help("`--hosts FILE` names another; without one it is hosts.yaml in the profile folders")
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// It does not say what it should.
    #[error("{}: {why}", path.display())]
    #[diagnostic(code(orch::hosts::wrong), help("{help}"))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// What to do.
        help: String,
    },
    /// Nothing says what production is.
    #[error("{why}")]
    #[diagnostic(
        code(orch::hosts::no_production),
        help(
            "write `{host}: {{production: {{unit: NAME.service, url: \"http://127.0.0.1:PORT\"}}}}` into hosts.yaml, or `container:` or `command:`"
        )
    )]
    NoProduction {
        /// What was looked for, and where.
        why: String,
        /// The host's entry.
        host: String,
    },
}

/// What the file says of one host. All of it may be absent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Entry {
    /// Where it is: an alias of `~/.ssh/config`, or `user@address:port`; `local` is this machine. See [`Entry::place`].
    pub ssh: Option<String>,
    /// The words that lead inside, if it is a container in that host.
    pub enter: Option<Enter>,
    /// Its GPUs that are orch's to use, by number.
    pub gpus: Option<Gpus>,
    /// A line for the shell before anything of an engine's, such as `. ~/venv/bin/activate`.
    pub activate: Option<String>,
    /// What speaks SSH.
    pub transport: Transport,
    /// The network interface, or the address, by which the nodes of a server reach each other.
    pub fabric: Option<String>,
    /// What is done with the clocks of its GPUs while measuring.
    pub clocks: Option<Clocks>,
    /// The folder of orch there.
    pub work: Option<PathBuf>,
    /// The Slurm cluster whose login node it is.
    pub slurm: Option<Value>,
    /// What serves there when nobody measures.
    pub(crate) production: Option<ProductionKeys>,
}

/// What speaks SSH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// orch itself.
    #[default]
    Russh,
    /// The system's `ssh`, for what only it can do: FIDO keys, Kerberos, a company's wrapper.
    OpenSsh,
}

/// The words that lead inside, as a line or as a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "LineOrWords")]
pub struct Enter(pub Words);

#[derive(Deserialize)]
#[serde(untagged)]
enum LineOrWords {
    Line(String),
    Words(Vec<String>),
}

impl TryFrom<LineOrWords> for Enter {
    type Error = String;

    fn try_from(written: LineOrWords) -> Result<Self, String> {
        let words = match written {
            LineOrWords::Line(line) => prefix(&line),
            LineOrWords::Words(words) => Words::new(words).map_err(|error| error.to_string()),
        };
        words.map(Enter).map_err(|why| format!("`enter` holds the words that lead inside (`pct exec 129 --`): {why}"))
    }
}

/// GPUs by number: `0-3`, `0,2,4-5`, `1`, or a list of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "OneOrSeveral")]
pub struct Gpus(pub Vec<u32>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(u32),
    Several(Vec<u32>),
    Text(String),
}

/// More GPUs than this are a slip.
const MOST_GPUS: u32 = 1024;

impl TryFrom<OneOrSeveral> for Gpus {
    type Error = String;

    fn try_from(written: OneOrSeveral) -> Result<Self, String> {
        let mut all = match written {
            OneOrSeveral::One(one) => vec![one],
            OneOrSeveral::Several(several) => several,
            OneOrSeveral::Text(text) => ranges(&text)
                .ok_or_else(|| format!("`gpus: {text}` is no list of GPUs: write their numbers, `0-3` or `0,2`"))?,
        };
        all.sort_unstable();
        all.dedup();
        match all.last() {
            None => Err("`gpus` names none; leave it out to mean all".to_owned()),
            Some(last) if *last >= MOST_GPUS => Err(format!("`gpus`: there is no GPU {last}")),
            Some(_) => Ok(Gpus(all)),
        }
    }
}

fn ranges(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || to >= MOST_GPUS {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

/// What is done with the clocks of the GPUs while measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// The clock in MHz that the GPUs are locked to.
    pub lock: u32,
}

/// The keys of `production`, which `deploy` reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProductionKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) manager: Option<Manager>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<Commands>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<String>,
}

/// Production that commands start and stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Commands {
    pub(crate) start: Vec<String>,
    pub(crate) stop: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<Vec<String>>,
}

impl Hosts {
    /// Reads the file that was asked for, else `hosts.yaml` in the first of the profile folders that has one.
    pub fn read(asked: Option<&Path>, folders: &[PathBuf]) -> Result<Self, HostsError> {
        let found = folders.iter().map(|folder| folder.join("hosts.yaml")).find(|path| path.exists());
        let Some(path) = asked.map(Path::to_owned).or(found) else { return Ok(Hosts::default()) };
        let cannot = |why: String| HostsError::Read { path: path.clone(), why };
        let size = std::fs::metadata(&path).map_err(|error| cannot(error.to_string()))?.len();
        if size > MAX_BYTES {
            return Err(cannot(format!("it is larger than {}", units::bytes_text(MAX_BYTES))));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| cannot(error.to_string()))?;
        let entries: BTreeMap<String, Entry> = serde_yaml::from_str(&text).map_err(|error| HostsError::Wrong {
            path: path.clone(),
            why: error.to_string(),
            help: "docs/hosts.md shows its keys".to_owned(),
        })?;
        for (name, entry) in &entries {
            entry.consistent(name).map_err(|(why, help)| HostsError::Wrong {
                path: path.clone(),
                why: format!("`{name}`: {why}"),
                help: help.to_owned(),
            })?;
        }
        Ok(Hosts { path: Some(path), entries })
    }

    /// What is known of a host; nothing for one that the file does not name.
    pub fn entry(&self, host: &str) -> Option<&Entry> {
        self.entries.get(host)
    }

    /// What the file says of a host's production, in its own keys.
    pub fn production_keys(&self, host: &str) -> Option<Value> {
        serde_json::to_value(self.entry(host)?.production.as_ref()?).ok()
    }

    /// The names of all hosts, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl Entry {
    /// Where it is. Without `ssh`, what is entered is in this machine, and any other host has the name of its entry.
    pub fn place<'a>(&'a self, name: &'a str) -> &'a str {
        self.ssh.as_deref().unwrap_or(if self.enter.is_some() { LOCAL } else { name })
    }

    fn consistent(&self, name: &str) -> Result<(), (&'static str, &'static str)> {
        if self.ssh.as_ref().is_some_and(|ssh| ssh.trim().is_empty()) {
            return Err(("`ssh` is empty", "write an alias of ~/.ssh/config, or `user@address:port`"));
        }
        if self.place(name) == LOCAL && self.transport == Transport::OpenSsh {
            return Err(("`transport` is for a host that is reached by `ssh`", "take it out, or say `ssh:`"));
        }
        if self.clocks.is_some_and(|clocks| clocks.lock == 0) {
            return Err(("`clocks.lock` is no clock", "write it in MHz: `clocks: {lock: 1800}`"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Hosts, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts.yaml");
        std::fs::write(&path, text).unwrap();
        Hosts::read(Some(&path), &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn all_keys_are_read() {
        let hosts = read(
            "ct129:\n  ssh: root@gpu-3\n  enter: pct exec 129 --\n  gpus: 0-1\n  activate: . ~/sglang/bin/activate\n\
             big8: {ssh: big8, transport: openssh, gpus: '0-7', fabric: ib0, clocks: {lock: 1800}, work: /var/lib/orch}\n\
             cluster: {ssh: login-1, slurm: {partition: gpu}}\none: {gpus: 3, enter: [docker, exec, -i, c]}\n\
             some: {gpus: [2, 0], transport: russh}\n",
        )
        .unwrap();
        assert_eq!(hosts.names().collect::<Vec<_>>(), ["big8", "cluster", "ct129", "one", "some"]);
        let ct129 = hosts.entry("ct129").unwrap();
        assert_eq!(ct129.enter.as_ref().unwrap().0.as_slice(), ["pct", "exec", "129", "--"]);
        assert_eq!(ct129.gpus, Some(Gpus(vec![0, 1])));
        assert_eq!((ct129.ssh.as_deref(), ct129.transport), (Some("root@gpu-3"), Transport::Russh));
        let big8 = hosts.entry("big8").unwrap();
        assert_eq!((big8.clocks, big8.fabric.as_deref()), (Some(Clocks { lock: 1800 }), Some("ib0")));
        assert_eq!((big8.transport, big8.work.as_deref()), (Transport::OpenSsh, Some(Path::new("/var/lib/orch"))));
        assert_eq!(hosts.entry("one").unwrap().gpus, Some(Gpus(vec![3])));
        assert_eq!(hosts.entry("some").unwrap().gpus, Some(Gpus(vec![0, 2])));
        assert!(hosts.entry("cluster").unwrap().slurm.is_some() && hosts.entry("none").is_none());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("a: {shh: b}", "shh"),
            ("a: {transport: telnet}", "telnet"),
            ("a: {gpus: many}", "`gpus: many`"),
            ("a: {gpus: 3-1}", "`gpus: 3-1`"),
            ("a: {gpus: []}", "names none"),
            ("a: {enter: 'cd x && y'}", "`enter`"),
            ("a: {clocks: {lock: 0}}", "`a`: `clocks.lock`"),
            ("a: {clocks: {look: 1}}", "look"),
            ("a: {ssh: ''}", "`a`: `ssh` is empty"),
            ("local: {transport: openssh}", "`local`: `transport`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
