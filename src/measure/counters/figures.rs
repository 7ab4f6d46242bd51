//! Everything that follows from what the engine says of itself: metrics with their sources, raw counts, warnings.

use std::collections::BTreeMap;

use super::acceptance::Acceptance;
use super::throughput::Throughput;
use super::{Counter, Source, Window, text};
use crate::measure::{Measured, Seen};
use crate::render::{Step, Warning};

/// Reading the counters may take so long, in nanoseconds, before it is worth a word.
const SLOW: u64 = 1_000_000_000;

/// What follows from the engine's own words. A figure whose source is missing is not there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// By metric id.
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Where each of them is from.
    pub(crate) sources: BTreeMap<String, Source>,
    /// The counts themselves, by neutral name.
    pub(crate) counters: BTreeMap<String, f64>,
    /// For each place in the draft, the share of verify steps that accepted it.
    pub(crate) by_position: Vec<f64>,
    /// What a person should know.
    pub(crate) warnings: Vec<Warning>,
}

impl Figures {
    pub(crate) fn of(measured: &Measured, step: &Step, seen: &Seen) -> Self {
        let mut figures = Figures::default();
        let acceptance = Acceptance::of(measured, seen);
        if let Some(window) = &seen.counters {
            figures.of_window(window);
            figures.of_throughput(Throughput::of(measured, window, &acceptance));
        }
        if let Some(log) = &seen.log {
            figures.put_if_absent("in_graph_ratio", log.in_graph_ratio().map(|ratio| (ratio, Source::Log)));
            figures.put_if_absent("waiting_ratio", log.queued_ratio().map(|ratio| (ratio, Source::Log)));
        }
        figures.put(
            "cache_hit_ratio",
            seen.counters.as_ref().and_then(cache_hits).or_else(|| cached_by_requests(measured)),
        );
        figures.of_acceptance(&acceptance);
        if acceptance.is_known() || seen.speculates {
            figures.warnings.extend(text::warnings(step));
        }
        let answered = measured.timelines.iter().any(|timeline| timeline.is_ok());
        if seen.speculates && !acceptance.is_known() && answered {
            let text = format!(
                "`{}`: the server was told to speculate, and nothing says that a draft was verified",
                step.name
            );
            figures.warnings.push(Warning::new("acceptance_unknown", text));
        }
        figures
    }

    fn put(&mut self, id: &str, value: Option<(f64, Source)>) {
        if let Some((value, source)) = value.filter(|(value, _)| value.is_finite()) {
            self.metrics.insert(id.to_owned(), value);
            self.sources.insert(id.to_owned(), source);
        }
    }

    fn put_if_absent(&mut self, id: &str, value: Option<(f64, Source)>) {
        if !self.metrics.contains_key(id) {
            self.put(id, value);
        }
    }

    fn of_window(&mut self, window: &Window) {
        let counted = |counter| window.counted(counter);
        for (counter, count) in &window.counted {
            self.counters.insert(counter.word().to_owned(), *count);
        }
        for (place, accepted) in window.by_position.iter().enumerate() {
            self.counters.insert(format!("{}.{place}", Counter::AcceptedByPosition.word()), *accepted);
        }
        for (counter, gauge) in window.gauges.iter().filter(|(_, gauge)| gauge.samples > 0) {
            self.counters.insert(format!("{}.mean", counter.word()), gauge.mean);
            self.counters.insert(format!("{}.max", counter.word()), gauge.max);
        }
        // One that never counted is not on the page.
        let (graph, eager) = (counted(Counter::GraphSteps), counted(Counter::EagerSteps));
        let decoded = graph.unwrap_or(0.0) + eager.unwrap_or(0.0);
        let in_graph = (decoded > 0.0).then(|| (graph.unwrap_or(0.0) / decoded, Source::Counters));
        self.put("in_graph_ratio", in_graph);
        let sampled = |counter| window.gauge(counter).filter(|gauge| gauge.samples > 0);
        let waiting = sampled(Counter::WaitingRequests);
        self.put("waiting_ratio", waiting.map(|waiting| (waiting.above_zero_ratio, Source::Sampled)));
        let kv = sampled(Counter::KvUsageRatio);
        self.put("kv_peak_ratio", kv.map(|kv| (kv.max, Source::Sampled)));
        let queue = counted(Counter::QueueSeconds).zip(counted(Counter::QueuedRequests).filter(|count| *count > 0.0));
        self.put("engine_queue_ms", queue.map(|(seconds, requests)| (seconds * 1000.0 / requests, Source::Counters)));
        self.put("preemptions", counted(Counter::Preemptions).map(|count| (count, Source::Counters)));
        if window.slowest > SLOW {
            let text = format!(
                "reading the engine's counters took up to {:.1} s while the load was on: they are read less often then, and reading them may have slowed the server",
                window.slowest as f64 / 1e9
            );
            self.warnings.push(Warning::new("counters_slow", text));
        }
    }

    fn of_throughput(&mut self, throughput: Throughput) {
        let sources = [throughput.steps_per_s, throughput.requests_per_step, throughput.tokens_per_request_step];
        let worst = sources.iter().flatten().map(|(_, source)| *source).max().unwrap_or(Source::Counters);
        for (id, value) in ["steps_per_s", "requests_per_step", "tokens_per_request_step"].into_iter().zip(sources) {
            self.put(id, value);
        }
        self.put("closure_ratio", throughput.closure.map(|closure| (closure, worst)));
        self.warnings.extend(throughput.warning);
    }

    fn of_acceptance(&mut self, acceptance: &Acceptance) {
        if !acceptance.is_known() {
            return;
        }
        self.put("acceptance_length", acceptance.length);
        self.put("acceptance_ratio", acceptance.ratio);
        let counts = [
            (Counter::AcceptedTokens, acceptance.accepted),
            (Counter::DraftTokens, acceptance.drafted),
            (Counter::VerifySteps, acceptance.verify_steps),
        ];
        for (counter, count) in counts {
            if let Some(count) = count {
                self.counters.entry(counter.word().to_owned()).or_insert(count);
            }
        }
        self.by_position.clone_from(&acceptance.by_position);
    }
}

fn cache_hits(window: &Window) -> Option<(f64, Source)> {
    let prompt = window.counted(Counter::PromptTokens).filter(|count| *count > 0.0)?;
    Some((window.counted(Counter::CachedPromptTokens)? / prompt, Source::Counters))
}

/// Where every answer says how much of its prompt was cached.
fn cached_by_requests(measured: &Measured) -> Option<(f64, Source)> {
    let ok = || measured.timelines.iter().filter(|timeline| timeline.is_ok());
    let cached: f64 = ok().map(|timeline| Some(timeline.cached_tokens()? as f64)).sum::<Option<f64>>()?;
    let prompt: f64 = ok().map(|timeline| Some(timeline.input_tokens()? as f64)).sum::<Option<f64>>()?;
    (prompt > 0.0).then(|| (cached / prompt, Source::Requests))
}
