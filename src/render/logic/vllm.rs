//! vLLM: speculation as one JSON, graphs in tokens, and its ranks on several nodes.

use serde_json::{Map, Value};

use super::{At, Fault, Logic, Settings, count, meet, uneven};
use crate::profile::Flag;

pub(super) struct Vllm;

/// `flags: {speculative-config.KEY: …}` joins the JSON that is written from `speculative`.
const OF_CONFIG: &str = "speculative-config.";
/// What the neutral settings say in it.
const SAID: &[(&str, &str)] = &[
    ("method", "speculative.method"),
    ("model", "speculative.model"),
    ("num_speculative_tokens", "speculative.steps"),
];

impl Logic for Vllm {
    fn derive(&self, at: &At<'_>, settings: &mut Settings) -> Vec<Fault> {
        let mut faults = speculative_config(at, settings);
        graphs(settings);
        if at.seat.of > 1 {
            faults.extend(ranks(at, settings));
        } else {
            settings.shift_remove("parallel.nodes");
        }
        faults
    }

    fn takes(&self, flag: &str) -> bool {
        key_of_config(flag).is_some()
    }
}

fn key_of_config(flag: &str) -> Option<String> {
    let flag = flag.trim_start_matches('-').replacen("speculative_config.", OF_CONFIG, 1);
    flag.strip_prefix(OF_CONFIG).filter(|key| !key.is_empty()).map(str::to_owned)
}

/// All of `speculative` is one JSON; keys that only this engine has come from `flags`.
fn speculative_config(at: &At<'_>, settings: &mut Settings) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut config = Map::new();
    if let Some(method) = at.word("speculative.method", settings) {
        config.insert("method".to_owned(), method.into());
        for (key, setting) in &SAID[1..] {
            if let Some(value) = settings.get(*setting) {
                config.insert((*key).to_owned(), value.clone());
            }
        }
    }
    for (flag, value) in &at.profile.flags {
        let Some(key) = key_of_config(flag) else { continue };
        let fault = |text: String| Fault::new("owned_flag", format!("flags.{flag}"), text);
        if let Some((_, setting)) = SAID.iter().find(|(said, _)| *said == key) {
            faults.push(
                fault(format!("`{key}` of `--speculative-config` is given by orch itself"))
                    .help(format!("set `{setting}` instead")),
            );
        } else if config.is_empty() {
            faults.push(
                fault(format!("`{key}` is for speculation, and `speculative` is not set"))
                    .help("set `speculative: {method: …, steps: …}`, or take it out"),
            );
        } else {
            config.insert(key, value_of(value));
        }
    }
    if !config.is_empty() {
        settings.insert("derived.speculative_config".to_owned(), Value::Object(config).to_string().into());
    }
    faults
}

/// A number, a list or an object where it reads as one, else the text.
fn value_of(flag: &Flag) -> Value {
    match flag {
        Flag::Switch(on) => (*on).into(),
        Flag::Value(text) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
        Flag::List(texts) => {
            texts.iter().map(|text| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.clone()))).collect()
        }
    }
}

/// Its graphs are captured for numbers of tokens, of which a request takes one and its drafts.
fn graphs(settings: &mut Settings) {
    let tokens = count(settings, "speculative.steps").unwrap_or(0) + 1;
    if let Some(largest) = count(settings, "graphs.max_batch") {
        settings.insert("derived.graph_tokens".to_owned(), (largest * tokens).into());
    }
    if let Some(Value::Array(batches)) = settings.get("graphs.batches") {
        let sizes: Vec<u64> = batches.iter().filter_map(Value::as_u64).map(|batch| batch * tokens).collect();
        settings.insert("derived.graph_sizes".to_owned(), sizes.into());
    }
}

/// Nodes share one copy of the model and find each other by its head, or each has whole copies and asks the head for
/// requests. Only the head answers.
fn ranks(at: &At<'_>, settings: &mut Settings) -> Vec<Fault> {
    let nodes = at.seat.of as u64;
    let size = |key: &str| count(settings, key).unwrap_or(1);
    let (shared, data) = (size("parallel.tensor") * size("parallel.pipeline"), size("parallel.data"));
    if at.seat.rank > 0 {
        settings.insert("derived.headless".to_owned(), true.into());
    }
    meet(at, settings);
    if data == 1 {
        return if shared % nodes == 0 { Vec::new() } else { vec![uneven("ranks", "parallel.tensor", shared, nodes)] };
    }
    settings.shift_remove("parallel.nodes");
    if data % nodes != 0 {
        return vec![uneven("copies of the model", "parallel.data", data, nodes)];
    }
    let here = data / nodes;
    settings.insert("derived.data_local".to_owned(), here.into());
    if at.seat.rank > 0 {
        settings.insert("derived.data_first".to_owned(), (here * at.seat.rank as u64).into());
    }
    Vec::new()
}
