//! The fraction of the memory: the highest that starts and survives the load, found by what earlier starts left free.

use super::lab::{Lab, Stop, with};
use super::{AxisKind, Outcome};

/// Starts where the profile stands, and finds the highest fraction from there.
pub(super) fn begin(lab: &mut Lab<'_>) -> Result<(), Stop> {
    let base = lab.space.base.clone();
    let first = lab.try_at(&base, "where the profile stands")?;
    let Some(axis) = lab.space.axis(AxisKind::Memory) else { return Ok(()) };
    let mut good = first.value.is_some().then_some(base[axis]);
    let mut bad = lab.space.axes[axis].values.len();
    if first.oom {
        bad = base[axis];
        good = lower(lab, &base, axis, bad)?;
    }
    let Some(good) = good else { return Ok(()) };
    climb(lab, &base, axis, good, bad)
}

/// After other settings have moved: whether the best of them bears more memory by now.
pub(super) fn higher(lab: &mut Lab<'_>) -> Result<(), Stop> {
    let Some(axis) = lab.space.axis(AxisKind::Memory) else { return Ok(()) };
    let Some(best) = lab.best() else { return Ok(()) };
    let level = best[axis];
    if level + 1 < lab.space.axes[axis].values.len() && !lab.is_known(&with(&best, axis, level + 1)) {
        let room = lab.outcome(&best).is_none_or(|outcome| reaches(lab, axis, level, outcome) > level);
        if room {
            lab.try_at(&with(&best, axis, level + 1), "more memory with the best settings")?;
        }
    }
    Ok(())
}

/// A setting beside the best one, which may need more memory than that: where it runs out, with a little less of it.
pub(super) fn try_with_less(lab: &mut Lab<'_>, levels: &[usize], why: &str) -> Result<(), Stop> {
    let outcome = lab.try_at(levels, why)?;
    let Some(axis) = lab.space.axis(AxisKind::Memory) else { return Ok(()) };
    if outcome.oom && levels[axis] > 0 {
        lab.try_at(&with(levels, axis, levels[axis] - 1), format!("{why}, with less memory"))?;
    }
    Ok(())
}

/// The highest level below `bad` that starts, going down by halves.
fn lower(lab: &mut Lab<'_>, base: &[usize], axis: usize, bad: usize) -> Result<Option<usize>, Stop> {
    let mut bad = bad;
    while bad > 0 {
        let level = bad / 2;
        if !lab.try_at(&with(base, axis, level), "less memory, since that ran out")?.oom {
            return Ok(Some(level));
        }
        bad = level;
    }
    Ok(None)
}

/// From a level that starts to the highest that does.
fn climb(lab: &mut Lab<'_>, base: &[usize], axis: usize, good: usize, bad: usize) -> Result<(), Stop> {
    let (mut good, mut bad) = (good, bad);
    while good + 1 < bad {
        let outcome = lab.try_at(&with(base, axis, good), "the memory")?;
        // The trail tells how far it is; without one, by halves.
        let level = match outcome.free_ratio {
            Some(_) => reaches(lab, axis, good, outcome),
            None => (good + bad) / 2,
        };
        if level <= good {
            let (path, value) = (&lab.space.axes[axis].path, &lab.space.axes[axis].values[good]);
            let free = outcome.free_ratio.unwrap_or(0.0) * 100.0;
            lab.note(format!("{path}={value} leaves {free:.1} % of the memory at its lowest: no higher one is tried"));
            return Ok(());
        }
        let level = level.min(bad - 1);
        if lab.try_at(&with(base, axis, level), "the highest fraction that the free memory allows")?.oom {
            let (path, value) = (&lab.space.axes[axis].path, &lab.space.axes[axis].values[level]);
            lab.note(format!("{path}={value} runs out of memory"));
            bad = level;
            // The trail promised too much: halves from here on.
            while good + 1 < bad {
                let middle = (good + bad) / 2;
                let oom = lab.try_at(&with(base, axis, middle), "between what starts and what does not")?.oom;
                if oom { bad = middle } else { good = middle }
            }
        } else {
            good = level;
        }
    }
    Ok(())
}

/// The highest level that what was left free allows, if each step up takes from it what it adds. That it holds is proven by
/// its start.
fn reaches(lab: &Lab<'_>, axis: usize, level: usize, outcome: &Outcome) -> usize {
    let axis = &lab.space.axes[axis];
    let Some(free) = outcome.free_ratio else { return axis.values.len() - 1 };
    let limit = axis.number(level) + free;
    // Written decimals are not exact.
    (level..axis.values.len()).rev().find(|up| axis.number(*up) <= limit + 1e-9).unwrap_or(level)
}
