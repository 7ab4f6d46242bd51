//! A page of metrics in neutral names.

use std::collections::BTreeMap;

use super::{Counter, CounterRules, Page};
use crate::clock::Nanos;

/// A counter at two readings.
pub(super) struct Since {
    pub(super) was: f64,
    pub(super) now: f64,
    /// Whether it is a counter as the engine shows it, not one that is reckoned from several.
    pub(super) plain: bool,
    /// How far the difference may be off, for the digits that were printed.
    pub(super) off: f64,
}

/// What the engine's page said at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// When it was asked for, on the load's clock.
    pub at: Nanos,
    /// How long the answer took.
    pub took: Nanos,
    page: Page,
}

impl Reading {
    /// A page as it was read at a moment; `None` if none of the counters is on it.
    pub fn of(page: Page, rules: &CounterRules, at: Nanos, took: Nanos) -> Option<Self> {
        (rules.known_on(&page) > 0).then_some(Reading { at, took, page })
    }

    /// The gauges as they stood.
    pub fn gauges(&self, rules: &CounterRules) -> BTreeMap<Counter, f64> {
        let gauges = rules.each().filter(|(counter, _)| counter.is_gauge());
        gauges.filter_map(|(counter, _)| Some((counter, self.value(counter, rules)?))).collect()
    }

    /// A counter or gauge by the first of its formulas whose series are there.
    pub fn value(&self, counter: Counter, rules: &CounterRules) -> Option<f64> {
        let (_, formulas) = rules.each().find(|(known, _)| *known == counter)?;
        formulas.iter().find_map(|formula| formula.value(rules.on(&self.page, false)))
    }

    /// A counter now and at an earlier reading, by the same formula. What was not on the earlier page was 0: such a
    /// counter is not shown before it first counts.
    pub(super) fn since(&self, before: &Reading, counter: Counter, rules: &CounterRules) -> Option<Since> {
        let (_, formulas) = rules.each().find(|(known, _)| *known == counter)?;
        formulas.iter().find_map(|formula| {
            let now = formula.value(rules.on(&self.page, false))?;
            let was = formula.value(rules.on(&before.page, true))?;
            let off = formula.off(rules.on(&self.page, false)) + formula.off(rules.on(&before.page, true));
            Some(Since { was, now, plain: formula.is_plain(), off })
        })
    }

    /// A counter by position, now and at an earlier reading.
    pub(super) fn positions_since(&self, before: &Reading, rules: &CounterRules) -> Vec<(f64, f64)> {
        let Some((_, formulas)) = rules.each().find(|(known, _)| *known == Counter::AcceptedByPosition) else {
            return Vec::new();
        };
        let find = |reading: &Reading| {
            formulas
                .iter()
                .map(|formula| formula.values_by(rules.on(&reading.page, false)))
                .find(|found| !found.is_empty())
        };
        let then: BTreeMap<String, f64> = find(before).unwrap_or_default().into_iter().collect();
        let now = find(self).unwrap_or_default();
        now.into_iter().map(|(key, now)| (then.get(&key).copied().unwrap_or(0.0), now)).collect()
    }
}
