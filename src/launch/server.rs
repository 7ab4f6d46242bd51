//! A server that this run started: is it there, how did it end, and how to be rid of it.

use std::fs::File;
use std::path::Path;
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::marks::Marks;
use super::servers::Folder;
use super::{LaunchError, Lease, PortOwner, Process, WorkFolder, port, stop};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::record::model::Left;
use crate::render::Warning;

/// How long the supervisor has to write down how a server ended. It takes a moment; only a full disk keeps it from it.
const STATUS: Duration = Duration::from_secs(1);
/// Between two looks at whether the server lives.
const LOOK: Duration = Duration::from_millis(100);

/// How a server's main process ended. Neither code nor signal: it is gone, and so is the supervisor that would have known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exited {
    /// Its exit code,
    pub code: Option<i32>,
    /// or the signal that ended it.
    pub signal: Option<i32>,
    /// Whether it had been told to stop: by this run, by `orch stop`, or by its supervisor.
    pub stopped: bool,
}

impl std::fmt::Display for Exited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(number)) => match Signal::try_from(number) {
                Ok(signal) => write!(f, "killed by {signal}"),
                Err(_) => write!(f, "killed by signal {number}"),
            },
            (None, None) => f.write_str("exit code not known"),
        }
    }
}

/// A server that this run started and answers for. When it is dropped without [`Server::release`] or [`Server::keep`],
/// its supervisor stops it after the time that it may be abandoned for.
#[derive(Debug)]
pub struct Server {
    work: WorkFolder,
    folder: Folder,
    main: Process,
    supervisor: Option<Process>,
    child: Mutex<Child>,
    /// Locked as long as this run lives.
    owner: File,
    leases: Vec<Lease>,
    launched: Instant,
    /// Since when the main process is known to be gone.
    gone: Mutex<Option<Instant>>,
    told: AtomicBool,
}

impl Server {
    #[expect(clippy::too_many_arguments, reason = "called once; a struct would only repeat the fields")]
    pub(crate) fn new(
        work: WorkFolder,
        folder: Folder,
        main: Process,
        supervisor: Option<Process>,
        child: Child,
        owner: File,
        leases: Vec<Lease>,
        launched: Instant,
    ) -> Self {
        let child = Mutex::new(child);
        let (gone, told) = (Mutex::new(None), AtomicBool::new(false));
        Server { work, folder, main, supervisor, child, owner, leases, launched, gone, told }
    }

    /// Its id: the name of its folder under `servers/`, and what `orch stop` takes.
    pub fn id(&self) -> &str {
        self.folder.id()
    }

    /// The pid of its main process.
    pub fn pid(&self) -> u32 {
        self.main.pid
    }

    /// Its main process.
    pub fn process(&self) -> Process {
        self.main
    }

    /// Its supervisor.
    pub fn supervisor(&self) -> Option<Process> {
        self.supervisor
    }

    /// Its folder on the host.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The moment before its supervisor was started.
    pub fn launched(&self) -> Instant {
        self.launched
    }

    /// Waits for the end of its main process. Does not wait for its workers.
    pub async fn exited(&self) -> Exited {
        loop {
            if let Some(exited) = self.has_exited() {
                return exited;
            }
            sleep(LOOK).await;
        }
    }

    /// How its main process ended, if it has.
    pub fn has_exited(&self) -> Option<Exited> {
        // In this order: a supervisor that writes the status and ends between the two looks is not missed.
        let supervised = self.supervisor.is_some_and(|supervisor| supervisor.lives());
        let lives = self.main.lives();
        if let Some(status) = self.folder.status() {
            return Some(Exited { code: status.code, signal: status.signal, stopped: status.stopped });
        }
        if lives {
            return None;
        }
        let mut gone = self.gone.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let since = *gone.get_or_insert_with(Instant::now);
        let stopped = self.folder.has("stopping") || !self.folder.path().exists();
        (!supervised || since.elapsed() >= STATUS).then_some(Exited { code: None, signal: None, stopped })
    }

    /// Emits `process_ended`, once however often it is called.
    pub fn tell_exit(&self, exited: Exited, emit: &dyn Emit) -> Result<(), EmitError> {
        if self.told.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let Exited { code, signal, stopped } = exited;
        emit.emit(Scope::Run, Event::ProcessEnded { code, signal, expected: stopped })
    }

    /// Who answers on a port of this host: this server's processes, or somebody else.
    pub fn owner_of(&self, port: u16) -> PortOwner {
        let Ok(listeners) = port::listeners(port) else { return PortOwner::CannotTell };
        if listeners.is_empty() {
            return PortOwner::Nobody;
        }
        let Ok(ours) = Marks::of(&self.folder).living() else { return PortOwner::CannotTell };
        let mut unknown = false;
        for listener in &listeners {
            let pids = listener.pids().unwrap_or_default();
            unknown |= pids.is_empty();
            let is_ours = pids.iter().any(|pid| ours.iter().any(|stat| stat.process.pid == *pid));
            // One stranger is enough: two sockets can share a port, and nobody knows which of them answers.
            if let (false, Some(pid)) = (is_ours, pids.first()) {
                return PortOwner::Stranger(port::name(*pid));
            }
        }
        if unknown { PortOwner::CannotTell } else { PortOwner::Ours }
    }

    /// A handle that cuts the waiting of a later [`Server::release`] short: the second Ctrl-C.
    pub fn hurry(&self) -> Hurry {
        Hurry { supervisor: self.supervisor }
    }

    /// Lets it outlive this run: `orch ps` shows it and `orch stop` ends it.
    pub fn keep(self) -> Result<(), LaunchError> {
        self.folder.set("keep")
    }

    /// Stops it and returns when nothing of it is left, its supervisor included, or when what is left cannot be ended.
    pub async fn release(self, emit: &dyn Emit, why: &str) -> Result<Left, LaunchError> {
        let before = self.has_exited();
        // The server is stopped even when the journal cannot be written: what was started must not stay.
        let mut journal = emit.emit(Scope::Run, Event::Stopping { why: why.to_owned() });
        let stopped = stop::end_server(&self.folder).await?;
        self.reap().await;
        let exited = before.or_else(|| self.has_exited());
        if let Some(exited) = exited {
            let exited = Exited { stopped: exited.stopped || before.is_none(), ..exited };
            journal = journal.and(self.tell_exit(exited, emit));
        }
        let left = Left { processes: stopped.left.len() as u64, gpu_mib: None };
        if stopped.left.is_empty() {
            journal = journal.and(self.tell_ports(emit).await);
            for lease in &self.leases {
                journal = journal.and(emit.emit(Scope::Run, Event::LeaseLeft { lease: lease.to_string() }));
            }
            self.folder.remove(&self.work)?;
        }
        drop(self.owner);
        journal?;
        Ok(left)
    }

    /// Warns of a port that somebody else has, though nothing of this server is left: the next server would not get it.
    async fn tell_ports(&self, emit: &dyn Emit) -> Result<(), EmitError> {
        for lease in &self.leases {
            let Lease::Port(number) = lease else { continue };
            let text = match stop::freed(*number).await {
                PortOwner::Nobody => continue,
                PortOwner::Stranger(who) => format!("port {number} is held by {who}, which is not of this server"),
                PortOwner::Ours | PortOwner::CannotTell => {
                    format!("port {number} is not free, and who has it cannot be told")
                }
            };
            emit.emit(Scope::Run, Event::Warning(Warning::new("port_not_free", text)))?;
        }
        Ok(())
    }

    /// Takes in the supervisor, which has ended: it was started by this process.
    async fn reap(&self) {
        for _ in 0..50 {
            let reaped = self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).try_wait();
            if !matches!(reaped, Ok(None)) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Cuts the waiting of a stop short.
#[derive(Clone, Copy, Debug)]
pub struct Hurry {
    supervisor: Option<Process>,
}

impl Hurry {
    /// Everything of the server is killed without further patience.
    pub fn now(&self) {
        if let Some(supervisor) = self.supervisor {
            // If it is gone there is nobody to hurry.
            let _ = supervisor.signal(Signal::SIGQUIT);
        }
    }
}
