//! What was done of a sweep, line by line, and the state that follows from it. A line is written before an act and after
//! it, so that whatever is killed, the next orch knows what may have been begun.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::record::Record;

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Version of the shape.
    pub v: u32,
    /// When.
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub event: SweepEvent,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SweepEvent {
    /// Somebody goes on with it: the first time, and each time that it is resumed.
    SweepBegan {
        /// How long it may take in all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget_s: Option<f64>,
    },
    /// A point is about to be started.
    PointBegan {
        /// Its id.
        point: String,
        /// Which start of it, from 1.
        start: u32,
        /// Which try at this start, from 1.
        attempt: u32,
    },
    /// What came of it.
    PointEnded {
        /// Its id.
        point: String,
        /// Which start.
        start: u32,
        /// Which try.
        attempt: u32,
        /// What came of it.
        #[serde(flatten)]
        outcome: Attempt,
    },
    /// These points are started again, since each could be the best.
    Confirming {
        /// Their ids.
        points: Vec<String>,
    },
    /// Nobody is at it.
    SweepEnded {
        /// Why, where something is left to do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stopped: Option<String>,
    },
}

/// What came of a try at a start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The run's id; `null` where it did not come so far as to have a record.
    pub run: Option<String>,
    /// Whether it came to its end with a measurement.
    pub complete: bool,
    /// How it ended.
    pub exit: i32,
    /// How long it took.
    pub s: f64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failed>,
}

/// Why a try failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// One of the failure kinds of the log vocabulary.
    pub kind: String,
    /// One sentence.
    pub text: String,
    /// Whether trying again can help, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
}

/// How a run ends that a person's files or flags are at fault for.
const USAGE: i32 = 2;

impl Attempt {
    /// What the record of a run tells, which ended so.
    pub fn of(record: &Record, exit: i32, s: f64) -> Self {
        let failure = record.failure.as_ref().map(|failure| Failed {
            kind: failure.kind.clone(),
            text: failure.text.clone(),
            retry: failure.start.as_ref().and_then(|start| start.retry.clone()),
        });
        let complete = record.complete && failure.is_none();
        Attempt { run: Some(record.id.clone()), complete, exit, s, failure }
    }

    /// Whether GPU memory ran out.
    pub fn is_oom(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.kind.starts_with("oom") && failure.kind != "oom_host")
    }

    /// Whether the same again could end otherwise.
    pub fn may_end_otherwise(&self) -> bool {
        let never = self.failure.as_ref().is_some_and(|failure| failure.retry.as_deref() == Some("never"));
        !(self.complete || never || self.is_oom() || self.exit == USAGE)
    }
}

/// What is known of a sweep: the fold of its journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// By point and start: the tries, oldest first. One without an outcome was begun, and nobody wrote how it ended.
    starts: HashMap<(String, u32), Vec<Option<Attempt>>>,
    /// Points that are started again, once that was decided.
    pub confirming: Option<Vec<String>>,
    /// How long it may take in all, as it was last said.
    pub budget_s: Option<f64>,
    /// How long it took so far.
    pub spent_s: f64,
    /// The order in which points were begun, each once.
    pub order: Vec<String>,
}

impl State {
    /// Reads a journal.
    pub fn fold(lines: impl IntoIterator<Item = Line>) -> Self {
        let mut state = State::default();
        for line in lines {
            state.apply(&line.event);
        }
        state
    }

    /// One more line.
    pub fn apply(&mut self, event: &SweepEvent) {
        match event {
            SweepEvent::SweepBegan { budget_s } => self.budget_s = budget_s.or(self.budget_s),
            SweepEvent::PointBegan { point, start, attempt } => {
                self.slot(point, *start, *attempt);
            }
            SweepEvent::PointEnded { point, start, attempt, outcome } => {
                self.spent_s += outcome.s;
                *self.slot(point, *start, *attempt) = Some(outcome.clone());
            }
            SweepEvent::Confirming { points } => self.confirming = Some(points.clone()),
            SweepEvent::SweepEnded { .. } => {}
        }
    }

    fn slot(&mut self, point: &str, start: u32, attempt: u32) -> &mut Option<Attempt> {
        let key = (point.to_owned(), start);
        if start == 1 && !self.starts.contains_key(&key) {
            self.order.push(point.to_owned());
        }
        let tries = self.starts.entry(key).or_default();
        let index = attempt.max(1) as usize - 1;
        if tries.len() <= index {
            tries.resize(index + 1, None);
        }
        &mut tries[index]
    }

    /// The tries at a start.
    pub fn tries(&self, point: &str, start: u32) -> &[Option<Attempt>] {
        self.starts.get(&(point.to_owned(), start)).map(Vec::as_slice).unwrap_or_default()
    }

    /// The last try at a start that ended.
    pub fn last(&self, point: &str, start: u32) -> Option<&Attempt> {
        self.tries(point, start).iter().rev().find_map(Option::as_ref)
    }

    /// The runs that measured a point, one a start.
    pub fn runs(&self, point: &str) -> Vec<&str> {
        let of = |start: u32| self.tries(point, start).iter().flatten().find(|attempt| attempt.complete);
        let mut runs = Vec::new();
        let mut start = 1;
        while !self.tries(point, start).is_empty() {
            runs.extend(of(start).and_then(|attempt| attempt.run.as_deref()));
            start += 1;
        }
        runs
    }

    /// What was begun, and nobody wrote how it ended.
    pub fn open(&self) -> Option<(String, u32, u32)> {
        let open = self.starts.iter().find(|(_, tries)| tries.last().is_some_and(Option::is_none));
        open.map(|((point, start), tries)| (point.clone(), *start, u32::try_from(tries.len()).unwrap_or(u32::MAX)))
    }

    /// How long tries that measured something took, in seconds.
    pub fn times(&self) -> impl Iterator<Item = f64> + '_ {
        self.starts.values().flatten().flatten().filter(|attempt| attempt.complete).map(|attempt| attempt.s)
    }
}
