//! How many tokens to draft: what the acceptance at each place of a draft, as it was measured, says of the others.
//!
//! A verify step with `k` drafted tokens gives `1 + p1 + … + pk` tokens, where `pi` is the share of steps in which place
//! `i` was accepted. More drafted tokens never make a step shorter, so that what they gain in tokens at most is the most
//! that they gain at all: what cannot win even so is not started.

use super::lab::{Lab, Stop, with};
use super::memory::try_with_less;

/// Tries the numbers of drafted tokens from the best so far, as far as they can win.
pub(super) fn search(lab: &mut Lab<'_>, axis: usize) -> Result<(), Stop> {
    let Some(center) = lab.best() else { return Ok(()) };
    let count = lab.space.axes[axis].values.len();
    // Upwards, then downwards: each neighbour that is better leads on.
    for up in [true, false] {
        let mut level = center[axis];
        loop {
            let next = if up { level + 1 } else { level.wrapping_sub(1) };
            if next >= count {
                break;
            }
            if up && let Some(why) = cannot_win(lab, &with(&center, axis, level), axis, next) {
                lab.note(why);
                break;
            }
            let levels = with(&center, axis, next);
            try_with_less(lab, &levels, "`speculative.steps`")?;
            let best = lab.best().map_or(center[axis], |best| best[axis]);
            let lost = match (lab.score(&levels), lab.score(&with(&center, axis, level))) {
                (Some(next), Some(here)) => next < here - 2.0 * lab.noise(),
                _ => true,
            };
            if lost && best != next {
                break;
            }
            level = next;
        }
    }
    // Without any: the control, unless steps near it were far from the best.
    let off = with(&center, axis, 0);
    if lab.space.axes[axis].number(0) == 0.0 && !lab.is_known(&off) {
        lab.try_at(&off, "without speculation")?;
    }
    Ok(())
}

/// Why more drafted tokens cannot win, by what was measured with fewer.
fn cannot_win(lab: &Lab<'_>, here: &[usize], axis: usize, next: usize) -> Option<String> {
    let accepted = &lab.outcome(here)?.accepted;
    let (steps, more) = (lab.space.axes[axis].number(here[axis]), lab.space.axes[axis].number(next));
    let last = *accepted.last().filter(|_| accepted.len() as f64 >= steps && steps >= 1.0)?;
    let tokens: f64 = 1.0 + accepted.iter().take(steps as usize).sum::<f64>();
    // A later place is accepted at most as often as the one before it.
    let most = tokens + (more - steps) * last;
    let gain = (most / tokens).ln();
    let (best, own) = (lab.ranked().first()?.0, lab.score(here)?);
    // What noise could hide is tried all the same.
    (own + gain < best - lab.noise()).then(|| {
        format!(
            "speculative.steps={more} cannot win: the last place of {steps} is accepted {:.0} % of the time, which gains at \
             most {:.1} %",
            last * 100.0,
            (gain.exp() - 1.0) * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, AxisKind, Outcome, Seen, Space};
    use super::*;

    #[test]
    fn a_place_that_is_hardly_accepted_rules_out_the_next() {
        let axis = |path: &str, values: &[&str], kind| Axis {
            path: path.into(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
            kind,
        };
        let space = Space {
            axes: vec![
                axis("speculative.steps", &["0", "1", "2", "3"], AxisKind::Speculation),
                axis("a", &["1", "2"], AxisKind::Ordered),
            ],
            base: vec![2, 0],
            maximize: true,
            metric: "output_tokens_per_s".into(),
            ladder: false,
        };
        let seen = |levels: [usize; 2], value: f64, accepted: &[f64]| Seen {
            levels: levels.to_vec(),
            loads: Vec::new(),
            outcome: Outcome { value: Some(value), accepted: accepted.to_vec(), ..Outcome::default() },
        };
        let all = [seen([2, 0], 100.0, &[0.8, 0.02]), seen([1, 0], 110.0, &[0.8])];
        let mut lab = Lab::new(&space, &all, 10);
        lab.try_at(&[2, 0], "").unwrap();
        lab.try_at(&[1, 0], "").unwrap();
        let why = cannot_win(&lab, &[2, 0], 0, 3).unwrap();
        assert!(why.starts_with("speculative.steps=3 cannot win: the last place of 2 is accepted 2 %"), "{why}");
        assert_eq!(cannot_win(&lab, &[1, 0], 0, 2), None, "0.8 more could win");
    }
}
