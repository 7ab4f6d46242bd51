//! The supervisor: a small process in a session of its own that starts one server, holds its leases, records what
//! descends from it and how it ends, and stops it when it is told to or when its run is gone.
//!
//! It outlives the run and needs nothing of it. What it learns goes to files at once, so that its own death loses
//! nothing but the exit code of a server that dies later.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::enter::{EnterFault, take_stdin};
use super::marks::{MARK, Marks};
use super::servers::{Folder, Identity, ServerPlan, Status};
use super::start::{Order, receive};
use super::{LaunchError, Process, WorkFolder, end, leftovers};

/// Between two looks at what descends from the server, and at whether the run lives.
const LOOK: Duration = Duration::from_millis(250);

/// Between two looks at the files that the server uses, and how soon after a new process.
const FILES: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(500);

/// What the supervisor tells the run about the start: one line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The server runs.
    Began(Process),
    /// The system refused to run the program.
    Exec(String),
    /// Something else.
    Failed(String),
}

/// Supervises the server of this id to its end. What it returns is for its own log: nobody reads its exit code.
pub fn supervise(work: &WorkFolder, id: &str) -> Result<(), LaunchError> {
    let failed = |what: &str, error: io::Error| LaunchError::Supervisor { why: format!("{what}: {error}") };
    close_inherited().map_err(|error| failed("close what was inherited", error))?;
    let line = take_stdin().map_err(|error| failed("standard input", error))?;
    // From here on no signal meant for the run's terminal reaches this process.
    nix::unistd::setsid().map_err(|error| failed("setsid", error.into()))?;
    nix::sys::prctl::set_child_subreaper(true).map_err(|error| failed("child subreaper", error.into()))?;
    let runtime = crate::host::runtime::on_this_thread().map_err(|error| failed("runtime", error))?;
    // Before the server is there: a SIGTERM that came between would end this process and orphan the server.
    let signals = {
        let _entered = runtime.enter();
        Signals::listen().map_err(|error| failed("signals", error))?
    };
    let folder = Folder::of(work, id);
    let prepared = prepare(&folder, &line);
    let (plan, main, _lock) = match prepared {
        Ok(begun) => begun,
        Err(error) => {
            let answer = match &error {
                LaunchError::Exec { why, .. } => Answer::Exec(why.clone()),
                LaunchError::Supervisor { why } => Answer::Failed(why.clone()),
                error => Answer::Failed(error.to_string()),
            };
            answer_to(&line, &answer).map_err(|error| failed("answer", error))?;
            return Err(error);
        }
    };
    let heard = answer_to(&line, &Answer::Began(main));
    drop(line);
    let mut watch = Watch::new(folder, plan);
    if let Err(error) = &heard {
        watch.note("tell the run that its server began, so it is stopped", error);
    }
    runtime.block_on(watch.run(signals, heard.is_ok()))
}

/// Closes what the caller's caller left open: a pipe of a CI job, say, which would wait for its end as long as the server
/// lives. Called before this process has opened anything of its own.
fn close_inherited() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    for number in open.into_iter().filter(|number| *number > 2) {
        // The listing's own is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Makes this process independent of whoever started it: a session of its own, nothing open that was inherited but the
/// standard streams, and no folder that could be kept from being unmounted.
pub fn detach() -> io::Result<()> {
    close_inherited()?;
    nix::unistd::setsid()?;
    std::env::set_current_dir("/")
}

/// Takes this process out of the terminal of whoever started it.
pub fn leave_terminal() -> io::Result<()> {
    nix::unistd::setsid()?;
    Ok(())
}

/// From here on a hang-up or an interrupt ends this process no more.
pub fn spare_from_terminals() -> io::Result<()> {
    for kind in [SignalKind::hangup(), SignalKind::interrupt()] {
        // Once somebody has listened, the signal does not end the process any more, also when nobody listens.
        drop(signal(kind)?);
    }
    Ok(())
}

/// The signals that mean something here, and those that must not end this process.
struct Signals {
    child: Signal,
    term: Signal,
    quit: Signal,
    hang_up: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Signals {
            child: signal(SignalKind::child())?,
            term: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Came {
        tokio::select! {
            _ = self.child.recv() => Came::Child,
            _ = self.term.recv() => Came::Stop,
            _ = self.quit.recv() => Came::Hurry,
            _ = self.hang_up.recv() => Came::Nothing,
            _ = self.interrupt.recv() => Came::Nothing,
        }
    }
}

/// What a signal means.
enum Came {
    Child,
    Stop,
    Hurry,
    Nothing,
}

/// Everything up to the running server. The lock is taken first: who stops a server takes it too, so that a supervisor
/// that comes late finds its folder taken or gone, and starts nothing.
fn prepare(folder: &Folder, line: &UnixStream) -> Result<(ServerPlan, Process, File), LaunchError> {
    let order = receive(line).map_err(|error| LaunchError::Supervisor { why: format!("no order came: {error}") })?;
    let busy =
        || LaunchError::Supervisor { why: format!("{} already has a supervisor or is being stopped", folder.id()) };
    let lock = folder.lock("lock")?.ok_or_else(busy)?;
    let plan = folder.plan().ok_or_else(|| LaunchError::Supervisor { why: "its plan is not there".to_owned() })?;
    folder.write("supervisor", &Identity::own().map_err(LaunchError::io("read", "/proc/self"))?)?;
    let main = spawn(folder, &plan, &order)?;
    Ok((plan, main, lock))
}

fn spawn(folder: &Folder, plan: &ServerPlan, order: &Order) -> Result<Process, LaunchError> {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&plan.log)
        .map_err(LaunchError::io("open", &plan.log))?;
    let both = log.try_clone().map_err(LaunchError::io("open", &plan.log))?;
    let (ours, theirs) = UnixStream::pair().map_err(LaunchError::io("make", "a socket"))?;
    let pid_file = folder.file("pid");
    let child = Command::new("/proc/self/exe")
        .args(["supervise", "enter", "--pid-file"])
        .arg(&pid_file)
        .arg("--")
        .args(&plan.argv)
        // Python keeps what it prints in a buffer when nobody watches, and a log that comes late explains nothing.
        .env("PYTHONUNBUFFERED", "1")
        // There may be a password in it, and engines print their environment.
        .env_remove(crate::record::team::VARIABLE)
        .envs(&plan.env)
        .envs(&order.secrets)
        .env(MARK, &plan.id)
        // Engines that rename their processes would overwrite the mark with the new name.
        .env("SPT_NOENV", "1")
        .current_dir(&plan.folder)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(log)
        .stderr(both)
        .spawn()
        .map_err(|error| LaunchError::Supervisor { why: format!("cannot start a process: {error}") })?;
    let mut told = Vec::new();
    (&ours).read_to_end(&mut told).map_err(LaunchError::io("read", "the new process's socket"))?;
    if told.is_empty() {
        return Process::of(child.id())
            .ok_or_else(|| LaunchError::Supervisor { why: "the new process is gone before it ran".to_owned() });
    }
    let _ = waitpid(nix::unistd::Pid::from_raw(child.id().cast_signed()), None);
    let program = plan.argv.first().cloned().unwrap_or_default();
    Err(match serde_json::from_slice::<EnterFault>(&told) {
        Ok(fault) if fault.at == "exec" => LaunchError::Exec { program, why: fault.why },
        Ok(fault) => LaunchError::Supervisor { why: format!("{}: {}", fault.at, fault.why) },
        Err(_) => LaunchError::Supervisor { why: String::from_utf8_lossy(&told).into_owned() },
    })
}

fn answer_to(mut line: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(answer)?;
    bytes.push(b'\n');
    line.write_all(&bytes)
}

/// How long a process that has ended may take to be gone: a large one frees its memory first.
const LAST_BREATH: Duration = Duration::from_secs(5);

/// The server while it lives.
struct Watch {
    folder: Folder,
    plan: ServerPlan,
    marks: Marks,
    own: u32,
    /// When to look next at the files that the server uses.
    files_due: Instant,
    /// Since when nobody holds the `owner` file.
    alone: Option<Instant>,
    stopping: bool,
    ended: bool,
    /// What was last written to the supervisor's own log.
    noted: String,
}

impl Watch {
    fn new(folder: Folder, plan: ServerPlan) -> Self {
        let marks = Marks::of(&folder);
        let noted = String::new();
        let (own, files_due) = (std::process::id(), Instant::now() + SOON);
        Watch { marks, folder, plan, own, files_due, alone: None, stopping: false, ended: false, noted }
    }

    /// Watches the server to its end. A server that nobody is `waiting` for, since its run was gone before it began, is
    /// stopped at once: nobody knows of it, so nobody could decide to let it live.
    async fn run(mut self, mut signals: Signals, waiting: bool) -> Result<(), LaunchError> {
        // Nothing of the run's folder is needed from here on, and a process that stays would keep a disk from being
        // unmounted.
        std::env::set_current_dir("/").map_err(LaunchError::io("change to", "/"))?;
        let hurry = CancellationToken::new();
        if waiting {
            self.watch(&mut signals, &hurry).await;
        }
        self.stop(signals, hurry).await
    }

    /// Until it is told to stop the server, or nobody wants it any more.
    async fn watch(&mut self, signals: &mut Signals, hurry: &CancellationToken) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                came = signals.next() => match came {
                    Came::Child => self.reap(),
                    Came::Stop => break,
                    Came::Hurry => {
                        hurry.cancel();
                        break;
                    }
                    Came::Nothing => {}
                },
                _ = look.tick() => {
                    self.reap();
                    self.record();
                    // Whoever asked for the stop may have been killed before its signal.
                    if self.folder.has("stopping") || self.is_abandoned() {
                        break;
                    }
                }
            }
        }
    }

    /// Takes in every child that has ended, also those that came here when their parents died.
    fn reap(&mut self) {
        loop {
            let end = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(code), None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, None, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => return self.note("wait for children", error),
            };
            let (pid, code, signal) = end;
            if self.marks.main().is_some_and(|main| main.pid == pid.as_raw().cast_unsigned()) && !self.ended {
                self.ended = true;
                let status = Status { code, signal, stopped: self.stopping, at: Timestamp::now() };
                if let Err(error) = self.folder.write("status", &status) {
                    self.note("write the status", error);
                }
            }
        }
    }

    /// Waits until the main process, which has been ended, can be taken in: how it ended is what its run wants to know.
    async fn reap_main(&mut self) {
        let deadline = Instant::now() + LAST_BREATH;
        self.reap();
        while !self.ended && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.reap();
        }
    }

    fn record(&mut self) {
        let recorded = self.marks.newcomers(self.own).and_then(|(found, gone)| {
            if !found.is_empty() {
                // What a process uses is there a moment after it.
                self.files_due = self.files_due.min(Instant::now() + SOON);
            }
            self.folder.add_seen(&found)?;
            self.folder.add_gone(&gone)
        });
        if let Err(error) = recorded {
            self.note("record processes", error);
        }
        if Instant::now() >= self.files_due {
            self.note_files();
        }
    }

    /// Notes which files in memory and sockets the server uses, to be cleared should it be killed.
    fn note_files(&mut self) {
        self.files_due = Instant::now() + FILES;
        if let Err(error) = leftovers::note(&self.folder, &self.marks.seen()) {
            self.note("record files", error);
        }
    }

    /// Whether the run is gone for too long, and nothing says that the server may stay. A server that has ended has
    /// nothing to be kept for once nobody waits for its status, and one whose folder was removed could not be found again.
    fn is_abandoned(&mut self) -> bool {
        if !self.folder.path().exists() {
            return true;
        }
        if self.folder.is_locked("owner") {
            self.alone = None;
            return false;
        }
        let alone = *self.alone.get_or_insert_with(Instant::now);
        self.ended || (alone.elapsed() >= self.plan.abandon && !self.folder.has("keep"))
    }

    async fn stop(mut self, mut signals: Signals, hurry: CancellationToken) -> Result<(), LaunchError> {
        self.stopping = true;
        if let Err(error) = self.folder.set("stopping") {
            self.note("say that it is stopping", error);
        }
        self.note_files();
        let mut marks = self.marks.clone();
        let rule = self.plan.stop.clone();
        let ending = end::end(&mut marks, &rule, &hurry);
        tokio::pin!(ending);
        let mut look = interval(LOOK);
        let left = loop {
            tokio::select! {
                left = &mut ending => break left,
                _ = look.tick() => self.reap(),
                came = signals.next() => match came {
                    Came::Child => self.reap(),
                    Came::Hurry => hurry.cancel(),
                    // Asked again: it is being done.
                    Came::Stop | Came::Nothing => {}
                },
            }
        };
        self.reap_main().await;
        if let Err(error) = super::docker::end_of(&self.folder).await {
            self.note("end the container", error);
        }
        let left = left.map_err(LaunchError::io("read", "/proc"))?;
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(|stat| format!("pid {} ({})", stat.process.pid, stat.name)).collect();
        Err(LaunchError::Supervisor { why: format!("could not end {}", names.join(", ")) })
    }

    /// For the supervisor's own log, once for each fault that lasts. It goes on: a server without a supervisor would be
    /// worse than one without a line.
    fn note(&mut self, what: &str, error: impl std::fmt::Display) {
        let line = format!("cannot {what}: {error}");
        if line != self.noted {
            let _ = writeln!(io::stderr().lock(), "{} {line}", Timestamp::now());
            self.noted = line;
        }
    }
}

/// The number of a socket, for calls that want one.
pub(crate) fn number(line: &UnixStream) -> i32 {
    line.as_raw_fd()
}
