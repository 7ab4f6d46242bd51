//! What a record is judged against: the records that count for each of its steps, or why none does.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::model::{Reason, Record};

/// Records to judge against. One set of them for all steps, or for each step its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    /// All that count for some step, oldest first.
    pub runs: Vec<Record>,
    /// For each step, which of `runs` count. A step that is not here has no baseline.
    pub steps: BTreeMap<String, Result<Vec<usize>, NoBaseline>>,
    /// Earlier runs of the same keys, oldest first: how much starts vary. None where there is no history.
    pub earlier: Vec<Earlier>,
}

/// A step of an earlier run, as the index knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Earlier {
    /// The step.
    pub step: String,
    /// The run.
    pub run: String,
    /// The start of the server that it measured.
    pub start: String,
    /// What ran, as a hash: runs with the same can be expected to measure the same.
    pub settings: String,
    /// When it began.
    pub started_at: Timestamp,
    /// Its numbers, by metric id, with `.p50` and the like for distributions.
    pub values: BTreeMap<String, f64>,
}

/// Why a step has no baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct NoBaseline {
    /// What is in the way.
    pub reasons: Vec<Reason>,
}

impl Baseline {
    /// These records for every step of theirs, whatever the files of baselines say.
    pub fn of(runs: Vec<Record>) -> Self {
        let mut steps: BTreeMap<String, Result<Vec<usize>, NoBaseline>> = BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            for step in &run.steps {
                if let Ok(counting) = steps.entry(step.name.clone()).or_insert_with(|| Ok(Vec::new())) {
                    counting.push(index);
                }
            }
        }
        Baseline { runs, steps, earlier: Vec::new() }
    }

    /// The records that count for `step`, or why there are none.
    pub fn for_step(&self, step: &str) -> Result<Vec<&Record>, Vec<Reason>> {
        match self.steps.get(step) {
            Some(Ok(indexes)) => Ok(indexes.iter().filter_map(|&index| self.runs.get(index)).collect()),
            Some(Err(none)) => Err(none.reasons.clone()),
            None => Err(vec![Reason::new("step_not_in_baseline", format!("the baseline has no step `{step}`"))]),
        }
    }
}
