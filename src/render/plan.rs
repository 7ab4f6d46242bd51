//! The plan of a run: what will be started, how it proves itself, and what will be measured. A plain value; making it
//! touches no file, process or network.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::{FlagList, Version};
use crate::measure::Goodput;
use crate::profile::{EngineKind, Length, Prompt, Trace};

/// What a plan needs to know of the place. `orch render` assumes it, a run looks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The engine's version.
    pub version: Version,
    /// The flags that the engine's own help names; `None` when it was not asked.
    pub flags: Option<FlagList>,
    /// The port it will listen on.
    pub port: u16,
    /// GPUs of the host, in PCI bus order.
    pub gpus: Vec<Gpu>,
    /// The GPUs that this server is for, by UUID, where orch chose them or the profile names them; empty without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Nodes, first the head.
    pub nodes: Vec<Node>,
    /// The environment that `engine.install` made, when there is one.
    pub environment: Option<PathBuf>,
    /// The program of the variant that was installed, when it is not the profile's.
    pub executable: Option<String>,
    /// Whether this was assumed, not looked at.
    pub assumed: bool,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_mib: Option<u64>,
}

/// A host that carries one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Node {
    pub name: String,
    pub address: String,
}

/// What will be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The engine as planned for.
    pub engine: PlannedEngine,
    /// One rank a node; the head is first.
    pub ranks: Vec<Rank>,
    /// How it proves that it is ready.
    pub readiness: Readiness,
    /// How it is stopped.
    pub stop: StopRule,
    /// What is measured, in order.
    pub steps: Vec<Step>,
    /// What a person should know before it starts.
    pub warnings: Vec<Warning>,
}

/// The engine and version that a plan was made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedEngine {
    /// Its kind.
    pub kind: EngineKind,
    /// Its version.
    pub version: Version,
    /// Whether the version was assumed.
    pub assumed: bool,
}

/// One process to start: one node, one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// The host's name; `local` for this machine.
    pub node: String,
    /// The command, word by word.
    pub argv: Vec<String>,
    /// What is added to its environment; no secrets.
    pub env: BTreeMap<String, String>,
    /// Names of secrets whose values join the environment at launch.
    pub secrets: Vec<String>,
    /// Files to write beside it first.
    pub files: Vec<File>,
    /// Whether it is the one that answers requests.
    pub head: bool,
}

/// A file that a rank needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct File {
    pub path: PathBuf,
    pub content: String,
}

/// How a server proves that it is ready. Data only: the gate has never heard of engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Readiness {
    /// `http://host:port`, without a path.
    pub base_url: String,
    /// The path that answers 200 when it is up, if the engine has one.
    pub health: Option<String>,
    /// The path that lists the models.
    pub models: Option<String>,
    /// The name that requests use and the list must hold; `None`: take the list's only one.
    pub model: Option<String>,
    /// A sign in the log, as a regular expression.
    pub log: Option<String>,
    /// How many tokens it must generate to be believed.
    pub tokens: u32,
    /// The limit; `None` is automatic.
    pub timeout_s: Option<f64>,
    /// The kind whose `log` section reads the start-up.
    pub grammar: EngineKind,
}

/// How an engine is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRule {
    /// The first signal, by name without `SIG`.
    pub signal: String,
    /// How long it has before it is killed.
    pub patience: Duration,
}

/// One measurement under one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// `single`, or `ladder@8` where a bench has several loads.
    pub name: String,
    /// What is sent.
    pub workload: Workload,
    /// How it is sent.
    pub load: Load,
    /// What a request must meet to count as good; `None`: nothing was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<Goodput>,
}

/// The load of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// When requests are sent.
    pub arrival: Arrival,
    /// How many are measured, if counted.
    pub requests: Option<u64>,
    /// How long is measured, if timed.
    pub duration_s: Option<f64>,
    /// How many go before, uncounted: exactly so many. `None` leaves it to the load, which warms up until successive
    /// windows agree and nothing compiles.
    pub warmup: Option<u64>,
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// So many at a time; the next goes when one ends.
    Closed {
        /// How many.
        concurrency: u32,
    },
    /// At a rate, whatever the server does.
    Open {
        /// Requests per second.
        rate: f64,
        /// `poisson`, `constant` or `gamma`.
        shape: String,
        /// The shape of gamma gaps: 1 is Poisson, less is burstier, more is evener.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        burstiness: Option<f64>,
    },
    /// At rates that change with time.
    Stages {
        /// One after the other.
        stages: Vec<Stage>,
        /// As of `open`.
        shape: String,
        /// As of `open`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        burstiness: Option<f64>,
    },
    /// Several at once, again and again.
    Bursts {
        /// How many at once.
        requests: u32,
        /// Seconds from one burst to the next.
        every_s: f64,
    },
    /// At the moments of the workload's trace.
    Trace {
        /// So many times as fast.
        speed: f64,
    },
    /// The highest load under which the limits on single requests are met: found by probes, each a step of its own.
    Search(Search),
}

/// A stretch of time at a rate, or at one that moves evenly from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Requests per second at its beginning,
    pub from: f64,
    /// and at its end.
    pub to: f64,
    /// How long it lasts.
    pub duration_s: f64,
}

/// What a search looks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// What is raised.
    pub of: SearchOf,
    /// The lowest load that is tried, and the first.
    pub from: f64,
    /// The highest.
    pub to: f64,
    /// The share of requests that must meet every limit.
    pub share: f64,
    /// The search ends when the lowest load that fails is above the highest that passes by at most this share.
    pub within: f64,
    /// With a rate: how the gaps are spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// As of `open`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burstiness: Option<f64>,
}

/// What a search raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchOf {
    /// Requests in flight.
    Concurrency,
    /// Requests per second.
    Rate,
}

/// A workload with nothing left to choose: prompts resolved, lengths and seed set. Its hash is part of every result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Its name, or `inline`.
    pub name: String,
    /// SHA-256 over everything that decides what is sent, as `sha256:<hex>`.
    pub hash: String,
    /// Which endpoint.
    pub api: Api,
    /// The prompts, in their fixed order.
    pub prompts: Vec<Prompt>,
    /// When an answer ends.
    pub stop: Stop,
    /// Extra keys of the request body, sampling above all.
    pub body: serde_json::Map<String, serde_json::Value>,
    /// What the prefix cache may hold.
    pub cold_prefix: bool,
    /// Seed of the order in which prompts are drawn, and of all else that is.
    pub seed: u64,
    /// Lengths that are made or drawn.
    #[serde(default, skip_serializing_if = "Lengths::is_default")]
    pub lengths: Lengths,
    /// What is sent otherwise than as a stream of single prompts.
    #[serde(default, skip_serializing_if = "Special::is_default")]
    pub special: Special,
}

/// Within a value of the request body: filled in afresh, for each request of a cold workload and once for each other step.
pub const UNIQUE: &str = "{unique}";

/// What few workloads have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Special {
    /// The share of prompt tokens that the prefix cache is to hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// Turns of a conversation; each is sent with all that was said before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Answers come whole instead of as a stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// When requests are due, and how long they are, as somebody recorded them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

impl Special {
    fn is_default(&self) -> bool {
        *self == Special::default()
    }
}

/// Lengths that are not the prompts' own, or not the same for all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// Prompts are made to this length, as the server counts it; there are then none in the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Length>,
    /// Answers have exact lengths drawn from this; the workload's own stop then says the longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Length>,
}

impl Lengths {
    fn is_default(&self) -> bool {
        *self == Lengths::default()
    }
}

/// Which endpoint is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// SGLang's own `/generate`
    Generate,
    /// llama.cpp's own `/completion`
    Completion,
}

/// When an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Where the model stops, at most so many tokens.
    Natural {
        /// The cap.
        max_tokens: u64,
    },
    /// Exactly so many tokens.
    Exact {
        /// How many.
        tokens: u64,
    },
}

/// Something a person should know. Its id is stable; its text is for reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Warning {
    pub id: String,
    pub text: String,
}

impl Warning {
    /// A warning by id and text.
    pub fn new(id: &str, text: impl Into<String>) -> Self {
        Warning { id: id.to_owned(), text: text.into() }
    }
}
