//! What the answers themselves say against the numbers: their counts, their lengths, their texts, how they came.

use super::share;
use super::table::{
    AT_ONCE_RATIO_LIMIT, COUNTS_RATIO_LIMIT, REPEATS_RATIO_LIMIT, SHORT_OF, SHORT_RATIO_LIMIT, UNDECODABLE_RATIO_LIMIT,
    WRONG_LENGTH_RATIO_LIMIT,
};
use crate::measure::{Measured, TextFault, Timeline, TokenSource};
use crate::record::model::Reason;
use crate::render::{Step, Stop};

pub(super) fn reasons(measured: &Measured, step: &Step) -> Vec<Reason> {
    let found = [
        short_outputs(measured, step),
        wrong_length(measured),
        impossible_count(measured, step),
        not_streamed(measured, step),
        text(measured, step, "repetition"),
        text(measured, step, "invalid_text"),
    ];
    found.into_iter().flatten().collect()
}

pub(super) fn ok(measured: &Measured) -> impl Iterator<Item = &Timeline> {
    measured.timelines.iter().filter(|timeline| timeline.is_ok())
}

/// The most tokens that an answer may have.
pub(super) fn most_tokens(step: &Step) -> u64 {
    match step.workload.stop {
        Stop::Natural { max_tokens } => max_tokens,
        Stop::Exact { tokens } => tokens,
    }
}

/// Where answers are forced past their end, what they are from there on is no fault of the server.
pub(super) fn ends_by_itself(step: &Step) -> bool {
    matches!(step.workload.stop, Stop::Natural { .. })
}

fn short_outputs(measured: &Measured, step: &Step) -> Option<Reason> {
    if !ends_by_itself(step) || most_tokens(step) < SHORT_OF {
        return None;
    }
    let (mut all, mut short) = (0, 0);
    for timeline in ok(measured) {
        all += 1;
        short += u64::from(timeline.output_tokens().0 <= 1);
    }
    let text = format!("{short} of {all} answers are a single token, and {} were allowed", most_tokens(step));
    (share(short, all) > SHORT_RATIO_LIMIT).then(|| Reason::new("short_outputs", text))
}

/// Of the answers that should have an exact length: what was wanted, and what came, if it was counted. A number of
/// chunks is no count of tokens, and that of a text is not exact.
pub(super) fn lengths(measured: &Measured) -> impl Iterator<Item = (u64, Option<u64>)> {
    ok(measured).filter_map(|timeline| {
        let (tokens, source) = timeline.output_tokens();
        let counted = matches!(source, Some(TokenSource::Usage | TokenSource::Engine));
        Some((timeline.wanted_tokens?, counted.then_some(tokens)))
    })
}

fn wrong_length(measured: &Measured) -> Option<Reason> {
    let compared: Vec<_> = lengths(measured).filter_map(|(wanted, came)| Some((wanted, came?))).collect();
    let wrong: Vec<_> = compared.iter().filter(|(wanted, came)| wanted != came).collect();
    let (wanted, came) = wrong.first()?;
    let (count, all) = (wrong.len() as u64, compared.len() as u64);
    let text = format!(
        "{count} of {all} answers do not have the length that was asked for, such as {came} tokens instead of {wanted}"
    );
    (share(count, all) > WRONG_LENGTH_RATIO_LIMIT).then(|| Reason::new("wrong_length", text))
}

fn impossible_count(measured: &Measured, step: &Step) -> Option<Reason> {
    let most = most_tokens(step);
    let all = ok(measured).count() as u64;
    // That of a text is the tokenizer's word, not the server's.
    let said = |timeline: &Timeline| {
        let (tokens, source) = timeline.output_tokens();
        (source != Some(TokenSource::Tokenizer)).then_some(tokens)
    };
    let beyond: Vec<u64> = ok(measured).filter_map(said).filter(|count| *count > most).collect();
    if let Some(example) = beyond.first()
        && share(beyond.len() as u64, all) > WRONG_LENGTH_RATIO_LIMIT
    {
        let count = beyond.len();
        let text = format!(
            "{count} of {all} answers are said to have more tokens than was allowed, such as {example} of {most}"
        );
        return Some(Reason::new("impossible_count", text));
    }
    // A part is at most the whole.
    let parts = ok(measured).filter_map(|timeline| {
        let usage = timeline.usage.as_ref()?;
        let more = |part: Option<u64>, of: Option<u64>| part.zip(of).filter(|(part, of)| part > of);
        let cached = more(usage.cached_tokens, usage.prompt_tokens).map(|pair| ("cached", "prompt", pair));
        cached.or(more(usage.reasoning_tokens, usage.completion_tokens).map(|pair| ("reasoning", "answer", pair)))
    });
    let parts: Vec<_> = parts.collect();
    if let Some((part, whole, (count, of))) = parts.first()
        && share(parts.len() as u64, all) > WRONG_LENGTH_RATIO_LIMIT
    {
        let text = format!(
            "{} of {all} answers are said to have more {part} tokens than tokens of their {whole}, such as {count} of {of}",
            parts.len()
        );
        return Some(Reason::new("impossible_count", text));
    }
    // Each generating chunk carries a token or, seldom, a part of one.
    let fewer = |timeline: &&Timeline| {
        said(timeline)
            .is_some_and(|tokens| timeline.chunks.len() as f64 > tokens as f64 * (1.0 + COUNTS_RATIO_LIMIT) + 1.0)
    };
    let fewer: Vec<&Timeline> = ok(measured).filter(fewer).collect();
    let example = fewer.first()?;
    let (count, tokens, chunks) = (fewer.len() as u64, example.output_tokens().0, example.chunks.len());
    let text = format!(
        "{count} of {all} answers are said to have fewer tokens than the chunks that carried them, such as {tokens} in {chunks} chunks"
    );
    (share(count, all) > WRONG_LENGTH_RATIO_LIMIT).then(|| Reason::new("impossible_count", text))
}

fn not_streamed(measured: &Measured, step: &Step) -> Option<Reason> {
    if step.workload.special.whole {
        return None;
    }
    let several = ok(measured).filter(|timeline| timeline.output_tokens().0 > 1);
    let (mut all, mut at_once) = (0, 0);
    for timeline in several {
        all += 1;
        at_once += u64::from(timeline.came_at_once());
    }
    let text = format!(
        "{at_once} of {all} answers came at once instead of as a stream: speeds of decoding cannot be read off them"
    );
    (share(at_once, all) > AT_ONCE_RATIO_LIMIT).then(|| Reason::new("not_streamed", text))
}

fn text(measured: &Measured, step: &Step, id: &'static str) -> Option<Reason> {
    let (limit, words) = match id {
        "repetition" => (REPEATS_RATIO_LIMIT, "repeat themselves up to their end"),
        _ => (UNDECODABLE_RATIO_LIMIT, "are no text: they hold what could not be decoded (U+FFFD), or hardly a letter"),
    };
    let is_faulty = |timeline: &&Timeline| match timeline.text_fault {
        Some(TextFault::Repeats) => id == "repetition",
        Some(TextFault::Undecodable | TextFault::Garbled) => id == "invalid_text",
        None => false,
    };
    let all = ok(measured).count() as u64;
    let faulty = ok(measured).filter(is_faulty).count() as u64;
    let text = format!("{faulty} of {all} answers {words}");
    (ends_by_itself(step) && share(faulty, all) > limit).then(|| Reason::new(id, text))
}
