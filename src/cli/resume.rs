//! Going on with what an earlier orch left: `orch run --resume`, and the profile of a server that was kept.

use super::locate::{self, Located};
use super::run::{load, new_run};
use super::{Exit, Failure, Global};
use crate::clock::Clock;
use crate::event::{Emit, Scope};
use crate::launch::WorkFolder;
use crate::profile::Loaded;
use crate::record::{Record, RunFolder, Store, StoreError};

/// Makes or opens a run's folder, and says from which line of its journal on it is shown.
type MakeFolder<'a> = Box<dyn FnOnce(&Loaded) -> Result<(RunFolder, u64), Failure> + 'a>;

/// A run that is about to begin, or to go on.
pub(crate) struct Begun<'a> {
    pub(crate) loaded: Loaded,
    pub(crate) store: Store,
    pub(crate) folder: MakeFolder<'a>,
}

impl<'a> Begun<'a> {
    pub(crate) fn new(
        loaded: Loaded,
        store: Store,
        folder: impl FnOnce(&Loaded) -> Result<(RunFolder, u64), Failure> + 'a,
    ) -> Result<Self, Failure> {
        Ok(Begun { loaded, store, folder: Box::new(folder) })
    }
}

/// What is to be done about a run that a person wants to go on with.
pub(crate) enum Found<'a> {
    /// It goes on.
    Open(Box<Begun<'a>>),
    /// Everything was done: its record and its short name.
    Complete(Box<Record>, String),
}

/// Finds a run and its profile as it was resolved then.
pub(crate) fn open<'a>(text: &str, work: &WorkFolder, global: &Global, clock: &'a Clock) -> Result<Found<'a>, Failure> {
    let Located { store, id } = locate::run(text, work, global)?;
    let failed =
        |error: StoreError| Failure::new(if error.is_usage() { Exit::Usage } else { Exit::NotLaunched }, error);
    let record = store.record(&id).map_err(failed)?;
    if record.complete {
        // A kill between the last line of the journal and the record leaves a record that is behind.
        store.reopen(&id, clock).and_then(|folder| folder.save()).map_err(failed)?;
        return Ok(Found::Complete(Box::new(record), id.short()));
    }
    let profile = store.run_path(&id).join("profile.yaml");
    let loaded = load(&profile.to_string_lossy(), &[])?;
    let made_in = store.clone();
    let folder = move |loaded: &Loaded| {
        let folder = made_in.reopen(&id, clock).map_err(failed)?;
        let from = folder.journal.state().last_seq.map_or(0, |seq| seq + 1);
        let again = new_run(loaded)?.began();
        folder.journal.emit(Scope::Run, again).map_err(|error| failed(error.into()))?;
        Ok((folder, from))
    };
    Ok(Found::Open(Box::new(Begun::new(loaded, store, folder)?)))
}

/// The profile that a kept server was started from, as the path of a file.
pub(crate) fn profile_of(text: &str, work: &WorkFolder, global: &Global) -> Result<String, Failure> {
    let Located { store, id } = locate::run(text, work, global)?;
    Ok(store.run_path(&id).join("profile.yaml").to_string_lossy().into_owned())
}
