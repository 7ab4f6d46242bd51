//! The journal of a run: one JSON line for each thing that happened, on disk before anything follows from it.
//!
//! One orch writes a journal at a time and holds a lock on it as long as it lives, so that others can tell a run that
//! goes on from one that was killed.

mod listen;
mod lock;
mod read;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::broadcast;

pub use listen::{Heard, Listener};
pub(crate) use read::line as read_line;
pub use read::{Line, Reading, parse, read};

use super::append::Tail;
use super::fold::RunState;
use crate::clock::Clock;
use crate::event::{Emit, EmitError, Entry, Event, Scope, VERSION};

/// How many lines a listener may be behind before it misses some.
const BEHIND: usize = 1024;

/// The writing end of a journal. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    run: String,
    clock: Clock,
    writer: Mutex<Writer>,
    listeners: broadcast::Sender<Arc<Entry>>,
}

#[derive(Debug)]
struct Writer {
    tail: Tail,
    seq: u64,
    state: RunState,
    /// The state with the lines that could not be written, once there were some.
    known: Option<RunState>,
}

/// A journal could not be opened or read.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum JournalError {
    /// The system refused.
    #[error("cannot open the journal {}: {source}", path.display())]
    #[diagnostic(code(orch::record::journal))]
    Open {
        /// The journal.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A whole line that is not one of a journal.
    #[error("line {line} of the journal {} is damaged: {reason}", path.display())]
    #[diagnostic(
        code(orch::record::journal_damaged),
        help("orch never writes such a line; the file was changed, or the disk lost something")
    )]
    Line {
        /// The journal.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Another orch writes it.
    #[error("another orch is writing the journal {}", path.display())]
    #[diagnostic(code(orch::record::run_goes_on), help("the run still goes on; `orch ps` shows it"))]
    InUse {
        /// The journal.
        path: PathBuf,
    },
}

impl Journal {
    /// Makes the journal of a new run. The file must not be there yet.
    pub fn create(path: &Path, run: &str, clock: Clock) -> Result<Self, JournalError> {
        let open = |source| JournalError::Open { path: path.to_owned(), source };
        let file = File::options().append(true).create_new(true).open(path).map_err(open)?;
        Self::from(file, path, run, clock, Reading::default())
    }

    /// Opens the journal of a run that was interrupted, to go on with it. Half a line at its end is cut off.
    pub fn reopen(path: &Path, run: &str, clock: Clock) -> Result<Self, JournalError> {
        let open = |source| JournalError::Open { path: path.to_owned(), source };
        let file = File::options().append(true).open(path).map_err(open)?;
        if !lock::take(&file).map_err(open)? {
            return Err(JournalError::InUse { path: path.to_owned() });
        }
        Self::from(file, path, run, clock, read(path)?)
    }

    fn from(file: File, path: &Path, run: &str, clock: Clock, so_far: Reading) -> Result<Self, JournalError> {
        let open = |source| JournalError::Open { path: path.to_owned(), source };
        if !lock::take(&file).map_err(open)? {
            return Err(JournalError::InUse { path: path.to_owned() });
        }
        let seq = so_far.lines.len() as u64;
        let tail = Tail::new(file, so_far.whole).map_err(open)?;
        let state = super::fold(so_far.entries());
        let writer = Mutex::new(Writer { tail, seq, state, known: None });
        let listeners = broadcast::Sender::new(BEHIND);
        Ok(Journal(Arc::new(Shared { path: path.to_owned(), run: run.to_owned(), clock, writer, listeners })))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Hears every line from now on. Ends when the last writing end is gone.
    pub fn subscribe(&self) -> Listener {
        Listener::new(self.0.listeners.subscribe())
    }

    /// The state of the run: the fold of all lines so far.
    pub fn state(&self) -> RunState {
        self.writer().state.clone()
    }

    /// The same, with what was to be written and could not be: what is known, though nothing keeps it.
    pub fn known(&self) -> RunState {
        let writer = self.writer();
        writer.known.as_ref().unwrap_or(&writer.state).clone()
    }

    /// A poisoned lock means that another thread panicked while it wrote; [`Tail`] holds its promise even then.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.0.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Emit for Journal {
    fn emit(&self, scope: Scope, event: Event) -> Result<(), EmitError> {
        let shared = &*self.0;
        let failed = |source| EmitError { path: shared.path.clone(), source };
        let mut writer = self.writer();
        let entry = Entry {
            v: VERSION,
            seq: writer.seq,
            at: shared.clock.now(),
            since_start_ns: shared.clock.nanos(),
            run: shared.run.clone(),
            scope,
            event,
        };
        let mut line = serde_json::to_vec(&entry).map_err(|error| failed(error.into()))?;
        // A number that is not finite becomes `null`, and a line that cannot be read back would spoil the journal for
        // good. Nothing else can do that, so only lines with a `null` are tried.
        let entry = match line.windows(4).any(|word| word == b"null") {
            true => serde_json::from_slice(&line).map_err(|error| failed(error.into()))?,
            false => entry,
        };
        line.push(b'\n');
        let written = writer.tail.push(&line, entry.event.changes_resume());
        if written.is_err() && writer.known.is_none() {
            writer.known = Some(writer.state.clone());
        }
        if let Some(known) = &mut writer.known {
            known.apply(&entry);
        }
        written.map_err(failed)?;
        writer.seq += 1;
        writer.state.apply(&entry);
        // Still under the lock, so that listeners hear the lines in their order. No listener is no error.
        let _ = shared.listeners.send(Arc::new(entry));
        Ok(())
    }
}

/// Whether some orch writes the journal at `path` now.
pub fn is_written(path: &Path) -> std::io::Result<bool> {
    lock::is_held(&File::open(path)?)
}

#[cfg(test)]
mod tests;
