//! A start from its launch to readiness or to its end, as its log and looks at its processes tell it: what is said of it,
//! and by which rule it is ended. Pure: pieces of the log and looks come with their moments, so that a start of an hour is
//! told in a moment.
//!
//! Silence never ends a start. A line that looks like a cause does not either, since engines survive some of them: what
//! ends it is the engine's own word, a rank that died with such a line, or the limit. The end of the main process is seen
//! by who waits for it.

mod conduct;
mod taking;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::life::{Life, Look};
use super::log::{Change, LogGrammar, Nature, Passing, Startup};
use crate::clock::Nanos;
use crate::event::{Event, Scope, Sign};
pub use conduct::{Conduct, End};

/// An engine that said that it failed may take so long to end by itself, with its last words.
const CONFIRMED: Duration = Duration::from_millis(900);
/// And so long where no line says why.
const CONFIRMED_WITHOUT_CAUSE: Duration = Duration::from_secs(5);
/// A start that gave a sign of life within this is not ended by a limit that nobody set,
const LIVES: Duration = Duration::from_secs(5 * 60);
/// until so many times that limit have passed.
const LIMIT_ALIVE: u64 = 3;
/// Between two events of signs of life.
const SIGN_PAUSE: Duration = Duration::from_secs(1);
/// So long may what a server that serves says of itself again and again wait to be read.
const PASSES: Duration = Duration::from_secs(1);
/// Between two events of one silence.
const STALLED_PAUSE: Duration = Duration::from_secs(30);
/// Weights of which a storage gave less than this share were in memory already.
const COLD_RATIO: f64 = 0.5;

/// What is to be written down.
pub type Said = Vec<(Scope, Event)>;

/// A start that goes on.
#[derive(Debug)]
pub struct Starting<'a> {
    conduct: &'a Conduct,
    grammar: &'a LogGrammar,
    launched: Nanos,
    startup: Startup,
    /// What waits to be read, and since when.
    passing: Passing,
    passing_since: Option<Nanos>,
    life: Life,
    /// Where bars are, by phase and unit.
    bars: BTreeMap<(String, String), (f64, Option<f64>)>,
    /// The place of a bar of graphs that was told last.
    graphs_told: Option<f64>,
    /// Where bars were when they were told last, and when that was.
    places: BTreeMap<(String, String), (Nanos, f64)>,
    fresh: BTreeMap<Sign, String>,
    told_at: Option<Nanos>,
    stalled_at: Option<Nanos>,
    /// Since when the engine says that it failed.
    confirmed_at: Option<Nanos>,
    /// The first line that only reports another's failure.
    consequence: Option<(u64, String)>,
    /// Since when a rank is known to be dead, with a line that says why.
    dead_at: Option<Nanos>,
    caches: BTreeMap<&'static str, &'static str>,
}

impl<'a> Starting<'a> {
    /// A start that was launched at a moment.
    pub fn new(conduct: &'a Conduct, grammar: &'a LogGrammar, launched: Nanos) -> Self {
        Starting {
            conduct,
            grammar,
            launched,
            startup: Startup::new(launched),
            passing: Passing::default(),
            passing_since: None,
            life: Life::new(launched, conduct.worker.clone()),
            bars: BTreeMap::new(),
            graphs_told: None,
            places: BTreeMap::new(),
            fresh: BTreeMap::new(),
            told_at: None,
            stalled_at: None,
            confirmed_at: None,
            consequence: None,
            dead_at: None,
            caches: BTreeMap::new(),
        }
    }

    /// What its log told so far.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// What of it was seen so far.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// The first line that only reports another's failure, with its number.
    pub fn consequence(&self) -> Option<&(u64, String)> {
        self.consequence.as_ref()
    }

    /// Whether it is silent for longer than its phase is given.
    pub fn is_stalled(&self) -> bool {
        self.stalled_at.is_some()
    }

    /// What is said before anything else.
    pub fn began(&self) -> Said {
        vec![(Scope::Run, Event::PhaseBegan { phase: self.startup.phase().to_owned() })]
    }

    /// Takes a look at its processes and devices.
    pub fn look(&mut self, look: &Look, now: Nanos) -> Said {
        self.fresh.extend(self.life.look(look, now));
        self.told_caches(false)
    }

    /// What a person and a record are told of the caches, as soon as it is known.
    fn told_caches(&mut self, ready: bool) -> Said {
        let mut known: Vec<(&'static str, &'static str)> = Vec::new();
        let loaded = ready || self.startup.phases().iter().any(|phase| phase.name == "weights");
        if let (true, Some(read), Some(all)) = (loaded, self.life.read_bytes(), self.weights_bytes()) {
            let cold = read as f64 >= COLD_RATIO * all as f64;
            known.push(("weights_cache", if cold { "cold" } else { "warm" }));
        }
        match self.life.compiled() {
            Some(true) => known.push(("jit_cache", "cold")),
            Some(false) if ready => known.push(("jit_cache", "warm")),
            _ => {}
        }
        let mut said = Vec::new();
        for (key, value) in known {
            // The weights are judged once, at the end of their load: later reads are of something else.
            let before = self.caches.get(key).copied();
            if before.is_none() || (before != Some(value) && key == "jit_cache") {
                self.caches.insert(key, value);
                said.push((Scope::Run, Event::Fact { key: key.to_owned(), value: json!(value) }));
            }
        }
        said
    }

    /// How much there was to read: the files, where they are known; else what the engine says that its weights take.
    fn weights_bytes(&self) -> Option<u64> {
        let facts = self.startup.facts();
        let number = |key: &str| facts.get(key).and_then(Value::as_f64);
        let told =
            number("checkpoint_gb").map(|gb| gb * 1e9).or_else(|| number("weights_mib").map(|mib| mib * 1048576.0));
        let told = told.or_else(|| number("weights_gb").map(|gb| gb * 1e9 * f64::from(self.life.living().max(1))));
        self.conduct.weights_bytes.or(told.map(|bytes| bytes as u64)).filter(|bytes| *bytes > 0)
    }

    /// What is due at a moment, and whether the start is to be ended.
    pub fn tick(&mut self, now: Nanos) -> (Said, Option<End>) {
        let is_due = self.passing_since.is_some_and(|since| now.saturating_sub(since) >= nanos(PASSES));
        let mut said = if is_due { self.catch_up(now) } else { Vec::new() };
        said.extend(self.places(now));
        said.extend(self.signs(now));
        said.extend(self.silence(now));
        (said, self.end(now))
    }

    /// Where bars of the present phase came to a stand right after they were told: a bar that stands for ten minutes stands
    /// where it is, and not where it was half a second before.
    fn places(&mut self, now: Nanos) -> Said {
        let phase = self.startup.phase().to_owned();
        let mut said = Vec::new();
        for ((of, unit), (done, total)) in self.bars.iter().filter(|((of, _), _)| *of == phase) {
            let told = self.places.get(&(of.clone(), unit.clone()));
            let due = told.is_some_and(|(at, before)| *before < *done && now.saturating_sub(*at) >= nanos(SIGN_PAUSE));
            if due {
                let (phase, unit) = (of.clone(), unit.clone());
                said.push((Scope::Run, Event::PhaseProgress { phase, done: *done, total: *total, unit }));
            }
        }
        for (_, event) in &said {
            if let Event::PhaseProgress { phase, done, unit, .. } = event {
                self.places.insert((phase.clone(), unit.clone()), (now, *done));
            }
        }
        said
    }

    fn signs(&mut self, now: Nanos) -> Said {
        let due = self.told_at.is_none_or(|at| now.saturating_sub(at) >= nanos(SIGN_PAUSE));
        if self.fresh.is_empty() || !due {
            return Vec::new();
        }
        self.told_at = Some(now);
        self.stalled_at = None;
        let fresh = std::mem::take(&mut self.fresh);
        let words: BTreeSet<&str> = fresh.values().map(String::as_str).collect();
        let what = words.into_iter().collect::<Vec<_>>().join(", ");
        let workers = Some(self.life.living()).filter(|living| *living > 0);
        vec![(Scope::Run, Event::SignOfLife { what, signs: fresh.into_keys().collect(), workers })]
    }

    fn silence(&mut self, now: Nanos) -> Said {
        let (weights, jit) = (self.cache("weights_cache"), self.cache("jit_cache"));
        let phase = self.startup.phase();
        let patience = self.conduct.patience.of(phase, weights, jit);
        let silent = now.saturating_sub(self.life.last_at());
        let due = self.stalled_at.is_none_or(|at| now.saturating_sub(at) >= nanos(STALLED_PAUSE));
        if silent < nanos(patience) || !due {
            return Vec::new();
        }
        let event = Event::Stalled {
            phase: phase.to_owned(),
            silent_s: silent as f64 / 1e9,
            usual_s: self.conduct.patience.usual_s(phase, weights, jit),
            limit_s: self.deadline().saturating_sub(self.launched) as f64 / 1e9,
            evidence: self.evidence(now),
        };
        self.stalled_at = Some(now);
        vec![(Scope::Run, event)]
    }

    fn evidence(&self, now: Nanos) -> Vec<String> {
        let mut words = self.life.evidence(now);
        match self.never_started().as_slice() {
            [] => {}
            [one] => words.insert(0, format!("rank {one} never started")),
            more => {
                let more: Vec<String> = more.iter().map(u32::to_string).collect();
                words.insert(0, format!("ranks {} never started", more.join(", ")));
            }
        }
        words
    }

    /// The ranks that no process and no line was ever of, while others have a process that tells its rank.
    fn never_started(&self) -> Vec<u32> {
        let (seen, said) = (self.life.ranks(), self.startup.ranks());
        match self.conduct.ranks {
            Some(ranks) if !seen.is_empty() => {
                (0..ranks).filter(|rank| !seen.contains(rank) && !said.contains(rank)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The kind of failure that a silence looks like, in the log vocabulary, where what is seen says it.
    pub fn looks_like(&self, now: Nanos) -> Option<&'static str> {
        if self.never_started().is_empty() { self.life.looks_like(now) } else { Some("rank_missing") }
    }

    fn end(&mut self, now: Nanos) -> Option<End> {
        let root = self.startup.root().is_some();
        if root && self.conduct.fail_fast {
            return Some(End::FailFast);
        }
        let grace = if root { CONFIRMED } else { CONFIRMED_WITHOUT_CAUSE };
        if self.confirmed_at.is_some_and(|at| now.saturating_sub(at) >= nanos(grace)) {
            return Some(End::Confirmed);
        }
        if let Some(worker) = self.life.dead().first().filter(|_| root) {
            let since = *self.dead_at.get_or_insert(now);
            if now.saturating_sub(since) >= nanos(CONFIRMED) {
                return Some(End::DeadRank(worker.clone()));
            }
        }
        (now >= self.deadline() && !self.is_waited_for(now)).then_some(End::TimedOut)
    }

    /// Whether a start that is past a limit that nobody set is waited for all the same: it lives, and is not past any
    /// reason yet.
    fn is_waited_for(&self, now: Nanos) -> bool {
        let silent = now.saturating_sub(self.life.last_at());
        let past = now.saturating_sub(self.deadline());
        let more = nanos(self.conduct.limit).saturating_mul(LIMIT_ALIVE - 1);
        self.conduct.limit_is_auto && silent < nanos(LIVES) && past < more
    }

    /// When its limit passes.
    pub fn deadline(&self) -> Nanos {
        let more = if self.conduct.limit_is_auto { self.life.downloading() } else { Duration::ZERO };
        self.launched.saturating_add(nanos(self.conduct.limit)).saturating_add(nanos(more))
    }

    fn cache(&self, key: &str) -> Option<&'static str> {
        self.caches.get(key).copied()
    }

    /// It was ready at a moment: what is still open has ended.
    pub fn ready(&mut self, at: Nanos) -> Said {
        let mut said = self.catch_up(at);
        said.extend(told(self.startup.finish(at)));
        said.extend(self.told_caches(true));
        said
    }
}

/// What changes of a log are as events.
pub fn told(changes: Vec<Change>) -> Said {
    let event = |change| match change {
        Change::Began { phase } => (Scope::Run, Event::PhaseBegan { phase }),
        Change::Progress { phase, done, total, unit } => {
            (Scope::Run, Event::PhaseProgress { phase, done, total, unit })
        }
        Change::Ended { phase, s } => (Scope::Run, Event::PhaseEnded { phase, s }),
        Change::Fact { key, value, rank } => (rank.map_or(Scope::Run, Scope::Rank), Event::Fact { key, value }),
        Change::Failure(failure) => {
            let scope = failure.rank.map_or(Scope::Run, Scope::Rank);
            let super::log::Failure { kind, line, line_no, remedy, nature, .. } = failure;
            let wraps = matches!(nature, Nature::Wraps | Nature::Result);
            (scope, Event::FailureSeen { kind, line, line_no, remedy, wraps })
        }
    };
    changes.into_iter().map(event).collect()
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
