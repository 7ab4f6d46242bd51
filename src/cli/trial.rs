//! Carrying out a trial: each of its runs is an `orch run` of its own, so that one that is killed takes no other with it.
//! What a trial is, is in `trial`.

use std::collections::BTreeMap;

use super::children::Children;
use super::{Exit, Failure, Global, out};
use crate::clock::Clock;
use crate::record::model::Group;
use crate::record::{Record, RunId, Store};
use crate::trial::{Done, Kind, Slot, Trial, TrialError, TrialFolder};

/// A start that gave no measurement is tried so often.
pub(super) const TRIES: u32 = 2;

/// What a run of a trial leaves of the profile's own wishes for repetition: nothing, since the trial sees to it.
pub(crate) const ALONE: [&str; 2] = ["repeat=null", "suspect=null"];

/// A trial that goes on.
pub(crate) struct Running<'a> {
    pub(crate) trial: Trial,
    pub(crate) folder: TrialFolder,
    pub(crate) store: Store,
    children: Children<'a>,
    done: Vec<Done>,
}

/// What came of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All its runs have a record.
    Measured,
    /// It gave no measurement, twice; so its last run ended.
    Nothing(i32),
}

impl From<TrialError> for Failure {
    fn from(error: TrialError) -> Self {
        let exit = if matches!(error, TrialError::None { .. }) { Exit::Usage } else { Exit::Own };
        Failure::new(exit, error)
    }
}

impl<'a> Running<'a> {
    /// Begins a trial, with the profiles of its arms.
    pub(crate) fn begin(trial: Trial, profiles: &[String], global: &'a Global) -> Result<Self, Failure> {
        let folder = TrialFolder::create(&global.results, &trial, profiles, Clock::system().now())?;
        Running::new(trial, folder, global)
    }

    /// Goes on with one of this kind.
    pub(crate) fn resume_of(kind: Kind, text: &str, global: &'a Global) -> Result<Self, Failure> {
        let (folder, trial) = TrialFolder::open(&global.results, text)?;
        if trial.kind != kind {
            let help = "the verb that began it goes on with it";
            let report = miette::miette!(help = help, "that trial was begun by `{}`", verb(trial.kind));
            return Err(Failure::new(Exit::Usage, report));
        }
        Running::new(trial, folder, global)
    }

    fn new(trial: Trial, folder: TrialFolder, global: &'a Global) -> Result<Self, Failure> {
        let store = super::records::store(global)?;
        let children = Children::new(global)?;
        let done = folder.done()?;
        Ok(Running { trial, folder, store, children, done })
    }

    /// Makes all runs of a start, unless they are there already.
    pub(crate) fn start(&mut self, index: usize) -> Result<Start, Failure> {
        if TrialFolder::has(&self.trial, &self.done, index) {
            return Ok(Start::Measured);
        }
        let mut last = Exit::Own as i32;
        for _ in 0..TRIES {
            match self.try_start(index)? {
                None => return Ok(Start::Measured),
                Some(exit) => last = exit,
            }
        }
        Ok(Start::Nothing(last))
    }

    /// The same of all starts; one that gives no measurement ends the trial.
    pub(crate) fn all(&mut self) -> Result<(), Failure> {
        for index in 0..self.trial.slots.len() {
            if let Start::Nothing(exit) = self.start(index)? {
                let arm = &self.trial.arms[self.trial.slots[index].arm];
                let report = miette::miette!(
                    code = "orch::trial::no_measurement",
                    help = format!("when its cause is mended, {}", self.going_on()),
                    "{} gave no measurement in {TRIES} starts (the last ended with {exit})",
                    arm.title
                );
                return Err(Failure::new(of_code(exit), report));
            }
        }
        Ok(())
    }

    /// The records of each arm.
    pub(crate) fn records(&self) -> Result<Vec<Vec<Record>>, Failure> {
        let record = |id: &String| {
            let id: RunId = id.parse().map_err(Failure::own)?;
            self.store.record(&id).map_err(super::records::failure)
        };
        let arms = TrialFolder::complete(&self.trial, &self.done);
        arms.iter().map(|ids| ids.iter().map(record).collect()).collect()
    }

    /// Returns how its run ended if it gave no measurement.
    fn try_start(&mut self, index: usize) -> Result<Option<i32>, Failure> {
        let slot = self.trial.slots[index];
        let several = self.trial.runs > 1;
        let mut kept: Option<String> = None;
        for run in 1..=self.trial.runs {
            let ended = self.one(index, slot, run, several, kept.as_deref())?;
            if several && run == 1 {
                kept = ended.id.clone();
            }
            if !ended.complete {
                self.stop(kept.as_deref())?;
                return match self.children.interrupted() {
                    Some(exit) => Err(self.interrupted(exit)),
                    None => Ok(Some(ended.exit)),
                };
            }
        }
        self.stop(kept.as_deref())?;
        match self.children.interrupted() {
            Some(exit) => Err(self.interrupted(exit)),
            None => Ok(None),
        }
    }

    /// How a person goes on with it.
    fn going_on(&self) -> String {
        match self.trial.kind {
            Kind::Repeat => "run it anew; the runs that were made stay in the history".to_owned(),
            kind => format!("`{} --resume {}` goes on: what is measured stays", verb(kind), self.folder.id()),
        }
    }

    fn interrupted(&self, exit: Exit) -> Failure {
        let report = miette::miette!(
            code = "orch::trial::interrupted",
            help = self.going_on(),
            "interrupted: {} of {} runs are done",
            self.done.iter().filter(|done| done.complete).count(),
            self.trial.size()
        );
        Failure::new(exit, report)
    }

    fn one(&mut self, index: usize, slot: Slot, run: u32, keep: bool, kept: Option<&str>) -> Result<Done, Failure> {
        let arm = &self.trial.arms[slot.arm];
        let group = Group {
            trial: Some(self.folder.id().to_owned()),
            arm: Some(arm.name.clone()),
            start: Some(slot.start),
            run: Some(run),
            ..Group::default()
        };
        out::note(format_args!(
            "\n{}: start {}, run {run} of {} ({} of {})",
            arm.title,
            slot.start,
            self.trial.runs,
            index + 1,
            self.trial.slots.len()
        ));
        let mut words = vec!["run".to_owned(), self.folder.profile(&arm.name).to_string_lossy().into_owned()];
        words.extend(["--json".to_owned(), "--group".to_owned()]);
        words.push(serde_json::to_string(&group).map_err(Failure::own)?);
        match kept {
            Some(server) => words.extend(["--attach".to_owned(), server.to_owned()]),
            None if keep => words.push("--keep".to_owned()),
            None => {}
        }
        let (exit, text) = self.children.run(&words)?;
        let record: Option<Record> = serde_json::from_slice(&text).ok();
        let complete = record.as_ref().is_some_and(|record| record.complete && record.failure.is_none());
        let id = record.map(|record| record.id);
        let done = Done { at: Clock::system().now(), slot: index, run, id, complete, exit };
        self.folder.add(&done)?;
        self.done.push(done.clone());
        Ok(done)
    }

    /// Ends a server that was kept between the runs on it.
    fn stop(&mut self, kept: Option<&str>) -> Result<(), Failure> {
        let Some(server) = kept else { return Ok(()) };
        let words = ["stop".to_owned(), server.to_owned()];
        let (exit, _) = self.children.run(&words)?;
        // 2: it is gone already, as one that failed is.
        if exit != 0 && exit != Exit::Usage as i32 {
            let report = miette::miette!(help = "`orch ps` shows it", "the server of {server} could not be stopped");
            return Err(Failure::new(Exit::Own, report));
        }
        Ok(())
    }
}

/// The verb that begins a trial of this kind.
fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Repeat => "orch run",
        Kind::Ab => "orch ab",
        Kind::Ablate => "orch ablate",
        Kind::Bisect => "orch bisect",
    }
}

/// The exit code of a child, as this process gives it on.
pub(super) fn of_code(code: i32) -> Exit {
    let all = [Exit::Usage, Exit::NotLaunched, Exit::NeverReady, Exit::NoMeasurement];
    all.into_iter().find(|exit| *exit as i32 == code).unwrap_or(Exit::Own)
}

/// Runs by the short name of their arm, for tables.
pub(crate) fn by_name(trial: &Trial, records: Vec<Vec<Record>>) -> BTreeMap<String, Vec<Record>> {
    trial.arms.iter().map(|arm| arm.name.clone()).zip(records).collect()
}
