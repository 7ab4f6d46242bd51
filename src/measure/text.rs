//! Whether an answer's text is one that a working model gives: no characters that could not be decoded, and no loop that
//! goes on to its end.
//!
//! The measure of a loop is strict on purpose: the same bytes again and again, up to the last one. Tables, code and lists
//! repeat words and shapes but never all of their bytes, and what they do repeat (a rule of dashes, a row of zeros) ends
//! before the text does.

use serde::{Deserialize, Serialize};

use super::Timeline;

/// What is wrong with an answer's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextFault {
    /// It holds U+FFFD, which stands for bytes that are no character.
    Undecodable,
    /// It is hardly made of letters and digits.
    Garbled,
    /// It repeats itself up to its end.
    Repeats,
}

/// How much of a text is looked at for a loop: its end.
pub const LOOKED_AT_BYTES: usize = 4096;
/// A text is kept whole until it is looked at, up to this length; of a longer one, its end.
pub const KEPT_BYTES: usize = 64 << 10;
/// A loop covers at least so many bytes,
const LOOP_BYTES: usize = 150;
/// and goes round at least so often where a limit cut it off,
const LOOP_ROUNDS: usize = 4;
/// or so often where it came to an end by itself: a refrain may come back a few times.
const ENDED_LOOP_ROUNDS: usize = 8;
/// Of the characters that are no white space at least this share is letters and digits, in prose, code and tables alike,
const READABLE_RATIO: f64 = 0.4;
/// where there are so many.
const READABLE_OF: usize = 40;

/// A text that comes in pieces: all of it, or of a long one its end, which is enough to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    text: String,
    /// Whether its beginning was dropped,
    dropped: bool,
    /// and U+FFFD stood in that.
    undecodable: bool,
}

impl Tail {
    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) {
        self.text.push_str(piece);
        if self.text.len() > KEPT_BYTES {
            self.dropped = true;
            let mut from = self.text.len() - LOOKED_AT_BYTES;
            while !self.text.is_char_boundary(from) {
                from += 1;
            }
            self.undecodable |= self.text[..from].contains('\u{fffd}');
            self.text.drain(..from);
        }
    }

    /// Whether nothing was dropped of it.
    pub fn is_whole(&self) -> bool {
        !self.dropped
    }

    /// The text. What was dropped of it and could not be decoded stands before it as one U+FFFD.
    pub fn into_text(self) -> String {
        if self.undecodable { format!("\u{fffd}{}", self.text) } else { self.text }
    }
}

impl Timeline {
    /// Notes what is wrong with its text. What was kept of it for that alone goes on as its `whole_text`, if it is that.
    pub fn look_at_text(&mut self) {
        let cut = self.finish_reason.as_deref() == Some("length");
        let whole = self.tail.as_ref().is_none_or(Tail::is_whole);
        let tail = self.tail.take().map(Tail::into_text);
        let texts = [tail.as_deref(), self.reasoning_text.as_deref(), self.text.as_deref()];
        self.text_fault = texts.into_iter().flatten().find_map(|text| fault(text, cut));
        let kept = || Some([self.reasoning_text.as_deref().unwrap_or_default(), self.text.as_deref()?].concat());
        self.whole_text = tail.or_else(kept).filter(|_| whole);
    }
}

/// Looks at an answer's text. `cut`: it was ended by a limit of its length, so that it may end within a character.
pub fn fault(text: &str, cut: bool) -> Option<TextFault> {
    let whole = if cut { text.trim_end_matches('\u{fffd}') } else { text };
    if whole.contains('\u{fffd}') {
        return Some(TextFault::Undecodable);
    }
    let end = text.as_bytes();
    let end = &end[end.len().saturating_sub(LOOKED_AT_BYTES)..];
    if is_loop(end, if cut { LOOP_ROUNDS } else { ENDED_LOOP_ROUNDS }) {
        return Some(TextFault::Repeats);
    }
    is_garbled(text).then_some(TextFault::Garbled)
}

/// Whether a text is symbols rather than words, in whatever script.
fn is_garbled(text: &str) -> bool {
    let marks = text.chars().filter(|c| !c.is_whitespace());
    let (mut all, mut readable, mut last) = (0usize, 0usize, None);
    for mark in marks {
        // A rule of dashes is one mark, however long.
        if last.replace(mark) != Some(mark) || mark.is_alphanumeric() {
            all += 1;
            readable += usize::from(mark.is_alphanumeric());
        }
    }
    all >= READABLE_OF && (readable as f64) < READABLE_RATIO * all as f64
}

/// Whether the bytes end in something that is repeated.
///
/// `borders[n]` is the longest true beginning of the last `n` bytes, read backwards, that is also their end (Knuth,
/// Morris and Pratt's failure function); `n - borders[n]` is then the shortest period of those bytes.
fn is_loop(bytes: &[u8], rounds: usize) -> bool {
    let at = |number: usize| bytes[bytes.len() - 1 - number];
    let mut borders = vec![0; bytes.len() + 1];
    let mut border = 0;
    for length in 2..=bytes.len() {
        let next = at(length - 1);
        while border > 0 && at(border) != next {
            border = borders[border];
        }
        if at(border) == next {
            border += 1;
        }
        borders[length] = border;
        let period = length - border;
        if length >= LOOP_BYTES && length >= rounds * period {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_up_to_the_end_is_found_whatever_it_repeats() {
        for unit in
            ["!", "the ", "I am sorry, but ", "one two three four five six seven eight nine ten ", "好的，我来帮你。"]
        {
            let text = format!("It begins well enough, as they all do. {}", unit.repeat(250 / unit.len() + 4));
            assert_eq!(fault(&text, true), Some(TextFault::Repeats), "{unit}");
            // In the middle of a round.
            let mut cut = text.clone();
            cut.pop();
            assert_eq!(fault(&cut, true), Some(TextFault::Repeats), "{unit}");
        }
        let paragraph = "A paragraph of some length that says the same thing over, as a model does when it has lost its way, \
                         and then begins again from the start without a word of excuse.\n\n";
        assert_eq!(fault(&paragraph.repeat(4), true), Some(TextFault::Repeats));
        assert_eq!(fault(&paragraph.repeat(3), true), None, "three times may be meant");
        assert_eq!(fault(&"!".repeat(1 << 20), true), Some(TextFault::Repeats), "of a long text, its end");
    }

    #[test]
    fn what_merely_repeats_its_shape_is_no_loop() {
        let table: String = (0..40).map(|n| format!("| Item {n} | {} | yes |\n", n * 7)).collect();
        let rule = format!("| Name | Value |\n|{}|{}|\n| a | 1 |", "-".repeat(150), "-".repeat(150));
        let list: String = (1..60).map(|n| format!("{n}. The next item of the list\n")).collect();
        let code: String = (0..40).map(|n| format!("    self.field_{n} = None\n")).collect();
        let zeros = format!("grid = [{}]\n", "[0, 0, 0, 0, 0, 0, 0, 0], ".repeat(12));
        let count: String = (0..200).map(|n| format!("{n}, ")).collect();
        let short = format!("{} That is all.", "ha ".repeat(60));
        for text in [table, rule, list, code, zeros, count, short] {
            assert_eq!(fault(&text, true), None, "{text}");
        }
    }

    #[test]
    fn a_text_that_ends_by_itself_may_have_a_refrain() {
        let song = "La la la, la la la, sing with me.\n".repeat(6);
        assert_eq!((fault(&song, false), fault(&song, true)), (None, Some(TextFault::Repeats)));
        assert_eq!(fault(&"again and ".repeat(30), false), Some(TextFault::Repeats));
    }

    #[test]
    fn symbols_are_no_words_and_code_and_other_scripts_are() {
        let garbage = " #$%&( z)*+= @^_{q }|~x# $%k&( )*+=w @^_{} |~#$% j&()*+ =@^_{ }|~#z";
        assert_eq!(fault(garbage, false), Some(TextFault::Garbled));
        let code =
            "fn f(x: &[u8]) -> Option<&u8> { x.iter().filter(|b| **b != b'\\n').max_by_key(|b| (**b) as u32 * 2) }";
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n| 5 | 6 |\n| 10 | 20 |\n| 30 | 40 |\n| one | two |\n";
        let formula = "\\[ \\int_0^1 x^2 \\, dx = \\frac{1}{3}, \\quad \\sum_{n=1}^{\\infty} \\frac{1}{n^2} = \\frac{\\pi^2}{6} \\]";
        for text in [
            code,
            table,
            formula,
            "好的，我来帮你。今天天气很好，我们可以一起去公园散步，你觉得怎么样？好的，那么我们下午三点在门口见面吧。",
        ] {
            assert_eq!(fault(text, false), None, "{text}");
        }
        assert_eq!(fault(":-) :-) ;-)", false), None, "too short to tell");
    }

    #[test]
    fn of_a_long_text_the_end_is_kept_and_what_went_before_is_not_forgotten() {
        let mut tail = Tail::default();
        tail.push("bad \u{fffd} text");
        for n in 0..20_000 {
            tail.push(&format!(" wörd{n}"));
        }
        let text = tail.into_text();
        assert!(text.ends_with(" wörd19999") && text.len() <= KEPT_BYTES + 16, "{}", text.len());
        assert_eq!(fault(&text, true), Some(TextFault::Undecodable));
        let mut short = Tail::default();
        short.push(&"no ".repeat(100));
        let mut looked =
            Timeline { finish_reason: Some("length".to_owned()), tail: Some(short), ..Timeline::default() };
        looked.look_at_text();
        assert_eq!((looked.text_fault, looked.tail, looked.text), (Some(TextFault::Repeats), None, None));
        assert_eq!(looked.whole_text, Some("no ".repeat(100)));
        let mut long = Tail::default();
        long.push(&"a word ".repeat(KEPT_BYTES / 7 + 1));
        let mut looked = Timeline { tail: Some(long), ..Timeline::default() };
        looked.look_at_text();
        assert_eq!(looked.whole_text, None, "its beginning is gone");
        let mut kept = Timeline { text: Some("bad \u{fffd} text".to_owned()), ..Timeline::default() };
        kept.look_at_text();
        assert_eq!(kept.text_fault, Some(TextFault::Undecodable));
        assert_eq!(kept.whole_text, kept.text);
    }

    #[test]
    fn half_a_character_at_a_cut_end_is_nobodys_fault() {
        assert_eq!(fault("good text\u{fffd}\u{fffd}", true), None);
        assert_eq!(fault("good text\u{fffd}", false), Some(TextFault::Undecodable));
        assert_eq!(fault("bad \u{fffd} text", true), Some(TextFault::Undecodable));
        assert_eq!(fault("", true), None);
    }
}
