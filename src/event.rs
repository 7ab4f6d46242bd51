//! What a run says of itself: one line for each thing that happened, the only way out of everything below `cli`.
//!
//! A run's state is a pure fold of these lines (`record::fold`); the terminal, the record and a resume all read them
//! and nothing else. There is no event for a request or a token.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Nanos;
use crate::record::model::{self, Verdict};
use crate::render::{PlannedEngine, Warning};

/// Version of the line's shape.
pub const VERSION: u32 = 1;

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// [`VERSION`].
    pub v: u32,
    /// Counts up from 0 within a run, without gaps.
    pub seq: u64,
    /// Wall-clock time.
    pub at: Timestamp,
    /// Monotonic nanoseconds since the run began; after a resume, since the resume.
    pub since_start_ns: Nanos,
    /// Id of the run.
    pub run: String,
    /// What it is about.
    pub scope: Scope,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The run as a whole: `run`.
    Run,
    /// A rank of the server: `rank:0`.
    Rank(u32),
    /// A step of the measurement: `step:full`.
    Step(String),
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scope::Run => f.write_str("run"),
            Scope::Rank(rank) => write!(f, "rank:{rank}"),
            Scope::Step(step) => write!(f, "step:{step}"),
        }
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "run" => Ok(Scope::Run),
            Some(("rank", rank)) => rank.parse().map(Scope::Rank).map_err(|_| format!("`{rank}` is not a rank")),
            Some(("step", step)) => Ok(Scope::Step(step.to_owned())),
            _ => Err(format!("`{text}` is not a scope")),
        }
    }
}

impl Serialize for Scope {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What happened. The kind is the field `event` of a line, its fields are `data`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "an event is made, written down and gone; nobody keeps many")]
pub enum Event {
    /// The run exists.
    RunBegan {
        /// What is run, resolved; secrets as `${NAME}`.
        profile: Value,
        /// History and baseline belong to this.
        series: String,
        /// The short name of the profile.
        name: String,
        /// Which build of orch.
        orch: model::OrchInfo,
        /// Where the server is.
        host: model::HostInfo,
        /// `run`, `bench` or `point`.
        kind: model::RunKind,
        /// Version of the metrics' definitions that this build measures with.
        metrics_version: u32,
        /// The sweep or repetition that it is part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<model::Group>,
        /// What was asked for beside the profile.
        #[serde(default, skip_serializing_if = "model::Asked::is_nothing")]
        asked: model::Asked,
    },
    /// What will be done, as rendered.
    Planned {
        /// Engine and version.
        engine: PlannedEngine,
        /// Whether the engine is simulated.
        simulated: bool,
        /// The head's command.
        command: Vec<String>,
        /// What is added to its environment; no secrets.
        env: BTreeMap<String, String>,
        /// The steps' names with the hash of their workloads, in order.
        steps: Vec<PlannedStep>,
        /// Where everything comes from: versions, files, hashes, drivers.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        provenance: BTreeMap<String, Value>,
    },
    /// A look at the place before anything is touched.
    Preflight {
        /// What was looked at: `installed`, `port`, `executable`, …
        check: String,
        /// Whether it is as it should be.
        ok: bool,
        /// What was found.
        text: String,
    },
    /// What is installed will be replaced, or taken for the first time.
    Change {
        /// The unit, container or deployment.
        what: String,
        /// The differences as `diff -u` shows them; empty when there are none. No value of a secret is in them.
        diff: String,
    },
    /// A lease is ours.
    LeaseTaken {
        /// `port:30000`, `gpu:<uuid>`, `measure`.
        lease: String,
    },
    /// Production was stopped to make room.
    Displaced {
        /// The unit or container.
        what: String,
    },
    /// Written before the server is started.
    Launching {
        /// Its id, the name of its folder under `servers/`.
        server: String,
        /// Its command.
        command: Vec<String>,
    },
    /// A process of ours is there.
    ProcessBegan {
        /// Its pid.
        pid: u32,
        /// When it started, in clock ticks since boot: with the pid, which process this is.
        start_ticks: u64,
        /// The supervisor's pid, where there is one.
        supervisor_pid: Option<u32>,
    },
    /// A phase of the start-up began.
    PhaseBegan {
        /// One of the phases of the log vocabulary.
        phase: String,
    },
    /// How far a phase is.
    PhaseProgress {
        /// The phase.
        phase: String,
        /// So many are done,
        done: f64,
        /// of so many, if known.
        total: Option<f64>,
        /// What is counted: `shards`, `percent`, `MB`.
        unit: String,
    },
    /// Something that the server said of itself.
    Fact {
        /// One of the fact keys of the log vocabulary.
        key: String,
        /// Its value.
        value: Value,
    },
    /// A phase of the start-up ended.
    PhaseEnded {
        /// The phase.
        phase: String,
        /// How long it took.
        s: f64,
    },
    /// The server does something that a spinning thread could not fake; while it is installed, the installation does.
    SignOfLife {
        /// What showed it, in words.
        what: String,
        /// Which signs those are; none while something is installed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        signs: Vec<Sign>,
        /// How many workers live, where they can be told apart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workers: Option<u32>,
    },
    /// There was no sign of life for longer than its phase is given. Nothing is ended for it; the next sign takes it back.
    Stalled {
        /// The phase.
        phase: String,
        /// Since the last sign of life.
        silent_s: f64,
        /// How long the whole phase usually takes here; `null` without history.
        usual_s: Option<f64>,
        /// How long after its launch the start is ended, if it is still not ready then.
        limit_s: f64,
        /// What is known of it otherwise, in words.
        evidence: Vec<String>,
    },
    /// A line that looks like the cause of a failure.
    FailureSeen {
        /// One of the failure kinds of the log vocabulary.
        kind: String,
        /// The line.
        line: String,
        /// Its number in the server's log, from 1.
        line_no: u64,
        /// What to do about it.
        remedy: Option<String>,
        /// Whether the line only reports another's failure: with it, the engine confirms that it has failed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wraps: bool,
    },
    /// The answer to a probe changed.
    ProbeAnswered {
        /// What was asked.
        probe: String,
        /// `refused`, `503`, `200`.
        answer: String,
    },
    /// Proven ready by generated tokens.
    Ready {
        /// Seconds from the launch; `null` for a server that was up before.
        ready_s: Option<f64>,
        /// Tokens generated as proof.
        tokens: u64,
        /// The model's name as served.
        model: String,
        /// Where it answers.
        base_url: String,
    },
    /// What the server says it can do, beside what was asked.
    Readback {
        /// The values.
        effective: Vec<model::Effective>,
    },
    /// Known questions were answered.
    Answers {
        /// When they were asked.
        when: model::AnswersWhen,
        /// How.
        answers: Vec<model::Answer>,
    },
    /// Requests that are not counted begin.
    WarmupBegan {},
    /// Requests that are not counted have ended.
    WarmupEnded(crate::measure::WarmUp),
    /// Measured requests begin.
    StepBegan {},
    /// Once a second while load is on.
    LoadProgress {
        /// Requests done,
        done: u64,
        /// of so many, if counted.
        requests: Option<u64>,
        /// Seconds so far,
        elapsed_s: f64,
        /// of so many, if timed.
        duration_s: Option<f64>,
        /// Requests that failed.
        failed: u64,
        /// Generating chunks per second over the last second. How many tokens are in one is known only afterwards.
        chunks_per_s: Option<f64>,
        /// Median time to first token so far.
        ttft_ms: Option<f64>,
    },
    /// The engine's own counters over a step.
    Counters {
        /// By name. One that is not a finite number is not written: JSON has no word for it.
        #[serde(serialize_with = "model::write_finite")]
        values: BTreeMap<String, f64>,
    },
    /// A step is measured: its whole result.
    StepEnded {
        /// The result.
        result: Box<model::StepResult>,
    },
    /// A reading of the machine.
    Telemetry {
        /// By name. One that is not a finite number is not written.
        #[serde(serialize_with = "model::write_finite")]
        values: BTreeMap<String, f64>,
    },
    /// The server is being stopped.
    Stopping {
        /// Why: `done`, `interrupted`, `failed`.
        why: String,
    },
    /// A process of ours is gone.
    ProcessEnded {
        /// Exit code,
        code: Option<i32>,
        /// or the signal that ended it.
        signal: Option<i32>,
        /// Whether orch had asked for it.
        expected: bool,
    },
    /// Device memory is back at its idle level.
    MemoryReturned {
        /// How long it took.
        s: f64,
    },
    /// A lease was given back.
    LeaseLeft {
        /// Which.
        lease: String,
    },
    /// Production serves again.
    Restored {
        /// The unit or container.
        what: String,
        /// How long it was away.
        outage_s: f64,
    },
    /// The verdict.
    Judged {
        /// The verdict.
        verdict: Verdict,
        /// What it was compared with, metric by metric.
        comparisons: Vec<model::Comparison>,
        /// The failure, where the run came to none of its results.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Box<model::Failure>>,
    },
    /// Nothing more will come.
    RunEnded {
        /// Whether everything that was planned was done.
        complete: bool,
        /// What is left on the host; `null` where nothing was started here, or nobody could look.
        #[serde(default)]
        left: Option<model::Left>,
    },
    /// Something a person should know.
    Warning(Warning),
}

/// What shows that a server does something. That a processor or a GPU is busy does not: ranks that wait for each other for
/// ever keep both busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// A new line of its log that is no heartbeat.
    Line,
    /// A progress bar is at another place than before.
    Bar,
    /// The next graph is captured.
    Graph,
    /// The memory in use of a device changed.
    DeviceMemory,
    /// Its processes read files.
    Read,
    /// A compiler runs under it.
    Compiler,
    /// A cache of compiled kernels grew.
    JitCache,
}

/// Where a stage says what happened.
///
/// The line is on disk when this returns; a stage that gets an error stops, since nothing may be done that could not be
/// written down.
pub trait Emit: Send + Sync {
    /// Writes one line and tells the listeners.
    fn emit(&self, scope: Scope, event: Event) -> Result<(), EmitError>;
}

/// The journal could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the journal {}: {source}", path.display())]
pub struct EmitError {
    /// The journal.
    pub path: std::path::PathBuf,
    /// What the system said.
    pub source: std::io::Error,
}

/// A step by name, and what it measures with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// Its name.
    pub name: String,
    /// `sha256:<hex>` of its workload.
    pub workload: String,
}

impl Event {
    /// How far an installation or a download is.
    pub fn installing(what: impl Into<String>) -> Self {
        Event::SignOfLife { what: what.into(), signs: Vec::new(), workers: None }
    }

    /// The kinds that this build knows. A line of another kind comes from a newer build and is passed by.
    pub const KINDS: [&str; 34] = [
        "run_began",
        "planned",
        "preflight",
        "change",
        "lease_taken",
        "displaced",
        "launching",
        "process_began",
        "phase_began",
        "phase_progress",
        "fact",
        "phase_ended",
        "sign_of_life",
        "stalled",
        "failure_seen",
        "probe_answered",
        "ready",
        "readback",
        "answers",
        "warmup_began",
        "warmup_ended",
        "step_began",
        "load_progress",
        "counters",
        "step_ended",
        "telemetry",
        "stopping",
        "process_ended",
        "memory_returned",
        "lease_left",
        "restored",
        "judged",
        "run_ended",
        "warning",
    ];

    /// Whether a resume would act differently for having this line; such lines are synced to disk before going on.
    pub fn changes_resume(&self) -> bool {
        !matches!(
            self,
            Event::PhaseBegan { .. }
                | Event::PhaseProgress { .. }
                | Event::PhaseEnded { .. }
                | Event::Fact { .. }
                | Event::SignOfLife { .. }
                | Event::Stalled { .. }
                | Event::ProbeAnswered { .. }
                | Event::LoadProgress { .. }
                | Event::Counters { .. }
                | Event::Telemetry { .. }
                | Event::WarmupBegan { .. }
                | Event::WarmupEnded(_)
                | Event::Warning(_)
        )
    }
}
