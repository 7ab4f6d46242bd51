//! What answers say of their tokens, beside the tokens of their texts by the server's own tokenizer.

use super::answers::{ends_by_itself, ok};
use super::table::{BESIDE_REASONING_TOKENS, BESIDE_TEXT_TOKENS, TEXT_RATIO_LIMIT};
use crate::measure::{ChunkKind, Measured, Timeline, TokenSource};
use crate::record::model::Reason;
use crate::render::Step;

/// Whether the counts of the answers whose tokens were counted again come to something else than their texts.
///
/// One that counts more than is in the texts is not accused where answers are forced past their end: what ends a text is
/// then made again and again, and is in none.
pub(super) fn counts_disagree(measured: &Measured, step: &Step) -> Option<Reason> {
    let checked: Vec<(&Timeline, f64, f64)> = ok(measured).filter_map(both).collect();
    let said: f64 = checked.iter().map(|(_, said, _)| said).sum();
    let texts: f64 = checked.iter().map(|(_, _, text)| text).sum();
    let beside = beside_texts(checked.iter().map(|(timeline, ..)| *timeline));
    let fewer = said < texts * (1.0 - TEXT_RATIO_LIMIT) - beside;
    let more = ends_by_itself(step) && said > texts * (1.0 + TEXT_RATIO_LIMIT) + beside;
    let count = checked.len();
    let text = format!(
        "{count} answers are said to have {said:.0} tokens in all, and their texts have {texts:.0} by the server's own tokenizer"
    );
    (fewer || more).then(|| Reason::new("counts_disagree", text))
}

/// What the answer says of itself, and what its text has.
fn both(timeline: &Timeline) -> Option<(&Timeline, f64, f64)> {
    let (tokens, source) = timeline.output_tokens();
    let told = matches!(source, Some(TokenSource::Usage | TokenSource::Engine));
    Some((timeline, tokens as f64, timeline.retokenized? as f64)).filter(|_| told)
}

/// The tokens of answers that need not be in their texts.
pub(super) fn beside_texts<'a>(answers: impl Iterator<Item = &'a Timeline>) -> f64 {
    let beside = |timeline: &Timeline| {
        let reasons = timeline.chunks.iter().any(|chunk| chunk.kind == ChunkKind::Reasoning);
        BESIDE_TEXT_TOKENS + if reasons { BESIDE_REASONING_TOKENS } else { 0 }
    };
    answers.map(beside).sum::<u64>() as f64
}
