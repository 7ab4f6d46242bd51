//! The `log` section of an `engine.yaml`: how an engine's log is read. What reads it is `gate::log`.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// `log`: how a log is read. All strings are regular expressions that may match anywhere in a record, if not said
/// otherwise; their named groups are facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogRules {
    /// Finds the rank that a record is from; its first group is the number.
    pub rank: Option<String>,
    /// Finds the processes that do the work of a rank, by the titles that the engine gives them; its first group, if it
    /// has one, is the rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
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
    /// Records that tell something. A group `KEY_2` is added to `KEY`, and one `KEY_milli` counts thousandths.
    pub facts: Vec<String>,
    /// Facts of which the first value counts and not the last.
    pub first: Vec<String>,
    /// Words by which a log is known to be this engine's.
    pub signs: Vec<String>,
    /// Finds the engine's version in its log; group `version`.
    pub version: Option<String>,
    /// Records that tell that what failed right before is tried in another way.
    pub recovers: Vec<String>,
    /// Records that are harmless unless a later failure names what they are about.
    pub suspects: Vec<SuspectRule>,
    /// What is said of each kind of failure where no rule says more.
    pub kinds: IndexMap<String, KindRule>,
    /// What is read while requests are served.
    #[serde(skip_serializing_if = "ServingRules::is_empty")]
    pub serving: ServingRules,
}

/// A record that is harmless unless a later failure names what it is about, such as a module that could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuspectRule {
    /// What it looks like; group `name` is what it is about.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The failure that may be its consequence; group `name` is what that names.
    pub of: String,
    /// The kind that the failure has if the suspect is its cause.
    pub kind: String,
    /// What to do about it.
    #[serde(default)]
    pub remedy: Option<String>,
}

/// What is said of a kind of failure. `{name}` stands for a fact or a setting; what stands in `[…]` is left out when a
/// name in it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KindRule {
    /// Why it failed, as a sentence.
    pub why: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Whether trying again can help: `never`, `maybe`, `later`, `elsewhere`.
    pub retry: Option<String>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// A function in a traceback that proves it.
    #[serde(default)]
    pub frames: Option<String>,
    /// Whether it also comes inside a later phase, as kernels are compiled while graphs are captured.
    #[serde(default)]
    pub nested: bool,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BarRule {
    /// What it looks like. Groups `done` and `total` are read if there are such, else `n/m` or `p%`.
    #[serde(rename = "match")]
    pub pattern: String,
    /// What it counts.
    pub unit: String,
    /// The phase it belongs to.
    pub phase: String,
    /// Whether it counts only while that phase goes on, since its words could be anybody's.
    #[serde(default)]
    pub within: bool,
}

/// Something that goes wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Only when the phase that is named is over and no other has begun.
    #[serde(default)]
    pub over: bool,
    /// Only until the server serves: afterwards such a record is of a request, such as a picture that cannot be fetched.
    #[serde(default)]
    pub starts: bool,
    /// Whether the record only reports another one's failure. A traceback that it opens has its kind, if no other.
    #[serde(default)]
    pub wraps: bool,
    /// Whether it is often a consequence: it is the cause only where nothing else is. With `wraps`: that it is no word of
    /// the engine that it failed.
    #[serde(default)]
    pub yields: bool,
    /// Whether the server goes on without what failed.
    #[serde(default)]
    pub degrades: bool,
    /// Whether it says of which kind the failure right before it is.
    #[serde(default)]
    pub names: bool,
    /// The phase that the record proves, where the log says none.
    #[serde(default)]
    pub at: Option<String>,
    /// Only at the end of a traceback with such a frame.
    #[serde(default)]
    pub frames: Option<String>,
    /// Whether trying again can help: `never`, `maybe`, `later`, `elsewhere`.
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
    /// As in an engine's log, read after its own.
    pub facts: Vec<String>,
    /// As in an engine's log, where it says no other.
    pub kinds: IndexMap<String, KindRule>,
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
