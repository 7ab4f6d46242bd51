//! What was seen of the server beside its answers: its counters, its log, and what it can hold.

use super::answers::{most_tokens, ok};
use super::share;
use super::table::{
    CACHED_RATIO, CACHED_RATIO_LIMIT, COUNTS_RATIO_LIMIT, HIT_RATIO_OFF, RETRACTED_RATIO_LIMIT, TEXT_RATIO_LIMIT,
};
use super::tokenizer;
use crate::measure::counters::Counter;
use crate::measure::{Measured, Seen, Timeline, TokenSource};
use crate::record::model::Reason;
use crate::render::{Step, Warning};

pub(super) fn reasons(measured: &Measured, step: &Step, seen: &Seen) -> Vec<Reason> {
    let mut reasons = Vec::new();
    reasons.extend(counts_disagree(measured, step, seen).or_else(|| tokenizer::counts_disagree(measured, step)));
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
    some_cached.into_iter().chain(some_retracted).chain(hit_ratio_off(measured, step, seen)).collect()
}

/// The prefix cache held another share of the prompts than was wanted.
fn hit_ratio_off(measured: &Measured, step: &Step, seen: &Seen) -> Option<Warning> {
    let wanted = step.workload.special.hit_ratio?;
    let Some((cached, prompts)) = cached_tokens(measured, seen) else {
        let text =
            "neither the answers nor the engine's counters say how many prompt tokens came from the prefix cache";
        return Some(Warning::new("hit_ratio_not_checked", text));
    };
    let came = cached / prompts;
    let text = format!(
        "{:.1} % of the prompt tokens came from the prefix cache, and {:.1} % were wanted",
        came * 100.0,
        wanted * 100.0
    );
    ((came - wanted).abs() > HIT_RATIO_OFF).then(|| Warning::new("hit_ratio_off", text))
}

/// Prompt tokens that came from the prefix cache, and all of them.
fn cached_tokens(measured: &Measured, seen: &Seen) -> Option<(f64, f64)> {
    let by_engine = seen.counters.as_ref().and_then(|window| {
        Some((window.counted(Counter::CachedPromptTokens)?, window.counted(Counter::PromptTokens)?))
    });
    let by_usage = || {
        let sum = |count: fn(&Timeline) -> Option<u64>| {
            ok(measured).map(|timeline| Some(count(timeline)? as f64)).sum::<Option<f64>>()
        };
        Some((sum(Timeline::cached_tokens)?, sum(Timeline::input_tokens)?))
    };
    by_engine.or_else(by_usage).filter(|(_, prompts)| *prompts > 0.0)
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
    let answers: f64 = ok(measured).map(|timeline| Some(counted(timeline)? as f64)).sum::<Option<f64>>()?;
    let by_texts = ok(measured).any(|timeline| timeline.output_tokens().1 == Some(TokenSource::Tokenizer));
    let limit = if by_texts { TEXT_RATIO_LIMIT } else { COUNTS_RATIO_LIMIT };
    let beside = if by_texts { tokenizer::beside_texts(ok(measured)) } else { 0.0 };
    // What a failed sending had generated until then nobody says, be it the request's only one or one before its answer.
    let failed = |timeline: &Timeline| {
        let before = u64::from(timeline.attempts).saturating_sub(1);
        before + u64::from(!timeline.is_ok() && timeline.sent.is_some())
    };
    let failed: u64 = measured.timelines.iter().map(failed).sum();
    let most = answers + failed as f64 * most_tokens(step) as f64;
    let off = window.off(Counter::OutputTokens) + beside;
    let text = format!("the engine counts {engine:.0} generated tokens, the answers come to {answers:.0}");
    let agree = answers * (1.0 - limit) - off <= engine && engine <= most * (1.0 + limit) + off;
    (!agree).then(|| Reason::new("counts_disagree", text))
}

/// The share of prompt tokens that came from the prefix cache although none should, and how to say it.
fn cached(measured: &Measured, step: &Step, seen: &Seen) -> Option<(f64, String)> {
    if !step.workload.cold_prefix {
        return None;
    }
    let (cached, prompts) = cached_tokens(measured, seen)?;
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
