//! What has to be put right: written before anything is taken down, removed when it is right again.
//!
//! | file in `undo/` | what |
//! |---|---|
//! | `<key>.json` | [`Undone`]: what was taken down, by which run, since when |
//! | `<key>.owner` | locked by whoever has it in hand: the run, then its restorer, or a later `orch` |
//! | `<key>.acting` | locked by the process that stops or starts production just now: see `act.rs` |
//! | `<key>.log` | what the restorer did |
//! | `<key>.told` | what the restorer put right and nobody has read yet |
//!
//! There is one lock, so that nothing is put right twice at once; and putting right what is right changes nothing.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::artefact::{Deployed, VERSION};
use super::deployments::{read_json, write_json};
use super::error::DeployError;
use super::production::Production;
use crate::launch::{BootMoment, WorkFolder};

/// Something that was taken down and is not back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Undone {
    /// Version of this shape.
    pub v: u32,
    /// Its key: the name of its files.
    pub key: String,
    /// The run that took it down.
    pub run: String,
    /// Just before it was taken down.
    pub since: Timestamp,
    /// The same on a clock that nobody sets, for as long as the machine is not started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_boot: Option<BootMoment>,
    /// What.
    pub what: What,
    /// Why it could not be put right, the last time that it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// What was taken down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Production, which makes room for a measurement.
    Production(Production),
    /// A deployment, which is replaced by this one.
    Deployment(Box<Deployed>),
}

impl What {
    /// What a person calls it.
    pub fn shown(&self) -> String {
        match self {
            What::Production(production) => production.shown(),
            What::Deployment(next) => next.shown(),
        }
    }

    fn key(&self) -> String {
        let (kind, name) = match self {
            What::Production(production) => ("production", production.shown()),
            What::Deployment(next) => ("deployment", next.name.clone()),
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._@-".contains(c) { c } else { '-' };
        format!("{kind}-{}", name.chars().map(plain).collect::<String>())
    }
}

/// Something taken down by this process. When it is dropped, or this process dies, its restorer puts it right.
#[derive(Debug)]
pub struct Undo {
    folder: PathBuf,
    record: Undone,
    /// Locked as long as this lives.
    _owner: File,
    restorer: Child,
}

impl Undone {
    /// How long it has been away, in seconds. By the clock of this boot where it was taken down in this one: the wall clock
    /// may have been set since. Of another boot only that one tells, and no time away is shorter than none.
    pub fn away_s(&self, now: Timestamp) -> f64 {
        let since_boot = self.since_boot.as_ref().and_then(BootMoment::elapsed_s);
        since_boot.unwrap_or_else(|| now.duration_since(self.since).as_secs_f64()).max(0.0)
    }
}

impl Undo {
    /// Writes down what will be taken down, and has a restorer wait. When this returns it may be taken down.
    pub fn begin(work: &WorkFolder, run: &str, what: What, orch: &Path) -> Result<Self, DeployError> {
        let (folder, key) = (folder(work)?, what.key());
        let record = Undone {
            v: VERSION,
            key: key.clone(),
            run: run.to_owned(),
            since: Timestamp::now(),
            since_boot: BootMoment::now(),
            what,
            failed: None,
        };
        let shown = record.what.shown();
        let path = folder.join(format!("{key}.json"));
        let Some(owner) = lock(&folder, &key)? else {
            let holder: Option<Undone> = read_json(&path)?;
            let (by, since) = holder.map_or_else(
                || ("another orch".to_owned(), record.since),
                |one| (format!("run {}", one.run), one.since),
            );
            return Err(DeployError::Busy { what: shown, by, since });
        };
        if let Some(left) = read_json::<Undone>(&path)? {
            // It would be forgotten that this is not right yet.
            return Err(DeployError::Busy {
                what: shown,
                by: format!("run {}, which left it down", left.run),
                since: left.since,
            });
        }
        write_json(&path, &record)?;
        match spawn(work, &folder, &key, orch, true) {
            Ok(restorer) => Ok(Undo { folder, record, _owner: owner, restorer }),
            Err(error) => {
                // Nothing was taken down yet, so nothing has to be put right.
                let _ = std::fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// That nobody has it down, or is bringing it back.
    pub fn check_free(work: &WorkFolder, what: &What) -> Result<(), DeployError> {
        let key = what.key();
        match undone(work)?.into_iter().find(|(record, _)| record.key == key) {
            None => Ok(()),
            Some((record, _)) => {
                Err(DeployError::Busy { what: what.shown(), by: format!("run {}", record.run), since: record.since })
            }
        }
    }

    /// What it says.
    pub fn record(&self) -> &Undone {
        &self.record
    }

    /// It is right again: nothing has to be put right any more. Returns when the restorer is gone.
    pub fn settled(mut self) -> Result<(), DeployError> {
        forget(&self.folder, &self.record.key)?;
        drop(self._owner);
        // It sees at once that there is nothing to do.
        let _ = self.restorer.wait();
        Ok(())
    }
}

/// Everything that was taken down here, with whether somebody has it in hand.
pub fn undone(work: &WorkFolder) -> Result<Vec<(Undone, bool)>, DeployError> {
    let folder = folder(work)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(DeployError::io("read", &folder))? {
        let path = entry.map_err(DeployError::io("read", &folder))?.path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        if let Some(record) = read_json::<Undone>(&path)? {
            let held = is_locked(&folder.join(format!("{}.owner", record.key)));
            found.push((record, held));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
    Ok(found)
}

/// Has a restorer put right whatever nobody has in hand: after a reboot, or when run and restorer were both killed.
/// Returns what that is.
pub fn catch_up(work: &WorkFolder, orch: &Path) -> Result<Vec<Undone>, DeployError> {
    let folder = folder(work)?;
    let mut begun = Vec::new();
    for (record, held) in undone(work)? {
        if !held {
            // It goes on by itself; nobody here waits for it.
            spawn(work, &folder, &record.key, orch, false)?;
            begun.push(record);
        }
    }
    Ok(begun)
}

/// Starts a restorer, and returns when it watches.
fn spawn(work: &WorkFolder, folder: &Path, key: &str, orch: &Path, waits: bool) -> Result<Child, DeployError> {
    let failed = |why: String| DeployError::Restorer { why };
    let log_path = folder.join(format!("{key}.log"));
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&log_path);
    let log = log.map_err(DeployError::io("open", log_path))?;
    let mut command = Command::new(orch);
    command.args(["supervise", "restore", "--work"]).arg(work.root()).args(["--key", key]);
    if waits {
        command.arg("--wait");
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| failed(format!("cannot run {}: {error}", orch.display())))?;
    let mut line = String::new();
    if let Some(said) = child.stdout.take() {
        BufReader::new(said).read_line(&mut line).map_err(|error| failed(error.to_string()))?;
    }
    if line.trim() == READY { Ok(child) } else { Err(failed("it ended before it watched".to_owned())) }
}

/// What a restorer says when it watches.
pub(super) const READY: &str = "watching";

pub(super) fn forget(folder: &Path, key: &str) -> Result<(), DeployError> {
    let path = folder.join(format!("{key}.json"));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DeployError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

pub(super) fn folder(work: &WorkFolder) -> Result<PathBuf, DeployError> {
    let path = work.root().join("undo");
    DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(DeployError::io("make", &path))?;
    Ok(path)
}

fn open(folder: &Path, key: &str) -> Result<File, DeployError> {
    let path = folder.join(format!("{key}.owner"));
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    open.map_err(DeployError::io("open", path))
}

/// Locks it; `None` when somebody else has it.
pub(super) fn lock(folder: &Path, key: &str) -> Result<Option<File>, DeployError> {
    let file = open(folder, key)?;
    for _ in 0..20 {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            // A restorer that finds nothing to do has it for a moment, and so has who only looks.
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(error)) => return Err(DeployError::io("lock", folder)(error)),
        }
    }
    Ok(None)
}

/// Waits until nobody else has it.
pub(super) fn lock_in_turn(folder: &Path, key: &str) -> Result<File, DeployError> {
    let file = open(folder, key)?;
    file.lock().map_err(DeployError::io("lock", folder))?;
    Ok(file)
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_away_is_that_of_the_boots_clock_whatever_the_wall_clock_was_set_to() {
        let production = serde_json::json!({"v": 1, "key": "k", "run": "r", "since": "2026-01-01T12:00:00Z",
            "what": {"production": {"unit": {"name": "a.service", "manager": "system"}, "url": "http://127.0.0.1:1"}}});
        let mut undone: Undone = serde_json::from_value(production).unwrap();
        let later = |s| undone.since + jiff::SignedDuration::from_secs(s);
        let (ten, before) = (later(10), later(-3600));
        assert_eq!(undone.away_s(ten), 10.0, "one that an older build wrote");
        assert_eq!(undone.away_s(before), 0.0);
        let now = BootMoment::now().unwrap();
        undone.since_boot = Some(BootMoment { s: now.s - 30.0, ..now.clone() });
        for wall in [ten, before] {
            assert!((undone.away_s(wall) - 30.0).abs() < 5.0, "{}", undone.away_s(wall));
        }
        undone.since_boot = Some(BootMoment { boot_id: "another".to_owned(), ..now });
        assert_eq!(undone.away_s(ten), 10.0, "of another boot the wall clock alone tells");
    }
}
