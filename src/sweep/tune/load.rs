//! The highest load that the winner bears within the goal's conditions: between the highest that met them and the lowest
//! that did not, several loads at a time on one start.

use super::lab::{Lab, Stop};

/// The limit is told to within so much.
const NEAR: f64 = 1.1;
/// At most so many starts.
const STARTS: usize = 3;
/// So many loads on a start.
const AT_ONCE: u32 = 3;

/// Looks for it, where the conditions make one.
pub(super) fn search(lab: &mut Lab<'_>) -> Result<(), Stop> {
    if !lab.space.ladder {
        return Ok(());
    }
    let Some(best) = lab.best() else { return Ok(()) };
    for _ in 0..STARTS {
        let next = match limits(&lab.loads(&best)) {
            (Some(holds), Some(fails)) if f64::from(fails) > f64::from(holds) * NEAR && fails - holds > 1 => {
                between(holds, fails)
            }
            // All that was tried is borne.
            (Some(holds), None) => vec![holds.saturating_mul(2), holds.saturating_mul(4)],
            _ => break,
        };
        lab.load_at(&best, &next)?;
    }
    match limits(&lab.loads(&best)) {
        (Some(holds), Some(fails)) => {
            lab.note(format!("the conditions hold up to {holds} requests at once, and not at {fails}"));
        }
        (Some(holds), None) => {
            lab.note(format!("the conditions hold at {holds} requests at once, the most that was tried"))
        }
        (None, _) => {}
    }
    Ok(())
}

/// The highest load below which all are borne, and the lowest that is not.
fn limits(loads: &[(u32, bool)]) -> (Option<u32>, Option<u32>) {
    let fails = loads.iter().filter(|(_, meets)| !meets).map(|(load, _)| *load).min();
    let below = |load: u32| fails.is_none_or(|fails| load < fails);
    let holds = loads.iter().filter(|(load, meets)| *meets && below(*load)).map(|(load, _)| *load).max();
    (holds, fails)
}

/// Loads between two, evenly by factors.
fn between(holds: u32, fails: u32) -> Vec<u32> {
    let step = (f64::from(fails) / f64::from(holds)).powf(1.0 / f64::from(AT_ONCE + 1));
    let mut loads: Vec<u32> =
        (1..=AT_ONCE).map(|place| (f64::from(holds) * step.powf(f64::from(place))).round() as u32).collect();
    loads.retain(|load| *load > holds && *load < fails);
    loads.dedup();
    loads
}

#[cfg(test)]
mod tests {
    use super::super::{Ask, Axis, AxisKind, Outcome, Seen, Space, next};
    use super::*;

    #[test]
    fn the_limit_is_found_between_what_holds_and_what_does_not() {
        let axis = Axis { path: "a".into(), values: vec!["1".into()], kind: AxisKind::Choice };
        let space = Space {
            axes: vec![axis],
            base: vec![0],
            maximize: true,
            metric: "output_tokens_per_s".into(),
            ladder: true,
        };
        let meets = |load: u32| load <= 37;
        let outcome = |loads: &[u32]| Outcome {
            value: Some(100.0),
            loads: loads.iter().map(|load| (*load, meets(*load))).collect(),
            ..Outcome::default()
        };
        let mut seen: Vec<Seen> = Vec::new();
        let found = loop {
            match next(&space, &seen, 20) {
                Ask::Start { levels, loads, .. } => {
                    let own = if loads.is_empty() { vec![4, 16, 64] } else { loads.clone() };
                    seen.push(Seen { levels, loads, outcome: outcome(&own) });
                }
                Ask::Done(found) => break found,
            }
        };
        let told = found.evidence.last().unwrap();
        assert!(seen.iter().filter(|one| !one.loads.is_empty()).count() <= 2, "{seen:?}");
        assert!(told.contains("hold up to 3") && told.contains("and not at"), "{told}");
        assert_eq!(
            limits(&[(4, true), (8, false), (16, true)]),
            (Some(4), Some(8)),
            "one that is borne by luck above is not believed"
        );
        assert_eq!(between(16, 17), Vec::<u32>::new());
    }
}
