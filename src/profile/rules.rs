//! What contradicts itself although each key is well formed. The rules look at the merged tree, so that each fault
//! points at the text that a person wrote, and a key that is wrong by itself hides no contradiction elsewhere.

mod bench;
pub(crate) mod scenario;
pub(crate) mod search;

use std::collections::{BTreeMap, HashMap};

use crate::units::parse_count;

use super::fault::Fault;
use super::metrics;
use super::nearest::nearest;
use super::source::{Place, SourceId};
use super::tree::{Node, Value};

/// What the layers say of the engine, one above the other.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// The engine's kind as it stands when a layer has been laid down; absent while no layer names one.
    pub(crate) kinds: HashMap<SourceId, String>,
}

impl Lineage {
    /// Fills in `${NAME}`, and takes off the version that may come with a kind.
    pub(crate) fn fill(&mut self, fill: impl Fn(&str) -> String) {
        for kind in self.kinds.values_mut() {
            let filled = fill(kind);
            let end = filled.find(|c: char| c.is_whitespace() || "=<>!~".contains(c)).unwrap_or(filled.len());
            *kind = filled[..end].to_owned();
        }
    }
}

/// All contradictions of a profile.
pub(crate) fn check(root: &Node, lineage: &Lineage, faults: &mut Vec<Fault>) {
    let mut rules = Rules { root, faults };
    rules.engine();
    rules.inherited(lineage);
    rules.speculative();
    rules.graphs();
    rules.hosts();
    rules.secrets();
    rules.tolerance();
    rules.package();
    if let Some(scenario) = root.at(&["engine", "scenario"]) {
        scenario::check(scenario, rules.faults);
    }
    if let Some(bench) = root.get("bench").and_then(Node::as_map) {
        for (name, entry) in &bench.entries {
            if let Some(keys) = entry.node.as_map() {
                bench::Bench { name, keys, place: entry.key, rules: &mut rules }.check();
            }
        }
    }
}

struct Rules<'a> {
    root: &'a Node,
    faults: &'a mut Vec<Fault>,
}

/// Keys that mean something to an engine that orch describes, and nothing to a command.
const ENGINE_ONLY: &[&str] = &[
    "parallel",
    "speculative",
    "memory",
    "context_length",
    "max_running_requests",
    "graphs",
    "attention_backend",
    "flags",
];

impl<'a> Rules<'a> {
    fn contradiction(&mut self, message: impl Into<String>, at: Place, label: &str, help: impl Into<String>) {
        self.faults.push(Fault::new("contradiction", message).at(at, label).help(help));
    }

    fn key_place(&self, path: &[&str]) -> Option<Place> {
        let (last, head) = path.split_last()?;
        self.root.at(head)?.as_map()?.entries.get(*last).map(|entry| entry.key)
    }

    /// What a command fills in: a slip in a placeholder would reach the server as it stands, and a server that is never
    /// told a port chosen for it listens somewhere else.
    fn placeholders(&mut self, words: &'a [Node]) {
        let known = ["{port}", "{model}", "{host}"];
        let mut slips = Vec::new();
        let mut told = false;
        for (word, text) in words.iter().filter_map(|word| Some((word, word.scalar()?.text.as_str()))) {
            told |= text.contains("{port}");
            let braces = text.match_indices('{').filter_map(|(from, _)| text[from..].split_inclusive('}').next());
            let names = braces.filter(|name| name.ends_with('}') && !known.contains(name));
            slips.extend(names.filter_map(|name| Some((word.place, name, nearest(name, known)?))));
        }
        let port = self.root.text_at(&["port"]);
        if !told
            && slips.is_empty()
            && port.is_none_or(|port| port == "auto")
            && let Some(place) = self.key_place(&["engine", "command"])
        {
            self.contradiction(
                "orch chooses the port, and no word of `engine.command` holds `{port}`",
                place,
                "is not told its port",
                "add it, such as `--port, \"{port}\"`, or set `port` to the number that the program listens on",
            );
        }
        for (place, name, meant) in slips {
            self.faults.push(
                Fault::new("unknown_word", format!("`{name}` is nothing that a command fills in"))
                    .at(place, "would stay as it is")
                    .help(format!("did you mean `{meant}`?")),
            );
        }
    }

    fn kind(&self) -> Option<&'a str> {
        self.root.text_at(&["engine", "kind"])
    }

    fn engine(&mut self) {
        let Some(kind) = self.kind() else { return };
        let Some(place) = self.root.at(&["engine", "kind"]).map(|node| node.place) else { return };
        if kind == "command" {
            match self.root.at(&["engine", "command"]).map(|node| &node.value) {
                None => self.contradiction(
                    "`engine.kind` is `command`, and there is no `engine.command`",
                    place,
                    "needs a command",
                    "for example `engine: {kind: command, command: [my-server, --port, \"{port}\"]}`",
                ),
                Some(Value::List(words)) if words.is_empty() => self.contradiction(
                    "`engine.command` has no words",
                    place,
                    "needs a command",
                    "for example `command: [my-server, --port, \"{port}\"]`",
                ),
                Some(Value::List(words)) => self.placeholders(words),
                Some(_) => {}
            }
            for key in ENGINE_ONLY {
                if let Some(place) = self.key_place(&[key]) {
                    self.contradiction(
                        format!("`{key}` does not apply to a command"),
                        place,
                        "for engines that orch describes",
                        "write it into `engine.command` in the program's own words",
                    );
                }
            }
        } else {
            for key in ["command", "ready"] {
                if let Some(place) = self.key_place(&["engine", key]) {
                    self.contradiction(
                        format!("`engine.{key}` is for `kind: command`, and the kind is `{kind}`"),
                        place,
                        "not for this kind",
                        format!("remove it; orch knows how `{kind}` is started and when it is up"),
                    );
                }
            }
        }
        if let Some(place) = self.key_place(&["engine", "patches"])
            && self.root.at(&["engine", "install"]).is_none()
        {
            self.contradiction(
                "`engine.patches` without `engine.install`: only an environment that orch made is patched",
                place,
                "patches nothing",
                "add the engine's packages under `engine.install`; what others installed is never changed",
            );
        }
        if let (Some(place), Some(_)) =
            (self.key_place(&["engine", "patches"]), self.root.at(&["launch", "via", "docker"]))
        {
            self.contradiction(
                "`engine.patches` with `launch.via.docker`: an image is left as it is",
                place,
                "patches nothing",
                "build an image with the change, or start the server as a process",
            );
        }
        if kind != "sim" {
            for key in ["as", "scenario"] {
                if let Some(place) = self.key_place(&["engine", key]) {
                    self.contradiction(
                        format!("`engine.{key}` is for `kind: sim`, and the kind is `{kind}`"),
                        place,
                        "not for this kind",
                        "remove it, or write `kind: sim`",
                    );
                }
            }
        }
    }

    /// Words of one engine that a layer of another engine left behind.
    fn inherited(&mut self, lineage: &Lineage) {
        let Some(kind) = effective_kind(self.root) else { return };
        let mut found: Vec<(String, Place)> = Vec::new();
        let mut own = |path: &[&str]| {
            if let Some(place) = self.key_place(path) {
                found.push((path.join("."), place));
            }
        };
        own(&["memory", "fraction"]);
        own(&["attention_backend"]);
        own(&["args"]);
        for section in ["engine", "flags"] {
            let keys = self.root.get(section).and_then(Node::as_map).into_iter().flat_map(|map| map.entries.keys());
            for key in keys.filter(|key| section == "flags" || !matches!(key.as_str(), "kind" | "as" | "scenario")) {
                own(&[section, key]);
            }
        }
        let engine = self.root.at(&["engine", "kind"]).map(|node| node.place);
        for (path, place) in found {
            let Some(was) = lineage.kinds.get(&place.source).filter(|was| **was != kind) else { continue };
            let mut fault = Fault::new(
                "inherited_across_engines",
                format!("`{path}` was written for `{was}`, and the engine is `{kind}`"),
            )
            .at(place, format!("in the words of `{was}`"))
            .help(format!("set `{path}` again for `{kind}`, or drop it with `null`"));
            if let Some(engine) = engine {
                fault = fault.and(engine, "the engine is set here");
            }
            self.faults.push(fault);
        }
    }

    fn speculative(&mut self) {
        let Some(map) = self.root.get("speculative").and_then(Node::as_map) else { return };
        if let Some(method) = self.root.at(&["speculative", "method"])
            && let Some(word @ ("none" | "off" | "false" | "no")) = method.scalar().map(|scalar| scalar.text.as_str())
        {
            self.contradiction(
                format!("`speculative.method` is `{word}`, which is not a method"),
                method.place,
                "not a method",
                "leave `speculative` out, drop an inherited one with `speculative: null`, or write `steps: 0`",
            );
            return;
        }
        let is_off = self.root.text_at(&["speculative", "steps"]) == Some("0");
        if is_off || map.entries.contains_key("method") {
            return;
        }
        for key in ["draft_tokens", "steps", "topk", "model"] {
            if let Some(entry) = map.entries.get(key) {
                self.contradiction(
                    format!("`speculative.{key}` without `speculative.method`"),
                    entry.key,
                    "needs a method",
                    format!(
                        "for example `speculative: {{method: mtp, steps: 3}}`; methods: {}",
                        super::fields::METHODS.join(" ")
                    ),
                );
            }
        }
    }

    fn graphs(&mut self) {
        let Some(map) = self.root.get("graphs").and_then(Node::as_map) else { return };
        let is_off = self
            .root
            .text_at(&["graphs", "enabled"])
            .is_some_and(|text| matches!(text.to_lowercase().as_str(), "false" | "off" | "no"));
        for key in ["max_batch", "batches"] {
            if let Some(entry) = map.entries.get(key).filter(|_| is_off) {
                self.contradiction(
                    format!("`graphs.{key}` with `graphs.enabled: false`"),
                    entry.key,
                    "no graph is captured",
                    "remove one of the two",
                );
            }
        }
        let largest = match self.root.at(&["graphs", "batches"]).map(|node| &node.value) {
            Some(Value::List(items)) => items.iter().filter_map(count_of).max(),
            _ => None,
        };
        let cap = self.root.at(&["graphs", "max_batch"]).and_then(count_of);
        if let (Some(largest), Some(cap), Some(place)) = (largest, cap, self.key_place(&["graphs", "max_batch"]))
            && largest != cap
        {
            self.contradiction(
                format!("`graphs.max_batch` is {cap}, and the largest of `graphs.batches` is {largest}"),
                place,
                "does not fit `batches`",
                "one of the two is enough",
            );
        }
    }

    fn hosts(&mut self) {
        let hosts = match self.root.get("hosts").map(|node| &node.value) {
            Some(Value::List(items)) => Some(items.len() as u64),
            _ => None,
        };
        let nodes = self.root.at(&["parallel", "nodes"]).and_then(count_of);
        let Some(place) = self.key_place(&["hosts"]) else {
            if let (Some(nodes @ 2..), Some(place)) = (nodes, self.key_place(&["parallel", "nodes"])) {
                self.contradiction(
                    format!("`parallel.nodes` is {nodes}, and `hosts` does not name them"),
                    place,
                    "needs as many hosts",
                    "for example `hosts: [a, b]`, first the head",
                );
            }
            return;
        };
        if let Some(host) = self.key_place(&["host"]) {
            self.faults.push(
                Fault::new("contradiction", "`host` and `hosts` both say where it runs")
                    .at(host, "one host")
                    .and(place, "several")
                    .help("one host: `host`; with `parallel.nodes`: `hosts`"),
            );
        }
        match (hosts, nodes) {
            (Some(hosts), Some(nodes)) if hosts != nodes => self.contradiction(
                format!("`hosts` names {hosts}, and `parallel.nodes` is {nodes}"),
                place,
                "another number",
                "there is one host a node",
            ),
            (Some(hosts), None) if hosts != 1 => self.contradiction(
                format!("`hosts` names {hosts}, and `parallel.nodes` is not set"),
                place,
                "needs `parallel.nodes`",
                format!("write `parallel: {{nodes: {hosts}}}`, or name the one host in `host`"),
            ),
            _ => {}
        }
    }

    fn secrets(&mut self) {
        let Some(Value::List(items)) = self.root.get("secrets").map(|node| &node.value) else { return };
        let mut first: BTreeMap<&str, Place> = BTreeMap::new();
        for item in items {
            let Some(name) = item.scalar().map(|scalar| scalar.text.as_str()) else { continue };
            if let Some(before) = first.insert(name, item.place) {
                self.faults.push(
                    Fault::new("contradiction", format!("secret `{name}` is named twice"))
                        .at(item.place, "again here")
                        .and(before, "first here")
                        .help("keep one of the two"),
                );
            }
            if let Some(env) = self.key_place(&["env", name]) {
                self.faults.push(
                    Fault::new("contradiction", format!("`{name}` is a secret and stands in `env` too"))
                        .at(env, "stored and shown")
                        .and(item.place, "a secret")
                        .help("remove it from `env`: the server gets it from `secrets`"),
                );
            }
        }
    }

    fn tolerance(&mut self) {
        let Some(map) = self.root.get("tolerance").and_then(Node::as_map) else { return };
        for (key, entry) in &map.entries {
            if let Some((why, help)) = metrics::never_judged(key) {
                self.contradiction(format!("`tolerance.{key}`: {why}"), entry.key, "never compared", help);
            }
            if entry.node.as_map().is_some_and(|map| map.entries.is_empty()) {
                self.contradiction(
                    format!("`tolerance.{key}` says neither `relative` nor `absolute`"),
                    entry.key,
                    "tolerates nothing",
                    "for example `{relative: 10%, absolute: 20ms}`",
                );
            }
        }
    }

    /// A model inside a package needs that package, whichever variant is taken.
    fn package(&mut self) {
        let Some(node) = self.root.at(&["model", "path"]) else { return };
        let Some(rest) = node.scalar().and_then(|scalar| scalar.text.strip_prefix("package:")) else { return };
        let Some((name, file)) = rest.split_once('/').filter(|(name, file)| !name.is_empty() && !file.is_empty())
        else {
            self.contradiction(
                format!("`model.path` is `package:{rest}`, which names no file in a package"),
                node.place,
                "no file",
                "write `package:NAME/FILE`",
            );
            return;
        };
        if file.split('/').any(|part| part == "..") {
            self.contradiction(
                "`model.path` leads out of its package",
                node.place,
                "with `..`",
                "name a file inside it",
            );
        }
        let variants: Vec<&Node> = match self.root.at(&["engine", "install"]) {
            Some(Node { value: Value::List(items), .. }) => items.iter().collect(),
            Some(one) => vec![one],
            None => Vec::new(),
        };
        let holds = |variant: &&Node| match variant.get("packages").map(|node| &node.value) {
            Some(Value::List(packages)) => packages.iter().any(|package| package.text_at(&["name"]) == Some(name)),
            _ => false,
        };
        let without = variants.iter().position(|variant| !holds(variant));
        if variants.is_empty() || without.is_some() {
            let which = match without {
                Some(index) if variants.len() > 1 => format!("variant {} of `engine.install`", index + 1),
                _ => "`engine.install`".to_owned(),
            };
            self.contradiction(
                format!("the model is in package `{name}`, and {which} has none of that name"),
                node.place,
                "in no package that is installed",
                "each variant needs the package that the model is in",
            );
        }
    }
}

/// The engine whose words a profile speaks: what a simulated one pretends to be.
pub(crate) fn effective_kind(root: &Node) -> Option<String> {
    let kind = root.text_at(&["engine", "kind"])?;
    let pretends = root.text_at(&["engine", "as"]).filter(|_| kind == "sim");
    Some(pretends.unwrap_or(kind).to_owned())
}

fn count_of(node: &Node) -> Option<u64> {
    parse_count(&node.scalar()?.text).ok()
}
