//! A profile after layers, `--set` and `${NAME}`: what it says, typed and checked.
//!
//! Serialised (into `profile.yaml` and the record) it is canonical: every key that was set, units normalised, so that
//! two profiles that mean the same are written the same. Secrets stand in it as `${NAME}` only.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::EngineKind;
use crate::units::{self, Tolerance};

/// A launchable, measurable configuration of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Its name; the file's name unless given.
    pub name: String,
    /// History and baseline belong to this; the name unless given.
    pub series: String,
    /// Which engine, which version, and where it comes from.
    pub engine: Engine,
    /// What it serves.
    pub model: Model,
    /// A host of `hosts.yaml`; absent is this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// With `parallel.nodes`: the hosts, first the head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Where it listens.
    pub port: Port,
    /// How it is spread over devices.
    #[serde(default, skip_serializing_if = "Parallel::is_default")]
    pub parallel: Parallel,
    /// Speculative decoding; absent is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative: Option<Speculative>,
    /// Memory of device and cache.
    #[serde(default, skip_serializing_if = "Memory::is_default")]
    pub memory: Memory,
    /// Tokens of context for one request, on every engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    /// How many requests may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running_requests: Option<u64>,
    /// CUDA graphs.
    #[serde(default, skip_serializing_if = "Graphs::is_default")]
    pub graphs: Graphs,
    /// Attention kernels, in the engine's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_backend: Option<String>,
    /// The engine's own flags, without the dashes; nulls are gone by now.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub flags: IndexMap<String, Flag>,
    /// Raw words after all else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment of the server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Names of secrets that the server's environment gets at launch and nothing else ever shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Whether orch may add what it needs to measure (metrics, usage).
    pub instrument: bool,
    /// How it is started.
    pub launch: Launch,
    /// When it counts as ready, and how long that may take.
    pub gate: Gate,
    /// The measurements, in order.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub bench: IndexMap<String, Bench>,
    /// What must hold for a result to count: a path of the record's effective values or metrics, and a condition.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub expect: IndexMap<String, Expectation>,
    /// Losses that are not worth a verdict, by metric id (with `.p99` and the like for distributions).
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub tolerance: IndexMap<String, Tolerance>,
    /// How often to start and to measure.
    pub repeat: Repeat,
    /// What a suspicious result sets off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<Suspect>,
    /// Measure without the host-wide lock.
    pub share: bool,
    /// Commands of the user's own around the stages.
    #[serde(default, skip_serializing_if = "Hooks::is_default")]
    pub hooks: Hooks,
    /// Known answers to check the server with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

/// Which engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Its kind: the folder under `templates/`.
    pub kind: EngineKind,
    /// The versions it may have, as written (`>=0.5.9`, `==b10434`); absent is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The program, when it is not the engine's usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// Packages to install it from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<Install>,
    /// Patches to apply to an environment of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<PathBuf>,
    /// `kind: sim`: the engine that it pretends to be.
    #[serde(rename = "as", default, skip_serializing_if = "Option::is_none")]
    pub pretends: Option<EngineKind>,
    /// `kind: sim`: a file, or the scenario itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<serde_json::Value>,
    /// `kind: command`: the words of the command. `{port}`, `{model}` and `{host}` inside a word are filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// `kind: command`: the signs that it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<CommandReady>,
}

impl Engine {
    /// The engine whose words it speaks: for `kind: sim` the one that is played, else its own kind.
    pub fn played(&self) -> EngineKind {
        if self.kind != EngineKind::Sim {
            return self.kind;
        }
        let of_scenario = self.scenario.as_ref().and_then(|scenario| scenario.get("as")?.as_str());
        self.pretends.unwrap_or(match of_scenario {
            Some("vllm") => EngineKind::Vllm,
            Some("llamacpp") => EngineKind::Llamacpp,
            _ => EngineKind::Sglang,
        })
    }

    /// The version that a scenario makes its engine say.
    pub fn said_version(&self) -> Option<&str> {
        self.scenario.as_ref()?.get("version")?.as_str()
    }
}

/// Signs only; generated tokens prove readiness for a `command` as for all engines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandReady {
    /// A pattern in its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// A path that answers 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
}

/// What to install an engine (and a packaged model) from: the first variant whose needs this machine meets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Install {
    /// Tried in order; the later ones are alternatives for machines that the earlier ones do not run on.
    pub variants: Vec<InstallVariant>,
}

/// One way to install an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstallVariant {
    /// CPU features (as in `/proc/cpuinfo`) without which it does not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<String>,
    /// Python packages, each pinned.
    pub packages: Vec<Package>,
    /// The program inside the environment, when this variant's differs from `engine.executable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// A Python file of the engine's folder under `templates/` that is put into the environment as that program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<String>,
    /// The engine's version in these packages, for programs that do not say it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Environment of the build, for packages that come as source.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub build_env: BTreeMap<String, String>,
}

/// A Python package pinned by version and hash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its exact version.
    pub version: String,
    /// SHA-256 of each file that may be taken, as 64 hex digits.
    pub sha256: Vec<String>,
}

/// What is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// A hub name, a path, or `package:NAME/FILE` for a file inside a package of `engine.install`.
    pub path: String,
    /// Commit, tag or branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The name that requests use; the path's last part unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_name: Option<String>,
    /// A tokenizer of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Type of the weights in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Quantization, in the engine's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// How the weights are read, in the engine's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_format: Option<String>,
}

/// Where the server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The first free one of 30000 to 30999 on the host.
    Auto,
    /// This one.
    Fixed(u16),
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u16),
            Word(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(port) => Ok(Port::Fixed(port)),
            Written::Word(word) if word == "auto" => Ok(Port::Auto),
            Written::Word(word) => Err(serde::de::Error::custom(format!("`{word}` is not a port"))),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Port::Auto => serializer.serialize_str("auto"),
            Port::Fixed(port) => serializer.serialize_u16(*port),
        }
    }
}

/// How the model is spread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the usual words for it")]
pub struct Parallel {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
}

/// Speculative decoding under neutral names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speculative {
    /// `mtp eagle eagle3 draft ngram suffix dflash dspark …`
    pub method: String,
    /// Tokens drafted per verify in a chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// Branches a step, where the engine has trees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topk: Option<u32>,
    /// Tokens of the tree, where the engine has trees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_tokens: Option<u32>,
    /// The draft model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The engine's own memory fraction, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// Type of the KV cache, in the engine's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    /// Layers on the GPU (llama.cpp).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_layers: Option<u32>,
}

/// CUDA graphs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graphs {
    /// Off means eager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Largest batch captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_batch: Option<u32>,
    /// Exactly these batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batches: Option<Vec<u32>>,
}

/// A value of `flags`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Flag {
    /// `true`: the bare flag. `false`: not given (an inherited one is dropped by `null`).
    Switch(bool),
    /// `--flag value`, in the source's own spelling.
    Value(String),
    /// The flag repeated, or, where the engine wants it so, followed by all.
    List(Vec<String>),
}

/// How the server is started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// By what.
    pub via: Via,
    /// How long it may live after its run is gone and nothing says keep.
    #[serde(serialize_with = "units::write_duration", deserialize_with = "units::read_duration")]
    pub abandon: Duration,
}

/// What starts the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// A process under orch's supervisor.
    Process,
    /// A container.
    Docker {
        /// Its image.
        image: String,
        /// Words for `docker run`.
        options: Vec<String>,
    },
    /// A unit.
    Systemd,
}

/// Readiness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// The limit on a start: absent is `auto`, 3 x usual and at least 20 min.
    #[serde(serialize_with = "units::write_optional_duration", deserialize_with = "units::read_optional_duration")]
    pub timeout: Option<Duration>,
    /// Per phase, how long it may be silent before the screen says "stalled?".
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        serialize_with = "units::write_durations",
        deserialize_with = "units::read_durations"
    )]
    pub patience: BTreeMap<String, Duration>,
}

/// A measurement: a workload under a load. A list of concurrencies or rates is one step each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// The workload by name; absent when it stands in the profile itself.
    #[serde(rename = "use", default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The workload written in place, or keys of it that override the named one's.
    #[serde(flatten)]
    pub inline: WorkloadKeys,
    /// Requests in flight; several are a ladder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub concurrency: Vec<u32>,
    /// Requests per second; several are a ladder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate: Vec<f64>,
    /// `poisson`, `constant` or `gamma`, with `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<String>,
    /// With `gamma`: the shape of the gaps, as vLLM's `--burstiness`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burstiness: Option<f64>,
    /// Rates that change with time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageKeys>,
    /// Several requests at once, again and again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bursts: Option<Bursts>,
    /// Requests as somebody recorded them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceKeys>,
    /// A search for the highest load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchKeys>,
    /// How many requests are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// How long is measured.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "units::write_optional_duration",
        deserialize_with = "units::read_optional_duration"
    )]
    pub duration: Option<Duration>,
    /// What a request must meet to count as good, by metric id.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        serialize_with = "units::write_durations",
        deserialize_with = "units::read_durations"
    )]
    pub goodput: BTreeMap<String, Duration>,
    /// Requests sent before, at the same load, and not counted; absent is the step's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u64>,
}

/// A stretch of time at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageKeys {
    /// Requests per second.
    pub rate: StageRate,
    /// How long it lasts.
    #[serde(serialize_with = "units::write_duration", deserialize_with = "units::read_duration")]
    pub duration: Duration,
}

/// The rate of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "as in the profile")]
pub enum StageRate {
    Steady(f64),
    Ramp { from: f64, to: f64 },
}

/// Several requests at once, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bursts {
    /// How many at once.
    pub requests: u32,
    /// From one burst to the next.
    #[serde(serialize_with = "units::write_duration", deserialize_with = "units::read_duration")]
    pub every: Duration,
}

/// Requests as somebody recorded them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceKeys {
    /// The file.
    pub file: PathBuf,
    /// So many times as fast as recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// How many tokens a block of `hash_ids` has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<u64>,
    /// What was recorded, read when the profile was loaded.
    #[serde(skip)]
    pub rows: Vec<super::TraceRow>,
}

/// A search for the highest load under which enough requests meet the limits of `goodput`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchKeys {
    /// Between these numbers of requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Bounds>,
    /// Between these rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bounds>,
    /// The share of requests that must meet every limit.
    pub share: f64,
    /// How near the answer must be.
    pub within: f64,
}

/// The ends of what is searched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Bounds {
    pub from: f64,
    pub to: f64,
}

/// The keys of a workload, each of which may be absent where it is inline or a layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadKeys {
    /// `builtin/chat`, `builtin/code`, `builtin/extraction`, `builtin/reasoning`, or files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<String>>,
    /// The prompts themselves, read when the profile was loaded; in order, without repetition.
    #[serde(skip)]
    pub texts: Vec<Prompt>,
    /// Exact length of the prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<Length>,
    /// Exact length of the answers (short for `output: {exact: N}`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<Length>,
    /// When an answer ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Sampling parameters, sent as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<IndexMap<String, serde_json::Value>>,
    /// What the prefix cache may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<PrefixCache>,
    /// Turns of a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Seed of everything that is drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Which endpoint: `chat` (default), `completions`, `responses`, `generate` or `completion`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Whether answers come as a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Prompt {
    pub id: String,
    pub text: String,
    /// What the same person said after the answers, where a whole conversation was recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<String>,
}

/// A length in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "as in the profile")]
pub enum Length {
    Exact(u64),
    Range { from: u64, to: u64 },
    Normal { mean: f64, stdev: f64, min: u64, max: u64 },
}

/// When an answer ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Output {
    /// Where the model stops, at most so many tokens.
    Natural {
        /// Always `natural`.
        stop: NaturalStop,
        /// The cap.
        max_tokens: u64,
    },
    /// Exactly so many tokens, past the end-of-text token.
    Exact {
        /// How many.
        exact: Length,
    },
}

/// The word `natural`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NaturalStop {
    /// The model's own end.
    Natural,
}

/// What the prefix cache may hold when a request arrives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefixCache {
    /// Nothing of its prompt.
    Cold,
    /// Whatever it holds.
    Warm,
    /// This share of prompt tokens is wanted from the cache.
    HitRatio(f64),
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Expectation {
    /// Exactly this number.
    Number(f64),
    /// Exactly this word, or a comparison such as `>= 2.4`.
    Text(String),
    /// On or off.
    Bool(bool),
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeat {
    /// Server starts.
    pub starts: u32,
    /// Measurements per start.
    pub runs: u32,
}

/// What a suspicious result sets off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// Restarts with the same settings.
    pub restarts: u32,
    /// `baseline`: then the baseline's settings on the same host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
}

/// The user's own commands around the stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Hooks {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_launch: Option<Hook>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ready: Option<Hook>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_bench: Option<Hook>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_stop: Option<Hook>,
}

/// A command with a limit on its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hook {
    /// Its words.
    pub command: Vec<String>,
    /// How long it may take.
    #[serde(serialize_with = "units::write_duration", deserialize_with = "units::read_duration")]
    pub timeout: Duration,
}

/// Known answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// A JSONL file of prompts with what their answers must be.
    pub file: PathBuf,
}

impl Parallel {
    /// Nothing set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
impl Memory {
    /// Nothing set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
impl Graphs {
    /// Nothing set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
impl Hooks {
    /// Nothing set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
