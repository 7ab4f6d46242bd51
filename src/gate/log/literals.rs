//! Which words a pattern cannot match without, so that one pass over a line says which patterns are worth trying.
//!
//! The words are taken from the patterns themselves: a pattern that is added later cannot be forgotten.

use aho_corasick::BuildError;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::automaton::Automaton;
use super::found::Found;

/// Shorter words stand in too many lines to tell anything.
const SHORTEST: usize = 2;
/// A class of more letters says nothing.
const FEW_LETTERS: usize = 3;
/// More texts of one part of a pattern are not told apart.
const MOST_TEXTS: usize = 16;

/// Finds the patterns that may match, by the words that they need.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    words: Automaton,
    /// Patterns that need no word in particular: they are always tried.
    always: Found,
}

impl Finder {
    /// Takes patterns in their order.
    pub(super) fn new<'p>(all: impl IntoIterator<Item = &'p str>) -> Result<Self, BuildError> {
        let mut words: Vec<(Vec<u8>, Found)> = Vec::new();
        let mut always = Found::default();
        for (number, pattern) in all.into_iter().enumerate() {
            let Some(needed) = needed(pattern) else {
                always.insert(number);
                continue;
            };
            for word in needed {
                match words.iter_mut().find(|(known, _)| *known == word) {
                    Some((_, patterns)) => patterns.insert(number),
                    None => words.push((word, Found::from_iter([number]))),
                }
            }
        }
        Ok(Finder { words: Automaton::new(&words)?, always })
    }

    /// Puts the numbers of the patterns that may match a text into `found`.
    pub(super) fn find(&self, text: &[u8], found: &mut Found) {
        found.set(&self.always);
        self.words.find(text, found);
    }

    /// The patterns that are always tried.
    #[cfg(test)]
    pub(super) fn always(&self) -> &Found {
        &self.always
    }
}

/// Words of which a text must hold one for the pattern to match, in lower case; `None` if there are none.
fn needed(pattern: &str) -> Option<Vec<Vec<u8>>> {
    let bytes = ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).ok();
    let hir = bytes.or_else(|| ParserBuilder::new().build().parse(pattern).ok())?;
    let words = best(&hir)?;
    (shortest(&words) >= SHORTEST).then_some(words)
}

fn shortest(words: &[Vec<u8>]) -> usize {
    words.iter().map(Vec::len).min().unwrap_or(0)
}

/// The text right before a named group, spaces between them aside; `None` if it is not always the same.
pub(super) fn before_group(pattern: &str, group: &str) -> Option<Vec<u8>> {
    let hir = ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).ok()?;
    let HirKind::Concat(parts) = hir.kind() else { return None };
    let is_group = |part: &Hir| match part.kind() {
        HirKind::Capture(found) => found.name.as_deref() == Some(group),
        _ => false,
    };
    let at = parts.iter().position(is_group)?;
    let before = parts[..at].iter().rev().find(|part| !is_space(part))?;
    match before.kind() {
        HirKind::Literal(literal) => Some(literal.0.to_vec()),
        _ => None,
    }
}

/// Whether a part is spaces only, however many.
fn is_space(part: &Hir) -> bool {
    let HirKind::Repetition(repeated) = part.kind() else { return false };
    match repeated.sub.kind() {
        HirKind::Class(Class::Bytes(class)) => class
            .iter()
            .all(|range| (range.start()..=range.end()).all(|byte| byte.is_ascii_whitespace() || byte == 0x0b)),
        _ => false,
    }
}

/// Of the sets of words of which one must be there, the one that says most.
fn best(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    if let Some(words) = all_texts(hir) {
        return (shortest(&words) > 0).then_some(words);
    }
    match hir.kind() {
        HirKind::Capture(group) => best(&group.sub),
        HirKind::Repetition(repeated) if repeated.min > 0 => best(&repeated.sub),
        HirKind::Concat(parts) => best_of_parts(parts),
        HirKind::Alternation(parts) => {
            let words: Option<Vec<_>> = parts.iter().map(best).collect();
            words.map(|words| words.concat())
        }
        _ => None,
    }
}

/// The best words of parts that follow each other. Parts whose texts are known are joined for as long as they are few.
fn best_of_parts(parts: &[Hir]) -> Option<Vec<Vec<u8>>> {
    let mut candidates: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut run: Vec<Vec<u8>> = vec![Vec::new()];
    for part in parts {
        let texts = all_texts(part);
        match texts.as_ref().and_then(|texts| joined(&run, texts)) {
            Some(longer) => run = longer,
            None => {
                candidates.push(std::mem::replace(&mut run, texts.unwrap_or_else(|| vec![Vec::new()])));
                candidates.extend(best(part));
            }
        }
    }
    candidates.push(run);
    candidates.retain(|words| shortest(words) > 0);
    // The longest word is the rarest; of equals, the fewest.
    candidates.into_iter().max_by_key(|words| (shortest(words), std::cmp::Reverse(words.len())))
}

/// All texts that a part can match, upper and lower case aside; `None` if they are many.
fn all_texts(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Some(vec![Vec::new()]),
        HirKind::Literal(literal) => Some(vec![literal.0.to_ascii_lowercase()]),
        HirKind::Capture(group) => all_texts(&group.sub),
        HirKind::Class(class) => letters(class),
        HirKind::Repetition(repeated) if (repeated.min, repeated.max) == (0, Some(1)) => {
            let mut texts = all_texts(&repeated.sub)?;
            texts.push(Vec::new());
            few(texts)
        }
        HirKind::Concat(parts) => {
            parts.iter().try_fold(vec![Vec::new()], |before, part| joined(&before, &all_texts(part)?))
        }
        HirKind::Alternation(parts) => {
            let texts: Option<Vec<_>> = parts.iter().map(all_texts).collect();
            few(texts?.concat())
        }
        HirKind::Repetition(_) => None,
    }
}

/// Each of these with each of those behind it.
fn joined(before: &[Vec<u8>], after: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    if before.len() * after.len() > MOST_TEXTS {
        return None;
    }
    few(before.iter().flat_map(|first| after.iter().map(|then| [first.as_slice(), then].concat())).collect())
}

fn few(mut texts: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    texts.sort_unstable();
    texts.dedup();
    (texts.len() <= MOST_TEXTS).then_some(texts)
}

/// The letters of a class of a few.
fn letters(class: &Class) -> Option<Vec<Vec<u8>>> {
    let bytes: Vec<u8> = match class {
        Class::Bytes(class) => {
            class.iter().flat_map(|range| range.start()..=range.end()).take(2 * FEW_LETTERS + 1).collect()
        }
        Class::Unicode(class) => class
            .iter()
            .flat_map(|range| range.start()..=range.end())
            .take(2 * FEW_LETTERS + 1)
            .map(|c| u8::try_from(c).ok().filter(u8::is_ascii))
            .collect::<Option<_>>()?,
    };
    let letters = few(bytes.iter().map(|byte| vec![byte.to_ascii_lowercase()]).collect())?;
    (letters.len() <= FEW_LETTERS).then_some(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pattern: &str) -> Option<Vec<String>> {
        let words = needed(pattern)?;
        Some(words.into_iter().map(|word| String::from_utf8(word).unwrap()).collect())
    }

    #[test]
    fn the_longest_word_that_must_be_there_is_taken() {
        assert_eq!(words(r"load (\d+) of the shards"), Some(vec![" of the shards".into()]));
        assert_eq!(words("(?i)out of memory"), Some(vec!["out of memory".into()]));
        assert_eq!(words("[Nn]o such file"), Some(vec!["no such file".into()]));
        assert_eq!(words("(?:Bus error|SIGBUS) at"), Some(vec!["bus error at".into(), "sigbus at".into()]));
        assert_eq!(words(r"^Killed$"), Some(vec!["killed".into()]));
        // Not "code", which stands in "Decode batch".
        assert_eq!(words(r"(?i)exit ?code\s*[:=]?\s*-9\b"), Some(vec!["exit code".into(), "exitcode".into()]));
        assert_eq!(words("graph (?:begin|end)[.:] x"), {
            let all = ["begin. x", "begin: x", "end. x", "end: x"];
            Some(all.iter().map(|end| format!("graph {end}")).collect())
        });
        assert_eq!(words(r"^\s*\d{1,3}%\|"), Some(vec!["%|".into()]));
        assert_eq!(words(r"a(?:bcdef)?\d"), None);
        assert_eq!(words(r"\d+"), None);
    }

    #[test]
    fn the_text_before_a_number_is_known_where_it_is_always_the_same() {
        let before = |pattern| before_group(pattern, "n").map(|text| String::from_utf8(text).unwrap());
        assert_eq!(before(r"Decode.*?accept len: (?<n>[\d.]+)"), Some("accept len: ".into()));
        assert_eq!(before(r"Decode.*mean len =\s+(?<n>[\d.]+)"), Some("mean len =".into()));
        assert_eq!(before(r"Decode (?:a|b) [ab]+(?<n>[\d.]+)"), None);
        assert_eq!(before(r"(?<m>\d)"), None);
    }

    #[test]
    fn a_pattern_is_found_by_any_of_its_words() {
        let finder = Finder::new(["Bus error|SIGBUS", r"\d{5}", "error: no"]).unwrap();
        let find = |text: &str| {
            let mut found = Found::default();
            finder.find(text.as_bytes(), &mut found);
            found.iter().collect::<Vec<_>>()
        };
        assert_eq!(find("it got SigBus"), [0, 1]);
        assert_eq!(find("a bus error: no"), [0, 1, 2]);
        assert_eq!(find("fine"), [1]);
        assert_eq!(finder.always().iter().collect::<Vec<_>>(), [1]);
    }
}
