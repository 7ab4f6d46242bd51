//! Bringing the index up to date: a folder whose files have the stamps that the index knows is not read again.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, Result, Transaction, TransactionBehavior, params};

use super::numbers;
use super::sql::word;
use crate::measure::MetricValue;
use crate::record::id::RunId;
use crate::record::model::{Record, StepResult};
use crate::record::settings;
use crate::record::store::{Store, StoreError};

/// Of a folder in which no run came or went, so many of the newest runs are looked at again. What has ended is not
/// written any more but by hand; `orch index` reads everything anew.
const NEWEST: u32 = 1000;

/// A folder whose time is younger than this may change again without its time showing it.
const SETTLED: Duration = Duration::from_secs(2);

/// Brings `connection` up to date with the folders of runs. Returns it, and the names in there that are no runs.
pub(super) fn update(store: &Store, mut connection: Connection) -> Result<(Connection, Vec<String>), StoreError> {
    let folder_ns = changed_ns(&store.runs());
    if let Some(foreign) = unchanged(&connection, folder_ns)? {
        let known = known(&connection, Some(NEWEST))?;
        let ids: Vec<RunId> = known.keys().filter_map(|id| id.parse().ok()).collect();
        let connection = read_changed(store, connection, known, &ids, None)?;
        return Ok((connection, foreign));
    }
    let found = store.scan()?;
    let known = known(&connection, None)?;
    let seen = (folder_ns, found.foreign.as_slice());
    connection = read_changed(store, connection, known, &found.ids, Some(seen))?;
    Ok((connection, found.foreign))
}

/// When a run last came or went, in nanoseconds; `None` where that was so lately that the next one may not show.
fn changed_ns(runs: &Path) -> Option<i64> {
    let modified = fs::metadata(runs).ok()?.modified().ok()?;
    if modified.elapsed().ok()? < SETTLED {
        return None;
    }
    i64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

/// The names that are no runs, if no run came or went since the index was last brought up to date.
pub(super) fn unchanged(connection: &Connection, folder_ns: Option<i64>) -> Result<Option<Vec<String>>> {
    let Some(now) = folder_ns else { return Ok(None) };
    let mut statement = connection.prepare("SELECT runs_ns, foreign_names FROM seen")?;
    let mut rows = statement.query([])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (then, names): (i64, String) = (row.get(0)?, row.get(1)?);
    Ok((then == now).then(|| serde_json::from_str(&names).unwrap_or_default()))
}

/// The same, of the folder as it is now.
pub(super) fn is_current(store: &Store, connection: &Connection) -> bool {
    unchanged(connection, changed_ns(&store.runs())).is_ok_and(|foreign| foreign.is_some())
}

/// Reads what has changed of `ids`, forgets what of `known` is not among them, and notes what was seen.
fn read_changed(
    store: &Store,
    mut connection: Connection,
    mut known: HashMap<String, (bool, String)>,
    ids: &[RunId],
    seen: Option<(Option<i64>, &[String])>,
) -> Result<Connection> {
    let mut changed = Vec::new();
    for id in ids {
        let path = store.run_path(id);
        match known.remove(id.as_str()) {
            Some((ended, before)) if before == stamp(&path, ended) => {}
            // The stamps are taken before the record is read: what changes in between is found the next time.
            _ => changed.push((id, [stamp(&path, false), stamp(&path, true)])),
        }
    }
    let new_seen = seen.filter(|(folder_ns, _)| folder_ns.is_some());
    if changed.is_empty() && known.is_empty() && new_seen.is_none() {
        return Ok(connection);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for gone in known.keys() {
        forget(&transaction, gone)?;
    }
    for (id, [going_on, ended]) in &changed {
        forget(&transaction, id.as_str())?;
        match store.record(id) {
            Ok(record) => {
                insert(&transaction, &record, if record.ended_at.is_some() { ended } else { going_on })?;
            }
            // It went away while we looked.
            Err(StoreError::NoSuchRun { .. }) => {}
            Err(error) => insert_problem(&transaction, id, &error.to_string(), going_on)?,
        }
    }
    if let Some((Some(folder_ns), foreign)) = new_seen {
        transaction.execute("DELETE FROM seen", [])?;
        let names = serde_json::to_string(foreign).unwrap_or_default();
        transaction.execute("INSERT INTO seen VALUES (?1, ?2)", params![folder_ns, names])?;
    }
    transaction.commit()?;
    Ok(connection)
}

/// What the index knows: for each run, whether it has ended, and its stamp.
///
/// Of the `newest` ones only, and of all that had not ended.
fn known(connection: &Connection, newest: Option<u32>) -> Result<HashMap<String, (bool, String)>> {
    let newest = newest.map_or(-1, i64::from);
    let mut statement = connection.prepare(
        "SELECT id, stamp FROM runs WHERE NOT complete
         UNION SELECT * FROM (SELECT id, stamp FROM runs ORDER BY started_ns DESC, id DESC LIMIT ?1)",
    )?;
    let rows = statement.query_map([newest], |row| {
        let stamp: String = row.get(1)?;
        Ok((row.get(0)?, (stamp.starts_with(ENDED), stamp)))
    })?;
    rows.collect()
}

/// Marks the stamp of a run that has ended: its journal is not looked at any more.
const ENDED: &str = "ended ";

/// What tells that a folder has changed: inode, time and size of `run.json`, and until the run has ended those of its
/// journal, from which its record is read until then.
fn stamp(run: &Path, ended: bool) -> String {
    let mut stamp = if ended { ENDED.to_owned() } else { String::new() };
    let files: &[&str] = if ended { &["run.json"] } else { &["run.json", "journal.jsonl"] };
    for file in files {
        // A file that is not there, or may not be read, is a stamp like another.
        let _ = match fs::metadata(run.join(file)) {
            Ok(found) => {
                write!(stamp, "{}:{}.{:09}:{} ", found.ino(), found.mtime(), found.mtime_nsec(), found.size())
            }
            Err(error) => write!(stamp, "{:?} ", error.kind()),
        };
    }
    stamp
}

fn forget(transaction: &Transaction<'_>, id: &str) -> Result<()> {
    transaction.prepare_cached("DELETE FROM steps WHERE run = ?1")?.execute([id])?;
    transaction.prepare_cached("DELETE FROM runs WHERE id = ?1")?.execute([id])?;
    Ok(())
}

const INSERT: &str = "
    INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)";

fn insert(transaction: &Transaction<'_>, record: &Record, stamp: &str) -> Result<()> {
    let engine = record.engine.as_ref();
    let name = record.profile.get("name").and_then(|name| name.as_str()).unwrap_or(&record.series);
    let output = record.steps.iter().filter(|step| step.valid).filter_map(output).reduce(f64::max);
    transaction.prepare_cached(INSERT)?.execute(params![
        record.id,
        i64::try_from(record.started_at.as_nanosecond()).unwrap_or(i64::MAX),
        true,
        name,
        record.series,
        word(record.kind),
        engine.map(|engine| &engine.kind),
        engine.map(|engine| &engine.version),
        engine.is_some_and(|engine| engine.simulated),
        record.host.name,
        record.host.hardware,
        record.metrics_version,
        word(record.verdict.kind),
        record.verdict.reasons.first().map(|reason| &reason.text),
        record.complete,
        u32::try_from(record.steps.len()).unwrap_or(u32::MAX),
        output,
        None::<String>,
        stamp,
        record.writer.as_ref().map(ToString::to_string),
    ])?;
    let mut steps =
        transaction.prepare_cached("INSERT OR REPLACE INTO steps VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    let (start, settings) = (record.start_key(), settings::hash(record));
    for step in &record.steps {
        let load = serde_json::to_string(&step.load).unwrap_or_default();
        let numbers = json(&numbers::of_step(step));
        steps.execute(params![record.id, step.name, step.workload, load, step.valid, start, settings, numbers])?;
    }
    if let Some(of_start) = numbers::of_start(record) {
        let (workload, load) = (numbers::caches(record), "");
        steps.execute(params![record.id, numbers::START, workload, load, true, start, settings, json(&of_start)])?;
    }
    Ok(())
}

fn json(numbers: &BTreeMap<String, f64>) -> String {
    serde_json::to_string(numbers).unwrap_or_default()
}

fn output(step: &StepResult) -> Option<f64> {
    match step.metrics.get("output_tokens_per_s") {
        Some(MetricValue::Number(value)) => Some(*value),
        _ => None,
    }
}

/// A run whose record cannot be read is listed by what its id tells.
fn insert_problem(transaction: &Transaction<'_>, id: &RunId, problem: &str, stamp: &str) -> Result<()> {
    let nothing = None::<String>;
    transaction.prepare_cached(INSERT)?.execute(params![
        id.as_str(),
        id.began_at().map_or(0, |at| i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)),
        id.began_at().is_some(),
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        None::<bool>,
        nothing,
        nothing,
        None::<u32>,
        nothing,
        nothing,
        false,
        0,
        None::<f64>,
        problem,
        stamp,
        nothing,
    ])?;
    Ok(())
}
