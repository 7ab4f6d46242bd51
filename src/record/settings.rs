//! What of a record says what the server is: runs in which it is the same can be expected to measure the same.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::model::Record;

/// Keys of a profile that say how it is measured and judged, or where it happens to listen, and not what the server is.
/// What of them can change a result is a hard difference (workload, load) or stands in the record itself (host).
const NOT_THE_SERVER: [&str; 15] = [
    "name",
    "series",
    "port",
    "host",
    "hosts",
    "bench",
    "expect",
    "tolerance",
    "repeat",
    "suspect",
    "quality",
    "gate",
    "hooks",
    "secrets",
    "share",
];

/// Of a resolved profile, what makes the server what it is.
pub fn of_server(profile: &Value) -> Value {
    let mut profile = profile.clone();
    if let Some(keys) = profile.as_object_mut() {
        keys.retain(|key, _| !NOT_THE_SERVER.contains(&key.as_str()));
    }
    profile
}

/// A resolved profile's values by their dotted keys, for remedies that name them. Lists are left aside.
pub fn dotted(profile: &Value) -> BTreeMap<String, String> {
    fn walk(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(&path, value, into);
            }),
            Value::String(text) => drop(into.insert(path.to_owned(), text.clone())),
            Value::Null | Value::Array(_) => {}
            other => drop(into.insert(path.to_owned(), other.to_string())),
        }
    }
    let mut settings = BTreeMap::new();
    walk("", profile, &mut settings);
    settings
}

/// The same with the engine's version that ran, as a short hash.
pub(crate) fn hash(record: &Record) -> String {
    let engine = record.engine.as_ref().map(|engine| (&engine.kind, &engine.version));
    let text = serde_json::to_string(&(sorted(&of_server(&record.profile)), engine)).unwrap_or_default();
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// With the keys of every map in order: in which order a profile was written is no setting.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<(&String, Value)> = map.iter().map(|(key, value)| (key, sorted(value))).collect();
            keys.sort_by_key(|(key, _)| *key);
            keys.into_iter().map(|(key, value)| (key.clone(), value)).collect()
        }
        Value::Array(list) => list.iter().map(sorted).collect(),
        other => other.clone(),
    }
}
