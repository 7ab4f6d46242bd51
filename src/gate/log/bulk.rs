//! A log of any length, in little time and memory: what tells nothing is counted, and what only tells how a server serves
//! is read when nothing newer of its kind came after it.

use std::collections::VecDeque;

use super::found::Found;
use super::sieve::Weight;
use super::{LogGrammar, RawPiece, Startup};

/// So many of the newest lines of each kind wait to be read. As many as are kept of the last lines of a log, and more than
/// any rule about a row of samples looks at.
const OF_A_KIND: usize = 16;
/// When so many kinds wait, all that wait is read.
const KINDS: usize = 512;
/// And when it takes so many bytes.
const WAITING_BYTES: usize = 4 << 20;
/// Where a line says who wrote it: kinds are of one writer each.
const HEADER_BYTES: usize = 48;
/// The kind of the lines that tell nothing.
const SILENT: u64 = 0;

/// Folds a log of any length.
#[derive(Debug)]
pub struct Bulk<'g> {
    grammar: &'g LogGrammar,
    startup: Startup,
    passing: Passing,
}

impl<'g> Bulk<'g> {
    /// Nothing was read yet.
    pub fn new(grammar: &'g LogGrammar) -> Self {
        Bulk { grammar, startup: Startup::new(0), passing: Passing::default() }
    }

    /// Takes the next piece.
    pub fn take(&mut self, piece: &RawPiece<'_>) {
        let waits = self.passing.keep(self.grammar, &self.startup, piece).is_some();
        if !waits || self.passing.is_full() {
            self.catch_up();
        }
        if !waits {
            self.read(piece);
        }
    }

    /// The state at the end.
    pub fn finish(mut self) -> Startup {
        self.catch_up();
        self.startup
    }

    /// The state so far.
    pub(super) fn startup(&mut self) -> &mut Startup {
        self.catch_up();
        &mut self.startup
    }

    fn read(&mut self, piece: &RawPiece<'_>) {
        if let Some(piece) = piece.decode() {
            self.startup.take(self.grammar, &piece, 0);
        }
    }

    fn catch_up(&mut self) {
        for line in self.passing.drain() {
            self.read(&line.piece());
        }
    }
}

/// Lines that may wait until newer ones of their kind have made them old.
#[derive(Debug, Default)]
pub(in crate::gate) struct Passing {
    /// What the line at hand may fit; kept for its memory.
    found: Found,
    waiting: Waiting,
}

/// What a line that waits is otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gate) enum Passed {
    /// It shows that the server does something.
    Line,
    /// It may prove nothing.
    Heartbeat,
}

impl Passing {
    /// Keeps a line that may wait; `None` for one that is to be read, after those that wait.
    pub(in crate::gate) fn keep(
        &mut self,
        grammar: &LogGrammar,
        startup: &Startup,
        piece: &RawPiece<'_>,
    ) -> Option<Passed> {
        let kind = self.kind(grammar, startup, piece.bytes)?;
        self.waiting.keep(kind, piece);
        let is_heartbeat = kind != SILENT && grammar.sieve().may_be_heartbeat(&self.found);
        Some(if is_heartbeat { Passed::Heartbeat } else { Passed::Line })
    }

    /// The kind of a line that may wait.
    fn kind(&mut self, grammar: &LogGrammar, startup: &Startup, line: &[u8]) -> Option<u64> {
        if startup.is_in_traceback() {
            return None;
        }
        let sieve = grammar.sieve();
        match sieve.weigh(line, &mut self.found) {
            Weight::Silent => return Some(SILENT),
            Weight::Telling => return None,
            // It may end the start-up.
            Weight::Serving if !startup.is_serving() => return None,
            Weight::Serving | Weight::Sample => {}
        }
        if sieve.may_be_best(line, &self.found, startup.telling().best_length) {
            return None;
        }
        Some(self.found.hash(writer(line)) | 1)
    }

    /// Whether those that wait should be read.
    pub(in crate::gate) fn is_full(&self) -> bool {
        self.waiting.is_full()
    }

    /// Hands out those that wait, in the order in which they came.
    pub(in crate::gate) fn drain(&mut self) -> Vec<Line> {
        self.waiting.drain()
    }
}

/// A number for who wrote a line: its beginning, without the digits of clocks and counters.
fn writer(line: &[u8]) -> u64 {
    let mut hash: u64 = 0;
    let mut before = b' ';
    for &byte in &line[..line.len().min(HEADER_BYTES)] {
        // `TP3`, `rank=3`, `Worker-3`: such a number is a part of a name.
        let is_named = before.is_ascii_alphanumeric() || matches!(before, b'=' | b'-' | b'_');
        if is_named || !byte.is_ascii_digit() {
            hash = hash.rotate_left(7) ^ u64::from(byte);
            before = byte;
        }
    }
    hash
}

/// Lines that wait, a row for each kind.
#[derive(Debug, Default)]
struct Waiting {
    /// The kinds, in the order of their rows. They are few, or few different ones come one after the other.
    kinds: Vec<u64>,
    rows: Vec<VecDeque<Line>>,
    /// How many lines came.
    came: u64,
    bytes: usize,
}

/// A line that waited.
#[derive(Debug)]
pub(in crate::gate) struct Line {
    /// Its place among all that came.
    place: u64,
    line_no: u64,
    bytes: Vec<u8>,
    cut: bool,
}

impl Line {
    /// The line as it came.
    pub(in crate::gate) fn piece(&self) -> RawPiece<'_> {
        RawPiece { line_no: self.line_no, bytes: &self.bytes, cut: self.cut }
    }
}

impl Waiting {
    /// Keeps a line; the oldest one of a kind goes when there are enough.
    fn keep(&mut self, kind: u64, piece: &RawPiece<'_>) {
        let at = self.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            self.kinds.push(kind);
            self.rows.push(VecDeque::with_capacity(OF_A_KIND));
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        // Its memory goes over to what comes.
        let old = if row.len() >= OF_A_KIND { row.pop_front() } else { None };
        let mut bytes = old.map(|line| line.bytes).unwrap_or_default();
        self.bytes = self.bytes - bytes.len() + piece.bytes.len();
        bytes.clear();
        bytes.extend_from_slice(piece.bytes);
        row.push_back(Line { place: self.came, line_no: piece.line_no, bytes, cut: piece.cut });
        self.came += 1;
    }

    fn is_full(&self) -> bool {
        self.rows.len() > KINDS || self.bytes > WAITING_BYTES
    }

    /// Hands out all of them in the order in which they came.
    fn drain(&mut self) -> Vec<Line> {
        let mut lines: Vec<Line> = self.rows.drain(..).flatten().collect();
        self.kinds.clear();
        lines.sort_unstable_by_key(|line| line.place);
        self.bytes = 0;
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_kind_the_newest_lines_wait_and_come_out_in_their_order() {
        let mut waiting = Waiting::default();
        for line_no in 0..1000 {
            let bytes = format!("line {line_no}");
            waiting.keep(line_no % 3, &RawPiece { line_no, bytes: bytes.as_bytes(), cut: false });
        }
        waiting.keep(7, &RawPiece { line_no: 1000, bytes: b"rare", cut: true });
        assert!(!waiting.is_full());
        let lines = waiting.drain();
        assert_eq!(lines.len(), 3 * OF_A_KIND + 1);
        assert!(lines.is_sorted_by_key(|line| line.line_no));
        let last = lines.last().unwrap();
        assert_eq!((last.line_no, last.bytes.as_slice(), last.cut), (1000, b"rare".as_slice(), true));
        assert_eq!((waiting.bytes, waiting.drain().len()), (0, 0));
    }

    #[test]
    fn a_few_long_lines_are_too_many() {
        let mut waiting = Waiting::default();
        for kind in 0..8 {
            for line_no in 0..OF_A_KIND as u64 {
                waiting.keep(kind, &RawPiece { line_no, bytes: &[b'x'; 64 << 10], cut: false });
            }
        }
        assert!(waiting.is_full());
    }

    #[test]
    fn writers_differ_by_their_names_and_not_by_their_clocks() {
        let of = |line: &str| writer(line.as_bytes());
        assert_eq!(of("[2026-11-01 09:00:11 TP0] Decode"), of("[2026-11-01 10:59:59 TP0] Decode"));
        assert_ne!(of("[2026-11-01 09:00:11 TP0] Decode"), of("[2026-11-01 09:00:11 TP1] Decode"));
        assert_ne!(of("[2026-11-01 09:00:11 TP10] Decode"), of("[2026-11-01 09:00:11 TP11] Decode"));
        assert_eq!(of("slot print: id  3 | task 120 |"), of("slot print: id  1 | task 7 |"));
        assert_ne!(of("(VllmWorker rank=0 pid=301)"), of("(VllmWorker rank=1 pid=301)"));
    }
}
