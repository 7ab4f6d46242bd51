//! What was seen, as the search asks for it.

use std::collections::BTreeMap;

use super::{Found, Outcome, Seen, Space};
use crate::compare;
use crate::sweep::could_win;

/// Why the search stops here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stop {
    /// It needs the outcome of this start.
    Ask { levels: Vec<usize>, loads: Vec<u32>, why: String },
    /// No start is left.
    Spent,
}

/// What is known.
pub(super) struct Lab<'a> {
    pub(super) space: &'a Space,
    known: BTreeMap<Vec<usize>, Vec<&'a Outcome>>,
    /// Starts with other loads than the profile's.
    loaded: Vec<&'a Seen>,
    /// How many outcomes of each setting the search has asked for so far: those that lie in its future are not seen.
    used: BTreeMap<Vec<usize>, usize>,
    spent: usize,
    starts: usize,
    evidence: Vec<String>,
}

impl<'a> Lab<'a> {
    pub(super) fn new(space: &'a Space, seen: &'a [Seen], starts: usize) -> Self {
        let mut known: BTreeMap<Vec<usize>, Vec<&Outcome>> = BTreeMap::new();
        let (own, loaded): (Vec<&Seen>, Vec<&Seen>) = seen.iter().partition(|one| one.loads.is_empty());
        for each in own {
            known.entry(each.levels.clone()).or_default().push(&each.outcome);
        }
        Lab { space, known, loaded, used: BTreeMap::new(), spent: 0, starts, evidence: Vec::new() }
    }

    /// What a setting comes to: at once where that is known.
    pub(super) fn try_at(&mut self, levels: &[usize], why: impl Into<String>) -> Result<&'a Outcome, Stop> {
        if let Some(used) = self.used.get(levels).copied().filter(|used| *used > 0) {
            return Ok(self.known[levels][used - 1]);
        }
        self.once_more(levels, why)
    }

    /// Another start of a setting.
    pub(super) fn once_more(&mut self, levels: &[usize], why: impl Into<String>) -> Result<&'a Outcome, Stop> {
        if self.spent >= self.starts {
            return Err(Stop::Spent);
        }
        let used = self.used.get(levels).copied().unwrap_or(0);
        let Some(outcome) = self.known.get(levels).and_then(|outcomes| outcomes.get(used)) else {
            return Err(Stop::Ask { levels: levels.to_vec(), loads: Vec::new(), why: why.into() });
        };
        self.used.insert(levels.to_vec(), used + 1);
        self.spent += 1;
        Ok(outcome)
    }

    /// A start of a setting with these loads.
    pub(super) fn load_at(&mut self, levels: &[usize], loads: &[u32]) -> Result<(), Stop> {
        if self.spent >= self.starts {
            return Err(Stop::Spent);
        }
        if !self.loaded.iter().any(|one| one.levels == levels && one.loads == loads) {
            let why = "the highest load within the conditions".to_owned();
            return Err(Stop::Ask { levels: levels.to_vec(), loads: loads.to_vec(), why });
        }
        self.spent += 1;
        Ok(())
    }

    /// Loads that a setting was tried with, and whether each start of it met the conditions.
    pub(super) fn loads(&self, levels: &[usize]) -> Vec<(u32, bool)> {
        let own = self.known.get(levels).into_iter().flatten().flat_map(|outcome| &outcome.loads);
        let others = self.loaded.iter().filter(|one| one.levels == levels).flat_map(|one| &one.outcome.loads);
        let mut all: BTreeMap<u32, bool> = BTreeMap::new();
        for (load, meets) in own.chain(others) {
            *all.entry(*load).or_insert(true) &= *meets;
        }
        all.into_iter().collect()
    }

    /// Whether a setting was tried.
    pub(super) fn is_known(&self, levels: &[usize]) -> bool {
        self.used.get(levels).is_some_and(|used| *used > 0)
    }

    /// Starts that are left.
    pub(super) fn left(&self) -> usize {
        self.starts - self.spent
    }

    /// The values of a setting, one a start.
    pub(super) fn values(&self, levels: &[usize]) -> Vec<f64> {
        let used = self.used.get(levels).copied().unwrap_or(0);
        self.known.get(levels).map_or_else(Vec::new, |all| all[..used].iter().filter_map(|one| one.value).collect())
    }

    /// Whether a start of it failed or missed the conditions.
    fn is_out(&self, levels: &[usize]) -> bool {
        let used = self.used.get(levels).copied().unwrap_or(0);
        used == 0 || self.known[levels][..used].iter().any(|one| one.value.is_none())
    }

    /// The outcome that is known of a setting.
    pub(super) fn outcome(&self, levels: &[usize]) -> Option<&'a Outcome> {
        let used = self.used.get(levels).copied().filter(|used| *used > 0)?;
        Some(self.known[levels][used - 1])
    }

    /// The mean of a setting, larger is better: in logarithms.
    pub(super) fn score(&self, levels: &[usize]) -> Option<f64> {
        if self.is_out(levels) {
            return None;
        }
        let values = self.values(levels);
        let mean = values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64;
        (!values.is_empty() && mean.is_finite()).then_some(if self.space.maximize { mean } else { -mean })
    }

    /// All settings that count, best first.
    pub(super) fn ranked(&self) -> Vec<(f64, Vec<usize>)> {
        let mut all: Vec<(f64, Vec<usize>)> =
            self.used.keys().filter_map(|levels| Some((self.score(levels)?, levels.clone()))).collect();
        all.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        all
    }

    /// The best so far.
    pub(super) fn best(&self) -> Option<Vec<usize>> {
        self.ranked().into_iter().next().map(|(_, levels)| levels)
    }

    /// Whether noise alone could have made one better than the other.
    pub(super) fn could_win(&self, best: &[usize], other: &[usize]) -> bool {
        could_win(&self.values(best), &self.values(other), &self.space.metric, self.space.maximize)
    }

    /// How far apart two starts of one setting usually are, in logarithms.
    pub(super) fn noise(&self) -> f64 {
        compare::stated_sd(&self.space.metric)
    }

    /// Something that was decided, and by what.
    pub(super) fn note(&mut self, text: String) {
        if !self.evidence.contains(&text) {
            self.evidence.push(text);
        }
    }

    pub(super) fn found(self) -> Found {
        Found { levels: self.best(), evidence: self.evidence }
    }
}

/// A setting with another level on one axis.
pub(super) fn with(levels: &[usize], axis: usize, level: usize) -> Vec<usize> {
    let mut levels = levels.to_vec();
    levels[axis] = level;
    levels
}
