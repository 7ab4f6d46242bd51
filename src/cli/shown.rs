//! What was shown of a journal that somebody else writes, near or far.

use std::time::{Duration, Instant};

use super::out;
use super::screen::Screen;
use crate::event::{Entry, Event};
use crate::report::live::View;

/// It.
pub(crate) struct Shown {
    view: View,
    /// The next line to show.
    next: u64,
    events: bool,
    /// The moment of the last line on the run's own clock, and when it was read.
    last: Option<(u64, Instant)>,
    ended: bool,
}

impl Shown {
    /// Nothing yet. With `events` the lines themselves go to standard output.
    pub(crate) fn new(view: View, events: bool) -> Self {
        Shown { view, next: 0, events, last: None, ended: false }
    }

    /// Shows a line, unless it was shown before.
    pub(crate) fn see(&mut self, entry: &Entry, screen: &Screen) {
        // A run that was resumed has ended before, and goes on.
        self.ended = matches!(entry.event, Event::RunEnded { .. });
        if entry.seq < self.next {
            return;
        }
        self.next = entry.seq + 1;
        self.last = Some((entry.since_start_ns, Instant::now()));
        if self.events
            && let Ok(line) = serde_json::to_string(entry)
        {
            out::line(line);
        }
        for line in self.view.see(entry) {
            screen.line(&line);
        }
    }

    /// Passes a line by that only a newer orch understands.
    pub(crate) fn pass(&mut self, seq: u64) {
        self.next = self.next.max(seq + 1);
    }

    /// The number of the next line.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether the last line was one that ends a run.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// What is going on now.
    pub(crate) fn live(&self) -> Option<String> {
        self.view.live(self.now_ns())
    }

    /// The run's clock, as far as it can be known from here.
    fn now_ns(&self) -> u64 {
        let Some((at, read)) = self.last else { return 0 };
        at.saturating_add(u64::try_from(Duration::as_nanos(&read.elapsed())).unwrap_or(u64::MAX))
    }
}
