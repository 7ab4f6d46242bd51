//! When the numbers of a step may not be used. One list, each reason with its limit: [`table`].

mod answers;
mod server;
pub mod table;
mod tokenizer;

use std::collections::BTreeMap;

use super::summary::{counts, duration_s, full_load, sources};
use super::{Measured, MetricValue, Outcome, Percentile, Seen, Timeline};
use crate::record::model::Reason;
use crate::render::{Arrival, Step, Warning};
use answers::lengths;
use table::{
    BUSY_OF_S, BUSY_RATIO_LIMIT, FAILED_RATIO_LIMIT, FULL_LOAD_RATIO, LATE_MS, LATE_OF_E2E, LATE_RATIO_LIMIT,
    LEAST_FULL_LOAD_RATIO,
};
pub use table::{LEAST_REQUESTS, RUN_REASONS, Rule, STEP_REASONS};

/// Why the numbers may not be used.
pub fn reasons(measured: &Measured, step: &Step, seen: &Seen) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if measured.interrupted {
        reasons.push(Reason::new("interrupted", "it was interrupted before it was done"));
    }
    if let Some(words) = &measured.gave_up {
        reasons.push(Reason::new("gave_up", format!("stopped at the first answer: {words}")));
    }
    let counts = counts(&measured.timelines);
    if counts.ok == 0 {
        let mut text = format!("no request of {} succeeded", counts.failed);
        if let Some((word, example)) = commonest_failure(measured) {
            text.push_str(&format!("; most often {word}: {example}"));
        }
        reasons.push(Reason::new("no_successful_request", text));
        return reasons;
    }
    reasons.extend(failures(measured, counts.ok));
    reasons.extend(answers::reasons(measured, step));
    reasons.extend(client_late(measured));
    reasons.extend(client_at_ceiling(measured));
    reasons.extend(
        short_plateau(measured, step)
            .and_then(|(ratio, text)| (ratio < LEAST_FULL_LOAD_RATIO).then(|| Reason::new("short_plateau", text))),
    );
    if counts.ok < LEAST_REQUESTS {
        let text = format!("{} requests succeeded, at least {LEAST_REQUESTS} are needed", counts.ok);
        reasons.push(Reason::new("too_few_samples", text));
    }
    reasons.extend(server::reasons(measured, step, seen));
    debug_assert!(
        reasons.iter().all(|reason| STEP_REASONS.iter().any(|rule| rule.id == reason.id)),
        "{} is unlisted",
        step.name
    );
    reasons
}

/// Requests that failed, and those that did not end.
fn failures(measured: &Measured, ok: u64) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let failures = judged_failures(measured);
    let judged = ok + failures;
    if share(failures, judged) > FAILED_RATIO_LIMIT {
        let mut text = format!("{failures} of {judged} requests failed, more than {} %", FAILED_RATIO_LIMIT * 100.0);
        if let Some((word, example)) = commonest_failure(measured) {
            text.push_str(&format!("; most often {word}: {example}"));
        }
        reasons.push(Reason::new("failures", text));
    }
    let cut = measured.outlived_grace;
    if share(cut, judged + cut) > FAILED_RATIO_LIMIT {
        let text = format!(
            "{cut} of {} requests were still running when the grace was over, more than {} %",
            judged + cut,
            FAILED_RATIO_LIMIT * 100.0
        );
        reasons.push(Reason::new("cut_off", text));
    }
    reasons
}

/// Requests that this client sent late. One that had to open a connection first was late for the server's sake; where
/// there is a schedule, how late each was taken up is told apart from that.
fn client_late(measured: &Measured) -> Option<Reason> {
    let e2e = super::Distribution::of(answers::ok(measured).filter_map(Timeline::e2e_ms).collect()).p50?;
    let limit = LATE_MS.max(LATE_OF_E2E * e2e);
    let sent = measured.timelines.iter().filter(|timeline| timeline.connect.is_none());
    let queued: Vec<f64> = sent.filter_map(Timeline::queued_ms).collect();
    let taken_up: Vec<f64> = measured.late.iter().map(|late| *late as f64 / 1e6).collect();
    let taken_up = Some(taken_up).filter(|_| measured.scheduled);
    taken_up.into_iter().chain([queued]).find_map(|waits| {
        let late = waits.iter().filter(|ms| **ms > limit).count() as u64;
        let text = format!(
            "{late} of {} requests were sent more than {limit:.0} ms after they were due: this client, or its machine, did not keep up",
            waits.len()
        );
        (share(late, waits.len() as u64) > LATE_RATIO_LIMIT).then(|| Reason::new("client_late", text))
    })
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Failures that are the server's or the network's. What orch itself cut off is not.
fn judged_failures(measured: &Measured) -> u64 {
    let failed = |timeline: &&Timeline| !timeline.is_ok() && timeline.outcome != Outcome::Cancelled;
    measured.timelines.iter().filter(failed).count() as u64
}

/// The error kind that came most often, with the words of one of its requests.
fn commonest_failure(measured: &Measured) -> Option<(&'static str, String)> {
    let mut kinds: BTreeMap<Outcome, (u64, &Timeline)> = BTreeMap::new();
    for timeline in measured.timelines.iter().filter(|timeline| !timeline.is_ok()) {
        kinds.entry(timeline.outcome).or_insert((0, timeline)).0 += 1;
    }
    let (outcome, (_, timeline)) = kinds.into_iter().max_by_key(|(_, (count, _))| *count)?;
    let status = timeline.http_status.filter(|status| !(200..300).contains(status));
    let status = status.map(|status| format!("status {status}, ")).unwrap_or_default();
    Some((
        outcome.word(),
        format!("{status}{}", timeline.error.as_deref().filter(|words| !words.is_empty()).unwrap_or("without words")),
    ))
}

/// What a person should know about the numbers.
pub fn warnings(
    measured: &Measured,
    step: &Step,
    seen: &Seen,
    metrics: &BTreeMap<String, MetricValue>,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let counts = counts(&measured.timelines);
    let failures = judged_failures(measured);
    if failures > 0 && share(failures, counts.ok + failures) <= FAILED_RATIO_LIMIT {
        let text = format!("{failures} of {} requests failed; they are in no number", counts.ok + failures);
        warnings.push(Warning::new("some_failed", text));
    }
    let cancelled = counts.errors.get(Outcome::Cancelled.word()).copied().unwrap_or(0);
    if cancelled > 0 {
        let text =
            format!("{cancelled} requests were still running when it ended and were cut off; they are in no number");
        warnings.push(Warning::new("cut_off", text));
    }
    if counts.ok == 0 {
        return warnings;
    }
    warnings.extend(about_tokens(measured, counts.ok));
    if let Some(MetricValue::Distribution(ttft)) = metrics.get("ttft_ms")
        && !ttft.carries(Percentile::P99)
    {
        let carried = ttft.enough.map_or("no percentile", Percentile::word);
        let text = format!("{} requests carry {carried} and nothing above it", ttft.samples);
        warnings.push(Warning::new("percentiles_not_carried", text));
    }
    warnings.extend(about_transport(measured));
    let reopened = measured.timelines.iter().filter(|timeline| timeline.connect.is_some()).count();
    // An open loop opens connections as its requests need them, whatever the server does.
    if reopened > 0 && !measured.scheduled {
        let text = format!("{reopened} requests had to open a connection: the server does not keep them");
        warnings.push(Warning::new("connections_not_kept", text));
    }
    warnings.extend(short_plateau(measured, step).and_then(|(ratio, text)| {
        (LEAST_FULL_LOAD_RATIO..FULL_LOAD_RATIO).contains(&ratio).then(|| Warning::new("short_plateau", text))
    }));
    warnings.extend(server::warnings(measured, step, seen));
    warnings
}

/// What happened on the way, and is in no metric of its own.
fn about_transport(measured: &Measured) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let again = measured.timelines.iter().filter(|timeline| timeline.attempts > 1).count();
    if again > 0 {
        let text = format!("{again} requests were sent more than once: their latencies count from the first sending");
        warnings.push(Warning::new("sent_again", text));
    }
    let inputs = measured.timelines.iter().filter(|timeline| timeline.is_ok());
    let inputs = inputs.filter_map(|timeline| Some((timeline.wanted_input_tokens?, timeline.input_tokens())));
    let (wanted, came): (Vec<u64>, Vec<Option<u64>>) = inputs.unzip();
    let off = wanted.iter().zip(&came).find(|(wanted, came)| came.is_some_and(|came| came != **wanted));
    if let Some((wanted, Some(example))) = off {
        let text =
            format!("prompts do not have the length that was asked for, such as {example} tokens instead of {wanted}");
        warnings.push(Warning::new("input_length_off", text));
    }
    if !came.is_empty() && came.iter().all(Option::is_none) {
        let text = "no answer says how many tokens its prompt had: the length of prompts is not checked";
        warnings.push(Warning::new("input_length_not_checked", text));
    }
    let unended = measured.timelines.iter().filter(|timeline| timeline.transfer_unended).count();
    if unended > 0 {
        let text = format!(
            "{unended} answers were complete and their transfer did not end: each held its place for 20 ms more, which makes the throughput of a closed loop too low"
        );
        warnings.push(Warning::new("transfers_unended", text));
    }
    warnings
}

fn about_tokens(measured: &Measured, ok: u64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let by_chunks = sources(measured).get("chunks").copied().unwrap_or(0);
    if by_chunks > 0 {
        let text = format!(
            "{by_chunks} of {ok} answers came without a count of tokens: chunks were counted, which is an estimate"
        );
        warnings.push(Warning::new("tokens_estimated", text));
    }
    let by_texts = sources(measured).get("tokenizer").copied().unwrap_or(0);
    if by_texts > 0 {
        let text = format!(
            "{by_texts} of {ok} answers came without a count of tokens: their texts were counted by the server's own tokenizer, which is an estimate"
        );
        warnings.push(Warning::new("tokens_estimated", text));
    }
    let unchecked = lengths(measured).filter(|(_, came)| came.is_none()).count();
    if unchecked > 0 {
        let text = format!(
            "{unchecked} of {ok} answers came without a count of tokens: whether they have the length that was asked for is not known"
        );
        warnings.push(Warning::new("length_not_checked", text));
    }
    let unknown = answers::ok(measured).filter(|timeline| !timeline.tokens_exact()).count();
    if unknown > 0 {
        let text = format!(
            "{unknown} of {ok} answers do not tell the tokens of each chunk: tpot_ms is an estimate and itl_ms leaves them out"
        );
        warnings.push(Warning::new("chunk_tokens_unknown", text));
    }
    warnings
}

/// A client that has no time left reads late whatever the server does.
fn client_at_ceiling(measured: &Measured) -> Option<Reason> {
    let seconds = measured.ended.saturating_sub(measured.began) as f64 / 1e9;
    let busy = measured.cpu? as f64 / 1e9 / seconds;
    let text = format!(
        "this client was busy for {:.0} % of the {seconds:.1} s: it, and not the server, was measured",
        busy * 100.0
    );
    (seconds >= BUSY_OF_S && busy > BUSY_RATIO_LIMIT).then(|| Reason::new("client_at_ceiling", text))
}

/// The share of the run under full load at a concurrency above 1, and how to say it.
fn short_plateau(measured: &Measured, step: &Step) -> Option<(f64, String)> {
    let Arrival::Closed { concurrency: 2.. } = step.load.arrival else { return None };
    let whole = duration_s(measured)?;
    let full = full_load(measured, step).map_or(0.0, |(begin, end)| (end - begin) as f64 / 1e9);
    let text =
        format!("the load was full for {full:.1} s of {whole:.1} s: more requests would make the plateau longer");
    Some((full / whole, text))
}

#[cfg(test)]
mod tests;
