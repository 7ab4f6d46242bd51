//! Bringing the index up to date: a folder whose files have the stamps that the index knows is not read again.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rusqlite::{Connection, Result, Transaction, TransactionBehavior, params};

use super::sql::word;
use crate::measure::MetricValue;
use crate::record::id::RunId;
use crate::record::model::{Record, StepResult};
use crate::record::store::{Store, StoreError};

/// Brings `connection` up to date with the folders of `ids`.
pub(super) fn update(store: &Store, mut connection: Connection, ids: &[RunId]) -> Result<Connection> {
    let mut known = known(&connection)?;
    let mut changed = Vec::new();
    for id in ids {
        let path = store.run_path(id);
        match known.remove(id.as_str()) {
            Some((ended, before)) if before == stamp(&path, ended) => {}
            // The stamps are taken before the record is read: what changes in between is found the next time.
            _ => changed.push((id, [stamp(&path, false), stamp(&path, true)], store.record(id))),
        }
    }
    if changed.is_empty() && known.is_empty() {
        return Ok(connection);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for gone in known.keys() {
        forget(&transaction, gone)?;
    }
    for (id, [going_on, ended], record) in &changed {
        forget(&transaction, id.as_str())?;
        match record {
            Ok(record) => {
                insert(&transaction, record, if record.ended_at.is_some() { ended } else { going_on })?;
            }
            // It went away while we looked.
            Err(StoreError::NoSuchRun { .. }) => {}
            Err(error) => insert_problem(&transaction, id, &error.to_string(), going_on)?,
        }
    }
    transaction.commit()?;
    Ok(connection)
}

/// What the index knows: for each run, whether it has ended, and its stamp.
fn known(connection: &Connection) -> Result<HashMap<String, (bool, String)>> {
    let mut statement = connection.prepare("SELECT id, stamp FROM runs")?;
    let rows = statement.query_map([], |row| {
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
    INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";

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
    ])?;
    let mut steps = transaction.prepare_cached("INSERT OR REPLACE INTO steps VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for step in &record.steps {
        let load = serde_json::to_string(&step.load).unwrap_or_default();
        steps.execute(params![record.id, step.name, step.workload, load, step.valid])?;
    }
    Ok(())
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
    ])?;
    Ok(())
}
