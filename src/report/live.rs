//! The view of a run while it goes on: from journal lines to screen lines. Pure: it never prints and never looks at a
//! clock, so what a person saw can be shown again from the journal.
//!
//! One line is drawn for each thing that is finished, and one live line at the bottom says what is going on now.

mod startup;
mod usual;

use std::time::Duration;

use crate::event::{Entry, Event, Scope};
use crate::measure::{Settled, WarmUp};
use crate::record::model::Effective;
use crate::render::Warning;
use crate::report::number::{amount, plain};
use crate::report::record::{OF_THE_SERVER, also_in};
use crate::report::text::{Mark, cut_middle, fit, seconds, short_id, wrap};
use startup::{Going, Startup};
pub use usual::Usual;

/// Columns before a line's text.
const LEAD: usize = 16;

/// The view's state.
#[derive(Debug)]
pub struct View {
    detail: bool,
    width: usize,
    usual: Usual,
    startup: Startup,
    stopping: Option<Going>,
    step: Option<Going>,
    load: Option<String>,
    /// Whether the requests that go are not counted.
    warming: bool,
    installing: Option<String>,
    /// Warnings that lie in the server: their ids and texts, and the further steps that they came from.
    of_the_server: Vec<(String, String, Vec<String>)>,
}

impl View {
    /// A view `width` columns wide. With `detail` it also shows leases, probes, counters and the command.
    pub fn new(width: usize, usual: Usual, detail: bool) -> Self {
        View {
            detail,
            width: width.clamp(40, 200),
            usual,
            startup: Startup::default(),
            stopping: None,
            step: None,
            load: None,
            warming: false,
            installing: None,
            of_the_server: Vec::new(),
        }
    }

    /// Keeps a warning that each step may have, to tell it once.
    fn of_the_server(&mut self, warning: &Warning, scope: &Scope) {
        let step = match scope {
            Scope::Step(step) => step.clone(),
            _ => String::new(),
        };
        match self.of_the_server.iter_mut().find(|(id, ..)| *id == warning.id) {
            Some((_, _, steps)) => steps.push(step),
            None => {
                let text = if step.is_empty() { warning.text.clone() } else { format!("`{step}`: {}", warning.text) };
                self.of_the_server.push((warning.id.clone(), text, Vec::new()));
            }
        }
    }

    /// Tells what was kept.
    fn told_once(&mut self) -> Vec<String> {
        let kept = std::mem::take(&mut self.of_the_server);
        kept.into_iter().flat_map(|(_, text, steps)| self.wrapped(Mark::Warn, "note", &also_in(text, &steps))).collect()
    }

    /// Takes in a line of the journal and gives the screen lines that are now final.
    pub fn see(&mut self, entry: &Entry) -> Vec<String> {
        let (at_ns, width) = (entry.since_start_ns, self.width);
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
            Event::SignOfLife { what, signs, .. } if signs.is_empty() => {
                if self.startup.launched_ns().is_none() {
                    self.installing = Some(what.clone());
                }
                Vec::new()
            }
            Event::SignOfLife { signs, workers, .. } => self.startup.lives(at_ns, signs, *workers, width),
            Event::Stalled { .. } => self.startup.silent(at_ns, &entry.event, width),
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
                self.startup.launched(at_ns);
                self.installing = None;
                self.detail(|| vec![format!("      {server}"), format!("      {}", plain(&shell_words::join(command)))])
            }
            Event::ProcessBegan { pid, .. } => vec![self.line(Mark::Ok, "process", &format!("pid {pid}"), "")],
            Event::PhaseBegan { phase } => {
                self.startup.began(phase, at_ns);
                Vec::new()
            }
            Event::PhaseProgress { done, total, unit, .. } => {
                self.startup.progressed(at_ns, *done, *total, unit);
                Vec::new()
            }
            Event::Fact { key, value } if key == "weights_cache" || key == "jit_cache" => {
                let word = value.as_str().unwrap_or_default();
                self.usual.learn(key, word);
                Vec::new()
            }
            Event::Fact { key, value } => {
                self.startup.fact(&entry.scope, key, value);
                Vec::new()
            }
            Event::PhaseEnded { phase, s } => vec![self.startup.ended(phase, *s, &self.usual, width)],
            Event::FailureSeen { kind, line, line_no, wraps, .. } => {
                self.startup.failed(kind, line, *line_no, *wraps, width)
            }
            Event::ProbeAnswered { probe, answer } => {
                self.startup.probed(answer);
                self.detail(|| vec![self.line(Mark::Ok, "probe", &format!("{probe}: {answer}"), "")])
            }
            Event::Ready { ready_s, tokens, model, .. } => {
                self.startup = Startup::default();
                let text = format!("{tokens} tokens generated by {model}");
                vec![self.line(
                    Mark::Ok,
                    "ready",
                    &text,
                    &ready_s.map(|s| with_usual(s, self.usual.ready_s())).unwrap_or_default(),
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
            Event::Stopping { why } => {
                let broke = self.startup.broke(at_ns, width).filter(|_| why == "failed");
                self.startup = Startup::default();
                self.stopping = Some(Going { name: "stopping".to_owned(), since_ns: at_ns });
                broke.into_iter().chain(self.told_once()).collect()
            }
            Event::ProcessEnded { code, signal, expected } => {
                let broke = self.startup.broke(at_ns, width).filter(|_| !expected);
                self.startup = Startup::default();
                self.stopping = None;
                let how = match (code, signal) {
                    (Some(code), _) => format!("server ended with code {code}"),
                    (None, Some(signal)) => format!("server ended by signal {signal}"),
                    (None, None) => "server ended".to_owned(),
                };
                let mark = if *expected { Mark::Ok } else { Mark::Bad };
                broke.into_iter().chain([self.line(mark, "stop", &how, "")]).collect()
            }
            Event::Restored { what, outage_s } => {
                // In seconds and never cut: it is what a person has to answer for.
                vec![self.line(Mark::Ok, "restored", &format!("{what} serves"), &format!("outage {outage_s:.1} s"))]
            }
            // The tables mark such a percentile, each time it is shown.
            Event::Warning(warning) if warning.id == "percentiles_not_carried" => {
                self.detail(|| self.wrapped(Mark::Warn, "note", &warning.text))
            }
            Event::Warning(warning) if OF_THE_SERVER.contains(&warning.id.as_str()) => {
                self.of_the_server(warning, &entry.scope);
                Vec::new()
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
            | Event::Judged { .. } => Vec::new(),
            Event::RunEnded { .. } => self.told_once(),
        }
    }

    /// What was shown so far happened before anybody looked, at moments that nobody knows; the log grew last so long ago.
    pub fn replayed(&mut self, now_ns: u64, log_age_ns: u64) {
        self.startup.replayed(now_ns, log_age_ns);
    }

    /// The live line, or lines, `now_ns` nanoseconds after the run began; `None` while nothing is going on.
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
        if let Some(stopping) = &self.stopping {
            return Some(self.line(Mark::Live, &stopping.name, "", &since(stopping.since_ns, now_ns)));
        }
        if let Some(lines) = self.startup.live(now_ns, &self.usual, self.width) {
            return Some(lines);
        }
        self.installing.as_ref().map(|what| self.line(Mark::Live, "install", what, &since(0, now_ns)))
    }

    fn detail(&self, lines: impl FnOnce() -> Vec<String>) -> Vec<String> {
        if self.detail { lines() } else { Vec::new() }
    }

    fn began(&self, name: &str, run: &str, host: &str, hardware: &str) -> Vec<String> {
        let short = short_id(run);
        let left = format!("{name} on {host}, {hardware}");
        let mut lines = vec![fit(&left, &format!("run {short}"), self.width)];
        if let (Some(ready), Some(newest)) = (self.usual.ready_s(), self.usual.newest()) {
            let total = newest.total_s.map(|s| format!(", done in {}", seconds(s))).unwrap_or_default();
            lines.push(format!("expect ready in {}{total}, as {}", seconds(ready), short_id(&newest.run)));
        }
        lines.push(String::new());
        lines
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

/// A span with what it usually is in brackets; below two minutes without its unit, which is the same.
fn with_usual(s: f64, usual: Option<f64>) -> String {
    match usual {
        Some(usual) if (1.0..99.5).contains(&s) && (9.95..99.5).contains(&usual) => {
            format!("{} ({usual:.0})", seconds(s))
        }
        Some(usual) if (1.0..99.5).contains(&s) && (1.0..9.95).contains(&usual) => {
            format!("{} ({usual:.1})", seconds(s))
        }
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
