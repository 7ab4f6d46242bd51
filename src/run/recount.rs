//! Tokens counted again when the load is over: the texts of some answers, and of all that came without a count, go to the
//! server's own tokenizer. It generates nothing, and nothing is measured any more.

use std::time::Duration;

use tokio::time::Instant;

use crate::load::{Target, tokenize};
use crate::measure::{Measured, Timeline};

/// One count may take so long,
const ONE: Duration = Duration::from_secs(5);
/// and all together so long, a tokenizer that is slow or far away included.
const ALL: Duration = Duration::from_secs(30);
/// A text twice has twice the tokens, but for what its end and its beginning make of each other.
const SEAM_TOKENS: u64 = 2;

/// Counts the tokens of the texts that were kept for it, and lets go of these.
pub(super) async fn recount(measured: &mut Measured, target: &Target, path: Option<&str>) {
    let mut texts: Vec<(&mut Timeline, String)> = measured
        .timelines
        .iter_mut()
        .filter_map(|timeline| timeline.whole_text.take().map(|text| (timeline, text)))
        .collect();
    let Some(path) = path else { return };
    let until = Instant::now() + ALL;
    let longest = texts.iter().map(|(_, text)| text.as_str()).max_by_key(|text| text.len());
    let Some(longest) = longest else { return };
    if !counts(target, path, longest).await {
        return;
    }
    for (timeline, text) in &mut texts {
        if Instant::now() >= until {
            return;
        }
        timeline.retokenized = count(target, path, text).await;
    }
}

/// Whether what answers there counts: a text that is there twice has twice the tokens.
async fn counts(target: &Target, path: &str, text: &str) -> bool {
    let Some(once) = count(target, path, text).await else { return false };
    let Some(twice) = count(target, path, &text.repeat(2)).await else { return false };
    twice.abs_diff(once.saturating_mul(2)) <= SEAM_TOKENS
}

async fn count(target: &Target, path: &str, text: &str) -> Option<u64> {
    tokio::time::timeout(ONE, tokenize::count(target, path, text)).await.ok()?
}
