//! Reading a run's folder.

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::super::id::RunId;
use super::super::journal;
use super::super::model::{Record, SCHEMA};
use super::StoreError;
use crate::render::Warning;

/// The record in the folder at `path`. Where `run.json` says that the run did not end, the journal knows more than it.
pub(super) fn record(path: &Path, id: &RunId) -> Result<Record, StoreError> {
    match kept(&path.join("run.json"), id)? {
        Some(record) if record.ended_at.is_some() => Ok(record),
        Some(record) => Ok(match folded(path, id) {
            Ok(Some(folded)) => folded,
            Ok(None) => record,
            Err(error) => with_warning(record, &error),
        }),
        None if !path.is_dir() => {
            let folder = path.ancestors().nth(2).unwrap_or(path).to_owned();
            Err(StoreError::NoSuchRun { text: id.to_string(), folder })
        }
        None => folded(path, id)?.ok_or_else(|| StoreError::Empty { path: path.to_owned() }),
    }
}

/// Whether some orch is at this run now.
pub(super) fn is_running(path: &Path) -> bool {
    journal::is_written(&path.join("journal.jsonl")).unwrap_or(false)
}

fn kept(path: &Path, id: &RunId) -> Result<Option<Record>, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreError::Io { doing: "read", path: path.to_owned(), source }),
    };
    let damaged = |reason: String| StoreError::Damaged { path: path.to_owned(), reason };
    let schema: SchemaOnly = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if schema.schema != SCHEMA {
        return Err(StoreError::Schema { path: path.to_owned(), found: schema.schema.to_string(), known: SCHEMA });
    }
    let record: Record = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if record.id != id.as_str() {
        return Err(damaged(format!("it is the record of {}, which is not the folder's name", record.id)));
    }
    Ok(Some(record))
}

/// All that is read before the schema is known to be ours.
#[derive(Deserialize)]
struct SchemaOnly {
    schema: Value,
}

fn folded(path: &Path, id: &RunId) -> Result<Option<Record>, StoreError> {
    let path = path.join("journal.jsonl");
    let reading = match journal::read(&path) {
        Ok(reading) => reading,
        Err(journal::JournalError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let state = super::super::fold(reading.entries());
    if state.began() && state.record.id != id.as_str() {
        let reason = format!("it is the journal of {}, which is not the folder's name", state.record.id);
        return Err(StoreError::Damaged { path, reason });
    }
    Ok(state.began().then_some(state.record))
}

fn with_warning(mut record: Record, error: &StoreError) -> Record {
    record.warnings.push(Warning::new("journal_damaged", error.to_string()));
    record
}
