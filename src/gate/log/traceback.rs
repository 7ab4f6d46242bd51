//! Tracebacks: of many lines only the last is a cause, and of several in a chain only the first.

use std::collections::BTreeMap;

use super::prefix::{Message, exception, is_error_name};

/// More of a traceback's frames is not kept.
const FRAMES_BYTES: usize = 8 << 10;
/// A traceback without an end is given up after so many lines.
const MOST_LINES: u32 = 400;
/// So many writers may be in the middle of one.
const MOST_WRITERS: usize = 64;

/// What begins one.
pub(super) const BEGIN: &str = "Traceback (most recent call last)";
/// What stands between two of a chain.
pub(super) const CHAIN: &str =
    "During handling of the above exception|The above exception was the direct cause of the following";

/// One that goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    /// The rank of the record that began it.
    pub(super) rank: Option<u32>,
    /// Its frames, as text.
    pub(super) frames: String,
    /// Whether another one of the same chain stood before it.
    pub(super) is_chained: bool,
    /// The rule that the record which began it fits.
    pub(super) opener: Option<usize>,
    lines: u32,
}

/// Where a line stands.
#[derive(Debug)]
pub(super) enum Place {
    /// In no traceback.
    Outside,
    /// Among the frames of one.
    Frame,
    /// It is the last of one.
    End(Trace),
}

/// Those that go on, by who writes them.
#[derive(Clone, Debug, Default)]
pub(super) struct Traces {
    open: BTreeMap<String, Trace>,
    chained: Option<String>,
}

impl Traces {
    /// Whether none goes on.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// One begins.
    pub(super) fn begin(&mut self, message: &Message<'_>, rank: Option<u32>, opener: Option<usize>) {
        let is_chained = self.chained.as_deref() == Some(message.writer);
        self.chained = None;
        if self.open.len() >= MOST_WRITERS {
            self.open.pop_first();
        }
        let trace = Trace { rank, is_chained, opener, ..Trace::default() };
        self.open.insert(message.writer.to_owned(), trace);
    }

    /// The next one of this writer belongs to the last.
    pub(super) fn chain(&mut self, message: &Message<'_>) {
        self.chained = Some(message.writer.to_owned());
    }

    /// Where a line stands.
    pub(super) fn place(&mut self, message: &Message<'_>) -> Place {
        let Some(trace) = self.open.get_mut(message.writer) else { return Place::Outside };
        trace.lines += 1;
        let text = message.text;
        if text.starts_with([' ', '\t', '^', '~']) || text.is_empty() {
            if trace.frames.len() < FRAMES_BYTES {
                trace.frames.push_str(text);
                trace.frames.push('\n');
            }
            if trace.lines > MOST_LINES {
                self.open.remove(message.writer);
            }
            return Place::Frame;
        }
        let is_end = exception(text).is_some_and(|name| {
            is_error_name(name) || text.contains(": ") || text.contains('.') || name.ends_with("Interrupt")
        });
        if is_end || trace.lines > MOST_LINES {
            let trace = self.open.remove(message.writer).unwrap_or_default();
            return if is_end { Place::End(trace) } else { Place::Outside };
        }
        Place::Outside
    }
}
