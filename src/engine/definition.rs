//! What is known of an engine, as `templates/<kind>/engine.yaml` says it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Common, Condition, FlagLists, LaunchTemplate, LogRules, Requirement, Row, Version};
use crate::measure::counters::CounterRules;
use crate::profile::EngineKind;

/// An engine: what `engine.yaml` holds, its launch template, and what `common.yaml` adds to its log.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The facts.
    pub facts: EngineFacts,
    /// The shape of its command.
    pub template: LaunchTemplate,
    /// The flags of the versions whose lists are kept.
    pub flag_lists: FlagLists,
}

impl std::ops::Deref for Definition {
    type Target = EngineFacts;

    fn deref(&self) -> &EngineFacts {
        &self.facts
    }
}

/// `engine.yaml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineFacts {
    /// Its kind, the folder's name.
    pub kind: EngineKind,
    /// The program, looked for in the environment and on the `PATH`.
    #[serde(default)]
    pub executable: Option<String>,
    /// Versions that the definition was held against, the preferred first. Others are launched with a warning.
    #[serde(default)]
    pub verified: Vec<Version>,
    /// How to ask the program for its version.
    #[serde(default)]
    pub version: Option<VersionProbe>,
    /// What a model's path is.
    #[serde(default)]
    pub model: ModelIs,
    /// The address that the server is told to listen on, here and on remote hosts.
    #[serde(default = "loopback")]
    pub bind: String,
    /// Its command line.
    #[serde(default)]
    pub flags: FlagRules,
    /// Neutral key to spelling, in the order of the command.
    #[serde(default)]
    pub settings: IndexMap<String, Row>,
    /// Words that orch adds unless the profile says otherwise.
    #[serde(default)]
    pub defaults: Vec<DefaultWords>,
    /// What must hold between settings.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// What is worth a warning.
    #[serde(default)]
    pub warnings: Vec<Trap>,
    /// Environment of the server, below the profile's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables that change what is measured, and are easily left behind in the environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stray: Vec<Stray>,
    /// Its HTTP paths.
    #[serde(default)]
    pub endpoints: Endpoints,
    /// What is sent with requests, in its own words.
    #[serde(default)]
    pub requests: RequestWords,
    /// Neutral counter to its series at [`Endpoints::metrics`].
    #[serde(default, skip_serializing_if = "CounterRules::is_empty")]
    pub counters: CounterRules,
    /// Where the running server says what it took for a setting.
    #[serde(default)]
    pub readback: BTreeMap<String, Places>,
    /// How it is stopped.
    #[serde(default)]
    pub stop: StopFacts,
    /// How its log is read.
    #[serde(default)]
    pub log: LogRules,
}

fn loopback() -> String {
    "127.0.0.1".to_owned()
}

/// `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionProbe {
    /// Words after the program.
    pub probe: Vec<String>,
    /// A regular expression whose group `version` is the version.
    pub pattern: String,
    /// What is put before that group: `b` for `version: 10434 (…)`.
    #[serde(default)]
    pub prefix: String,
}

/// What a model's path is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelIs {
    /// A hub name or a path: one that is clearly a path must be there.
    #[default]
    HubOrPath,
    /// A file, which must be there.
    File,
    /// The engine's own affair.
    Anything,
}

/// `flags`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlagRules {
    /// Words after the program that make it name its flags.
    pub help: Vec<String>,
    /// Flags that a profile may not give, beside those that [`EngineFacts::settings`] spells.
    pub owned: Vec<String>,
    /// Flags whose list follows them once: `--bs 1 2 4`. Others are repeated.
    pub follow: Vec<String>,
    /// Whether the parser takes an unambiguous beginning of a name for the whole. Such a word is refused: the next
    /// version may have a second flag that begins so.
    pub abbreviations: bool,
    /// Whether `_` and `-` are alike in a name.
    pub underscores: bool,
    /// Whether `--name.key` sets a key of the JSON that `--name` takes.
    pub dotted: bool,
    /// New names of flags that are gone.
    pub renamed: BTreeMap<String, String>,
}

/// Words that orch adds unless the profile gives the flag itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultWords {
    /// The flag.
    pub flag: String,
    /// Other names of it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Its value.
    #[serde(default)]
    pub value: Option<String>,
    /// Why.
    pub why: String,
}

/// A constraint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// When this holds,
    pub when: Condition,
    /// this must hold (absent: `when` must not hold),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need: Option<Condition>,
    /// or else this is said.
    pub say: String,
    /// What to do about it, where that is not said already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// Only in these versions.
    #[serde(default, with = "requirement", skip_serializing_if = "Option::is_none")]
    pub versions: Option<Requirement>,
}

/// Something that is allowed and seldom meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trap {
    /// Its stable id.
    pub id: String,
    /// When it is one.
    pub when: Condition,
    /// What is said.
    pub say: String,
    /// Only in these versions.
    #[serde(default, with = "requirement", skip_serializing_if = "Option::is_none")]
    pub versions: Option<Requirement>,
}

/// A variable of the environment that changes what is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stray {
    /// Its name, or how its name begins: `LLAMA_ARG_*`.
    pub env: String,
    /// What it does.
    pub say: String,
    /// Whether it is told of when the profile sets it itself, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub always: bool,
}

impl Stray {
    /// Whether a variable is meant.
    pub fn is(&self, name: &str) -> bool {
        match self.env.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == self.env,
        }
    }
}

mod requirement {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Requirement;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Requirement>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse()).transpose().map_err(serde::de::Error::custom)
    }

    pub(super) fn serialize<S: Serializer>(value: &Option<Requirement>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }
}

/// HTTP paths; absent where the engine has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Endpoints {
    pub health: Option<String>,
    pub models: Option<String>,
    pub metrics: Option<String>,
    pub info: Option<String>,
    pub chat: String,
    pub completions: String,
    /// Empties the prefix cache.
    pub flush: Option<String>,
    /// Counts the tokens of a text.
    pub tokenize: Option<String>,
}

impl Default for Endpoints {
    fn default() -> Self {
        Endpoints {
            health: None,
            models: Some("/v1/models".to_owned()),
            metrics: None,
            info: None,
            chat: "/v1/chat/completions".to_owned(),
            completions: "/v1/completions".to_owned(),
            flush: None,
            tokenize: None,
        }
    }
}

/// Keys of the request body for what a workload wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestWords {
    /// Makes the engine leave its prefix cache aside. Empty: it cannot, request by request.
    pub cold_prefix: serde_json::Map<String, Value>,
}

/// Where a value stands: one place or several, of which the first that has it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OnePlaceOrMore", into = "Vec<Readback>")]
pub struct Places(pub Vec<Readback>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OnePlaceOrMore {
    More(Vec<Readback>),
    One(Readback),
}

impl From<OnePlaceOrMore> for Places {
    fn from(places: OnePlaceOrMore) -> Self {
        match places {
            OnePlaceOrMore::More(places) => Places(places),
            OnePlaceOrMore::One(place) => Places(vec![place]),
        }
    }
}

impl From<Places> for Vec<Readback> {
    fn from(places: Places) -> Self {
        places.0
    }
}

/// Where a value stands in what the server says of itself: on a page (`path` with `pointer`, `present` or `pattern`), or
/// in its log (`fact`, `log`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Readback {
    /// The HTTP path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// JSON pointer into the answer, to the value itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// JSON pointer into the answer: the value is whether something other than `null`, `false` and `""` stands there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<String>,
    /// A regular expression on the text of the answer. Its group `value` is the value; with a group `times` it is the
    /// product of the two. Without a group the value is whether it is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// A fact that the log of the start-up told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fact: Option<String>,
    /// As `pattern`, on each line of the log up to readiness; the first that fits counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// With `pattern`: how many different values its group `value` finds.
    #[serde(skip_serializing_if = "is_false")]
    pub count: bool,
    /// The value is for one of so many, by this setting of the profile, else by what the server says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// The value counts tokens, of which a request takes one and as many more as this setting says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafts: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Readback {
    /// What is wrong with it, if anything.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let on_page = [&self.pointer, &self.present, &self.pattern].into_iter().flatten().count();
        let in_log = [&self.fact, &self.log].into_iter().flatten().count();
        match (&self.path, on_page, in_log) {
            (Some(_), 1, 0) | (None, 0, 1) => None,
            (Some(_), _, 0) => Some("a `path` needs one of `pointer`, `present` and `pattern`"),
            _ => Some("one of `path`, `fact` and `log`"),
        }
    }
}

/// `stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StopFacts {
    /// The first signal, by name without `SIG`.
    pub signal: String,
    /// How long it has before it is killed, as a duration.
    pub patience: String,
}

impl Default for StopFacts {
    fn default() -> Self {
        StopFacts { signal: "TERM".to_owned(), patience: "60s".to_owned() }
    }
}

impl EngineFacts {
    /// Adds what is common to all engines after the engine's own.
    pub(super) fn with_common(mut self, common: Common) -> Self {
        self.log.benign.extend(common.benign);
        self.log.failures.extend(common.failures);
        self.log.facts.extend(common.facts);
        for (kind, rule) in common.kinds {
            self.log.kinds.entry(kind).or_insert(rule);
        }
        self
    }

    /// The first verified version that a requirement allows.
    pub fn preferred(&self, requirement: Option<&Requirement>) -> Option<&Version> {
        self.verified.iter().find(|version| requirement.is_none_or(|requirement| requirement.allows(version)))
    }

    /// A flag's name as the parser reads it: without what may be written in several ways.
    pub fn read_name<'f>(&self, flag: &'f str) -> Cow<'f, str> {
        let long = flag.starts_with("--");
        let name = match flag.split_once('.') {
            Some((name, _)) if long && self.flags.dotted => name,
            _ => flag,
        };
        if long && self.flags.underscores && name.contains('_') { name.replace('_', "-").into() } else { name.into() }
    }

    /// Who gives a flag, if not the profile's `flags`: by any of its names.
    pub fn owner(&self, flag: &str) -> Option<Owner<'_>> {
        let name = self.read_name(flag);
        self.owner_of(&|known| known == name)
    }

    /// Who gives a flag that this word is the beginning of, where the parser takes that for the whole.
    pub fn owner_of_abbreviation(&self, flag: &str) -> Option<Owner<'_>> {
        let name = self.read_name(flag);
        let may_be = self.flags.abbreviations && name.starts_with("--") && name.len() > 2;
        self.owner_of(&|known| known.starts_with(&*name)).filter(|_| may_be)
    }

    fn owner_of(&self, is: &dyn Fn(&str) -> bool) -> Option<Owner<'_>> {
        let names = |row: &Row| row.spellings.iter().flat_map(|spelling| spelling.names()).any(|known| is(known));
        match self.settings.iter().find(|(_, row)| names(row)) {
            Some((key, _)) => Some(Owner::Setting(key)),
            None if self.flags.owned.iter().any(|owned| is(owned)) => Some(Owner::Orch),
            None => None,
        }
    }
}

/// Who gives a flag, if not the profile's `flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'d> {
    /// A setting of the profile.
    Setting(&'d str),
    /// orch itself.
    Orch,
}
