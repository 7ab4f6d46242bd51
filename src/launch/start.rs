//! Starting a server: everything written down first, then a supervisor that does it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};

use super::marks::Marks;
use super::server::{Local, Server};
use super::servers::{Folder, ServerPlan};
use super::supervise::{Answer, number};
use super::{LaunchError, Lease, Process, WorkFolder, end, gpu, port, process};
use crate::event::{Emit, Event, Scope};
use crate::host;
use crate::render::{Rank, StopRule};

/// How long the supervisor has to start the program. Not the program's own time: only until it runs.
const START_LIMIT: Duration = Duration::from_secs(60);
/// More open files than this do not go in one message.
const MOST_LEASES: usize = 128;

/// What is started, and under which rules.
#[derive(Clone)]
pub struct Start<'a> {
    /// The run's id.
    pub run: &'a str,
    /// What to start.
    pub rank: &'a Rank,
    /// How it is stopped.
    pub stop: &'a StopRule,
    /// How long it may outlive its run.
    pub abandon: Duration,
    /// What it needs for itself alone. A port among them must be free. Those that were reserved before
    /// ([`WorkFolder::reserve`], [`super::choose_port`]) are handed over without ever being free in between.
    pub leases: Vec<Lease>,
    /// Where its standard output and error go. What an earlier start has written there is kept beside it, under the same
    /// name with a number.
    pub log: &'a Path,
    /// Values that join its environment and are written nowhere.
    pub secrets: BTreeMap<String, String>,
    /// The program to run as the supervisor: this one.
    pub orch: &'a Path,
}

impl fmt::Debug for Start<'_> {
    /// Of secrets the names only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Start { run, rank, stop, abandon, leases, log, secrets, orch } = self;
        f.debug_struct("Start")
            .field("run", run)
            .field("rank", rank)
            .field("stop", stop)
            .field("abandon", abandon)
            .field("leases", leases)
            .field("log", log)
            .field("secrets", &secrets.keys())
            .field("orch", orch)
            .finish()
    }
}

/// What the supervisor is told in private.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) secrets: BTreeMap<String, String>,
}

impl fmt::Debug for Order {
    /// Of secrets the names only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").field("secrets", &self.secrets.keys()).finish()
    }
}

/// Starts a server and returns when its program runs. If anything fails, nothing is left: no process, no folder, no
/// lease; only of a process that cannot be ended the folder stays. If it is cancelled half-way, the supervisor ends what it has begun.
pub async fn start(start: Start<'_>, work: &WorkFolder, emit: &dyn Emit) -> Result<Server, LaunchError> {
    check(&start)?;
    let mut taken = Taken { work, leases: Vec::new(), done: false };
    for lease in &start.leases {
        work.reserve(lease, &format!("run {}", start.run))?;
        taken.leases.push(lease.clone());
        if let Lease::Port(number) = lease {
            port::check_free(*number)?;
        }
        emit.emit(Scope::Run, Event::LeaseTaken { lease: lease.to_string() })?;
    }
    let (folder, id) = Folder::create(work, start.run)?;
    let begun = begin(&start, work, emit, &folder, &id).await;
    let (owner, mut child, process, launched) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            remove_if_nothing_lives(work, &folder);
            return Err(error);
        }
    };
    taken.hand_over();
    let supervisor = Process::of(child.id());
    let event =
        Event::ProcessBegan { pid: process.pid, start_ticks: process.start_ticks, supervisor_pid: Some(child.id()) };
    if let Err(error) = emit.emit(Scope::Run, event) {
        drop(owner);
        super::stop::stop_folder(work, &folder).await?;
        let _ = child.wait();
        return Err(error.into());
    }
    let (child, owner) = (Mutex::new(Some(child)), Some(owner));
    let (work, leases) = (work.clone(), start.leases);
    Ok(Server::new(Local { work, folder, main: process, supervisor, child, owner, leases }, launched))
}

/// After a start that failed. What still lives, because it cannot be ended, stays listed, so that `orch stop` finds it.
fn remove_if_nothing_lives(work: &WorkFolder, folder: &Folder) {
    let supervised = folder.supervisor().is_some_and(|supervisor| supervisor.lives());
    // If it cannot be told, something may.
    let none = Marks::of(folder).living().is_ok_and(|living| living.is_empty());
    if none && !supervised {
        // What cannot be removed only stays listed as ended, and the first fault is the one to tell.
        let _ = folder.remove(work);
    }
}

/// Gives back what was reserved if the start fails.
struct Taken<'a> {
    work: &'a WorkFolder,
    leases: Vec<Lease>,
    done: bool,
}

impl Taken<'_> {
    /// The supervisor and the server have them now; the copies here are closed, which frees nothing.
    fn hand_over(&mut self) {
        self.done = true;
        self.drop_all();
    }

    fn drop_all(&mut self) {
        for lease in self.leases.drain(..) {
            self.work.unreserve(&lease);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.drop_all();
        }
    }
}

type Begun = (File, Child, Process, Instant);

async fn begin(
    start: &Start<'_>,
    work: &WorkFolder,
    emit: &dyn Emit,
    folder: &Folder,
    id: &str,
) -> Result<Begun, LaunchError> {
    let owner = folder
        .lock("owner")?
        .ok_or_else(|| LaunchError::Plan { why: format!("{} is locked by somebody else", folder.path().display()) })?;
    let log = std::path::absolute(start.log).map_err(LaunchError::io("find", start.log))?;
    put_aside(&log).map_err(LaunchError::io("rename", &log))?;
    let gpus = start.leases.iter().filter_map(|lease| match lease {
        Lease::Gpu(uuid) => Some(uuid.clone()),
        _ => None,
    });
    let gpus: Vec<String> = gpus.collect();
    let idle_mib = match gpus.is_empty() {
        true => None,
        // It runs a program: off the threads that serve the rest.
        false => tokio::task::spawn_blocking(move || gpu::used(gpu::here().as_ref(), &gpus)).await.ok().flatten(),
    };
    let plan = ServerPlan {
        v: 1,
        id: id.to_owned(),
        run: start.run.to_owned(),
        argv: start.rank.argv.clone(),
        env: start.rank.env.clone(),
        secrets: start.secrets.keys().cloned().collect(),
        folder: std::env::current_dir().map_err(LaunchError::io("find", "the current folder"))?,
        stop: start.stop.clone(),
        abandon: start.abandon,
        leases: start.leases.clone(),
        idle_mib,
        log: log.clone(),
        since: Timestamp::now(),
        boot_id: process::boot_id().map_err(LaunchError::io("read", "/proc/sys/kernel/random/boot_id"))?,
    };
    std::os::unix::fs::symlink(&log, folder.file("server.log"))
        .map_err(LaunchError::io("make", folder.file("server.log")))?;
    for file in &start.rank.files {
        place(folder, file)?;
    }
    folder.write("plan.json", &plan)?;
    name_holders(work, &plan)?;
    emit.emit(Scope::Run, Event::Launching { server: id.to_owned(), command: plan.argv.clone() })?;
    let launched = Instant::now();
    let (child, line) = spawn(start, work, folder, id)?;
    let starting = Starting(Some(child));
    let order = Order { secrets: start.secrets.clone() };
    let leases = copies(work, &start.leases)?;
    // Waits for another process, so off the threads that serve the rest.
    let asked = tokio::task::spawn_blocking(move || ask(line, &order, &leases)).await;
    let child = starting.settled();
    let asked = asked.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    match asked {
        Ok(Answer::Began(process)) => Ok((owner, child, process, launched)),
        Ok(Answer::Exec(why)) => {
            gone(child).await;
            Err(LaunchError::Exec { program: plan.argv.first().cloned().unwrap_or_default(), why })
        }
        Ok(Answer::Failed(why)) => {
            gone(child).await;
            Err(LaunchError::Supervisor { why })
        }
        Err(error) => {
            let said = std::fs::read_to_string(folder.file("supervisor.log")).unwrap_or_default();
            // It may still be at it: whatever it has started carries our marks.
            let left = match super::stop::stop_folder(work, folder).await {
                Ok(stopped) if stopped.left.is_empty() => String::new(),
                Ok(stopped) => format!("; could not end {}", stopped.left.join(", ")),
                Err(fault) => format!("; what it has begun could not be stopped: {fault}"),
            };
            let why = format!("{error}; it wrote: {}{left}", said.trim());
            gone(child).await;
            Err(LaunchError::Supervisor { why })
        }
    }
}

/// Keeps the log of an earlier start under a name of its own: its phases and failures are none of this start, which is
/// judged by what it prints itself.
fn put_aside(log: &Path) -> io::Result<()> {
    if !std::fs::metadata(log).is_ok_and(|meta| meta.is_file() && meta.len() > 0) {
        return Ok(());
    }
    let numbered = |number: u32| {
        let mut name = log.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let free = (1..).map(numbered).find(|path| !path.exists());
    free.map_or(Ok(()), |path| std::fs::rename(log, path))
}

/// Waits for a supervisor that has said its last word: only when it is gone are its copies of the leases closed.
async fn gone(mut child: Child) {
    let reaped = tokio::task::spawn_blocking(move || child.wait());
    let _ = tokio::time::timeout(Duration::from_secs(5), reaped).await;
}

/// A supervisor that has not answered yet. If nobody waits for the answer any more, because the start was cancelled,
/// it is told to stop whatever it has begun.
struct Starting(Option<Child>);

impl Starting {
    fn settled(mut self) -> Child {
        self.0.take().expect("taken only here, and this consumes it")
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It was not reaped, so the pid is still its own.
            let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            std::thread::spawn(move || child.wait());
        }
    }
}

/// What is open for the leases once more, for handing over: a lease is held until the last copy is closed.
fn copies(work: &WorkFolder, leases: &[Lease]) -> Result<Vec<OwnedFd>, LaunchError> {
    let held = work.held();
    let copies = leases.iter().filter_map(|lease| held.get(lease)).map(super::Held::copies);
    let copies: io::Result<Vec<_>> = copies.collect();
    Ok(copies.map_err(LaunchError::io("open", work.leases()))?.into_iter().flatten().collect())
}

fn name_holders(work: &WorkFolder, plan: &ServerPlan) -> Result<(), LaunchError> {
    let mut held = work.held();
    for lease in &plan.leases {
        if let Some(held) = held.get_mut(lease) {
            held.note(&plan.id).map_err(LaunchError::io("write", work.leases()))?;
        }
    }
    Ok(())
}

fn spawn(start: &Start<'_>, work: &WorkFolder, folder: &Folder, id: &str) -> Result<(Child, UnixStream), LaunchError> {
    let (ours, theirs) = UnixStream::pair().map_err(LaunchError::io("make", "a socket"))?;
    let said = folder.file("supervisor.log");
    let said_file = File::create(&said).map_err(LaunchError::io("write", &said))?;
    let child = Command::new(start.orch)
        .args(["supervise", "watch", "--work"])
        .arg(work.root())
        .arg("--server")
        .arg(id)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(said_file)
        .spawn()
        .map_err(|error| LaunchError::Supervisor { why: format!("cannot run {}: {error}", start.orch.display()) })?;
    Ok((child, ours))
}

/// Gives the order, with the leases' open files beside it, and waits for the answer.
fn ask(mut line: UnixStream, order: &Order, leases: &[OwnedFd]) -> io::Result<Answer> {
    line.set_read_timeout(Some(START_LIMIT))?;
    line.set_write_timeout(Some(START_LIMIT))?;
    let body = serde_json::to_vec(order)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes();
    let fds: Vec<i32> = leases.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(number(&line), &[IoSlice::new(&length)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    line.write_all(&body)?;
    let mut answer = String::new();
    line.read_to_string(&mut answer)?;
    if answer.is_empty() {
        return Err(io::Error::other("it ended without an answer"));
    }
    Ok(serde_json::from_str(&answer)?)
}

/// Takes the order. The leases' files stay open in this process and in every process it starts, under numbers that
/// nobody needs to know: that is all a lease is.
pub(crate) fn receive(mut line: &UnixStream) -> io::Result<Order> {
    let mut length = [0_u8; 4];
    let mut control = nix::cmsg_space!([i32; MOST_LEASES]);
    let bytes = {
        let mut slices = [IoSliceMut::new(&mut length)];
        // Without MSG_CMSG_CLOEXEC, on purpose: the server inherits them.
        let message = recvmsg::<()>(number(line), &mut slices, Some(&mut control), MsgFlags::empty())?;
        if message.flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(io::Error::other("not all leases came over"));
        }
        message.bytes
    };
    line.read_exact(&mut length[bytes..])?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    line.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

/// What can be known before anything is touched.
fn check(start: &Start<'_>) -> Result<(), LaunchError> {
    let plan = |why: String| Err(LaunchError::Plan { why });
    // Each is a file, a name and what is said of it.
    if 3 * start.leases.len() > MOST_LEASES {
        let most = MOST_LEASES / 3;
        return plan(format!("{} leases are more than the {most} that a server can have", start.leases.len()));
    }
    if end::signal(&start.stop.signal).is_none() {
        return plan(format!("`{}` is not a signal", start.stop.signal));
    }
    let Some(program) = start.rank.argv.first().filter(|word| !word.is_empty()) else {
        return plan("there is no program to run".to_owned());
    };
    let words = start.rank.argv.iter().chain(start.rank.env.keys()).chain(start.rank.env.values());
    if let Some(word) = words.chain(start.secrets.values()).find(|word| word.contains('\0')) {
        // The place only: it may be a secret.
        return plan(format!("a word of {} bytes holds a NUL byte, which no program can be given", word.len()));
    }
    if let Some(missing) = start.rank.secrets.iter().find(|name| !start.secrets.contains_key(*name)) {
        return plan(format!("the secret `{missing}` has no value"));
    }
    find_program(program, start.rank.env.get("PATH"))
}

/// Looks where `exec` will look, to say where it was looked for.
fn find_program(program: &str, path: Option<&String>) -> Result<(), LaunchError> {
    let missing = |why: String| Err(LaunchError::NoExecutable { program: program.to_owned(), why });
    let runs = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return match std::fs::metadata(program) {
            Err(error) => missing(error.to_string()),
            Ok(meta) if meta.is_dir() => missing("it is a folder".to_owned()),
            Ok(_) if !runs(Path::new(program)) => missing("it is not executable".to_owned()),
            Ok(_) => Ok(()),
        };
    }
    let path = path.map(Into::into).or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| runs(&folder.join(program))) {
        return Ok(());
    }
    missing(format!("it is in no folder of PATH ({})", path.to_string_lossy()))
}

/// Writes a file that the plan asks for: a relative one into the server's folder, an absolute one only inside it.
fn place(folder: &Folder, file: &crate::render::File) -> Result<(), LaunchError> {
    let inside = file.path.components().all(|part| matches!(part, Component::Normal(_)));
    let path: PathBuf = match file.path.strip_prefix(folder.path()) {
        Ok(rest) if rest.components().all(|part| matches!(part, Component::Normal(_))) => file.path.clone(),
        _ if inside => folder.file("files").join(&file.path),
        _ => return Err(LaunchError::Plan { why: format!("{} is outside the server's folder", file.path.display()) }),
    };
    let write = || {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        host::write_whole(&path, file.content.as_bytes(), host::Mode::PRIVATE)
    };
    write().map_err(LaunchError::io("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_outlives_a_failed_start_stays_listed_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        let (server, id) = Folder::create(&work, "r1").unwrap();
        let mut rest = Command::new("sleep").arg("600").env(super::super::marks::MARK, &id).spawn().unwrap();
        remove_if_nothing_lives(&work, &server);
        let stays = server.path().exists();
        rest.kill().unwrap();
        rest.wait().unwrap();
        assert!(stays, "`orch stop` could not find the process any more");
        remove_if_nothing_lives(&work, &server);
        assert!(!server.path().exists());
    }

    #[test]
    fn the_logs_of_earlier_starts_are_kept_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("server.log");
        put_aside(&log).unwrap();
        for text in ["first", "second"] {
            std::fs::write(&log, text).unwrap();
            put_aside(&log).unwrap();
            assert!(!log.exists());
        }
        std::fs::write(&log, "").unwrap();
        put_aside(&log).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            (read("server.log.1"), read("server.log.2"), read("server.log")),
            ("first".into(), "second".into(), String::new())
        );
    }

    #[test]
    fn a_secret_is_shown_by_its_name_alone() {
        let secrets = BTreeMap::from([("HF_TOKEN".to_owned(), "hush-hush".to_owned())]);
        let rank = Rank {
            node: "local".to_owned(),
            argv: vec!["sleep".to_owned()],
            env: BTreeMap::new(),
            secrets: vec!["HF_TOKEN".to_owned()],
            files: Vec::new(),
            head: true,
        };
        let stop = StopRule { signal: "TERM".to_owned(), patience: Duration::from_secs(1) };
        let start = Start {
            run: "r1",
            rank: &rank,
            stop: &stop,
            abandon: Duration::ZERO,
            leases: Vec::new(),
            log: Path::new("server.log"),
            secrets: secrets.clone(),
            orch: Path::new("orch"),
        };
        for text in [format!("{start:?}"), format!("{:?}", Order { secrets })] {
            assert!(text.contains("HF_TOKEN") && !text.contains("hush-hush"), "{text}");
        }
    }
}
