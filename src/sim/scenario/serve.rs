//! How it serves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Compile, Die, RequestFault, Restart, Stall};

/// How it serves, and what goes wrong while it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Serve {
    /// What goes wrong with requests; the first that meets a request happens.
    pub faults: Vec<RequestFault>,
    /// Share of requests that are answered with garbage.
    pub garbage: f64,
    /// A time without steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// Whether streams are held back until their end.
    pub buffer: bool,
    /// Requests at once that it really runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_running: Option<u32>,
    /// Requests that may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queued: Option<u64>,
    /// Tokens of running requests that it can hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<u64>,
    /// Largest batch that runs in captured graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_max_batch: Option<u32>,
    /// Reasoning before chat answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    /// When it says `usage`.
    pub usage: Said,
    /// When it says `usage` in each chunk.
    pub continuous_usage: Said,
    /// When a chat stream says its role.
    pub role_chunk: RoleChunk,
    /// Whether prompts that begin like earlier ones count as cached.
    pub prefix_cache: bool,
    /// The share of every prompt that counts as cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<f64>,
    /// Whether `usage` says the cached tokens; `None` is as the engine does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_report: Option<bool>,
    /// What it knows.
    pub answers: Vec<Answer>,
    /// Whether it has `/metrics`.
    pub metrics: bool,
    /// Paths that do not answer as they should.
    pub endpoints: BTreeMap<String, Broken>,
    /// A compilation while it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile: Option<Compile>,
    /// How its process ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub die: Option<Die>,
    /// How it is gone for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
}

impl Default for Serve {
    fn default() -> Self {
        Serve {
            faults: Vec::new(),
            garbage: 0.0,
            stall: None,
            buffer: false,
            cap_running: None,
            max_queued: None,
            kv_tokens: None,
            graph_max_batch: None,
            reasoning: None,
            usage: Said::Asked,
            continuous_usage: Said::Asked,
            role_chunk: RoleChunk::WithToken,
            prefix_cache: true,
            cached: None,
            cache_report: None,
            answers: Vec::new(),
            metrics: true,
            endpoints: BTreeMap::new(),
            compile: None,
            die: None,
            restart: None,
        }
    }
}

/// Reasoning before chat answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// Its tokens.
    pub tokens: u32,
    /// Whether it is counted and not sent.
    #[serde(default)]
    pub hidden: bool,
    /// The key that carries it; `None` is the engine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// When something is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// When the request asks for it.
    #[default]
    Asked,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Said {
    /// Whether it is said to one who asked for it, or did not.
    pub fn to(self, asked: bool) -> bool {
        match self {
            Said::Asked => asked,
            Said::Always => true,
            Said::Never => false,
        }
    }
}

/// When a chat stream says its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleChunk {
    /// With the head of the answer.
    AtOnce,
    /// As an event of its own before the first token, in the same write.
    WithToken,
    /// Never.
    Never,
}

/// Something that it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Words that the prompt holds, in any case.
    pub prompt: String,
    /// What is answered.
    pub answer: String,
}

/// How a path does not answer as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Broken {
    /// 404.
    Absent,
    /// 500.
    Error,
    /// A page of HTML with 200.
    Nonsense,
    /// No answer.
    Hang,
}
