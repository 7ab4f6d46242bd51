//! Control for several comparisons: each is one more chance for noise to look like a loss, and all of a run together get
//! the one chance in a hundred. Holm's way, with weights: the headline metrics have most of it.

/// How often all comparisons of a run together may find a loss where there is none.
pub(super) const FALSE_ALARMS: f64 = 0.01;

/// The share of it that the headline metrics of all steps have together: with less, five starts a side that take turns
/// would find a loss of 3 % in fewer than nine of ten (`benches/verdict_rates.rs`).
const HEADLINE_SHARE: f64 = 0.9;

/// What a comparison is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// A headline metric of a step.
    Headline,
    /// Another metric of a step.
    Step,
    /// The start-up.
    Start,
}

impl Of {
    /// How much it counts among those that are not headline metrics. Those of a step say much the same as each other and
    /// as the headline metric; what a start-up says, nothing else does.
    fn weight(self) -> f64 {
        match self {
            Of::Headline | Of::Step => 1.0,
            Of::Start => 2.0,
        }
    }
}

/// The share of [`FALSE_ALARMS`] that each comparison has.
pub(super) fn shares(all: &[Of]) -> Vec<f64> {
    let sum = |first: bool| all.iter().filter(|of| (**of == Of::Headline) == first).map(|of| of.weight()).sum::<f64>();
    let (first, others) = (sum(true), sum(false));
    let share = match (first > 0.0, others > 0.0) {
        (true, true) => HEADLINE_SHARE,
        (true, false) => 1.0,
        _ => 0.0,
    };
    let of = |of: &Of| if *of == Of::Headline { share / first } else { (1.0 - share) * of.weight() / others };
    all.iter().map(of).collect()
}

/// Which of the comparisons are beyond noise: `tails` are their probabilities under noise alone, `shares` those of
/// [`shares`]. What one that is found no longer needs goes to the others.
pub(super) fn found(tails: &[f64], shares: &[f64]) -> Vec<bool> {
    let mut found = vec![false; tails.len()];
    let mut order: Vec<usize> = (0..tails.len()).collect();
    order.sort_by(|&one, &other| (tails[one] / shares[one]).total_cmp(&(tails[other] / shares[other])));
    let mut left: f64 = shares.iter().sum();
    for index in order {
        if tails[index] > FALSE_ALARMS * shares[index] / left {
            break;
        }
        found[index] = true;
        left -= shares[index];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headline_metrics_have_most_of_the_chance() {
        assert_eq!(shares(&[Of::Headline]), [1.0]);
        assert_eq!(shares(&[Of::Step, Of::Step]), [0.5, 0.5]);
        let shares = shares(&[Of::Headline, Of::Step, Of::Step, Of::Start]);
        let near = |share: f64, expected: f64| (share - expected).abs() < 1e-12;
        assert!(near(shares[0], 0.9) && near(shares[1], 0.025) && near(shares[3], 0.05), "{shares:?}");
    }

    #[test]
    fn what_is_found_leaves_its_chance_to_the_others() {
        let shares = [0.5, 0.25, 0.25];
        // Alone, the second would need 0.0025; after the first it needs 0.005.
        assert_eq!(found(&[0.001, 0.004, 0.5], &shares), [true, true, false]);
        assert_eq!(found(&[0.01, 0.004, 0.5], &shares), [false, false, false]);
        assert_eq!(found(&[], &[]), [false; 0]);
    }
}
