//! A run as it leaves this machine: its record as it is kept, masked, with the hash that tells whether it has changed.

use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::remote::{LARGEST_BYTES, Outgoing};
use crate::record::mask::Mask;

/// Reads the record at `path` for the way out; `Ok(None)` where it is not to be sent: it is gone, goes on, or is another's.
pub(super) fn read(path: &Path, id: &str, before: Vec<String>) -> Result<Option<Outgoing>, String> {
    let Ok(bytes) = std::fs::read(path) else { return Ok(None) };
    let Ok(mut record) = serde_json::from_slice::<Value>(&bytes) else { return Ok(None) };
    let own = record.get("id").and_then(Value::as_str) == Some(id) && record.get("writer").is_none_or(Value::is_null);
    if !own || record.get("ended_at").is_none_or(Value::is_null) {
        return Ok(None);
    }
    mask(&mut record, &Mask::default());
    let record = record.to_string();
    if record.len() > LARGEST_BYTES {
        return Err(format!("its record is larger than {} MiB", LARGEST_BYTES >> 20));
    }
    Ok(Some(Outgoing { id: id.to_owned(), hash: hash(&record), record, before }))
}

/// Of a record's text.
pub(super) fn hash(record: &str) -> String {
    // Half of it tells as many records apart as anybody will ever have.
    Sha256::digest(record.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Hides what looks like a secret. Values of secrets that a profile names are `${NAME}` in a record already; this is for
/// what a person wrote into a profile all the same.
fn mask(value: &mut Value, mask_: &Mask) {
    match value {
        Value::String(text) => *text = mask_.text(text),
        Value::Array(list) => {
            list.iter_mut().for_each(|each| mask(each, mask_));
            mask_pairs(list, mask_);
        }
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::Object(variables) if key == "env" => mask_variables(variables, mask_),
                    other => mask(other, mask_),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A flag and its value are two words of a command.
fn mask_pairs(words: &mut [Value], mask: &Mask) {
    for index in 1..words.len() {
        let (before, rest) = words.split_at_mut(index);
        let (Some(Value::String(flag)), Some(Value::String(word))) = (before.last(), rest.first_mut()) else {
            continue;
        };
        if flag.starts_with('-')
            && !word.starts_with('-')
            && mask.text(&format!("{flag} {word}")) == format!("{flag} ***")
        {
            "***".clone_into(word);
        }
    }
}

fn mask_variables(variables: &mut Map<String, Value>, mask: &Mask) {
    for (name, value) in variables.iter_mut() {
        if let Value::String(text) = value {
            *text = mask.variable(name, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_looks_like_a_secret_stays_here() {
        let mut record = json!({
            "profile": {"env": {"MY_TOKEN": "abcd1234", "NCCL_DEBUG": "INFO"}, "args": ["--api-key=abcd1234", "-v"]},
            "command": ["serve", "--api-key", "abcd1234", "--port", "30000", "--hf-token", "--x"],
            "effective": [{"key": "max_running_requests", "asked": 16, "read": null}],
            "provenance": {"driver": "570"},
        });
        mask(&mut record, &Mask::default());
        assert_eq!(
            record,
            json!({
                "profile": {"env": {"MY_TOKEN": "***", "NCCL_DEBUG": "INFO"}, "args": ["--api-key=***", "-v"]},
                "command": ["serve", "--api-key", "***", "--port", "30000", "--hf-token", "--x"],
                "effective": [{"key": "max_running_requests", "asked": 16, "read": null}],
                "provenance": {"driver": "570"},
            })
        );
    }

    #[test]
    fn only_own_runs_that_have_ended_leave() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let leaves = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path, "a", Vec::new()).unwrap().is_some()
        };
        assert!(leaves(r#"{"id":"a","ended_at":"2026-11-29T15:15:03Z"}"#));
        assert!(!leaves(r#"{"id":"b","ended_at":"2026-11-29T15:15:03Z"}"#));
        assert!(!leaves(r#"{"id":"a","ended_at":null}"#));
        assert!(!leaves(r#"{"id":"a","ended_at":"2026-11-29T15:15:03Z","writer":{"user":"ann","host":"box"}}"#));
        assert!(!leaves("not a record"));
    }
}
