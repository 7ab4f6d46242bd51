//! What is known of an engine, as `templates/<kind>/engine.yaml` says it.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Condition, LaunchTemplate, Requirement, Row, Version};
use crate::measure::counters::CounterRules;
use crate::profile::EngineKind;

/// An engine: what `engine.yaml` holds, its launch template, and what `common.yaml` adds to its log.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The facts.
    pub facts: EngineFacts,
    /// The shape of its command.
    pub template: LaunchTemplate,
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
    /// this must hold,
    pub need: Condition,
    /// or else this is said.
    pub say: String,
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

/// `log`: how a log is read. All strings are regular expressions that may match anywhere in a record, if not said
/// otherwise; their named groups are facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogRules {
    /// Finds the rank that a record is from; its first group is the number.
    pub rank: Option<String>,
    /// Finds the beginning of a record, also of a second one on the same line.
    pub record: Option<String>,
    /// Records that look like failures and are not.
    pub benign: Vec<String>,
    /// Records that come at intervals whatever happens: they make the log grow and prove nothing.
    pub heartbeat: Vec<String>,
    /// The phases of the start-up, in their order.
    pub phases: Vec<PhaseRule>,
    /// Progress bars.
    pub bars: Vec<BarRule>,
    /// What goes wrong, and what to do about it.
    pub failures: Vec<FailureRule>,
    /// Records that tell something.
    pub facts: Vec<String>,
    /// What is read while requests are served.
    #[serde(skip_serializing_if = "ServingRules::is_empty")]
    pub serving: ServingRules,
}

/// `log.serving`: what the log tells while requests are served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServingRules {
    /// Records that tell, at intervals, how the engine is.
    pub samples: Vec<SampleRule>,
    /// Records that tell of something that should not happen while it is measured.
    pub events: Vec<EventRule>,
    /// Records that tell how many drafted tokens were accepted. Named groups: `accepted` and `drafted` (tokens), `length`
    /// (tokens a verify step), `running` (how many requests the record is of).
    pub acceptance: Vec<String>,
}

impl ServingRules {
    /// Without a rule.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A record that tells how the engine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRule {
    /// What the record looks like.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Each is looked for by itself in such a record, since fields come and go between versions. The named groups are
    /// those of [`SAMPLE_FIELDS`].
    pub fields: Vec<String>,
}

/// A record that tells of something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRule {
    /// One of [`SERVING_EVENTS`].
    pub event: String,
    /// What the record looks like. A group `count` is how many it tells of; without one it is 1.
    #[serde(rename = "match")]
    pub pattern: String,
}

/// What a record of `log.serving.samples` may tell: requests that run, requests that wait, and whether the step ran in a
/// captured graph (`true` or `false`).
pub const SAMPLE_FIELDS: &[&str] = &["running_requests", "waiting_requests", "in_graph"];

/// What a record of `log.serving.events` may tell of: requests that the engine took back for want of memory, and
/// something that was compiled.
pub const SERVING_EVENTS: &[&str] = &["retracted", "compiled"];

/// A phase of the start-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseRule {
    /// Its name in the log vocabulary.
    pub phase: String,
    /// The record that begins it.
    #[serde(default)]
    pub begin: Option<String>,
    /// The record that ends it.
    #[serde(default)]
    pub end: Option<String>,
    /// `rank`: each rank has its own; `run`: one record is for all.
    #[serde(default)]
    pub scope: Option<String>,
    /// How long it may be silent before it looks stalled, as a duration.
    #[serde(default)]
    pub patience: Option<String>,
    /// What it is when a rank that has ended it goes through it once more in the same words, as for a draft model.
    #[serde(default)]
    pub again: Option<Again>,
}

/// The second time that a rank goes through a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// The phase that it is then.
    pub phase: String,
    /// What the facts of its records are called then; `null` leaves one aside.
    #[serde(default)]
    pub facts: BTreeMap<String, Option<String>>,
}

/// A progress bar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BarRule {
    /// What it looks like. Groups `done` and `total` are read if there are such, else `n/m` or `p%`.
    #[serde(rename = "match")]
    pub pattern: String,
    /// What it counts.
    pub unit: String,
    /// The phase it belongs to.
    pub phase: String,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureRule {
    /// Its kind in the log vocabulary.
    pub kind: String,
    /// What its record looks like.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Only in this phase, if one is named.
    #[serde(default)]
    pub phase: Option<String>,
    /// Whether the record only reports another one's failure.
    #[serde(default)]
    pub wraps: bool,
    /// Whether trying again can help: `never`, `maybe`, `later`.
    #[serde(default)]
    pub retry: Option<String>,
    /// What to do about it. `{name}` stands for the fact or the setting of that name.
    #[serde(default)]
    pub remedy: Option<String>,
    /// The engine versions that it was seen in.
    #[serde(default)]
    pub seen: Vec<String>,
}

/// `templates/common.yaml`: what is common to the logs of all engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Common {
    /// As in an engine's log, read after its own.
    pub benign: Vec<String>,
    /// As in an engine's log, read after its own.
    pub failures: Vec<FailureRule>,
}

/// The phases that a log section may name, in the order in which they come.
pub const PHASES: &[&str] = &[
    "launch",
    "config",
    "dist_init",
    "weights",
    "kv_pool",
    "compile",
    "graph_capture",
    "draft_weights",
    "draft_capture",
    "http_up",
    "warmup",
    "serving",
];

impl EngineFacts {
    /// Adds what is common to all engines after the engine's own.
    pub(super) fn with_common(mut self, common: Common) -> Self {
        self.log.benign.extend(common.benign);
        self.log.failures.extend(common.failures);
        self
    }

    /// The first verified version that a requirement allows.
    pub fn preferred(&self, requirement: Option<&Requirement>) -> Option<&Version> {
        self.verified.iter().find(|version| requirement.is_none_or(|requirement| requirement.allows(version)))
    }

    /// The neutral key that a flag stands for, or `None` with whether it is owned all the same.
    pub fn owner(&self, flag: &str) -> Option<Owner<'_>> {
        let spelled = self.settings.iter().find(|(_, row)| {
            row.spellings.iter().any(|spelling| {
                spelling.flag.iter().chain(&spelling.aliases).any(|known| known == flag)
                    || [&spelling.on, &spelling.off]
                        .into_iter()
                        .flatten()
                        .any(|words| words.first().is_some_and(|word| word == flag))
            })
        });
        match spelled {
            Some((key, _)) => Some(Owner::Setting(key)),
            None if self.flags.owned.iter().any(|owned| owned == flag) => Some(Owner::Orch),
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
