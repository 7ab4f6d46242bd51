//! In the end: the best again, with all that noise alone could have kept behind it. One that falls behind by more than noise
//! does is not started again.

use super::lab::{Lab, Stop};

/// At most so many starts of each.
const STARTS: usize = 4;
/// At most so many at once.
const FIELD: usize = 4;

/// Starts the leaders by turns until one is ahead of all others, or each has had its starts.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Stop> {
    for round in 2..=STARTS {
        let ranked = lab.ranked();
        let Some((_, best)) = ranked.first().cloned() else { return Ok(()) };
        let near = ranked.iter().skip(1).filter(|(_, levels)| lab.could_win(&best, levels));
        let field: Vec<Vec<usize>> = near.map(|(_, levels)| levels.clone()).take(FIELD - 1).collect();
        let alone = field.is_empty();
        // The luckiest of many looks better than it is: one start more tells.
        if alone && lab.values(&best).len() >= 2 {
            lab.note("no other could be the best but by a chance below one in twenty".to_owned());
            return Ok(());
        }
        for levels in [best].into_iter().chain(field) {
            while lab.values(&levels).len() < round {
                let before = lab.values(&levels).len();
                lab.once_more(&levels, "could be the best")?;
                if lab.values(&levels).len() == before {
                    break;
                }
            }
        }
    }
    Ok(())
}
