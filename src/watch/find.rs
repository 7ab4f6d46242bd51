//! Finding servers on this machine by what the kernel shows of its processes. Looks only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use super::engine_of;
use crate::engine::kind_word;
use crate::launch::{self, Process};
use crate::profile::EngineKind;

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Its first process.
    pub pid: u32,
    /// The engine, as profiles call it; `null` where orch does not know what it is.
    pub engine: Option<String>,
    /// Its command line.
    pub command: Vec<String>,
    /// Ports that one of its processes listens on.
    pub ports: Vec<u16>,
    /// Device files of GPUs that they have open.
    pub gpus: Vec<String>,
    /// The file that it writes its log to; `null` where that is a pipe, a terminal, or not to be seen.
    pub log: Option<PathBuf>,
    /// When it was started.
    pub since: Option<Timestamp>,
    /// By what it was found: `port`, `gpu`, `log`.
    pub by: Vec<&'static str>,
    /// Its processes.
    #[serde(skip)]
    pub processes: Vec<Process>,
}

/// What a process has open.
#[derive(Default)]
struct Open {
    sockets: BTreeSet<String>,
    gpus: BTreeSet<String>,
    log: Option<PathBuf>,
}

/// All servers of this machine that can be seen: those whose command line is that of an engine, and whoever holds a GPU
/// and listens.
pub fn find() -> std::io::Result<Vec<Found>> {
    let all = launch::processes()?;
    let listening = listening();
    let commands: BTreeMap<u32, Vec<String>> = all.keys().map(|pid| (*pid, words(*pid))).collect();
    let own = launch::own_line(&all);
    let kind = |pid: &u32| if own.contains(pid) { None } else { engine_of(&commands[pid]) };
    // The outermost of a line of processes that are all of one engine: a worker is no server of its own.
    let mut roots: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in all.keys().filter(|pid| !own.contains(pid)) {
        let mut root = None;
        let mut at = *pid;
        let mut steps = 0;
        while at > 1 && steps < 64 {
            if kind(&at).is_some() {
                root = Some(at);
            }
            at = all.get(&at).map_or(0, |seen| seen.parent);
            steps += 1;
        }
        if let Some(root) = root {
            roots.entry(root).or_default().push(*pid);
        }
    }
    let known: BTreeSet<u32> = roots.values().flatten().copied().collect();
    let mut found: Vec<Found> = roots
        .iter()
        .filter_map(|(root, members)| server(*root, members, kind(root), &all, &commands, &listening))
        .collect();
    // Whoever holds a GPU and listens is a server as well, of whatever kind.
    for pid in all.keys().filter(|pid| !known.contains(pid) && !own.contains(pid)) {
        let one = server(*pid, &[*pid], None, &all, &commands, &listening);
        found.extend(one.filter(|one| !one.gpus.is_empty() && !one.ports.is_empty()));
    }
    Ok(found)
}

fn server(
    root: u32,
    members: &[u32],
    kind: Option<EngineKind>,
    all: &BTreeMap<u32, launch::Seen>,
    commands: &BTreeMap<u32, Vec<String>>,
    listening: &BTreeMap<String, u16>,
) -> Option<Found> {
    let opens: Vec<Open> = members.iter().map(|pid| open(*pid)).collect();
    let ports: BTreeSet<u16> =
        opens.iter().flat_map(|open| &open.sockets).filter_map(|inode| listening.get(inode).copied()).collect();
    let gpus: BTreeSet<String> = opens.iter().flat_map(|open| open.gpus.iter().cloned()).collect();
    // The first process's own first: its children may write elsewhere.
    let at = members.iter().position(|pid| *pid == root)?;
    let log = opens[at].log.clone().or_else(|| opens.iter().find_map(|open| open.log.clone()));
    let mut by = Vec::new();
    by.extend((!ports.is_empty()).then_some("port"));
    by.extend((!gpus.is_empty()).then_some("gpu"));
    by.extend(log.is_some().then_some("log"));
    if by.is_empty() {
        return None;
    }
    Some(Found {
        pid: root,
        engine: kind.map(|kind| kind_word(kind).to_owned()),
        command: commands.get(&root)?.clone(),
        ports: ports.into_iter().collect(),
        gpus: gpus.into_iter().collect(),
        log,
        since: launch::began(root),
        by,
        processes: members.iter().filter_map(|pid| Some(all.get(pid)?.process)).collect(),
    })
}

fn words(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn open(pid: u32) -> Open {
    let mut open = Open::default();
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        let text = link.to_string_lossy();
        if let Some(inode) = text.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
            open.sockets.insert(inode.to_owned());
        } else if let Some(minor) = text.strip_prefix("/dev/nvidia").filter(|minor| minor.parse::<u32>().is_ok()) {
            open.gpus.insert(minor.to_owned());
        }
    }
    open.log = ["1", "2"].iter().find_map(|number| log_file(&folder.join(number)));
    open
}

/// Where a process writes to, if that is a file.
fn log_file(open: &Path) -> Option<PathBuf> {
    let link = fs::read_link(open).ok()?;
    // Through the link of the kernel: the file may lie in another container's root, or have been renamed.
    let is_file = fs::metadata(open).is_ok_and(|meta| meta.is_file());
    (is_file && link.is_absolute() && link.exists()).then_some(link)
}

/// The ports that somebody listens on, by the inode of the socket.
fn listening() -> BTreeMap<String, u16> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        (*fields.get(3)? == "0A").then_some(())?;
        Some(((*fields.get(9)?).to_owned(), u16::from_str_radix(port, 16).ok()?))
    };
    tables.iter().flat_map(|table| table.lines().skip(1).filter_map(line)).collect()
}
