//! The field table: every key of a profile, once. Reading, the list of known keys, the JSON Schema and the reference
//! page all come from it.

mod bench;
mod engine;
mod profile;
mod scenario;
mod sweep;
#[cfg(test)]
mod tests;

pub(crate) use bench::{BENCH, SEARCH, WORKLOAD};
pub(crate) use engine::METHODS;
pub(crate) use profile::PROFILE;
#[cfg(test)]
pub(crate) use scenario::FAULTS;
pub(crate) use scenario::{FAILURES, SCENARIO};
pub(crate) use sweep::SWEEP;

/// A map with known keys.
#[derive(Debug)]
pub(crate) struct Struct {
    /// What a person calls it.
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [Field],
}

/// A key.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) shape: Shape,
    /// What it means, as a sentence of Markdown.
    pub(crate) doc: &'static str,
    /// A value as one would write it, in YAML's flow style.
    pub(crate) example: &'static str,
    pub(crate) presence: Presence,
}

/// What it means that a key is absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Presence {
    /// Then it is not set.
    Optional,
    /// That is a fault.
    Required,
    /// Then it has this value, in YAML.
    Default(&'static str),
    /// Then another key or the place decides, in these words.
    Derived(&'static str),
}

/// What a value must look like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Text under a rule.
    Text(TextRule),
    /// One of these words.
    Word(&'static [&'static str]),
    /// One of these words, or the other shape.
    WordOr(&'static [&'static str], &'static Shape),
    /// A kind of engine: one in the program, or a folder of the user's.
    Kind,
    /// `true` or `false`; `on off yes no` too.
    Switch,
    /// A whole number between the two, also as `128k` (1k = 1024).
    Whole(u64, u64),
    /// A number above 0.
    Positive,
    /// A number from 0.
    NotNegative,
    /// A share, as `0.03` or `3%`: from 0 to 1, and whether 0 is allowed.
    Share { zero: bool },
    /// A span of time with its unit.
    Duration,
    /// An amount in the unit of the metric that the key names.
    Amount,
    /// A list.
    List(&'static Shape),
    /// A list, or a single item for a list of one.
    OneOrMany(&'static Shape),
    /// A map with free keys.
    Map(KeyRule, &'static Shape),
    /// A map with known keys.
    Struct(&'static Struct),
    /// One of several maps, told apart by their keys.
    Either(&'static [&'static Struct]),
    /// A single value of the first shape, or one of the maps.
    Or(&'static Shape, &'static [&'static Struct]),
    /// A map with known keys, or a short form of it that has been written out before.
    Short(ShortForm, &'static Struct),
    /// A value of `flags`.
    Flag,
    /// A value of `expect`.
    Expectation,
    /// Anything.
    Any,
}

/// Rules for texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextRule {
    /// Anything, nothing too.
    Free,
    /// Anything but nothing.
    Filled,
    /// A name that may become part of a file's name.
    Name,
    /// A name of the environment.
    EnvName,
    /// A path of a file.
    Path,
    /// A regular expression.
    Pattern,
    /// A path of a URL.
    HttpPath,
    /// 64 hex digits.
    Sha256,
    /// Conditions on a version.
    Requirement,
}

/// Rules for the free keys of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRule {
    /// A flag without dashes.
    Flag,
    /// A name of the environment.
    EnvName,
    /// A name of a measurement.
    Name,
    /// A phase of a start-up.
    Phase,
    /// A metric with one number as its value.
    Metric,
    /// A metric, or an effective setting.
    Expectable,
    /// Any word.
    Free,
}

/// Short forms of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShortForm {
    /// `sglang >=0.5.9` for kind and version.
    Engine,
    /// `PATH@REVISION`.
    Model,
    /// The words of a command.
    Hook,
    /// `3%` for `{relative: 3%}`.
    Tolerance,
}

impl Struct {
    /// What a person calls it, in a sentence.
    pub(crate) fn title(&self) -> String {
        if self.name.starts_with("a ") { self.name.to_owned() } else { format!("`{}`", self.name) }
    }

    pub(crate) fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key)
    }
}

impl Field {
    const fn new(key: &'static str, shape: Shape, example: &'static str, doc: &'static str) -> Field {
        Field { key, shape, doc, example, presence: Presence::Optional }
    }

    const fn required(self) -> Field {
        Field { presence: Presence::Required, ..self }
    }

    const fn default(self, value: &'static str) -> Field {
        Field { presence: Presence::Default(value), ..self }
    }

    const fn derived(self, words: &'static str) -> Field {
        Field { presence: Presence::Derived(words), ..self }
    }
}

/// The phases of a start-up that a log can tell apart.
pub(crate) const PHASES: &[&str] = &[
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

const FILLED: Shape = Shape::Text(TextRule::Filled);
const FREE: Shape = Shape::Text(TextRule::Free);
const NAME: Shape = Shape::Text(TextRule::Name);
const PATH: Shape = Shape::Text(TextRule::Path);
/// A number of things of which there is at least one.
const COUNT_32: Shape = Shape::Whole(1, u32::MAX as u64);
/// The same, where very many are possible. YAML readers agree on whole numbers up to 2^53.
const COUNT_64: Shape = Shape::Whole(1, 1 << 53);
