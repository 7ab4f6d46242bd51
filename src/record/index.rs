//! The index of the runs: SQLite beside them, for lists and lookups. Derived only: it may be deleted at any time, and
//! every use first looks whether a folder has changed since.
//!
//! Where it cannot be kept (a folder that may only be read, a full disk), it is built in memory and the listing says so.

mod numbers;
mod past;
mod scan;
mod sql;

use std::fs;

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode};
use serde::Serialize;

use super::RunId;
use super::id::Which;
use super::model::{Record, RunKind, VerdictKind};
use super::store::{Store, StoreError};

pub(crate) use numbers::{START, of_step as numbers_of};
pub use past::{Past, PastFilter};

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
    /// Only what was recorded in this folder, and not what came from a team's store.
    pub own: bool,
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
    /// `user@host` of whoever recorded it; not there for what was recorded in this folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<String>,
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
        let mut notes = Vec::new();
        let path = store.folder().join(FILE);
        // Without a folder there is nothing to index and nowhere to keep it.
        let updated = |connection| scan::update(store, connection);
        let kept = match store.folder().is_dir() {
            true => sql::open(&path).map_err(StoreError::from).and_then(updated),
            false => sql::memory().map_err(StoreError::from).and_then(updated),
        };
        let (connection, foreign) = match kept {
            Ok(kept) => kept,
            Err(StoreError::Index(error)) if is_damage(&error) => {
                // Another orch may have it open: it keeps what it opened, and finds the new one the next time.
                let _ = fs::remove_file(&path);
                match sql::open(&path).map_err(StoreError::from).and_then(updated) {
                    Err(StoreError::Index(error)) => in_memory(store, &error, &mut notes)?,
                    kept => kept?,
                }
            }
            Err(StoreError::Index(error)) => in_memory(store, &error, &mut notes)?,
            Err(error) => return Err(error),
        };
        if !foreign.is_empty() {
            let names = foreign.join(", ");
            notes.push(format!("not a run, and passed by: {names} in {}", store.folder().join("runs").display()));
        }
        Ok(Index { store, connection, notes })
    }

    /// Reads every run anew. Returns how many there are.
    pub(super) fn rebuild(store: &'a Store) -> Result<(u64, Vec<String>), StoreError> {
        match fs::remove_file(store.folder().join(FILE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let path = store.folder().join(FILE);
                return Err(StoreError::Io { doing: "remove", path, source: error });
            }
            _ => {}
        }
        let index = Index::open(store)?;
        let count: i64 = index.connection.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
        Ok((u64::try_from(count).unwrap_or_default(), index.notes))
    }

    /// Runs that fit `filter`, newest first.
    pub(super) fn list(mut self, filter: &Filter) -> Result<Listing, StoreError> {
        let rows = self.rows(filter)?;
        let only_some = filter.series.is_some()
            || filter.name.is_some()
            || filter.verdict.is_some()
            || filter.host.is_some()
            || filter.engine.is_some()
            || filter.complete
            || filter.own;
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
        // Until a run has ended its record says `failed`, so that a kill leaves a true one; a run that goes on has not.
        let only_failed = filter.verdict == Some(VerdictKind::Failed);
        let verdict = filter.verdict.and_then(sql::word);
        let wanted: [(&str, &Option<String>); 5] = [
            ("series = ?", &filter.series),
            ("name = ?", &filter.name),
            ("verdict = ?", &verdict),
            ("host = ?", &filter.host),
            ("engine = ?", &filter.engine),
        ];
        let given = wanted.iter().filter(|(_, value)| value.is_some());
        let mut conditions: Vec<&str> = given.clone().map(|(condition, _)| *condition).collect();
        if filter.complete {
            conditions.push("complete");
        }
        if filter.own {
            conditions.push("writer IS NULL");
        }
        let conditions =
            if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        let mut statement = self.connection.prepare(&format!("{} {conditions} {}", sql::LIST, sql::NEWEST_FIRST))?;
        let values = rusqlite::params_from_iter(given.filter_map(|(_, value)| value.as_deref()));
        let mut rows = Vec::new();
        // Rows are read one by one: what is not wanted any more is not read.
        for row in statement.query_map(values, sql::row)? {
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

    /// This folder's own runs that have ended: each id with the stamp of its files, which changes when they do.
    pub(super) fn own(&self) -> Result<Vec<(String, String)>, StoreError> {
        let mut statement = self.connection.prepare(sql::OWN)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Complete runs, other than `record`, that have every step of it under the same key, newest first.
    pub(super) fn candidates(&self, record: &Record) -> Result<Vec<RunId>, StoreError> {
        let mut common: Option<Vec<String>> = None;
        for step in &record.steps {
            let runs = self.alike_ids(record, step)?;
            common = Some(match common {
                None => runs,
                Some(before) => before.into_iter().filter(|id| runs.contains(id)).collect(),
            });
        }
        Ok(common.unwrap_or_default().iter().filter_map(|id| id.parse().ok()).collect())
    }
}

/// The runs that a person means, if the index knows them all without looking through the folder.
pub(super) fn lookup(store: &Store, which: &Which) -> Option<Vec<RunId>> {
    let path = store.folder().join(FILE);
    let connection = path.is_file().then(|| sql::open(&path).ok()).flatten()?;
    if !scan::is_current(store, &connection) {
        return None;
    }
    let (text, value) = match which {
        Which::Latest => (sql::LATEST, ""),
        Which::Short(digits) => ("SELECT id FROM runs WHERE substr(id, -4) = ?1", digits.as_str()),
        Which::Id(_) => return None,
    };
    let mut statement = connection.prepare(text).ok()?;
    let rows = statement.query_map([value], |row| row.get::<_, String>(0)).ok()?;
    rows.map(|id| id.ok()?.parse().ok()).collect()
}

/// Its file in the results folder.
const FILE: &str = "index.sqlite";

/// The index where it cannot be kept.
fn in_memory(
    store: &Store,
    why: &rusqlite::Error,
    notes: &mut Vec<String>,
) -> Result<(Connection, Vec<String>), StoreError> {
    let path = store.folder().join(FILE);
    notes.push(format!("the index {} cannot be kept ({why}); built in memory", path.display()));
    let connection = sql::memory()?;
    // What an older index knows need not be read again; an index that does not even open knows nothing.
    let _ = sql::copy(&connection, &path);
    scan::update(store, connection)
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
