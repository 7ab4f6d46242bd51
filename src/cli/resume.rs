//! Going on with what an earlier orch left: `orch run --resume`, and the profile of a server that was kept.

use super::locate::{self, Located};
use super::run::{load, new_run};
use super::{Exit, Failure, Global, records};
use crate::clock::Clock;
use crate::event::{Emit, Event, Scope};
use crate::launch::{self, WorkFolder};
use crate::profile::Loaded;
use crate::record::model::{Asked, AskedDisplace};
use crate::record::{Record, RunFolder, RunId, Store, StoreError, journal};
use crate::report::number;

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

/// What a person adds to what was asked for when the run began.
pub(crate) struct Added {
    /// The server stays.
    pub(crate) keep: bool,
    /// Another run to be judged against.
    pub(crate) against: Option<String>,
    /// Production makes room from here on.
    pub(crate) displace: Option<AskedDisplace>,
}

/// What is to be done about a run that a person wants to go on with.
pub(crate) enum Found<'a> {
    /// It goes on, as it was asked for when it began.
    Open(Box<Begun<'a>>, Asked),
    /// Everything was done: its record and its short name.
    Complete(Box<Record>, String),
}

/// Finds a run and its profile as it was resolved then.
pub(crate) fn open<'a>(
    text: &str,
    added: Added,
    work: &WorkFolder,
    global: &Global,
    clock: &'a Clock,
) -> Result<Found<'a>, Failure> {
    let Located { store, id } = locate::run(text, work, global)?;
    let store = records::of_team(store)?;
    let record = store.record(&id).map_err(failed)?;
    if let Some(far) = crate::remote::known_runs(work.root()).into_iter().find(|far| far.run == id.as_str()) {
        let help = format!("orch run --resume {} -H {}", id.short(), far.host);
        let report = miette::miette!(help = help, "`{}` was made on {}, and goes on there", id.short(), far.host);
        return Err(Failure::new(Exit::Usage, report));
    }
    if let Some(writer) = &record.writer {
        let report = miette::miette!(
            help = "`orch run` with its settings begins a run of your own",
            "`{}` was recorded by {}, and only goes on where it was",
            id.short(),
            number::plain(&writer.to_string())
        );
        return Err(Failure::new(Exit::Usage, report));
    }
    if record.complete {
        // A kill between the last line of the journal and the record leaves a record that is behind.
        store.reopen(&id, clock).and_then(|folder| folder.save()).map_err(failed)?;
        return Ok(Found::Complete(Box::new(record), id.short()));
    }
    let asked = asked(&store, &id, &record, added)?;
    still_there(&asked, &record, work)?;
    let profile = store.run_path(&id).join("profile.yaml");
    let loaded = load(&profile.to_string_lossy(), &[])?;
    let (made_in, again, group) = (store.clone(), asked.clone(), record.group.clone());
    let folder = move |loaded: &Loaded| {
        let folder = made_in.reopen(&id, clock).map_err(failed)?;
        let from = folder.journal.state().last_seq.map_or(0, |seq| seq + 1);
        let again = new_run(loaded, &again)?.part_of(group).began();
        folder.journal.emit(Scope::Run, again).map_err(|error| failed(error.into()))?;
        Ok((folder, from))
    };
    Ok(Found::Open(Box::new(Begun::new(loaded, store, folder)?), asked))
}

/// What the run was asked for when it began, and what is added now.
fn asked(store: &Store, id: &RunId, record: &Record, added: Added) -> Result<Asked, Failure> {
    let reading = journal::read(&store.run_path(id).join("journal.jsonl")).map_err(|error| failed(error.into()))?;
    let mut asked = Asked::default();
    for entry in reading.entries() {
        match entry.event {
            Event::RunBegan { asked: then, .. } => asked = then,
            // To go on with it as a run would take the server that it may have deployed, and stop it in the end.
            Event::Change { what, .. } => {
                let report = miette::miette!(
                    help = "`orch up` it again: what it had taken down is put right by itself",
                    "run `{}` deployed {what}, and is no measurement to go on with",
                    id.short()
                );
                return Err(Failure::new(Exit::Usage, report));
            }
            _ => {}
        }
    }
    // The very server that was measured on, whatever its name would mean now.
    if let Some(attached) = record.provenance.get("attached").and_then(|attached| attached.as_str()) {
        asked.attach = Some(attached.to_owned());
    }
    if added.keep && asked.attach.is_some() {
        let report = miette::miette!(help = "leave `--keep` out", "the run measures on a server that it did not start");
        return Err(Failure::new(Exit::Usage, report));
    }
    asked.keep |= added.keep;
    asked.displace = added.displace.or(asked.displace);
    if let Some(run) = added.against {
        asked.against = Some(store.find(&run).map_err(failed)?.to_string());
    }
    Ok(asked)
}

/// Refuses to go on without the server that the run measured on: the steps of two servers would be told as those of one.
fn still_there(asked: &Asked, record: &Record, work: &WorkFolder) -> Result<(), Failure> {
    let Some(server) = asked.attach.as_deref().filter(|attach| !attach.contains("://")) else { return Ok(()) };
    let Err(error) = launch::attach(work, server) else { return Ok(()) };
    let report = miette::miette!(
        help = "`orch run` with the run's profile.yaml begins a new run with a server of its own",
        "the run cannot go on: it measured on {server}, and {error} ({} of its steps are done, and those of another server would be mixed with them)",
        record.steps.len()
    );
    Err(Failure::new(Exit::NotLaunched, report))
}

fn failed(error: StoreError) -> Failure {
    Failure::new(if error.is_usage() { Exit::Usage } else { Exit::NotLaunched }, error)
}

/// The profile that a kept server was started from, as the path of a file.
pub(crate) fn profile_of(text: &str, work: &WorkFolder, global: &Global) -> Result<String, Failure> {
    let Located { store, id } = locate::run(text, work, global)?;
    Ok(store.run_path(&id).join("profile.yaml").to_string_lossy().into_owned())
}
