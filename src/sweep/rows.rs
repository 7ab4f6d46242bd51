//! What the points came to, step by step: which is best, and which are beaten by no other in two metrics.

use crate::compare;
use crate::profile::Goal;
use crate::record::Record;
use crate::record::model::StepResult;

use super::goal;
use super::plan::Plan;

/// Reasons of an invalid step that say how the server is set up, which is what a sweep varies: a load beyond its cap waits
/// in its queue, and what then comes out is still what these settings do with this load.
const OF_THE_SETTINGS: [&str; 3] = ["over_running_cap", "over_kv", "over_graphs"];

/// A step of a point, with a result for each start.
#[derive(Clone, Debug)]
pub struct Row {
    /// The point's place in the plan.
    pub index: usize,
    /// The step's name.
    pub step: String,
    /// The results that can be used, one a start.
    pub results: Vec<StepResult>,
    /// What of the settings made the load another one than its name says.
    pub limited: Option<String>,
    /// Why none can be used.
    pub unusable: Option<String>,
}

impl Row {
    /// A metric, start by start.
    pub fn values(&self, metric: &str) -> Vec<f64> {
        self.results.iter().filter_map(|result| goal::value(result, metric)).collect()
    }

    /// Its mean: geometric where that is possible.
    pub fn mean(&self, metric: &str) -> Option<f64> {
        let values = self.values(metric);
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        if values.iter().all(|value| *value > 0.0) {
            return Some((values.iter().map(|value| value.ln()).sum::<f64>() / count).exp());
        }
        Some(values.iter().sum::<f64>() / count)
    }

    /// Whether it meets the conditions of a goal; `None` where it lacks a metric.
    pub fn meets(&self, goal: &Goal) -> Option<bool> {
        goal::meets(goal, |metric| self.mean(metric))
    }
}

/// The rows of all points that were measured, in the order of the plan. `records` has those of a point, one a start.
pub fn rows(plan: &Plan, records: impl Fn(&str) -> Vec<Record>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, point) in plan.0.iter().enumerate() {
        let first = rows.len();
        for record in records(&point.point) {
            for result in record.steps {
                let place = rows[first..].iter().position(|row| row.step == result.name).map(|at| first + at);
                let place = place.unwrap_or_else(|| {
                    let step = result.name.clone();
                    rows.push(Row { index, step, results: Vec::new(), limited: None, unusable: None });
                    rows.len() - 1
                });
                add(&mut rows[place], result);
            }
        }
    }
    rows
}

fn add(row: &mut Row, result: StepResult) {
    let foreign = result.reasons.iter().find(|reason| !OF_THE_SETTINGS.contains(&reason.id.as_str()));
    match (result.valid, foreign) {
        (true, _) => row.results.push(result),
        (false, None) if !result.reasons.is_empty() => {
            row.limited = result.reasons.first().map(|reason| reason.text.clone());
            row.results.push(result);
        }
        (false, reason) => {
            row.unusable = Some(reason.map_or_else(|| "not valid".to_owned(), |reason| reason.text.clone()))
        }
    }
    if !row.results.is_empty() {
        row.unusable = None;
    }
}

/// The best row by a goal: of those that meet its conditions.
pub fn best<'a>(rows: &'a [Row], goal: &Goal) -> Option<&'a Row> {
    let fitting = rows.iter().filter(|row| row.meets(goal) == Some(true));
    let valued = fitting.filter_map(|row| Some((row.mean(&goal.metric)?, row)));
    let better = |one: f64, other: f64| if goal.maximize { one > other } else { one < other };
    valued.reduce(|best, next| if better(next.0, best.0) { next } else { best }).map(|(_, row)| row)
}

/// The rows that no other beats in both metrics, among those that meet the goal's conditions: their places in `rows`.
pub fn front(rows: &[Row], goal: &Goal, x: &str, y: &str) -> Vec<usize> {
    let up = |metric: &str| match metric == goal.metric {
        true => goal.maximize,
        false => compare::higher_is_better(metric).unwrap_or(true),
    };
    let signed = |value: f64, metric: &str| if up(metric) { value } else { -value };
    let fitting = rows.iter().enumerate().filter(|(_, row)| row.meets(goal) == Some(true));
    let all: Vec<(usize, f64, f64)> =
        fitting.filter_map(|(index, row)| Some((index, signed(row.mean(x)?, x), signed(row.mean(y)?, y)))).collect();
    let beaten = |one: &(usize, f64, f64)| {
        all.iter().any(|other| other.1 >= one.1 && other.2 >= one.2 && (other.1 > one.1 || other.2 > one.2))
    };
    all.iter().filter(|one| !beaten(one)).map(|(index, ..)| *index).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::tests::plan;
    use super::*;
    use crate::measure::MetricValue;
    use crate::record::fold;
    use crate::record::model::Reason;
    use crate::record::samples::{entries, result, story};

    /// A record with a step, its throughput and its time to the first token.
    pub(in crate::sweep) fn record(step: &str, output: f64, latency: f64) -> Record {
        let metrics = [
            ("output_tokens_per_s".to_owned(), MetricValue::Number(output)),
            ("joules_per_token".to_owned(), MetricValue::Number(latency)),
        ];
        let step = StepResult { metrics: metrics.into(), valid: true, ..result(step, 0.0) };
        Record { steps: vec![step], ..fold(entries(story())).record }
    }

    #[test]
    fn the_front_has_what_nothing_beats_and_the_best_meets_the_conditions() {
        let plan = plan("base: b\nserver: {a: [1, 2, 3, 4]}\n");
        let values = [(100.0, 9.0), (80.0, 4.0), (70.0, 5.0), (60.0, 3.0)];
        let of = |point: &str| {
            let index = plan.0.iter().position(|each| each.point == point).unwrap();
            vec![record("load", values[index].0, values[index].1)]
        };
        let rows = rows(&plan, of);
        let goal = Goal::default();
        assert_eq!(front(&rows, &goal, "joules_per_token", "output_tokens_per_s"), [0, 1, 3]);
        assert_eq!(best(&rows, &goal).unwrap().index, 0);
        let goal = Goal { conditions: vec![("joules_per_token".into(), "< 5".into())], ..goal };
        assert_eq!(best(&rows, &goal).unwrap().index, 1);
        assert_eq!(front(&rows, &goal, "joules_per_token", "output_tokens_per_s"), [1, 3]);
    }

    #[test]
    fn a_cap_is_a_mark_and_a_failure_makes_a_step_unusable() {
        let plan = plan("base: b\nserver: {a: [1]}\n");
        let with = |id: &str| {
            let mut record = record("load", 50.0, 1.0);
            record.steps[0].valid = false;
            record.steps[0].reasons = vec![Reason::new(id, "why")];
            record
        };
        let row = |records: Vec<Record>| rows(&plan, |_| records.clone()).remove(0);
        let capped = row(vec![with("over_running_cap")]);
        assert_eq!((capped.results.len(), capped.limited.as_deref(), capped.unusable), (1, Some("why"), None));
        let failed = row(vec![with("failures")]);
        assert_eq!((failed.results.len(), failed.unusable.as_deref()), (0, Some("why")));
        let both = row(vec![with("failures"), record("load", 50.0, 1.0)]);
        assert_eq!((both.results.len(), both.unusable), (1, None));
    }
}
