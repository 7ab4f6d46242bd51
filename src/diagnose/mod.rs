//! What a log means, together with what else is known: in which state the server is, why, and what to do. Pure: it reads
//! the fold of a log ([`Startup`]) and a [`Context`], and touches nothing.

mod among;
mod context;
mod decide;
mod recognise;
mod serving;
mod text;

pub use among::{Other, Part, Together, together};
pub use context::{
    Baseline, Check, Context, Exit, HostSignals, LineOrder, Observed, Preflight, Probe, SideFacts, Topology,
};
pub use recognise::{Known, recognise};
pub use text::{for_people, for_people_together};

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::gate::log::{LogGrammar, Nature, Progress, Startup, fill};

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It can answer, and nothing speaks against its answers.
    Ready,
    /// Its start goes on.
    Loading,
    /// Its start does not go on.
    Stalled,
    /// It has ended, or cannot succeed.
    Failed,
    /// It serves, but not what was asked for.
    Degraded,
    /// What is known does not decide.
    Unknown,
}

impl State {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Loading => "loading",
            State::Stalled => "stalled",
            State::Failed => "failed",
            State::Degraded => "degraded",
            State::Unknown => "unknown",
        }
    }
}

/// What a log means. Absent is `null`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The engine that wrote it.
    pub engine: Option<String>,
    /// Its version, if the log says.
    pub engine_version: Option<String>,
    /// The state.
    pub state: State,
    /// The last phase that was reached.
    pub phase: Option<String>,
    /// The kind of failure, in the log vocabulary.
    pub failure_kind: Option<String>,
    /// The line that is the cause and no consequence.
    pub root_cause_line: Option<String>,
    /// Its number, from 1.
    pub root_cause_line_no: Option<u64>,
    /// The newest counter of that phase.
    pub progress: Option<Counter>,
    /// What the log told, by key.
    pub facts: BTreeMap<String, Value>,
    /// What to change, and whether trying again can help.
    pub remedy: Option<String>,
    /// Why, as a sentence.
    pub explanation: Option<String>,
    /// Lines that look like causes and report another's, with their numbers.
    #[serde(skip)]
    pub consequences: Vec<(u64, String)>,
    /// Free memory of the rank with the least of it, phase by phase.
    #[serde(skip)]
    pub memory: Vec<(String, Option<u32>, f64)>,
}

/// How far something is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counter {
    /// So many are done,
    pub done: Value,
    /// of so many.
    pub total: Option<Value>,
    /// What is counted.
    pub unit: String,
}

impl From<&Progress> for Counter {
    fn from(progress: &Progress) -> Self {
        let Progress { done, total, unit } = progress;
        Counter { done: number(*done), total: total.map(number), unit: unit.clone() }
    }
}

/// A count is written as one.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 { Value::from(value as i64) } else { Value::from(value) }
}

/// A kind of failure, and the line that shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reason {
    kind: String,
    line: Option<(u64, String)>,
    remedy: Option<String>,
    retry: Option<String>,
    /// What is said beside what is said of every failure of the kind.
    detail: Option<String>,
}

impl Reason {
    fn of(kind: &str) -> Self {
        Reason { kind: kind.to_owned(), ..Reason::default() }
    }

    fn saying(kind: &str, detail: String) -> Self {
        Reason { detail: Some(detail), ..Reason::of(kind) }
    }

    fn root(failure: &crate::gate::log::Failure) -> Self {
        Reason {
            kind: failure.kind.clone(),
            line: Some((failure.line_no, failure.line.clone())),
            remedy: failure.remedy.clone(),
            retry: failure.retry.clone(),
            detail: None,
        }
    }
}

/// Says what a log means.
pub fn diagnose(startup: &Startup, grammar: &LogGrammar, engine: Option<&str>, context: &Context) -> Diagnosis {
    let (state, reason) = decide::decide(startup, grammar, context);
    let facts = startup.facts().clone();
    let settings = grammar.settings();
    let general = reason.as_ref().and_then(|reason| grammar.kind(&reason.kind));
    let told = |text: &Option<String>| text.as_ref().map(|text| fill(text, &facts, settings));
    let why = general.and_then(|kind| told(&kind.why));
    let detail = reason.as_ref().and_then(|reason| reason.detail.clone());
    let explanation = match (why, detail) {
        (Some(why), Some(detail)) => Some(format!("{why}: {detail}")),
        (why, detail) => why.or(detail).or_else(|| decide::stands(state, startup, context)),
    };
    // A remedy is filled anew: what stands in its brackets may have been told after the failure.
    let remedy = reason
        .as_ref()
        .and_then(|reason| reason.remedy.clone())
        .or_else(|| general.and_then(|kind| told(&kind.remedy)));
    let retry =
        reason.as_ref().and_then(|reason| reason.retry.clone()).or_else(|| general.and_then(|kind| kind.retry.clone()));
    let asked = settings.get("memory.fraction").and_then(|asked| asked.parse().ok());
    let known = context.known_good.as_ref().zip(reason.as_ref());
    let known = known.and_then(|(known, reason)| known.sentence(&reason.kind, asked));
    let remedy = match (remedy, known) {
        (Some(remedy), Some(known)) => Some(format!("{remedy}. {}", known.trim_end_matches('.'))),
        (remedy, known) => remedy.or(known),
    };
    let remedy = match (remedy, retry.as_deref().and_then(again)) {
        (Some(remedy), Some(again)) => Some(format!("{remedy}. {again}")),
        (remedy, again) => remedy.or_else(|| again.map(str::to_owned)),
    };
    let line = reason.as_ref().and_then(|reason| reason.line.clone());
    let root_no = line.as_ref().map(|(number, _)| *number);
    let consequences = startup
        .failures()
        .iter()
        .filter(|failure| matches!(failure.nature, Nature::Wraps | Nature::Result) && Some(failure.line_no) != root_no);
    let consequences = consequences.map(|failure| (failure.line_no, failure.line.clone())).take(3).collect();
    let nothing_read = startup.last_words().is_empty();
    Diagnosis {
        engine: engine.map(str::to_owned),
        engine_version: startup.version().map(str::to_owned),
        state,
        phase: (!nothing_read).then(|| startup.reached().to_owned()),
        failure_kind: reason.map(|reason| reason.kind),
        root_cause_line: line.as_ref().map(|(_, line)| line.clone()),
        root_cause_line_no: root_no,
        progress: startup.progress().map(Counter::from),
        facts,
        remedy,
        explanation,
        consequences,
        memory: tightest(startup),
    }
}

/// Whether trying again can help, as a sentence.
fn again(retry: &str) -> Option<&'static str> {
    match retry {
        "never" => Some("Again as it is: no use."),
        "maybe" => Some("Again as it is: it may work."),
        "later" => Some("Again later: it may work."),
        "elsewhere" => Some("Again as it is: only elsewhere."),
        _ => None,
    }
}

/// The least free memory of all ranks, phase by phase.
fn tightest(startup: &Startup) -> Vec<(String, Option<u32>, f64)> {
    let mut all: Vec<(String, Option<u32>, f64)> = Vec::new();
    for told in startup.memory() {
        match all.iter_mut().find(|(phase, _, _)| *phase == told.phase) {
            Some(least) if told.free_gb < least.2 => *least = (told.phase.clone(), told.rank, told.free_gb),
            Some(_) => {}
            None => all.push((told.phase.clone(), told.rank, told.free_gb)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::log::{FailureRule, LogRules, read_all};
    use crate::record::model::KnownGood;

    #[test]
    fn a_remedy_names_the_fraction_that_is_known_to_start() {
        let rule = FailureRule {
            kind: "oom_capture".into(),
            pattern: "out of memory".into(),
            retry: Some("never".into()),
            remedy: Some("lower `memory.fraction` from {memory.fraction}".into()),
            ..FailureRule::default()
        };
        let grammar = LogGrammar::new(&LogRules { failures: vec![rule], ..LogRules::default() }).unwrap();
        let grammar = grammar.with_settings(BTreeMap::from([("memory.fraction".to_owned(), "0.96".to_owned())]));
        let startup = read_all("CUDA out of memory\n".as_bytes(), &grammar).unwrap();
        let remedy = |fraction: Option<f64>| {
            let known = fraction.map(|fraction| KnownGood {
                run: "20261121-220000-qwen-mtp3-0412".into(),
                fraction: Some(fraction),
                memory: Vec::new(),
            });
            diagnose(&startup, &grammar, None, &Context { known_good: known, ..Context::default() }).remedy.unwrap()
        };
        assert_eq!(remedy(None), "lower `memory.fraction` from 0.96. Again as it is: no use.");
        let known = "memory.fraction 0.88 is known to start here (r0412)";
        assert_eq!(remedy(Some(0.88)), format!("lower `memory.fraction` from 0.96. {known}. Again as it is: no use."));
        assert_eq!(remedy(Some(0.96)), remedy(None), "what failed is not advised");
    }
}
