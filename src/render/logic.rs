//! What must be computed for an engine, beyond spelling its settings: one small implementation where one is needed.

use indexmap::IndexMap;
use serde_json::Value;

use super::{Facts, Fault};
use crate::profile::{EngineKind, Profile};

/// Settings by neutral key.
pub(super) type Settings = IndexMap<String, Value>;

/// An engine's own logic.
pub(super) trait Logic {
    /// Adds what follows from the neutral settings, so that the definition can spell it.
    fn derive(&self, profile: &Profile, facts: &Facts, settings: &mut Settings) -> Vec<Fault>;
}

/// The logic of a kind.
pub(super) fn of(kind: EngineKind) -> &'static dyn Logic {
    match kind {
        EngineKind::Llamacpp => &LlamaCpp,
        EngineKind::Sglang => &Sglang,
        EngineKind::Vllm => &Vllm,
        EngineKind::Sim => &Sim,
        _ => &Plain,
    }
}

/// Nothing to compute.
struct Plain;

impl Logic for Plain {
    fn derive(&self, _: &Profile, _: &Facts, _: &mut Settings) -> Vec<Fault> {
        Vec::new()
    }
}

struct LlamaCpp;

/// What llama-server takes when it is not told, and what orch then tells it, so that the pool is what it should be.
const AUTOMATIC_SLOTS: u64 = 4;

impl Logic for LlamaCpp {
    /// `--ctx-size` is shared by all slots.
    fn derive(&self, _: &Profile, _: &Facts, settings: &mut Settings) -> Vec<Fault> {
        let Some(context) = settings.get("context_length").and_then(Value::as_u64) else { return Vec::new() };
        let slots = settings.entry("max_running_requests".to_owned()).or_insert_with(|| AUTOMATIC_SLOTS.into());
        let Some(pool) =
            slots.as_u64().and_then(|slots| slots.checked_mul(context)).filter(|pool| *pool <= u32::MAX.into())
        else {
            let message = format!("{context} tokens for each of {slots} requests are more than llama-server can count");
            return vec![
                Fault::new("too_large", "context_length", message)
                    .help("lower `context_length` or `max_running_requests`"),
            ];
        };
        settings.insert("derived.pool_tokens".to_owned(), pool.into());
        Vec::new()
    }
}

struct Sglang;

impl Logic for Sglang {
    /// Steps, topk and draft tokens stand together or not at all: a start with one of them alone is refused by some
    /// versions and crashes in others. A chain is what `steps` alone means.
    fn derive(&self, _: &Profile, _: &Facts, settings: &mut Settings) -> Vec<Fault> {
        let Some(steps) = settings.get("speculative.steps").and_then(Value::as_u64) else { return Vec::new() };
        let topk = settings.entry("speculative.topk".to_owned()).or_insert_with(|| 1.into()).as_u64();
        if topk == Some(1) {
            settings.entry("speculative.draft_tokens".to_owned()).or_insert_with(|| (steps + 1).into());
        }
        Vec::new()
    }
}

struct Vllm;

impl Logic for Vllm {
    /// All of `speculative` is one JSON.
    fn derive(&self, _: &Profile, _: &Facts, settings: &mut Settings) -> Vec<Fault> {
        let Some(method) = settings.get("speculative.method").and_then(Value::as_str) else { return Vec::new() };
        let mut config = serde_json::Map::new();
        config.insert("method".to_owned(), if method == "draft" { "draft_model" } else { method }.into());
        for (key, name) in [("speculative.model", "model"), ("speculative.steps", "num_speculative_tokens")] {
            if let Some(value) = settings.get(key) {
                config.insert(name.to_owned(), value.clone());
            }
        }
        settings.insert("derived.speculative_config".to_owned(), Value::Object(config).to_string().into());
        Vec::new()
    }
}

struct Sim;

impl Logic for Sim {
    /// What the profile asks for joins the scenario; where both say something, the profile does.
    fn derive(&self, profile: &Profile, facts: &Facts, settings: &mut Settings) -> Vec<Fault> {
        let mut scenario = match &profile.engine.scenario {
            Some(Value::Object(scenario)) => scenario.clone(),
            _ => serde_json::Map::new(),
        };
        let mut ask = |path: &[&str], value: Option<&Value>| {
            let Some(value) = value else { return };
            let mut into = &mut scenario;
            for key in &path[..path.len() - 1] {
                let inner = into.entry(*key).or_insert_with(|| Value::Object(serde_json::Map::new()));
                let Value::Object(inner) = inner else { return };
                into = inner;
            }
            into.insert(path[path.len() - 1].to_owned(), value.clone());
        };
        let played = profile.engine.pretends.map(|kind| Value::from(kind.word()));
        ask(&["as"], played.as_ref());
        ask(&["version"], Some(&facts.version.0.clone().into()));
        for (path, key) in [
            (&["served_name"][..], "model.served_name"),
            (&["ranks"], "parallel.tensor"),
            (&["speculative", "steps"], "speculative.steps"),
            (&["memory", "fraction"], "memory.fraction"),
            (&["context_length"], "context_length"),
            (&["max_running_requests"], "max_running_requests"),
            (&["serve", "graph_max_batch"], "graphs.max_batch"),
        ] {
            ask(path, settings.get(key));
        }
        if !profile.instrument {
            ask(&["serve", "metrics"], Some(&Value::Bool(false)));
        }
        settings.insert("derived.scenario".to_owned(), Value::Object(scenario).to_string().into());
        Vec::new()
    }
}
