//! What must be computed for an engine, beyond spelling its settings: one small implementation where one is needed.

use indexmap::IndexMap;
use serde_json::Value;

use super::Fault;
use crate::profile::EngineKind;

/// Settings by neutral key.
pub(super) type Settings = IndexMap<String, Value>;

/// An engine's own logic.
pub(super) trait Logic {
    /// Adds what follows from the neutral settings, so that the definition can spell it.
    fn derive(&self, settings: &mut Settings) -> Vec<Fault>;
}

/// The logic of a kind.
pub(super) fn of(kind: EngineKind) -> &'static dyn Logic {
    match kind {
        EngineKind::Llamacpp => &LlamaCpp,
        _ => &Plain,
    }
}

/// Nothing to compute.
struct Plain;

impl Logic for Plain {
    fn derive(&self, _: &mut Settings) -> Vec<Fault> {
        Vec::new()
    }
}

struct LlamaCpp;

/// What llama-server takes when it is not told, and what orch then tells it, so that the pool is what it should be.
const AUTOMATIC_SLOTS: u64 = 4;

impl Logic for LlamaCpp {
    /// `--ctx-size` is shared by all slots.
    fn derive(&self, settings: &mut Settings) -> Vec<Fault> {
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
