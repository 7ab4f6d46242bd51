//! From a name or path to a profile: layers, `--set`, `${NAME}`, workloads, and then the decoding, in that order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::check;
use super::expand::{self, Names};
use super::fault::{Fault, ProfileError};
use super::fields::PROFILE;
use super::find::{self, Found};
use super::layers::{Layer, Reader};
use super::merge;
use super::model::Profile;
use super::places::Places;
use super::rules::{self, Lineage};
use super::scenario;
use super::set;
use super::short;
use super::source::Sources;
use super::tree::{Entry, Map, Node, Value};
use super::workload::{Content, Folder};

/// What to load.
pub struct Request<'a> {
    /// A name, looked for in `folders` and in the program, or the path of a file.
    pub profile: &'a str,
    /// `path=value` each, laid over the files in order.
    pub set: &'a [String],
    /// Where names of profiles, layers and workloads are looked for, before the built-in ones.
    pub folders: &'a [PathBuf],
    /// Where `${NAME}` is looked up.
    pub env: &'a dyn Fn(&str) -> Option<String>,
}

/// A profile that was loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The profile itself.
    pub profile: Profile,
    /// The resolved profile as YAML: one file without layers that loads as the same profile.
    pub yaml: String,
    /// The files it was made of, the lowest layer first and the profile's own file last. A built-in one begins with
    /// `builtin:`.
    pub layers: Vec<PathBuf>,
    /// Where its keys stand.
    pub(super) places: Places,
}

/// The profile folders when nothing else is said: `profiles/` of the current folder.
pub fn default_folders() -> Vec<PathBuf> {
    vec![PathBuf::from("profiles")]
}

/// Looks names up in the environment of this process; a value that is not UTF-8 counts as not set.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Loads a profile, or says everything that is wrong with it.
pub fn load(request: &Request<'_>) -> Result<Loaded, ProfileError> {
    let mut sources = Sources::default();
    let mut faults = Vec::new();
    match read(request, &mut sources, &mut faults) {
        Some(Read { profile, yaml, layers, root }) if faults.is_empty() => {
            let places = Places { asked: request.profile.to_owned(), sources, root };
            Ok(Loaded { profile, yaml, layers, places })
        }
        _ => Err(ProfileError::new(request.profile, &sources, faults)),
    }
}

/// What reading comes to, without the texts.
struct Read {
    profile: Profile,
    yaml: String,
    layers: Vec<PathBuf>,
    /// The merged tree, with the keys of workloads folded in.
    root: Node,
}

fn read(request: &Request<'_>, sources: &mut Sources, faults: &mut Vec<Fault>) -> Option<Read> {
    let found = find::profile(request.profile, request.folders).map_err(|fault| faults.push(fault)).ok()?;
    let mut reader = Reader::new(request.folders, sources, faults);
    reader.read(&found, None, &mut Vec::new());
    let (layers, incomplete) = (std::mem::take(&mut reader.layers), reader.incomplete);
    let files: Vec<PathBuf> = layers.iter().map(|layer| layer.path.clone()).collect();
    let layers = with_sets(layers, request.set, sources, faults);
    let (mut root, mut lineage) = lay(layers)?;
    check::unknown_nulls(&PROFILE, &root, faults);
    merge::settle(&mut root);
    let names = Names { env: request.env, secrets: secret_names(&root) };
    expand::expand(&mut root, &names, faults);
    short::write_out_expanded(&mut root);
    lineage.fill(|text| expand::fill(text, &names));
    give_simulated_model(&mut root);
    let contents = {
        let mut folder = Folder::new(request.folders, &names, sources, faults);
        folder.find_files(&mut root);
        folder.fold(&mut root)
    };
    scenario::inline(&mut root, &names, sources, faults);
    let before = faults.len();
    let json = check::check(&PROFILE, &root, faults);
    rules::check(&root, &lineage, faults);
    if incomplete {
        // What seems to be missing, or alone, may stand in the file that could not be read.
        let late = faults.split_off(before);
        faults.extend(late.into_iter().filter(|fault| !matches!(&*fault.code, "missing_key" | "contradiction")));
    }
    if !faults.is_empty() {
        return None;
    }
    match decode(json?, &found, contents) {
        Ok(profile) => {
            let yaml = write(&profile).map_err(|error| faults.push(own_fault(&error))).ok()?;
            Some(Read { profile, yaml, layers: files, root })
        }
        Err(error) => {
            faults.push(own_fault(&error.to_string()));
            None
        }
    }
}

/// The field table let something through that the model does not take.
fn own_fault(words: &str) -> Fault {
    Fault::new("own", format!("this profile is right, and orch could not read it: {words}"))
        .help("this is a fault of orch; please report it with the profile")
}

fn with_sets(mut layers: Vec<Layer>, set: &[String], sources: &mut Sources, faults: &mut Vec<Fault>) -> Vec<Layer> {
    for (index, argument) in set.iter().enumerate() {
        if let Some((source, mut node)) = set::layer(argument, index + 1, sources, faults) {
            short::write_out(&PROFILE, &mut node, faults);
            layers.push(Layer { source, path: PathBuf::new(), node });
        }
    }
    layers
}

/// Lays the layers over each other and notes which engine each of them speaks to.
fn lay(layers: Vec<Layer>) -> Option<(Node, Lineage)> {
    let mut lineage = Lineage::default();
    let mut root: Option<Node> = None;
    for Layer { source, node, .. } in layers {
        let merged = match root.take() {
            Some(below) => merge::merge(below, node),
            None => node,
        };
        if let Some(kind) = rules::effective_kind(&merged) {
            lineage.kinds.insert(source, kind);
        }
        root = Some(merged);
    }
    root.map(|root| (root, lineage))
}

fn secret_names(root: &Node) -> Vec<String> {
    match root.get("secrets").map(|node| &node.value) {
        Some(Value::List(items)) => items.iter().filter_map(|item| Some(item.scalar()?.text.clone())).collect(),
        _ => Vec::new(),
    }
}

/// A simulated engine serves nothing in particular.
fn give_simulated_model(root: &mut Node) {
    if root.text_at(&["engine", "kind"]) != Some("sim") || root.get("model").is_some() {
        return;
    }
    let place = root.place;
    let Some(map) = root.as_map_mut() else { return };
    let path = Map {
        entries: [("path".to_owned(), Entry { key: place, node: Node::plain("simulated", place) })].into(),
        replaces: false,
    };
    map.entries.insert("model".to_owned(), Entry { key: place, node: Node { value: Value::Map(path), place } });
}

fn decode(mut json: Json, found: &Found, contents: BTreeMap<String, Content>) -> Result<Profile, serde_json::Error> {
    if let Some(map) = json.as_object_mut() {
        let name = map.get("name").and_then(Json::as_str).map_or_else(|| name_of(found), str::to_owned);
        map.entry("series").or_insert_with(|| json!(name));
        map.insert("name".to_owned(), json!(name));
        // `steps: 0` is how a sweep writes "without": then nothing of it is left.
        if map
            .get("speculative")
            .is_some_and(|value| value["steps"] == json!(0) || value.as_object().is_some_and(serde_json::Map::is_empty))
        {
            map.remove("speculative");
        }
    }
    let mut profile: Profile = serde_json::from_value(json)?;
    for (name, Content { prompts, trace }) in contents {
        if let Some(bench) = profile.bench.get_mut(&name) {
            bench.inline.texts = prompts;
            if let Some(keys) = &mut bench.trace {
                keys.rows = trace;
            }
        }
    }
    Ok(profile)
}

/// The file's name without its ending, with what cannot stand in a name replaced.
fn name_of(found: &Found) -> String {
    let path = match found {
        Found::File(path) => path.as_path(),
        Found::BuiltIn(path) => Path::new(path),
    };
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || "._-+".contains(c) { c } else { '-' }).take(100).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "profile".to_owned() } else { name.to_owned() }
}

/// `Err` is what the writer says.
fn write(profile: &Profile) -> Result<String, String> {
    let mut json = serde_json::to_value(profile).map_err(|error| error.to_string())?;
    escape(&mut json);
    serde_yaml::to_string(&json).map_err(|error| error.to_string())
}

/// A `${` that is in a value by now is meant as it stands.
fn escape(json: &mut Json) {
    match json {
        Json::String(text) => *text = expand::escape(text),
        Json::Array(items) => items.iter_mut().for_each(escape),
        Json::Object(map) => map.values_mut().for_each(escape),
        _ => {}
    }
}
