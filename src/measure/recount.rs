//! Which answers have their tokens counted again, by their texts, when the load is over: a bounded sample of those that
//! say how many they have, and those that do not.

use std::collections::BTreeSet;

use super::{ChunkKind, Timeline, TokenSource};

/// So many answers that say how many tokens they have are held against their texts.
pub const CHECKED_ANSWERS: usize = 32;
/// The texts of answers that do not say it are kept up to this, in bytes. What comes after has its chunks for tokens.
const UNCOUNTED_BYTES: usize = 64 << 20;

/// Chooses whose text is kept while a step is under way, evenly over it however long it gets.
#[derive(Debug)]
pub struct Chooser {
    /// Each so manieth answer that says its tokens is kept,
    every: u64,
    /// of so many so far.
    seen: u64,
    /// Their places among those, and their ids.
    kept: Vec<(u64, u64)>,
    /// Bytes of those that do not say them.
    uncounted: usize,
}

impl Default for Chooser {
    fn default() -> Self {
        Chooser { every: 1, seen: 0, kept: Vec::new(), uncounted: 0 }
    }
}

impl Chooser {
    /// Takes the text from an answer that will not be counted again.
    pub fn choose(&mut self, timeline: &mut Timeline) {
        let bytes = timeline.whole_text.as_deref().filter(|text| tells_its_tokens(timeline, text)).map(str::len);
        let wanted = bytes
            .is_some_and(|bytes| if is_uncounted(timeline) { self.fits(bytes) } else { self.is_next(timeline.id) });
        if !wanted {
            timeline.whole_text = None;
        }
    }

    fn fits(&mut self, bytes: usize) -> bool {
        self.uncounted += bytes;
        self.uncounted <= UNCOUNTED_BYTES
    }

    fn is_next(&mut self, id: u64) -> bool {
        let place = self.seen;
        self.seen += 1;
        if !place.is_multiple_of(self.every) {
            return false;
        }
        self.kept.push((place, id));
        if self.kept.len() >= 2 * CHECKED_ANSWERS {
            self.every *= 2;
            self.kept.retain(|(place, _)| place.is_multiple_of(self.every));
        }
        true
    }

    /// Leaves the text of [`CHECKED_ANSWERS`] of the answers that say their tokens, and of all that do not.
    pub fn settle(&self, timelines: &mut [Timeline]) {
        let all = self.kept.len();
        // As many of the places as are wanted, evenly.
        let falls = |place: usize| place * CHECKED_ANSWERS / all.max(1);
        let left = self.kept.iter().enumerate().filter(|(n, _)| all <= CHECKED_ANSWERS || falls(*n) != falls(n + 1));
        let left: BTreeSet<u64> = left.map(|(_, (_, id))| *id).collect();
        for timeline in timelines {
            if !is_uncounted(timeline) && !left.contains(&timeline.id) {
                timeline.whole_text = None;
            }
        }
    }
}

/// Whether nobody but the number of its chunks says how many tokens it has.
fn is_uncounted(timeline: &Timeline) -> bool {
    timeline.output_tokens().1 == Some(TokenSource::Chunks)
}

/// Whether all its tokens are in its text, and nothing stands there in place of others.
fn tells_its_tokens(timeline: &Timeline, text: &str) -> bool {
    let shows_all = timeline.chunks.iter().all(|chunk| chunk.kind != ChunkKind::Other);
    timeline.is_ok() && shows_all && !timeline.hides_reasoning() && !text.is_empty() && !text.contains('\u{fffd}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::ok;

    fn answer(text: &str) -> Timeline {
        Timeline { whole_text: Some(text.to_owned()), ..ok(0, 10, 20, 3) }
    }

    fn kept(mut answers: Vec<Timeline>) -> Vec<usize> {
        let mut chooser = Chooser::default();
        for (id, answer) in answers.iter_mut().enumerate() {
            answer.id = id as u64;
            chooser.choose(answer);
        }
        chooser.settle(&mut answers);
        (0..answers.len()).filter(|place| answers[*place].whole_text.is_some()).collect()
    }

    #[test]
    fn of_many_answers_some_are_checked_evenly_over_the_step() {
        assert_eq!(kept(vec![answer("a b c"); 5]), [0, 1, 2, 3, 4]);
        for all in [CHECKED_ANSWERS, 50, 64, 65, 100, 1_000, 12_345] {
            let places = kept(vec![answer("a b c"); all]);
            assert_eq!(places.len(), CHECKED_ANSWERS, "of {all}");
            let widest = places.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(widest <= all.div_ceil(CHECKED_ANSWERS) * 3, "of {all}: {places:?}");
            assert!(*places.last().unwrap() >= all - all.div_ceil(4), "of {all}: {places:?}");
        }
    }

    #[test]
    fn a_text_that_does_not_tell_its_tokens_is_not_counted() {
        let mut called = answer("let me see");
        called.chunks[1].kind = ChunkKind::Other;
        let mut hidden = answer("short");
        hidden.usage = hidden.usage.map(|usage| super::super::Usage { reasoning_tokens: Some(2), ..usage });
        let failed = Timeline { outcome: crate::measure::Outcome::TimedOut, ..answer("half of") };
        assert_eq!(kept(vec![called, hidden, failed, answer(""), answer("bad \u{fffd}"), answer("good")]), [5]);
    }

    #[test]
    fn every_answer_without_a_count_is_counted() {
        let uncounted = Timeline { usage: None, ..answer("a b c") };
        assert_eq!(kept(vec![uncounted; 100]).len(), 100);
    }
}
