//! The folder of a trial: its plan, its arms' profiles, and the journal of what was done.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Trial;

/// A run of a trial that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// When.
    pub at: Timestamp,
    /// Which start of the trial, from 0.
    pub slot: usize,
    /// Which run on it, from 1.
    pub run: u32,
    /// The run's id; `null` where it did not come so far as to have a record.
    pub id: Option<String>,
    /// Whether it came to its end.
    pub complete: bool,
    /// How it ended.
    pub exit: i32,
}

/// What can go wrong with a trial's folder.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum TrialError {
    /// The system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    #[diagnostic(code(orch::trial::io), help("trials are kept under the folder that `--results DIR` names"))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such trial, or it cannot be read.
    #[error("no trial `{text}` in {}: {reason}", folder.display())]
    #[diagnostic(code(orch::trial::none), help("{known}"))]
    None {
        /// What was typed.
        text: String,
        /// Where it was looked for.
        folder: PathBuf,
        /// Why not.
        reason: String,
        /// Those that are there.
        known: String,
    },
}

/// The folder of a trial.
#[derive(Clone, Debug)]
pub struct TrialFolder {
    id: String,
    path: PathBuf,
}

impl TrialFolder {
    /// Makes the folder of a new trial, with the profiles of its arms as YAML.
    pub fn create(results: &Path, trial: &Trial, profiles: &[String], at: Timestamp) -> Result<Self, TrialError> {
        let word = serde_json::to_value(trial.kind).ok().and_then(|kind| kind.as_str().map(str::to_owned));
        let stamp = at.strftime("%Y%m%d-%H%M%S");
        let id = format!("{stamp}-{}-{:04x}", word.unwrap_or_default(), rand::random::<u16>());
        let path = results.join("trials").join(&id);
        let io = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| TrialError::Io { doing, path, source }
        };
        fs::create_dir_all(&path).map_err(io("make", &path))?;
        let folder = TrialFolder { id, path };
        for (arm, yaml) in trial.arms.iter().zip(profiles) {
            let file = folder.profile(&arm.name);
            fs::write(&file, yaml).map_err(io("write", &file))?;
        }
        let plan = folder.path.join("trial.json");
        let text = serde_json::to_vec_pretty(trial).map_err(|error| io("write", &plan)(error.into()))?;
        fs::write(&plan, text).map_err(io("write", &plan))?;
        Ok(folder)
    }

    /// Opens a trial that was begun, with its plan.
    pub fn open(results: &Path, text: &str) -> Result<(Self, Trial), TrialError> {
        let trials = results.join("trials");
        let none = |reason: String| {
            let names = fs::read_dir(&trials).into_iter().flatten().flatten();
            let mut names: Vec<String> = names.map(|name| name.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            let known = match names.is_empty() {
                true => "none was begun here".to_owned(),
                false => format!("there are {}", names.join(", ")),
            };
            TrialError::None { text: text.to_owned(), folder: trials.clone(), reason, known }
        };
        if text.contains(['/', '\\']) || text.starts_with('.') {
            return Err(none("that is not a trial's id".to_owned()));
        }
        let folder = TrialFolder { id: text.to_owned(), path: trials.join(text) };
        let plan = fs::read(folder.path.join("trial.json")).map_err(|error| none(error.to_string()))?;
        let trial = serde_json::from_slice(&plan).map_err(|error| none(error.to_string()))?;
        Ok((folder, trial))
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The file of an arm's profile.
    pub fn profile(&self, arm: &str) -> PathBuf {
        self.path.join(format!("{arm}.yaml"))
    }

    fn journal(&self) -> PathBuf {
        self.path.join("journal.jsonl")
    }

    /// Writes down that a run has ended.
    pub fn add(&self, done: &Done) -> Result<(), TrialError> {
        let path = self.journal();
        let write = || {
            let mut line = serde_json::to_vec(done)?;
            // Half a line of a kill is ended first, so that this one stands alone.
            let torn = fs::read(&path).is_ok_and(|text| text.last().is_some_and(|last| *last != b'\n'));
            if torn {
                line.insert(0, b'\n');
            }
            line.push(b'\n');
            let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_data()
        };
        write().map_err(|source| TrialError::Io { doing: "write", path: path.clone(), source })
    }

    /// What has ended, oldest first. Lines that do not read, such as half of one, tell nothing.
    pub fn done(&self) -> Result<Vec<Done>, TrialError> {
        let path = self.journal();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(TrialError::Io { doing: "read", path, source }),
        }
    }
}

/// The runs of each arm that came to their end, on starts of which all runs did.
pub(crate) fn complete(trial: &Trial, done: &[Done]) -> Vec<Vec<String>> {
    let mut runs = vec![Vec::new(); trial.arms.len()];
    for (index, slot) in trial.slots.iter().enumerate() {
        runs[slot.arm].extend(of_slot(trial, done, index).unwrap_or_default());
    }
    runs
}

/// The runs on a start, if all of them came to their end. A start that was measured again counts as the last time.
pub(crate) fn of_slot(trial: &Trial, done: &[Done], slot: usize) -> Option<Vec<String>> {
    let of = |run: u32| {
        let last = done.iter().rev().find(|each| each.slot == slot && each.run == run)?;
        last.id.clone().filter(|_| last.complete)
    };
    (1..=trial.runs).map(of).collect()
}

impl TrialFolder {
    /// The runs of each arm that count, by what was done.
    pub fn complete(trial: &Trial, done: &[Done]) -> Vec<Vec<String>> {
        complete(trial, done)
    }

    /// Whether a start has all its runs.
    pub fn has(trial: &Trial, done: &[Done], slot: usize) -> bool {
        of_slot(trial, done, slot).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arm, Kind};
    use super::*;

    fn done(slot: usize, run: u32, complete: bool) -> Done {
        let at = "2026-11-29T15:15:03Z".parse().unwrap();
        Done { at, slot, run, id: Some(format!("s{slot}r{run}")), complete, exit: 0 }
    }

    #[test]
    fn what_was_done_is_known_after_a_kill() {
        let results = tempfile::tempdir().unwrap();
        let arm = |name: &str| Arm { name: name.into(), title: name.into() };
        let trial = Trial::by_turns(Kind::Ab, vec![arm("a"), arm("b")], 1, 2);
        let at = "2026-11-29T15:15:03Z".parse().unwrap();
        let folder =
            TrialFolder::create(results.path(), &trial, &["name: a\n".into(), "name: b\n".into()], at).unwrap();
        for each in [done(0, 1, true), done(0, 2, true), done(1, 1, true)] {
            folder.add(&each).unwrap();
        }
        let path = results.path().join("trials").join(folder.id()).join("journal.jsonl");
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"at\":\"20");
        fs::write(&path, text).unwrap();
        let (again, plan) = TrialFolder::open(results.path(), folder.id()).unwrap();
        assert_eq!(plan, trial);
        again.add(&done(1, 1, true)).unwrap();
        let known = again.done().unwrap();
        assert_eq!(known.len(), 4);
        // The second start lacks a run, so that none of it counts.
        assert_eq!(complete(&trial, &known), [vec!["s0r1".to_owned(), "s0r2".to_owned()], vec![]]);
        assert!(TrialFolder::open(results.path(), "../x").is_err());
    }
}
