//! The search for the best settings with few starts: the memory first, then the settings one by one, then speculation by
//! what is known of its acceptance, and in the end those again that could be the best.
//!
//! The search is a pure function of what was seen: it is played from its beginning each time and ends at the first start
//! whose outcome is not known. So it goes on after a kill with nothing but its journal.

mod lab;
mod line;
mod load;
mod memory;
mod race;
mod speculation;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::profile::AxisValues;
use lab::Lab;

/// What is searched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Axes with their values, numbers in rising order.
    pub axes: Vec<Axis>,
    /// Where the search begins: a level for each axis.
    pub base: Vec<usize>,
    /// Whether more of the goal's metric is better.
    pub maximize: bool,
    /// The goal's metric: how much it varies from start to start is stated for it.
    pub metric: String,
    /// Whether the highest load within the goal's conditions is looked for in the end.
    #[serde(default)]
    pub ladder: bool,
}

/// An axis of a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The setting's path.
    pub path: String,
    /// Its values as they stand after the `=` of a `--set`.
    pub values: Vec<String>,
    /// What is known of it beforehand.
    pub kind: AxisKind,
}

/// What is known of an axis beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisKind {
    /// `memory.fraction`: more is better until it does not start.
    Memory,
    /// `speculative.steps`: its gain follows from the acceptance at each place of a draft.
    Speculation,
    /// Numbers: what is near in value is near in effect.
    Ordered,
    /// Words.
    Choice,
}

impl Axis {
    /// An axis of a setting; the value that the profile has is one of its values. Returns its level too.
    pub fn new(given: &AxisValues, current: Option<&str>) -> (Self, usize) {
        let mut values = given.values.clone();
        let same = |one: &str, other: &str| {
            one == other || matches!((one.parse::<f64>(), other.parse::<f64>()), (Ok(one), Ok(other)) if one == other)
        };
        if let Some(current) = current.filter(|current| !values.iter().any(|value| same(value, current))) {
            values.push(current.to_owned());
        }
        let ordered = values.iter().all(|value| value.parse::<f64>().is_ok());
        if ordered {
            let number = |text: &String| text.parse::<f64>().unwrap_or(f64::MAX);
            values.sort_by(|one, other| number(one).total_cmp(&number(other)));
        }
        let kind = match (given.path.as_str(), ordered) {
            ("memory.fraction", true) => AxisKind::Memory,
            ("speculative.steps", true) => AxisKind::Speculation,
            (_, true) => AxisKind::Ordered,
            (_, false) => AxisKind::Choice,
        };
        let level = current.and_then(|current| values.iter().position(|value| same(value, current))).unwrap_or(0);
        (Axis { path: given.path.clone(), values, kind }, level)
    }

    fn number(&self, level: usize) -> f64 {
        self.values[level].parse().unwrap_or(0.0)
    }
}

impl Space {
    /// How many starts it would be to try all of it.
    pub fn grid(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).fold(1, usize::saturating_mul)
    }

    fn axis(&self, kind: AxisKind) -> Option<usize> {
        self.axes.iter().position(|axis| axis.kind == kind)
    }
}

/// A start that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its settings: a level for each axis.
    pub levels: Vec<usize>,
    /// Requests at once, where these were other ones than the profile's.
    pub loads: Vec<u32>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The goal's metric, where the start measured it and the conditions are met.
    pub value: Option<f64>,
    /// Whether it ran out of GPU memory.
    pub oom: bool,
    /// The share of its GPU's memory that was left at the lowest moment of start and load, where the server told.
    pub free_ratio: Option<f64>,
    /// For each place in a draft, the share of verify steps that accepted it.
    pub accepted: Vec<f64>,
    /// Requests at once of each step, and whether the goal's conditions were met.
    pub loads: Vec<(u32, bool)>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Start the server with these settings.
    Start {
        /// A level for each axis.
        levels: Vec<usize>,
        /// Requests at once, where these are other ones than the profile's.
        loads: Vec<u32>,
        /// What for.
        why: String,
    },
    /// The search is over.
    Done(Found),
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The best settings; `None` where no start met the conditions.
    pub levels: Option<Vec<usize>>,
    /// Why the search went as it did: what was decided, and by what.
    pub evidence: Vec<String>,
}

/// What comes next, by all starts that were made, oldest first. `starts` is how many there may be in all.
pub fn next(space: &Space, seen: &[Seen], starts: usize) -> Ask {
    let mut lab = Lab::new(space, seen, starts);
    match search(&mut lab) {
        Err(lab::Stop::Ask { levels, loads, why }) => Ask::Start { levels, loads, why },
        Ok(()) | Err(lab::Stop::Spent) => Ask::Done(lab.found()),
    }
}

/// Rounds of one axis after the other; more are not needed unless axes pull at each other.
const ROUNDS: usize = 4;

fn search(lab: &mut Lab<'_>) -> Result<(), lab::Stop> {
    memory::begin(lab)?;
    for round in 1..=ROUNDS {
        let before = lab.best();
        for axis in 0..lab.space.axes.len() {
            match lab.space.axes[axis].kind {
                // What speculation gains depends on all the others, so that it comes after them.
                AxisKind::Memory | AxisKind::Speculation => {}
                AxisKind::Ordered if round == 1 => line::ordered(lab, axis)?,
                AxisKind::Ordered => line::nearby(lab, axis)?,
                AxisKind::Choice => line::choice(lab, axis)?,
            }
        }
        if let Some(axis) = lab.space.axis(AxisKind::Speculation) {
            speculation::search(lab, axis)?;
        }
        memory::higher(lab)?;
        if lab.best() == before {
            lab.note(format!("round {round} found nothing better"));
            break;
        }
    }
    line::pairs(lab)?;
    race::run(lab)?;
    load::search(lab)
}
