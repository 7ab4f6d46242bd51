//! How far the newest progress bar is; of bars that several ranks draw, the slowest one's.

use std::collections::{BTreeMap, VecDeque};

/// How far something is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// So many are done,
    pub done: f64,
    /// of so many, if it says.
    pub total: Option<f64>,
    /// What is counted.
    pub unit: String,
}

/// The newest bar.
#[derive(Clone, Debug, Default)]
pub(super) struct Bars {
    newest: Option<(String, Progress)>,
    /// Each rank draws each position once, so a position that comes twice is of two ranks.
    drawn: BTreeMap<u64, usize>,
    recent: VecDeque<f64>,
}

/// More ranks than this are not told apart.
const MOST_RANKS: usize = 64;

impl Bars {
    /// A bar moved. Gives how far its slowest rank is.
    pub(super) fn moved(&mut self, phase: &str, done: f64, total: Option<f64>, unit: String) -> f64 {
        let same = self.newest.as_ref().is_some_and(|(known, progress)| known == phase && progress.total == total);
        let full = self.newest.as_ref().is_some_and(|(_, progress)| progress.total == Some(progress.done));
        // After a full one comes another one, or the ranks that were slower.
        if !same || (full && done == 0.0) {
            self.drawn.clear();
            self.recent.clear();
        }
        // Drawn once more where it stands, it is the same bar; at the very beginning it is the next rank's.
        let again = done > 0.0 && self.recent.back() == Some(&done);
        let ranks = {
            let times = self.drawn.entry(done.to_bits()).or_default();
            *times += usize::from(!again || *times == 0);
            self.drawn.values().copied().max().unwrap_or(1).min(MOST_RANKS)
        };
        if self.drawn.len() > 4096 {
            self.drawn.clear();
        }
        self.recent.push_back(done);
        // A bar that is drawn again and again where it stands is one rank's.
        let stands = self.recent.iter().all(|known| *known == done);
        while self.recent.len() > ranks {
            self.recent.pop_front();
        }
        let slowest = if stands { done } else { self.recent.iter().copied().fold(done, f64::min) };
        // The last position is drawn twice by many bars.
        let slowest =
            if total == Some(done) && self.recent.iter().all(|known| *known == done) { done } else { slowest };
        self.newest = Some((phase.to_owned(), Progress { done: slowest, total, unit }));
        slowest
    }

    /// A phase has ended by its own words: its bar is over too.
    pub(super) fn ended(&mut self, phase: &str) {
        if self.newest.as_ref().is_some_and(|(known, _)| known == phase) {
            self.newest = None;
        }
    }

    /// A phase begins: what was counted before is over, unless only the port is open or the server asks itself.
    pub(super) fn begins(&mut self, phase: &str) {
        let is_over = self.newest.as_ref().is_some_and(|(known, _)| known != phase);
        if is_over && !matches!(phase, "http_up" | "warmup") {
            self.newest = None;
        }
    }

    /// What is counted now.
    pub(super) fn newest(&self) -> Option<&Progress> {
        self.newest.as_ref().map(|(_, progress)| progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slowest(positions: &[f64]) -> f64 {
        let mut bars = Bars::default();
        let mut last = 0.0;
        for done in positions {
            last = bars.moved("compile", *done, Some(10.0), "profiles".into());
        }
        last
    }

    #[test]
    fn of_several_ranks_on_one_line_the_slowest_counts() {
        assert_eq!(slowest(&[0.0, 0.0, 3.0, 2.0, 4.0, 4.0]), 4.0);
        assert_eq!(slowest(&[0.0, 0.0, 3.0, 2.0, 4.0]), 2.0);
        assert_eq!(slowest(&[0.0, 0.0, 10.0, 8.0]), 8.0);
        assert_eq!(slowest(&[0.0, 5.0, 10.0, 10.0]), 10.0);
        assert_eq!(slowest(&[0.0, 5.0, 10.0, 0.0, 3.0]), 3.0);
        assert_eq!(slowest(&[0.0, 1.0, 2.0]), 2.0);
        assert_eq!(slowest(&[0.0, 1.0, 1.0, 2.0, 10.0]), 10.0, "one rank that draws a position twice");
    }

    #[test]
    fn a_bar_is_over_with_its_phase() {
        let mut bars = Bars::default();
        bars.moved("weights", 3.0, Some(9.0), "shards".into());
        bars.begins("http_up");
        assert_eq!(bars.newest().map(|progress| progress.done), Some(3.0));
        bars.begins("kv_pool");
        assert_eq!(bars.newest(), None);
        bars.moved("weights", 9.0, Some(9.0), "shards".into());
        bars.ended("weights");
        assert_eq!(bars.newest(), None);
    }
}
