//! What orch does on the host itself when another orch asks it to (`orch beside`): lay down a job, start it so that it
//! outlives the connection, and tell how it is doing. Everything about a job is in files, so that any later connection
//! learns it.
//!
//! | file of `jobs/<id>/` | what |
//! |---|---|
//! | `job.zst` | the [`Job`](super::Job) |
//! | `profile.yaml`, `hosts.yaml`, `judge/` | what was in it |
//! | `keeper` | the process that waits for the command's end |
//! | `go` | whoever asked has seen that the keeper outlives a connection |
//! | `child` | the command's own process |
//! | `run` | the run that it began, and where its record is |
//! | `out`, `err` | what it wrote |
//! | `exit` | how it ended |

mod files;
mod keep;
mod look;
mod survive;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use files::{ListedFile, files};
pub use keep::{Started, keep, start};
pub use look::{Look, end, job_of, look, look_at_run, signal};

use super::JobId;
use super::job::folder_of;
use crate::host::{self, Mode};
use crate::launch::{BootMoment, Process};

/// Where a job is laid down, and what the clock there says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Where {
    /// The work folder.
    pub work: PathBuf,
    /// The folder of the new job, where one was asked for.
    pub job: Option<PathBuf>,
    /// Where files of profiles are kept.
    pub files: PathBuf,
    /// Milliseconds since the epoch.
    pub now_ms: i64,
    /// What the machine is and what a result there depends on.
    pub host: crate::record::model::HostInfo,
}

/// Makes the folder of a job, and says where it is.
pub fn place(work: &Path, job: Option<&JobId>) -> io::Result<Where> {
    let files = work.join("files");
    let job = job.map(|job| job.folder(work));
    for folder in job.iter().chain([&files]) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let now_ms = jiff::Timestamp::now().as_millisecond();
    Ok(Where { work: work.to_owned(), job, files, now_ms, host: crate::preflight::hardware()? })
}

/// The run that a job has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunRun {
    /// Its id.
    pub id: String,
    /// Its folder.
    pub folder: PathBuf,
}

/// The folder of a job, from inside the command that it is.
#[derive(Clone, Debug)]
pub struct JobFolder(PathBuf);

impl JobFolder {
    /// At this path.
    pub fn at(path: PathBuf) -> Self {
        JobFolder(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The results folder that a verdict is made from.
    pub fn judge(&self) -> PathBuf {
        self.0.join("judge")
    }

    /// Says which run it is.
    pub fn tell_run(&self, id: &str, folder: &Path) -> io::Result<()> {
        self.write("run", &BegunRun { id: id.to_owned(), folder: std::path::absolute(folder)? })
    }

    /// The run that it has begun.
    pub fn run(&self) -> Option<BegunRun> {
        self.read("run")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        host::write_whole(&self.file(name), &serde_json::to_vec(value)?, Mode::PRIVATE)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.file(name)).ok()?).ok()
    }

    /// A process that was noted, if it still lives.
    fn living(&self, name: &str) -> Option<Process> {
        let noted: Noted = self.read(name)?;
        let now = BootMoment::now()?;
        (noted.boot_id == now.boot_id && noted.process.lives()).then_some(noted.process)
    }
}

/// All jobs of a work folder.
fn all(work: &Path) -> Vec<JobFolder> {
    let entries = std::fs::read_dir(folder_of(work)).into_iter().flatten();
    let is_job = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<JobId>().is_ok())
    };
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_job).map(JobFolder).collect()
}

/// A process, for readers in any boot.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    #[serde(flatten)]
    process: Process,
    boot_id: String,
}

impl Noted {
    fn of(pid: u32) -> io::Result<Self> {
        let process = Process::of(pid).ok_or_else(|| io::Error::other("/proc does not show the process"))?;
        let boot = BootMoment::now().ok_or_else(|| io::Error::other("/proc does not tell which boot this is"))?;
        Ok(Noted { process, boot_id: boot.boot_id })
    }
}
