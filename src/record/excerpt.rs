//! The parts of a log that somebody needs who was not there: its beginning, what stands around a line, and its end. The log
//! itself may be larger than the memory.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read};

/// Lines that are kept at the beginning,
const HEAD: u64 = 200;
/// before the line that is asked for,
const BEFORE: u64 = 300;
/// after it,
const AFTER: u64 = 150;
/// and at the end.
const TAIL: usize = 150;
/// Of a line, so much of its end is kept: of a progress bar the last states say enough.
const LINE_BYTES: usize = 4000;

/// The log around line `at`, counted by line feeds, with its beginning and its end; without a line, those two. What is left
/// out is said.
pub(super) fn around(mut log: impl Read, at: Option<u64>) -> io::Result<String> {
    let mut excerpt = Excerpt { at, ..Excerpt::default() };
    let mut block = vec![0; 64 << 10];
    loop {
        match log.read(&mut block) {
            Ok(0) => break,
            Ok(read) => excerpt.feed(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(excerpt.text())
}

#[derive(Default)]
struct Excerpt {
    at: Option<u64>,
    /// The number of the line at hand, from 1.
    number: u64,
    /// As much of it as came and is kept.
    line: Vec<u8>,
    kept: Vec<(u64, String)>,
    tail: VecDeque<(u64, String)>,
}

impl Excerpt {
    fn feed(&mut self, block: &[u8]) {
        let mut parts = block.split(|byte| *byte == b'\n');
        if let Some(rest) = parts.next() {
            self.add(rest);
        }
        for part in parts {
            self.end();
            self.add(part);
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.line.extend_from_slice(&bytes[bytes.len().saturating_sub(LINE_BYTES)..]);
        if self.line.len() > 2 * LINE_BYTES {
            self.line.drain(..self.line.len() - LINE_BYTES);
        }
    }

    /// The line at hand is whole.
    fn end(&mut self) {
        self.number += 1;
        let line = (self.number, last_bytes(&self.line));
        self.line.clear();
        let is_near = |at: u64| self.number + BEFORE >= at && self.number <= at + AFTER;
        if self.number <= HEAD || self.at.is_some_and(is_near) {
            self.kept.push(line);
            return;
        }
        // What stands before lines that are kept is no end.
        self.tail.push_back(line);
        if self.tail.len() > TAIL {
            self.tail.pop_front();
        }
    }

    fn text(mut self) -> String {
        self.end();
        let first = self.number.saturating_sub(TAIL as u64);
        let mut lines = self.kept;
        lines.extend(self.tail.into_iter().filter(|(number, _)| *number > first));
        lines.sort_by_key(|(number, _)| *number);
        let mut text = String::new();
        let mut next = 1;
        for (number, line) in lines {
            // A `String` takes whatever is written to it.
            if number > next {
                let _ = writeln!(text, "[... lines {next} to {} are left out ...]", number - 1);
            }
            let _ = writeln!(text, "{line}");
            next = number + 1;
        }
        text
    }
}

/// The end of a line, from a whole character on.
fn last_bytes(line: &[u8]) -> String {
    let from = line.len().saturating_sub(LINE_BYTES);
    let is_inside = |byte: &u8| from > 0 && byte & 0xc0 == 0x80;
    let inside = line[from..].iter().take(3).take_while(|byte| is_inside(byte)).count();
    String::from_utf8_lossy(&line[from + inside..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(log: &str, at: Option<u64>) -> String {
        around(log.as_bytes(), at).unwrap()
    }

    #[test]
    fn a_log_is_cut_around_its_cause_and_says_what_is_left_out() {
        let log: String = (1..=5000).map(|number| format!("line {number}\n")).collect();
        let text = cut(&log, Some(2500));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[199]), ("line 1", "line 200"));
        assert_eq!(lines[200], "[... lines 201 to 2199 are left out ...]");
        assert_eq!((lines[201], lines[501]), ("line 2200", "line 2500"));
        assert!(text.contains("line 2650\n[... lines 2651 to 4851 are left out ...]\nline 4852\n"), "{text}");
        assert!(text.contains("line 5000\n"));
        assert_eq!(cut("a\nb", Some(1)), "a\nb\n");
        assert_eq!(cut("a\nb", Some(99)), "a\nb\n", "a line that is not there");
        assert_eq!(cut(&"ü".repeat(LINE_BYTES), None).len(), LINE_BYTES + 1);
    }

    #[test]
    fn a_cause_near_the_end_leaves_nothing_out_twice() {
        let log: String = (1..=1000).map(|number| format!("line {number}\n")).collect();
        let text = cut(&log, Some(990));
        assert_eq!(text.matches("left out").count(), 1);
        assert!(text.contains("line 200\n[... lines 201 to 689 are left out ...]\nline 690\n"), "{text}");
        assert!(text.ends_with("line 999\nline 1000\n\n"));
    }

    #[test]
    fn a_line_without_an_end_costs_no_memory() {
        let mut excerpt = Excerpt::default();
        for _ in 0..1000 {
            excerpt.feed(&[b'x'; 64 << 10]);
        }
        assert!(excerpt.line.capacity() <= 4 * LINE_BYTES);
        excerpt.feed(b"end");
        assert!(excerpt.text().ends_with("xend\n"));
    }
}
