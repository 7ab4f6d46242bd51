//! What the index knows of earlier runs' numbers: for a history, and for how much starts vary.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::params;

use super::{Index, START, sql};
use crate::record::baselines::{Key, same_load};
use crate::record::model::{Record, StepResult, VerdictKind};
use crate::record::{Earlier, StoreError};
use crate::render::Load;

/// So many earlier runs of a key tell how much starts vary; older ones tell of another time.
const EARLIER: usize = 60;

/// Whose past is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastFilter {
    /// The series.
    pub series: String,
    /// Only this step.
    pub step: Option<String>,
    /// Only on the host of this name.
    pub host: Option<String>,
    /// Of at most so many runs, the newest.
    pub limit: Option<u32>,
}

/// A valid step of a complete run, as the index knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// The run.
    pub run: String,
    /// When it began.
    pub started_at: Timestamp,
    /// The host's name.
    pub host: String,
    /// Its hardware.
    pub hardware: String,
    /// Whether the engine was simulated.
    pub simulated: bool,
    /// Version of the metrics' definitions.
    pub metrics_version: u32,
    /// The engine's version.
    pub engine_version: Option<String>,
    /// The run's verdict.
    pub verdict: Option<VerdictKind>,
    /// The step; `start` for the start-up.
    pub step: String,
    /// The workload's hash; of the start-up, what its caches held.
    pub workload: String,
    /// How it was sent; `None` of the start-up.
    pub load: Option<Load>,
    /// The start of the server.
    pub start: String,
    /// What ran, as a hash.
    pub settings: String,
    /// Its numbers, by metric id.
    pub numbers: BTreeMap<String, f64>,
}

impl Index<'_> {
    /// Ids of other runs with a step under the key of `step`, newest first.
    pub(super) fn alike_ids(&self, record: &Record, step: &StepResult) -> Result<Vec<String>, StoreError> {
        let mut ids = Vec::new();
        self.each_alike(record, step, None, |row| {
            ids.push(row.get("id")?);
            Ok(true)
        })?;
        Ok(ids)
    }

    /// Goes through the steps of other runs under the key of `step`, newest first, as long as `take` wants more: all, or
    /// those that began `before`. What is not wanted is not read.
    fn each_alike(
        &self,
        record: &Record,
        step: &StepResult,
        before: Option<Timestamp>,
        mut take: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<bool>,
    ) -> Result<(), StoreError> {
        let key = Key::of(record, step);
        let before_ns = before.and_then(|before| i64::try_from(before.as_nanosecond()).ok());
        let mut statement = self.connection.prepare_cached(sql::ALIKE)?;
        let simulated = record.engine.as_ref().is_some_and(|engine| engine.simulated);
        let parameters = params![
            key.series,
            key.step,
            key.workload,
            key.hardware,
            key.host,
            simulated,
            record.metrics_version,
            record.id,
            before_ns
        ];
        let mut rows = statement.query(parameters)?;
        while let Some(row) = rows.next()? {
            let load: String = row.get("load")?;
            let same = serde_json::from_str::<Load>(&load).is_ok_and(|load| same_load(&load, &key.load));
            if same && !take(row)? {
                break;
            }
        }
        Ok(())
    }

    /// Earlier starts of all steps of `record`, oldest first: what tells how much starts vary. Runs that were found to have
    /// regressed are left out, so that a loss does not widen what it is judged by.
    pub(in crate::record) fn earlier(&self, record: &Record) -> Result<Vec<Earlier>, StoreError> {
        let mut earlier = Vec::new();
        for step in &record.steps {
            let mut left = EARLIER;
            self.each_alike(record, step, Some(record.started_at), |row| {
                let started_at = at(row.get("started_ns")?);
                let verdict: Option<String> = row.get("verdict")?;
                if verdict.as_deref() != Some("regressed") {
                    left -= 1;
                    earlier.push(Earlier {
                        step: step.name.clone(),
                        run: row.get("id")?,
                        start: row.get("start")?,
                        settings: row.get("settings")?,
                        started_at,
                        values: numbers(&row.get::<_, String>("numbers")?),
                    });
                }
                Ok(left > 0)
            })?;
        }
        earlier.sort_by_key(|each| each.started_at);
        Ok(earlier)
    }

    /// The past of a series, oldest first.
    pub(in crate::record) fn past(&self, filter: &PastFilter) -> Result<Vec<Past>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql::SERIES)?;
        let limit = filter.limit.map_or(-1, i64::from);
        let mut rows = statement.query(params![filter.series, filter.step, filter.host, limit])?;
        let mut past = Vec::new();
        while let Some(row) = rows.next()? {
            let step: String = row.get("step")?;
            let load: String = row.get("load")?;
            past.push(Past {
                run: row.get("id")?,
                started_at: at(row.get("started_ns")?),
                host: row.get("host")?,
                hardware: row.get("hardware")?,
                simulated: row.get("simulated")?,
                metrics_version: row.get("metrics_version")?,
                engine_version: row.get("engine_version")?,
                verdict: row.get::<_, Option<String>>("verdict")?.as_deref().and_then(sql::value),
                load: if step == START { None } else { serde_json::from_str(&load).ok() },
                step,
                workload: row.get("workload")?,
                start: row.get("start")?,
                settings: row.get("settings")?,
                numbers: numbers(&row.get::<_, String>("numbers")?),
            });
        }
        past.reverse();
        Ok(past)
    }
}

fn at(started_ns: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(started_ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn numbers(text: &str) -> BTreeMap<String, f64> {
    serde_json::from_str(text).unwrap_or_default()
}
