//! The processes of the simulated engine: a worker for each rank and what else the played engine starts, under the titles
//! that it gives them.
//!
//! A title is set as the engines do it, with everything that follows: `/proc/PID/cmdline` holds the title alone, and the
//! environment can no longer be read unless `SPT_NOENV` asked for that. Here it is done by starting this program again
//! under another name: a worker knows by its name that it is one, and reads what to do from its standard input.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpid, getppid};
use serde::{Deserialize, Serialize};

use super::Played;

/// What asks `setproctitle` to leave the environment alone.
const KEEP_ENV: &str = "SPT_NOENV";
/// What outlives its server ends by itself after so long, so that no test leaves anything for good.
const LINGER: Duration = Duration::from_secs(300);
/// How long workers may take to end by a SIGTERM before they are killed.
const GRACE: Duration = Duration::from_secs(2);

/// What processes it has: `processes` of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Processes {
    /// Whether each rank is a process of its own, where the played engine has such.
    pub workers: bool,
    /// Who takes the engine's titles.
    pub rename: Renamed,
    /// Whether workers lose their parent as soon as they are there, and outlive the server.
    pub orphan: bool,
    /// Whether workers take no notice of SIGTERM.
    pub ignore_term: bool,
    /// One more process that outlives the server, as compilers that the engine started do.
    pub helper: bool,
    /// Whether workers keep files in shared memory and sockets, with their pids in the names, which stay behind when
    /// they are killed.
    pub leftovers: bool,
}

impl Default for Processes {
    fn default() -> Self {
        Processes {
            workers: true,
            rename: Renamed::Workers,
            orphan: false,
            ignore_term: false,
            helper: false,
            leftovers: false,
        }
    }
}

/// Who takes the engine's titles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Renamed {
    /// Nobody.
    None,
    /// The workers, as the engines do.
    Workers,
    /// The server itself too.
    All,
}

/// What a worker is told, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// Starts one more process in its own place and is gone.
    fork: bool,
    /// Dies with its parent, by a SIGKILL from the kernel.
    parent_death: bool,
    /// The parent that must still be there for that.
    parent: i32,
    /// Takes no notice of SIGTERM.
    ignore_term: bool,
    /// Lives on when the server is gone.
    linger: bool,
    /// Keeps files and a socket.
    leftovers: Option<String>,
}

/// The titles of an engine's processes beside the main one.
fn titles(played: Played, ranks: u32) -> Vec<String> {
    let tagged = |name: &str| match ranks {
        0 | 1 => vec![name.to_owned()],
        _ => (0..ranks).map(|rank| format!("{name}_TP{rank}")).collect(),
    };
    match played {
        Played::Sglang => [tagged("sglang::scheduler"), vec!["sglang::detokenizer".to_owned()]].concat(),
        Played::Vllm if ranks > 1 => [vec!["VLLM::EngineCore".to_owned()], tagged("VLLM::Worker")].concat(),
        Played::Vllm => vec!["VLLM::EngineCore".to_owned()],
        Played::Llamacpp => Vec::new(),
    }
}

/// The title of the server itself, where it takes one.
fn main_title(played: Played) -> &'static str {
    match played {
        Played::Sglang => "sglang::server",
        Played::Vllm => "VLLM::APIServer_0",
        Played::Llamacpp => "llama-server",
    }
}

/// The number of the rank in a title.
fn rank_of(title: &str) -> Option<u32> {
    let named = title.starts_with("sglang::scheduler") || title.starts_with("VLLM::Worker");
    match title.rsplit_once("_TP") {
        Some((_, rank)) => rank.parse().ok(),
        None => named.then_some(0),
    }
}

/// A worker that has ended.
#[derive(Clone, Debug)]
pub struct Gone {
    /// Its title.
    pub title: String,
    /// Its rank, if it had one.
    pub rank: Option<u32>,
    /// Its pid.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
}

/// A worker that runs.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its title.
    pub title: String,
    /// Its rank, if it has one.
    pub rank: Option<u32>,
    /// Its pid; of an orphan, the one of the parent that it lost.
    pub pid: u32,
}

/// The processes of a running server. Dropped, it leaves them as they are.
#[derive(Debug)]
pub struct Running {
    workers: Vec<Worker>,
    gone: Receiver<Gone>,
    ended: Vec<u32>,
    expected: Vec<u32>,
    tell: Sender<Gone>,
    /// While this is open, workers know that the server lives.
    lines: Vec<std::process::ChildStdin>,
}

/// Starts the processes of a server. The calling thread need not stay: each worker has a thread that waits for it.
pub fn start(processes: &Processes, played: Played, ranks: u32) -> io::Result<Running> {
    let (tell, gone) = mpsc::channel();
    let mut running =
        Running { workers: Vec::new(), gone, ended: Vec::new(), expected: Vec::new(), tell, lines: Vec::new() };
    if processes.workers {
        for title in titles(played, ranks) {
            let leftovers = processes.leftovers.then(|| leftover_name(played).to_owned());
            let order = Order {
                fork: processes.orphan,
                // Schedulers of SGLang ask the kernel; vLLM's workers watch the pipe to their parent.
                parent_death: played == Played::Sglang && !processes.orphan,
                parent: getpid().as_raw(),
                ignore_term: processes.ignore_term,
                linger: processes.orphan,
                leftovers,
            };
            running.add(&title, processes.rename != Renamed::None, &order)?;
        }
    }
    if processes.helper {
        let order = Order {
            fork: true,
            parent_death: false,
            parent: getpid().as_raw(),
            ignore_term: false,
            linger: true,
            leftovers: None,
        };
        running.add("sim::jit_helper", true, &order)?;
    }
    Ok(running)
}

fn leftover_name(played: Played) -> &'static str {
    match played {
        Played::Sglang => "sgl_shm_sim",
        Played::Vllm | Played::Llamacpp => "psm_sim",
    }
}

impl Running {
    /// The workers that were started.
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The worker of a rank.
    pub fn rank(&self, rank: u32) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.rank == Some(rank))
    }

    /// A worker that has ended and was not told of yet.
    pub fn next_gone(&mut self) -> Option<Gone> {
        let gone = self.gone.try_recv().ok()?;
        self.ended.push(gone.pid);
        Some(gone)
    }

    /// A worker that has ended without being told to.
    pub fn next_lost(&mut self) -> Option<Gone> {
        let gone = self.next_gone()?;
        (!self.expected.contains(&gone.pid)).then_some(gone)
    }

    /// Ends the worker of a rank by a signal, as the kernel does when memory runs out: that is part of the story.
    pub fn lose(&mut self, rank: u32, signal: Signal) {
        if let Some(pid) = self.rank(rank).map(|worker| worker.pid).filter(|pid| !self.ended.contains(pid)) {
            self.expected.push(pid);
            send(pid, signal);
        }
    }

    /// Kills all of them, as an engine does with its tree.
    pub fn kill_all(&mut self) {
        while self.next_gone().is_some() {}
        for worker in self.workers.iter().filter(|worker| !self.ended.contains(&worker.pid)) {
            send(worker.pid, Signal::SIGKILL);
        }
    }

    /// Ends them in order: they are asked, then killed.
    pub fn stop(mut self) {
        self.lines.clear();
        while self.next_gone().is_some() {}
        for worker in self.workers.iter().filter(|worker| !self.ended.contains(&worker.pid)) {
            send(worker.pid, Signal::SIGTERM);
        }
        let until = Instant::now() + GRACE;
        while self.ended.len() < self.workers.len() && Instant::now() < until {
            match self.gone.recv_timeout(Duration::from_millis(50)) {
                Ok(gone) => self.ended.push(gone.pid),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        self.kill_all();
    }

    fn add(&mut self, title: &str, rename: bool, order: &Order) -> io::Result<()> {
        let mut orders = vec![order.clone()];
        if order.fork {
            orders.push(Order { fork: false, ..order.clone() });
        }
        let lines = orders.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        let (said, heard) = mpsc::channel();
        let (name, tell) = (title.to_owned(), self.tell.clone());
        // The kernel counts the thread that started it as the parent, so that thread stays as long as the worker does.
        std::thread::Builder::new().name("sim-worker".to_owned()).spawn(move || {
            let child = spawn(&name, rename);
            match child {
                Ok(mut child) => {
                    let (pid, rank) = (child.id(), rank_of(&name));
                    let _ = said.send(Ok((pid, child.stdin.take())));
                    if let Ok(status) = child.wait() {
                        let _ = tell.send(Gone { title: name, rank, pid, status });
                    }
                }
                Err(error) => drop(said.send(Err(error))),
            }
        })?;
        let (pid, line) = heard.recv().map_err(io::Error::other)??;
        let mut line = line.ok_or_else(|| io::Error::other("no line to the worker"))?;
        line.write_all((lines.join("\n") + "\n").as_bytes())?;
        self.lines.push(line);
        // One that forks is a helper or an orphan: it is nobody's any more.
        if order.fork {
            // Its own end is its task.
            self.expected.push(pid);
        } else {
            self.workers.push(Worker { title: title.to_owned(), rank: rank_of(title), pid });
        }
        Ok(())
    }
}

fn send(pid: u32, signal: Signal) {
    // Not reaped by anybody but its thread; one that is gone in this moment needs no signal.
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// This program under another name, and with nothing else on its command line.
fn again(title: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(title);
    if std::env::var_os(KEEP_ENV).is_none() {
        command.env_clear();
    }
    Ok(command)
}

/// A worker that is not renamed has the name of this program before its title.
const PLAIN: &str = "orch-sim-worker ";

fn spawn(title: &str, rename: bool) -> io::Result<Child> {
    let title = if rename { title.to_owned() } else { format!("{PLAIN}{title}") };
    let mut command = again(&title)?;
    command.stdin(Stdio::piped());
    command.spawn()
}

/// Takes the engine's title for this process itself: starts it again in its place, with its arguments. Returns only if
/// that was done before, or cannot be done.
pub fn rename_main(played: Played) -> io::Result<()> {
    let title = main_title(played);
    let mut words = std::env::args_os();
    if words.next().is_some_and(|word| word == title) {
        name_thread(title);
        return Ok(());
    }
    Err(again(title)?.args(words).exec())
}

/// Whether this process was started as a worker; then it is one until it ends, and this is its exit code.
pub fn as_worker() -> Option<u8> {
    let mut words = std::env::args_os();
    let first = words.next()?;
    let title = first.to_str()?;
    let is_worker = ["sglang::", "VLLM::", "sim::", PLAIN].iter().any(|start| title.starts_with(start));
    if !is_worker || words.next().is_some() {
        return None;
    }
    Some(work(&first).unwrap_or(1))
}

fn work(title: &OsStr) -> io::Result<u8> {
    name_thread(&title.to_string_lossy());
    let order = read_order()?;
    if order.fork {
        // The next one hears the rest of the line, and loses this parent at once.
        let mut command = again(&title.to_string_lossy())?;
        command.stdin(Stdio::inherit()).spawn()?;
        return Ok(0);
    }
    if order.ignore_term {
        let mut term = SigSet::empty();
        term.add(Signal::SIGTERM);
        term.thread_block().map_err(io::Error::from)?;
    }
    if order.parent_death {
        prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)?;
        // It may have died before that was asked.
        if getppid().as_raw() != order.parent {
            return Ok(1);
        }
    }
    close_inherited();
    let kept = order.leftovers.as_deref().map(Leftovers::make).transpose()?;
    let mut rest = Vec::new();
    let _ = io::stdin().read_to_end(&mut rest);
    if order.linger {
        std::thread::sleep(LINGER);
    }
    if let Some(kept) = kept {
        kept.remove();
    }
    Ok(0)
}

/// The first line, byte by byte: what comes after it may be for another process.
fn read_order() -> io::Result<Order> {
    let mut line = Vec::new();
    let mut byte = [0; 1];
    // Not through the buffer of `stdin()`.
    let mut input = fs::File::open("/proc/self/fd/0")?;
    while input.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(serde_json::from_slice(&line)?)
}

/// What `ps` shows without arguments: the first 15 bytes of the title.
fn name_thread(title: &str) {
    let short: String = title.chars().take(15).collect();
    let _ = fs::write("/proc/self/comm", short);
}

/// Workers of the engines are started without the open files of their parent.
fn close_inherited() {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The one that the list was read from is closed by now.
        let _ = nix::unistd::close(fd);
    }
}

/// Files that carry a pid in their names.
struct Leftovers {
    paths: Vec<PathBuf>,
    // Open as long as the process lives, as the engines keep theirs mapped.
    _memory: fs::File,
    _socket: UnixListener,
}

impl Leftovers {
    fn make(name: &str) -> io::Result<Self> {
        let pid = getpid();
        let memory = PathBuf::from("/dev/shm").join(format!("{name}_{pid}_0"));
        let mut file = fs::File::create(&memory)?;
        file.write_all(&[0; 4096])?;
        let socket = std::env::temp_dir().join(format!("{name}_ipc_{pid}.sock"));
        let listener = UnixListener::bind(&socket)?;
        Ok(Leftovers { paths: vec![memory, socket], _memory: file, _socket: listener })
    }

    fn remove(self) {
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_titles_are_those_of_the_engine() {
        assert_eq!(
            titles(Played::Sglang, 2),
            ["sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"]
        );
        assert_eq!(titles(Played::Sglang, 1), ["sglang::scheduler", "sglang::detokenizer"]);
        assert_eq!(titles(Played::Vllm, 2), ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"]);
        assert_eq!(titles(Played::Vllm, 1), ["VLLM::EngineCore"]);
        assert!(titles(Played::Llamacpp, 1).is_empty());
    }

    #[test]
    fn a_title_tells_its_rank() {
        assert_eq!(rank_of("sglang::scheduler_TP3"), Some(3));
        assert_eq!(rank_of("sglang::scheduler"), Some(0));
        assert_eq!(rank_of("sglang::detokenizer"), None);
        assert_eq!(rank_of("VLLM::EngineCore"), None);
    }

    #[test]
    fn an_order_that_is_not_known_is_refused() {
        let order = serde_json::from_str::<Order>(r#"{"fork":false,"surprise":1}"#);
        assert!(order.is_err());
    }
}
