//! What a profile asks for against what the running server says it took. The server also tells what it chose by itself,
//! so only what the profile asks for is compared.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Comparison;
use super::compare::Asked;
use crate::engine::settings::KEYS;
use crate::import::{Draft, server};
use crate::profile::Flag;
use crate::record::model::Effective;

/// Settings that a server cannot tell, or that are no part of what it serves.
const NOT_TOLD: &[&str] = &["host", "port", "instrument", "model.served_name"];

/// Holds the values that were read back against what was asked for.
pub fn compare_values(told: &[Effective], comparison: &mut Comparison, seen: &mut BTreeSet<String>) {
    for Effective { key, asked, read } in told {
        if let (Some(asked), Some(read)) = (asked, read) {
            seen.insert(key.clone());
            if key == "speculative.active" && asked != read {
                let has = if *read == json!(true) { "drafts tokens" } else { "drafts nothing" };
                comparison.hold("speculative", Some(json!("drafts tokens")), Some(json!(has)));
            } else {
                comparison.hold(key, Some(asked.clone()), Some(read.clone()));
            }
        }
    }
}

/// Holds what the server's own page of settings tells against what was asked for, and says what nothing tells.
pub fn compare_told(
    asked: &Asked<'_>,
    found: Option<&Draft>,
    page: Option<&Value>,
    seen: &mut BTreeSet<String>,
    comparison: &mut Comparison,
) {
    let mut untold: Vec<String> = Vec::new();
    for key in KEYS.iter().filter(|key| !NOT_TOLD.contains(key) && !seen.contains(**key)) {
        let Some(wanted) = asked.draft.settings.get(*key) else { continue };
        match found {
            Some(found) if found.settings.contains_key(*key) => {
                comparison.hold(key, Some(wanted.clone()), found.settings.get(*key).cloned());
            }
            // Such a page tells every setting: what is not there is off.
            Some(_) if key.starts_with("speculative.") => comparison.hold(key, Some(wanted.clone()), None),
            _ => untold.push(format!("`{key}`")),
        }
    }
    for (name, value) in &asked.draft.flags {
        let wanted = match value {
            Flag::Switch(false) => continue,
            Flag::Switch(true) => json!(true),
            Flag::Value(value) => json!(value),
            Flag::List(values) => json!(values),
        };
        let key = format!("flags.{name}");
        match page.and_then(|page| server::field(page, name)) {
            Some(has) if !has.is_null() => comparison.hold(&key, Some(wanted), Some(has.clone())),
            _ => untold.push(format!("`{key}`")),
        }
    }
    untold.extend(asked.draft.env.keys().map(|name| format!("`env.{name}`")));
    if !asked.draft.args.is_empty() {
        untold.push("`args`".to_owned());
    }
    if !untold.is_empty() {
        comparison.apart(format!("{}: the server does not tell", untold.join(", ")));
    }
}
