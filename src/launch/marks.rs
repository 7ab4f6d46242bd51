//! Which processes are ours.
//!
//! Engines rename themselves, fork, lose their parents and wipe their environment, so no single mark is enough:
//!
//! - the entry `ORCH_RUN=<id>` in the environment that a process was started with;
//! - a file in memory with the server's id for its name, open from the start and inherited by every process that is
//!   forked, whatever it does to its title and environment;
//! - the session that the server was started in;
//! - every process that was seen to descend from it, by pid and start;
//! - what descends from any of these, and, while the supervisor lives, from the supervisor: as the reaper of its
//!   subtree it inherits every process whose parent dies.
//!
//! A name or an argument never counts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use super::Process;
use super::process::{self, Stat};
use super::servers::Folder;

/// The variable that marks a server's processes with its id.
pub(crate) const MARK: &str = "ORCH_RUN";

/// The name of the file in memory that marks the processes of a server.
pub(crate) fn memory_name(id: &str) -> String {
    format!("{MARK}={id}")
}

/// The marks of one server.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    entry: String,
    /// The file in memory that a server's processes inherit, as `/proc` names it.
    memory: PathBuf,
    main: Option<Process>,
    supervisor: Option<Process>,
    seen: BTreeSet<Process>,
    /// Looked at and found not ours; only for [`Marks::newcomers`].
    foreign: BTreeSet<u32>,
    /// Without the mark in their environment, which is read once: a process of ours has it from its fork on, and a
    /// stranger that takes it on later does so by running something else in its place.
    unmarked: BTreeSet<Process>,
}

impl Marks {
    /// The marks that a server's folder tells of.
    pub(crate) fn of(folder: &Folder) -> Self {
        let main = folder.main();
        let seen = if folder.is_of_another_boot() { Vec::new() } else { folder.seen() };
        Marks {
            entry: format!("{MARK}={}", folder.id()),
            memory: PathBuf::from(format!("/memfd:{} (deleted)", memory_name(folder.id()))),
            main,
            supervisor: folder.supervisor(),
            seen: seen.into_iter().chain(main).collect(),
            foreign: BTreeSet::new(),
            unmarked: BTreeSet::new(),
        }
    }

    /// Every process that was seen, and may live.
    pub(crate) fn seen(&self) -> Vec<Process> {
        self.seen.iter().copied().collect()
    }

    /// The server's main process.
    pub(crate) fn main(&self) -> Option<Process> {
        self.main
    }

    /// Every process of ours that lives. What is found is remembered: a child is still known after its parent is gone.
    pub(crate) fn living(&mut self) -> io::Result<Vec<Stat>> {
        let all = process::all()?;
        let spared = process::self_and_ancestors(&all);
        let supervisor = self.living_supervisor(&all);
        let may = |stat: &&Stat| !spared.contains(&stat.process.pid) && Some(stat.process.pid) != supervisor;
        let mut ours = BTreeSet::new();
        let mut unmarked = BTreeSet::new();
        for stat in all.values().filter(may) {
            if self.seen.contains(&stat.process) || self.is_marked(stat) {
                ours.insert(stat.process.pid);
            } else {
                unmarked.insert(stat.process);
            }
        }
        self.unmarked = unmarked;
        loop {
            let session = self.session(&all, &ours);
            let more: Vec<u32> = all
                .values()
                .filter(may)
                .filter(|stat| !ours.contains(&stat.process.pid))
                .filter(|stat| {
                    ours.contains(&stat.parent) || Some(stat.parent) == supervisor || Some(stat.session) == session
                })
                .map(|stat| stat.process.pid)
                .collect();
            if more.is_empty() {
                break;
            }
            ours.extend(more);
        }
        let found: Vec<Stat> =
            ours.iter().filter_map(|pid| all.get(pid)).filter(|stat| stat.lives()).cloned().collect();
        self.seen.extend(found.iter().map(|stat| stat.process));
        Ok(found)
    }

    fn is_marked(&self, stat: &Stat) -> bool {
        !self.unmarked.contains(&stat.process)
            && (process::environment_has(stat.process.pid, &self.entry)
                || process::has_open(stat.process.pid, &self.memory))
    }

    /// The session that the server was started in, as long as it is still that one: a process known otherwise is in it.
    /// When all of a session are gone its number may come back as a stranger's, and a stranger's session is never ours
    /// for its number alone.
    fn session(&self, all: &BTreeMap<u32, Stat>, ours: &BTreeSet<u32>) -> Option<u32> {
        let session = self.main?.pid;
        let pinned = ours.iter().filter_map(|pid| all.get(pid)).any(|stat| stat.session == session);
        let stolen = all.get(&session).is_some_and(|leader| Some(leader.process) != self.main);
        (pinned && !stolen).then_some(session)
    }

    fn living_supervisor(&self, all: &BTreeMap<u32, Stat>) -> Option<u32> {
        let supervisor = self.supervisor?;
        all.get(&supervisor.pid).filter(|stat| stat.process == supervisor && stat.lives()).map(|stat| stat.process.pid)
    }

    /// Processes that descend from the server and were not seen before; for the supervisor, a few times a second.
    /// Only pids that are new are looked at, so that this costs next to nothing beside a measurement.
    /// Also gives those of before that are gone.
    pub(crate) fn newcomers(&mut self, supervisor: u32) -> io::Result<(Vec<Process>, Vec<Process>)> {
        let pids: BTreeSet<u32> = process::pids()?.into_iter().collect();
        self.foreign.retain(|pid| pids.contains(pid));
        let known: Vec<Stat> = self.seen.iter().filter_map(|seen| process::stat(seen.pid)).collect();
        let known: Vec<Stat> = known.into_iter().filter(|stat| self.seen.contains(&stat.process)).collect();
        // The dead are forgotten here (the file still has them): their pids may already be somebody else's.
        let still: BTreeSet<Process> = known.iter().map(|stat| stat.process).collect();
        let gone = self.seen.difference(&still).copied().collect();
        self.seen = still;
        let session = self.main.map(|main| main.pid).filter(|main| known.iter().any(|stat| stat.session == *main));
        let mut ours: BTreeSet<u32> = known.iter().map(|stat| stat.process.pid).collect();
        let mut fresh: Vec<Stat> = pids
            .iter()
            .filter(|pid| !ours.contains(pid) && !self.foreign.contains(pid) && **pid != supervisor)
            .filter_map(|pid| process::stat(*pid))
            .collect();
        ours.insert(supervisor);
        let mut found = Vec::new();
        loop {
            let (more, rest): (Vec<Stat>, Vec<Stat>) =
                fresh.into_iter().partition(|stat| ours.contains(&stat.parent) || Some(stat.session) == session);
            fresh = rest;
            if more.is_empty() {
                break;
            }
            ours.extend(more.iter().map(|stat| stat.process.pid));
            found.extend(more.iter().map(|stat| stat.process));
        }
        self.foreign.extend(fresh.iter().map(|stat| stat.process.pid));
        self.seen.extend(found.iter().copied());
        Ok((found, gone))
    }
}
