//! The tables, and the statements on them.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, Result, TransactionBehavior};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Row;
use crate::record::id::RunId;

/// Version of the tables. An index of another one is emptied and filled anew.
const VERSION: i64 = 3;

/// How long another orch may hold the file before we give up on it.
const PATIENCE: Duration = Duration::from_secs(10);

const TABLES: &str = "
    DROP TABLE IF EXISTS runs;
    DROP TABLE IF EXISTS steps;
    DROP TABLE IF EXISTS seen;
    CREATE TABLE seen (runs_ns INTEGER NOT NULL, foreign_names TEXT NOT NULL);
    CREATE TABLE runs (
        id TEXT PRIMARY KEY, started_ns INTEGER NOT NULL, known INTEGER NOT NULL, name TEXT, series TEXT, kind TEXT,
        engine TEXT, engine_version TEXT, simulated INTEGER, host TEXT, hardware TEXT, metrics_version INTEGER,
        verdict TEXT, reason TEXT, complete INTEGER NOT NULL, steps INTEGER NOT NULL, output REAL, problem TEXT,
        stamp TEXT NOT NULL, writer TEXT
    ) WITHOUT ROWID;
    CREATE INDEX runs_started ON runs (started_ns, id);
    CREATE INDEX runs_series ON runs (series, started_ns, id);
    CREATE INDEX runs_verdict ON runs (verdict, started_ns, id);
    CREATE INDEX runs_short ON runs (substr(id, -4));
    CREATE INDEX runs_problem ON runs (id) WHERE problem IS NOT NULL;
    CREATE INDEX runs_going_on ON runs (id) WHERE NOT complete;
    CREATE TABLE steps (
        run TEXT NOT NULL, step TEXT NOT NULL, workload TEXT NOT NULL, load TEXT NOT NULL, valid INTEGER NOT NULL,
        start TEXT NOT NULL, settings TEXT NOT NULL, numbers TEXT NOT NULL,
        PRIMARY KEY (run, step)
    ) WITHOUT ROWID;
    CREATE INDEX steps_workload ON steps (workload, step);
";

/// A column for each field of [`Row`]; what is asked for follows.
pub(super) const LIST: &str = "
    SELECT id, started_ns, known, name, series, kind, engine, engine_version, simulated, host, hardware, verdict, reason,
           complete, steps, output, problem, writer
    FROM runs";

pub(super) const NEWEST_FIRST: &str = "ORDER BY started_ns DESC, id DESC";

/// The newest of this folder's own runs; without one, of all. Nothing where `?1` is not empty.
pub(super) const LATEST: &str = "
    SELECT coalesce((SELECT id FROM runs WHERE writer IS NULL ORDER BY started_ns DESC, id DESC LIMIT 1),
                    (SELECT id FROM runs ORDER BY started_ns DESC, id DESC LIMIT 1))
    WHERE ?1 = ''";

/// This folder's own runs that have ended, each with its stamp.
pub(super) const OWN: &str =
    "SELECT id, stamp FROM runs WHERE writer IS NULL AND problem IS NULL AND stamp LIKE 'ended %' ORDER BY id";

pub(super) const COUNT_PROBLEMS: &str = "SELECT count(*) FROM runs WHERE problem IS NOT NULL";

/// Steps under a key, newest first, of runs that began before a moment, if one is given. The order of the join is said, so that it goes through the series' own runs and ends
/// with the last one that is wanted, however many there are of other series.
pub(super) const ALIKE: &str = "
    SELECT runs.id, runs.started_ns, steps.load, steps.start, steps.settings, steps.numbers, runs.verdict
    FROM runs CROSS JOIN steps ON steps.run = runs.id
    WHERE runs.series = ?1 AND steps.step = ?2 AND steps.workload = ?3 AND runs.hardware = ?4 AND runs.host = ?5
      AND runs.simulated = ?6 AND runs.metrics_version = ?7 AND runs.id <> ?8
      AND runs.complete AND steps.valid AND runs.verdict NOT IN ('failed', 'invalid')
      AND (?9 IS NULL OR runs.started_ns < ?9)
    ORDER BY runs.started_ns DESC, runs.id DESC LIMIT 1000";

/// All steps of the newest runs of a series, newest first.
pub(super) const SERIES: &str = "
    SELECT runs.id, runs.started_ns, runs.host, runs.hardware, runs.simulated, runs.metrics_version, runs.engine_version,
           runs.verdict, steps.step, steps.workload, steps.load, steps.start, steps.settings, steps.numbers
    FROM (SELECT * FROM runs
          WHERE series = ?1 AND complete AND verdict NOT IN ('failed', 'invalid') AND (?3 IS NULL OR host = ?3)
          ORDER BY started_ns DESC, id DESC LIMIT ?4) AS runs
    CROSS JOIN steps ON steps.run = runs.id
    WHERE steps.valid AND (?2 IS NULL OR steps.step = ?2)
    ORDER BY runs.started_ns DESC, runs.id DESC";

/// Opens the index at `path`, with its tables there.
pub(super) fn open(path: &Path) -> Result<Connection> {
    prepare(Connection::open(path)?)
}

/// An index that is gone with its connection.
pub(super) fn memory() -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_URI;
    prepare(Connection::open_with_flags(":memory:", flags)?)
}

// The rollback journal that SQLite uses unless told otherwise is slower than its write-ahead log, but it also works on
// network mounts, and a list writes rarely. What a power cut takes is built again.
fn prepare(mut connection: Connection) -> Result<Connection> {
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    if version(&connection)? != VERSION {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another orch may have made the tables while we waited.
        if version(&transaction)? != VERSION {
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        transaction.commit()?;
    }
    Ok(connection)
}

fn version(connection: &Connection) -> Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Takes over what the index at `path` knows.
pub(super) fn copy(connection: &Connection, path: &Path) -> Result<()> {
    // In a URI `?`, `#` and `%` have a meaning of their own.
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    connection.execute("ATTACH ?1 AS kept", [format!("file:{escaped}?mode=ro")])?;
    let version: i64 = connection.query_row("PRAGMA kept.user_version", [], |row| row.get(0))?;
    let copied = match version {
        VERSION => connection.execute_batch(
            "BEGIN; INSERT INTO runs SELECT * FROM kept.runs; INSERT INTO steps SELECT * FROM kept.steps;
             INSERT INTO seen SELECT * FROM kept.seen; COMMIT",
        ),
        _ => Ok(()),
    };
    if copied.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    connection.execute_batch("DETACH kept")?;
    copied
}

/// Reads a line of [`LIST`].
pub(super) fn row(row: &rusqlite::Row<'_>) -> Result<Row> {
    let id: String = row.get("id")?;
    let known: bool = row.get("known")?;
    let started_ns: i64 = row.get("started_ns")?;
    Ok(Row {
        short: id.parse::<RunId>().map(|id| id.short()).unwrap_or_default(),
        started_at: known.then(|| Timestamp::from_nanosecond(i128::from(started_ns)).ok()).flatten(),
        name: row.get("name")?,
        series: row.get("series")?,
        kind: row.get::<_, Option<String>>("kind")?.as_deref().and_then(value),
        engine: row.get("engine")?,
        engine_version: row.get("engine_version")?,
        simulated: row.get("simulated")?,
        host: row.get("host")?,
        hardware: row.get("hardware")?,
        verdict: row.get::<_, Option<String>>("verdict")?.as_deref().and_then(value),
        reason: row.get("reason")?,
        complete: row.get("complete")?,
        running: false,
        steps: row.get("steps")?,
        output_tokens_per_s: row.get("output")?,
        problem: row.get("problem")?,
        writer: row.get("writer")?,
        id,
    })
}

/// The one word that a plain enum is written as.
pub(super) fn word<T: Serialize>(value: T) -> Option<String> {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned))
}

pub(super) fn value<T: DeserializeOwned>(word: &str) -> Option<T> {
    serde_json::from_value(word.into()).ok()
}
