//! What is known here of a store: `team/` in the results folder.
//!
//! `stores.json` tells which store an address led to, `<id>/sent.jsonl` what that one has of ours, `<id>/sending` what was
//! on its way when this was written last, `<id>/seen` how much of what it has was fetched, `<id>/baselines.jsonl` the
//! baselines of others. All but the last may be deleted: then more is asked and sent again than is needed, and nothing is
//! doubled.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::address::Address;
use super::error::TeamError;
use crate::record::append::{Tail, whole};
use crate::record::store::replace;

/// How long another orch may be at it before we do without.
const PATIENCE: Duration = Duration::from_secs(3);

/// `team/` of a results folder.
#[derive(Clone, Debug)]
pub(super) struct TeamFolder {
    path: PathBuf,
}

impl TeamFolder {
    /// Of this results folder, whether it is there or not.
    pub(super) fn of(results: &Path) -> Self {
        TeamFolder { path: results.join("team") }
    }

    /// Waits until no other orch exchanges records of this results folder. It holds as long as the file is open.
    pub(super) async fn lock(&self) -> Result<File, TeamError> {
        fs::create_dir_all(&self.path).map_err(failed("make", &self.path))?;
        let path = self.path.join("lock");
        let file = File::options().create(true).append(true).open(&path).map_err(failed("write", &path))?;
        let since = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if since.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(TryLockError::WouldBlock) => return Err(TeamError::Busy),
                // A file system without locks. They spare work only: the database sees to it that nothing is doubled.
                Err(TryLockError::Error(_)) => return Ok(file),
            }
        }
    }

    /// The id of the store that this address led to last.
    pub(super) fn known(&self, address: &Address) -> Option<String> {
        self.stores().remove(&address.to_string()).filter(|id| is_id(id))
    }

    /// Notes which store this address leads to.
    pub(super) fn remember(&self, address: &Address, id: &str) -> Result<(), TeamError> {
        let mut stores = self.stores();
        if stores.insert(address.to_string(), id.to_owned()).as_deref() == Some(id) {
            return Ok(());
        }
        let path = self.path.join("stores.json");
        let text = serde_json::to_vec_pretty(&stores).unwrap_or_default();
        replace(&path, &text).map_err(failed("write", &path))
    }

    fn stores(&self) -> BTreeMap<String, String> {
        let text = fs::read(self.path.join("stores.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// What is known of the store with this id.
    pub(super) fn state(&self, id: &str) -> Result<State, TeamError> {
        State::read(self.path.join(id))
    }

    /// The files of others' baselines, of all stores.
    pub(super) fn baselines(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = folders
            .filter(|entry| entry.file_name().to_str().is_some_and(is_id))
            .map(|entry| entry.path().join(BASELINES))
            .filter(|path| path.is_file())
            .collect();
        files.sort();
        files
    }
}

const BASELINES: &str = "baselines.jsonl";

/// Whether it can be the name of a store's folder.
fn is_id(text: &str) -> bool {
    (8..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// How much of a store was fetched: the highest number of each table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) runs: i64,
    pub(super) baselines: i64,
}

/// A run as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Of what was sent.
    pub(super) hash: String,
    /// Of the files that it was read from: as long as it is the same, they need not be read again.
    pub(super) stamp: String,
}

/// A line of `sent.jsonl`: a run with its mark, or a line of baselines.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Line {
    #[serde(skip_serializing_if = "String::is_empty")]
    run: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    hash: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    stamp: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    baseline: String,
}

/// What is known of a store.
#[derive(Debug)]
pub(super) struct State {
    folder: PathBuf,
    /// Runs that it has, as they were sent last.
    pub(super) runs: HashMap<String, Mark>,
    /// The other hashes under which a run was ever sent, or may have been.
    before: HashMap<String, Vec<String>>,
    /// Lines of baselines that it has.
    pub(super) baselines: HashSet<String>,
    /// How much of it was fetched.
    pub(super) seen: Seen,
    /// The same, as it is written down.
    written: Seen,
}

impl State {
    fn read(folder: PathBuf) -> Result<Self, TeamError> {
        let seen = read(&folder.join("seen"))?;
        let seen: Seen = serde_json::from_slice(&seen).unwrap_or_default();
        let mut state = State {
            folder,
            runs: HashMap::new(),
            before: HashMap::new(),
            baselines: HashSet::new(),
            seen,
            written: seen,
        };
        let sent = read(&state.folder.join("sent.jsonl"))?;
        for Line { run, hash, stamp, baseline } in lines(&sent) {
            match run.is_empty() {
                true => drop(state.baselines.insert(baseline)),
                false => state.note(run, Mark { hash, stamp }),
            }
        }
        let sending = read(&state.folder.join("sending"))?;
        for Line { run, hash, .. } in lines(&sending) {
            state.before.entry(run).or_default().push(hash);
        }
        Ok(state)
    }

    /// Every hash under which this run was ever sent, or may have been.
    pub(super) fn before(&self, run: &str) -> Vec<String> {
        let before = self.before.get(run).into_iter().flatten();
        before.chain(self.runs.get(run).map(|mark| &mark.hash)).cloned().collect()
    }

    /// Writes down what is about to be sent. Should we be killed before it is known to be there, it may be there.
    pub(super) fn sending(&mut self, runs: &[(String, Mark)]) -> Result<(), TeamError> {
        let new: Vec<_> = runs.iter().filter(|(run, mark)| !self.before(run).contains(&mark.hash)).collect();
        self.append("sending", text(new.iter().map(|each| run_line(each))))?;
        for (run, mark) in new {
            self.before.entry(run.clone()).or_default().push(mark.hash.clone());
        }
        Ok(())
    }

    /// Forgets what was on its way: all of it is known to be there, or not to be.
    pub(super) fn arrived(&self) -> Result<(), TeamError> {
        let path = self.folder.join("sending");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Writes down what is there.
    pub(super) fn sent(&mut self, runs: Vec<(String, Mark)>) -> Result<(), TeamError> {
        self.append("sent.jsonl", text(runs.iter().map(run_line)))?;
        runs.into_iter().for_each(|(run, mark)| self.note(run, mark));
        Ok(())
    }

    /// The same of lines of baselines.
    pub(super) fn sent_baselines(&mut self, ids: Vec<String>) -> Result<(), TeamError> {
        self.append("sent.jsonl", text(ids.iter().map(|id| Line { baseline: id.clone(), ..Line::default() })))?;
        self.baselines.extend(ids);
        Ok(())
    }

    /// Writes down how much was fetched.
    pub(super) fn saw(&mut self, seen: Seen) -> Result<(), TeamError> {
        self.seen = seen;
        if seen == self.written {
            return Ok(());
        }
        let path = self.folder.join("seen");
        fs::create_dir_all(&self.folder).map_err(failed("make", &self.folder))?;
        replace(&path, &serde_json::to_vec(&seen).unwrap_or_default()).map_err(failed("write", &path))?;
        self.written = seen;
        Ok(())
    }

    /// Where the baselines of others are.
    pub(super) fn baselines_path(&self) -> PathBuf {
        self.folder.join(BASELINES)
    }

    fn note(&mut self, run: String, mark: Mark) {
        match self.runs.entry(run) {
            Entry::Vacant(new) => drop(new.insert(mark)),
            Entry::Occupied(mut known) => {
                let before = known.insert(mark);
                if before.hash != known.get().hash {
                    self.before.entry(known.key().clone()).or_default().push(before.hash);
                }
            }
        }
    }

    fn append(&self, name: &str, text: Vec<u8>) -> Result<(), TeamError> {
        if text.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(&self.folder).map_err(failed("make", &self.folder))?;
        let path = self.folder.join(name);
        let appended = File::options().append(true).create(true).read(true).open(&path).and_then(|file| {
            let whole = whole(&fs::read(&path)?);
            Tail::new(file, whole as u64)?.push(&text, true)
        });
        appended.map_err(failed("write", &path))
    }
}

fn run_line((run, mark): &(String, Mark)) -> Line {
    Line { run: run.clone(), hash: mark.hash.clone(), stamp: mark.stamp.clone(), ..Line::default() }
}

fn text(lines: impl Iterator<Item = Line>) -> Vec<u8> {
    let mut text = Vec::new();
    for line in lines {
        text.extend(serde_json::to_vec(&line).unwrap_or_default());
        text.push(b'\n');
    }
    text
}

/// The whole lines that can be read. Of one that cannot, what it told is asked again.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Line> {
    bytes[..whole(bytes)].split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

fn read(path: &Path) -> Result<Vec<u8>, TeamError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(failed("read", path)),
    }
}

pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TeamError {
    let path = path.to_owned();
    move |source| TeamError::Local { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(hash: &str) -> Mark {
        Mark { hash: hash.into(), stamp: "ended 1:2:3".into() }
    }

    #[test]
    fn what_was_sent_is_known_after_a_kill_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = State::read(folder.path().join("ab")).unwrap();
        state.sending(&[("a".into(), mark("1")), ("b".into(), mark("1"))]).unwrap();
        state.sent(vec![("a".into(), mark("1")), ("b".into(), mark("1"))]).unwrap();
        state.sent_baselines(vec!["b01".into()]).unwrap();
        state.sending(&[("a".into(), mark("2"))]).unwrap();
        state.saw(Seen { runs: 7, baselines: 9 }).unwrap();
        let path = folder.path().join("ab/sent.jsonl");
        let whole_text = fs::read(&path).unwrap();
        for cut in 0..=whole_text.len() {
            fs::write(&path, &whole_text[..cut]).unwrap();
            let mut state = State::read(folder.path().join("ab")).unwrap();
            assert_eq!(state.seen, Seen { runs: 7, baselines: 9 });
            assert!(state.before("a").contains(&"2".to_owned()), "it may have been sent");
            assert!(state.runs.get("a").is_none_or(|known| *known == mark("1")));
            state.sent(vec![("c".into(), mark("3"))]).unwrap();
            let state = State::read(folder.path().join("ab")).unwrap();
            assert_eq!(state.runs.get("c"), Some(&mark("3")), "half a line is cut off before the next");
        }
    }

    #[test]
    fn an_id_that_could_leave_the_folder_is_none() {
        for text in ["", "..", "../abcdef0123", "0123456", "0123456g", "01234567/8"] {
            assert!(!is_id(text), "{text}");
        }
        assert!(is_id("0123456789abcdef"));
    }
}
