//! Making the points of a sweep or of a search: each is an `orch run` of its own, begun and ended in the journal of the
//! sweep, and found again after a kill.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use super::super::children::Children;
use super::super::{Exit, Failure, Global, out, planned, records, run};
use crate::clock::Clock;
use crate::record::model::Group;
use crate::record::{Record, RunId, Store};
use crate::sweep::{Attempt, Failed, Lock, Point, State, SweepError, SweepEvent, SweepFolder};

/// How often it is looked whether a run that goes on elsewhere has ended.
const LOOK: Duration = Duration::from_millis(100);

impl From<SweepError> for Failure {
    fn from(error: SweepError) -> Self {
        let exit = if error.is_usage() { Exit::Usage } else { Exit::Own };
        Failure::new(exit, error)
    }
}

/// A sweep's points, as far as they are made.
pub(crate) struct Points<'a> {
    pub(crate) folder: SweepFolder,
    pub(crate) state: State,
    pub(crate) store: Store,
    children: Children<'a>,
    /// The verb that goes on with it.
    verb: &'static str,
    /// When the last point of an earlier orch was begun, if nobody wrote how it ended.
    begun: Option<Timestamp>,
    _lock: Lock,
}

impl<'a> Points<'a> {
    /// Takes a sweep's folder for this process. `prepare` writes what it needs into it, before anything is in the journal
    /// and after nobody else can be at it.
    pub(crate) fn open(
        folder: SweepFolder,
        verb: &'static str,
        budget_s: Option<f64>,
        global: &'a Global,
        prepare: impl FnOnce(&SweepFolder) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let lock = folder.lock()?;
        prepare(&folder)?;
        let children = Children::new(global)?;
        let store = records::store(global)?;
        let lines = folder.lines()?;
        let begun = lines.iter().rev().find(|line| matches!(line.event, SweepEvent::PointBegan { .. }));
        let begun = begun.map(|line| line.at);
        let state = State::fold(lines);
        let mut points = Points { folder, state, store, children, verb, begun, _lock: lock };
        points.write(SweepEvent::SweepBegan { budget_s })?;
        Ok(points)
    }

    /// Writes a line down and acts on it.
    pub(crate) fn write(&mut self, event: SweepEvent) -> Result<(), Failure> {
        self.folder.add(&event, Clock::system().now())?;
        self.state.apply(&event);
        Ok(())
    }

    /// Makes a start of a point, or finds what came of it where an earlier orch had begun it.
    pub(crate) fn measure(&mut self, point: &Point, start: u32, attempt: u32) -> Result<Attempt, Failure> {
        let id = point.point.clone();
        let open = self.state.open().is_some_and(|open| open == (id.clone(), start, attempt));
        if !open {
            self.write(SweepEvent::PointBegan { point: id.clone(), start, attempt })?;
        }
        let begun = Timestamp::now();
        let outcome = match (open, self.profile(point)?) {
            (_, Err(why)) => unfit(why),
            (true, Ok(())) => match self.earlier(&id, start)? {
                Some(run) => self.taken_over(&run)?,
                None => self.run(point, start)?,
            },
            (false, Ok(())) => self.run(point, start)?,
        };
        if let Some(exit) = self.children.interrupted().filter(|_| !outcome.complete) {
            return Err(self.interrupted(exit));
        }
        let s = if outcome.s > 0.0 { outcome.s } else { (Timestamp::now() - begun).as_secs_f64() };
        let outcome = Attempt { s, ..outcome };
        self.write(SweepEvent::PointEnded { point: id, start, attempt, outcome: outcome.clone() })?;
        if let Some(exit) = self.children.interrupted() {
            return Err(self.interrupted(exit));
        }
        Ok(outcome)
    }

    /// Writes the point's profile, unless it is there. `Ok(Err)` is why it cannot be run.
    fn profile(&self, point: &Point) -> Result<Result<(), String>, Failure> {
        let name = file_name(point);
        if self.folder.file(&name).is_file() {
            return Ok(Ok(()));
        }
        let base = self.folder.file("base.yaml");
        let loaded = match run::load(&base.to_string_lossy(), &point.sets()) {
            Ok(loaded) => loaded,
            Err(failure) => return Ok(Err(failure.report.to_string())),
        };
        if let Some(why) = planned::hindrance(&loaded, &planned::definition(&loaded.profile)?) {
            return Ok(Err(why));
        }
        self.folder.write(&name, &loaded.yaml)?;
        Ok(Ok(()))
    }

    fn run(&self, point: &Point, start: u32) -> Result<Attempt, Failure> {
        self.child(vec![self.folder.file(&file_name(point)).to_string_lossy().into_owned()], &point.point, start)
    }

    fn child(&self, words: Vec<String>, point: &str, start: u32) -> Result<Attempt, Failure> {
        let group = Group {
            sweep: Some(self.folder.id().to_owned()),
            point: Some(point.to_owned()),
            start: Some(start),
            run: Some(1),
            ..Group::default()
        };
        let mut all = vec!["run".to_owned()];
        all.extend(words);
        all.extend(["--json".to_owned(), "--with-parent".to_owned(), std::process::id().to_string()]);
        all.extend(["--group".to_owned(), serde_json::to_string(&group).map_err(Failure::own)?]);
        let (exit, text) = self.children.run(&all)?;
        Ok(match serde_json::from_slice::<Record>(&text) {
            Ok(record) => Attempt::of(&record, exit, length(&record)),
            Err(_) => Attempt {
                exit,
                failure: Some(Failed { kind: "no_record".into(), text: "the run has no record".into(), retry: None }),
                ..Attempt::default()
            },
        })
    }

    /// The newest run of this start of the point.
    fn earlier(&self, point: &str, start: u32) -> Result<Option<RunId>, Failure> {
        let Some(begun) = self.begun else { return Ok(None) };
        let mut ids = self.store.scan().map_err(records::failure)?.ids;
        // An id tells the second in which its run began.
        ids.retain(|id| id.began_at().is_some_and(|at| at.as_second() >= begun.as_second()));
        ids.sort();
        let of_point = |id: &RunId| {
            let group = self.store.record(id).ok().and_then(|record| record.group)?;
            let own = group.sweep.as_deref() == Some(self.folder.id());
            (own && group.point.as_deref() == Some(point) && group.start == Some(start)).then(|| id.clone())
        };
        Ok(ids.iter().rev().find_map(of_point))
    }

    /// What came of a run that an earlier orch had begun: it is waited for where it goes on, and gone on with where it was
    /// cut short.
    fn taken_over(&self, id: &RunId) -> Result<Attempt, Failure> {
        if self.store.is_running(id) {
            out::note(format_args!("{} of an earlier orch goes on; waiting for its end", id.short()));
        }
        while self.store.is_running(id) && self.children.interrupted().is_none() {
            self.children.pause(LOOK);
        }
        if let Some(exit) = self.children.interrupted() {
            return Err(self.interrupted(exit));
        }
        let record = self.store.record(id).map_err(records::failure)?;
        if record.ended_at.is_some() && (record.complete || record.failure.is_some()) {
            let exit = Exit::of(&record.verdict, record.failure.as_ref(), false) as i32;
            return Ok(Attempt::of(&record, exit, length(&record)));
        }
        let group = record.group.clone().unwrap_or_default();
        let words = vec!["--resume".to_owned(), id.to_string()];
        self.child(words, &group.point.unwrap_or_default(), group.start.unwrap_or(1))
    }

    fn interrupted(&self, exit: Exit) -> Failure {
        let report = miette::miette!(
            code = "orch::sweep::interrupted",
            help = format!("`{} --resume {}` goes on: what is measured stays", self.verb, self.folder.id()),
            "interrupted: {} points were begun",
            self.state.order.len()
        );
        Failure::new(exit, report)
    }

    /// The records of a point's starts.
    pub(crate) fn records(&self, point: &str) -> Vec<Record> {
        records_of(&self.store, &self.state, point)
    }

    /// How a start usually ends in seconds, by those of this sweep.
    pub(crate) fn usual_s(&self) -> Option<f64> {
        self.state.times().reduce(f64::max)
    }
}

/// The records of a point's starts; one that was deleted tells nothing.
pub(crate) fn records_of(store: &Store, state: &State, point: &str) -> Vec<Record> {
    let record = |id: &str| store.record(&id.parse().ok()?).ok();
    state.runs(point).into_iter().filter_map(record).collect()
}

/// The same for several, read once.
pub(crate) fn all_records(store: &Store, state: &State) -> HashMap<String, Vec<Record>> {
    state.order.iter().map(|point| (point.clone(), records_of(store, state, point))).collect()
}

fn file_name(point: &Point) -> String {
    format!("points/{}.yaml", point.point)
}

fn length(record: &Record) -> f64 {
    record.ended_at.map_or(0.0, |ended| (ended - record.started_at).as_secs_f64())
}

fn unfit(why: String) -> Attempt {
    let failure = Failed { kind: "settings".to_owned(), text: why, retry: Some("never".to_owned()) };
    Attempt { exit: Exit::Usage as i32, failure: Some(failure), ..Attempt::default() }
}
