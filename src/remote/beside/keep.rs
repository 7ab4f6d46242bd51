//! Starting a job, and the keeper: a small process that outlives the connection, runs the command and writes down how it
//! ended.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::survive::{self, Way};
use super::{JobFolder, Noted};
use crate::launch;
use crate::record::{RunId, Store};
use crate::remote::{Job, JobId, job};

/// How long the keeper may take to be there.
const COMES: Duration = Duration::from_secs(20);
/// How long the keeper waits for whoever asked to see that it outlives their connection. Who is gone by then does not
/// keep the run from being made.
const PROOF: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A job that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The keeper.
    pub pid: u32,
    /// `session` or `scope`.
    pub how: String,
    /// What a person should know of how it was started.
    pub warning: Option<String>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
}

/// Lays a job out and starts its keeper, which gets the secrets through a pipe and from there on lives by itself.
pub fn start(work: &Path, id: &JobId, secrets: &BTreeMap<String, String>) -> io::Result<Started> {
    let folder = JobFolder::at(id.folder(work));
    lay_out(&folder)?;
    let orch = std::env::current_exe()?;
    let (way, mut warning) = survive::way(survive::login());
    let mut began = begin(way, &orch, &folder, id, secrets);
    let mut how = way;
    if way != Way::Session
        && let Err(error) = &began
    {
        warning = Some(format!("no scope could be had ({error}), so the run may end with the connection"));
        how = Way::Session;
        began = begin(how, &orch, &folder, id, secrets);
    }
    Ok(Started { pid: began?, how: how.word().to_owned(), warning })
}

/// Unpacks a job in its folder.
fn lay_out(folder: &JobFolder) -> io::Result<()> {
    let job = Job::unpack(&std::fs::read(folder.file(job::FILE))?)?;
    if let Some(profile) = &job.profile {
        std::fs::write(folder.file("profile.yaml"), profile)?;
    }
    if let Some(hosts) = &job.hosts {
        // JSON is YAML too.
        std::fs::write(folder.file("hosts.yaml"), serde_json::to_vec_pretty(hosts)?)?;
    }
    let judge = Store::open(&folder.judge()).map_err(io::Error::other)?;
    std::fs::create_dir_all(judge.folder())?;
    judge.append_baselines(&job.baselines).map_err(io::Error::other)?;
    for record in &job.records {
        let id: RunId = record.id.parse().map_err(io::Error::other)?;
        let run = judge.run_path(&id);
        std::fs::create_dir_all(&run)?;
        std::fs::write(run.join("run.json"), serde_json::to_vec(&record.record)?)?;
    }
    Ok(())
}

/// Starts the keeper, and waits until it says that it is there.
fn begin(way: Way, orch: &Path, folder: &JobFolder, id: &JobId, secrets: &BTreeMap<String, String>) -> io::Result<u32> {
    let own = ["beside", "keep", "--job", id.as_str()];
    let before = way.before(&format!("orch-job-{}", id.as_str()));
    let mut command = match before.split_first() {
        Some((program, rest)) => {
            let mut command = Command::new(program);
            command.args(rest).arg(orch);
            command
        }
        None => Command::new(orch),
    };
    let log = || append(&folder.file("keeper.log"));
    let mut child = command.args(own).stdin(Stdio::piped()).stdout(log()?).stderr(log()?).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // A keeper that could not be started reads nothing, and says so by its end.
        let _ = pipe.write_all(&serde_json::to_vec(secrets)?);
    }
    let began = Instant::now();
    while began.elapsed() < COMES {
        if let Some(process) = folder.living("keeper") {
            return Ok(process.pid);
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("{status}: {}", last_words(&folder.file("keeper.log")))));
        }
        std::thread::sleep(LOOK);
    }
    child.kill()?;
    child.wait()?;
    Err(io::Error::other(format!("it was not there after {} s", COMES.as_secs())))
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// The end of what a file says.
pub(super) fn last_words(path: &Path) -> String {
    const BYTES: usize = 16 << 10;
    let bytes = std::fs::read(path).unwrap_or_default();
    let from = bytes.len().saturating_sub(BYTES);
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}

/// Is the keeper: takes leave of the login, runs the command to its end, and writes down how it ended.
pub fn keep(work: &Path, id: &JobId) -> io::Result<()> {
    let folder = JobFolder::at(id.folder(work));
    let mut secrets = String::new();
    io::stdin().read_to_string(&mut secrets)?;
    let secrets: BTreeMap<String, String> = serde_json::from_str(&secrets)?;
    launch::detach()?;
    folder.write("keeper", &Noted::of(std::process::id())?)?;
    let began = Instant::now();
    while !folder.file("go").exists() && began.elapsed() < PROOF {
        std::thread::sleep(LOOK);
    }
    let job = Job::unpack(&std::fs::read(folder.file(job::FILE))?)?;
    let ended = match command(&folder, &job, &secrets) {
        Ok(mut child) => {
            folder.write("child", &Noted::of(child.id())?)?;
            let status = child.wait()?;
            Ended { code: status.code(), signal: status.signal() }
        }
        Err(error) => {
            append(&folder.file("err"))?.write_all(format!("orch cannot be started: {error}\n").as_bytes())?;
            Ended { code: Some(1), signal: None }
        }
    };
    folder.write("exit", &ended)
}

fn command(folder: &JobFolder, job: &Job, secrets: &BTreeMap<String, String>) -> io::Result<Child> {
    let there = folder.path().display().to_string();
    Command::new(std::env::current_exe()?)
        .args(job.words.iter().map(|word| word.replace("{job}", &there)))
        .envs(secrets)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(append(&folder.file("out"))?)
        .stderr(append(&folder.file("err"))?)
        .spawn()
}
