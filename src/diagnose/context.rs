//! What is known beside a log: what was asked for, what a supervisor saw, what an earlier good run measured, what was found
//! from outside.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::record::model::KnownGood;

/// What is known beside a log. Whatever is absent is not known.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// The engine: `sglang`, `vllm` or `llamacpp`.
    pub engine: Option<String>,
    /// How many GPUs and hosts.
    pub topology: Option<Topology>,
    /// The speculation that was asked for: `none`, `draft`, `eagle`, `eagle3`, `mtp`, `nextn`.
    pub speculative: Option<String>,
    /// What a supervisor saw.
    pub observed: Option<Observed>,
    /// What an earlier good run of the same command measured.
    pub baseline: Option<Baseline>,
    /// Findings from outside the log.
    pub side_facts: Option<SideFacts>,
    /// A start of the same profile on the same host that went well. By the records of its runs, never by a file.
    #[serde(skip)]
    pub known_good: Option<KnownGood>,
}

/// How many GPUs and hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// The tensor-parallel size.
    pub tp: Option<u32>,
    /// The number of hosts.
    pub nodes: Option<u32>,
}

/// What a supervisor saw.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Observed {
    /// Whether the process exists.
    pub process_alive: Option<bool>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// Seconds since the last byte of the log.
    pub silent_s: Option<f64>,
    /// What the health address answered.
    pub health_status: Option<u16>,
}

/// How a process ended. A code of 129 to 159 may stand for a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exit {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Exit {
    /// The signal that ended it, or may have: a shell tells it as a code.
    pub fn by_signal(self) -> Option<i32> {
        self.signal.or_else(|| self.code.filter(|code| (129..=159).contains(code)).map(|code| code - 128))
    }
}

/// What an earlier good run of the same command measured.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Baseline {
    /// Generated tokens a second.
    pub gen_tok_s: Option<f64>,
    /// Prompt tokens a second.
    pub prompt_tok_s: Option<f64>,
    /// Mean acceptance length.
    pub accept_len: Option<f64>,
    /// Slots of llama-server.
    pub slots: Option<f64>,
    /// Draft tokens.
    pub spec_draft_tokens: Option<f64>,
}

/// Findings from outside the log.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SideFacts {
    /// What a request from outside found.
    pub probe: Option<Probe>,
    /// What the host shows of the processes.
    pub host_signals: Option<HostSignals>,
    /// Ranks whose process is gone although their siblings live.
    pub missing_ranks: Vec<u32>,
    /// Values that follow from printed ones; they explain and decide nothing.
    pub derived: BTreeMap<String, Value>,
    /// What was found before the start.
    pub preflight: Option<Preflight>,
    /// Whether known questions got their answers.
    pub known_answer_check: Option<Check>,
    /// The order of the log's lines.
    pub order: Option<LineOrder>,
}

/// What a request from outside found.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Probe {
    /// Whether the address answers.
    pub url_reachable: Option<bool>,
    /// The model that answers.
    pub models_id: Option<String>,
    /// The model that was started.
    pub expected_model_id: Option<String>,
    /// How long the health address took.
    pub health_latency_s: Option<f64>,
    /// How long the prober waits.
    pub probe_timeout_s: Option<f64>,
}

/// What the host shows of the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostSignals {
    /// Bytes a second that they read from disk.
    pub read_bytes_per_s: Option<f64>,
    /// GB of host memory that are left.
    pub mem_available_gb: Option<f64>,
}

/// What was found before the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preflight {
    /// Files that the index of the weights names.
    pub index_shards: Option<u64>,
    /// How many of them are there.
    pub files_present: Option<u64>,
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// As it should.
    Passed,
    /// Otherwise.
    Failed,
}

/// The order of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineOrder {
    /// As it was written.
    OldestFirst,
    /// Turned around.
    NewestFirst,
}
