//! Where a series of numbers changed for good: E-divisive (Matteson and James), a search for the split whose two sides are
//! the furthest apart by their energy distance, again within each side, as long as chance alone would hardly do as much.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// A change shows in so many values on each side of it: one blip is none.
const LEAST: usize = 3;

/// How often the values are put into another order to see what chance does.
const SHUFFLES: u32 = 199;

/// In so many of them chance may be as good: with the order that was measured, two of 200.
const AS_GOOD: u32 = 1;

/// So far back is looked: what changed before that is history of another kind, and the search is quadratic.
pub const WINDOW: usize = 200;

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Change {
    /// The first value after it, from 0.
    pub index: usize,
    /// The mean before it, as far back as the change before.
    pub before: f64,
    /// The mean after it, up to the next.
    pub after: f64,
    /// The share of shuffled orders with a split as good, the measured one counted too.
    pub probability: f64,
}

/// The changes in `values`, in their order. Only the last [`WINDOW`] values are looked at.
pub fn changes(values: &[f64]) -> Vec<Change> {
    let from = values.len().saturating_sub(WINDOW);
    let mut splits = Vec::new();
    // The same series has the same changes, whenever it is asked.
    let mut random = ChaCha8Rng::seed_from_u64(values.len() as u64);
    split(&values[from..], from, &mut random, &mut splits);
    splits.sort_unstable_by_key(|(index, _)| *index);
    let bounds: Vec<usize> =
        std::iter::once(from).chain(splits.iter().map(|(index, _)| *index)).chain([values.len()]).collect();
    let mean = |from: usize, to: usize| values[from..to].iter().sum::<f64>() / (to - from) as f64;
    let of = |(place, (index, probability)): (usize, &(usize, f64))| Change {
        index: *index,
        before: mean(bounds[place], *index),
        after: mean(*index, bounds[place + 2]),
        probability: *probability,
    };
    splits.iter().enumerate().map(of).collect()
}

fn split(values: &[f64], offset: usize, random: &mut ChaCha8Rng, found: &mut Vec<(usize, f64)>) {
    // Most changes last to the end, and are seen best so; one that was taken back only shows against a stretch.
    let to_end = beyond_chance(values, Reach::ToEnd, random);
    let Some((index, probability)) = to_end.or_else(|| beyond_chance(values, Reach::Stretch, random)) else { return };
    found.push((offset + index, probability));
    split(&values[..index], offset, random, found);
    split(&values[index..], offset + index, random, found);
}

/// The best split, and the share of orders that have one as good; `None` if that is more than chance may.
fn beyond_chance(values: &[f64], reach: Reach, random: &mut ChaCha8Rng) -> Option<(usize, f64)> {
    let (index, distance) = best(values, reach)?;
    let mut shuffled = values.to_vec();
    let mut as_good = 0;
    for _ in 0..SHUFFLES {
        shuffled.shuffle(random);
        as_good += u32::from(best(&shuffled, reach).is_some_and(|(_, other)| other >= distance));
        if as_good > AS_GOOD {
            return None;
        }
    }
    Some((index, f64::from(as_good + 1) / f64::from(SHUFFLES + 1)))
}

/// Where the right side of a split ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// At the end of the series.
    ToEnd,
    /// Anywhere.
    Stretch,
}

/// The split into two sides whose energy distance, weighed by how many values it rests on, is the largest.
fn best(values: &[f64], reach: Reach) -> Option<(usize, f64)> {
    let count = values.len();
    if count < 2 * LEAST {
        return None;
    }
    let sums = Sums::of(values);
    let mut best: Option<(usize, f64)> = None;
    for middle in LEAST..=count - LEAST {
        let left = sums.within(0, middle);
        let first = if reach == Reach::ToEnd { count } else { middle + LEAST };
        for end in first..=count {
            let (m, n) = (middle as f64, (end - middle) as f64);
            let right = sums.within(middle, end);
            let between = sums.within(0, end) - left - right;
            let distance = 2.0 * between / (m * n) - 2.0 * left / (m * (m - 1.0)) - 2.0 * right / (n * (n - 1.0));
            let weighed = m * n / (m + n) * distance;
            if best.is_none_or(|(_, known)| weighed > known) {
                best = Some((middle, weighed));
            }
        }
    }
    best.filter(|(_, distance)| *distance > 0.0)
}

/// Sums of the distances between values, so that those of any stretch are at hand.
struct Sums {
    count: usize,
    /// In row i and column j, of all pairs of the first i and the first j values.
    sums: Vec<f64>,
}

impl Sums {
    fn of(values: &[f64]) -> Self {
        let count = values.len() + 1;
        let mut sums = vec![0.0; count * count];
        for (row, one) in values.iter().enumerate() {
            let mut along = 0.0;
            for (column, other) in values.iter().enumerate() {
                along += (one - other).abs();
                sums[(row + 1) * count + column + 1] = sums[row * count + column + 1] + along;
            }
        }
        Sums { count, sums }
    }

    /// Of the pairs within a stretch, each once.
    fn within(&self, from: usize, to: usize) -> f64 {
        let at = |row: usize, column: usize| self.sums[row * self.count + column];
        (at(to, to) - at(from, to) - at(to, from) + at(from, from)) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use rand_distr::{Distribution as _, Normal};

    use super::*;

    fn drawn(seed: u64, levels: &[(usize, f64)]) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let noise = Normal::new(0.0, 0.01).unwrap();
        let level = |&(count, level): &(usize, f64)| std::iter::repeat_n(level, count);
        levels.iter().flat_map(level).map(|level| level * (1.0 + noise.sample(&mut random))).collect()
    }

    #[test]
    fn a_lasting_change_is_found_where_it_is() {
        let found = changes(&drawn(1, &[(20, 70.0), (15, 66.0), (15, 72.0)]));
        let indexes: Vec<usize> = found.iter().map(|change| change.index).collect();
        assert_eq!(indexes, [20, 35]);
        assert!((found[0].before / 70.0 - 1.0).abs() < 0.01 && (found[0].after / 66.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_lasting_loss_of_two_percent_is_found_after_fourteen_nights() {
        let found = |seed: &u64| changes(&drawn(*seed, &[(28, 70.0), (14, 68.6)])).len() == 1;
        let count = (0..40).filter(found).count();
        assert!(count >= 36, "{count} of 40");
    }

    /// What apache-otava says of ten drawn series; the file tells how they were drawn and how it was asked.
    #[test]
    fn changes_agree_with_another_tool_within_one() {
        #[derive(serde::Deserialize)]
        struct Series {
            values: Vec<f64>,
            otava: Vec<usize>,
        }
        #[derive(serde::Deserialize)]
        struct Told {
            series: Vec<Series>,
        }
        let text = include_str!("../../tests/data/changes/otava.json");
        let told: Told = serde_json::from_str(text).unwrap();
        assert_eq!(told.series.len(), 10);
        for (number, series) in told.series.iter().enumerate() {
            let found: Vec<usize> = changes(&series.values).iter().map(|change| change.index).collect();
            let near = found.iter().zip(&series.otava).all(|(one, other)| one.abs_diff(*other) <= 1);
            assert!(near && found.len() == series.otava.len(), "{number}: {found:?}, {:?}", series.otava);
        }
    }

    #[test]
    fn noise_and_a_blip_are_no_change() {
        let any = |seed: &u64| !changes(&drawn(*seed, &[(30, 70.0)])).is_empty();
        let count = (100..200).filter(any).count();
        assert!(count <= 4, "{count} of 100");
        let mut blip = drawn(7, &[(30, 70.0)]);
        blip[15] = 50.0;
        assert_eq!(changes(&blip), []);
        assert_eq!(changes(&[]), []);
        assert_eq!(changes(&[1.0; 50]), []);
    }
}
