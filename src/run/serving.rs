//! The server's log while a step is measured: from the place where it ended when the measurement began.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::gate::LogGrammar;
use crate::gate::log::{Serving, Splitter};
use crate::measure::Logged;

/// No more than this is read of one step's log: a server that writes without end is not waited for.
const MOST_BYTES: u64 = 1 << 30;

/// A server's log and how it is read.
#[derive(Clone, Copy, Debug)]
pub struct ServerLog<'a> {
    /// The file.
    pub path: &'a Path,
    /// The engine's rules.
    pub grammar: &'a LogGrammar,
}

impl ServerLog<'_> {
    /// Where it ends now. What is written after this was said later.
    pub(super) fn end(&self) -> Option<u64> {
        std::fs::metadata(self.path).ok().map(|file| file.len())
    }

    /// What it told from a place on. `None` where the engine's log tells nothing of this, or cannot be read.
    pub(super) fn told(&self, from: Option<u64>) -> Option<Logged> {
        let mut reading = Reading::from(*self, from?)?;
        reading.more().ok()?;
        // A line without its end is still being written.
        Some(reading.serving.told())
    }
}

/// A log that is read from a place on, each byte of it once.
struct Reading<'a> {
    path: &'a Path,
    from: u64,
    at: u64,
    /// Holds the beginning of a line that is still being written.
    splitter: Splitter,
    serving: Serving<'a>,
}

impl<'a> Reading<'a> {
    /// `None` where the engine's log tells nothing.
    fn from(log: ServerLog<'a>, from: u64) -> Option<Self> {
        let ServerLog { path, grammar } = log;
        let tells = !grammar.serving().is_empty();
        tells.then(|| Reading { path, from, at: from, splitter: Splitter::default(), serving: Serving::new(grammar) })
    }

    /// Reads what was added.
    fn more(&mut self) -> io::Result<()> {
        let mut file = File::open(self.path)?;
        file.seek(SeekFrom::Start(self.at))?;
        let Reading { from, at, splitter, serving, .. } = self;
        let mut block = vec![0; 64 << 10];
        while *at - *from <= MOST_BYTES {
            let read = file.read(&mut block)?;
            if read == 0 {
                break;
            }
            *at += read as u64;
            splitter.feed(&block[..read], |piece| serving.take(&piece));
        }
        Ok(())
    }
}

/// Whether the log tells of compiling, asked again and again.
pub(super) struct Compiled<'a> {
    reading: Option<Reading<'a>>,
    lines: u64,
}

impl<'a> Compiled<'a> {
    /// Looks at what is written from now on.
    pub(super) fn from_now(log: Option<ServerLog<'a>>) -> Self {
        Compiled { reading: log.and_then(|log| Reading::from(log, log.end()?)), lines: 0 }
    }

    /// Whether it told of more than at the last look.
    pub(super) fn more(&mut self) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        // What cannot be read now may be readable at the next look.
        let _ = reading.more();
        let told = reading.serving.so_far().compiled.unwrap_or(0);
        std::mem::replace(&mut self.lines, told) < told
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::gate::log::{EventRule, LogRules, SampleRule};

    #[test]
    fn only_what_was_said_after_the_mark_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        let mut rules = LogRules::default();
        let fields = vec![r"running: (?<running_requests>\d+)".to_owned()];
        rules.serving.samples = vec![SampleRule { pattern: "Decode".to_owned(), fields }];
        let grammar = LogGrammar::new(&rules).unwrap();
        let log = ServerLog { path: &path, grammar: &grammar };
        assert_eq!(log.end(), None);
        std::fs::write(&path, "Decode running: 99\n").unwrap();
        let mark = log.end();
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"Decode running: 3\nDecode running: 5\nDecode running: 7").unwrap();
        let told = log.told(mark).unwrap();
        assert_eq!((told.samples, told.most_running), (2, Some(5)));
        assert_eq!(log.told(None), None);
        let silent = LogGrammar::new(&LogRules::default()).unwrap();
        assert_eq!(
            ServerLog { path: &path, grammar: &silent }.told(mark),
            None,
            "this engine's log tells nothing of it"
        );
    }

    #[test]
    fn compiling_is_told_once_a_line_and_a_half_written_line_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        let mut rules = LogRules::default();
        rules.serving.events = vec![EventRule { event: "compiled".to_owned(), pattern: "autotune".to_owned() }];
        let grammar = LogGrammar::new(&rules).unwrap();
        std::fs::write(&path, "autotune of long ago\n").unwrap();
        let mut compiled = Compiled::from_now(Some(ServerLog { path: &path, grammar: &grammar }));
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        assert!(!compiled.more());
        file.write_all(b"Running auto").unwrap();
        assert!(!compiled.more());
        file.write_all(b"tune\nserving\n").unwrap();
        assert!(compiled.more());
        assert!(!compiled.more());
        // What was read is not read again: it may be gone.
        let there = std::fs::metadata(&path).unwrap().len();
        std::fs::write(&path, vec![b'\n'; there as usize]).unwrap();
        assert!(!compiled.more());
        file.write_all(b"autotune\n").unwrap();
        assert!(compiled.more());
        assert!(!Compiled::from_now(None).more());
    }
}
