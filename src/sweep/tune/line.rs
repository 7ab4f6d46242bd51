//! One setting after the other, from the best so far: the ends of its values, then what lies beside the best.

use super::AxisKind;
use super::lab::{Lab, Stop, with};
use super::memory::try_with_less;

/// Numbers: both ends, then the middle of what lies on either side of the best, until its neighbours are known.
pub(super) fn ordered(lab: &mut Lab<'_>, axis: usize) -> Result<(), Stop> {
    let Some(center) = lab.best() else { return Ok(()) };
    let last = lab.space.axes[axis].values.len() - 1;
    let why = format!("`{}`", lab.space.axes[axis].path);
    for level in [last, 0] {
        try_with_less(lab, &with(&center, axis, level), &why)?;
    }
    loop {
        let known = known_on(lab, &center, axis);
        let scored = known.iter().filter_map(|level| Some((lab.score(&with(&center, axis, *level))?, *level)));
        let Some((_, best)) = scored.max_by(|one, other| one.0.total_cmp(&other.0)) else { return Ok(()) };
        let below = known.iter().rev().find(|level| **level < best).map_or(0, |level| *level);
        let above = known.iter().find(|level| **level > best).map_or(last, |level| *level);
        let gaps = [(above, above - best), (below, best - below)];
        let open = gaps.into_iter().filter(|(end, gap)| *gap > 1 || (*gap == 1 && !known.contains(end)));
        let Some((end, _)) = open.max_by_key(|(_, gap)| *gap) else { return Ok(()) };
        let level = if end.abs_diff(best) == 1 { end } else { usize::midpoint(end, best) };
        try_with_less(lab, &with(&center, axis, level), &why)?;
    }
}

/// Numbers once more, after other settings have moved: what lies beside the best, as long as that leads on.
pub(super) fn nearby(lab: &mut Lab<'_>, axis: usize) -> Result<(), Stop> {
    let why = format!("`{}` once more", lab.space.axes[axis].path);
    for by in [1, -1] {
        while let Some(best) = lab.best() {
            let Some(levels) = moved(lab, &best, axis, by) else { break };
            if lab.is_known(&levels) || lost_far(lab, axis, best[axis], levels[axis]) {
                break;
            }
            try_with_less(lab, &levels, &why)?;
            if lab.best().as_ref() != Some(&levels) {
                break;
            }
        }
    }
    Ok(())
}

/// A loss, in logarithms, that other settings hardly turn into a gain.
const FAR: f64 = 0.25;

/// Whether this move was far worse wherever it was made.
fn lost_far(lab: &Lab<'_>, axis: usize, from: usize, to: usize) -> bool {
    let ranked = lab.ranked();
    let starts = ranked.iter().filter(|(_, levels)| levels[axis] == from);
    let losses = starts.filter_map(|(score, levels)| Some(score - lab.score(&with(levels, axis, to))?));
    let losses: Vec<f64> = losses.collect();
    !losses.is_empty() && losses.iter().all(|loss| *loss > FAR)
}

/// Words: each of them, but for those that were far worse already.
pub(super) fn choice(lab: &mut Lab<'_>, axis: usize) -> Result<(), Stop> {
    let Some(center) = lab.best() else { return Ok(()) };
    let why = format!("`{}`", lab.space.axes[axis].path);
    for level in 0..lab.space.axes[axis].values.len() {
        if level != center[axis] && !lost_far(lab, axis, center[axis], level) {
            try_with_less(lab, &with(&center, axis, level), &why)?;
        }
    }
    Ok(())
}

/// Two settings at once, by one level each: a hill that lies across the axes is not found along them. As far as half of what
/// is left goes.
pub(super) fn pairs(lab: &mut Lab<'_>) -> Result<(), Stop> {
    let mut allowed = lab.left() / 2;
    let searched = |kind: AxisKind| kind != AxisKind::Memory;
    let axes: Vec<usize> = (0..lab.space.axes.len()).filter(|axis| searched(lab.space.axes[*axis].kind)).collect();
    let mut center = lab.best();
    'again: while let Some(best) = center.clone() {
        for (place, one) in axes.iter().enumerate() {
            for other in &axes[place + 1..] {
                for (up, across) in [(1, 1), (-1, 1), (1, -1), (-1, -1)] {
                    let Some(levels) =
                        moved(lab, &best, *one, up).and_then(|levels| moved(lab, &levels, *other, across))
                    else {
                        continue;
                    };
                    if lab.is_known(&levels) || !promising(lab, &best, &levels, *one, *other) {
                        continue;
                    }
                    if allowed == 0 {
                        return Ok(());
                    }
                    allowed -= 1;
                    try_with_less(lab, &levels, "two settings at once")?;
                    if lab.best() != center {
                        center = lab.best();
                        continue 'again;
                    }
                }
            }
        }
        return Ok(());
    }
    Ok(())
}

/// Whether each of the two moves alone lost little enough that both together could gain.
fn promising(lab: &Lab<'_>, best: &[usize], levels: &[usize], one: usize, other: usize) -> bool {
    let Some(top) = lab.score(best) else { return false };
    let loss = |axis: usize| {
        let alone = with(best, axis, levels[axis]);
        match (lab.is_known(&alone), lab.score(&alone)) {
            (true, Some(score)) => top - score,
            (true, None) => f64::INFINITY,
            (false, _) => 0.0,
        }
    };
    loss(one) + loss(other) < 0.15 + 4.0 * lab.noise()
}

fn moved(lab: &Lab<'_>, levels: &[usize], axis: usize, by: isize) -> Option<Vec<usize>> {
    let level = levels[axis].checked_add_signed(by).filter(|level| *level < lab.space.axes[axis].values.len())?;
    Some(with(levels, axis, level))
}

/// The levels of a line that are known, rising.
fn known_on(lab: &Lab<'_>, center: &[usize], axis: usize) -> Vec<usize> {
    (0..lab.space.axes[axis].values.len()).filter(|level| lab.is_known(&with(center, axis, *level))).collect()
}
