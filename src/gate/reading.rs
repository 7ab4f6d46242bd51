//! A start as its log and looks at it tell it, written down as it goes on.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::error::{GateError, LogState};
use super::life::Look;
use super::log::{LogGrammar, Splitter};
use super::prober::Proven;
use super::starting::{Conduct, End, Said, Starting};
use super::wait::{Pace, Ready};
use crate::clock::{Clock, Nanos};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::host::{Follow, Local};
use crate::render::Readiness;

/// The start as far as it was seen.
pub(super) struct Reading<'a> {
    path: &'a Path,
    follow: Follow<Local>,
    splitter: Splitter,
    starting: Starting<'a>,
    clock: &'a Clock,
    launched: Nanos,
    sign: Option<regex::Regex>,
    sign_seen: watch::Sender<bool>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        path: &'a Path,
        grammar: &'a LogGrammar,
        conduct: &'a Conduct,
        clock: &'a Clock,
        launched: Nanos,
        sign: Option<regex::Regex>,
        sign_seen: watch::Sender<bool>,
    ) -> Self {
        let follow = Follow::new(Local, path.to_owned(), 0);
        let starting = Starting::new(conduct, grammar, launched);
        Reading { path, follow, splitter: Splitter::default(), starting, clock, launched, sign, sign_seen }
    }

    /// How many lines of its log were read.
    pub(super) fn lines(&self) -> u64 {
        self.splitter.lines()
    }

    /// What is written down before anything else.
    pub(super) fn began(&self, emit: &dyn Emit) -> Result<(), EmitError> {
        tell(self.starting.began(), emit)
    }

    /// Reads what was added.
    pub(super) async fn more(&mut self, emit: &dyn Emit) -> Result<(), GateError> {
        let now = self.clock.nanos();
        let mut said = Vec::new();
        let Self { splitter, starting, sign, sign_seen, follow, .. } = self;
        let mut take = |piece: &super::log::Piece| {
            said.extend(starting.take(piece, now));
            if sign.as_ref().is_some_and(|sign| sign.is_match(&piece.text)) {
                sign_seen.send_replace(true);
            }
        };
        follow.more(|block| splitter.feed(block, |piece| take(&piece))).await?;
        tell(said, emit)?;
        Ok(())
    }

    /// Takes a look from outside.
    pub(super) fn look(&mut self, look: &Look, emit: &dyn Emit) -> Result<(), EmitError> {
        let now = self.clock.nanos();
        tell(self.starting.look(look, now), emit)
    }

    /// Judges what is known now; gives the rule by which the start is over, if one is.
    pub(super) fn tick(&mut self, emit: &dyn Emit) -> Result<Option<End>, EmitError> {
        if let Some(end) = self.splitter.open_end() {
            self.starting.stands(&end);
        }
        let (said, end) = self.starting.tick(self.clock.nanos());
        tell(said, emit)?;
        Ok(end)
    }

    /// Reads to the end of a log whose server has ended. Workers may still be writing why.
    pub(super) async fn last_words(&mut self, pace: Pace, emit: &dyn Emit) -> Result<(), GateError> {
        loop {
            let before = self.follow.offset();
            self.more(emit).await?;
            if self.follow.offset() == before {
                break;
            }
            sleep(pace.log).await;
        }
        let now = self.clock.nanos();
        let mut said = Vec::new();
        let Self { splitter, starting, .. } = self;
        splitter.finish(|piece| said.extend(starting.take(&piece, now)));
        said.extend(starting.catch_up(now));
        tell(said, emit)?;
        Ok(())
    }

    /// The server has proven itself.
    pub(super) fn ready(
        mut self,
        proven: Proven,
        log_lines: u64,
        readiness: &Readiness,
        emit: &dyn Emit,
    ) -> Result<Ready, GateError> {
        let after = proven.after;
        // What was said and seen in the last moment.
        self.tick(emit)?;
        tell(self.starting.ready(self.launched.saturating_add(nanos(after))), emit)?;
        let startup = self.starting.startup();
        let ready = Ready {
            base_url: readiness.base_url.clone(),
            model: proven.model,
            after,
            tokens: proven.tokens,
            phases: startup.phases().to_vec(),
            facts: startup.facts().clone(),
            log_lines,
        };
        let event = Event::Ready {
            ready_s: Some(after.as_secs_f64()),
            tokens: ready.tokens,
            model: ready.model.clone(),
            base_url: ready.base_url.clone(),
        };
        emit.emit(Scope::Run, event)?;
        Ok(ready)
    }

    /// How long it may take, downloads included.
    pub(super) fn limit(&self) -> Duration {
        Duration::from_nanos(self.starting.deadline().saturating_sub(self.launched))
    }

    /// Where the start stands, for an error.
    pub(super) fn state(&self) -> Box<LogState> {
        let now = self.clock.nanos();
        let (startup, life) = (self.starting.startup(), self.starting.life());
        Box::new(LogState {
            path: self.path.to_owned(),
            phase: startup.phase().to_owned(),
            elapsed: Duration::from_secs_f64(startup.elapsed_s(now)),
            silent: Duration::from_nanos(now.saturating_sub(life.log_at())),
            root: startup.root().cloned(),
            looks_like: self.starting.looks_like(now),
            consequence: self.starting.consequence().cloned(),
            last_words: startup.last_words(),
        })
    }
}

fn tell(said: Said, emit: &dyn Emit) -> Result<(), EmitError> {
    said.into_iter().try_for_each(|(scope, event)| emit.emit(scope, event))
}

/// A span in the unit of the clock.
pub(super) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Told(Mutex<Vec<Event>>);

    impl Emit for Told {
        fn emit(&self, _scope: Scope, event: Event) -> Result<(), EmitError> {
            self.0.lock().unwrap().push(event);
            Ok(())
        }
    }

    #[test]
    fn a_server_was_ready_when_its_answer_ended_however_late_that_is_told() {
        let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let grammar = LogGrammar::new(&super::super::log::LogRules::default()).unwrap();
        let (sign_seen, _watch) = watch::channel(true);
        let conduct = Conduct::default();
        clock.advance(Duration::from_secs(1));
        let reading = Reading::new(Path::new("/no/log"), &grammar, &conduct, &clock, clock.nanos(), None, sign_seen);
        clock.advance(Duration::from_secs(9));
        let readiness = Readiness {
            base_url: "http://127.0.0.1:30000".to_owned(),
            health: None,
            models: None,
            model: None,
            log: None,
            tokens: 2,
            timeout_s: None,
            grammar: crate::profile::EngineKind::Command,
        };
        let proven = Proven { model: "m".to_owned(), tokens: 2, after: Duration::from_secs(7) };
        let told = Told(Mutex::default());
        let ready = reading.ready(proven, 3, &readiness, &told).unwrap();
        assert_eq!((ready.after, ready.log_lines), (Duration::from_secs(7), 3));
        let phases: Vec<_> = ready.phases.iter().map(|phase| (phase.name.as_str(), phase.s)).collect();
        assert_eq!(phases, [("launch", 7.0)]);
        let last = told.0.into_inner().unwrap().pop().unwrap();
        assert!(matches!(last, Event::Ready { ready_s: Some(7.0), .. }), "{last:?}");
    }
}
