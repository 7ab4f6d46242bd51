//! Several starts of a server as one measurement: a repetition, a comparison of two settings by turns, the check of a
//! suspicious result, a search. A trial is a plan of starts and the journal of what was done of it; each start is a run of
//! its own. Pure but for its folder.

mod ablate;
mod confirm;
mod folder;
mod upgrade;

use serde::{Deserialize, Serialize};

pub use ablate::{Effect, effects, parts, start_cost};
pub use confirm::{Confirmed, conclude, is_suspicious};
pub use folder::{Done, TrialError, TrialFolder};
pub use upgrade::{Moved, Upgrade, arguments, upgrade};

/// What a trial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The same settings several times.
    Repeat,
    /// Two settings by turns.
    Ab,
    /// Each difference of two settings alone.
    Ablate,
    /// A search among ordered values of a setting.
    Bisect,
}

/// Settings that starts of a trial have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arm {
    /// Its name in the trial, which its profile's file is named by: letters, digits and `-`.
    pub name: String,
    /// How a person would call it.
    pub title: String,
}

/// One start of a server, with the runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Which of the arms.
    pub arm: usize,
    /// The number of this start among those of its arm, from 1.
    pub start: u32,
}

/// A trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// What it is for.
    pub kind: Kind,
    /// What is measured.
    pub arms: Vec<Arm>,
    /// The starts, in their order.
    pub slots: Vec<Slot>,
    /// How often is measured on each start.
    pub runs: u32,
}

impl Trial {
    /// These arms, each started so often: by turns and back (A B B A …), so that what drifts is the same for all.
    pub fn by_turns(kind: Kind, arms: Vec<Arm>, starts: u32, runs: u32) -> Self {
        let count = arms.len();
        let mut slots = Vec::new();
        for start in 1..=starts {
            let forward = 0..count;
            let order: Vec<usize> = if start % 2 == 1 { forward.collect() } else { forward.rev().collect() };
            slots.extend(order.into_iter().map(|arm| Slot { arm, start }));
        }
        Trial { kind, arms, slots, runs }
    }

    /// How many runs it is in all.
    pub fn size(&self) -> usize {
        self.slots.len() * self.runs as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_take_turns_and_come_back() {
        let arm = |name: &str| Arm { name: name.into(), title: name.into() };
        let trial = Trial::by_turns(Kind::Ab, vec![arm("a"), arm("b")], 3, 2);
        let order: Vec<(usize, u32)> = trial.slots.iter().map(|slot| (slot.arm, slot.start)).collect();
        assert_eq!(order, [(0, 1), (1, 1), (1, 2), (0, 2), (0, 3), (1, 3)]);
        assert_eq!(trial.size(), 12);
    }
}
