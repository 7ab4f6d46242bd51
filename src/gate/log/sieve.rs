//! What a line of a log is for, told by one pass over its bytes: most lines of a long log tell nothing, and most others
//! only how a server serves. The few that are left are read.

use aho_corasick::BuildError;
use memchr::memmem;

use super::found::Found;
use super::literals::{self, Finder};
use super::split::ESCAPE;
use super::telling::ACCEPT_LEN;

/// What a pattern is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It tells something.
    Tells,
    /// It is a progress bar.
    Bar,
    /// A record that fits it and no other tells nothing.
    Harmless,
    /// It tells how a server is; a later record of its kind makes it old.
    Sample,
    /// Such a record is no sign of life.
    Heartbeat,
    /// Such a record also says that the server serves.
    Serving,
}

/// What a line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// It tells nothing.
    Silent,
    /// It only tells how a server is: see [`Use::Sample`].
    Sample,
    /// It only tells how a server is, and may be the first to say that it serves.
    Serving,
    /// It must be read.
    Telling,
}

/// All patterns of an engine, by the words that they cannot match without.
#[derive(Clone, Debug)]
pub(super) struct Sieve {
    finder: Finder,
    harmless: Found,
    /// The harmless ones, and samples.
    samples: Found,
    heartbeats: Found,
    serving: Found,
    bars: Found,
    /// Of what the best value counts: the patterns that tell it, each with the text before the number.
    bests: Vec<(Found, memmem::Finder<'static>)>,
}

impl Sieve {
    /// Takes patterns in their order.
    pub(super) fn new<'p>(patterns: impl Iterator<Item = (&'p str, Use)> + Clone) -> Result<Self, BuildError> {
        let finder = Finder::new(patterns.clone().map(|(pattern, _)| pattern))?;
        let mut sieve = Sieve {
            finder,
            harmless: Found::default(),
            samples: Found::default(),
            heartbeats: Found::default(),
            serving: Found::default(),
            bars: Found::default(),
            bests: Vec::new(),
        };
        for (number, (pattern, of_use)) in patterns.enumerate() {
            sieve.sort(number, pattern, of_use);
        }
        Ok(sieve)
    }

    fn sort(&mut self, number: usize, pattern: &str, of_use: Use) {
        match of_use {
            Use::Tells => return,
            Use::Bar => return self.bars.insert(number),
            Use::Harmless | Use::Sample | Use::Heartbeat | Use::Serving => {}
        }
        if pattern.contains(ACCEPT_LEN) {
            // Where the number cannot be found without reading the record, every record is read.
            let Some(before) = literals::before_group(pattern, ACCEPT_LEN) else { return };
            self.bests.push((Found::from_iter([number]), memmem::Finder::new(&before).into_owned()));
        }
        if of_use == Use::Harmless {
            self.harmless.insert(number);
        }
        if of_use == Use::Heartbeat {
            self.heartbeats.insert(number);
        }
        if of_use == Use::Serving {
            self.serving.insert(number);
        }
        self.samples.insert(number);
    }

    /// Puts the numbers of the patterns that may match a record into `found`.
    pub(super) fn find(&self, record: &[u8], found: &mut Found) {
        self.finder.find(record, found);
    }

    /// Whether a text may hold a progress bar.
    pub(super) fn may_be_bar(&self, text: &[u8]) -> bool {
        let mut found = Found::default();
        self.finder.find(text, &mut found);
        found.meets(&self.bars)
    }

    /// What a line is for that is in no traceback. `found` is then what it may fit, and equal lines have an equal one.
    pub(super) fn weigh(&self, line: &[u8], found: &mut Found) -> Weight {
        // Words could be torn apart by colours, or be written in another way.
        if memchr::memchr(ESCAPE, line).is_some() || is_escaped_json(line) {
            return Weight::Telling;
        }
        self.finder.find(line, found);
        if found.is_within(&self.harmless) {
            Weight::Silent
        } else if !found.is_within(&self.samples) {
            Weight::Telling
        } else if found.meets(&self.serving) {
            Weight::Serving
        } else {
            Weight::Sample
        }
    }

    /// Whether a line that fits these may be a heartbeat.
    pub(super) fn may_be_heartbeat(&self, found: &Found) -> bool {
        found.meets(&self.heartbeats)
    }

    /// Whether a sample may be better than the best one so far.
    pub(super) fn may_be_best(&self, line: &[u8], found: &Found, best: Option<f64>) -> bool {
        let telling = self.bests.iter().filter(|(patterns, _)| found.meets(patterns));
        telling.flat_map(|(_, before)| before.find_iter(line).map(move |at| &line[at + before.needle().len()..])).any(
            |after| match (number(after), best) {
                (Some(number), Some(best)) => number > best,
                _ => true,
            },
        )
    }
}

/// Whether a line is a JSON object in which some characters are written otherwise than they are. The line feed at the end
/// of a message does no harm: no word holds one.
fn is_escaped_json(line: &[u8]) -> bool {
    line.starts_with(b"{\"") && memchr::memchr_iter(b'\\', line).any(|at| line.get(at + 1) != Some(&b'n'))
}

/// The number that stands there, behind spaces or none.
fn number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.').unwrap_or(text.len());
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sieve() -> Sieve {
        let patterns = [
            ("out of memory", Use::Tells),
            ("NCCL INFO ", Use::Harmless),
            (r"running: (?<running>\d+)", Use::Sample),
            (r"accept len: (?<accept_len>[\d.]+)", Use::Sample),
            ("Decode batch", Use::Serving),
        ];
        Sieve::new(patterns.into_iter()).unwrap()
    }

    #[test]
    fn a_line_is_weighed_by_its_bytes() {
        let sieve = sieve();
        let weigh = |line: &str| sieve.weigh(line.as_bytes(), &mut Found::default());
        assert_eq!(weigh("a chat about nothing"), Weight::Silent);
        assert_eq!(weigh("[0] NCCL INFO Channel 00"), Weight::Silent);
        assert_eq!(weigh("running: 3"), Weight::Sample);
        assert_eq!(weigh("Decode batch, running: 3"), Weight::Serving);
        assert_eq!(weigh("Decode batch: CUDA OUT OF MEMORY"), Weight::Telling);
        assert_eq!(weigh("out of \u{1b}[31mmemory"), Weight::Telling);
        assert_eq!(weigh(r#"{"log":"running: 3\n"}"#), Weight::Sample);
        assert_eq!(weigh(r#"{"log":"out\u0020of memory\n"}"#), Weight::Telling);
    }

    #[test]
    fn a_better_number_than_all_before_is_not_passed_over() {
        let sieve = sieve();
        let may = |line: &str, best| {
            let mut found = Found::default();
            sieve.weigh(line.as_bytes(), &mut found);
            sieve.may_be_best(line.as_bytes(), &found, best)
        };
        assert!(may("accept len: 2.5", None) && may("accept len: 2.5, x", Some(2.4)));
        assert!(!may("accept len: 2.5", Some(2.5)) && !may("running: 9", None));
        assert!(may("accept len: ?", Some(9.0)), "a number that cannot be read may be any");
        assert!(may("accept len: 1.0 glued accept len: 3.5", Some(3.0)));
    }
}
