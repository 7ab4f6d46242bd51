//! Starts that come in two speeds. Of such, the mean tells which speed was drawn as much as how fast the server is, so
//! that a difference within the gap between them is no word for better or worse.

/// So many starts are needed to tell two speeds from a spread.
const LEAST: usize = 4;

/// So many starts make a speed: one alone is a start that went wrong, or right.
const LEAST_EACH: usize = 2;

/// The gap must be this many times the spread within each speed.
const CLEAR: f64 = 4.0;

/// And this many times the stated spread between starts.
const BEYOND_STATED: f64 = 1.25;

/// Two speeds that starts come in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Modes {
    /// The distance between the means of the two, in logarithms.
    pub(super) gap: f64,
    /// How many starts have the higher value.
    pub(super) high: usize,
    /// Of how many.
    pub(super) of: usize,
}

/// The two speeds in these logarithms, if there are two.
pub(super) fn modes(values: &[f64], stated: f64) -> Option<Modes> {
    if values.len() < LEAST {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let gap_at = |index: &usize| sorted[*index] - sorted[*index - 1];
    let split = (1..sorted.len()).max_by(|one, other| gap_at(one).total_cmp(&gap_at(other)))?;
    let (low, high) = sorted.split_at(split);
    if low.len().min(high.len()) < LEAST_EACH {
        return None;
    }
    let mean = |side: &[f64]| side.iter().sum::<f64>() / side.len() as f64;
    let squares = |side: &[f64]| side.iter().map(|value| (value - mean(side)).powi(2)).sum::<f64>();
    let within = ((squares(low) + squares(high)) / (sorted.len() - 2) as f64).sqrt();
    let empty = gap_at(&split);
    let clear = empty > CLEAR * within && empty > BEYOND_STATED * stated;
    clear.then(|| Modes { gap: mean(high) - mean(low), high: high.len(), of: sorted.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_speeds_are_told_from_a_spread() {
        let found = modes(&[0.0, 0.08, 0.001, 0.079, -0.001], 0.02).unwrap();
        assert_eq!((found.high, found.of), (2, 5));
        assert!((found.gap - 0.0795).abs() < 1e-9, "{found:?}");
        assert_eq!(modes(&[0.0, 0.01, 0.02, 0.03, 0.04], 0.02), None);
        assert_eq!(modes(&[0.0, 0.08, 0.0], 0.02), None, "too few to tell");
        assert_eq!(modes(&[0.0, 0.001, 0.02, 0.021], 0.02), None, "within what starts vary by");
        assert_eq!(modes(&[0.0, 0.001, 0.0, 0.002, 0.001, 0.15], 0.02), None, "one start is no speed");
    }
}
