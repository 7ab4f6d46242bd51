//! The record of a run, `run.json`: what was asked, what happened, what came out, and how it was judged.
//!
//! Absent is absent: a value that is not known is `null` or not there, never zero.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measure::MetricValue;
use crate::measure::counters::Source;
use crate::render::Warning;

/// Version of the record's shape.
pub const SCHEMA: u32 = 1;

/// A record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the metrics' definitions; records of two versions are not compared.
    pub metrics_version: u32,
    /// `YYYYMMDD-HHMMSS-name-4hex`; short: `r` and the hex digits.
    pub id: String,
    /// What kind of run.
    pub kind: RunKind,
    /// Whether everything that was planned was done.
    pub complete: bool,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended; `null` while it runs, and after it was killed.
    pub ended_at: Option<Timestamp>,
    /// Which build of orch made it.
    pub orch: OrchInfo,
    /// History and baseline belong to this.
    pub series: String,
    /// The resolved profile; secrets as `${NAME}`.
    pub profile: Value,
    /// The engine; `null` until it was planned.
    pub engine: Option<EngineInfo>,
    /// The head's command.
    pub command: Vec<String>,
    /// Where the server ran.
    pub host: HostInfo,
    /// Its start; `null` when nothing was started.
    pub startup: Option<Startup>,
    /// What the server said it can do, beside what was asked.
    pub effective: Vec<Effective>,
    /// How known questions were answered; not there when none were asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Answers>,
    /// The steps that were measured.
    pub steps: Vec<StepResult>,
    /// Where everything came from.
    pub provenance: BTreeMap<String, Value>,
    /// The verdict.
    pub verdict: Verdict,
    /// Metric by metric, what it was compared with.
    pub comparisons: Vec<Comparison>,
    /// The failure, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What a person should know.
    pub warnings: Vec<Warning>,
    /// The sweep or repetition that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// What is left on the host; `null` until that was looked at.
    pub left: Option<Left>,
    /// Who recorded it; not there for what was recorded in this results folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,
}

impl Record {
    /// Which start of a server it measured: runs of the same one have the same.
    pub fn start_key(&self) -> String {
        let attached = self.provenance.get("attached").and_then(Value::as_str);
        // What else was measured at an address, and whether it was started again in between, is not known.
        if let Some(server) = attached.filter(|server| !server.contains("://")) {
            return server.to_owned();
        }
        let kept = self.left.as_ref().and_then(|left| left.kept.clone());
        kept.unwrap_or_else(|| self.id.clone())
    }
}

/// Who records: a user on a host. Written `user@host` where it is one word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// The host's own name.
    pub host: String,
    /// The user's name there.
    pub user: String,
}

impl Writer {
    /// Whoever runs this process.
    pub fn here() -> Self {
        let unknown = || "unknown".to_owned();
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        Writer { host: host.unwrap_or_else(unknown), user: user.unwrap_or_else(unknown) }
    }

    /// Reads `user@host`. Whatever it holds, something comes out: it is only shown.
    pub fn of(text: &str) -> Self {
        let (user, host) = text.rsplit_once('@').unwrap_or((text, "unknown"));
        Writer { host: host.to_owned(), user: user.to_owned() }
    }
}

impl std::fmt::Display for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.user, self.host)
    }
}

/// What kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// A server was started (or attached to) from a profile.
    Run,
    /// An endpoint that was already up.
    Bench,
    /// A point of a sweep.
    Point,
}

/// What was asked for beside the profile, so that a run that is resumed goes on the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The server that was there already: what a person called it, or its address. `None` where the run starts one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach: Option<String>,
    /// Whether the server stays when the run has come to its end.
    #[serde(default)]
    pub keep: bool,
    /// The id of the run that it is judged against instead of the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// Whether production was to make room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub displace: Option<AskedDisplace>,
}

/// How production was to make room for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedDisplace {
    /// Also when it may be in use.
    #[serde(default)]
    pub force: bool,
    /// The file that names it, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<std::path::PathBuf>,
}

impl Asked {
    /// Whether nothing was asked for but the profile.
    pub fn is_nothing(&self) -> bool {
        *self == Asked::default()
    }
}

/// Which build of orch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrchInfo {
    /// Its version.
    pub version: String,
    /// The commit it was built from, if known.
    pub commit: Option<String>,
}

/// The engine that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Its kind.
    pub kind: String,
    /// Its version.
    pub version: String,
    /// Whether it was simulated; such records are never compared with real ones.
    pub simulated: bool,
}

/// Where the server ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its name: that of `hosts.yaml`, or the machine's own.
    pub name: String,
    /// What a result depends on: GPU models and count, or processor model and cores.
    pub hardware: String,
}

/// A start of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Startup {
    /// Seconds from launch to proven ready; `null` if it never was.
    pub ready_s: Option<f64>,
    /// `cold` or `warm`, as the bytes that were read tell.
    pub weights_cache: Option<String>,
    /// `cold` or `warm`.
    pub jit_cache: Option<String>,
    /// The phases, in order.
    pub phases: Vec<PhaseTime>,
    /// Memory left, phase by phase.
    pub memory: Vec<MemoryPoint>,
    /// What the server said of itself, by fact key.
    #[serde(default)]
    pub facts: BTreeMap<String, Value>,
}

/// How long a phase took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// The phase.
    pub name: String,
    /// Seconds.
    pub s: f64,
}

/// Memory left on a rank's device at a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryPoint {
    /// The phase.
    pub phase: String,
    /// The rank.
    pub rank: u32,
    /// Gigabytes, in the unit the engine prints.
    pub free_gb: f64,
    /// While graphs were captured: after so many of them. Not there for what was left last in the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphs: Option<u64>,
}

/// A setting as asked and as read back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effective {
    /// The neutral key.
    pub key: String,
    /// What the profile asked; `null` if it left it open.
    pub asked: Option<Value>,
    /// What the server says; `null` if it does not say.
    pub read: Option<Value>,
}

/// Known questions and how they were answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// When they were asked.
    pub when: AnswersWhen,
    /// The answers, in the order of the questions.
    pub answers: Vec<Answer>,
}

/// When known questions are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswersWhen {
    /// Before the first step.
    Before,
    /// After the last.
    After,
}

impl AnswersWhen {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            AnswersWhen::Before => "before the first step",
            AnswersWhen::After => "after the last step",
        }
    }
}

/// The answer to a known question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The question's name.
    pub id: String,
    /// Whether it is right; `null` where nothing was expected but an answer.
    pub right: Option<bool>,
    /// Its text, cut short.
    pub text: String,
    /// The pattern that it must hold.
    pub expect: Option<String>,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// `single`, `ladder@8`.
    pub name: String,
    /// Whether its numbers may be used.
    pub valid: bool,
    /// Why not.
    pub reasons: Vec<Reason>,
    /// `sha256:<hex>` of the workload.
    pub workload: String,
    /// The workload's name.
    pub workload_name: String,
    /// How it was sent.
    pub load: crate::render::Load,
    /// What a request had to meet to count as good; not there when nothing was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<crate::measure::Goodput>,
    /// `beside`, `direct` or `tunnel`.
    pub load_path: String,
    /// Requests by how they ended.
    pub counts: Counts,
    /// By metric id. An id that does not apply is not there.
    pub metrics: BTreeMap<String, MetricValue>,
    /// Standard errors of metrics within the run, by metric id (with `.p50` and the like for distributions), in the
    /// metric's unit. One that is not there is not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "write_finite")]
    pub errors: BTreeMap<String, f64>,
    /// The engine's own counters over the step, by neutral name.
    #[serde(serialize_with = "write_finite")]
    pub counters: BTreeMap<String, f64>,
    /// The requests before the measured ones; absent in records of before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<crate::measure::WarmUp>,
    /// How the client itself fared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<crate::measure::Client>,
    /// Where the metrics that rest on the engine's own words are from, by metric id: how exact they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, Source>,
    /// For each place in a draft, from 0, the share of verify steps that accepted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acceptance_by_position: Vec<f64>,
    /// Whether it is a load that a search tried: some must fail, so it is neither judged nor a baseline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probe: bool,
}

/// Serialises numbers by name, without those that are not finite: JSON has no word for them, and a `null` in their place
/// could not be read back.
pub fn write_finite<S: serde::Serializer>(values: &BTreeMap<String, f64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().filter(|(_, value)| value.is_finite()))
}

/// Requests by how they ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Complete.
    pub ok: u64,
    /// Not.
    pub failed: u64,
    /// Those that failed, by kind.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
}

/// Why a start or a step failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The stage: `install`, `preflight`, `render`, `launch`, `gate`, `load`, or `server` where the server ended while it
    /// was measured.
    pub stage: String,
    /// One of the failure kinds of the log vocabulary.
    pub kind: String,
    /// One sentence.
    pub text: String,
    /// The line that is the cause, when a log shows it.
    pub line: Option<String>,
    /// Its number in `server.log`.
    pub line_no: Option<u64>,
    /// What to do.
    pub remedy: Option<String>,
    /// The last lines of the server's log, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_words: Vec<String>,
    /// How a start failed; not there for other failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<FailedStart>,
}

/// How a start failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedStart {
    /// What ended it: `exited` (its main process), `dead_rank`, `confirmed` (the engine's own word), `limit`, `fail_fast`,
    /// `unfit` (what it answers will not do).
    pub rule: String,
    /// The phase that it was in.
    pub phase: String,
    /// Seconds from its launch.
    pub after_s: f64,
    /// The rank that said the line, if it says.
    pub rank: Option<u32>,
    /// Whether trying again can help: `never`, `maybe`, `later`; `null` where nothing is known.
    pub retry: Option<String>,
    /// A line that looks like a cause and only reports it, with its number.
    pub not: Option<LogLine>,
    /// The newest start of the profile on this host that went well.
    pub known_good: Option<KnownGood>,
}

/// A line of a server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LogLine {
    pub line_no: u64,
    pub line: String,
}

/// A start that went well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownGood {
    /// The id of its run.
    pub run: String,
    /// Its `memory.fraction`, if it had one.
    pub fraction: Option<f64>,
    /// Memory left, phase by phase.
    pub memory: Vec<MemoryPoint>,
}

/// What a run is part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Group {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sweep: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub point: Option<String>,
    /// The repetition, comparison or search that it is a part of: a folder under `results/trials/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<String>,
    /// Which of the trial's settings it ran with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<u32>,
}

/// What is left of ours on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Processes that carry our marks.
    pub processes: u64,
    /// Device memory above the idle level; `null` where there is no device.
    pub gpu_mib: Option<u64>,
    /// Files that its processes had left behind and that were removed: shared memory, sockets, stale locks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Files of its processes that are still there, each with why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The id of the server, where it was kept on purpose: `processes` are its own then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The word.
    pub kind: VerdictKind,
    /// Why.
    pub reasons: Vec<Reason>,
    /// What made it slower, when that is known.
    pub cause: Option<Cause>,
}

/// The words of a verdict, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// It did not come to a result.
    Failed,
    /// It came to a result that may not be used.
    Invalid,
    /// Worse than the baseline by more than noise and tolerance.
    Regressed,
    /// Worse, and so is the baseline's own configuration on this host now.
    HostChanged,
    /// The noise does not allow a word.
    Inconclusive,
    /// Better than the baseline by more than noise and tolerance.
    Improved,
    /// Like the baseline.
    Ok,
    /// There is nothing to compare with.
    NoBaseline,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// Stable, for machines.
    pub id: String,
    /// For people.
    pub text: String,
    /// The metric, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Its value before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<f64>,
    /// Its value now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<f64>,
}

impl Reason {
    /// A reason by id and text.
    pub fn new(id: &str, text: impl Into<String>) -> Self {
        Reason { id: id.to_owned(), text: text.into(), metric: None, was: None, now: None }
    }
}

/// What made the difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Stable, for machines.
    pub kind: String,
    /// One sentence with numbers.
    pub sentence: String,
    /// What shows it.
    pub evidence: Vec<String>,
}

/// A metric beside its baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The step.
    pub step: String,
    /// Metric id, with `.p50` and the like for distributions.
    pub metric: String,
    /// Before.
    pub was: Option<f64>,
    /// Now.
    pub now: Option<f64>,
    /// Relative change of the value, `now / was - 1`.
    pub change_ratio: Option<f64>,
    /// The smallest loss that this comparison could see, as a ratio.
    pub can_see_ratio: Option<f64>,
    /// The loss is at least this, with a certainty of 99 %; below 0 where it may be a gain. Not there without both sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_at_least_ratio: Option<f64>,
    /// The word for this metric.
    pub verdict: VerdictKind,
}
