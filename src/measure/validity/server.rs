//! What was seen of the server beside its answers: its counters, its log, and what it can hold.

use super::answers::{most_tokens, ok};
use super::share;
use super::table::{CACHED_RATIO, CACHED_RATIO_LIMIT, COUNTS_RATIO_LIMIT, RETRACTED_RATIO_LIMIT};
use crate::measure::counters::Counter;
use crate::measure::{Measured, Seen, Timeline, TokenSource};
use crate::record::model::Reason;
use crate::render::{Step, Warning};

pub(super) fn reasons(measured: &Measured, step: &Step, seen: &Seen) -> Vec<Reason> {
    let mut reasons = Vec::new();
    reasons.extend(counts_disagree(measured, step, seen));
    reasons.extend(
        cached(measured, step, seen)
            .and_then(|(ratio, text)| (ratio > CACHED_RATIO_LIMIT).then(|| Reason::new("cache_hits", text))),
    );
    reasons.extend(
        retracted(measured, seen)
            .and_then(|(ratio, text)| (ratio > RETRACTED_RATIO_LIMIT).then(|| Reason::new("retractions", text))),
    );
    reasons.extend(seen.capacity.iter().flat_map(|capacity| capacity.reasons(measured, step, seen)));
    reasons.extend(restarted(seen));
    reasons.extend(compiled(seen));
    reasons
}

pub(super) fn warnings(measured: &Measured, step: &Step, seen: &Seen) -> Vec<Warning> {
    let some_cached = cached(measured, step, seen)
        .filter(|(ratio, _)| (CACHED_RATIO..=CACHED_RATIO_LIMIT).contains(ratio) && *ratio > CACHED_RATIO)
        .map(|(_, text)| Warning::new("some_cache_hits", text));
    let some_retracted = retracted(measured, seen)
        .filter(|(ratio, _)| *ratio > 0.0 && *ratio <= RETRACTED_RATIO_LIMIT)
        .map(|(_, text)| Warning::new("some_retracted", text));
    some_cached.into_iter().chain(some_retracted).collect()
}

/// The engine's counter of generated tokens beside the sum over the answers.
fn counts_disagree(measured: &Measured, step: &Step, seen: &Seen) -> Option<Reason> {
    let window = seen.counters.as_ref()?;
    let engine = window.counted(Counter::OutputTokens)?;
    let counted = |timeline: &Timeline| {
        let (tokens, source) = timeline.output_tokens();
        source.filter(|source| *source != TokenSource::Chunks).map(|_| tokens)
    };
    // Chunks are no count of tokens: with one answer that has nothing else there is no sum.
    let answers: u64 = ok(measured).map(counted).sum::<Option<u64>>()?;
    // What a failed sending had generated until then nobody says, be it the request's only one or one before its answer.
    let failed = |timeline: &Timeline| {
        let before = u64::from(timeline.attempts).saturating_sub(1);
        before + u64::from(!timeline.is_ok() && timeline.sent.is_some())
    };
    let failed: u64 = measured.timelines.iter().map(failed).sum();
    let most = answers.saturating_add(failed.saturating_mul(most_tokens(step))) as f64;
    let off = window.off(Counter::OutputTokens);
    let least = answers as f64;
    let text = format!("the engine counts {engine:.0} generated tokens, the answers come to {answers}");
    let agree = least * (1.0 - COUNTS_RATIO_LIMIT) - off <= engine && engine <= most * (1.0 + COUNTS_RATIO_LIMIT) + off;
    (!agree).then(|| Reason::new("counts_disagree", text))
}

/// The share of prompt tokens that came from the prefix cache although none should, and how to say it.
fn cached(measured: &Measured, step: &Step, seen: &Seen) -> Option<(f64, String)> {
    if !step.workload.cold_prefix {
        return None;
    }
    let by_engine = seen.counters.as_ref().and_then(|window| {
        Some((window.counted(Counter::CachedPromptTokens)?, window.counted(Counter::PromptTokens)?))
    });
    let by_usage = || {
        let cached: u64 = ok(measured).map(Timeline::cached_tokens).sum::<Option<u64>>()?;
        let prompts: u64 = ok(measured).map(Timeline::input_tokens).sum::<Option<u64>>()?;
        Some((cached as f64, prompts as f64))
    };
    let (cached, prompts) = by_engine.or_else(by_usage).filter(|(_, prompts)| *prompts > 0.0)?;
    let text = format!(
        "{cached:.0} of {prompts:.0} prompt tokens came from the prefix cache, and the workload is cold: turn the cache off, or say `prefix_cache: warm`"
    );
    Some((cached / prompts, text))
}

/// Requests that were taken back, as a share of those that were measured, and how to say it.
fn retracted(measured: &Measured, seen: &Seen) -> Option<(f64, String)> {
    let counted = seen.counters.as_ref().and_then(|window| window.counted(Counter::Preemptions));
    let logged = seen.log.as_ref().and_then(|log| log.retracted).map(|count| count as f64);
    let count = counted.into_iter().chain(logged).reduce(f64::max)?;
    let all = measured.timelines.len() as u64;
    let text = format!("the engine took {count:.0} of {all} requests back for want of memory and computed them again");
    Some((share(count as u64, all), text))
}

fn restarted(seen: &Seen) -> Option<Reason> {
    let names = &seen.counters.as_ref()?.restarted;
    let text = format!("the server was started again, or another one answered: by {}", names.join(", "));
    (!names.is_empty()).then(|| Reason::new("server_restarted", text))
}

fn compiled(seen: &Seen) -> Option<Reason> {
    let log = seen.log.as_ref()?;
    let count = log.compiled.filter(|count| *count > 0)?;
    let lines = if count == 1 { "a line tells".to_owned() } else { format!("{count} lines tell") };
    let line = log.compiled_line.as_deref().unwrap_or_default();
    Some(Reason::new("compiled", format!("{lines} of compiling while it was measured, first: {line}")))
}
