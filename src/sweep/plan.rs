//! The plan of a sweep: its points, in an order that keeps the dearest changes between starts few.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::profile::{AxisValues, SweepFile};
use crate::trial::start_cost;

/// More points than this are a slip: they would take years.
const MAX_POINTS: usize = 100_000;

/// A point: a start of the server with its own settings, and all of the load on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The hash of its resolved profile with its load.
    pub point: String,
    /// What it sets, by path: values as they stand after the `=` of a `--set`.
    pub settings: IndexMap<String, String>,
    /// Why it is not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

impl Point {
    /// As `--set` arguments.
    pub fn sets(&self) -> Vec<String> {
        self.settings.iter().map(|(path, value)| format!("{path}={value}")).collect()
    }

    /// What a person calls it: its settings, without what all points share.
    pub fn title(&self) -> String {
        let settings = self.settings.iter().map(|(path, value)| format!("{path}={value}"));
        settings.collect::<Vec<_>>().join(" ")
    }

    /// Whether it is to be tried.
    pub fn is_tried(&self) -> bool {
        self.dropped.is_none()
    }
}

/// The points of a sweep, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan(pub Vec<Point>);

/// A plan that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} combinations are more than the {MAX_POINTS} that are planned")]
pub struct PlanError {
    /// How many it would be.
    pub count: usize,
}

impl Plan {
    /// The points that are tried.
    pub fn tried(&self) -> impl Iterator<Item = &Point> {
        self.0.iter().filter(|point| point.is_tried())
    }

    /// The point of this id.
    pub fn find(&self, id: &str) -> Option<&Point> {
        self.0.iter().find(|point| point.point == id)
    }
}

/// Axes that move together, as one.
struct Group<'a> {
    axes: Vec<(usize, &'a AxisValues)>,
    len: usize,
}

/// Which value each axis of a sweep has, combination by combination: levels in the order of [`SweepFile::axes`].
///
/// What takes the longest to change between two starts (the engine, then the model and its spread) changes least often;
/// `memory.fraction` changes first and rises, so that a start without memory comes before those that would have less.
pub fn combinations(file: &SweepFile) -> Result<Vec<Vec<usize>>, PlanError> {
    let mut groups = groups(file);
    groups.sort_by_key(|group| {
        let cost = |(_, axis): &(usize, &AxisValues)| start_cost(&axis.path);
        let fraction = group.axes.iter().any(|(_, axis)| axis.path == "memory.fraction");
        (fraction, std::cmp::Reverse(group.axes.iter().map(cost).max()))
    });
    let count = groups.iter().try_fold(1_usize, |count, group| count.checked_mul(group.len)).unwrap_or(usize::MAX);
    if count > MAX_POINTS {
        return Err(PlanError { count });
    }
    let orders: Vec<Vec<usize>> = groups.iter().map(order).collect();
    let mut all = Vec::with_capacity(count);
    for index in 0..count {
        let mut levels = vec![0; file.axes.len()];
        let mut rest = index;
        for (group, order) in groups.iter().zip(&orders).rev() {
            let level = order[rest % group.len];
            rest /= group.len;
            for (axis, _) in &group.axes {
                levels[*axis] = level;
            }
        }
        all.push(levels);
    }
    Ok(all)
}

fn groups(file: &SweepFile) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (index, axis) in file.axes.iter().enumerate() {
        let linked = |group: &&mut Group<'_>| {
            let with = |paths: &Vec<String>| {
                paths.contains(&axis.path) && group.axes.iter().any(|(_, other)| paths.contains(&other.path))
            };
            file.linked.iter().any(with)
        };
        match groups.iter_mut().find(linked) {
            Some(group) => group.axes.push((index, axis)),
            None => groups.push(Group { axes: vec![(index, axis)], len: axis.values.len() }),
        }
    }
    groups
}

/// The levels of a group as they are tried: as written, and fractions of the memory from the lowest.
fn order(group: &Group<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..group.len).collect();
    if let Some((_, axis)) = group.axes.iter().find(|(_, axis)| axis.path == "memory.fraction") {
        let value = |level: &usize| axis.values[*level].parse::<f64>().unwrap_or(f64::MAX);
        order.sort_by(|one, other| value(one).total_cmp(&value(other)));
    }
    order
}

/// Why a combination is left out by a rule of the sweep.
pub(super) fn skipped(file: &SweepFile, settings: &IndexMap<String, String>) -> Option<String> {
    let rule = file.skip.iter().find(|rule| rule.iter().all(|(path, value)| settings.get(path) == Some(value)))?;
    let words = rule.iter().map(|(path, value)| format!("{path}={value}")).collect::<Vec<_>>().join(" ");
    Some(format!("skip: {words}"))
}

impl Plan {
    /// The plan of all combinations. `id` names each, and `drop` says what cannot be started.
    pub fn make(
        file: &SweepFile,
        id: impl Fn(&[usize]) -> String,
        mut drop: impl FnMut(&Point) -> Option<String>,
    ) -> Result<Self, PlanError> {
        let mut seen = std::collections::HashSet::new();
        let mut points = Vec::new();
        for levels in combinations(file)? {
            let pairs = file.axes.iter().zip(&levels);
            let settings: IndexMap<String, String> =
                pairs.map(|(axis, level)| (axis.path.clone(), axis.values[*level].clone())).collect();
            let mut point = Point { point: id(&levels), settings, dropped: None };
            point.dropped = skipped(file, &point.settings);
            if point.is_tried() && !seen.insert(point.point.clone()) {
                point.dropped = Some("comes to the same settings as an earlier point".to_owned());
            }
            if point.is_tried() {
                point.dropped = drop(&point);
            }
            points.push(point);
        }
        Ok(Plan(points))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::profile::sweep_file;

    pub(in crate::sweep) fn file(text: &str) -> SweepFile {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.yaml");
        std::fs::write(&path, text).unwrap();
        sweep_file(path.to_str().unwrap(), &[], &|_| None).unwrap_or_else(|error| panic!("{error:?}"))
    }

    pub(in crate::sweep) fn plan(text: &str) -> Plan {
        Plan::make(&file(text), |levels| format!("{levels:?}"), |_| None).unwrap()
    }

    #[test]
    fn the_dearest_changes_least_and_the_fraction_rises_first() {
        let plan = plan(
            "base: b\nserver: {memory.fraction: [0.9, 0.8], max_running_requests: [1, 2], parallel.tensor: [1, 2]}\n",
        );
        let titles: Vec<String> =
            plan.0.iter().map(|point| point.settings.values().cloned().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(titles, ["0.8 1 1", "0.9 1 1", "0.8 2 1", "0.9 2 1", "0.8 1 2", "0.9 1 2", "0.8 2 2", "0.9 2 2"]);
    }

    #[test]
    fn linked_axes_move_together_and_rules_leave_points_out() {
        let plan = plan("base: b\nserver: {a: [1, 2], b: [3, 4], c: [x, y]}\nlinked: [[a, b]]\nskip: [{a: 1, c: y}]\n");
        let told: Vec<(String, bool)> = plan.0.iter().map(|point| (point.title(), point.is_tried())).collect();
        let expected = [("a=1 b=3 c=x", true), ("a=1 b=3 c=y", false), ("a=2 b=4 c=x", true), ("a=2 b=4 c=y", true)];
        assert_eq!(told, expected.map(|(title, tried)| (title.to_owned(), tried)));
        assert_eq!(plan.0[1].dropped.as_deref(), Some("skip: a=1 c=y"));
    }

    #[test]
    fn too_many_are_refused_without_being_made() {
        let axis = |name: &str| format!("{name}: {{from: 1, to: 999, step: 1}}");
        let text = format!("base: b\nserver: {{{}, {}, {}}}\n", axis("a"), axis("b"), axis("c"));
        let error = combinations(&file(&text)).unwrap_err();
        assert_eq!(error.count, 999 * 999 * 999);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Every combination once, whatever is linked; changes of a dearer axis are never more than those of a cheaper one.
        #[test]
        fn a_plan_has_each_combination_once(a in 1_usize..5, b in 1_usize..5, c in 1_usize..4, linked in any::<bool>()) {
            let values = |count: usize| (0..count).map(|value| value.to_string()).collect::<Vec<_>>().join(", ");
            let link = if linked && a == b { "linked: [[max_running_requests, graphs.max_batch]]\n" } else { "" };
            let text = format!(
                "base: b\nserver: {{max_running_requests: [{}], graphs.max_batch: [{}], parallel.tensor: [{}]}}\n{link}",
                values(a), values(b), values(c)
            );
            let plan = plan(&text);
            let count = if link.is_empty() { a * b * c } else { a * c };
            prop_assert_eq!(plan.0.len(), count);
            let distinct: HashSet<String> = plan.0.iter().map(Point::title).collect();
            prop_assert_eq!(distinct.len(), count);
            let changes = |path: &str| plan.0.windows(2).filter(|two| two[0].settings[path] != two[1].settings[path]).count();
            prop_assert_eq!(changes("parallel.tensor"), c - 1);
            prop_assert!(link.is_empty() || changes("graphs.max_batch") == changes("max_running_requests"));
        }
    }
}
