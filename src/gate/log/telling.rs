//! What an engine says of itself: facts rank by rank, and how it serves.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

/// The mean number of tokens that a verify step gives.
pub(super) const ACCEPT_LEN: &str = "accept_len";
/// The rate of generation.
const GEN_TOK_S: &str = "gen_tok_s";
/// Lines of a steady server are averaged, since each of them is of a few steps only: so many,
const STEADY_LINES: usize = 3;
/// if they differ by no more than this.
const STEADY: f64 = 0.02;

/// What was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telling {
    /// Each rank's own; of those that say no rank, under 0.
    by_rank: BTreeMap<(String, u32), Value>,
    /// Where ranks differ, the lowest counts.
    facts: BTreeMap<String, Value>,
    /// The last mean lengths of each rank.
    lengths: BTreeMap<u32, VecDeque<f64>>,
    /// Records that tell a rate of generation.
    pub rates: u64,
    /// Records that tell of acceptance.
    pub acceptances: u64,
    /// The highest mean length.
    pub best_length: Option<f64>,
}

impl Telling {
    /// What counts of all ranks.
    pub fn facts(&self) -> &BTreeMap<String, Value> {
        &self.facts
    }

    /// Each rank's own value of a fact.
    pub fn by_rank<'t>(&'t self, key: &str) -> impl Iterator<Item = (u32, &'t Value)> + use<'t> {
        let key = key.to_owned();
        let from = (key.clone(), 0);
        self.by_rank
            .range(from..)
            .take_while(move |((known, _), _)| *known == key)
            .map(|((_, rank), value)| (*rank, value))
    }

    /// Takes a fact; says whether it is new.
    pub(super) fn tell(&mut self, key: &str, value: &Value, rank: Option<u32>, keeps_first: bool) -> bool {
        let rank = rank.unwrap_or(0);
        let mut value = value.clone();
        if let Some(number) = value.as_f64() {
            match key {
                GEN_TOK_S => self.rates += 1,
                ACCEPT_LEN => {
                    self.acceptances += 1;
                    self.best_length = Some(self.best_length.map_or(number, |best| best.max(number)));
                    value = json!(self.steady(rank, number));
                }
                "accept_rate" => self.acceptances += 1,
                _ => {}
            }
        }
        let own = (key.to_owned(), rank);
        match self.by_rank.get(&own) {
            Some(known) if keeps_first || *known == value => return false,
            _ => {}
        }
        self.by_rank.insert(own, value.clone());
        if self.by_rank(key).next().is_some_and(|(lowest, _)| lowest == rank) {
            self.facts.insert(key.to_owned(), value);
        }
        true
    }

    fn steady(&mut self, rank: u32, length: f64) -> f64 {
        let lengths = self.lengths.entry(rank).or_default();
        lengths.push_back(length);
        if lengths.len() > STEADY_LINES {
            lengths.pop_front();
        }
        let steady = lengths.iter().rev().take_while(|known| (*known - length).abs() <= length * STEADY);
        let (sum, count) = steady.fold((0.0, 0.0), |(sum, count), known| (sum + known, count + 1.0));
        if count == 0.0 { length } else { (sum / count * 1e4).round() / 1e4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_counts_and_the_last_value() {
        let mut telling = Telling::default();
        for (rank, value) in [(3, 5), (1, 6), (3, 7), (1, 8)] {
            telling.tell("kv_tokens", &json!(value), Some(rank), false);
        }
        assert_eq!(telling.facts()["kv_tokens"], 8);
        assert_eq!(telling.by_rank("kv_tokens").collect::<Vec<_>>(), [(1, &json!(8)), (3, &json!(7))]);
        assert!(telling.tell("weights_mib", &json!(1), None, true));
        assert!(!telling.tell("weights_mib", &json!(2), None, true));
        assert_eq!(telling.facts()["weights_mib"], 1);
    }

    #[test]
    fn steady_lengths_are_averaged_and_a_fall_is_not() {
        let told = |lengths: &[f64]| {
            let mut telling = Telling::default();
            for length in lengths {
                telling.tell(ACCEPT_LEN, &json!(length), None, false);
            }
            (telling.facts()[ACCEPT_LEN].as_f64().unwrap(), telling.best_length)
        };
        assert_eq!(told(&[1.52, 1.50, 1.53]), (1.5167, Some(1.53)));
        assert_eq!(told(&[2.71, 1.04, 1.01]), (1.01, Some(2.71)));
    }
}
