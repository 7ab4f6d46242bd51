//! Waiting for a server: its log, its pages, its end and the limit, all at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::error::{GateError, LogState};
use super::log::{Change, LogGrammar, Phase, Splitter, Startup};
use super::probe::{Answer, Probes};
use super::proof::{self, NoProof};
use crate::clock::{Clock, Nanos};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::host::{Follow, Local};
use crate::launch::{Exited, PortOwner, Watched};
use crate::render::Readiness;

/// The limit of a start that has no history.
const AUTO_LIMIT: Duration = Duration::from_secs(20 * 60);

/// How often is looked, and how long a wrong answer may still turn right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Between two looks at the log.
    pub log: Duration,
    /// Between two rounds of probes.
    pub probe: Duration,
    /// How long a server that answers may give the same unusable answer before it is given up.
    pub unfit: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { log: Duration::from_millis(100), probe: Duration::from_millis(250), unfit: Duration::from_secs(10) }
    }
}

/// A server that has proven itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// Where it answers, without a path.
    pub base_url: String,
    /// The model's name as served.
    pub model: String,
    /// From the launch to the last token of the proof.
    pub after: Duration,
    /// Tokens generated as proof.
    pub tokens: u64,
    /// The phases of the start-up, in the order of their ends.
    pub phases: Vec<Phase>,
    /// What the log told.
    pub facts: BTreeMap<String, Value>,
    /// Lines of the log that were read before it was ready: a failure in a later line is one under load.
    pub log_lines: u64,
}

/// Waits until a server has generated tokens, or will not. Silence alone never ends it.
pub async fn wait(
    server: &dyn Watched,
    log: &Path,
    readiness: &Readiness,
    grammar: &LogGrammar,
    clock: &Clock,
    emit: &dyn Emit,
) -> Result<Ready, GateError> {
    wait_at(Pace::default(), server, log, readiness, grammar, clock, emit).await
}

/// [`wait`], at another pace.
pub async fn wait_at(
    pace: Pace,
    server: &dyn Watched,
    log: &Path,
    readiness: &Readiness,
    grammar: &LogGrammar,
    clock: &Clock,
    emit: &dyn Emit,
) -> Result<Ready, GateError> {
    let plan = |why: String| GateError::Plan { why };
    let probes = Probes::new(&readiness.base_url).map_err(|error| plan(error.to_string()))?;
    let port = reqwest::Url::parse(&readiness.base_url)
        .map_err(|error| plan(format!("`{}` is no URL: {error}", readiness.base_url)))?
        .port_or_known_default();
    let sign = readiness.log.as_deref().map(regex::Regex::new).transpose();
    let sign = sign.map_err(|error| plan(format!("the sign in the log: {error}")))?;
    let limit = readiness.timeout_s.map_or(Ok(AUTO_LIMIT), Duration::try_from_secs_f64);
    let limit = limit.map_err(|error| plan(format!("the limit: {error}")))?;

    let (sign_seen, sign_watch) = watch::channel(sign.is_none());
    let (tell, mut told) = mpsc::unbounded_channel();
    let prober = Prober { pace, server, readiness, probes, port, sign: sign_watch, tell, last: BTreeMap::new() };
    let proving = prober.prove();
    tokio::pin!(proving);
    let launched = clock.nanos().saturating_sub(nanos(server.launched().elapsed()));
    let mut reading = Reading::new(log, grammar, clock, launched, sign, sign_seen);
    reading.began(emit)?;
    let deadline = Instant::from_std(server.launched()).checked_add(limit);
    let deadline = deadline.ok_or_else(|| plan(format!("the limit of {} s is too long", limit.as_secs())))?;
    let mut answers: BTreeMap<String, String> = BTreeMap::new();
    let mut look = interval(pace.log);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let outcome = loop {
        tokio::select! {
            // In this order: an end explains what a probe sees at the same moment.
            biased;
            exited = server.exited() => break Outcome::Exited(exited),
            Some((probe, answer)) = told.recv() => {
                emit.emit(Scope::Run, Event::ProbeAnswered { probe: probe.clone(), answer: answer.clone() })?;
                answers.insert(probe, answer);
            }
            proven = &mut proving => break proven.map_or_else(Outcome::Unfit, Outcome::Proven),
            _ = look.tick() => reading.more(emit).await?,
            () = sleep_until(deadline) => break Outcome::TimedOut,
        }
    };
    // What was answered in the last moment.
    while let Ok((probe, answer)) = told.try_recv() {
        emit.emit(Scope::Run, Event::ProbeAnswered { probe: probe.clone(), answer: answer.clone() })?;
        answers.insert(probe, answer);
    }
    match outcome {
        Outcome::Proven(proven) => {
            // What is said from here on may already be about the load.
            let log_lines = reading.splitter.lines();
            reading.more(emit).await?;
            reading.ready(proven, log_lines, readiness, emit)
        }
        Outcome::Exited(exited) => {
            reading.last_words(pace, emit).await?;
            server.tell_exit(exited, emit)?;
            Err(GateError::Exited { exited, log: reading.state() })
        }
        Outcome::TimedOut => {
            reading.more(emit).await?;
            Err(GateError::TimedOut { limit, answers: answers.into_iter().collect(), log: reading.state() })
        }
        Outcome::Unfit(Unfit { probe, answer, remedy }) => {
            reading.more(emit).await?;
            Err(GateError::Unfit { probe, answer, remedy, log: reading.state() })
        }
    }
}

enum Outcome {
    Proven(Proven),
    Unfit(Unfit),
    Exited(Exited),
    TimedOut,
}

/// The log as far as it was read.
struct Reading<'a> {
    path: &'a Path,
    follow: Follow<Local>,
    splitter: Splitter,
    startup: Startup,
    grammar: &'a LogGrammar,
    clock: &'a Clock,
    launched: Nanos,
    sign: Option<regex::Regex>,
    sign_seen: watch::Sender<bool>,
}

impl<'a> Reading<'a> {
    fn new(
        path: &'a Path,
        grammar: &'a LogGrammar,
        clock: &'a Clock,
        launched: Nanos,
        sign: Option<regex::Regex>,
        sign_seen: watch::Sender<bool>,
    ) -> Self {
        let follow = Follow::new(Local, path.to_owned(), 0);
        let (splitter, startup) = (Splitter::default(), Startup::new(launched));
        Reading { path, follow, splitter, startup, grammar, clock, launched, sign, sign_seen }
    }

    fn began(&self, emit: &dyn Emit) -> Result<(), EmitError> {
        emit.emit(Scope::Run, Event::PhaseBegan { phase: self.startup.phase().to_owned() })
    }

    /// Reads what was added.
    async fn more(&mut self, emit: &dyn Emit) -> Result<(), GateError> {
        let now = self.clock.nanos();
        let mut changes = Vec::new();
        let Self { splitter, startup, grammar, sign, sign_seen, follow, .. } = self;
        let mut take = |piece: &super::log::Piece| {
            changes.extend(startup.take(grammar, piece, now));
            if sign.as_ref().is_some_and(|sign| sign.is_match(&piece.text)) {
                sign_seen.send_replace(true);
            }
        };
        follow.more(|block| splitter.feed(block, |piece| take(&piece))).await?;
        tell(changes, emit)?;
        Ok(())
    }

    /// Reads to the end of a log whose server has ended. Workers may still be writing why.
    async fn last_words(&mut self, pace: Pace, emit: &dyn Emit) -> Result<(), GateError> {
        loop {
            let before = self.follow.offset();
            self.more(emit).await?;
            if self.follow.offset() == before {
                break;
            }
            sleep(pace.log).await;
        }
        let now = self.clock.nanos();
        let mut changes = Vec::new();
        let Self { splitter, startup, grammar, .. } = self;
        splitter.finish(|piece| changes.extend(startup.take(grammar, &piece, now)));
        tell(changes, emit)?;
        Ok(())
    }

    fn ready(
        mut self,
        proven: Proven,
        log_lines: u64,
        readiness: &Readiness,
        emit: &dyn Emit,
    ) -> Result<Ready, GateError> {
        let after = proven.after;
        tell(self.startup.finish(self.launched.saturating_add(nanos(after))), emit)?;
        let ready = Ready {
            base_url: readiness.base_url.clone(),
            model: proven.model,
            after,
            tokens: proven.tokens,
            phases: self.startup.phases().to_vec(),
            facts: self.startup.facts().clone(),
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

    fn state(&self) -> Box<LogState> {
        let now = self.clock.nanos();
        Box::new(LogState {
            path: self.path.to_owned(),
            phase: self.startup.phase().to_owned(),
            elapsed: Duration::from_secs_f64(self.startup.elapsed_s(now)),
            silent: Duration::from_nanos(now.saturating_sub(self.startup.last_at())),
            root: self.startup.root().cloned(),
            last_words: self.startup.last_words(),
        })
    }
}

fn tell(changes: Vec<Change>, emit: &dyn Emit) -> Result<(), EmitError> {
    for change in changes {
        let (scope, event) = match change {
            Change::Began { phase } => (Scope::Run, Event::PhaseBegan { phase }),
            Change::Progress { phase, done, total, unit } => {
                (Scope::Run, Event::PhaseProgress { phase, done, total, unit })
            }
            Change::Ended { phase, s } => (Scope::Run, Event::PhaseEnded { phase, s }),
            Change::Fact { key, value, rank } => (rank.map_or(Scope::Run, Scope::Rank), Event::Fact { key, value }),
            Change::Failure(failure) => {
                let scope = failure.rank.map_or(Scope::Run, Scope::Rank);
                let super::log::Failure { kind, line, line_no, remedy, .. } = failure;
                (scope, Event::FailureSeen { kind, line, line_no, remedy })
            }
        };
        emit.emit(scope, event)?;
    }
    Ok(())
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A server that generated tokens.
pub(super) struct Proven {
    pub(super) model: String,
    pub(super) tokens: u64,
    /// From the launch to the end of the answer.
    pub(super) after: Duration,
}

/// An answer that will not do.
pub(super) struct Unfit {
    pub(super) probe: String,
    pub(super) answer: String,
    pub(super) remedy: String,
}

/// Asks, round after round, until there is a proof.
pub(super) struct Prober<'a> {
    pub(super) pace: Pace,
    pub(super) server: &'a dyn Watched,
    pub(super) readiness: &'a Readiness,
    pub(super) probes: Probes,
    pub(super) port: Option<u16>,
    pub(super) sign: watch::Receiver<bool>,
    pub(super) tell: mpsc::UnboundedSender<(String, String)>,
    pub(super) last: BTreeMap<String, String>,
}

/// How a round ended without a proof.
enum Round {
    /// It is not there yet.
    NotYet,
    /// It is there, and its answer will not do.
    Wrong(Unfit),
}

impl Prober<'_> {
    pub(super) async fn prove(mut self) -> Result<Proven, Unfit> {
        // Since when the same answer would not do.
        let mut wrong: Option<(String, Instant)> = None;
        loop {
            match self.round().await {
                Ok(proven) => return Ok(proven),
                Err(Round::NotYet) => wrong = None,
                Err(Round::Wrong(unfit)) => match &wrong {
                    Some((answer, since)) if *answer == unfit.answer => {
                        if since.elapsed() >= self.pace.unfit {
                            return Err(unfit);
                        }
                    }
                    _ => wrong = Some((unfit.answer, Instant::now())),
                },
            }
            sleep(self.pace.probe).await;
        }
    }

    /// From the cheapest sign to the proof; the first that is missing ends the round.
    async fn round(&mut self) -> Result<Proven, Round> {
        if !*self.sign.borrow() {
            return Err(Round::NotYet);
        }
        if let Some(path) = self.readiness.health.clone() {
            // Whatever else it answers, it may be the answer of a server that is not there yet.
            self.page(&path).await.map_err(|_| Round::NotYet)?;
        }
        let listed = match self.readiness.models.clone() {
            Some(path) => Some(self.models(&path).await?),
            None => self.readiness.model.clone(),
        };
        self.is_ours()?;
        let proof = proof::prove(&self.probes, listed.as_deref(), self.readiness.tokens).await;
        // Now, and not after the looks at processes and the log that follow: they take their time on a busy host.
        let after = self.server.launched().elapsed();
        let (path, proof) = match proof {
            Ok(proven) => proven,
            Err((path, NoProof::NotYet(answer))) => {
                self.answered(path, &answer);
                return Err(Round::NotYet);
            }
            Err((path, NoProof::NoPath(status))) => {
                let remedy = "it has no endpoint of OpenAI's interface, which orch measures through";
                return Err(self.wrong(path, &status.to_string(), remedy));
            }
            Err((path, NoProof::Wrong(answer))) => {
                return Err(self.wrong(path, &answer, "its log may say more"));
            }
        };
        // A stranger could have answered in its place; it is looked at again while the answer is fresh.
        self.is_ours()?;
        self.answered(path, &format!("{} tokens", proof.tokens));
        let Some(model) = listed.or(proof.model) else {
            return Err(self.wrong(path, "without a model's name", "set `model.served_name`"));
        };
        Ok(Proven { model, tokens: proof.tokens, after })
    }

    /// A page that must answer 200.
    async fn page(&mut self, path: &str) -> Result<Vec<u8>, Round> {
        let answer = self.probes.get(path).await;
        let text = answer.text();
        match answer {
            Answer::Page(200, body) => {
                self.answered(path, &text);
                Ok(body)
            }
            // These do not change by waiting, as 503 does.
            Answer::Page(400..=499, _) if !["408", "425", "429"].contains(&text.as_str()) => {
                Err(self.wrong(path, &text, "the definition of the engine names this path"))
            }
            _ => {
                self.answered(path, &text);
                Err(Round::NotYet)
            }
        }
    }

    /// The model that requests will name: the one asked for, if it is listed, or the only one.
    async fn models(&mut self, path: &str) -> Result<String, Round> {
        let body = self.page(path).await?;
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        let entries = list["data"].as_array().or_else(|| list.as_array());
        let Some(entries) = entries else {
            return Err(self.wrong(
                path,
                "200, without a list of models",
                "the definition of the engine names this path",
            ));
        };
        let names: Vec<String> = entries.iter().filter_map(|entry| entry["id"].as_str()).map(str::to_owned).collect();
        let quoted = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match (&self.readiness.model, names.as_slice()) {
            (Some(wanted), names) if names.contains(wanted) => Ok(wanted.clone()),
            // A server that takes models in later has none at first.
            (_, []) => {
                self.answered(path, "200, without a model");
                Err(Round::NotYet)
            }
            (Some(wanted), _) => {
                let remedy = format!("set `model.served_name` to what it serves, {quoted}");
                Err(self.wrong(path, &format!("200, without `{wanted}`: it has {quoted}"), &remedy))
            }
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(self.wrong(
                path,
                &format!("200, with several models: {quoted}"),
                "say which by `model.served_name`",
            )),
        }
    }

    /// Whether the port is answered by this server and nobody else, where it can be told.
    fn is_ours(&mut self) -> Result<(), Round> {
        let Some(port) = self.port else { return Ok(()) };
        let probe = format!("port {port}");
        match self.server.owner_of(port) {
            PortOwner::Stranger(who) => {
                self.answered(&probe, &format!("by {who}, which is not this server"));
                Err(Round::NotYet)
            }
            PortOwner::Ours => {
                self.answered(&probe, "by this server");
                Ok(())
            }
            // Another user's process, or one in a container of its own: what it generates has to do.
            PortOwner::CannotTell | PortOwner::Nobody => Ok(()),
        }
    }

    fn wrong(&mut self, probe: &str, answer: &str, remedy: &str) -> Round {
        self.answered(probe, answer);
        Round::Wrong(Unfit { probe: probe.to_owned(), answer: answer.to_owned(), remedy: remedy.to_owned() })
    }

    /// Tells an answer that differs from the last one.
    fn answered(&mut self, probe: &str, answer: &str) {
        if self.last.get(probe).is_none_or(|last| last != answer) {
            self.last.insert(probe.to_owned(), answer.to_owned());
            // The gate is gone when nobody listens.
            let _ = self.tell.send((probe.to_owned(), answer.to_owned()));
        }
    }
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
        clock.advance(Duration::from_secs(1));
        let reading = Reading::new(Path::new("/no/log"), &grammar, &clock, clock.nanos(), None, sign_seen);
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
