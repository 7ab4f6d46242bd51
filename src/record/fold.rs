//! The state of a run as the fold of its journal. Pure: the same lines give the same state, wherever they are read.
//!
//! The record is part of that state, and no more than that. Until the line that ends the run it says `complete: false`,
//! `failed`, `interrupted`, so that a record is true whenever the writer is killed.

mod startup;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::event::{Entry, Event, PlannedStep, Scope};
use crate::measure::METRICS_VERSION;
use crate::record::model::{
    Answers, AnswersWhen, EngineInfo, Failure, HostInfo, Left, OrchInfo, Reason, Record, RunKind, SCHEMA, StepResult,
    Verdict, VerdictKind,
};
use crate::render::{PlannedEngine, Warning};

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// There is no line yet.
    #[default]
    Nothing,
    /// The place is looked at.
    Preflight,
    /// A server is about to be started, or was.
    Launch,
    /// A process of ours is there and has to prove that it is ready.
    Gate,
    /// It is ready, and measured.
    Load,
    /// It is being stopped.
    Stop,
    /// Nothing more will come.
    Ended,
}

/// The server of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerState {
    /// Its id, the name of its folder under `servers/`.
    pub id: String,
    /// Its processes by rank, each with what it takes to know it again.
    pub processes: BTreeMap<u32, Process>,
    /// Where it answers, once it was ready.
    pub base_url: Option<String>,
    /// The model's name as served, once it was ready.
    pub model: Option<String>,
}

/// A process of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The supervisor's pid, where there is one.
    pub supervisor_pid: Option<u32>,
    /// How it ended, once it did.
    pub ended: Option<Ended>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code,
    pub code: Option<i32>,
    /// or the signal that ended it.
    pub signal: Option<i32>,
    /// Whether orch had asked for it.
    pub expected: bool,
}

/// The last that was heard of how far something is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The phase, or `load`.
    pub phase: String,
    /// So many are done,
    pub done: f64,
    /// of so many, if known.
    pub total: Option<f64>,
    /// What is counted.
    pub unit: String,
}

/// A line of a log that looked like the cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// One of the failure kinds of the log vocabulary.
    pub kind: String,
    /// The line.
    pub line: String,
    /// Its number in the server's log, from 1.
    pub line_no: u64,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// The state of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunState {
    /// The record as it would be if the writer were killed now. Blank before the first line.
    pub record: Record,
    /// How far the run is.
    pub stage: Stage,
    /// What was planned to be measured, in order.
    pub planned: Vec<PlannedStep>,
    /// The step that is being measured.
    pub step: Option<String>,
    /// The phase of the start-up that the run is in.
    pub phase: Option<String>,
    /// How far that is.
    pub progress: Option<Progress>,
    /// The server, from just before it was started.
    pub server: Option<ServerState>,
    /// Leases that are ours.
    pub leases: Vec<String>,
    /// Units and containers that were stopped and are not back yet.
    pub displaced: Vec<String>,
    /// Lines that looked like the cause of a failure, in order.
    pub failures_seen: Vec<Seen>,
    /// The number of the last line.
    pub last_seq: Option<u64>,
    /// When it was written.
    pub last_at: Option<Timestamp>,
    judged: Option<Verdict>,
    counters: BTreeMap<String, BTreeMap<String, f64>>,
    /// Which rank each fact is from.
    fact_ranks: BTreeMap<String, u32>,
}

/// The state after `entries`.
pub fn fold(entries: impl IntoIterator<Item = Entry>) -> RunState {
    let mut state = RunState::default();
    for entry in entries {
        state.apply(&entry);
    }
    state
}

impl Default for RunState {
    fn default() -> Self {
        RunState {
            record: blank(),
            stage: Stage::Nothing,
            planned: Vec::new(),
            step: None,
            phase: None,
            progress: None,
            server: None,
            leases: Vec::new(),
            displaced: Vec::new(),
            failures_seen: Vec::new(),
            last_seq: None,
            last_at: None,
            judged: None,
            counters: BTreeMap::new(),
            fact_ranks: BTreeMap::new(),
        }
    }
}

fn blank() -> Record {
    Record {
        schema: SCHEMA,
        metrics_version: METRICS_VERSION,
        id: String::new(),
        kind: RunKind::Run,
        complete: false,
        started_at: Timestamp::UNIX_EPOCH,
        ended_at: None,
        orch: OrchInfo { version: String::new(), commit: None },
        series: String::new(),
        profile: Value::Null,
        engine: None,
        command: Vec::new(),
        host: HostInfo { name: String::new(), hardware: String::new() },
        startup: None,
        effective: Vec::new(),
        answers: Vec::new(),
        steps: Vec::new(),
        provenance: BTreeMap::new(),
        verdict: interrupted(),
        comparisons: Vec::new(),
        failure: None,
        warnings: Vec::new(),
        group: None,
        left: None,
        writer: None,
    }
}

/// What stands in a record until its run has ended.
fn interrupted() -> Verdict {
    let reason = Reason::new("interrupted", "the run was interrupted before its end");
    Verdict { kind: VerdictKind::Failed, reasons: vec![reason], cause: None }
}

impl RunState {
    /// Whether the line that begins a run was there; before it, the record is blank.
    pub fn began(&self) -> bool {
        !self.record.id.is_empty()
    }

    /// Steps that were planned and have no result yet, in order: what a resume has to do.
    pub fn undone(&self) -> impl Iterator<Item = &PlannedStep> {
        self.planned.iter().filter(|planned| !self.record.steps.iter().any(|step| step.name == planned.name))
    }

    /// The record to judge, before the run has ended: complete if it was ready, every planned step has a result, and the
    /// known questions that were asked before them were asked after them too.
    pub fn to_judge(&self) -> Record {
        let proven = self.server.as_ref().is_some_and(|server| server.base_url.is_some());
        let ready = proven || self.record.startup.as_ref().is_some_and(|startup| startup.ready_s.is_some());
        let asked = |when| self.record.answers.iter().any(|round| round.when == when);
        let answered = !asked(AnswersWhen::Before) || asked(AnswersWhen::After);
        let complete = (ready || !self.record.steps.is_empty()) && self.undone().next().is_none() && answered;
        Record { complete, ..self.record.clone() }
    }

    /// Takes one more line in.
    pub fn apply(&mut self, entry: &Entry) {
        self.last_seq = Some(entry.seq);
        self.last_at = Some(entry.at);
        let record = &mut self.record;
        match &entry.event {
            Event::RunBegan { profile, series, name: _, orch, host, kind, metrics_version, group, asked: _ } => {
                self.resumed();
                let record = &mut self.record;
                if record.id.is_empty() {
                    record.id = entry.run.clone();
                    record.started_at = entry.at;
                }
                record.profile = profile.clone();
                record.series = series.clone();
                record.orch = orch.clone();
                record.host = host.clone();
                record.kind = *kind;
                record.metrics_version = *metrics_version;
                record.group = group.clone();
                self.stage = Stage::Preflight;
            }
            Event::Planned { engine, simulated, command, env: _, steps, provenance } => {
                record.engine = Some(engine_info(engine, *simulated));
                record.command = command.clone();
                record.provenance.extend(provenance.iter().map(|(key, value)| (key.clone(), value.clone())));
                self.planned = steps.clone();
            }
            Event::Preflight { .. } | Event::Change { .. } | Event::ProbeAnswered { .. } => {}
            Event::SignOfLife { .. } | Event::Stalled { .. } => {}
            // After a resume the same is taken again.
            Event::LeaseTaken { lease } if self.leases.contains(lease) => {}
            Event::LeaseTaken { lease } => self.leases.push(lease.clone()),
            Event::LeaseLeft { lease } => self.leases.retain(|held| held != lease),
            Event::Displaced { what } if self.displaced.contains(what) => {}
            Event::Displaced { what } => self.displaced.push(what.clone()),
            Event::Restored { what, .. } => self.displaced.retain(|gone| gone != what),
            Event::Launching { server, command } => {
                self.resumed();
                self.record.command = command.clone();
                self.record.startup = Some(Default::default());
                self.server = Some(ServerState { id: server.clone(), ..Default::default() });
                self.failures_seen.clear();
                self.fact_ranks.clear();
                self.stage = Stage::Launch;
            }
            Event::ProcessBegan { pid, start_ticks, supervisor_pid } => {
                let (pid, start_ticks, supervisor_pid) = (*pid, *start_ticks, *supervisor_pid);
                let process = Process { pid, start_ticks, supervisor_pid, ended: None };
                self.server.get_or_insert_default().processes.insert(rank(&entry.scope), process);
                self.stage = Stage::Gate;
            }
            Event::ProcessEnded { code, signal, expected } => {
                let ended = Ended { code: *code, signal: *signal, expected: *expected };
                if let Some(process) =
                    self.server.as_mut().and_then(|server| server.processes.get_mut(&rank(&entry.scope)))
                {
                    process.ended = Some(ended);
                }
            }
            Event::PhaseBegan { .. }
            | Event::PhaseProgress { .. }
            | Event::PhaseEnded { .. }
            | Event::Fact { .. }
            | Event::Ready { .. } => self.starting(&entry.scope, &entry.event),
            Event::FailureSeen { kind, line, line_no, remedy, wraps: _ } => {
                let (kind, line, remedy) = (kind.clone(), line.clone(), remedy.clone());
                self.failures_seen.push(Seen { kind, line, line_no: *line_no, remedy });
            }
            Event::Readback { effective } => record.effective = effective.clone(),
            Event::Answers { when, answers } => {
                record.answers.retain(|round| round.when != *when);
                record.answers.push(Answers { when: *when, answers: answers.clone() });
            }
            Event::WarmupBegan {} | Event::StepBegan {} => self.step = step(&entry.scope),
            Event::WarmupEnded(_) => {}
            Event::LoadProgress { done, requests, elapsed_s, duration_s, .. } => {
                self.progress = Some(load_progress(*done, *requests, *elapsed_s, *duration_s));
            }
            Event::Counters { values } => {
                if let Some(step) = step(&entry.scope) {
                    self.counters.insert(step, values.clone());
                }
            }
            Event::StepEnded { result } => self.step_ended(result),
            Event::Telemetry { .. } | Event::MemoryReturned { .. } => {}
            Event::Stopping { .. } => {
                self.stage = Stage::Stop;
                self.step = None;
                self.progress = None;
            }
            Event::Judged { verdict, comparisons, failure } => {
                record.comparisons = comparisons.clone();
                record.failure = failure.as_deref().cloned();
                self.judged = Some(verdict.clone());
            }
            Event::RunEnded { complete, left } => self.ended(entry.at, *complete, left.as_ref()),
            Event::Warning(warning) => {
                let text = match step(&entry.scope) {
                    Some(step) => format!("`{step}`: {}", warning.text),
                    None => warning.text.clone(),
                };
                let warning = &Warning::new(&warning.id, text);
                if !record.warnings.contains(warning) {
                    record.warnings.push(warning.clone());
                }
            }
        }
    }

    /// A run that goes on after its end takes that end back.
    fn resumed(&mut self) {
        self.record.complete = false;
        self.record.ended_at = None;
        self.record.left = None;
        self.record.verdict = interrupted();
        self.record.comparisons.clear();
        self.record.failure = None;
        self.judged = None;
        self.phase = None;
        self.progress = None;
        self.step = None;
    }

    fn step_ended(&mut self, result: &StepResult) {
        let mut result = result.clone();
        for (key, value) in self.counters.remove(&result.name).unwrap_or_default() {
            result.counters.entry(key).or_insert(value);
        }
        // A step that was measured again counts once, by its last result.
        match self.record.steps.iter_mut().find(|step| step.name == result.name) {
            Some(before) => *before = result,
            None => self.record.steps.push(result),
        }
        self.step = None;
        self.progress = None;
    }

    fn ended(&mut self, at: Timestamp, complete: bool, left: Option<&Left>) {
        self.record.complete = complete;
        self.record.ended_at = Some(at);
        self.record.left = left.cloned();
        self.record.verdict = match (self.judged.take(), complete) {
            (Some(verdict), true) => verdict,
            // What was not done cannot be judged good, whatever was said of its part.
            (Some(verdict), false) if verdict.kind <= VerdictKind::Invalid => verdict,
            (_, false) => interrupted(),
            (None, true) => {
                let reason = Reason::new("not_judged", "the journal holds no verdict");
                Verdict { kind: VerdictKind::Failed, reasons: vec![reason], cause: None }
            }
        };
        self.stage = Stage::Ended;
        self.step = None;
        self.phase = None;
        self.progress = None;
    }

    /// What the run was judged, before it has ended.
    pub fn judged_kind(&self) -> Option<VerdictKind> {
        self.judged.as_ref().map(|verdict| verdict.kind)
    }

    /// The failure that the run was judged with.
    pub fn failure(&self) -> Option<&Failure> {
        self.record.failure.as_ref()
    }
}

fn engine_info(engine: &PlannedEngine, simulated: bool) -> EngineInfo {
    // Kinds are written as one lower-case word, in the record as in a profile.
    let kind = serde_json::to_value(engine.kind).ok().and_then(|kind| kind.as_str().map(str::to_owned));
    EngineInfo { kind: kind.unwrap_or_default(), version: engine.version.to_string(), simulated }
}

fn rank(scope: &Scope) -> u32 {
    match scope {
        Scope::Rank(rank) => *rank,
        Scope::Run | Scope::Step(_) => 0,
    }
}

fn step(scope: &Scope) -> Option<String> {
    match scope {
        Scope::Step(step) => Some(step.clone()),
        Scope::Run | Scope::Rank(_) => None,
    }
}

fn load_progress(done: u64, requests: Option<u64>, elapsed_s: f64, duration_s: Option<f64>) -> Progress {
    let (done, total, unit) = match (requests, duration_s) {
        (None, Some(duration)) => (elapsed_s, Some(duration), "s"),
        (requests, _) => (done as f64, requests.map(|requests| requests as f64), "requests"),
    };
    Progress { phase: "load".to_owned(), done, total, unit: unit.to_owned() }
}

#[cfg(test)]
pub(crate) mod tests;
