//! `baselines.jsonl`: which runs count as the baseline of what. Lines are added and never changed, so that what a
//! verdict was compared with can always be told afterwards.
//!
//! The last line for a key is the one that holds. A key names everything that makes results comparable: the series, the
//! step, its workload and load, the hardware, the host.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::append::{Tail, whole};
use super::model::{Record, StepResult};
use crate::render::Load;

/// Version of a line's shape.
pub const VERSION: u32 = 1;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// [`VERSION`].
    pub v: u32,
    /// Its own id, so that the lines of several writers can be put together.
    pub id: String,
    /// When.
    pub at: Timestamp,
    /// Who: `user@host`.
    pub by: String,
    /// What was done.
    pub action: Action,
    /// To the baseline of what.
    #[serde(flatten)]
    pub key: Key,
    /// The runs that count from now on; none after `expire` and `clear`.
    pub runs: Vec<String>,
    /// Why, in the person's own words.
    pub why: Option<String>,
}

/// What a line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// These runs are the baseline.
    Set,
    /// These runs are the baseline although they differ from the one before: a change that is meant to last.
    Promote,
    /// The baseline tells nothing of today any more, and nothing takes its place yet.
    Expire,
    /// There is no baseline.
    Clear,
}

impl Action {
    /// As written.
    pub fn word(self) -> &'static str {
        match self {
            Action::Set => "set",
            Action::Promote => "promote",
            Action::Expire => "expire",
            Action::Clear => "clear",
        }
    }
}

/// What a baseline is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// The series.
    pub series: String,
    /// The step.
    pub step: String,
    /// `sha256:<hex>` of its workload.
    pub workload: String,
    /// How it was sent.
    pub load: Load,
    /// GPU models and count, or processor model and cores.
    pub hardware: String,
    /// The host's name.
    pub host: String,
}

impl Key {
    /// The key of a step of a record.
    pub fn of(record: &Record, step: &StepResult) -> Self {
        Key {
            series: record.series.clone(),
            step: step.name.clone(),
            workload: step.workload.clone(),
            load: step.load.clone(),
            hardware: record.host.hardware.clone(),
            host: record.host.name.clone(),
        }
    }

    /// Whether results under the two keys are comparable.
    pub fn same(&self, other: &Key) -> bool {
        self.series == other.series
            && self.step == other.step
            && self.workload == other.workload
            && same_load(&self.load, &other.load)
            && self.hardware == other.hardware
            && self.host == other.host
    }
}

/// Whether two loads measure the same. How many requests go before, uncounted, is not part of that.
pub fn same_load(one: &Load, other: &Load) -> bool {
    one.arrival == other.arrival && one.requests == other.requests && one.duration_s == other.duration_s
}

/// The file, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baselines {
    /// Its lines, oldest first.
    pub lines: Vec<Line>,
}

/// The file could not be read or written.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum BaselinesError {
    /// The system refused.
    #[error("cannot {doing} the baselines {}: {source}", path.display())]
    #[diagnostic(code(orch::record::baselines))]
    Io {
        /// `read` or `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A whole line that is not one of baselines.
    #[error("line {line} of the baselines {} is damaged: {reason}", path.display())]
    #[diagnostic(
        code(orch::record::baselines_damaged),
        help("mend or delete this line by hand; nothing is compared with a baseline that is in doubt")
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

impl Baselines {
    /// Reads the file; one that is not there has no lines. Half a line at the end is dropped.
    pub fn read(path: &Path) -> Result<Self, BaselinesError> {
        match std::fs::read(path) {
            Ok(bytes) => Self::parse(&bytes, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Baselines::default()),
            Err(source) => Err(BaselinesError::Io { doing: "read", path: path.to_owned(), source }),
        }
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Self, BaselinesError> {
        let (whole_lines, rest) = bytes.split_at(whole(bytes));
        let mut lines = Vec::new();
        for (index, text) in whole_lines.split_inclusive(|&byte| byte == b'\n').enumerate() {
            if text.trim_ascii().is_empty() {
                continue;
            }
            let line =
                line(text).map_err(|reason| BaselinesError::Line { path: path.to_owned(), line: index + 1, reason })?;
            lines.push(line);
        }
        // A person's editor may leave out the last newline; a kill leaves something that does not read.
        lines.extend(line(rest).ok());
        Ok(Baselines { lines })
    }

    /// With the lines of others among one's own, all in the order of their times. Each counts once.
    pub(super) fn with(mut self, others: Vec<Line>) -> Self {
        let mut known: BTreeSet<String> = self.lines.iter().map(|line| line.id.clone()).collect();
        self.lines.extend(others.into_iter().filter(|line| known.insert(line.id.clone())));
        self.lines.sort_by_key(|line| line.at);
        self
    }

    /// The line that holds for `key`, if any ever did.
    pub fn current(&self, key: &Key) -> Option<&Line> {
        self.lines.iter().rev().find(|line| line.key.same(key))
    }

    /// The line that a baseline for `key` goes back to: the first since one was promoted, expired or cleared. Each one that
    /// is set is held against it, so that small losses do not add up unseen.
    pub fn anchor(&self, key: &Key) -> Option<&Line> {
        let mut anchor = None;
        for line in self.lines.iter().filter(|line| line.key.same(key)) {
            anchor = match line.action {
                Action::Set => anchor.or(Some(line)),
                Action::Promote => Some(line),
                Action::Expire | Action::Clear => None,
            };
        }
        anchor
    }

    /// For every key, the line that holds, oldest first.
    pub fn currents(&self) -> Vec<&Line> {
        let holds = |(index, line): (usize, &Line)| !self.lines[index + 1..].iter().any(|l| l.key.same(&line.key));
        self.lines.iter().enumerate().filter(|&each| holds(each)).map(|(_, line)| line).collect()
    }
}

/// Reads a line.
pub(super) fn line(text: &[u8]) -> Result<Line, String> {
    let line: Line = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match line.v {
        VERSION => Ok(line),
        newer => Err(format!("it is of version {newer}, and this orch reads {VERSION}")),
    }
}

/// Adds `lines` at the end of the file, all or none, under a lock against other writers.
pub fn append(path: &Path, lines: &[Line]) -> Result<(), BaselinesError> {
    write(path, lines).map_err(|source| BaselinesError::Io { doing: "write", path: path.to_owned(), source })
}

fn write(path: &Path, lines: &[Line]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    let file = File::options().append(true).create(true).open(path)?;
    // Held until `file` is closed, and by the kernel no longer than this process lives.
    file.lock()?;
    let bytes = std::fs::read(path)?;
    let whole = whole(&bytes);
    if line(&bytes[whole..]).is_ok() {
        text.insert(0, b'\n');
        return Tail::new(file, bytes.len() as u64)?.push(&text, true);
    }
    Tail::new(file, whole as u64)?.push(&text, true)
}

#[cfg(test)]
mod tests;
