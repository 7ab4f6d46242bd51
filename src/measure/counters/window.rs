//! The engine's counters between two readings.

use std::collections::BTreeMap;

use super::reading::Since;
use super::{Counter, CounterRules, Reading};
use crate::clock::Nanos;

/// The engine's counters over the measured part of a step, and its gauges during it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// When the reading before was asked for, on the load's clock,
    pub began: Nanos,
    /// and the one after.
    pub ended: Nanos,
    /// What was counted between them.
    pub counted: BTreeMap<Counter, f64>,
    /// How far each of those may be off, in either direction, where the engine did not print all digits.
    pub off: BTreeMap<Counter, f64>,
    /// Drafted tokens accepted, by their place in the draft.
    pub by_position: Vec<f64>,
    /// What was shown in between.
    pub gauges: BTreeMap<Counter, Gauge>,
    /// Counters that went backwards, by name: another server answered than before, or it was started again. Nothing is
    /// counted then.
    pub restarted: Vec<String>,
    /// The longest that an answer took while the load was on, in nanoseconds.
    pub slowest: Nanos,
}

/// A gauge over the samples that were taken of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauge {
    /// How many samples.
    pub samples: u64,
    /// Their mean.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// The share of them that was above 0.
    pub above_zero_ratio: f64,
}

impl Window {
    /// From a reading before, those during and one after.
    pub fn between(before: &Reading, during: &[Reading], after: &Reading, rules: &CounterRules) -> Self {
        let mut window = Window { began: before.at, ended: after.at, ..Window::default() };
        for (counter, _) in rules.each().filter(|(counter, _)| !counter.is_gauge()) {
            if counter == Counter::AcceptedByPosition {
                continue;
            }
            let Some(Since { was, now, plain, off }) = after.since(before, counter, rules) else { continue };
            if now >= was {
                window.counted.insert(counter, now - was);
                if off > 0.0 {
                    window.off.insert(counter, off);
                }
            } else if plain {
                window.restarted.push(counter.word().to_owned());
            }
            // What is reckoned from several and went back (a gauge among them changed) is not known.
        }
        window.by_position =
            after.positions_since(before, rules).iter().map(|(was, now)| (now - was).max(0.0)).collect();
        let starts = [before, after].map(|reading| reading.value(Counter::StartedAt, rules));
        if let [Some(was), Some(now)] = starts
            && (now - was).abs() > 1.0
        {
            window.restarted.push(Counter::StartedAt.word().to_owned());
        }
        if !window.restarted.is_empty() {
            window.counted.clear();
            window.off.clear();
            window.by_position.clear();
        }
        window.gauges = gauges(during, rules);
        window.slowest = during.iter().map(|reading| reading.took).max().unwrap_or(0);
        window
    }

    /// What was counted.
    pub fn counted(&self, counter: Counter) -> Option<f64> {
        self.counted.get(&counter).copied()
    }

    /// How far a count may be off, in either direction, for the digits that the engine printed. 0: not at all.
    pub fn off(&self, counter: Counter) -> f64 {
        self.off.get(&counter).copied().unwrap_or(0.0)
    }

    /// A gauge.
    pub fn gauge(&self, counter: Counter) -> Option<Gauge> {
        self.gauges.get(&counter).copied()
    }
}

fn gauges(during: &[Reading], rules: &CounterRules) -> BTreeMap<Counter, Gauge> {
    let mut samples: BTreeMap<Counter, Vec<f64>> = BTreeMap::new();
    for reading in during {
        for (counter, value) in reading.gauges(rules) {
            samples.entry(counter).or_default().push(value);
        }
    }
    // When the server started is no gauge of the load.
    samples.remove(&Counter::StartedAt);
    samples.into_iter().map(|(counter, values)| (counter, Gauge::of(counter, &values))).collect()
}

impl Gauge {
    fn of(counter: Counter, values: &[f64]) -> Self {
        // An acceptance length of 0 is none: SGLang shows it without speculation, and before its first interval is over.
        let is_length = matches!(counter, Counter::IntervalAcceptanceLength | Counter::AverageAcceptanceLength);
        let is_none = |value: &f64| is_length && *value <= 0.0;
        let values: Vec<f64> = values.iter().copied().filter(|value| !is_none(value)).collect();
        let count = values.len() as f64;
        if values.is_empty() {
            return Gauge::default();
        }
        Gauge {
            samples: values.len() as u64,
            mean: values.iter().sum::<f64>() / count,
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            above_zero_ratio: values.iter().filter(|value| **value > 0.0).count() as f64 / count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::counters::Page;

    fn rules() -> CounterRules {
        serde_yaml::from_str(
            "steps: s_total\noutput_tokens: o_total\nrequest_steps: avg * s_total\naccepted_tokens: a_total\n\
             accepted_by_position: p_total by position\nrunning_requests: r\ninterval_acceptance_length: l\nstarted_at: t\n",
        )
        .unwrap()
    }

    fn reading(at: Nanos, text: &str) -> Reading {
        Reading::of(Page::read(text), &rules(), at, at / 10).unwrap()
    }

    #[test]
    fn a_window_is_the_difference_of_its_ends() {
        let before = reading(10, "s_total 100\navg 2\np_total{position=\"0\"} 4\nt 5\n");
        let during = [reading(20, "s_total 150\nr 3\nl 0"), reading(30, "s_total 150\nr 0\nl 2.5")];
        let after =
            reading(40, "s_total 200\navg 2.5\na_total 7\np_total{position=\"0\"} 9\np_total{position=\"1\"} 2\nt 5\n");
        let window = Window::between(&before, &during, &after, &rules());
        assert_eq!((window.began, window.ended, window.slowest), (10, 40, 3));
        assert_eq!(window.counted(Counter::Steps), Some(100.0));
        assert_eq!(window.counted(Counter::RequestSteps), Some(300.0));
        assert_eq!(window.counted(Counter::AcceptedTokens), Some(7.0), "was not on the page before it first counted");
        assert_eq!(window.counted(Counter::OutputTokens), None, "is not on the page at all");
        assert_eq!(window.by_position, [5.0, 2.0]);
        let running = window.gauge(Counter::RunningRequests).unwrap();
        assert_eq!((running.samples, running.mean, running.max, running.above_zero_ratio), (2, 1.5, 3.0, 0.5));
        assert_eq!(window.gauge(Counter::IntervalAcceptanceLength).unwrap().mean, 2.5);
        assert!(window.restarted.is_empty() && window.gauge(Counter::StartedAt).is_none());
    }

    #[test]
    fn digits_that_were_not_printed_make_a_count_uncertain() {
        let window =
            Window::between(&reading(1, "o_total 1.23456e+06"), &[], &reading(2, "o_total 1.23472e+06"), &rules());
        assert_eq!((window.counted(Counter::OutputTokens), window.off(Counter::OutputTokens)), (Some(160.0), 10.0));
        let exact =
            Window::between(&reading(1, "o_total 1.234561e+06"), &[], &reading(2, "o_total 1.234722e+06"), &rules());
        assert_eq!((exact.counted(Counter::OutputTokens), exact.off(Counter::OutputTokens)), (Some(161.0), 0.0));
    }

    #[test]
    fn a_counter_that_went_backwards_is_said_and_nothing_is_counted() {
        let window =
            Window::between(&reading(1, "s_total 100\no_total 5"), &[], &reading(2, "s_total 20\no_total 9"), &rules());
        assert_eq!(window.restarted, ["steps"]);
        assert!(window.counted.is_empty());
        let again = Window::between(&reading(1, "s_total 1\nt 100"), &[], &reading(2, "s_total 9\nt 160"), &rules());
        assert_eq!(again.restarted, ["started_at"], "started again, and counted further than before");
    }

    #[test]
    fn a_page_of_something_else_is_no_reading() {
        assert_eq!(Reading::of(Page::read("http_requests_total 5\n<html>"), &rules(), 0, 0), None);
    }
}
