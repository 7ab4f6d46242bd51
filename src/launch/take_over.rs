//! Servers that an earlier orch started: a run that is resumed takes its own over, and any run may measure on one that
//! was kept.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::server::{Local, Server};
use super::servers::{Folder, ServerPlan};
use super::stop::{resolve, stop_folder};
use super::{LaunchError, Which, WorkFolder};

/// A server that is there, and what its folder says of it.
#[derive(Debug)]
pub struct TakenOver {
    /// The server.
    pub server: Server,
    /// The port that it has a lease for.
    pub port: Option<u16>,
    /// The GPUs that it has leases for, by UUID.
    pub devices: Vec<String>,
    /// Its command.
    pub command: Vec<String>,
    /// What it prints.
    pub log: PathBuf,
    /// The folder of the run that started it.
    pub run_folder: Option<PathBuf>,
}

/// Takes over the living server of a run that was interrupted; `None` where there is none. What else the run has left,
/// a server that is half gone or one of another boot, is ended first.
pub async fn adopt(work: &WorkFolder, run: &str) -> Result<Option<TakenOver>, LaunchError> {
    let mut adopted = None;
    for folder in Folder::all(work)?.into_iter().filter(|folder| folder.run() == run) {
        if adopted.is_none() && is_whole(&folder) {
            adopted = take(work, &folder)?;
            if adopted.is_some() {
                continue;
            }
        }
        let stopped = stop_folder(work, &folder).await?;
        if !stopped.left.is_empty() {
            let why = format!("what an earlier start has left could not be ended: {}", stopped.left.join(", "));
            return Err(LaunchError::Plan { why });
        }
    }
    Ok(adopted)
}

/// Whether its main process lives and nobody is ending it.
fn is_whole(folder: &Folder) -> bool {
    let lives = folder.main().is_some_and(|main| main.lives());
    lives && !folder.has("stopping") && folder.status().is_none() && folder.plan().is_some()
}

/// `None` where the run still has it, or it ended this very moment.
fn take(work: &WorkFolder, folder: &Folder) -> Result<Option<TakenOver>, LaunchError> {
    let Some(owner) = folder.lock("owner")? else {
        let why = format!("{} belongs to an orch that still runs", folder.id());
        return Err(LaunchError::Plan { why });
    };
    // Under the lock, its supervisor no longer counts it as abandoned; what was decided before is seen here.
    if !is_whole(folder) {
        return Ok(None);
    }
    Ok(known(work, folder, Some(owner)))
}

/// A server of this work folder that was kept, to measure on: it stays as it is.
pub fn attach(work: &WorkFolder, text: &str) -> Result<TakenOver, LaunchError> {
    let not_there = |why: &str, help: String| LaunchError::NotThere { id: text.to_owned(), why: why.to_owned(), help };
    let folders = resolve(work, &Which::One(text.to_owned()))?;
    let Some(folder) = folders.iter().find(|folder| is_whole(folder)) else {
        return Err(not_there("its server does not run", "`orch ps` shows what runs".to_owned()));
    };
    if !folder.has("keep") {
        let help = match folder.is_locked("owner") {
            true => "wait until its run has ended; `orch run --keep` lets a server stay".to_owned(),
            false => format!("its run was interrupted: `orch run --resume {}` goes on with it", folder.run()),
        };
        return Err(not_there("its server was not kept", help));
    }
    known(work, folder, None)
        .ok_or_else(|| not_there("its server has just ended", "`orch ps` shows what runs".to_owned()))
}

fn known(work: &WorkFolder, folder: &Folder, owner: Option<std::fs::File>) -> Option<TakenOver> {
    let plan = folder.plan()?;
    let main = folder.main()?;
    let local = Local {
        work: work.clone(),
        folder: folder.clone(),
        main,
        supervisor: folder.supervisor(),
        child: Mutex::new(None),
        owner,
        leases: plan.leases.clone(),
    };
    Some(TakenOver {
        port: plan.port(),
        devices: plan.devices(),
        server: Server::new(local, launched(&plan)),
        command: plan.argv,
        run_folder: plan.log.parent().map(Into::into),
        log: plan.log,
    })
}

/// When it was launched, on this process's own clock. The wall clock may have been set since; then it is just now.
fn launched(plan: &ServerPlan) -> Instant {
    let ago = Duration::try_from(Timestamp::now().duration_since(plan.since)).unwrap_or_default();
    Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
}
