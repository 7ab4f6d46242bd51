//! The index of the runs: SQLite beside them, for lists and lookups. Derived only: it may be deleted at any time, and
//! every use first looks whether a folder has changed since.
//!
//! Where it cannot be kept (a folder that may only be read, a full disk), it is built in memory and the listing says so.

mod scan;
mod sql;

use std::fs;

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode, params};
use serde::Serialize;

use super::RunId;
use super::baselines::{Key, same_load};
use super::model::{Record, RunKind, VerdictKind};
use super::store::{Store, StoreError};
use crate::render::Load;

/// Which runs are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this series.
    pub series: Option<String>,
    /// Of the profile with this name.
    pub name: Option<String>,
    /// With this verdict.
    pub verdict: Option<VerdictKind>,
    /// On the host of this name.
    pub host: Option<String>,
    /// With an engine of this kind.
    pub engine: Option<String>,
    /// Only what came to its end.
    pub complete: bool,
    /// At most so many.
    pub limit: Option<u32>,
}

/// A run in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// Its short name.
    pub short: String,
    /// When it began: as its record tells, or, where that cannot be read, its id.
    pub started_at: Option<Timestamp>,
    /// The profile's name.
    pub name: Option<String>,
    /// Its series.
    pub series: Option<String>,
    /// What kind of run.
    pub kind: Option<RunKind>,
    /// The engine's kind; `null` until it was planned.
    pub engine: Option<String>,
    /// The engine's version.
    pub engine_version: Option<String>,
    /// Whether the engine was simulated.
    pub simulated: Option<bool>,
    /// The host's name.
    pub host: Option<String>,
    /// Its hardware.
    pub hardware: Option<String>,
    /// The verdict; `null` when the record cannot be read.
    pub verdict: Option<VerdictKind>,
    /// The first of its reasons.
    pub reason: Option<String>,
    /// Whether everything that was planned was done.
    pub complete: bool,
    /// Whether an orch is at it now.
    pub running: bool,
    /// How many steps have a result.
    pub steps: u32,
    /// The highest output of a valid step.
    pub output_tokens_per_s: Option<f64>,
    /// Why its record cannot be read.
    pub problem: Option<String>,
}

/// A list of runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Newest first.
    pub rows: Vec<Row>,
    /// What a person should know of this list: what is not in it, and how it was made.
    pub notes: Vec<String>,
}

/// The index, up to date with the folders.
pub(super) struct Index<'a> {
    store: &'a Store,
    connection: Connection,
    notes: Vec<String>,
}

impl<'a> Index<'a> {
    /// Opens the index and brings it up to date.
    pub(super) fn open(store: &'a Store) -> Result<Self, StoreError> {
        let found = store.scan()?;
        let mut notes = Vec::new();
        if !found.foreign.is_empty() {
            let names = found.foreign.join(", ");
            notes.push(format!("not a run, and passed by: {names} in {}", store.folder().join("runs").display()));
        }
        let path = store.folder().join("index.sqlite");
        // Without a folder there is nothing to index and nowhere to keep it.
        let kept = match store.folder().is_dir() {
            true => sql::open(&path).and_then(|connection| scan::update(store, connection, &found.ids)),
            false => sql::memory().and_then(|connection| scan::update(store, connection, &found.ids)),
        };
        let connection = match kept {
            Ok(connection) => connection,
            Err(error) if is_damage(&error) => {
                // Another orch may have it open: it keeps what it opened, and finds the new one the next time.
                let _ = fs::remove_file(&path);
                let again = sql::open(&path).and_then(|connection| scan::update(store, connection, &found.ids));
                match again {
                    Ok(connection) => connection,
                    Err(error) => in_memory(store, &found.ids, &error, &mut notes)?,
                }
            }
            Err(error) => in_memory(store, &found.ids, &error, &mut notes)?,
        };
        Ok(Index { store, connection, notes })
    }

    /// Runs that fit `filter`, newest first.
    pub(super) fn list(mut self, filter: &Filter) -> Result<Listing, StoreError> {
        let rows = self.rows(filter)?;
        let only_some = filter.series.is_some()
            || filter.name.is_some()
            || filter.verdict.is_some()
            || filter.host.is_some()
            || filter.engine.is_some()
            || filter.complete;
        if only_some {
            let unreadable: u32 = self.connection.query_row(sql::COUNT_PROBLEMS, [], |row| row.get(0))?;
            if unreadable > 0 {
                let runs = if unreadable == 1 { "run" } else { "runs" };
                self.notes.push(format!("{unreadable} unreadable {runs} cannot be filtered: `orch list` shows them"));
            }
        }
        Ok(Listing { rows, notes: self.notes })
    }

    fn rows(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        let mut statement = self.connection.prepare(sql::LIST)?;
        let verdict = filter.verdict.map(sql::word);
        // Until a run has ended its record says `failed`, so that a kill leaves a true one; a run that goes on has not.
        let only_failed = filter.verdict == Some(VerdictKind::Failed);
        let limit = filter.limit.filter(|_| !only_failed).map_or(-1, i64::from);
        let parameters =
            params![filter.series, filter.name, verdict, filter.host, filter.engine, filter.complete, limit];
        let mut rows = Vec::new();
        for row in statement.query_map(parameters, sql::row)? {
            let mut row = row?;
            if !row.complete
                && let Ok(id) = row.id.parse::<RunId>()
            {
                row.running = self.store.is_running(&id);
            }
            if only_failed && row.running {
                continue;
            }
            rows.push(row);
            if filter.limit.is_some_and(|limit| rows.len() as u64 >= u64::from(limit)) {
                break;
            }
        }
        Ok(rows)
    }

    /// Complete runs, other than `record`, that have every step of it under the same key, newest first.
    pub(super) fn candidates(&self, record: &Record) -> Result<Vec<RunId>, StoreError> {
        let mut common: Option<Vec<String>> = None;
        for step in &record.steps {
            let runs = self.with_step(&Key::of(record, step), record)?;
            common = Some(match common {
                None => runs,
                Some(before) => before.into_iter().filter(|id| runs.contains(id)).collect(),
            });
        }
        Ok(common.unwrap_or_default().iter().filter_map(|id| id.parse().ok()).collect())
    }

    fn with_step(&self, key: &Key, record: &Record) -> Result<Vec<String>, StoreError> {
        let mut statement = self.connection.prepare(sql::CANDIDATES)?;
        let simulated = record.engine.as_ref().is_some_and(|engine| engine.simulated);
        let parameters = params![
            key.series,
            key.step,
            key.workload,
            key.hardware,
            key.host,
            simulated,
            record.metrics_version,
            record.id
        ];
        let mut runs = Vec::new();
        for row in statement.query_map(parameters, |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))? {
            let (run, load) = row?;
            if serde_json::from_str::<Load>(&load).is_ok_and(|load| same_load(&load, &key.load)) {
                runs.push(run);
            }
        }
        Ok(runs)
    }
}

/// The index where it cannot be kept.
fn in_memory(
    store: &Store,
    ids: &[RunId],
    why: &rusqlite::Error,
    notes: &mut Vec<String>,
) -> Result<Connection, StoreError> {
    let path = store.folder().join("index.sqlite");
    notes.push(format!("the index {} cannot be kept ({why}); built in memory", path.display()));
    let connection = sql::memory()?;
    // What an older index knows need not be read again; an index that does not even open knows nothing.
    let _ = sql::copy(&connection, &path);
    Ok(scan::update(store, connection, ids)?)
}

/// Whether the file itself is at fault, so that another one in its place would do.
fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => {
            matches!(failure.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged)
        }
        // A value of a type that this build never wrote, a column or table that is not there.
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::SqlInputError { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
