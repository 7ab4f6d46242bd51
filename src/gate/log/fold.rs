//! From observations to the state of a start-up. Time comes with each piece, so that an old log folds to the same state as
//! a live one.

mod change;
mod failing;
mod phases;
mod told;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::causes::{Causes, Failure};
use super::found::Found;
use super::prefix::{self, Level, Message};
use super::progress::Bars;
use super::sieve::Weight;
use super::telling::Telling;
use super::traceback::{Place, Trace, Traces};
use super::{Again, LogGrammar, Observation, Piece, Seen};
use crate::clock::Nanos;
pub use change::{Change, Memory, Phase};
use phases::Open;
use words::LastWords;

/// The phase before the log says anything.
const LAUNCH: &str = "launch";
/// The phase after which there is none.
const SERVING: &str = "serving";

/// The state of a start-up, as its log tells it.
#[derive(Clone, Debug)]
pub struct Startup {
    began: Nanos,
    open: Vec<Open>,
    phases: Vec<Phase>,
    /// The phase that has come furthest: an earlier one does not begin after it.
    furthest: Option<usize>,
    /// When the last phase ended: a phase of which only the end is told began then.
    boundary: Nanos,
    ranks: BTreeSet<u32>,
    /// Phases by the ranks that have begun or ended them.
    in_phase: BTreeMap<String, BTreeSet<u32>>,
    /// Phases by the ranks that have ended them: what comes in the same words afterwards is another phase.
    done: BTreeSet<(String, Option<u32>)>,
    telling: Telling,
    memory: Vec<Memory>,
    causes: Causes,
    /// What ended the attempt before this one, if a wrapper started another.
    before: Option<(Failure, String)>,
    suspects: Vec<(usize, String, Failure)>,
    traces: Traces,
    bars: Bars,
    /// Records of its work since the last failure.
    works: u32,
    version: Option<String>,
    last_words: LastWords,
    last_at: Nanos,
}

/// A record at hand.
struct At<'a> {
    grammar: &'a LogGrammar,
    piece: &'a Piece,
    message: Message<'a>,
    /// The frames of the traceback that it ends.
    frames: Option<&'a str>,
    now: Nanos,
}

impl Startup {
    /// A start-up that began at a moment, in phase `launch`.
    pub fn new(began: Nanos) -> Self {
        Startup {
            began,
            open: vec![Open::new(LAUNCH, began)],
            phases: Vec::new(),
            furthest: None,
            boundary: began,
            ranks: BTreeSet::new(),
            in_phase: BTreeMap::new(),
            done: BTreeSet::new(),
            telling: Telling::default(),
            memory: Vec::new(),
            causes: Causes::default(),
            before: None,
            suspects: Vec::new(),
            traces: Traces::default(),
            bars: Bars::default(),
            works: 0,
            version: None,
            last_words: LastWords::default(),
            last_at: began,
        }
    }

    /// Takes the next piece, which was there at `now`.
    pub fn take(&mut self, grammar: &LogGrammar, piece: &Piece, now: Nanos) -> Vec<Change> {
        let piece = &*grammar.masked(piece);
        if !self.is_in_traceback() && says_something(&piece.text) {
            let mut found = Found::default();
            if grammar.sieve().weigh(piece.text.as_bytes(), &mut found) == Weight::Silent {
                self.last_at = now;
                self.last_words.remember(piece);
                return Vec::new();
            }
        }
        self.read(grammar, piece, now)
    }

    /// [`Startup::take`], without a look at whether the piece tells anything at all.
    pub(super) fn take_unsifted(&mut self, grammar: &LogGrammar, piece: &Piece, now: Nanos) -> Vec<Change> {
        self.read(grammar, &grammar.masked(piece), now)
    }

    fn read(&mut self, grammar: &LogGrammar, piece: &Piece, now: Nanos) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut only_heartbeats = true;
        let inner = prefix::unwrapped(&piece.text);
        for record in grammar.records(&inner) {
            let message = prefix::message(record);
            let at = At { grammar, piece, message, frames: None, now };
            only_heartbeats &= self.record(&at, record, &mut changes);
        }
        // The answer to our own probe, say: it would push out the words that matter, and is no sign of progress.
        if !only_heartbeats {
            self.last_at = now;
            self.last_words.remember(piece);
        }
        changes
    }

    /// Takes a record; says whether it is but a heartbeat.
    fn record(&mut self, at: &At<'_>, record: &str, changes: &mut Vec<Change>) -> bool {
        let seen = at.grammar.read_record(record);
        let is_bar = seen.iter().any(|seen| matches!(seen.what, Observation::Bar { .. }));
        let begins = seen.iter().any(|seen| seen.what == Observation::Traceback);
        // A record with a header of its own is none of a block that another one began, but a block may have one on each line.
        let own = at.message.is_headed && at.message.writer.is_empty() && at.message.level != Some(Level::Loud);
        let place = if is_bar || begins || own || self.traces.is_empty() {
            Place::Outside
        } else {
            self.traces.place(&at.message)
        };
        match place {
            Place::Frame => {
                for what in at.grammar.read_frame(at.message.text) {
                    if let Observation::Begin { phase, .. } = what {
                        self.begin(at.grammar, &phase, None, at.now, changes);
                    }
                }
                false
            }
            Place::Outside => {
                let heartbeat = !seen.is_empty() && seen.iter().all(|seen| seen.what == Observation::Heartbeat);
                let opener = begins.then(|| seen.iter().find_map(|seen| self.opener(at, &seen.what))).flatten();
                let rank = seen.iter().find_map(|seen| seen.rank);
                self.observe(at, seen, changes);
                if begins {
                    self.traces.begin(&at.message, rank, opener);
                }
                heartbeat
            }
            Place::End(trace) => {
                self.end_of_trace(&At { frames: Some(&trace.frames), ..*at }, &trace, seen, changes);
                false
            }
        }
    }

    /// Takes the last line of a traceback: it says what went wrong, whether or not a rule knows it.
    fn end_of_trace(&mut self, at: &At<'_>, trace: &Trace, mut seen: Vec<Seen>, changes: &mut Vec<Change>) {
        for seen in &mut seen {
            seen.rank = seen.rank.or(trace.rank);
        }
        let knows = seen.iter().any(|seen| {
            matches!(&seen.what, Observation::Failure { rules } if self.rule(at, rules).is_some_and(|rule| rule.kind != "unknown" || rule.wraps))
        });
        seen.retain(|seen| seen.what != Observation::Error);
        if knows || trace.is_chained {
            self.observe(at, seen, changes);
            return;
        }
        seen.retain(|seen| !matches!(seen.what, Observation::Failure { .. }));
        self.observe(at, seen, changes);
        let opener = trace.opener.and_then(|rule| at.grammar.failure(rule)).cloned();
        self.fail_unknown(at, opener.as_ref(), trace.rank, changes);
    }

    fn observe(&mut self, at: &At<'_>, seen: Vec<Seen>, changes: &mut Vec<Change>) {
        let At { grammar, now, .. } = *at;
        // The facts of a record that ends a phase belong to that phase: it is closed after them.
        let mut ends: Vec<(String, Option<u32>)> = Vec::new();
        let mut again: Option<&Again> = None;
        let is_known = seen
            .iter()
            .any(|seen| matches!(&seen.what, Observation::Failure { rules } if self.rule(at, rules).is_some()));
        for Seen { rank, what } in seen {
            self.ranks.extend(rank);
            match what {
                Observation::Heartbeat | Observation::Traceback => {}
                Observation::Chain => self.traces.chain(&at.message),
                Observation::Recovers => self.causes.recovered(at.piece.line_no),
                Observation::Begin { phase, by_rank } => {
                    self.end_all(&mut ends, now, changes);
                    again = self.again(grammar, &phase, rank.filter(|_| by_rank));
                    self.begins(at, &phase, again, rank, changes);
                }
                Observation::End { phase, by_rank } => {
                    let rank = rank.filter(|_| by_rank);
                    again = self.again(grammar, &phase, rank);
                    // The second phase ends with the beginning of the one after it.
                    match again {
                        Some(again) => {
                            self.begin(grammar, &again.phase, rank, now, changes);
                            self.bars.ended(&again.phase);
                        }
                        None => {
                            self.open_late(grammar, &phase, rank, now, changes);
                            ends.push((phase, rank));
                        }
                    }
                }
                Observation::Bar { phase, done, total, unit, within } => {
                    self.bar(grammar, &phase, rank, (done, total, unit, within), now, changes);
                }
                Observation::Fact { key, value } => {
                    if let Some(key) = again.map_or(Some(key.clone()), |again| renamed(again, key)) {
                        self.fact(grammar, key, value, rank, changes);
                    }
                }
                Observation::Suspect { rule, name } => self.suspect(at, rule, name, rank),
                Observation::Failure { rules } => self.fail(at, &rules, rank, changes),
                Observation::Error if !is_known => self.fail_unknown(at, None, rank, changes),
                Observation::Error => {}
            }
        }
        self.end_all(&mut ends, now, changes);
    }

    /// A record begins a phase, or the one that the same words mean the second time.
    fn begins(
        &mut self,
        at: &At<'_>,
        phase: &str,
        again: Option<&Again>,
        rank: Option<u32>,
        changes: &mut Vec<Change>,
    ) {
        if again.is_none_or(|again| !self.is_over(&again.phase)) {
            let phase = again.map_or(phase, |again| again.phase.as_str());
            self.restarts(at, phase, changes);
            self.begin(at.grammar, phase, rank, at.now, changes);
        }
        if phase == SERVING {
            self.worked();
        }
    }

    fn fact(&mut self, grammar: &LogGrammar, key: String, value: Value, rank: Option<u32>, changes: &mut Vec<Change>) {
        match key.as_str() {
            "version" | "build" => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                self.version.get_or_insert(if key == "build" { format!("b{text}") } else { text });
                return;
            }
            "avail_mem_gb" => {
                if let Some(free_gb) = value.as_f64() {
                    let phase = self.phase().to_owned();
                    match self.memory.iter_mut().rev().find(|told| told.phase == phase && told.rank == rank) {
                        Some(told) => told.free_gb = free_gb,
                        None => self.memory.push(Memory { phase, rank, free_gb }),
                    }
                }
            }
            _ => {}
        }
        if self.telling.tell(&key, &value, rank, grammar.keeps_first(&key)) {
            changes.push(Change::Fact { key, value, rank });
        }
    }
}

/// Whether something is left of a line without what others put around it, as far as its end tells.
fn says_something(text: &str) -> bool {
    text.ends_with(|c: char| c.is_ascii_graphic() && c != '|') && !text.starts_with("{\"")
}

/// What a fact is called the second time; `None` where it is left aside.
fn renamed(again: &Again, key: String) -> Option<String> {
    match again.facts.get(&key) {
        Some(name) => name.clone(),
        None => Some(key),
    }
}

fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests;
