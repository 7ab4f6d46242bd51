//! Workloads folded into the measurements that use them, and the prompts and other files that a profile names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use super::builtin;
use super::check;
use super::expand::{self, Names};
use super::fault::Fault;
use super::fields::WORKLOAD;
use super::find::{self, Found};
use super::merge;
use super::model::Prompt;
use super::nearest::nearest;
use super::prompts;
use super::read;
use super::source::{Place, Sources};
use super::trace::{self, TraceRow};
use super::tree::{Map, Node, Value};

/// What a measurement sends, beside its keys.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) trace: Vec<TraceRow>,
}

/// Reads what the measurements of a profile refer to.
pub(crate) struct Folder<'a> {
    pub(crate) folders: &'a [PathBuf],
    pub(crate) names: &'a Names<'a>,
    pub(crate) sources: &'a mut Sources,
    pub(crate) faults: &'a mut Vec<Fault>,
    /// Workloads that were read, by what makes two ways of naming one the same; `None` where a fault says why not.
    read: HashMap<PathBuf, Option<Map>>,
}

impl<'a> Folder<'a> {
    pub(crate) fn new(
        folders: &'a [PathBuf],
        names: &'a Names<'a>,
        sources: &'a mut Sources,
        faults: &'a mut Vec<Fault>,
    ) -> Self {
        Folder { folders, names, sources, faults, read: HashMap::new() }
    }

    /// Folds named workloads into `bench` and reads prompts and traces. The result has them by measurement.
    pub(crate) fn fold(&mut self, root: &mut Node) -> BTreeMap<String, Content> {
        let mut contents = BTreeMap::new();
        let bench = root.as_map_mut().and_then(|map| map.entries.get_mut("bench"));
        let Some(Value::Map(bench)) = bench.map(|entry| &mut entry.node.value) else { return contents };
        for (name, entry) in &mut bench.entries {
            // What is no map is told when the tree is held against the field table.
            let Some(keys) = entry.node.as_map_mut() else { continue };
            self.fold_one(keys);
            let content = Content { prompts: self.prompts(keys), trace: self.trace(keys) };
            contents.insert(name.clone(), content);
        }
        contents
    }

    /// The requests of a measurement's trace.
    fn trace(&mut self, keys: &mut Map) -> Vec<TraceRow> {
        let Some(entry) = keys.entries.get_mut("trace") else { return Vec::new() };
        let Some(file) = entry.node.as_map_mut().and_then(|map| map.entries.get_mut("file")) else { return Vec::new() };
        let place = file.node.place;
        let Value::Scalar(scalar) = &mut file.node.value else { return Vec::new() };
        if scalar.text.trim().is_empty() {
            return Vec::new();
        }
        let Some(path) = self.companion(&scalar.text, "trace.file", place) else { return Vec::new() };
        scalar.text = path.display().to_string();
        trace::read_file(&path).unwrap_or_else(|fault| {
            self.faults.push(fault.at(place, "this trace"));
            Vec::new()
        })
    }

    fn fold_one(&mut self, keys: &mut Map) {
        let Some(used) = keys.entries.get("use") else { return };
        let place = used.node.place;
        match &used.node.value {
            Value::Map(inline) => {
                let inline = inline.clone();
                keys.entries.shift_remove("use");
                add_missing(keys, inline);
            }
            Value::Scalar(scalar) if check::is_name(&scalar.text) => {
                let name = scalar.text.clone();
                if let Some(workload) = self.named(&name, place) {
                    add_missing(keys, workload);
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, name: &str, place: Place) -> Option<Map> {
        let from = self.sources.get(place.source).folder.clone();
        let Some(found) = find::workload(name, from.as_deref(), self.folders) else {
            let known = find::names(self.folders, "workloads");
            let help = match nearest(name, &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the workloads are: {}", known.join(" ")),
            };
            self.faults.push(
                Fault::new("missing_workload", format!("there is no workload `{name}`"))
                    .at(place, "not found")
                    .help(help),
            );
            return None;
        };
        let identity = found.identity();
        if let Some(read) = self.read.get(&identity) {
            return read.clone();
        }
        let read = self.read_workload(&found, place);
        self.read.insert(identity, read.clone());
        read
    }

    fn read_workload(&mut self, found: &Found, place: Place) -> Option<Map> {
        let text = match found.read() {
            Ok(text) => text,
            Err(fault) => {
                self.faults.push(fault.at(place, "named here"));
                return None;
            }
        };
        let before = self.faults.len();
        let source = self.sources.add(found.name(), &text, found.folder());
        let mut node = read::yaml(self.sources, source, &text, 0, self.faults)?;
        if node.value == Value::Null {
            self.faults
                .push(Fault::new("empty", format!("workload `{}` is empty", found.name())).at(place, "named here"));
            return None;
        }
        expand::expand(&mut node, self.names, self.faults);
        merge::settle(&mut node);
        check::check(&WORKLOAD, &node, self.faults);
        // A key of its own that is wrong must not be told again through each measurement that uses it.
        match node.value {
            Value::Map(map) if self.faults.len() == before => Some(map),
            _ => None,
        }
    }

    /// The prompts of a measurement: one from each source in turn, so that a short step sees all of them.
    fn prompts(&mut self, keys: &mut Map) -> Vec<Prompt> {
        let Some(entry) = keys.entries.get_mut("prompts") else { return Vec::new() };
        let items: Vec<&mut Node> = match &mut entry.node.value {
            Value::List(items) => items.iter_mut().collect(),
            Value::Scalar(_) => vec![&mut entry.node],
            _ => return Vec::new(),
        };
        let mut columns = Vec::new();
        for item in items {
            let place = item.place;
            let Value::Scalar(scalar) = &mut item.value else { continue };
            if let Some(kind) = scalar.text.strip_prefix("builtin/") {
                match builtin::prompts(kind) {
                    Some(prompts) => columns.push(prompts.to_vec()),
                    None => self.unknown_kind(kind, place),
                }
            } else if let Some(path) = self.companion(&scalar.text, "prompts", place) {
                scalar.text = path.display().to_string();
                match prompts::read_file(&path) {
                    Ok(prompts) => columns.push(prompts),
                    Err(fault) => self.faults.push(fault.at(place, "these prompts")),
                }
            }
        }
        in_turn(columns)
    }

    fn unknown_kind(&mut self, kind: &str, place: Place) {
        let help = match nearest(kind, builtin::PROMPT_KINDS) {
            Some(near) => format!("did you mean `builtin/{near}`?"),
            None => format!("there are builtin/ {}", builtin::PROMPT_KINDS.join(" ")),
        };
        self.faults.push(
            Fault::new("missing_prompts", format!("there are no prompts `builtin/{kind}`"))
                .at(place, "not found")
                .help(help),
        );
    }

    /// Finds the other files that a profile names and writes their paths as they were found.
    pub(crate) fn find_files(&mut self, root: &mut Node) {
        for path in [["quality", "file"], ["engine", "patches"], ["engine", "scenario"]] {
            let Some(node) = at_mut(root, &path) else { continue };
            let items: Vec<&mut Node> = match &mut node.value {
                Value::List(items) => items.iter_mut().collect(),
                Value::Scalar(_) => vec![node],
                _ => continue,
            };
            for item in items {
                let place = item.place;
                let Value::Scalar(scalar) = &mut item.value else { continue };
                if scalar.text.trim().is_empty() {
                    continue;
                }
                if let Some(found) = self.companion(&scalar.text, &path.join("."), place) {
                    scalar.text = found.display().to_string();
                }
            }
        }
    }

    fn companion(&mut self, word: &str, what: &str, place: Place) -> Option<PathBuf> {
        let from = self.sources.get(place.source).folder.clone();
        let found = find::companion(word, from.as_deref(), self.folders);
        match &found {
            Some(path) if path.is_dir() => {
                self.faults.push(
                    Fault::new("not_a_file", format!("`{word}` is a folder, not a file"))
                        .at(place, "named here")
                        .help(format!("name a file, such as `{word}/FILE`")),
                );
                None
            }
            Some(_) => found,
            None => {
                self.faults.push(
                    Fault::new("missing_file", format!("there is no file `{word}` for `{what}`"))
                        .at(place, "not found")
                        .help("looked beside this file, in the current folder and in the profile folders"),
                );
                None
            }
        }
    }
}

fn at_mut<'a>(root: &'a mut Node, path: &[&str]) -> Option<&'a mut Node> {
    path.iter().try_fold(root, |node, key| node.as_map_mut()?.entries.get_mut(*key).map(|entry| &mut entry.node))
}

/// The workload's keys that a measurement does not set itself. `output` and `output_tokens` say the same thing, so one
/// of its own hides both of the workload's.
fn add_missing(keys: &mut Map, workload: Map) {
    let own_output = ["output", "output_tokens"].iter().any(|key| keys.entries.contains_key(*key));
    for (key, entry) in workload.entries {
        let hidden = own_output && (key == "output" || key == "output_tokens");
        if !hidden && !keys.entries.contains_key(&key) {
            keys.entries.insert(key, entry);
        }
    }
}

/// Takes one from each list in turn, until all are empty; a text that came before is left out.
fn in_turn(columns: Vec<Vec<Prompt>>) -> Vec<Prompt> {
    let mut seen = HashSet::new();
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let mut prompts = Vec::new();
    loop {
        let row: Vec<Prompt> = columns.iter_mut().filter_map(Iterator::next).collect();
        if row.is_empty() {
            return prompts;
        }
        prompts.extend(row.into_iter().filter(|prompt| seen.insert(prompt.text.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: &str) -> Prompt {
        Prompt { id: text.to_owned(), text: text.to_owned(), then: Vec::new() }
    }

    #[test]
    fn sources_take_turns_and_a_text_comes_once() {
        let columns =
            vec![vec![prompt("a1"), prompt("a2"), prompt("x")], vec![prompt("b1")], vec![prompt("x"), prompt("c2")]];
        let texts: Vec<_> = in_turn(columns).into_iter().map(|prompt| prompt.text).collect();
        assert_eq!(texts, ["a1", "b1", "x", "a2", "c2"]);
    }
}
