//! A profile's layers: the files it extends, each once, in the order in which they are laid over each other.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::fault::Fault;
use super::fields::PROFILE;
use super::find::{self, Found};
use super::nearest::nearest;
use super::read;
use super::short;
use super::source::{Place, SourceId, Sources};
use super::tree::{Node, Value};

/// More layers than this are a slip or an attack.
const MAX_LAYERS: usize = 64;

/// A layer that was read: short forms written out, `extends` taken off.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) source: SourceId,
    pub(crate) path: PathBuf,
    pub(crate) node: Node,
}

/// Reads a profile's file and all that it extends, the lowest layer first.
pub(crate) struct Reader<'a> {
    pub(crate) folders: &'a [PathBuf],
    pub(crate) sources: &'a mut Sources,
    pub(crate) faults: &'a mut Vec<Fault>,
    pub(crate) layers: Vec<Layer>,
    /// Whether a file is missing from `layers`, so that what seems to be absent may stand in it.
    pub(crate) incomplete: bool,
    done: HashSet<PathBuf>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(folders: &'a [PathBuf], sources: &'a mut Sources, faults: &'a mut Vec<Fault>) -> Self {
        Reader { folders, sources, faults, layers: Vec::new(), incomplete: false, done: HashSet::new() }
    }

    /// Reads `found` and, before it, its layers. `named_at` is where another file names it; `chain` is how it was
    /// come to.
    pub(crate) fn read(&mut self, found: &Found, named_at: Option<Place>, chain: &mut Vec<Found>) {
        if let Some(at) = chain.iter().position(|above| above.identity() == found.identity()) {
            let round: Vec<_> = chain[at..].iter().chain([found]).map(Found::name).collect();
            self.fail(
                Fault::new("cycle", format!("layers go round in a circle: {}", round.join(" -> ")))
                    .help("a layer cannot extend what extends it"),
                named_at,
                "closes the circle",
            );
            return;
        }
        // A layer that two others extend lies below both, once: laid down twice it would undo what is between.
        if !self.done.insert(found.identity()) {
            return;
        }
        if self.done.len() > MAX_LAYERS {
            self.fail(
                Fault::new("too_many_layers", format!("more than {MAX_LAYERS} layers")),
                named_at,
                "one too many",
            );
            return;
        }
        let text = match found.read() {
            Ok(text) => text,
            Err(fault) => return self.fail(fault, named_at, "named here"),
        };
        let source = self.sources.add(found.name(), &text, found.folder());
        let Some(mut node) = read::yaml(self.sources, source, &text, 0, self.faults) else {
            self.incomplete = true;
            return;
        };
        if !self.is_a_map(&node, found) {
            self.incomplete = true;
            return;
        }
        let extends = node.as_map_mut().and_then(|map| map.entries.shift_remove("extends")).map(|entry| entry.node);
        chain.push(found.clone());
        for (word, place) in self.words_of(extends) {
            match find::layer(&word, found.folder(), self.folders) {
                Some(below) => self.read(&below, Some(place), chain),
                None => self.missing(&word, found, place),
            }
        }
        chain.pop();
        short::write_out(&PROFILE, &mut node, self.faults);
        let path = PathBuf::from(found.name());
        self.layers.push(Layer { source, path, node });
    }

    fn fail(&mut self, fault: Fault, place: Option<Place>, label: &str) {
        self.incomplete = true;
        self.faults.push(match place {
            Some(place) => fault.at(place, label),
            None => fault,
        });
    }

    fn is_a_map(&mut self, node: &Node, found: &Found) -> bool {
        let fault = match &node.value {
            Value::Map(_) => return true,
            Value::Null => Fault::new("empty", format!("`{}` is empty", found.name()))
                .in_file(Path::new(&found.name()), None)
                .help("a profile has at least `engine` and `model`; a layer has one key or more"),
            _ => Fault::new("wrong_type", format!("`{}` is {}, and a profile is a map", found.name(), node.kind()))
                .at(node.place, "not a map")
                .help("for example `engine: sglang >=0.5.9` in its first line"),
        };
        self.faults.push(fault);
        false
    }

    fn words_of(&mut self, extends: Option<Node>) -> Vec<(String, Place)> {
        let items = match extends {
            None => return Vec::new(),
            Some(Node { value: Value::List(items), .. }) => items,
            Some(one) => vec![one],
        };
        let mut words = Vec::new();
        for item in items {
            match item.scalar() {
                Some(scalar) if !scalar.text.trim().is_empty() => words.push((scalar.text.clone(), item.place)),
                _ => self.fail(
                    Fault::new("wrong_type", format!("`extends` holds {}, not the path of a layer", item.kind()))
                        .help("for example `extends: layers/base` or `extends: [layers/base, layers/a6000]`"),
                    Some(item.place),
                    "not a path",
                ),
            }
        }
        words
    }

    fn missing(&mut self, word: &str, from: &Found, place: Place) {
        let mut known = [find::names(self.folders, ""), find::names(self.folders, "layers")].concat();
        let beside = from.folder().map(|folder| folder.join(word)).and_then(|path| path.parent().map(PathBuf::from));
        known.extend(beside.into_iter().flat_map(|folder| find::names(&[folder], "")));
        let name = word.rsplit('/').next().unwrap_or(word);
        let help = match nearest(name, &known) {
            Some(near) if near != name => format!("did you mean `{near}`?"),
            _ => format!("looked beside this file and in {}", find::places(self.folders)),
        };
        self.fail(
            Fault::new("missing_layer", format!("there is no layer `{word}`")).help(help),
            Some(place),
            "not found",
        );
    }
}
