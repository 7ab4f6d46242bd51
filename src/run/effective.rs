//! What the server can hold, before it is loaded: read back from the server and its log, and held against each step.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::engine::{self, Places};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::gate::{self, Beside};
use crate::measure::Capacity;
use crate::profile::EngineKind;
use crate::record::model::Effective;
use crate::render::Step;

/// Reads back what the server took for the settings, and says so.
pub(super) async fn read(
    base_url: &str,
    places: &BTreeMap<String, Places>,
    beside: &Beside<'_>,
    log: &dyn Emit,
) -> Result<Capacity, EmitError> {
    if places.is_empty() {
        return Ok(Capacity::default());
    }
    let effective = gate::read_back(base_url, places, beside).await;
    let capacity = capacity(&effective);
    log.emit(Scope::Run, Event::Readback { effective })?;
    Ok(capacity)
}

/// The same of a server of which nothing is known but its address: each engine's places are tried, and those of the
/// first that it answers like are taken.
pub(super) async fn read_unknown(base_url: &str, log: &dyn Emit) -> Result<Capacity, EmitError> {
    let facts = BTreeMap::new();
    let beside = Beside { asked: &Value::Null, facts: &facts, log: None };
    for kind in [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp] {
        let Ok(definition) = engine::definition(kind, &[]) else { continue };
        let effective = gate::read_back(base_url, &definition.readback, &beside).await;
        // Names and lengths are told alike by several engines; what it can hold, by its own alone.
        let told = |key: &str| effective.iter().any(|each| each.key == key && each.read.is_some());
        if told("max_running_requests") || told("kv_tokens") {
            let known: Vec<Effective> = effective.into_iter().filter(|each| each.read.is_some()).collect();
            let capacity = capacity(&known);
            log.emit(Scope::Run, Event::Readback { effective: known })?;
            return Ok(capacity);
        }
    }
    Ok(Capacity::default())
}

/// Says what a person should know before a step is loaded.
pub(super) fn warn(capacity: &Capacity, step: &Step, log: &dyn Emit) -> Result<(), EmitError> {
    for warning in capacity.warnings(step) {
        log.emit(Scope::Step(step.name.clone()), Event::Warning(warning))?;
    }
    Ok(())
}

fn capacity(effective: &[Effective]) -> Capacity {
    let read = |key: &str| effective.iter().find(|each| each.key == key);
    let count = |key: &str| read(key)?.read.as_ref()?.as_u64().filter(|count| *count > 0);
    let switch = |key: &str| read(key)?.read.as_ref()?.as_bool();
    let draft = read("speculative.active").filter(|each| each.asked == Some(Value::Bool(true)));
    Capacity {
        running_requests: count("max_running_requests"),
        kv_tokens: count("kv_tokens"),
        // Without graphs no batch is beyond them.
        graph_batch: count("graphs.max_batch").filter(|_| switch("graphs.enabled") != Some(false)),
        context_tokens: count("context_length"),
        draft_active: draft.and_then(|each| each.read.as_ref()?.as_bool()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn effective(values: &[(&str, Value, Value)]) -> Vec<Effective> {
        let some = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
        let each = |(key, asked, read): &(&str, Value, Value)| Effective {
            key: (*key).to_owned(),
            asked: some(asked),
            read: some(read),
        };
        values.iter().map(each).collect()
    }

    #[test]
    fn what_is_not_read_is_not_known() {
        assert_eq!(capacity(&[]), Capacity::default());
        let none = effective(&[("max_running_requests", json!(16), json!(null)), ("kv_tokens", json!(null), json!(0))]);
        assert_eq!(capacity(&none), Capacity::default());
    }

    #[test]
    fn graphs_that_are_off_are_no_limit_and_a_draft_matters_where_one_was_asked_for() {
        let read = |enabled: bool, asked: Value| {
            capacity(&effective(&[
                ("max_running_requests", json!(16), json!(10)),
                ("kv_tokens", json!(null), json!(8192)),
                ("graphs.max_batch", json!(null), json!(8)),
                ("graphs.enabled", json!(null), json!(enabled)),
                ("speculative.active", asked, json!(false)),
            ]))
        };
        let whole = read(true, json!(true));
        assert_eq!((whole.running_requests, whole.kv_tokens, whole.graph_batch), (Some(10), Some(8192), Some(8)));
        assert_eq!(whole.draft_active, Some(false));
        let eager = read(false, json!(null));
        assert_eq!((eager.graph_batch, eager.draft_active), (None, None));
    }
}
