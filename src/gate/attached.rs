//! A server that was up before: it has no start of ours to follow, and proves itself by generated tokens as every other.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::error::{GateError, LogState};
use super::probe::Probes;
use super::prober::{Prober, Unfit};
use super::wait::{Pace, Ready};
use crate::clock::Clock;
use crate::event::{Emit, Event, Scope};
use crate::launch::Watched;
use crate::render::Readiness;

/// How long a server that should be up may take to answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a server that is up has generated tokens, or will not within a minute. `log` is what it prints, where
/// that is known; only what it says from here on is about this run.
pub async fn prove(
    server: &dyn Watched,
    log: &Path,
    readiness: &Readiness,
    clock: &Clock,
    emit: &dyn Emit,
) -> Result<Ready, GateError> {
    let plan = |why: String| GateError::Plan { why };
    let began = clock.nanos();
    let probes = Probes::new(&readiness.base_url).map_err(|error| plan(error.to_string()))?;
    let port = reqwest::Url::parse(&readiness.base_url)
        .map_err(|error| plan(format!("`{}` is no URL: {error}", readiness.base_url)))?
        .port_or_known_default();
    let log_lines = lines(log);
    let (_seen, sign) = watch::channel(true);
    let (tell, mut told) = mpsc::unbounded_channel();
    let pace = Pace::default();
    let proving = Prober { pace, server, readiness, probes, port, sign, tell, last: BTreeMap::new() }.prove();
    tokio::pin!(proving);
    let deadline = Instant::now() + LIMIT;
    let mut answers: BTreeMap<String, String> = BTreeMap::new();
    let state = || {
        let since = Duration::from_nanos(clock.nanos().saturating_sub(began));
        let (path, phase) = (log.to_owned(), "serving".to_owned());
        Box::new(LogState {
            path,
            phase,
            elapsed: since,
            silent: since,
            root: None,
            consequence: None,
            looks_like: None,
            last_words: Vec::new(),
        })
    };
    loop {
        tokio::select! {
            biased;
            exited = server.exited() => {
                server.tell_exit(exited, emit)?;
                return Err(GateError::Exited { exited, log: state() });
            }
            Some((probe, answer)) = told.recv() => {
                emit.emit(Scope::Run, Event::ProbeAnswered { probe: probe.clone(), answer: answer.clone() })?;
                answers.insert(probe, answer);
            }
            proven = &mut proving => return match proven {
                Ok(proven) => {
                    let ready = Ready {
                        base_url: readiness.base_url.clone(),
                        model: proven.model,
                        after: proven.after,
                        tokens: proven.tokens,
                        phases: Vec::new(),
                        facts: BTreeMap::new(),
                        log_lines,
                    };
                    let (tokens, model, base_url) = (ready.tokens, ready.model.clone(), ready.base_url.clone());
                    emit.emit(Scope::Run, Event::Ready { ready_s: None, tokens, model, base_url })?;
                    Ok(ready)
                }
                Err(Unfit { probe, answer, remedy }) => Err(GateError::Unfit { probe, answer, remedy, log: state() }),
            },
            () = sleep_until(deadline) => {
                let answers = answers.into_iter().collect();
                return Err(GateError::TimedOut { limit: LIMIT, answers, log: state() });
            }
        }
    }
}

/// How many lines its log has now; none where it cannot be read.
fn lines(log: &Path) -> u64 {
    let mut lines = 0;
    let mut block = [0; 64 << 10];
    // It may be larger than the memory: it is read in blocks.
    if let Ok(mut file) = std::fs::File::open(log) {
        while let Ok(read @ 1..) = std::io::Read::read(&mut file, &mut block) {
            lines += memchr::memchr_iter(b'\n', &block[..read]).count() as u64;
        }
    }
    lines
}
