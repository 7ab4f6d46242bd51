//! A server that a systemd manager or a container engine keeps: watched through it, and never signalled from here.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::systemd::{Ended, Manager};
use super::{Exited, LaunchError, PortOwner, Watched, docker, port, process};
use crate::event::{Emit, EmitError, Event, Scope};

/// Between two questions to the manager. Each starts a process.
const LOOK: Duration = Duration::from_millis(500);

/// Who keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// A manager, and the unit's name.
    Systemd(Manager, String),
    /// A container engine, and the container's id.
    Docker(String),
}

/// A server that somebody else keeps, from its start on.
#[derive(Debug)]
pub struct Managed {
    keeper: Keeper,
    launched: Instant,
    /// Restarts that were counted when it was started; one more is an end.
    restarts: u64,
    told: AtomicBool,
    /// Copies what it writes into a file.
    log: Mutex<Option<Child>>,
}

impl Drop for Managed {
    fn drop(&mut self) {
        if let Some(mut child) = self.log.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
            // It was started here and not reaped, so the pid is its own.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Managed {
    /// Watches a server that was just started. What it writes is appended to `log`; where nobody can tell what it writes
    /// the file stays empty, and the proof by tokens is all there is.
    pub fn watch(keeper: Keeper, launched: Instant, began: jiff::Timestamp, log: &Path) -> Result<Self, LaunchError> {
        let (restarts, words) = match &keeper {
            Keeper::Systemd(manager, unit) => (manager.show(unit)?.restarts, manager.follow(unit, began)),
            Keeper::Docker(id) => {
                let restarts = docker::inspect(id)?.map_or(0, |container| container.restarts);
                (restarts, ["docker", "logs", "--follow", id].map(str::to_owned).to_vec())
            }
        };
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(log);
        let file = file.map_err(LaunchError::io("open", log))?;
        let both = file.try_clone().map_err(LaunchError::io("open", log))?;
        let child = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).stdout(file).stderr(both).spawn();
        Ok(Managed { keeper, launched, restarts, told: AtomicBool::new(false), log: Mutex::new(child.ok()) })
    }

    /// The pid of its main process, while it has one.
    pub fn pid(&self) -> Option<u32> {
        match &self.keeper {
            Keeper::Systemd(manager, unit) => manager.show(unit).ok()?.main_pid,
            Keeper::Docker(id) => docker::inspect(id).ok()??.pid,
        }
    }

    /// Whether a process is of this server: in its control group, or a descendant of its main process.
    fn has(&self, pid: u32) -> bool {
        let (group, main) = match &self.keeper {
            Keeper::Systemd(manager, unit) => match manager.show(unit) {
                Ok(state) => (state.control_group, state.main_pid),
                Err(_) => return false,
            },
            Keeper::Docker(id) => (Some(id.clone()), self.pid()),
        };
        let of_group = group.is_some_and(|group| {
            std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&group))
        });
        let mut up = pid;
        while !of_group && up > 1 && Some(up) != main {
            up = process::stat(up).map_or(0, |stat| stat.parent);
        }
        of_group || Some(up) == main
    }
}

impl Watched for Managed {
    fn launched(&self) -> Instant {
        self.launched
    }

    fn exited(&self) -> Pin<Box<dyn Future<Output = Exited> + Send + '_>> {
        Box::pin(async {
            loop {
                let (keeper, restarts) = (self.keeper.clone(), self.restarts);
                if let Ok(Some(exited)) = tokio::task::spawn_blocking(move || has_exited(&keeper, restarts)).await {
                    return exited;
                }
                sleep(LOOK).await;
            }
        })
    }

    fn owner_of(&self, number: u16) -> PortOwner {
        let Ok(listeners) = port::listeners(number) else { return PortOwner::CannotTell };
        if listeners.is_empty() {
            return PortOwner::Nobody;
        }
        let pids: Vec<u32> = listeners.iter().flat_map(|one| one.pids().unwrap_or_default()).collect();
        match pids.iter().find(|pid| !self.has(**pid)) {
            None if pids.is_empty() => PortOwner::CannotTell,
            None => PortOwner::Ours,
            Some(stranger) => PortOwner::Stranger(port::name(*stranger)),
        }
    }

    fn tell_exit(&self, exited: Exited, emit: &dyn Emit) -> Result<(), EmitError> {
        if self.told.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let Exited { code, signal, stopped } = exited;
        emit.emit(Scope::Run, Event::ProcessEnded { code, signal, expected: stopped })
    }
}

/// How it ended, if it has. A keeper that cannot be asked for a moment says nothing about the server.
fn has_exited(keeper: &Keeper, restarts: u64) -> Option<Exited> {
    let exited = |code, signal| Some(Exited { code, signal, stopped: false });
    match keeper {
        Keeper::Systemd(manager, unit) => {
            let state = manager.show(unit).ok()?;
            let started_again = state.restarts > restarts || state.sub == "auto-restart";
            match state.status {
                _ if state.is_up() && !started_again => None,
                Some((Ended::Code, code)) => exited(Some(code), None),
                Some((Ended::Signal, signal)) => exited(None, Some(signal)),
                None => exited(None, None),
            }
        }
        Keeper::Docker(id) => match docker::inspect(id).ok()? {
            None => exited(None, None),
            Some(container) if container.running && container.restarts <= restarts => None,
            // The engine's codes above 128 are a signal's, as a shell's are.
            Some(container) => match container.exit_code {
                Some(code @ 129..=192) => exited(None, Some(code - 128)),
                code => exited(code, None),
            },
        },
    }
}
