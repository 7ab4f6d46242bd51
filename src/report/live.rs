//! The view of a run while it goes on: from journal lines to screen lines. Pure: it never prints and never looks at a
//! clock, so what a person saw can be shown again from the journal.
//!
//! One line is drawn for each thing that is finished, and one live line at the bottom says what is going on now.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::{Entry, Event, Scope};
use crate::measure::{Settled, WarmUp};
use crate::record::model::{Effective, Record};
use crate::report::number::{amount, plain};
use crate::report::text::{Mark, cut_middle, fit, seconds, short_id, wrap};

/// What a run of this kind usually does, from the newest complete run of the same series and host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usual {
    /// Short name of the run that this comes from.
    pub run: Option<String>,
    /// Seconds from launch to ready.
    pub ready_s: Option<f64>,
    /// Seconds by phase.
    pub phases: BTreeMap<String, f64>,
    /// Seconds from beginning to end.
    pub total_s: Option<f64>,
}

impl Usual {
    /// Reads it off a record.
    pub fn of(record: &Record) -> Self {
        let startup = record.startup.as_ref();
        Usual {
            run: Some(short_id(&record.id)),
            ready_s: startup.and_then(|startup| startup.ready_s),
            phases: startup
                .map(|startup| startup.phases.iter().map(|phase| (phase.name.clone(), phase.s)).collect())
                .unwrap_or_default(),
            total_s: record.ended_at.map(|ended| (ended - record.started_at).as_secs_f64()),
        }
    }
}

/// Columns before a line's text.
const LEAD: usize = 16;

/// The view's state.
#[derive(Debug)]
pub struct View {
    detail: bool,
    width: usize,
    usual: Usual,
    phase: Option<Going>,
    facts: Vec<(String, String)>,
    step: Option<Going>,
    load: Option<String>,
    /// Whether the requests that go are not counted.
    warming: bool,
    progress: Option<(f64, Option<f64>, String)>,
    probe: Option<String>,
    last_sign_ns: u64,
    launched_ns: Option<u64>,
    installing: Option<String>,
}

#[derive(Debug)]
struct Going {
    name: String,
    since_ns: u64,
}

impl View {
    /// A view `width` columns wide. With `detail` it also shows leases, probes, counters and the command.
    pub fn new(width: usize, usual: Usual, detail: bool) -> Self {
        View {
            detail,
            width: width.clamp(40, 200),
            usual,
            phase: None,
            facts: Vec::new(),
            step: None,
            load: None,
            warming: false,
            progress: None,
            probe: None,
            last_sign_ns: 0,
            launched_ns: None,
            installing: None,
        }
    }

    /// Takes in a line of the journal and gives the screen lines that are now final.
    pub fn see(&mut self, entry: &Entry) -> Vec<String> {
        if !matches!(entry.event, Event::LoadProgress { .. } | Event::Telemetry { .. }) {
            self.last_sign_ns = entry.since_start_ns;
        }
        match &entry.event {
            Event::RunBegan { name, host, .. } => self.began(name, &entry.run, &host.name, &host.hardware),
            Event::Planned { engine, simulated, steps, .. } => {
                let simulated = if *simulated { ", simulated" } else { "" };
                let assumed = if engine.assumed { ", version assumed" } else { "" };
                let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
                let version = match engine.version.0.as_str() {
                    "" | "unknown" => String::new(),
                    version => format!(" {version}"),
                };
                let steps = if names.is_empty() {
                    "nothing to measure".to_owned()
                } else {
                    format!("steps {}", names.join(", "))
                };
                vec![self.line(Mark::Ok, "plan", &format!("{}{version}{simulated}{assumed}; {steps}", engine.kind), "")]
            }
            // What is done to somebody else's server is said in full.
            Event::Preflight { check, ok: true, text } if check == "displace" => self.wrapped(Mark::Ok, check, text),
            Event::Preflight { check, ok: true, text } => {
                self.installing = None;
                vec![self.line(Mark::Ok, check, &cut_middle(text, self.width.saturating_sub(LEAD)), "")]
            }
            Event::Preflight { check, ok: false, text } => {
                self.installing = None;
                self.wrapped(Mark::Bad, check, text)
            }
            Event::SignOfLife { what } => {
                if self.launched_ns.is_none() {
                    self.installing = Some(what.clone());
                }
                Vec::new()
            }
            Event::Change { what, diff } if diff.is_empty() => {
                vec![self.line(Mark::Ok, "change", &format!("{what} is as it should be"), "")]
            }
            Event::Change { what, diff } => {
                let mut lines = vec![self.line(Mark::Ok, "change", what, "")];
                lines.extend(diff.lines().map(|line| format!("    {}", plain(line))));
                lines
            }
            Event::Displaced { what } => vec![self.line(Mark::Ok, "displace", &format!("{what} is stopped"), "")],
            Event::Launching { server, command } => {
                self.launched_ns = Some(entry.since_start_ns);
                self.installing = None;
                self.detail(|| vec![format!("      {server}"), format!("      {}", plain(&shell_words::join(command)))])
            }
            Event::ProcessBegan { pid, .. } => vec![self.line(Mark::Ok, "process", &format!("pid {pid}"), "")],
            Event::PhaseBegan { phase } => {
                self.phase = Some(Going { name: phase.clone(), since_ns: entry.since_start_ns });
                self.progress = None;
                Vec::new()
            }
            Event::PhaseProgress { done, total, unit, .. } => {
                self.progress = Some((*done, *total, unit.clone()));
                Vec::new()
            }
            Event::Fact { key, value } => {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                self.facts.retain(|(known, _)| known != key);
                self.facts.push((key.clone(), value));
                Vec::new()
            }
            Event::PhaseEnded { phase, s } => self.phase_ended(phase, *s),
            Event::FailureSeen { kind, line, line_no, .. } => {
                vec![self.line(Mark::Odd, "log", &format!("{kind}: server.log:{line_no}  {}", line.trim()), "")]
            }
            Event::ProbeAnswered { probe, answer } => {
                self.probe = Some(answer.clone());
                self.detail(|| vec![self.line(Mark::Ok, "probe", &format!("{probe}: {answer}"), "")])
            }
            Event::Ready { ready_s, tokens, model, .. } => {
                self.phase = None;
                let text = format!("{tokens} tokens generated by {model}");
                vec![self.line(
                    Mark::Ok,
                    "ready",
                    &text,
                    &ready_s.map(|s| with_usual(s, self.usual.ready_s)).unwrap_or_default(),
                )]
            }
            Event::Readback { effective } => self.capacity(effective),
            Event::WarmupBegan {} => {
                self.step = step_of(&entry.scope, entry.since_start_ns);
                self.load = Some("warm-up".to_owned());
                self.warming = true;
                Vec::new()
            }
            Event::StepBegan {} => {
                self.step = step_of(&entry.scope, entry.since_start_ns);
                self.load = None;
                self.warming = false;
                Vec::new()
            }
            Event::LoadProgress { .. } => {
                let what = if self.warming { "warm-up, " } else { "" };
                self.load = Some(format!("{what}{}", load_text(&entry.event)));
                Vec::new()
            }
            Event::StepEnded { result } => {
                let since = self.step.take().map(|step| entry.since_start_ns.saturating_sub(step.since_ns));
                self.load = None;
                let mark = if result.valid { Mark::Ok } else { Mark::Bad };
                let mut text = format!("{}: {} requests", result.name, result.counts.ok);
                if result.counts.failed > 0 {
                    text.push_str(&format!(", {} failed", result.counts.failed));
                }
                let mut lines = vec![self.line(mark, "step", &text, &since.map(nanos_text).unwrap_or_default())];
                lines
                    .extend(result.reasons.iter().flat_map(|reason| self.wrapped(Mark::Warn, "invalid", &reason.text)));
                lines
            }
            Event::Stopping { .. } => {
                self.phase = Some(Going { name: "stopping".to_owned(), since_ns: entry.since_start_ns });
                self.progress = None;
                self.probe = None;
                Vec::new()
            }
            Event::ProcessEnded { code, signal, expected } => {
                self.phase = None;
                let how = match (code, signal) {
                    (Some(code), _) => format!("server ended with code {code}"),
                    (None, Some(signal)) => format!("server ended by signal {signal}"),
                    (None, None) => "server ended".to_owned(),
                };
                vec![self.line(if *expected { Mark::Ok } else { Mark::Bad }, "stop", &how, "")]
            }
            Event::Restored { what, outage_s } => {
                // In seconds and never cut: it is what a person has to answer for.
                vec![self.line(Mark::Ok, "restored", &format!("{what} serves"), &format!("outage {outage_s:.1} s"))]
            }
            // The tables mark such a percentile, each time it is shown.
            Event::Warning(warning) if warning.id == "percentiles_not_carried" => {
                self.detail(|| self.wrapped(Mark::Warn, "note", &warning.text))
            }
            Event::Warning(warning) => self.wrapped(Mark::Warn, "note", &warning.text),
            Event::LeaseTaken { lease } => self.detail(|| vec![self.line(Mark::Ok, "lease", lease, "")]),
            Event::WarmupEnded(warm_up) => {
                let (mark, words) = warm_up_words(warm_up);
                // One round of a given number is no news.
                let lines = || vec![self.line(mark, "warm-up", &words, &seconds(warm_up.s))];
                if warm_up.settled.is_some() { lines() } else { self.detail(lines) }
            }
            Event::Answers { when, answers } => {
                let wrong: Vec<&str> = answers
                    .iter()
                    .filter(|answer| answer.right == Some(false))
                    .map(|answer| answer.id.as_str())
                    .collect();
                let text = match wrong.as_slice() {
                    [] => format!("{} known, {}", answers.len(), when.words()),
                    wrong => format!("wrong {}: {}", when.words(), wrong.join(", ")),
                };
                let mark = if wrong.is_empty() { Mark::Ok } else { Mark::Bad };
                self.wrapped(mark, "answers", &text)
            }
            Event::Counters { .. }
            | Event::Telemetry { .. }
            | Event::MemoryReturned { .. }
            | Event::LeaseLeft { .. }
            | Event::Judged { .. }
            | Event::RunEnded { .. } => Vec::new(),
        }
    }

    /// The live line, `now_ns` nanoseconds after the run began; `None` while nothing is going on.
    pub fn live(&self, now_ns: u64) -> Option<String> {
        if let Some(step) = &self.step {
            let text = self.load.clone().unwrap_or_else(|| "first requests".to_owned());
            return Some(self.line(
                Mark::Live,
                "load",
                &format!("{}: {text}", step.name),
                &since(step.since_ns, now_ns),
            ));
        }
        if let Some(phase) = &self.phase {
            let usual = self.usual.phases.get(&phase.name).map(|s| format!(" ({})", seconds(*s))).unwrap_or_default();
            let time = format!("{}{usual}", since(phase.since_ns, now_ns));
            return Some(self.line(Mark::Live, &phase.name, &self.phase_text(now_ns), &time));
        }
        if let Some(launched) = self.launched_ns {
            return Some(self.line(Mark::Live, "start-up", &self.phase_text(now_ns), &since(launched, now_ns)));
        }
        self.installing.as_ref().map(|what| self.line(Mark::Live, "install", what, &since(0, now_ns)))
    }

    fn detail(&self, lines: impl FnOnce() -> Vec<String>) -> Vec<String> {
        if self.detail { lines() } else { Vec::new() }
    }

    fn phase_text(&self, now_ns: u64) -> String {
        let mut parts = Vec::new();
        if let Some((done, total, unit)) = &self.progress {
            match total {
                Some(total) if *total > 0.0 => {
                    parts.push(format!("{} {} of {} {unit}", bar(done / total), amount(*done), amount(*total)));
                }
                _ => parts.push(format!("{} {unit}", amount(*done))),
            }
        }
        if let Some(probe) = &self.probe {
            parts.push(format!("http {probe}"));
        }
        let quiet = Duration::from_nanos(now_ns.saturating_sub(self.last_sign_ns));
        if quiet >= Duration::from_secs(2) {
            parts.push(format!("last sign {} ago", seconds(quiet.as_secs_f64())));
        }
        parts.join(" | ")
    }

    fn began(&self, name: &str, run: &str, host: &str, hardware: &str) -> Vec<String> {
        let short = short_id(run);
        let left = format!("{name} on {host}, {hardware}");
        let mut lines = vec![fit(&left, &format!("run {short}"), self.width)];
        if let (Some(ready), Some(run)) = (self.usual.ready_s, &self.usual.run) {
            let total = self.usual.total_s.map(|s| format!(", done in {}", seconds(s))).unwrap_or_default();
            lines.push(format!("expect ready in {}{total}, as {run}", seconds(ready)));
        }
        lines.push(String::new());
        lines
    }

    fn phase_ended(&mut self, phase: &str, s: f64) -> Vec<String> {
        if self.phase.as_ref().is_some_and(|going| going.name == phase) {
            self.phase = None;
        }
        let text: Vec<String> =
            self.facts.drain(..).map(|(key, value)| format!("{} {value}", key.replace('_', " "))).collect();
        let time = with_usual(s, self.usual.phases.get(phase).copied());
        vec![self.line(Mark::Ok, phase, &text.join(", "), &time)]
    }

    fn capacity(&self, effective: &[Effective]) -> Vec<String> {
        effective
            .iter()
            .filter_map(|value| {
                let (asked, read) = (value.asked.as_ref()?, value.read.as_ref()?);
                (asked != read)
                    .then(|| self.line(Mark::Warn, "capacity", &format!("{} is {read}, {asked} asked", value.key), ""))
            })
            .collect()
    }

    /// All of a text, in as many lines as it takes.
    fn wrapped(&self, mark: Mark, name: &str, text: &str) -> Vec<String> {
        wrap(text, &format!(" {}  {:<10} ", mark.text(), name.replace('_', " ")), self.width)
    }

    fn line(&self, mark: Mark, name: &str, text: &str, time: &str) -> String {
        let name = name.replace('_', " ");
        fit(&format!(" {}  {name:<10} {text}", mark.text()), time, self.width)
    }
}

fn step_of(scope: &Scope, since_ns: u64) -> Option<Going> {
    match scope {
        Scope::Step(name) => Some(Going { name: name.clone(), since_ns }),
        _ => None,
    }
}

fn load_text(event: &Event) -> String {
    let Event::LoadProgress { done, requests, elapsed_s, duration_s, failed, chunks_per_s, ttft_ms } = event else {
        return String::new();
    };
    let mut text = match (requests, duration_s) {
        (Some(requests), _) => format!("{} {done} of {requests}", bar(*done as f64 / (*requests).max(1) as f64)),
        (None, Some(duration)) => format!("{} {done} requests", bar(elapsed_s / duration.max(f64::MIN_POSITIVE))),
        (None, None) => format!("{done} requests"),
    };
    if let Some(rate) = chunks_per_s {
        text.push_str(&format!(" | {} chunks/s", amount(*rate)));
    }
    if let Some(ttft) = ttft_ms {
        text.push_str(&format!(" | TTFT {} ms", amount(*ttft)));
    }
    if *failed > 0 {
        text.push_str(&format!(" | {failed} failed"));
    }
    text
}

fn with_usual(s: f64, usual: Option<f64>) -> String {
    match usual {
        Some(usual) => format!("{} ({})", seconds(s), seconds(usual)),
        None => seconds(s),
    }
}

fn since(from_ns: u64, now_ns: u64) -> String {
    nanos_text(now_ns.saturating_sub(from_ns))
}

fn nanos_text(nanos: u64) -> String {
    seconds(Duration::from_nanos(nanos).as_secs_f64())
}

/// `[####.......]` for a share of 0 to 1.
fn bar(share: f64) -> String {
    const CELLS: usize = 12;
    let full = ((share.clamp(0.0, 1.0) * CELLS as f64) as usize).min(CELLS);
    format!("[{}{}]", "#".repeat(full), ".".repeat(CELLS - full))
}

/// How a warm-up ended.
fn warm_up_words(warm_up: &WarmUp) -> (Mark, String) {
    let requests = warm_up.requests;
    match warm_up.settled {
        None => (Mark::Ok, format!("{requests} requests")),
        Some(Settled { settled: true, difference_ratio, .. }) => {
            let within = difference_ratio.unwrap_or_default() * 100.0;
            (Mark::Ok, format!("settled within {within:.1} % after {requests} requests"))
        }
        Some(_) => (Mark::Warn, format!("not settled after {requests} requests")),
    }
}
