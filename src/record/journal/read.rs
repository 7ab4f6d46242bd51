//! Reading a journal back.
//!
//! Half a line at the end is what a kill leaves, and is dropped. A kind that this build does not know comes from a newer
//! one, and passes by. Anything else that does not read is damage, and an error: a fold over a journal with holes would
//! tell something that never was.

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::super::append;
use super::JournalError;
use crate::event::{Entry, Event, VERSION};

/// A line of a journal.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// One that this build understands.
    Entry(Box<Entry>),
    /// One of a kind that a newer build wrote.
    Unknown {
        /// Its number in the run.
        seq: u64,
        /// When it was written.
        at: Timestamp,
        /// Its kind.
        kind: String,
        /// The line as it is.
        raw: Value,
    },
}

/// A journal, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Its lines.
    pub lines: Vec<Line>,
    /// How many bytes they take.
    pub whole: u64,
    /// Whether half a line followed, which was dropped.
    pub torn: bool,
}

impl Reading {
    /// The lines that this build understands.
    pub fn entries(self) -> impl Iterator<Item = Entry> {
        self.lines.into_iter().filter_map(|line| match line {
            Line::Entry(entry) => Some(*entry),
            Line::Unknown { .. } => None,
        })
    }
}

/// Reads the journal at `path`.
pub fn read(path: &Path) -> Result<Reading, JournalError> {
    let bytes = std::fs::read(path).map_err(|source| JournalError::Open { path: path.to_owned(), source })?;
    parse(&bytes, path)
}

/// Reads the bytes of a journal; `path` is named in errors.
pub fn parse(bytes: &[u8], path: &Path) -> Result<Reading, JournalError> {
    let whole = append::whole(bytes);
    let mut lines = Vec::new();
    for (index, text) in bytes[..whole].split_inclusive(|&byte| byte == b'\n').enumerate() {
        let line = line(text, index as u64).map_err(|reason| JournalError::Line {
            path: path.to_owned(),
            line: index + 1,
            reason,
        })?;
        lines.push(line);
    }
    Ok(Reading { lines, whole: whole as u64, torn: whole < bytes.len() })
}

/// What every line has, whatever its kind.
#[derive(Deserialize)]
struct Envelope {
    v: u32,
    seq: u64,
    at: Timestamp,
    event: String,
}

/// Reads a line whose number in the run is `expected`.
pub(crate) fn line(text: &[u8], expected: u64) -> Result<Line, String> {
    let envelope: Envelope = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let Envelope { v, seq, at, event: kind } = envelope;
    if seq != expected {
        return Err(format!("its `seq` is {seq}, and {expected} is due"));
    }
    let known = Event::KINDS.contains(&kind.as_str());
    if known && v <= VERSION {
        let entry = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        return Ok(Line::Entry(Box::new(entry)));
    }
    if known {
        return Err(format!("it is of version {v}, and this orch reads up to {VERSION}: a newer orch wrote it"));
    }
    let raw = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    Ok(Line::Unknown { seq, at, kind, raw })
}
