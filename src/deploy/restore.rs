//! The restorer: waits for the end of whoever took something down, and puts it right if nobody has.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::act::{self, Act};
use super::deployments::{read_json, write_json};
use super::error::DeployError;
use super::put_back;
use super::undo::{self, READY, Undone, What};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::launch::{self, LaunchError, Which, WorkFolder};

/// What was put right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    /// The unit, container or deployment.
    pub what: String,
    /// The run that took it down.
    pub run: String,
    /// How long it was away, in seconds.
    pub outage_s: f64,
    /// When it served again.
    pub at: Timestamp,
}

/// Puts right what `record` says; whoever calls it holds the lock. Servers of its run are left as they are: a run ends its
/// own, and what it deployed is to stay.
pub async fn restore(
    work: &WorkFolder,
    record: &Undone,
    orch: &Path,
    emit: &dyn Emit,
) -> Result<Restored, DeployError> {
    match &record.what {
        What::Production(production) => {
            act::act(work, record, Act::Start, orch).await?;
            production.gate().await?;
        }
        What::Deployment(next) => {
            let log = undo::folder(work)?.join(format!("{}.server.log", record.key));
            put_back(next, work, orch, &log, emit).await?;
        }
    }
    let at = Timestamp::now();
    let outage_s = record.away_s(at);
    Ok(Restored { what: record.what.shown(), run: record.run.clone(), outage_s, at })
}

/// The whole life of a restorer. With `waits` it says so when it watches, and acts only when the lock is free.
pub async fn restorer(work: &WorkFolder, key: &str, waits: bool, orch: &Path) -> Result<(), DeployError> {
    let folder = undo::folder(work)?;
    let owner = if waits {
        say_that_it_watches();
        let (folder, key) = (folder.clone(), key.to_owned());
        let waited = tokio::task::spawn_blocking(move || undo::lock_in_turn(&folder, &key)).await;
        Some(waited.unwrap_or_else(|panic| Err(DeployError::Restorer { why: panic.to_string() }))?)
    } else {
        let owner = undo::lock(&folder, key)?;
        say_that_it_watches();
        owner
    };
    act(work, key, owner, orch).await
}

/// Puts it right now, unless somebody else has it in hand.
pub async fn restorer_here(work: &WorkFolder, key: &str, orch: &Path) -> Result<(), DeployError> {
    let owner = undo::lock(&undo::folder(work)?, key)?;
    act(work, key, owner, orch).await
}

async fn act(work: &WorkFolder, key: &str, owner: Option<File>, orch: &Path) -> Result<(), DeployError> {
    let folder = undo::folder(work)?;
    let path = folder.join(format!("{key}.json"));
    // Somebody else has it in hand, or has put it right.
    let (Some(_owner), Some(mut record)) = (owner, read_json::<Undone>(&path)?) else { return Ok(()) };
    let restored = match end_of_run(work, &record).await {
        Ok(()) => restore(work, &record, orch, &Silent).await,
        Err(error) => Err(error),
    };
    match restored {
        Ok(restored) => {
            write_json(&folder.join(format!("{key}.told")), &restored)?;
            undo::forget(&folder, key)
        }
        Err(error) => {
            record.failed = Some(error.to_string());
            write_json(&path, &record)?;
            Err(error)
        }
    }
}

/// What was measured in the place of production must be gone first: it has the devices. Its run is gone, or it would have
/// the lock.
async fn end_of_run(work: &WorkFolder, record: &Undone) -> Result<(), DeployError> {
    if !matches!(record.what, What::Production(_)) {
        return Ok(());
    }
    let stopped = launch::stop(work, &Which::Unkept(record.run.clone())).await?;
    let left: Vec<String> = stopped.into_iter().flat_map(|one| one.left).collect();
    match left.is_empty() {
        true => Ok(()),
        false => Err(LaunchError::Supervisor { why: format!("could not end {}", left.join(", ")) }.into()),
    }
}

/// Whoever started it waits for this line, and for nothing after it.
fn say_that_it_watches() {
    let mut out = io::stdout().lock();
    // Nobody is left to hear it if this fails, and the work is the same.
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
}

/// What restorers have put right since the last time that this was asked.
pub fn tell(work: &WorkFolder) -> Result<Vec<Restored>, DeployError> {
    let folder = undo::folder(work)?;
    let mut told = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(DeployError::io("read", &folder))? {
        let path = entry.map_err(DeployError::io("read", &folder))?.path();
        if path.extension().is_some_and(|ending| ending == "told") {
            told.extend(read_json::<Restored>(&path)?);
            std::fs::remove_file(&path).map_err(DeployError::io("remove", &path))?;
        }
    }
    Ok(told)
}

/// A restorer has no run to tell; and the start of an old server is none of the record of a new one.
pub(crate) struct Silent;

impl Emit for Silent {
    fn emit(&self, _scope: Scope, _event: Event) -> Result<(), EmitError> {
        Ok(())
    }
}
