//! The folder of one run, while it is written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::super::id::RunId;
use super::super::journal::Journal;
use super::super::model::Record;
use super::{NewRun, StoreError};
use crate::clock::Clock;
use crate::event::{Emit, Scope};

/// The folder of a run that this process writes.
#[derive(Clone, Debug)]
pub struct RunFolder {
    id: RunId,
    path: PathBuf,
    /// Its journal.
    pub journal: Journal,
}

impl RunFolder {
    /// Fills a folder that was just made.
    pub(super) fn begin(id: RunId, path: &Path, new: &NewRun, clock: &Clock) -> Result<Self, StoreError> {
        let journal = Journal::create(&path.join("journal.jsonl"), id.as_str(), clock.clone())?;
        let folder = RunFolder { id, path: path.to_owned(), journal };
        folder.write("profile.yaml", new.yaml.as_bytes())?;
        folder.journal.emit(Scope::Run, new.began())?;
        folder.save()?;
        if let Some(runs) = path.parent() {
            sync_folder(runs).map_err(|source| StoreError::Io { doing: "write", path: runs.to_owned(), source })?;
        }
        Ok(folder)
    }

    pub(super) fn reopen(id: RunId, path: &Path, clock: &Clock) -> Result<Self, StoreError> {
        let journal = Journal::reopen(&path.join("journal.jsonl"), id.as_str(), clock.clone())?;
        Ok(RunFolder { id, path: path.to_owned(), journal })
    }

    /// The run's id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record as it is now: the fold of the journal.
    pub fn record(&self) -> Record {
        self.journal.state().record
    }

    /// Writes [`RunFolder::record`] to `run.json`. A reader sees the old one or the new one, whenever we are killed.
    pub fn save(&self) -> Result<(), StoreError> {
        let path = self.path.join("run.json");
        let mut text = serde_json::to_vec_pretty(&self.record()).map_err(|error| StoreError::Io {
            doing: "write",
            path,
            source: error.into(),
        })?;
        text.push(b'\n');
        self.write("run.json", &text)
    }

    /// Writes the head's command to `command.txt`, as it could be typed into a shell.
    pub fn write_command(&self, command: &[String]) -> Result<(), StoreError> {
        self.write("command.txt", format!("{}\n", shell_words::join(command)).as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path.join(name);
        replace(&path, bytes).map_err(|source| StoreError::Io { doing: "write", path, source })
    }
}

/// Puts `bytes` in the place of the file at `path`: all of them, or none.
pub(in crate::record) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&new, path));
    if renamed.is_err() {
        // The first error tells; half a file under another name is in nobody's way.
        let _ = fs::remove_file(&new);
    }
    renamed?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Names are kept in the folder: a rename lasts when that is on disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
