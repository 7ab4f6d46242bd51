//! What a token is here: a run of up to eight characters without white space, with the white space before it.
//!
//! The rule is simple enough to be followed by hand and close enough to a real tokenizer that words and tokens are not
//! the same: a long word is several.

use std::collections::HashMap;

/// Most characters of a token, white space not counted.
const LONGEST: usize = 8;
/// Ids are below this.
pub(super) const VOCABULARY: u64 = 128_000;

/// How many tokens a text has.
#[cfg(test)]
pub(super) fn count(text: &str) -> u64 {
    text.split_whitespace().map(|word| word.chars().count().div_ceil(LONGEST) as u64).sum()
}

/// The tokens of a text. White space at its end belongs to no token.
pub(super) fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut length) = (0, 0);
    for (at, c) in text.char_indices() {
        if length > 0 && (c.is_whitespace() || length == LONGEST) {
            pieces.push(&text[start..at]);
            (start, length) = (at, 0);
        }
        length += usize::from(!c.is_whitespace());
    }
    if length > 0 {
        pieces.push(&text[start..]);
    }
    pieces
}

/// The id of a token: the same in every process.
pub(super) fn id(piece: &str) -> u64 {
    // FNV-1a: short, and the same everywhere.
    let hash = piece
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash % VOCABULARY
}

/// The texts of ids that were given out, for the way back.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<u64, String>);

impl Known {
    /// Ids of a text's tokens.
    pub(super) fn ids(&mut self, text: &str) -> Vec<u64> {
        let pieces = pieces(text);
        // A server is not filled by whoever asks it often.
        if self.0.len() + pieces.len() > 1 << 20 {
            self.0.clear();
        }
        pieces
            .into_iter()
            .map(|piece| {
                let id = id(piece);
                self.0.insert(id, piece.to_owned());
                id
            })
            .collect()
    }

    /// The text of ids; one that was never given out is a word of its own.
    pub(super) fn text(&self, ids: impl Iterator<Item = u64>) -> String {
        ids.map(|id| self.0.get(&id).cloned().unwrap_or_else(|| format!(" t{id}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_piece_of_a_word() {
        assert_eq!(pieces("One tokenization, please \n"), ["One", " tokeniza", "tion,", " please"]);
        assert_eq!(count("One tokenization, please \n"), 4);
        for text in ["", "  ", "a", "a b", "ääääääääää x", "abcdefgh ijklmnop", "\n\na"] {
            assert_eq!(pieces(text).len() as u64, count(text), "{text:?}");
            assert_eq!(pieces(text).concat(), text.trim_end(), "{text:?}");
        }
    }

    #[test]
    fn ids_lead_back_to_the_text() {
        let mut known = Known::default();
        let ids = known.ids("one two one");
        assert_eq!((ids.len(), ids[0] == ids[2]), (3, false), "a token has its space");
        assert_eq!(known.text(ids.into_iter()), "one two one");
    }
}
