//! What differs between two runs: suspects of a loss, not causes.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::record::model::Record;
use crate::record::settings::of_server;

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// What: the path of a setting, `engine.version`, `effective.max_running_requests`, …
    pub path: String,
    /// Its value before; `null` if it was not set.
    pub was: Option<Value>,
    /// Its value now; `null` if it is not set.
    pub now: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| match value {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "not set".to_owned(),
        };
        write!(f, "{} is {}, was {}", self.path, text(&self.now), text(&self.was))
    }
}

/// What differs from `was` to `now`: settings first, then what the server made of them, then what it ran on.
pub fn differences(was: &Record, now: &Record) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", Some(&of_server(&was.profile)), Some(&of_server(&now.profile)), &mut found);
    effective(was, now, &mut found);
    let engine = |record: &Record| {
        record.engine.as_ref().map(|engine| (Value::from(engine.kind.clone()), Value::from(engine.version.clone())))
    };
    let ((was_kind, was_version), (now_kind, now_version)) = (engine(was).unzip(), engine(now).unzip());
    // The profile tells the kind already, and a range of versions; here is the version that ran.
    let kind_told = found.iter().any(|known| known.path == "engine.kind");
    if !kind_told {
        push("engine.kind", was_kind, now_kind, &mut found);
    }
    push("engine.version that ran", was_version, now_version, &mut found);
    for key in was.provenance.keys().chain(now.provenance.keys()).collect::<BTreeSet<_>>() {
        walk(&format!("provenance.{key}"), was.provenance.get(key), now.provenance.get(key), &mut found);
    }
    let plain = |text: &str| Some(Value::from(text));
    push("host", plain(&was.host.name), plain(&now.host.name), &mut found);
    push("orch", plain(&was.orch.version), plain(&now.orch.version), &mut found);
    found
}

/// What differs between the settings of two resolved profiles, as far as it makes the server what it is.
pub fn differences_of_settings(was: &Value, now: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", Some(&of_server(was)), Some(&of_server(now)), &mut found);
    found
}

fn effective(was: &Record, now: &Record, found: &mut Vec<Difference>) {
    let read = |record: &Record, key: &str| {
        record.effective.iter().find(|each| each.key == key).and_then(|each| each.read.clone())
    };
    let keys: BTreeSet<&str> = was.effective.iter().chain(&now.effective).map(|each| each.key.as_str()).collect();
    for key in keys {
        // What a server does not say is not known to differ.
        if let (Some(was), Some(now)) = (read(was, key), read(now, key)) {
            push(&format!("effective.{key}"), Some(was), Some(now), found);
        }
    }
}

/// Maps are compared key by key, everything else as a whole.
fn walk(path: &str, was: Option<&Value>, now: Option<&Value>, found: &mut Vec<Difference>) {
    match (was, now) {
        (Some(Value::Object(was)), Some(Value::Object(now))) => {
            let added = now.keys().filter(|key| !was.contains_key(*key));
            for key in was.keys().chain(added) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(&path, was.get(key), now.get(key), found);
            }
        }
        (was, now) => push(path, was.cloned(), now.cloned(), found),
    }
}

fn push(path: &str, was: Option<Value>, now: Option<Value>, found: &mut Vec<Difference>) {
    if was != now {
        found.push(Difference { path: path.to_owned(), was, now });
    }
}
