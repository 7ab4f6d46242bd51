//! What it says: real words without sense, answers to what it knows, and text that is broken in a certain way.

use std::sync::LazyLock;

use regex::Regex;

use super::scenario::{Answer, FaultKind};
use super::tokens;

/// Short enough to be one token each, a full stop included.
const WORDS: &[&str] = &[
    "time", "water", "people", "house", "small", "large", "river", "found", "under", "light", "paper", "story",
    "world", "green", "night", "place", "every", "point", "again", "early", "hand", "sound", "still", "learn", "plant",
    "cover", "food", "state", "never", "thought", "city", "tree", "cross", "farm", "hard", "start", "might", "draw",
    "left", "late", "while", "press", "close", "real", "life", "few", "north", "open", "seem", "next", "white",
    "begin", "got", "walk", "example", "ease", "group", "always", "music", "those", "both", "mark", "often", "letter",
    "until", "mile", "second", "book", "carry", "science", "eat", "room", "friend", "began", "idea", "fish", "stop",
    "once", "base", "hear", "horse", "cut", "sure", "watch", "color", "face", "wood", "main", "enough", "plain",
    "girl", "usual", "young", "ready", "above", "ever", "red", "list", "though", "feel", "talk", "bird", "soon",
    "body", "dog", "family", "direct", "pose", "leave", "song", "measure", "door", "product", "black", "short",
    "class", "wind", "happen", "ship", "area", "half", "rock", "order", "fire", "south", "problem", "piece", "told",
    "knew", "pass", "since", "top",
];

/// The text of an answer, token by token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    seed: u64,
    style: Style,
    /// What it knows; after that come words.
    known: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Words,
    Garbage,
    Repetition,
    Replacement,
    Invalid,
}

impl Text {
    /// The text of an answer to a question. `seed` settles its words.
    pub(super) fn new(seed: u64, question: &str, answers: &[Answer], fault: Option<FaultKind>) -> Self {
        let (style, wrong) = match fault {
            Some(FaultKind::Garbage) => (Style::Garbage, false),
            Some(FaultKind::Repetition) => (Style::Repetition, false),
            Some(FaultKind::ReplacementCharacters) => (Style::Replacement, false),
            Some(FaultKind::InvalidUtf8) => (Style::Invalid, false),
            Some(FaultKind::WrongAnswer) => (Style::Words, true),
            _ => (Style::Words, false),
        };
        let known = match style {
            Style::Words => known(question, answers).map(|answer| if wrong { spoil(&answer) } else { answer }),
            _ => None,
        };
        let known = known.map(|answer| tokens::pieces(&answer).into_iter().map(str::to_owned).collect());
        Text { seed: if wrong { !seed } else { seed }, style, known: known.unwrap_or_default() }
    }

    /// How many tokens say all that it knows, if it knows an answer.
    pub(super) fn known_tokens(&self) -> Option<u64> {
        (!self.known.is_empty()).then_some(self.known.len() as u64)
    }

    /// Adds token `index` of the answer. What comes is UTF-8, but where that is the fault.
    pub(super) fn push(&self, index: u64, out: &mut Vec<u8>) {
        let known = usize::try_from(index).ok().and_then(|index| self.known.get(index));
        if let Some(piece) = known {
            out.extend_from_slice(piece.as_bytes());
            return;
        }
        let drawn = mix(self.seed, index);
        match self.style {
            Style::Words => self.push_word(index, drawn, out),
            Style::Garbage => {
                out.push(b' ');
                let symbols = b"#$%&()*+=@^_{}|~zqxkjw";
                out.extend((0..5).map(|at| symbols[(drawn >> (at * 8)) as usize % symbols.len()]));
            }
            Style::Repetition => {
                out.push(b' ');
                out.extend_from_slice(WORDS[mix(self.seed, index % 2) as usize % WORDS.len()].as_bytes());
            }
            Style::Replacement => out.extend_from_slice("\u{fffd}".as_bytes()),
            Style::Invalid => out.extend_from_slice(b" \xff\xfe"),
        }
    }

    /// Sentences of seven to fourteen words.
    fn push_word(&self, index: u64, drawn: u64, out: &mut Vec<u8>) {
        let ends = |index: u64| index % 7 == 6 && (index % 14 == 13 || mix(!self.seed, index).is_multiple_of(2));
        let word = WORDS[drawn as usize % WORDS.len()];
        if index > 0 {
            out.push(b' ');
        }
        if index == 0 || ends(index - 1) {
            out.push(word.as_bytes()[0].to_ascii_uppercase());
            out.extend_from_slice(&word.as_bytes()[1..]);
        } else {
            out.extend_from_slice(word.as_bytes());
        }
        if ends(index) {
            out.push(b'.');
        }
    }
}

/// A number that looks drawn and is settled by both (the finaliser of SplitMix64).
pub(super) fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The answer to a question, where the scenario knows it or it is a sum.
fn known(question: &str, answers: &[Answer]) -> Option<String> {
    if question.is_empty() {
        return None;
    }
    let asked = question.to_lowercase();
    let told = answers.iter().find(|answer| asked.contains(&answer.prompt.to_lowercase()));
    told.map(|answer| answer.answer.clone()).or_else(|| sum(&asked))
}

const NUMBERS: [&str; 13] =
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/// `17 + 25`, `two times three`, `9 minus 4`.
fn sum(asked: &str) -> Option<String> {
    static SUM: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let number = format!(r"(\d{{1,9}}|{})", NUMBERS.join("|"));
        Regex::new(&format!(r"\b{number}\s*(\+|plus|-|−|minus|\*|×|x|times|multiplied by)\s*{number}\b")).ok()
    });
    // A prompt of many pages is no sum.
    if asked.len() > 2_000 {
        return None;
    }
    let found = SUM.as_ref()?.captures(asked)?;
    let number =
        |text: &str| text.parse::<i64>().ok().or_else(|| Some(NUMBERS.iter().position(|word| *word == text)? as i64));
    let (left, right) = (number(&found[1])?, number(&found[3])?);
    let result = match &found[2] {
        "+" | "plus" => left + right,
        "-" | "−" | "minus" => left - right,
        _ => left * right,
    };
    Some(result.to_string())
}

/// Another answer of the same look.
fn spoil(answer: &str) -> String {
    match answer.parse::<i64>() {
        Ok(number) => (number + 1).to_string(),
        Err(_) => "Nobody knows".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(question: &str, fault: Option<FaultKind>, tokens: u64) -> Vec<u8> {
        let answers = [Answer { prompt: "capital of France".to_owned(), answer: "It is Paris".to_owned() }];
        let text = Text::new(7, question, &answers, fault);
        let mut out = Vec::new();
        (0..text.known_tokens().unwrap_or(tokens)).for_each(|index| text.push(index, &mut out));
        out
    }

    #[test]
    fn every_word_is_one_token() {
        let out = String::from_utf8(text("", None, 200)).unwrap();
        assert_eq!(tokens::count(&out), 200, "{out}");
        assert!(out.contains(". "), "{out}");
        assert_eq!(text("", None, 200), out.as_bytes());
    }

    #[test]
    fn it_knows_sums_and_what_the_scenario_tells() {
        for (question, answer) in [
            ("What is two plus two?", "4"),
            ("What is 17 + 25? Only the number.", "42"),
            ("6 times 7", "42"),
            ("What is the Capital of france?", "It is Paris"),
        ] {
            assert_eq!(text(question, None, 0), answer.as_bytes(), "{question}");
            assert_ne!(text(question, Some(FaultKind::WrongAnswer), 0), answer.as_bytes(), "{question}");
        }
        assert_eq!(text("What is 2 + 2?", Some(FaultKind::WrongAnswer), 0), b"5");
        assert_eq!(Text::new(1, "Tell me about 7 seas", &[], None).known_tokens(), None);
    }

    #[test]
    fn broken_text_is_broken_as_told() {
        assert!(String::from_utf8(text("", Some(FaultKind::InvalidUtf8), 3)).is_err());
        assert_eq!(text("", Some(FaultKind::ReplacementCharacters), 2), "\u{fffd}\u{fffd}".as_bytes());
        let again = String::from_utf8(text("", Some(FaultKind::Repetition), 6)).unwrap();
        let words: Vec<&str> = again.split_whitespace().collect();
        assert_eq!((words.len(), words[0], words[1]), (6, words[4], words[5]));
        let garbage = String::from_utf8(text("", Some(FaultKind::Garbage), 4)).unwrap();
        assert_eq!(tokens::count(&garbage), 4, "{garbage}");
    }
}
