//! A log that is read as a whole, after the fact.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::bulk::Bulk;
use super::order::wall_clock;
use super::{Failure, LogGrammar, Nature, RawPiece, Splitter, Startup};

/// A log is read in blocks of this size.
const BLOCK_BYTES: usize = 256 << 10;

/// What a whole log tells.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its state at the end; its failures are those after the line that was asked for.
    pub startup: Startup,
    /// The line that looked like a cause before that: the server lived on, so it explains an end only if nothing else does.
    pub earlier: Option<Failure>,
}

/// Reads a log to its end. Without the moments at which its lines came, spans are not known; phases, facts and failures
/// are. What stands up to line `after_line` was said before the server was ready: its failures were survived.
pub fn read(path: &Path, grammar: &LogGrammar, after_line: Option<u64>) -> io::Result<Told> {
    let mut whole = Whole { bulk: Bulk::new(grammar), ready_at: after_line, survived: Vec::new() };
    pieces(File::open(path)?, |piece| whole.take(&piece))?;
    whole.ready();
    Ok(Told {
        startup: whole.bulk.finish(),
        earlier: whole.survived.into_iter().find(|failure| !matches!(failure.nature, Nature::Wraps | Nature::Result)),
    })
}

/// Reads a log to its end, from wherever it comes.
pub fn read_all(log: impl Read, grammar: &LogGrammar) -> io::Result<Startup> {
    let mut bulk = Bulk::new(grammar);
    pieces(log, |piece| bulk.take(&piece))?;
    Ok(bulk.finish())
}

/// [`read_all`], with every piece read and none passed over: slow, and what the quick way is held against.
pub fn read_each(log: impl Read, grammar: &LogGrammar) -> io::Result<Startup> {
    let mut startup = Startup::new(0);
    pieces(log, |raw| {
        if let Some(piece) = raw.decode() {
            startup.take_unsifted(grammar, &piece, 0);
        }
    })?;
    Ok(startup)
}

/// The last clock at or before a line, in seconds of a day; `None` where none is.
pub(super) fn clock_at(log: impl Read, line_no: u64) -> io::Result<Option<u64>> {
    let mut last = None;
    pieces(log, |piece| {
        if piece.line_no <= line_no {
            last = wall_clock(piece.bytes).or(last);
        }
    })?;
    Ok(last)
}

/// Gives the pieces of a log in their order.
fn pieces(mut log: impl Read, mut take: impl FnMut(RawPiece<'_>)) -> io::Result<()> {
    let mut splitter = Splitter::default();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match log.read(&mut block) {
            Ok(0) => break,
            Ok(read) => splitter.feed_raw(&block[..read], &mut take),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    splitter.finish_raw(take);
    Ok(())
}

struct Whole<'a> {
    bulk: Bulk<'a>,
    /// The last line before readiness; `None` once it is past.
    ready_at: Option<u64>,
    survived: Vec<Failure>,
}

impl Whole<'_> {
    fn take(&mut self, piece: &RawPiece<'_>) {
        if self.ready_at.is_some_and(|line| piece.line_no > line) {
            self.ready();
        }
        self.bulk.take(piece);
    }

    /// Everything up to readiness was read, if it was asked for and is not past already.
    fn ready(&mut self) {
        if self.ready_at.take().is_some() {
            let startup = self.bulk.startup();
            // As the gate does: no failure of a phase of the start-up can come after it.
            startup.finish(0);
            self.survived = startup.survived();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::log::{FailureRule, LogRules};

    fn grammar() -> LogGrammar {
        let rule = |kind: &str, pattern: &str| FailureRule {
            kind: kind.into(),
            pattern: pattern.into(),
            ..FailureRule::default()
        };
        let failures = vec![rule("net", "cannot reach"), rule("oom_runtime", "out of memory")];
        LogGrammar::new(&LogRules { failures, ..LogRules::default() }).unwrap()
    }

    /// A failure's kind and line.
    type Line = Option<(String, u64)>;

    /// The cause, and the line that looked like one earlier.
    fn kinds(text: &str, after_line: Option<u64>) -> (Line, Line) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        std::fs::write(&path, text).unwrap();
        let told = read(&path, &grammar(), after_line).unwrap();
        let pair = |failure: &Failure| (failure.kind.clone(), failure.line_no);
        (told.startup.root().map(pair), told.earlier.as_ref().map(pair))
    }

    #[test]
    fn what_a_server_lived_through_is_not_why_it_died() {
        let log = "cannot reach the hub\nready\nout of memory\ncannot reach the hub\n";
        let (net, oom) = (Some(("net".to_owned(), 1)), Some(("oom_runtime".to_owned(), 3)));
        assert_eq!(kinds(log, None), (net.clone(), None));
        assert_eq!(kinds(log, Some(2)), (oom, net.clone()));
        // The same kind again, now deadly.
        assert_eq!(kinds(log, Some(3)), (Some(("net".to_owned(), 4)), net));
    }

    #[test]
    fn a_log_that_says_nothing_after_readiness_has_no_cause_but_the_earlier_line() {
        let net = Some(("net".to_owned(), 1));
        assert_eq!(kinds("cannot reach the hub\nready\nserving\n", Some(2)), (None, net.clone()));
        assert_eq!(kinds("cannot reach the hub\nready\n", Some(2)), (None, net));
    }
}
