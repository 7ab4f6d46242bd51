//! The last lines of a log.

use std::collections::VecDeque;

use crate::gate::log::Piece;

/// How many of the last lines are kept.
pub(super) const LAST_WORDS: usize = 15;
/// How much of each of them.
const LAST_WORDS_CHARS: usize = 400;

/// The last lines that hold something, with their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct LastWords(VecDeque<(u64, String)>);

impl LastWords {
    /// All of them, oldest first.
    pub(super) fn all(&self) -> Vec<String> {
        self.0.iter().map(|(_, text)| text.clone()).collect()
    }

    /// Keeps a piece. Of a progress bar, only its last state.
    pub(super) fn remember(&mut self, piece: &Piece) {
        let text = piece.text.trim();
        if text.is_empty() {
            return;
        }
        let end = text.char_indices().nth(LAST_WORDS_CHARS).map(|(end, _)| end);
        // A bar is one line; and what is pushed out leaves its room to what comes.
        let is_bar = self.0.back().is_some_and(|(line, _)| *line == piece.line_no);
        let mut kept = match (is_bar, self.0.len() >= LAST_WORDS) {
            (true, _) => self.0.pop_back(),
            (false, true) => self.0.pop_front(),
            (false, false) => None,
        }
        .map(|(_, text)| text)
        .unwrap_or_default();
        kept.clear();
        kept.push_str(&text[..end.unwrap_or(text.len())]);
        if end.is_some() {
            kept.push_str("...");
        }
        self.0.push_back((piece.line_no, kept));
    }
}
