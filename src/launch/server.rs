//! A server that this run started: is it there, how did it end, and how to be rid of it.

use std::collections::BTreeSet;
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
use super::{LaunchError, Lease, PortOwner, Process, WorkFolder, port, stop, telemetry};
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

/// A server: one that this run started or took over and answers for, one that another run kept, or one elsewhere.
///
/// When one of ours is dropped without [`Server::release`] or [`Server::keep`], its supervisor stops it after the time
/// that it may be abandoned for.
#[derive(Debug)]
pub struct Server {
    local: Option<Local>,
    launched: Instant,
    /// Since when the main process is known to be gone.
    gone: Mutex<Option<Instant>>,
    told: AtomicBool,
    /// Whether it was said that the supervisor is gone.
    orphan_told: AtomicBool,
}

/// A server on this machine that has a folder here.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) work: WorkFolder,
    pub(crate) folder: Folder,
    pub(crate) main: Process,
    pub(crate) supervisor: Option<Process>,
    /// The supervisor, where this process started it.
    pub(crate) child: Mutex<Option<Child>>,
    /// Locked as long as this run lives; `None` for a server that belongs to nobody's run.
    pub(crate) owner: Option<File>,
    pub(crate) leases: Vec<Lease>,
}

impl Server {
    pub(crate) fn new(local: Local, launched: Instant) -> Self {
        Server::with(Some(local), launched)
    }

    /// One that somebody else looks after, at an address: it is measured, and nothing is known of its processes.
    pub fn elsewhere() -> Self {
        Server::with(None, Instant::now())
    }

    fn with(local: Option<Local>, launched: Instant) -> Self {
        let (gone, told, orphan_told) = (Mutex::new(None), AtomicBool::new(false), AtomicBool::new(false));
        Server { local, launched, gone, told, orphan_told }
    }

    /// Its id: the name of its folder under `servers/`, and what `orch stop` takes. Empty for one elsewhere.
    pub fn id(&self) -> &str {
        self.local.as_ref().map_or("", |local| local.folder.id())
    }

    /// The pid of its main process; 0 for one elsewhere.
    pub fn pid(&self) -> u32 {
        self.local.as_ref().map_or(0, |local| local.main.pid)
    }

    /// Whether this run answers for it, and ends it.
    pub fn is_ours(&self) -> bool {
        self.local.as_ref().is_some_and(|local| local.owner.is_some())
    }

    /// Its main process.
    pub fn process(&self) -> Option<Process> {
        self.local.as_ref().map(|local| local.main)
    }

    /// Its supervisor, as it was when this value was made.
    pub fn supervisor(&self) -> Option<Process> {
        self.local.as_ref().and_then(|local| local.supervisor)
    }

    /// Its folder on the host; empty for one elsewhere.
    pub fn folder(&self) -> &Path {
        self.local.as_ref().map_or(Path::new(""), |local| local.folder.path())
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
        let local = self.local.as_ref()?;
        // In this order: a supervisor that writes the status and ends between the two looks is not missed.
        let supervised = local.supervisor.is_some_and(|supervisor| supervisor.lives());
        let lives = local.main.lives();
        if let Some(status) = local.folder.status() {
            return Some(Exited { code: status.code, signal: status.signal, stopped: status.stopped });
        }
        if lives {
            return None;
        }
        let mut gone = self.gone.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let since = *gone.get_or_insert_with(Instant::now);
        let stopped = local.folder.has("stopping") || !local.folder.path().exists();
        (!supervised || since.elapsed() >= STATUS).then_some(Exited { code: None, signal: None, stopped })
    }

    /// Watches the supervisor for as long as it is polled: if that ends before the server does, it is said once, since
    /// the server is an orphan then. It still has its leases, and [`Server::release`] still ends it.
    pub async fn watch_supervisor(&self, emit: &dyn Emit) -> Result<(), EmitError> {
        loop {
            self.tell_orphan(emit)?;
            sleep(LOOK).await;
        }
    }

    /// Says once a second what the server's processes and devices take, for as long as it is polled. Of a server elsewhere
    /// nothing is known, so nothing is said.
    pub async fn watch_telemetry(&self, emit: &dyn Emit) -> Result<(), EmitError> {
        match &self.local {
            Some(local) => telemetry::watch(&local.folder, emit).await,
            None => std::future::pending().await,
        }
    }

    fn tell_orphan(&self, emit: &dyn Emit) -> Result<(), EmitError> {
        let Some(local) = &self.local else { return Ok(()) };
        let gone = local.supervisor.is_some_and(|supervisor| !supervisor.lives());
        if !gone || local.folder.status().is_some() || local.folder.has("stopping") || !local.main.lives() {
            return Ok(());
        }
        if self.orphan_told.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let pid = local.supervisor.map_or(0, |supervisor| supervisor.pid);
        let text = format!(
            "the supervisor of the server (pid {pid}) was killed from outside; the run goes on, and ends the server itself"
        );
        emit.emit(Scope::Run, Event::Warning(Warning::new("supervisor_gone", text)))
    }

    /// Emits `process_ended`, once however often it is called.
    pub fn tell_exit(&self, exited: Exited, emit: &dyn Emit) -> Result<(), EmitError> {
        if self.told.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let Exited { code, signal, stopped } = exited;
        emit.emit(Scope::Run, Event::ProcessEnded { code, signal, expected: stopped })
    }

    /// Its processes that may live: those that its supervisor has seen, a few times a second. `None` for one elsewhere.
    pub fn processes(&self) -> Option<Vec<Process>> {
        let local = self.local.as_ref()?;
        let gone: BTreeSet<Process> =
            local.folder.lives().into_iter().filter(|(_, gone)| gone.is_some()).map(|(process, _)| process).collect();
        let mut all: BTreeSet<Process> = local.folder.seen().into_iter().collect();
        all.insert(local.main);
        Some(all.difference(&gone).copied().collect())
    }

    /// The GPUs that it has leases for, by UUID.
    pub fn devices(&self) -> Vec<String> {
        let gpu = |lease: &Lease| match lease {
            Lease::Gpu(uuid) => Some(uuid.clone()),
            _ => None,
        };
        self.local.iter().flat_map(|local| &local.leases).filter_map(gpu).collect()
    }

    /// Who answers on a port of this host: this server's processes, or somebody else.
    pub fn owner_of(&self, port: u16) -> PortOwner {
        let Some(local) = &self.local else { return PortOwner::CannotTell };
        let Ok(listeners) = port::listeners(port) else { return PortOwner::CannotTell };
        if listeners.is_empty() {
            return PortOwner::Nobody;
        }
        let Ok(ours) = Marks::of(&local.folder).living() else { return PortOwner::CannotTell };
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

    /// A handle that cuts the waiting of a later [`Server::release`] short: the second Ctrl-C. One that belongs to
    /// nobody's run is not hurried.
    pub fn hurry(&self) -> Hurry {
        let ours = self.local.as_ref().filter(|local| local.owner.is_some());
        Hurry { supervisor: self.supervisor(), folder: ours.map(|local| local.folder.clone()) }
    }

    /// Says that it may outlive its run, whatever becomes of that from now on.
    pub fn set_keep(&self) -> Result<(), LaunchError> {
        self.local.as_ref().map_or(Ok(()), |local| local.folder.set("keep"))
    }

    /// Lets it outlive this run: `orch ps` shows it and `orch stop` ends it. Returns what of it stays.
    pub fn keep(self) -> Result<Left, LaunchError> {
        let Some(local) = &self.local else { return Ok(Left::default()) };
        local.folder.set("keep")?;
        let living = Marks::of(&local.folder).living().map_err(LaunchError::io("read", "/proc"))?;
        Ok(Left { processes: living.len() as u64, kept: Some(local.folder.id().to_owned()), ..Left::default() })
    }

    /// Stops it and returns when nothing of it is left, its supervisor included, or when what is left cannot be ended.
    /// One that does not belong to this run is left as it is, and nothing of it is ours to count.
    pub async fn release(self, emit: &dyn Emit, why: &str) -> Result<Left, LaunchError> {
        let Some(local) = self.local.as_ref().filter(|_| self.is_ours()) else { return Ok(Left::default()) };
        let before = self.has_exited();
        // The server is stopped even when the journal cannot be written: what was started must not stay.
        let mut journal = emit.emit(Scope::Run, Event::Stopping { why: why.to_owned() });
        let ended = stop::end_server(&local.folder).await?;
        local.reap().await;
        let exited = before.or_else(|| self.has_exited());
        if let Some(exited) = exited {
            let exited = Exited { stopped: exited.stopped || before.is_none(), ..exited };
            journal = journal.and(self.tell_exit(exited, emit));
        }
        let mut left = Left { processes: ended.left.len() as u64, ..Left::default() };
        if ended.left.is_empty() {
            let stop::After { cleared, returned } = stop::after(&local.folder).await;
            (left.removed, left.files) = (cleared.removed, cleared.files);
            if let Some(returned) = returned {
                left.gpu_mib = Some(returned.above_mib);
                if returned.above_mib == 0 {
                    let s = returned.after.as_secs_f64();
                    journal = journal.and(emit.emit(Scope::Run, Event::MemoryReturned { s }));
                }
            }
            journal = journal.and(local.tell_ports(emit).await);
            for lease in &local.leases {
                journal = journal.and(emit.emit(Scope::Run, Event::LeaseLeft { lease: lease.to_string() }));
            }
            local.folder.remove(&local.work)?;
        }
        journal?;
        Ok(left)
    }
}

impl Local {
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

    /// Takes in the supervisor, which has ended, where it was started by this process.
    async fn reap(&self) {
        for _ in 0..50 {
            let reaped = {
                let mut child = self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                child.as_mut().map(Child::try_wait)
            };
            if !matches!(reaped, Some(Ok(None))) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Cuts the waiting of a stop short.
#[derive(Clone, Debug)]
pub struct Hurry {
    supervisor: Option<Process>,
    folder: Option<Folder>,
}

impl Hurry {
    /// Everything of the server is killed without further patience.
    pub fn now(&self) {
        let Some(folder) = &self.folder else { return };
        let told = self.supervisor.is_some_and(|supervisor| supervisor.signal(Signal::SIGQUIT).unwrap_or(false));
        if !told {
            // Nobody is there who would do it. What cannot be ended from here stays listed.
            let _ = super::end::kill_now(&mut Marks::of(folder));
        }
    }
}
