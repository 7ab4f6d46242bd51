//! The results folder: a folder for each run, made so that two runs never share one and a kill at any moment leaves a
//! true record.

mod error;
mod folder;
mod read;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

pub use error::StoreError;
pub use folder::RunFolder;
pub(super) use folder::replace;

use super::baselines::{self, Action, Baselines, Key};
use super::id::{RunId, Which};
use super::index::{self, Filter, Index, Listing, Past, PastFilter};
use super::model::{Asked, Group, HostInfo, OrchInfo, Reason, Record, RunKind};
use super::team::{self, Met, Team};
use super::{Baseline, NoBaseline};
use crate::clock::Clock;
use crate::event::Event;
use crate::render::Warning;

/// How often another id is drawn when one is taken. Short names are drawn anew as well, to keep them unambiguous as long
/// as there are some left.
const DRAWS: u32 = 64;

/// A results folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    team: Option<Team>,
}

/// What a run says of itself when it begins.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The profile's name.
    pub name: String,
    /// History and baseline belong to this.
    pub series: String,
    /// The resolved profile; secrets as `${NAME}`.
    pub profile: Value,
    /// The same as text, for `profile.yaml`.
    pub yaml: String,
    /// Which build of orch.
    pub orch: OrchInfo,
    /// Where the server will be.
    pub host: HostInfo,
    /// What kind of run.
    pub kind: RunKind,
    /// The sweep or repetition that it is part of.
    pub group: Option<Group>,
    /// What was asked for beside the profile.
    pub asked: Asked,
}

impl NewRun {
    /// The same as a part of something larger; a point, where that is a sweep.
    pub fn part_of(self, group: Option<Group>) -> Self {
        let kind = if group.as_ref().is_some_and(|group| group.sweep.is_some()) { RunKind::Point } else { self.kind };
        NewRun { kind, group, ..self }
    }

    /// The line that begins the run.
    pub fn began(&self) -> Event {
        Event::RunBegan {
            profile: self.profile.clone(),
            series: self.series.clone(),
            name: self.name.clone(),
            orch: self.orch.clone(),
            host: self.host.clone(),
            kind: self.kind,
            metrics_version: crate::measure::METRICS_VERSION,
            group: self.group.clone(),
            asked: self.asked.clone(),
        }
    }
}

/// What is found in `runs/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Ids, in no order.
    pub ids: Vec<RunId>,
    /// Names that are no ids; hidden ones are left out.
    pub foreign: Vec<String>,
}

impl Store {
    /// The results folder at `folder`. It may not be there yet: reading finds no runs then, and the first run makes it.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        match fs::metadata(folder) {
            Ok(found) if !found.is_dir() => Err(StoreError::NotAFolder { path: folder.to_owned() }),
            Ok(_) => Ok(Store { folder: folder.to_owned(), team: None }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Store { folder: folder.to_owned(), team: None })
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                Err(StoreError::NotAFolder { path: folder.to_owned() })
            }
            Err(source) => Err(StoreError::Io { doing: "read", path: folder.to_owned(), source }),
        }
    }

    /// The same, as one of a team's folders.
    #[must_use]
    pub fn of_team(self, team: Option<Team>) -> Self {
        Store { team, ..self }
    }

    /// Exchanges records and baselines with the team's store, and says what came of it; `None` where there is no team.
    /// Takes a few seconds at most while nobody answers, and never fails what it is done for.
    pub fn meet(&self) -> Option<Met> {
        self.team.as_ref().map(|team| team.meet(self, false))
    }

    /// The same, with everything held against each other, and not only what is new since the last time.
    pub fn meet_whole(&self) -> Option<Met> {
        self.team.as_ref().map(|team| team.meet(self, true))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a run, whether it is there or not.
    pub fn run_path(&self, id: &RunId) -> PathBuf {
        self.runs().join(id.as_str())
    }

    pub(super) fn runs(&self) -> PathBuf {
        self.folder.join("runs")
    }

    /// `baselines.jsonl`.
    pub fn baselines_path(&self) -> PathBuf {
        self.folder.join("baselines.jsonl")
    }

    /// Makes the folder of a new run: journal, profile and a record that is true already.
    pub fn create(&self, new: &NewRun, clock: &Clock) -> Result<RunFolder, StoreError> {
        let (id, path) = self.make_folder(&new.name, clock.now())?;
        match RunFolder::begin(id, &path, new, clock) {
            Ok(folder) => Ok(folder),
            Err(error) => {
                // The folder is ours and holds nothing yet. What cannot be removed is listed as unreadable.
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
    }

    /// Opens the folder of a run that was interrupted, to go on with it.
    pub fn reopen(&self, id: &RunId, clock: &Clock) -> Result<RunFolder, StoreError> {
        RunFolder::reopen(id.clone(), &self.run_path(id), clock)
    }

    fn make_folder(&self, name: &str, at: Timestamp) -> Result<(RunId, PathBuf), StoreError> {
        let runs = self.runs();
        let cannot = |path: &Path, source| StoreError::Io { doing: "make", path: path.to_owned(), source };
        fs::create_dir_all(&runs).map_err(|source| cannot(&runs, source))?;
        let taken = self.scan()?.ids;
        for draw in 0..DRAWS {
            let id = RunId::new(at, name, rand::random());
            if draw < DRAWS / 2 && taken.iter().any(|other| other.short() == id.short()) {
                continue;
            }
            let path = runs.join(id.as_str());
            match fs::create_dir(&path) {
                Ok(()) => return Ok((id, path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(cannot(&path, source)),
            }
        }
        Err(cannot(&runs, io::Error::other("every id that was drawn is taken")))
    }

    /// What is in `runs/`.
    pub fn scan(&self) -> Result<Found, StoreError> {
        let runs = self.runs();
        let cannot = |source| StoreError::Io { doing: "read", path: runs.clone(), source };
        let entries = match fs::read_dir(&runs) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::default()),
            Err(source) => return Err(cannot(source)),
        };
        let mut found = Found::default();
        for entry in entries {
            let entry = entry.map_err(cannot)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.parse() {
                Ok(id) if entry.file_type().map_err(cannot)?.is_dir() => found.ids.push(id),
                _ if name.starts_with('.') => {}
                _ => found.foreign.push(name),
            }
        }
        found.foreign.sort();
        Ok(found)
    }

    /// The run that a person names: `r0420`, an id, or `latest`, which is the newest of all series.
    pub fn find(&self, text: &str) -> Result<RunId, StoreError> {
        let which: Which = text.parse().map_err(StoreError::BadName)?;
        if let Some(known) = index::lookup(self, &which).filter(|known| !known.is_empty()) {
            return self.only(text, known);
        }
        if which == Which::Latest {
            return self.latest();
        }
        if let Which::Id(id) = &which
            && self.run_path(id).is_dir()
        {
            return Ok(id.clone());
        }
        self.only(text, self.scan()?.ids.into_iter().filter(|id| which.fits(id)).collect())
    }

    /// The only one of these.
    fn only(&self, text: &str, mut fitting: Vec<RunId>) -> Result<RunId, StoreError> {
        fitting.sort();
        match (fitting.pop(), fitting.is_empty()) {
            (Some(id), true) => Ok(id),
            (Some(id), false) => {
                fitting.push(id);
                Err(StoreError::Ambiguous { text: text.to_owned(), ids: fitting })
            }
            (None, _) => Err(StoreError::NoSuchRun { text: text.to_owned(), folder: self.folder.clone() }),
        }
    }

    /// The newest run of this folder's own, whatever came of it; where all are of others, the newest of those. Ids tell
    /// seconds; within one, the records tell.
    fn latest(&self) -> Result<RunId, StoreError> {
        let mut ids = self.scan()?.ids;
        let second = |id: &RunId| id.as_str().get(..15).map(str::to_owned);
        ids.sort_by_cached_key(|id| std::cmp::Reverse(second(id)));
        let mut newest = None;
        for of_second in ids.chunk_by(|a, b| second(a) == second(b)) {
            let mut known: Vec<_> = of_second.iter().map(|id| (self.record(id).ok(), id)).collect();
            known.sort_by_key(|(record, id)| (record.as_ref().map(|record| record.started_at), (*id).clone()));
            let is_own = |record: &Option<Record>| record.as_ref().is_none_or(|record| record.writer.is_none());
            if let Some((_, id)) = known.iter().rev().find(|(record, _)| is_own(record)) {
                return Ok((*id).clone());
            }
            newest = newest.or_else(|| known.last().map(|(_, id)| (*id).clone()));
        }
        newest.ok_or_else(|| StoreError::NoRuns { folder: self.folder.clone() })
    }

    /// The record of a run.
    pub fn record(&self, id: &RunId) -> Result<Record, StoreError> {
        read::record(&self.run_path(id), id)
    }

    /// Whether some orch is at this run now.
    pub fn is_running(&self, id: &RunId) -> bool {
        read::is_running(&self.run_path(id))
    }

    /// Runs as the index knows them, newest first.
    pub fn list(&self, filter: &Filter) -> Result<Listing, StoreError> {
        Index::open(self)?.list(filter)
    }

    /// Complete runs that have every step of `record` under the same key, newest first: what it could be compared with.
    pub fn candidates(&self, record: &Record) -> Result<Vec<RunId>, StoreError> {
        Index::open(self)?.candidates(record)
    }

    /// The past of a series, oldest first.
    pub fn past(&self, filter: &PastFilter) -> Result<Vec<Past>, StoreError> {
        Index::open(self)?.past(filter)
    }

    /// Reads all runs anew into the index. Returns how many there are, and what a person should know.
    pub fn rebuild_index(&self) -> Result<(u64, Vec<String>), StoreError> {
        Index::rebuild(self)
    }

    /// The baselines of this folder, and those of others that came from a team's store.
    pub fn baselines(&self) -> Result<Baselines, StoreError> {
        let own = Baselines::read(&self.baselines_path())?;
        let mut others = Vec::new();
        for path in team::baselines(&self.folder) {
            others.extend(Baselines::read(&path)?.lines);
        }
        // The order of one's own lines is that of the file, whatever the clock did in between.
        Ok(if others.is_empty() { own } else { own.with(others) })
    }

    /// Adds lines to the baselines.
    pub fn append_baselines(&self, lines: &[baselines::Line]) -> Result<(), StoreError> {
        Ok(baselines::append(&self.baselines_path(), lines)?)
    }

    /// What `record` is to be judged against: for each of its steps, the runs of the baseline that holds. A run that
    /// cannot be read does not count, and is in the warnings.
    pub fn baseline_for(&self, record: &Record) -> Result<(Baseline, Vec<Warning>), StoreError> {
        let lines = self.baselines()?;
        let mut gathered = Gathered { store: self, baseline: Baseline::default(), warnings: Vec::new() };
        for step in &record.steps {
            let key = Key::of(record, step);
            let runs = match lines.current(&key) {
                Some(line) if matches!(line.action, Action::Set | Action::Promote) => gathered.runs(&line.runs),
                Some(line) => Err(ended(line)),
                None => Err(NoBaseline { reasons: near(&lines, &key) }),
            };
            gathered.baseline.steps.insert(step.name.clone(), runs);
        }
        // Without a history what starts vary by is stated; a verdict does not fail for it.
        match Index::open(self).and_then(|index| index.earlier(record)) {
            Ok(earlier) => gathered.baseline.earlier = earlier,
            Err(error) => gathered.warnings.push(Warning::new("history_unreadable", error.to_string())),
        }
        Ok((gathered.baseline, gathered.warnings))
    }
}

/// A baseline while its records are read, each once.
struct Gathered<'a> {
    store: &'a Store,
    baseline: Baseline,
    warnings: Vec<Warning>,
}

impl Gathered<'_> {
    fn runs(&mut self, ids: &[String]) -> Result<Vec<usize>, NoBaseline> {
        let mut counting = Vec::new();
        let mut reasons = Vec::new();
        for id in ids {
            match self.run(id) {
                Ok(index) => counting.push(index),
                Err(text) => {
                    let warning = Warning::new("baseline_unreadable", text.clone());
                    if !self.warnings.contains(&warning) {
                        self.warnings.push(warning);
                    }
                    reasons.push(Reason::new("baseline_unreadable", text));
                }
            }
        }
        if counting.is_empty() { Err(NoBaseline { reasons }) } else { Ok(counting) }
    }

    fn run(&mut self, id: &str) -> Result<usize, String> {
        if let Some(index) = self.baseline.runs.iter().position(|run| run.id == id) {
            return Ok(index);
        }
        let cannot = |why: &dyn std::fmt::Display| format!("run {id} of the baseline cannot be read: {why}");
        let parsed: RunId = id.parse().map_err(|error| cannot(&error))?;
        self.baseline.runs.push(self.store.record(&parsed).map_err(|error| cannot(&error))?);
        Ok(self.baseline.runs.len() - 1)
    }
}

fn ended(line: &baselines::Line) -> NoBaseline {
    let why = line.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    let (id, word) = match line.action {
        Action::Expire => ("baseline_expired", "expired"),
        _ => ("baseline_cleared", "was cleared"),
    };
    let when = line.at.strftime("%-d %b %Y");
    NoBaseline { reasons: vec![Reason::new(id, format!("the baseline of `{}` {word} on {when}{why}", line.key.step))] }
}

/// Why no baseline holds for `key`, told by those that nearly do.
fn near(lines: &Baselines, key: &Key) -> Vec<Reason> {
    let holds = |line: &&baselines::Line| matches!(line.action, Action::Set | Action::Promote);
    let of_series: Vec<_> =
        lines.currents().into_iter().filter(holds).filter(|line| line.key.series == key.series).collect();
    let of_step = of_series.iter().rev().find(|line| line.key.step == key.step);
    match of_step {
        Some(line) => key_differences(key, &line.key),
        None if of_series.is_empty() => {
            vec![Reason::new("no_baseline", format!("no baseline is set for the series `{}`", key.series))]
        }
        None => vec![Reason::new("step_not_in_baseline", format!("the baseline has no step `{}`", key.step))],
    }
}

/// What keeps results under two keys from being compared.
fn key_differences(now: &Key, was: &Key) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut differs = |id: &str, text: String| reasons.push(Reason::new(id, text));
    if now.hardware != was.hardware {
        let text =
            format!("the baseline of `{}` is from other hardware: {}, was {}", now.step, now.hardware, was.hardware);
        differs("hardware_differs", text);
    }
    if now.host != was.host {
        differs(
            "host_differs",
            format!("the baseline of `{}` is from host {}, this ran on {}", now.step, was.host, now.host),
        );
    }
    if now.workload != was.workload {
        differs("workload_differs", format!("the workload of `{}` is not the one of the baseline", now.step));
    }
    if !same_load(now, was) {
        differs("load_differs", format!("the load of `{}` is not the one of the baseline", now.step));
    }
    reasons
}

fn same_load(now: &Key, was: &Key) -> bool {
    baselines::same_load(&now.load, &was.load)
}
