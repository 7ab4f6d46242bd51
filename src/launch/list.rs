//! What of ours is on this host: `orch ps`.

use jiff::Timestamp;
use serde::Serialize;

use super::marks::Marks;
use super::servers::Folder;
use super::{LaunchError, Lease, WorkFolder, docker, lease};

/// How a server is doing, as far as processes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It runs, and its supervisor looks after it.
    Running,
    /// Something of it runs, and its supervisor is gone.
    Orphan,
    /// It is being stopped.
    Stopping,
    /// Its main process is gone.
    Ended,
}

/// A server that has a folder here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// What `orch stop` takes.
    pub id: String,
    /// The run that started it.
    pub run: String,
    /// Its main process, while that lives.
    pub pid: Option<u32>,
    /// Its supervisor, while that lives.
    pub supervisor_pid: Option<u32>,
    /// The port that it has a lease for.
    pub port: Option<u16>,
    /// How it is doing.
    pub state: State,
    /// Whether the machine was started again since: nothing of it can live.
    pub rebooted: bool,
    /// When it was launched.
    pub since: Option<Timestamp>,
    /// Its command.
    pub command: Vec<String>,
    /// The leases that are still held.
    pub leases: Vec<Lease>,
    /// How many of its processes live, the supervisor not counted.
    pub processes: usize,
}

impl Listed {
    /// Whether any process of it lives.
    pub fn lives(&self) -> bool {
        self.processes > 0 || self.supervisor_pid.is_some()
    }
}

/// All servers that have a folder here, by id; also those that have ended and whose run never took notice.
pub fn list(work: &WorkFolder) -> Result<Vec<Listed>, LaunchError> {
    Folder::all(work)?.iter().map(|folder| listed(work, folder)).collect()
}

fn listed(work: &WorkFolder, folder: &Folder) -> Result<Listed, LaunchError> {
    let plan = folder.plan();
    let supervisor = folder.supervisor().filter(|supervisor| supervisor.lives());
    let main = folder.main().filter(|main| main.lives());
    let processes = match folder.is_of_another_boot() {
        true => 0,
        false => Marks::of(folder).living().map_err(LaunchError::io("read", "/proc"))?.len(),
    };
    // A container outlives its client, and its processes may be another user's.
    let processes = processes.max(usize::from(docker::lives(folder)));
    let state = match (processes > 0, supervisor) {
        (false, None) => State::Ended,
        (_, Some(_)) if folder.has("stopping") => State::Stopping,
        (true, None) if folder.has("stopping") => State::Stopping,
        (true, None) => State::Orphan,
        // Between the start of the supervisor and that of the server, nothing has ended yet.
        (_, Some(_)) if main.is_some() || folder.main().is_none() => State::Running,
        (_, Some(_)) => State::Ended,
    };
    let held = |lease: &Lease| lease::is_held(work, lease);
    Ok(Listed {
        id: folder.id().to_owned(),
        run: folder.run().to_owned(),
        pid: main.map(|main| main.pid),
        supervisor_pid: supervisor.map(|supervisor| supervisor.pid),
        port: plan.as_ref().and_then(|plan| plan.port()),
        state,
        rebooted: folder.is_of_another_boot(),
        since: plan.as_ref().map(|plan| plan.since),
        command: plan.as_ref().map(|plan| plan.argv.clone()).unwrap_or_default(),
        leases: match state {
            State::Ended if processes == 0 && supervisor.is_none() => Vec::new(),
            _ => plan.map(|plan| plan.leases).unwrap_or_default().into_iter().filter(held).collect(),
        },
        processes,
    })
}
