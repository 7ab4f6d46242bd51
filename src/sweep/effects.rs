//! Which axis explains what changed: the mean difference in logarithms between two values of an axis, where all other axes
//! are equal.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::Plan;
use super::rows::Row;

/// What an axis does to a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The axis; several that move together are one.
    pub axis: String,
    /// Its value at which the metric is highest.
    pub high: String,
    /// That at which it is lowest.
    pub low: String,
    /// The metric at `high` against that at `low`, as a factor.
    pub factor: f64,
    /// Its part of what all axes do together, in logarithms.
    pub share_ratio: f64,
    /// So many pairs of points differ in it alone.
    pub pairs: usize,
}

/// The effects of all axes on a metric at one step, the largest first. An axis without two points that differ in it alone
/// has none. `linked` are axes that move together.
pub fn effects(plan: &Plan, rows: &[Row], step: &str, metric: &str, linked: &[Vec<String>]) -> Vec<Effect> {
    let values: Vec<(usize, f64)> = rows
        .iter()
        .filter(|row| row.step == step)
        .filter_map(|row| Some((row.index, row.mean(metric).filter(|value| *value > 0.0)?.ln())))
        .collect();
    let mut effects: Vec<(Effect, f64)> =
        axes(plan, linked).iter().filter_map(|axis| effect(plan, &values, axis)).collect();
    let whole: f64 = effects.iter().map(|(_, log)| log.abs()).sum();
    for (effect, log) in &mut effects {
        effect.share_ratio = if whole > 0.0 { log.abs() / whole } else { 0.0 };
    }
    effects.sort_by(|one, other| other.1.total_cmp(&one.1));
    effects.into_iter().map(|(effect, _)| effect).collect()
}

/// The axes that vary, with those that move together as one.
fn axes(plan: &Plan, linked: &[Vec<String>]) -> Vec<Vec<String>> {
    let Some(first) = plan.0.first() else { return Vec::new() };
    let varies = |path: &String| plan.0.iter().any(|point| point.settings.get(path) != first.settings.get(path));
    let mut axes: Vec<Vec<String>> = Vec::new();
    for path in first.settings.keys().filter(|path| varies(path)) {
        let group = linked.iter().find(|group| group.contains(path));
        let known = axes.iter_mut().find(|axis| group.is_some_and(|group| group.contains(&axis[0])));
        match known {
            Some(axis) => axis.push(path.clone()),
            None => axes.push(vec![path.clone()]),
        }
    }
    axes
}

fn effect(plan: &Plan, values: &[(usize, f64)], axis: &[String]) -> Option<(Effect, f64)> {
    // Points with all else equal, by what they have on this axis.
    let mut blocks: BTreeMap<Vec<&str>, BTreeMap<Vec<&str>, f64>> = BTreeMap::new();
    for (index, value) in values {
        let settings = &plan.0[*index].settings;
        let rest = settings.iter().filter(|(path, _)| !axis.contains(path)).map(|(_, value)| value.as_str()).collect();
        let own = axis.iter().map(|path| settings.get(path).map_or("", String::as_str)).collect();
        blocks.entry(rest).or_default().insert(own, *value);
    }
    let mut levels: BTreeMap<&Vec<&str>, (f64, usize)> = BTreeMap::new();
    for block in blocks.values().filter(|block| block.len() > 1) {
        let mean = block.values().sum::<f64>() / block.len() as f64;
        for (level, value) in block {
            let known = levels.entry(level).or_default();
            *known = (known.0 + value - mean, known.1 + 1);
        }
    }
    let mean = |level: &(&&Vec<&str>, &(f64, usize))| level.1.0 / level.1.1 as f64;
    let high = levels.iter().max_by(|one, other| mean(one).total_cmp(&mean(other)))?.0;
    let low = levels.iter().min_by(|one, other| mean(one).total_cmp(&mean(other)))?.0;
    let pairs = blocks.values().filter_map(|block| Some(block.get(*high)? - block.get(*low)?));
    let pairs: Vec<f64> = pairs.collect();
    if pairs.is_empty() || high == low {
        return None;
    }
    let log = pairs.iter().sum::<f64>() / pairs.len() as f64;
    let effect = Effect {
        axis: axis.join(" + "),
        high: high.join(", "),
        low: low.join(", "),
        factor: log.exp(),
        share_ratio: 0.0,
        pairs: pairs.len(),
    };
    Some((effect, log))
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::super::rows::{rows, tests::record};
    use super::*;

    fn told(
        text: &str,
        linked: &[Vec<String>],
        value: impl Fn(&indexmap::IndexMap<String, String>) -> Option<f64>,
    ) -> Vec<Effect> {
        let plan = plan(text);
        let records = |point: &str| {
            let value = value(&plan.find(point).unwrap().settings);
            value.map(|value| record("load", value, 1.0)).into_iter().collect()
        };
        effects(&plan, &rows(&plan, records), "load", "output_tokens_per_s", linked)
    }

    #[test]
    fn the_cap_gets_the_credit_and_the_graphs_do_not() {
        let text = "base: b\nserver: {max_running_requests: [64, 1024], graphs.max_batch: [64, 1024]}\n";
        let effects = told(text, &[], |settings| {
            let cap = if settings["max_running_requests"] == "64" { 880.0 } else { 3_700.0 };
            Some(cap * if settings["graphs.max_batch"] == "64" { 1.0 } else { 1.01 })
        });
        assert_eq!(
            (effects[0].axis.as_str(), effects[0].high.as_str(), effects[0].pairs),
            ("max_running_requests", "1024", 2)
        );
        assert!((effects[0].factor - 4.2).abs() < 0.01 && effects[0].share_ratio > 0.98, "{effects:?}");
        assert!((effects[1].factor - 1.01).abs() < 0.001, "{effects:?}");
    }

    #[test]
    fn points_that_are_missing_and_axes_that_move_together_mislead_nobody() {
        // The fast half of one axis was measured on the slow half of the other alone.
        let text = "base: b\nserver: {a: [1, 2], c: [1, 2]}\n";
        let effects = told(text, &[], |settings| match (settings["a"].as_str(), settings["c"].as_str()) {
            ("1", "1") => Some(100.0),
            ("2", "1") => Some(110.0),
            ("1", "2") => Some(1_000.0),
            _ => None,
        });
        let a = effects.iter().find(|effect| effect.axis == "a").unwrap();
        assert!((a.factor - 1.1).abs() < 1e-9 && a.pairs == 1, "{a:?}");
        let text = "base: b\nserver: {a: [1, 2], c: [1, 2], d: [1, 2]}\nlinked: [[a, c]]\n";
        let linked = [vec!["a".to_owned(), "c".to_owned()]];
        let effects = told(text, &linked, |settings| Some(if settings["a"] == "1" { 10.0 } else { 20.0 }));
        assert_eq!((effects[0].axis.as_str(), effects[0].high.as_str()), ("a + c", "2, 2"));
        assert_eq!(effects.len(), 1 + usize::from(effects.iter().any(|effect| effect.axis == "d")));
    }
}
