//! The log of a start, as the played engine would print it: which words, by whom, and when. Pure: [`script`] decides
//! everything but the moments, which are put into the lines when they are written.

mod failure;
mod llamacpp;
mod model;
pub mod play;
pub mod serving;
mod sglang;
mod vllm;

use std::time::Duration;

use super::Played;
use super::scenario::Scenario;

pub use model::Model;
pub use play::{Pids, Printer, Stamp};

/// What is written at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Beat {
    /// After the process began.
    pub at: Duration,
    /// By whom.
    pub who: Who,
    /// What.
    pub what: What,
}

/// Which process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The one that answers HTTP.
    Main,
    /// vLLM's process between that one and the workers.
    Engine,
    /// A worker.
    Rank(u32),
}

/// What a process does.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A record with the engine's prefix. A text of several lines is one record.
    Record(Level, String),
    /// A line as it is, such as one of a traceback.
    Plain(String),
    /// A progress bar, drawn over the one before it; whether it is the last state.
    Bar(String, bool),
    /// A milestone that others wait for.
    Reached(Milestone),
}

/// How loud a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Level {
    Info,
    Warning,
    Error,
}

/// Points of a start at which the HTTP side changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The port is taken: others can no longer have it. Nothing answers yet.
    Bound,
    /// Connections are taken, and answered as the engine does while it is not ready.
    Open,
    /// Requests are served.
    Ready,
}

/// How a start ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It serves.
    Serves,
    /// The process exits.
    Exits(u8),
    /// A signal ends the process.
    Signal(i32),
    /// Nothing more happens, and the process stays.
    Hangs,
}

/// A start from beginning to end.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// In the order of their moments.
    pub beats: Vec<Beat>,
    /// How it ends, after the last beat.
    pub ending: Ending,
    /// A worker that is killed right before the last words of the others, and by which signal.
    pub loses: Option<(u32, i32)>,
}

/// The start of a scenario on a port.
pub fn script(scenario: &Scenario, port: u16) -> Script {
    script_of(&Model::of(scenario, port))
}

/// The start of a model.
pub fn script_of(model: &Model) -> Script {
    let mut story = Story::new(model);
    match model.played {
        Played::Sglang => sglang::tell(&mut story),
        Played::Vllm => vllm::tell(&mut story),
        Played::Llamacpp => llamacpp::tell(&mut story),
    }
    story.done()
}

/// The last words of a server that crashes while it serves.
pub fn crash(scenario: &Scenario) -> Vec<Beat> {
    let model = Model::of(scenario, 0);
    let mut story = Story::new(&model);
    failure::tell(&mut story, Duration::ZERO, "cuda_fault", model.ranks - 1);
    story.done().beats
}

/// A start in the making.
struct Story<'m> {
    model: &'m Model,
    /// The beginning of the phase that is being told.
    at: Duration,
    beats: Vec<Beat>,
    over: Option<(Ending, Option<(u32, i32)>)>,
}

impl<'m> Story<'m> {
    fn new(model: &'m Model) -> Self {
        Story { model, at: Duration::ZERO, beats: Vec::new(), over: None }
    }

    /// Whether the start has failed: what would come after that is not told.
    fn is_over(&self) -> bool {
        self.over.is_some()
    }

    fn put(&mut self, at: Duration, who: Who, what: What) {
        self.beats.push(Beat { at, who, what });
    }

    fn record(&mut self, at: Duration, who: Who, text: impl Into<String>) {
        self.put(at, who, What::Record(Level::Info, text.into()));
    }

    /// A record of each rank, one shortly after the other.
    fn ranks(&mut self, at: Duration, text: impl Fn(u32) -> String) {
        for rank in 0..self.model.ranks {
            let late = self.model.lag(rank);
            self.record(at + late, Who::Rank(rank), text(rank));
        }
    }

    /// Tells a phase, unless the start fails in it: then as far as it comes, and how it fails.
    fn phase(&mut self, name: &str, tell: impl FnOnce(&mut Self, Duration)) {
        if self.is_over() {
            return;
        }
        let length = self.model.length(name);
        let (began, first) = (self.at, self.beats.len());
        tell(self, length);
        self.at = began + length;
        let fails = self.model.fails.as_ref().filter(|fails| fails.at == name);
        if let Some(fails) = fails {
            let moment = began + fails.after.unwrap_or(length / 2).min(length);
            // What would have been said after that moment is not.
            let kept = self.beats.split_off(first);
            self.beats.extend(kept.into_iter().filter(|beat| beat.at <= moment));
            self.over = Some(failure::tell(self, moment, &fails.kind, fails.rank));
        }
    }

    fn done(mut self) -> Script {
        // Ranks write side by side; who came first in the telling stays first in one moment.
        self.beats.sort_by_key(|beat| beat.at);
        let (ending, loses) = self.over.unwrap_or((Ending::Serves, None));
        Script { beats: self.beats, ending, loses }
    }
}

/// A progress bar as tqdm draws it.
fn bar(label: &str, done: u32, total: u32, elapsed: Duration) -> String {
    let share = f64::from(done) / f64::from(total.max(1));
    let full = (share * 10.0).round() as usize;
    let blocks = "█".repeat(full) + &" ".repeat(10 - full.min(10));
    let left = match done {
        0 => "?".to_owned(),
        done => clock(elapsed.mul_f64(f64::from(total - done) / f64::from(done))),
    };
    let pace = match (done, elapsed.as_secs_f64()) {
        (0, _) => "?it/s".to_owned(),
        (done, s) if s > f64::from(done) => format!("{:5.2}s/it", s / f64::from(done)),
        (done, s) => format!("{:5.2}it/s", f64::from(done) / s.max(0.001)),
    };
    format!("{label}: {:3.0}%|{blocks}| {done}/{total} [{}<{left}, {pace}]", share * 100.0, clock(elapsed))
}

/// The bar of checkpoint shards, which draws no blocks.
fn shards_bar(label: &str, done: u32, total: u32, elapsed: Duration) -> String {
    let whole = bar(label, done, total, elapsed);
    let share = f64::from(done) / f64::from(total.max(1)) * 100.0;
    let rest = whole.rsplit_once("| ").map_or("", |(_, rest)| rest);
    format!("{label}: {share:3.0}% Completed | {rest}")
}

fn clock(span: Duration) -> String {
    format!("{:02}:{:02}", span.as_secs() / 60, span.as_secs() % 60)
}

#[cfg(test)]
mod tests;
