//! The folder of a server, `servers/<id>/`: what anybody needs to know to list it, watch it and stop it.
//!
//! | file | by | what |
//! |---|---|---|
//! | `plan.json` | the run, before anything is started | [`ServerPlan`] |
//! | `owner` | the run | locked as long as the run lives |
//! | `lock` | the supervisor | locked as long as the supervisor lives |
//! | `supervisor`, `pid` | each process itself | [`Identity`] |
//! | `seen` | the supervisor | every process that descended from the server, a line each, and one more when it is gone |
//! | `files.jsonl` | the supervisor | files in memory and sockets that these were seen to use |
//! | `keep` | the run | the server may outlive it |
//! | `stopping` | who stops it | it is being stopped |
//! | `status` | the supervisor | [`Status`]: how the server's main process ended |
//! | `server.log` | the run | a link to the log in the run's folder |
//! | `supervisor.log` | the supervisor | what it could not say elsewhere |

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::marks::Marks;
use super::{LaunchError, Lease, Process, WorkFolder, leftovers, process};
use crate::host::{self, Mode};
use crate::render::StopRule;

/// What was decided before the server was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerPlan {
    pub(crate) v: u32,
    pub(crate) id: String,
    pub(crate) run: String,
    pub(crate) argv: Vec<String>,
    /// Added to the environment that the run itself has.
    pub(crate) env: BTreeMap<String, String>,
    /// Names only; the values go to the supervisor through a socket.
    pub(crate) secrets: Vec<String>,
    /// Where the server is started: where the run was.
    pub(crate) folder: PathBuf,
    pub(crate) stop: StopRule,
    /// How long it may outlive its run.
    pub(crate) abandon: Duration,
    pub(crate) leases: Vec<Lease>,
    /// Device memory that was in use before it was started, by UUID of each of its GPUs; `None` where nothing told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_mib: Option<BTreeMap<String, u64>>,
    pub(crate) log: PathBuf,
    pub(crate) since: Timestamp,
    pub(crate) boot_id: String,
}

impl ServerPlan {
    /// The port that it has a lease for.
    pub(crate) fn port(&self) -> Option<u16> {
        self.leases.iter().find_map(|lease| match lease {
            Lease::Port(port) => Some(*port),
            _ => None,
        })
    }

    /// The GPUs that it has leases for, by UUID.
    pub(crate) fn devices(&self) -> Vec<String> {
        let gpu = |lease: &Lease| match lease {
            Lease::Gpu(uuid) => Some(uuid.clone()),
            _ => None,
        };
        self.leases.iter().filter_map(gpu).collect()
    }
}

/// A process, for readers in any boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    #[serde(flatten)]
    pub(crate) process: Process,
    pub(crate) boot_id: String,
}

impl Identity {
    /// Of this process.
    pub(crate) fn own() -> io::Result<Self> {
        let process =
            Process::of(std::process::id()).ok_or_else(|| io::Error::other("/proc does not show this process"))?;
        Ok(Identity { process, boot_id: process::boot_id()? })
    }
}

/// How the server's main process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// Whether it had been told to stop.
    pub(crate) stopped: bool,
    pub(crate) at: Timestamp,
}

/// The folder of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a new one for a run, under an id that nothing had before.
    pub(crate) fn create(work: &WorkFolder, run: &str) -> Result<(Self, String), LaunchError> {
        if run.is_empty() || run.starts_with('.') || run.contains(['/', '\0', '\n']) {
            return Err(LaunchError::Plan { why: format!("`{run}` cannot be the name of a run") });
        }
        loop {
            // The random part makes the mark of this server unlike that of any other start of the same run.
            let id = format!("{run}.{:04x}", rand::random::<u16>());
            let path = work.servers().join(&id);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok((Folder { path }, id)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(LaunchError::Io { what: "make", path, source }),
            }
        }
    }

    /// The one of this id, whether it is there or not.
    pub(crate) fn of(work: &WorkFolder, id: &str) -> Self {
        Folder { path: work.servers().join(id) }
    }

    /// All there are, by id.
    pub(crate) fn all(work: &WorkFolder) -> Result<Vec<Self>, LaunchError> {
        let read = |error| LaunchError::io("read", work.servers())(error);
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(work.servers()).map_err(read)? {
            let entry = entry.map_err(read)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name().to_str().is_some() {
                folders.push(Folder { path: entry.path() });
            }
        }
        folders.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(folders)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn id(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// The run that it belongs to: the id without its random part.
    pub(crate) fn run(&self) -> &str {
        self.id().rsplit_once('.').map_or(self.id(), |(run, _)| run)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file whole, under a temporary name first.
    pub(crate) fn write(&self, name: &str, value: &impl Serialize) -> Result<(), LaunchError> {
        let path = self.file(name);
        let write = || {
            let mut bytes = serde_json::to_vec(value)?;
            bytes.push(b'\n');
            host::write_whole(&path, &bytes, Mode::PRIVATE)
        };
        write().map_err(LaunchError::io("write", &path))
    }

    /// Reads a file; `None` if it is not there, or not as it should be. All of them are written whole, so the latter is
    /// a file that was damaged, and what it would have said is not known.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.file(name)).ok()?).ok()
    }

    pub(crate) fn plan(&self) -> Option<ServerPlan> {
        self.read("plan.json")
    }

    pub(crate) fn status(&self) -> Option<Status> {
        self.read("status")
    }

    /// The supervisor, if it was started in this boot.
    pub(crate) fn supervisor(&self) -> Option<Process> {
        self.process("supervisor")
    }

    /// The server's main process, if it was started in this boot.
    pub(crate) fn main(&self) -> Option<Process> {
        self.process("pid")
    }

    fn process(&self, name: &str) -> Option<Process> {
        let identity: Identity = self.read(name)?;
        process::boot_id().is_ok_and(|boot| boot == identity.boot_id).then_some(identity.process)
    }

    /// Whether the machine was started again since.
    pub(crate) fn is_of_another_boot(&self) -> bool {
        self.plan().is_some_and(|plan| process::boot_id().is_ok_and(|boot| boot != plan.boot_id))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file(name).exists()
    }

    /// Makes an empty file that means something by being there.
    pub(crate) fn set(&self, name: &str) -> Result<(), LaunchError> {
        let path = self.file(name);
        File::create(&path).map(drop).map_err(LaunchError::io("write", path))
    }

    /// Locks a file of the folder for this process; `None` when somebody else has it.
    pub(crate) fn lock(&self, name: &str) -> Result<Option<File>, LaunchError> {
        let path = self.file(name);
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.map_err(LaunchError::io("open", &path))?;
        for tries in 0.. {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                // Who only looks whether it is locked has it for a moment: see `is_locked`.
                Err(TryLockError::WouldBlock) if tries < 5 => std::thread::sleep(Duration::from_millis(5)),
                Err(TryLockError::WouldBlock) => break,
                Err(TryLockError::Error(source)) => return Err(LaunchError::io("lock", path)(source)),
            }
        }
        Ok(None)
    }

    /// Whether somebody holds the lock.
    pub(crate) fn is_locked(&self, name: &str) -> bool {
        File::open(self.file(name)).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Everything that descended from the server, as far as it was seen.
    pub(crate) fn seen(&self) -> Vec<Process> {
        let text = std::fs::read_to_string(self.file("seen")).unwrap_or_default();
        let parse = |line: &str| {
            let (pid, ticks) = line.split_once(' ')?;
            Some(Process { pid: pid.parse().ok()?, start_ticks: ticks.parse().ok()? })
        };
        // A torn last line names a process whose other marks are still there.
        text.lines().filter_map(parse).collect()
    }

    /// The same, with when those were gone that were seen to go.
    pub(crate) fn lives(&self) -> Vec<leftovers::Life> {
        let text = std::fs::read_to_string(self.file("seen")).unwrap_or_default();
        let parse = |line: &str| {
            let mut words = line.strip_prefix('-')?.split(' ');
            let process = Process { pid: words.next()?.parse().ok()?, start_ticks: words.next()?.parse().ok()? };
            Some((process, words.next()?.parse::<Timestamp>().ok()?))
        };
        let gone: BTreeMap<Process, Timestamp> = text.lines().filter_map(parse).collect();
        let all = self.seen().into_iter().chain(self.main());
        all.map(|process| (process, gone.get(&process).copied())).collect()
    }

    /// Notes which processes of [`Folder::seen`] are gone.
    pub(crate) fn add_gone(&self, processes: &[Process]) -> io::Result<()> {
        if processes.is_empty() {
            return Ok(());
        }
        let now = Timestamp::now();
        let lines: String =
            processes.iter().map(|gone| format!("-{} {} {now}\n", gone.pid, gone.start_ticks)).collect();
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(self.file("seen"))?;
        file.write_all(lines.as_bytes())
    }

    /// Adds to [`Folder::seen`].
    pub(crate) fn add_seen(&self, processes: &[Process]) -> io::Result<()> {
        if processes.is_empty() {
            return Ok(());
        }
        let lines: String = processes.iter().map(|found| format!("{} {}\n", found.pid, found.start_ticks)).collect();
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(self.file("seen"))?;
        file.write_all(lines.as_bytes())
    }

    /// Removes the folder, and remembers that there was such a server.
    pub(crate) fn remove(&self, work: &WorkFolder) -> Result<(), LaunchError> {
        remember(work, self.id()).map_err(LaunchError::io("write", ended_path(work)))?;
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LaunchError::io("remove", &self.path)(error)),
            _ => Ok(()),
        }
    }
}

/// A server that holds a lease by being alive, though no lock says so any more.
pub(crate) fn living_with(work: &WorkFolder, lease: &Lease) -> Result<Option<ServerPlan>, LaunchError> {
    for folder in Folder::all(work)? {
        let Some(plan) = folder.plan().filter(|plan| plan.leases.contains(lease)) else { continue };
        if folder.is_of_another_boot() {
            continue;
        }
        let living = Marks::of(&folder).living().map_err(LaunchError::io("read", "/proc"))?;
        if !living.is_empty() || super::docker::lives(&folder) {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

/// The living processes of the servers that hold a lease by being alive; `None` where a container does, or it cannot be
/// told.
pub(crate) fn holding(work: &WorkFolder, lease: &Lease) -> Option<Vec<u32>> {
    let mut pids = Vec::new();
    for folder in Folder::all(work).ok()? {
        if folder.is_of_another_boot() || !folder.plan().is_some_and(|plan| plan.leases.contains(lease)) {
            continue;
        }
        if super::docker::lives(&folder) {
            return None;
        }
        pids.extend(Marks::of(&folder).living().ok()?.iter().map(|stat| stat.process.pid));
    }
    Some(pids)
}

/// Ids of servers that were, newest last: `orch stop` of one of them has nothing to do, and of a word that never was an
/// id has a mistake to report.
pub(crate) fn ended(work: &WorkFolder) -> Vec<String> {
    std::fs::read_to_string(ended_path(work)).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn ended_path(work: &WorkFolder) -> PathBuf {
    work.root().join("ended")
}

/// How much of [`ended`] is kept.
const ENDED_BYTES: u64 = 64 << 10;

fn remember(work: &WorkFolder, id: &str) -> io::Result<()> {
    let path = ended_path(work);
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    file.write_all(format!("{id}\n").as_bytes())?;
    if file.metadata()?.len() > ENDED_BYTES {
        let ids = ended(work);
        let newer = ids[ids.len() / 2..].join("\n") + "\n";
        host::write_whole(&path, newer.as_bytes(), Mode::PRIVATE)?;
    }
    Ok(())
}
