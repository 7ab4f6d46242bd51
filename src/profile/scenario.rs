//! Scenarios of the simulated engine, as a file of their own or inside a profile. What their keys mean is known to
//! `sim`; here they are read, with all faults at once.

use std::path::Path;

use serde_json::Value as Json;

use super::check;
use super::expand::{self, Names};
use super::fault::{Fault, ProfileError};
use super::fields::SCENARIO;
use super::merge;
use super::read;
use super::rules;
use super::source::{SourceId, Sources};
use super::tree::{Map, Node, Value};

/// Reads a scenario's file. The result has every quantity in its canonical form and only the keys that were written.
pub fn scenario_file(path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Json, ProfileError> {
    let mut sources = Sources::default();
    let asked = path.display().to_string();
    match read::text(path, read::MAX_FILE_BYTES) {
        Ok(text) => {
            let source = sources.add(asked.as_str(), &text, path.parent());
            read_scenario(&asked, &text, source, &sources, env)
        }
        Err(fault) => Err(ProfileError::of_scenario(&asked, &sources, vec![fault])),
    }
}

/// Reads a scenario from text that has a name.
pub fn scenario_text(name: &str, text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Json, ProfileError> {
    let mut sources = Sources::default();
    let source = sources.add(name, text, None);
    read_scenario(name, text, source, &sources, env)
}

fn read_scenario(
    asked: &str,
    text: &str,
    source: SourceId,
    sources: &Sources,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Json, ProfileError> {
    let mut faults = Vec::new();
    let json = tree(text, source, sources, &Names { env, secrets: Vec::new() }, &mut faults).and_then(|node| {
        let json = check::check(&SCENARIO, &node, &mut faults);
        rules::scenario::check(&node, &mut faults);
        json
    });
    match json {
        Some(json) if faults.is_empty() => Ok(json),
        _ => Err(ProfileError::of_scenario(asked, sources, faults)),
    }
}

fn tree(text: &str, source: SourceId, sources: &Sources, names: &Names<'_>, faults: &mut Vec<Fault>) -> Option<Node> {
    let mut node = read::yaml(sources, source, text, 0, faults)?;
    if node.value == Value::Null {
        // Every key is optional, so that nothing at all is a scenario too.
        node.value = Value::Map(Map::default());
    }
    expand::expand(&mut node, names, faults);
    check::unknown_nulls(&SCENARIO, &node, faults);
    merge::settle(&mut node);
    Some(node)
}

/// Puts the scenario that a profile names in the place of its name, so that it is checked with the profile and stands
/// in its records.
pub(super) fn inline(root: &mut Node, names: &Names<'_>, sources: &mut Sources, faults: &mut Vec<Fault>) {
    let engine = root.as_map_mut().and_then(|map| map.entries.get_mut("engine"));
    let entry = engine.and_then(|entry| entry.node.as_map_mut()).and_then(|map| map.entries.get_mut("scenario"));
    let Some(node) = entry.map(|entry| &mut entry.node) else { return };
    let Some(path) = node.scalar().filter(|scalar| !scalar.broken).map(|scalar| scalar.text.clone()) else { return };
    if !Path::new(&path).is_file() {
        // That it was not found is told already.
        return;
    }
    match read::text(Path::new(&path), read::MAX_FILE_BYTES) {
        Ok(text) => {
            let source = sources.add(path.as_str(), &text, Path::new(&path).parent());
            if let Some(read) = tree(&text, source, sources, names, faults) {
                *node = read;
            }
        }
        Err(fault) => faults.push(fault.at(node.place, "named here")),
    }
}

/// The kinds of failure that a log can tell, without `unknown`.
pub fn failure_kinds() -> &'static [&'static str] {
    super::fields::FAILURES
}

/// The words for what may go wrong with a request.
#[cfg(test)]
pub(crate) fn fault_kinds() -> &'static [&'static str] {
    super::fields::FAULTS
}
