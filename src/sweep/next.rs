//! What comes next in a sweep, by its plan and what was done: the points in their order, then those that failed once more,
//! then what could be the best again.

use std::collections::{BTreeMap, HashMap};

use super::journal::State;
use super::plan::{Plan, Point};

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This.
    Start {
        /// The point's place in the plan.
        index: usize,
        /// Which start of it, from 1.
        start: u32,
        /// Which try at it, from 1.
        attempt: u32,
    },
    /// All points were tried: which of them are started again is to be decided.
    Choose,
    /// Nothing.
    Done,
}

/// Why a point that is in the plan is not tried after all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The point's id.
    pub point: String,
    /// Why.
    pub reason: String,
}

/// A failed start is tried again once, when all others have been: then it is known whether it was the host or the settings.
const TRIES: u32 = 2;

/// What comes next. `confirm` is how many more starts the chosen points get; `None` where nothing is confirmed.
pub fn next(plan: &Plan, state: &State, skip_higher_fraction: bool, confirm: Option<u32>) -> Next {
    let out = left_out(plan, state, skip_higher_fraction);
    let tried = || plan.0.iter().enumerate().filter(|(_, point)| point.is_tried() && !out.contains_key(&point.point));
    if let Some((index, _)) = tried().find(|(_, point)| state.last(&point.point, 1).is_none()) {
        return Next::Start { index, start: 1, attempt: 1 };
    }
    if let Some((index, attempt)) = tried().find_map(|(index, point)| Some((index, again(state, point, 1)?))) {
        return Next::Start { index, start: 1, attempt };
    }
    let (Some(more), Some(_)) = (confirm, tried().next()) else { return Next::Done };
    let Some(chosen) = &state.confirming else { return Next::Choose };
    let places: HashMap<&str, usize> =
        plan.0.iter().enumerate().map(|(index, point)| (point.point.as_str(), index)).collect();
    for start in 2..=more.saturating_add(1) {
        // By turns and back, so that what drifts is the same for all.
        let order: Vec<&String> = if start % 2 == 0 { chosen.iter().rev().collect() } else { chosen.iter().collect() };
        for index in order.iter().filter_map(|point| places.get(point.as_str()).copied()) {
            let point = &plan.0[index];
            if state.last(&point.point, start).is_none() {
                return Next::Start { index, start, attempt: 1 };
            }
            if let Some(attempt) = again(state, point, start) {
                return Next::Start { index, start, attempt };
            }
        }
    }
    Next::Done
}

/// The next try at a start that failed, if it may end otherwise.
fn again(state: &State, point: &Point, start: u32) -> Option<u32> {
    let last = state.last(&point.point, start)?;
    let tries = u32::try_from(state.tries(&point.point, start).iter().flatten().count()).unwrap_or(u32::MAX);
    (last.may_end_otherwise() && tries < TRIES).then_some(tries + 1)
}

/// Points that are not tried because one with a lower `memory.fraction`, and all else the same, ran out of memory.
pub fn left_out(plan: &Plan, state: &State, skip_higher_fraction: bool) -> BTreeMap<String, Left> {
    let mut out = BTreeMap::new();
    if !skip_higher_fraction {
        return out;
    }
    let fraction = |point: &Point| point.settings.get("memory.fraction").and_then(|text| text.parse::<f64>().ok());
    let rest = |point: &Point| {
        let others = point.settings.iter().filter(|(path, _)| *path != "memory.fraction");
        others.map(|(path, value)| format!("{path}={value}")).collect::<Vec<_>>().join(" ")
    };
    let mut lowest: HashMap<String, f64> = HashMap::new();
    for point in plan.tried().filter(|point| state.last(&point.point, 1).is_some_and(|last| last.is_oom())) {
        if let Some(fraction) = fraction(point) {
            let known = lowest.entry(rest(point)).or_insert(fraction);
            *known = known.min(fraction);
        }
    }
    if lowest.is_empty() {
        return out;
    }
    for point in plan.tried().filter(|point| state.last(&point.point, 1).is_none()) {
        let above = fraction(point).zip(lowest.get(&rest(point)).copied()).filter(|(own, failed)| own > failed);
        if let Some((_, failed)) = above {
            let reason = format!("memory.fraction={failed} ran out of memory already");
            out.insert(point.point.clone(), Left { point: point.point.clone(), reason });
        }
    }
    out
}

/// Whether something that takes so long can still end within the budget. What nobody knows the length of is begun as long
/// as anything is left.
pub fn budget_allows(budget_s: Option<f64>, spent_s: f64, expected_s: Option<f64>) -> bool {
    budget_s.is_none_or(|budget| match expected_s {
        Some(expected) => spent_s + expected <= budget,
        None => spent_s < budget,
    })
}

#[cfg(test)]
mod tests {
    use super::super::journal::{Attempt, Failed, Line, SweepEvent};
    use super::super::plan::tests::plan;
    use super::*;

    fn ended(state: &mut State, plan: &Plan, next: &Next, failure: Option<(&str, Option<&str>)>) {
        let Next::Start { index, start, attempt } = next else { panic!("{next:?}") };
        let failure = failure.map(|(kind, retry)| Failed {
            kind: kind.into(),
            text: kind.into(),
            retry: retry.map(str::to_owned),
        });
        let exit = if failure.is_some() { 4 } else { 0 };
        let outcome = Attempt { run: Some("r".into()), complete: failure.is_none(), exit, s: 10.0, failure };
        let point = plan.0[*index].point.clone();
        state.apply(&SweepEvent::PointBegan { point: point.clone(), start: *start, attempt: *attempt });
        state.apply(&SweepEvent::PointEnded { point, start: *start, attempt: *attempt, outcome });
    }

    fn start(index: usize, start: u32, attempt: u32) -> Next {
        Next::Start { index, start, attempt }
    }

    #[test]
    fn a_failed_point_is_tried_once_more_when_all_others_have_been() {
        let plan = plan("base: b\nserver: {a: [1, 2, 3]}\n");
        let mut state = State::default();
        ended(&mut state, &plan, &start(0, 1, 1), Some(("exited", None)));
        ended(&mut state, &plan, &start(1, 1, 1), Some(("weights_missing", Some("never"))));
        assert_eq!(next(&plan, &state, false, None), start(2, 1, 1));
        ended(&mut state, &plan, &start(2, 1, 1), None);
        assert_eq!(next(&plan, &state, false, None), start(0, 1, 2));
        ended(&mut state, &plan, &start(0, 1, 2), Some(("exited", None)));
        assert_eq!(next(&plan, &state, false, None), Next::Done);
        assert_eq!(state.runs(&plan.0[2].point), ["r"]);
        assert_eq!((state.spent_s, state.runs(&plan.0[0].point).len()), (40.0, 0));
    }

    #[test]
    fn what_was_begun_and_not_ended_comes_first_again() {
        let plan = plan("base: b\nserver: {a: [1, 2]}\n");
        let mut state = State::default();
        state.apply(&SweepEvent::PointBegan { point: plan.0[0].point.clone(), start: 1, attempt: 1 });
        assert_eq!(state.open(), Some((plan.0[0].point.clone(), 1, 1)));
        assert_eq!(next(&plan, &state, false, None), start(0, 1, 1));
    }

    #[test]
    fn more_memory_is_not_tried_where_less_ran_out() {
        let plan =
            plan("base: b\nserver: {memory.fraction: [0.8, 0.85, 0.9], a: [1, 2]}\non_oom: skip_higher_fraction\n");
        let mut state = State::default();
        ended(&mut state, &plan, &start(0, 1, 1), None);
        ended(&mut state, &plan, &start(1, 1, 1), Some(("oom_capture", None)));
        assert_eq!(next(&plan, &state, true, None), start(3, 1, 1), "0.9 of the first is left out");
        assert_eq!(next(&plan, &state, false, None), start(2, 1, 1));
        let left: Vec<Left> = left_out(&plan, &state, true).into_values().collect();
        assert_eq!((left.len(), left[0].reason.as_str()), (1, "memory.fraction=0.85 ran out of memory already"));
    }

    #[test]
    fn the_chosen_are_started_again_by_turns() {
        let plan = plan("base: b\nserver: {a: [1, 2, 3]}\n");
        let mut state = State::default();
        for index in 0..3 {
            ended(&mut state, &plan, &start(index, 1, 1), None);
        }
        assert_eq!(next(&plan, &state, false, Some(2)), Next::Choose);
        state.apply(&SweepEvent::Confirming { points: vec![plan.0[2].point.clone(), plan.0[0].point.clone()] });
        let mut order = Vec::new();
        while let found @ Next::Start { index, start, .. } = next(&plan, &state, false, Some(2)) {
            order.push((index, start));
            ended(&mut state, &plan, &found, None);
        }
        assert_eq!(order, [(0, 2), (2, 2), (2, 3), (0, 3)]);
        assert_eq!(state.runs(&plan.0[0].point).len(), 3);
    }

    #[test]
    fn nothing_begins_that_cannot_end_within_the_budget() {
        assert!(budget_allows(None, 1e9, Some(1e9)) && budget_allows(Some(100.0), 40.0, Some(60.0)));
        assert!(!budget_allows(Some(100.0), 41.0, Some(60.0)) && budget_allows(Some(100.0), 99.0, None));
    }

    #[test]
    fn ten_thousand_points_are_folded_in_a_moment() {
        let axis = |name: &str| format!("{name}: {{from: 1, to: 10, step: 1}}");
        let text =
            format!("base: b\nserver: {{{}, {}, {}, {}}}\n", axis("a"), axis("b"), axis("c"), axis("memory.fraction"));
        let begun = std::time::Instant::now();
        let plan = plan(&text);
        let made = begun.elapsed();
        let at = "2026-11-29T15:15:03Z".parse().unwrap();
        let line = |event| serde_json::to_string(&Line { v: 1, at, event }).unwrap();
        let mut journal = String::new();
        for point in &plan.0[..9_999] {
            journal += &line(SweepEvent::PointBegan { point: point.point.clone(), start: 1, attempt: 1 });
            journal.push('\n');
            let outcome = Attempt {
                run: Some("20261129-151503-demo-0a4f".into()),
                complete: true,
                exit: 0,
                s: 1.0,
                failure: None,
            };
            journal += &line(SweepEvent::PointEnded { point: point.point.clone(), start: 1, attempt: 1, outcome });
            journal.push('\n');
        }
        let begun = std::time::Instant::now();
        let state = State::fold(journal.lines().map(|line| serde_json::from_str(line).unwrap()));
        assert_eq!(next(&plan, &state, true, None), start(9_999, 1, 1));
        let resumed = begun.elapsed();
        // A build for tests is several times slower than what people run.
        let limit = if cfg!(debug_assertions) { 5.0 } else { 1.0 };
        assert!(made.as_secs_f64() < limit && resumed.as_secs_f64() < limit, "{made:?} {resumed:?}");
    }
}
