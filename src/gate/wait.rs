//! Waiting for a server: its log, its pages, its end and the limit, all at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::error::GateError;
use super::evidence;
use super::log::{LogGrammar, Phase};
use super::lookout::Lookout;
use super::probe::Probes;
use super::prober::{Prober, Proven, Unfit};
use super::reading::{Reading, nanos};
use super::starting::{Conduct, End};
use crate::clock::Clock;
use crate::event::{Emit, Event, Scope};
use crate::launch::{Exited, Watched};
use crate::render::Readiness;

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
    conduct: &Conduct,
    clock: &Clock,
    emit: &dyn Emit,
) -> Result<Ready, GateError> {
    wait_at(Pace::default(), server, log, readiness, grammar, conduct, clock, emit).await
}

/// [`wait`], at another pace.
#[expect(clippy::too_many_arguments, reason = "each is another thing, and there is one caller beside the tests")]
pub async fn wait_at(
    pace: Pace,
    server: &dyn Watched,
    log: &Path,
    readiness: &Readiness,
    grammar: &LogGrammar,
    conduct: &Conduct,
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

    let (sign_seen, sign_watch) = watch::channel(sign.is_none());
    let (tell, mut told) = mpsc::unbounded_channel();
    let prober = Prober { pace, server, readiness, probes, port, sign: sign_watch, tell, last: BTreeMap::new() };
    let proving = prober.prove();
    tokio::pin!(proving);
    let launched = clock.nanos().saturating_sub(nanos(server.launched().elapsed()));
    let mut reading = Reading::new(log, grammar, conduct, clock, launched, sign, sign_seen);
    reading.began(emit)?;
    let (saw, mut looks) = mpsc::channel(1);
    let lookout = Lookout::new(server, log).look(saw);
    tokio::pin!(lookout);
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
            Some(seen) = looks.recv() => reading.look(&seen, emit)?,
            () = &mut lookout => {}
            _ = look.tick() => {
                reading.more(emit).await?;
                if let Some(end) = reading.tick(emit)? {
                    break Outcome::Ended(end);
                }
            }
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
            let log_lines = reading.lines();
            reading.more(emit).await?;
            reading.ready(proven, log_lines, readiness, emit)
        }
        Outcome::Exited(exited) => {
            reading.last_words(pace, emit).await?;
            server.tell_exit(exited, emit)?;
            Err(GateError::Exited { exited, log: reading.state() })
        }
        Outcome::Ended(end) => {
            reading.more(emit).await?;
            let log = reading.state();
            if matches!(end, End::TimedOut | End::DeadRank(_)) {
                evidence::keep(conduct.evidence.as_deref(), server, emit).await?;
            }
            let answers = answers.into_iter().collect();
            Err(GateError::ended(end, reading.limit(), answers, log))
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
    Ended(End),
}
