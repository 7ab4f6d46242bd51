//! From a step's timelines to its counts, metrics, reasons and warnings.

use std::collections::BTreeMap;

use super::counters::{Figures, Source};
use super::validity;
use super::{Distribution, Measured, MetricValue, Seen, Timeline, TokenSource, request::ms};
use crate::clock::Nanos;
use crate::record::model::{Counts, Reason};
use crate::render::{Arrival, Step, Warning};

/// What a step came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Requests by how they ended.
    pub counts: Counts,
    /// By metric id.
    pub metrics: BTreeMap<String, MetricValue>,
    /// Where the metrics that rest on the engine's own words are from, by metric id.
    pub sources: BTreeMap<String, Source>,
    /// What the engine counted over the step, by neutral name.
    pub counters: BTreeMap<String, f64>,
    /// For each place in a draft, from 0, the share of verify steps that accepted it.
    pub acceptance_by_position: Vec<f64>,
    /// Why the numbers may not be used; empty when they may.
    pub reasons: Vec<Reason>,
    /// What a person should know.
    pub warnings: Vec<Warning>,
}

/// Sums a step up, with what was seen of the server beside its answers.
pub fn summarize(measured: &Measured, step: &Step, seen: &Seen) -> Summary {
    let mut metrics: BTreeMap<String, MetricValue> = samples(measured)
        .into_iter()
        .map(|(id, samples)| (id.to_owned(), MetricValue::Distribution(Distribution::of(samples))))
        .collect();
    let number = |value: Option<f64>| value.map_or(MetricValue::Absent(()), MetricValue::Number);
    let rates = Rates::of(measured, step);
    for (id, value) in [
        ("output_tokens_per_s", rates.output),
        ("output_tokens_per_s_plateau", rates.plateau),
        ("decode_tokens_per_s_per_user", rates.decode_per_user),
        ("input_tokens_per_s", rates.input),
        ("total_tokens_per_s", rates.total),
        ("requests_per_s", rates.requests),
    ] {
        metrics.insert(id.to_owned(), number(value));
    }
    if let Some(goodput) = &step.goodput {
        let good = measured.timelines.iter().filter(|timeline| goodput.is_met_by(timeline)).count() as f64;
        let rate = duration_s(measured).map(|seconds| good / seconds);
        metrics.insert("goodput_requests_per_s".to_owned(), number(rate));
    }
    metrics.extend(
        of_machine(measured, seen, rates.output).map(|(id, value)| (id.to_owned(), MetricValue::Number(value))),
    );
    let Figures { metrics: own, sources, counters, by_position, warnings } = Figures::of(measured, step, seen);
    metrics.extend(own.into_iter().map(|(id, value)| (id, MetricValue::Number(value))));
    Summary {
        counts: counts(&measured.timelines),
        reasons: validity::reasons(measured, step, seen),
        warnings: validity::warnings(measured, step, seen, &metrics).into_iter().chain(warnings).collect(),
        metrics,
        sources,
        counters,
        acceptance_by_position: by_position,
    }
}

/// What the server's machine took for it, as far as it was read.
fn of_machine(
    measured: &Measured,
    seen: &Seen,
    output_per_s: Option<f64>,
) -> impl Iterator<Item = (&'static str, f64)> {
    let machine = seen.machine.as_ref();
    let window = window(measured);
    let per_gpu = machine.and_then(|machine| Some(output_per_s? / machine.gpus? as f64));
    let energy_j = machine.zip(window).and_then(|(machine, (first, last))| machine.energy_j(first, last));
    let tokens: f64 = measured.timelines.iter().filter(|one| one.is_ok()).map(|one| one.output_tokens().0 as f64).sum();
    let joules = energy_j.filter(|_| tokens > 0.0).map(|joules| joules / tokens);
    let peak = machine.and_then(|machine| machine.peak_memory_bytes(measured.ended));
    [("output_tokens_per_s_per_gpu", per_gpu), ("joules_per_token", joules), ("peak_memory_bytes", peak)]
        .into_iter()
        .filter_map(|(id, value)| Some((id, value?)))
}

/// Requests by how they ended.
pub fn counts(timelines: &[Timeline]) -> Counts {
    let mut counts = Counts::default();
    for timeline in timelines {
        if timeline.is_ok() {
            counts.ok += 1;
        } else {
            counts.failed += 1;
            *counts.errors.entry(timeline.outcome.word().to_owned()).or_default() += 1;
        }
    }
    counts
}

/// The samples of each distribution, by metric id. Only requests that ended `ok` have samples, but for `connect_ms`.
pub fn samples(measured: &Measured) -> BTreeMap<&'static str, Vec<f64>> {
    let ok: Vec<_> = measured.timelines.iter().filter(|timeline| timeline.is_ok()).collect();
    let each = |value: fn(&Timeline) -> Option<f64>| ok.iter().filter_map(|timeline| value(timeline)).collect();
    let opened = measured.timelines.iter().filter_map(|timeline| timeline.connect);
    let mut samples = BTreeMap::from([
        ("ttft_ms", each(Timeline::ttft_ms)),
        ("ttft_content_ms", each(Timeline::ttft_content_ms)),
        ("first_chunk_ms", each(|timeline| timeline.after_sent_ms(timeline.first_chunk))),
        ("tpot_ms", each(Timeline::tpot_ms)),
        ("e2e_ms", each(Timeline::e2e_ms)),
        ("queued_ms", each(Timeline::queued_ms)),
        ("tokens_per_chunk", each(Timeline::tokens_per_chunk)),
        ("itl_ms", ok.iter().filter_map(|timeline| timeline.itl_ms()).flatten().collect()),
        ("chunk_gap_ms", ok.iter().flat_map(|timeline| timeline.chunk_gaps_ms()).collect()),
        ("connect_ms", measured.connects.iter().copied().chain(opened).map(ms).collect()),
    ]);
    // In a closed loop a request is due when its slot is free, which depends on the server: nothing would be corrected.
    if measured.scheduled {
        samples.insert("ttft_from_due_ms", each(Timeline::ttft_from_due_ms));
        samples.insert("e2e_from_due_ms", each(Timeline::e2e_from_due_ms));
    }
    samples
}

/// The numbers of a step that are per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    output: Option<f64>,
    plateau: Option<f64>,
    decode_per_user: Option<f64>,
    input: Option<f64>,
    total: Option<f64>,
    requests: Option<f64>,
}

impl Rates {
    pub(super) fn of(measured: &Measured, step: &Step) -> Self {
        let ok: Vec<_> = measured.timelines.iter().filter(|timeline| timeline.is_ok()).collect();
        let Some(seconds) = duration_s(measured) else { return Rates::default() };
        // As floats from the first: a server may say any number, and a sum that wraps would be a small one.
        let output: f64 = ok.iter().map(|timeline| timeline.output_tokens().0 as f64).sum();
        // A sum that leaves requests out would be no rate of the run.
        let input: Option<f64> = ok.iter().map(|timeline| Some(timeline.input_tokens()? as f64)).sum();
        let (span, decoded) = ok.iter().filter_map(|timeline| timeline.decoding()).fold((0.0, 0.0), add);
        Rates {
            output: Some(output / seconds),
            plateau: plateau(measured, step).map(|(tokens, seconds)| tokens / seconds),
            decode_per_user: (span > 0.0).then(|| decoded * 1000.0 / span),
            input: input.map(|tokens| tokens / seconds),
            total: input.map(|tokens| (tokens + output) / seconds),
            requests: Some(ok.len() as f64 / seconds),
        }
    }
}

fn add(sum: (f64, f64), one: (f64, u64)) -> (f64, f64) {
    (sum.0 + one.0, sum.1 + one.1 as f64)
}

/// From the first sending to the last generated token of a request that counts; `None` without one.
pub(super) fn duration_s(measured: &Measured) -> Option<f64> {
    window(measured).map(|(first, last)| (last - first) as f64 / 1e9)
}

/// The two moments that a step's rates lie between; `None` where nothing lies there.
fn window(measured: &Measured) -> Option<(Nanos, Nanos)> {
    let first = measured.timelines.iter().filter_map(|timeline| timeline.sent).min()?;
    let ok = measured.timelines.iter().filter(|timeline| timeline.is_ok());
    let last = ok.filter_map(|timeline| timeline.chunks.last()).map(|chunk| chunk.at).max()?;
    (last > first).then_some((first, last))
}

/// The span in which as many requests as asked for were in flight: from the first moment to the last.
pub(super) fn full_load(measured: &Measured, step: &Step) -> Option<(Nanos, Nanos)> {
    let Arrival::Closed { concurrency } = step.load.arrival else { return None };
    let mut changes: Vec<(Nanos, i64)> = Vec::new();
    for timeline in &measured.timelines {
        if let (Some(sent), Some(done)) = (timeline.sent, timeline.done) {
            changes.extend([(sent, 1), (done, -1)]);
        }
    }
    // At one moment those that go are counted before those that come.
    changes.sort_unstable();
    let (mut in_flight, mut begin, mut end) = (0, None, None);
    for (at, change) in changes {
        if change < 0 && in_flight == i64::from(concurrency) {
            end = Some(at);
        }
        in_flight += change;
        if change > 0 && in_flight == i64::from(concurrency) {
            begin.get_or_insert(at);
        }
    }
    begin.zip(end).filter(|(begin, end)| begin < end)
}

/// Tokens generated while the load was full, and the seconds of it.
fn plateau(measured: &Measured, step: &Step) -> Option<(f64, f64)> {
    let (begin, end) = full_load(measured, step)?;
    let mut tokens = 0.0;
    for timeline in measured.timelines.iter().filter(|timeline| timeline.is_ok()) {
        let each = timeline.output_tokens().0 as f64 / timeline.chunks.len() as f64;
        let exact = timeline.tokens_exact();
        let within = timeline.chunks.iter().filter(|chunk| begin < chunk.at && chunk.at <= end);
        tokens += within.map(|chunk| chunk.tokens.filter(|_| exact).map_or(each, f64::from)).sum::<f64>();
    }
    Some((tokens, (end - begin) as f64 / 1e9))
}

/// How many of the requests that count have their tokens from each source.
pub(super) fn sources(measured: &Measured) -> BTreeMap<&'static str, u64> {
    let mut sources = BTreeMap::new();
    for timeline in measured.timelines.iter().filter(|timeline| timeline.is_ok()) {
        let word = match timeline.output_tokens().1 {
            Some(TokenSource::Usage) => "usage",
            Some(TokenSource::Engine) => "engine",
            Some(TokenSource::Tokenizer) => "tokenizer",
            Some(TokenSource::Chunks) | None => "chunks",
        };
        *sources.entry(word).or_default() += 1;
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::{closed, ok, step};
    use crate::measure::{Outcome, metric};

    fn number(summary: &Summary, id: &str) -> Option<f64> {
        match summary.metrics.get(id) {
            Some(MetricValue::Number(value)) => Some(*value),
            Some(MetricValue::Absent(())) => None,
            other => panic!("{id} is {other:?}"),
        }
    }

    #[test]
    fn failures_are_counted_and_enter_nothing_else() {
        // Sent, first, last (ms), tokens; one fails after 1,990 ms without a token.
        let mut timelines = vec![ok(0, 100, 1000, 10), ok(0, 120, 1120, 11), ok(1000, 1110, 2000, 9)];
        let failed =
            Timeline { sent: Some(0), done: Some(1_990_000_000), outcome: Outcome::TimedOut, ..Timeline::default() };
        timelines.push(failed);
        let summary = summarize(&Measured { timelines, ..Measured::default() }, &step(closed(3)), &Seen::default());
        assert_eq!((summary.counts.ok, summary.counts.failed), (3, 1));
        assert_eq!(summary.counts.errors, BTreeMap::from([("timed_out".to_owned(), 1)]));
        assert_eq!(number(&summary, "output_tokens_per_s"), Some(15.0));
        assert_eq!(number(&summary, "requests_per_s"), Some(1.5));
        let MetricValue::Distribution(ttft) = &summary.metrics["ttft_ms"] else { panic!() };
        assert_eq!((ttft.samples, ttft.mean, ttft.p50, ttft.max), (3, Some(110.0), Some(110.0), Some(120.0)));
        let MetricValue::Distribution(tpot) = &summary.metrics["tpot_ms"] else { panic!() };
        assert_eq!(tpot.mean, Some(103.75));
    }

    #[test]
    fn rates_are_over_the_whole_run_or_the_full_load() {
        // Two at a time: 0 to 1,000 and 0 to 400 ms, then 400 to 800, then nothing: full from 0 to 800 ms.
        let timelines = vec![ok(0, 500, 1000, 2), ok(0, 200, 400, 2), ok(400, 600, 800, 2)];
        let measured = Measured { timelines, ..Measured::default() };
        let summary = summarize(&measured, &step(closed(2)), &Seen::default());
        assert_eq!(number(&summary, "output_tokens_per_s"), Some(6.0));
        // Tokens at 500, 200, 400, 600 and 800 ms: five in 0.8 s.
        assert_eq!(number(&summary, "output_tokens_per_s_plateau"), Some(6.25));
        assert_eq!(
            number(&summarize(&measured, &step(closed(3)), &Seen::default()), "output_tokens_per_s_plateau"),
            None
        );
        // One token each after the first: 500 + 200 + 200 ms for 3 tokens.
        assert!((number(&summary, "decode_tokens_per_s_per_user").unwrap() - 3000.0 / 900.0).abs() < 1e-9);
        // Each prompt had 7 tokens.
        assert_eq!(
            (number(&summary, "input_tokens_per_s"), number(&summary, "total_tokens_per_s")),
            (Some(21.0), Some(27.0))
        );
    }

    #[test]
    fn goodput_counts_the_requests_that_met_every_limit_over_the_whole_run() {
        // TTFT 100, 120 and 110 ms; E2E 1,000, 1,120 and 1,000 ms; 2 s in all.
        let timelines = vec![ok(0, 100, 1000, 10), ok(0, 120, 1120, 11), ok(1000, 1110, 2000, 9)];
        let measured = Measured { timelines, ..Measured::default() };
        let limits = |limits: &[(&str, f64)]| {
            let limits = limits.iter().map(|(id, limit)| ((*id).to_owned(), *limit)).collect();
            let step = Step { goodput: Some(crate::measure::Goodput(limits)), ..step(closed(3)) };
            number(&summarize(&measured, &step, &Seen::default()), "goodput_requests_per_s")
        };
        assert_eq!(limits(&[("ttft_ms", 110.0)]), Some(1.0));
        assert_eq!(limits(&[("ttft_ms", 105.0), ("e2e_ms", 1000.0)]), Some(0.5));
        assert_eq!(limits(&[("ttft_ms", 1.0)]), Some(0.0), "none met them, which is known");
        assert!(
            !summarize(&measured, &step(closed(3)), &Seen::default()).metrics.contains_key("goodput_requests_per_s")
        );
    }

    #[test]
    fn what_is_not_known_is_absent_never_zero() {
        let mut one = ok(0, 100, 200, 2);
        one.usage = None;
        let summary = summarize(
            &Measured { timelines: vec![one, ok(0, 1, 2, 2)], ..Measured::default() },
            &step(closed(1)),
            &Seen::default(),
        );
        assert_eq!(number(&summary, "input_tokens_per_s"), None);
        let nothing = summarize(&Measured::default(), &step(closed(1)), &Seen::default());
        assert_eq!(number(&nothing, "output_tokens_per_s"), None);
        let json = serde_json::to_value(&nothing.metrics).unwrap();
        assert_eq!(json["requests_per_s"], serde_json::Value::Null);
        assert_eq!(json["ttft_ms"]["p50"], serde_json::Value::Null);
        assert_eq!(json["ttft_ms"]["samples"], 0);
    }

    #[test]
    fn every_id_is_in_the_table() {
        let summary = summarize(&Measured::default(), &step(closed(1)), &Seen::default());
        for id in summary.metrics.keys() {
            assert!(metric(id).is_some(), "{id}");
        }
    }
}
