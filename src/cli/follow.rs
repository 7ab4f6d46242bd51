//! What a run says, line by line, for people or for machines, while it goes on.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::out;
use super::screen::{LIVE_INTERVAL, Screen};
use crate::clock::Clock;
use crate::event::{Entry, Event};
use crate::record::journal::{self, Heard, Listener};
use crate::report::live::View;

/// Follows a journal until the run has ended.
pub(crate) struct Follower {
    journal: PathBuf,
    listener: Listener,
    clock: Clock,
    /// The next line to show.
    next: u64,
    events: bool,
    view: View,
}

impl Follower {
    /// Follows from the journal's first line. With `events` its lines themselves go to standard output.
    pub(crate) fn new(journal: &Path, listener: Listener, clock: Clock, events: bool, view: View) -> Self {
        Follower { journal: journal.to_owned(), listener, clock, next: 0, events, view }
    }

    /// Leaves out the lines before this one: what an earlier orch has shown.
    pub(crate) fn starting_at(mut self, next: u64) -> Self {
        self.next = next;
        self
    }

    /// Shows everything until the run ends, or until `over`: a journal that cannot be written has no last line.
    pub(crate) async fn follow(mut self, screen: &Screen, over: &CancellationToken) {
        // What was written before anybody listened.
        if self.catch_up(screen) {
            return;
        }
        let mut tick = tokio::time::interval(LIVE_INTERVAL);
        loop {
            tokio::select! {
                biased;
                heard = self.listener.next() => {
                    let ended = match heard {
                        None => true,
                        Some(Heard::Entry(entry)) => self.show(&entry, screen),
                        // The journal has what the channel could not hold.
                        Some(Heard::Missed(_)) => self.catch_up(screen),
                    };
                    if ended {
                        return;
                    }
                }
                () = over.cancelled() => {
                    self.catch_up(screen);
                    return;
                }
                _ = tick.tick(), if screen.is_live() => screen.live(self.view.live(self.clock.nanos())),
            }
        }
    }

    fn catch_up(&mut self, screen: &Screen) -> bool {
        let Ok(reading) = journal::read(&self.journal) else { return false };
        // The last line is the last: what tells that the run has ended comes after everything else.
        reading.entries().any(|entry| self.show(&entry, screen))
    }

    /// Shows a line that was not shown yet; true when it is the last one.
    fn show(&mut self, entry: &Entry, screen: &Screen) -> bool {
        if entry.seq < self.next {
            return false;
        }
        self.next = entry.seq + 1;
        if self.events
            && let Ok(line) = serde_json::to_string(entry)
        {
            out::line(line);
        }
        for line in self.view.see(entry) {
            screen.line(&line);
        }
        matches!(entry.event, Event::RunEnded { .. })
    }
}
