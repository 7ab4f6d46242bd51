//! How an engine spells the settings that all engines share, by version.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Condition, Version};
use crate::profile::{Flag, Profile};

/// The neutral settings: the profile's keys that an engine's definition spells. In the profile's order.
pub const KEYS: &[&str] = &[
    "model.path",
    "model.revision",
    "model.served_name",
    "model.tokenizer",
    "model.dtype",
    "model.quantization",
    "model.load_format",
    "host",
    "port",
    "parallel.tensor",
    "parallel.pipeline",
    "parallel.data",
    "parallel.expert",
    "parallel.nodes",
    "speculative.method",
    "speculative.steps",
    "speculative.topk",
    "speculative.draft_tokens",
    "speculative.model",
    "memory.fraction",
    "memory.kv_dtype",
    "memory.gpu_layers",
    "context_length",
    "max_running_requests",
    "graphs.enabled",
    "graphs.max_batch",
    "graphs.batches",
    "attention_backend",
    "instrument",
];

/// Settings that an engine's own logic works out of the neutral ones, so that a definition can spell them.
pub const DERIVED: &[(&str, &str)] = &[
    (
        "derived.pool_tokens",
        "context for all requests together: `context_length` times the number of slots (llama.cpp)",
    ),
    ("derived.speculative_config", "everything under `speculative` as one JSON (vLLM)"),
    ("derived.graph_tokens", "`graphs.max_batch` in tokens: a request takes one and its drafts (vLLM)"),
    ("derived.graph_sizes", "`graphs.batches` in tokens (vLLM)"),
    ("derived.tensor_split", "an equal share for each GPU: `1,1` (llama.cpp)"),
    ("derived.node_rank", "which node this is, from 0; set where there are several"),
    ("derived.head", "`host:port` at which the nodes find each other"),
    ("derived.head_address", "the host of it"),
    ("derived.head_port", "the port of it"),
    ("derived.headless", "true on a node that answers no requests"),
    ("derived.data_local", "copies of the model on this node (vLLM)"),
    ("derived.data_first", "the first copy of the model that is on this node, from 0 (vLLM)"),
    ("derived.scenario", "the scenario with what the profile asks for, as one JSON (the simulated engine)"),
];

/// The key of a profile that a setting follows from: its own, unless it is derived.
pub fn origin(key: &str) -> &str {
    match key {
        "derived.pool_tokens" => "context_length",
        "derived.speculative_config" => "speculative.method",
        "derived.graph_tokens" => "graphs.max_batch",
        "derived.graph_sizes" => "graphs.batches",
        "derived.tensor_split" => "parallel.tensor",
        "derived.scenario" => "engine.scenario",
        key if key.starts_with("derived.") => "parallel.nodes",
        key => key,
    }
}

/// Whether a word of a condition names what a profile gives in the engine's own words.
pub fn is_own_word(word: &str) -> bool {
    word.strip_prefix("flags.").or_else(|| word.strip_prefix("env.")).is_some_and(|name| !name.is_empty())
}

/// What a profile gives in the engine's own words, for conditions: `flags.NAME` and `env.NAME`.
pub fn own_words(profile: &Profile) -> IndexMap<String, Value> {
    let scalar = |text: &String| match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Value::from(number),
        _ => Value::from(text.clone()),
    };
    let flag = |value: &Flag| match value {
        Flag::Switch(on) => Value::from(*on),
        Flag::Value(text) => scalar(text),
        Flag::List(texts) => texts.iter().map(scalar).collect(),
    };
    let flags = profile.flags.iter().map(|(name, value)| (format!("flags.{name}"), flag(value)));
    let env = profile.env.iter().map(|(name, value)| (format!("env.{name}"), scalar(value)));
    flags.chain(env).collect()
}

/// Whether a word is a setting's key.
pub fn is_key(word: &str) -> bool {
    KEYS.contains(&word) || DERIVED.iter().any(|(key, _)| *key == word)
}

/// What a profile sets, by neutral key; what it leaves open is not there.
///
/// `host`, `port` and the resolved `model.path` are facts of the place and are put in by the renderer.
pub fn of(profile: &Profile) -> IndexMap<String, Value> {
    let Profile { model, parallel, speculative, memory, graphs, .. } = profile;
    let mut settings = IndexMap::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            settings.insert(key.to_owned(), value);
        }
    };
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let number = |number: Option<u32>| number.map(Value::from);
    set("model.path", Some(Value::from(model.path.clone())));
    set("model.revision", text(&model.revision));
    set("model.served_name", Some(Value::from(served_name(profile))));
    set("model.tokenizer", text(&model.tokenizer));
    set("model.dtype", text(&model.dtype));
    set("model.quantization", text(&model.quantization));
    set("model.load_format", text(&model.load_format));
    set("parallel.tensor", number(parallel.tensor));
    set("parallel.pipeline", number(parallel.pipeline));
    set("parallel.data", number(parallel.data));
    set("parallel.expert", number(parallel.expert));
    set("parallel.nodes", number(parallel.nodes));
    // No step drafted is no speculation: `steps: 0` is how a sweep writes its control.
    if let Some(speculative) = speculative.as_ref().filter(|speculative| speculative.steps != Some(0)) {
        set("speculative.method", Some(Value::from(speculative.method.clone())));
        set("speculative.steps", number(speculative.steps));
        set("speculative.topk", number(speculative.topk));
        set("speculative.draft_tokens", number(speculative.draft_tokens));
        set("speculative.model", text(&speculative.model));
    }
    set("memory.fraction", memory.fraction.map(Value::from));
    set("memory.kv_dtype", text(&memory.kv_dtype));
    set("memory.gpu_layers", number(memory.gpu_layers));
    set("context_length", profile.context_length.map(Value::from));
    set("max_running_requests", profile.max_running_requests.map(Value::from));
    set("graphs.enabled", graphs.enabled.map(Value::from));
    set("graphs.max_batch", number(graphs.max_batch));
    set("graphs.batches", graphs.batches.clone().map(Value::from));
    set("attention_backend", text(&profile.attention_backend));
    set("instrument", Some(Value::from(profile.instrument)));
    settings
}

/// The name that requests use: the profile's, else the last part of the model's path without `.gguf`.
pub fn served_name(profile: &Profile) -> String {
    if let Some(name) = &profile.model.served_name {
        return name.clone();
    }
    last_part(&profile.model.path).to_owned()
}

/// The last part of a model's path, without `.gguf`.
pub fn last_part(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    let last = path.rsplit('/').next().unwrap_or(path);
    last.strip_suffix(".gguf").unwrap_or(last)
}

/// A setting's row in `engine.yaml`: one spelling, or several by version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Row {
    /// From the oldest to the newest.
    #[serde(deserialize_with = "one_or_many")]
    pub spellings: Vec<Spelling>,
}

/// How a setting is written by some versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spelling {
    /// The first version that has it; absent is from the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Version>,
    /// The last version that has it; absent is until now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Version>,
    /// Only under this condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// The flags that carry the value, each of them.
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub flag: Vec<String>,
    /// Other names of the same flags: as good as owned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The environment variable that carries the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The engine's word for a neutral one; with this, other words are refused.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub values: IndexMap<String, String>,
    /// For a setting that is on or off: the words that say `true`. Absent: the bare flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<Vec<String>>,
    /// The words that say `false`. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub off: Option<Vec<String>>,
    /// These words whatever the value, for an engine that has a switch where others have a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<String>>,
    /// The setting is needed by rules or other rows and has no word of its own. With `values`, other words are refused
    /// all the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct OneOrMany<T>(std::marker::PhantomData<T>);
    // Not an untagged enum: that would lose the place and the words of a fault inside.
    impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for OneOrMany<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("one or a list of them")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            T::deserialize(serde::de::value::StrDeserializer::new(text)).map(|one| vec![one])
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Vec<T>, A::Error> {
            T::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(|one| vec![one])
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(one) = list.next_element()? {
                all.push(one);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(OneOrMany(std::marker::PhantomData))
}

/// Which spelling holds for a version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice<'r> {
    /// This one.
    Known(&'r Spelling),
    /// The version lies between two known spellings: the later one is taken.
    Between(&'r Spelling),
    /// Some versions have the setting and this one does not.
    Gone,
    /// The conditions of all its spellings are unmet.
    NotHere,
}

impl Row {
    /// The spelling for a version under these settings.
    pub fn choose(&self, version: &Version, settings: &IndexMap<String, Value>) -> Choice<'_> {
        let mut applicable = self
            .spellings
            .iter()
            .filter(|spelling| spelling.when.as_ref().is_none_or(|when| when.holds(settings)))
            .peekable();
        if applicable.peek().is_none() {
            return Choice::NotHere;
        }
        let mut older_ended = false;
        for spelling in applicable {
            let too_new = spelling.from.as_ref().is_some_and(|from| version.is_before(from));
            let too_old = spelling.until.as_ref().is_some_and(|until| until.is_before(version));
            match (too_new, too_old) {
                (false, false) => return Choice::Known(spelling),
                (true, _) if older_ended => return Choice::Between(spelling),
                (true, _) => return Choice::Gone,
                (false, true) => older_ended = true,
            }
        }
        Choice::Gone
    }
}

/// What became of a setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelled {
    /// Its words on the command line.
    pub words: Vec<String>,
    /// Its environment.
    pub env: Option<(String, String)>,
}

/// A value that a spelling has no word for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unspellable {
    /// The words that it has.
    pub known: Vec<String>,
}

impl Spelling {
    /// All names of the flags that it writes.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let switches = [&self.on, &self.off, &self.words].into_iter().flatten().flatten();
        self.flag.iter().chain(&self.aliases).chain(switches.filter(|word| word.starts_with('-')))
    }

    /// The words for a value.
    pub fn spell(&self, value: &Value) -> Result<Spelled, Unspellable> {
        if self.silent {
            self.word(plain(value))?;
            return Ok(Spelled::default());
        }
        if let Some(words) = &self.words {
            return Ok(Spelled { words: words.clone(), env: None });
        }
        let words = match value {
            Value::Bool(true) => self.on.clone().unwrap_or_else(|| self.flag.clone()),
            Value::Bool(false) => self.off.clone().unwrap_or_default(),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(plain).collect();
                self.flag.iter().flat_map(|flag| std::iter::once(flag.clone()).chain(items.clone())).collect()
            }
            value => {
                let word = self.word(plain(value))?;
                self.flag.iter().flat_map(|flag| [flag.clone(), word.clone()]).collect()
            }
        };
        let env = match &self.env {
            Some(name) => Some((name.clone(), self.word(plain(value))?)),
            None => None,
        };
        Ok(Spelled { words, env })
    }

    /// The engine's word for a neutral one.
    pub fn word(&self, neutral: String) -> Result<String, Unspellable> {
        if self.values.is_empty() {
            return Ok(neutral);
        }
        self.values.get(&neutral).cloned().ok_or_else(|| Unspellable { known: self.values.keys().cloned().collect() })
    }
}

/// A scalar as a word.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(yaml: &str) -> Row {
        serde_yaml::from_str(yaml).unwrap()
    }

    fn choose(row: &Row, version: &str) -> String {
        let text = |spelling: &Spelling| spelling.flag.join(" ");
        match row.choose(&version.into(), &IndexMap::new()) {
            Choice::Known(spelling) => text(spelling),
            Choice::Between(spelling) => format!("between, {}", text(spelling)),
            Choice::Gone => "gone".into(),
            Choice::NotHere => "not here".into(),
        }
    }

    #[test]
    fn the_spelling_follows_the_version() {
        let row = row(
            r#"[{until: "0.5.12", flag: --cuda-graph-max-bs}, {from: "0.5.14", flag: --cuda-graph-max-bs-decode}]"#,
        );
        assert_eq!(choose(&row, "0.5.9"), "--cuda-graph-max-bs");
        assert_eq!(choose(&row, "0.5.12"), "--cuda-graph-max-bs");
        assert_eq!(choose(&row, "0.5.13"), "between, --cuda-graph-max-bs-decode");
        assert_eq!(choose(&row, "0.5.14"), "--cuda-graph-max-bs-decode");
    }

    #[test]
    fn a_setting_that_came_later_or_went_away_is_gone() {
        assert_eq!(choose(&row(r#"{from: "0.5.14", flag: --x}"#), "0.5.13"), "gone");
        assert_eq!(choose(&row(r#"{until: "0.5.14", flag: --x}"#), "0.5.15"), "gone");
        assert_eq!(choose(&row(r#"{when: speculative.steps > 0, flag: --x}"#), "0.5.15"), "not here");
    }

    #[test]
    fn values_become_words() {
        let spell = |yaml: &str, value: Value| row(yaml).spellings[0].spell(&value);
        let words = |yaml: &str, value: Value| spell(yaml, value).unwrap().words.join(" ");
        assert_eq!(words("{flag: [--type-k, --type-v]}", "q8_0".into()), "--type-k q8_0 --type-v q8_0");
        assert_eq!(words("{flag: --fraction}", 0.88.into()), "--fraction 0.88");
        assert_eq!(words("{flag: --bs}", vec![1, 2, 4].into()), "--bs 1 2 4");
        assert_eq!(words("{flag: --eager, off: [--no-eager]}", true.into()), "--eager");
        assert_eq!(words("{flag: --eager, off: [--no-eager]}", false.into()), "--no-eager");
        assert_eq!(words("{on: [], off: [--enforce-eager]}", true.into()), "");
        assert_eq!(words("{flag: --spec, values: {draft: draft-simple}}", "draft".into()), "--spec draft-simple");
        assert_eq!(words("{words: [--enable-it]}", 8.into()), "--enable-it");
        assert!(spell("{silent: true, values: {a: b}}", "x".into()).is_err());
        assert_eq!(words("{silent: true, values: {a: b}}", "a".into()), "");
        let unknown = spell("{flag: --spec, values: {draft: draft-simple}}", "mtp".into());
        assert_eq!(unknown, Err(Unspellable { known: vec!["draft".into()] }));
        let env = spell("{env: LAYERS}", 3.into()).unwrap();
        assert_eq!(env, Spelled { words: vec![], env: Some(("LAYERS".into(), "3".into())) });
    }

    #[test]
    fn an_unknown_key_of_a_spelling_is_refused() {
        let error = serde_yaml::from_str::<Row>("[{flag: --x}, {flg: --y}]").unwrap_err().to_string();
        assert!(error.contains("flg"), "{error}");
    }
}
