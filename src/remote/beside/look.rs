//! How a job is doing.

use std::io;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::keep::{Ended, last_words};
use super::{BegunRun, JobFolder, all};
use crate::record::{RunId, Store};
use crate::remote::JobId;

/// How it is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The job, where a run is one's.
    pub job: Option<String>,
    /// The run that it began.
    pub run: Option<BegunRun>,
    /// Whether it goes on.
    pub running: bool,
    /// The exit code; `None` while it goes on, or where nobody was left to see it.
    pub exit: Option<i32>,
    /// The end of what it said, where it ended.
    pub said: Option<String>,
}

/// Looks at a job.
pub fn look(work: &Path, id: &JobId) -> Look {
    look_into(&JobFolder::at(id.folder(work)), id.as_str())
}

/// Looks at a run, whoever began it.
pub fn look_at_run(work: &Path, store: &Store, id: &RunId) -> Look {
    match job_of(work, id.as_str()) {
        Some(job) => look_into(&job, job.path().file_name().and_then(|name| name.to_str()).unwrap_or_default()),
        None => Look {
            job: None,
            run: Some(BegunRun { id: id.to_string(), folder: absolute(store.run_path(id)) }),
            running: store.is_running(id),
            exit: None,
            said: None,
        },
    }
}

/// The newest job that began or goes on with a run.
pub fn job_of(work: &Path, run: &str) -> Option<JobFolder> {
    let mut jobs: Vec<JobFolder> =
        all(work).into_iter().filter(|job| job.run().is_some_and(|begun| begun.id == run)).collect();
    jobs.sort_by_key(|job| std::fs::metadata(job.path().join("run")).and_then(|meta| meta.modified()).ok());
    jobs.pop()
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn look_into(folder: &JobFolder, job: &str) -> Look {
    // Before the end is looked for: what ends in between is seen by the next look.
    let lives = folder.living("keeper").is_some() || folder.living("child").is_some();
    let ended: Option<Ended> = folder.read("exit");
    let running = ended.is_none() && lives;
    let exit = ended.map(|Ended { code, signal }| code.unwrap_or_else(|| 128 + signal.unwrap_or(0)));
    let said = (!running).then(|| {
        let said = last_words(&folder.path().join("err"));
        if said.is_empty() { last_words(&folder.path().join("keeper.log")) } else { said }
    });
    Look { job: Some(job.to_owned()), run: folder.run(), running, exit, said }
}

/// Sends a signal to the command of a job; `false` where it is gone.
pub fn signal(work: &Path, id: &JobId, terminate: bool) -> io::Result<bool> {
    let folder = JobFolder::at(id.folder(work));
    let signal = if terminate { Signal::SIGTERM } else { Signal::SIGINT };
    match folder.living("child") {
        Some(process) => process.signal(signal),
        None => Ok(false),
    }
}

/// Takes the folder of a job away that has ended: its record is kept elsewhere. `false` where it goes on.
pub fn end(work: &Path, id: &JobId) -> io::Result<bool> {
    let folder = JobFolder::at(id.folder(work));
    // The keeper writes the end down before it is gone itself.
    if folder.read::<Ended>("exit").is_none() && (folder.living("keeper").is_some() || folder.living("child").is_some())
    {
        return Ok(false);
    }
    match std::fs::remove_dir_all(folder.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}
