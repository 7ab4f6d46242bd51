//! An engine's rules for its log, compiled.

mod compile;
#[cfg(test)]
mod every_pattern;
mod read;
mod seen;

use std::borrow::Cow;
use std::collections::BTreeMap;

use regex::bytes::Regex;

use super::sieve::Sieve;
use super::{Again, FailureRule, KindRule, Piece, ServingGrammar, SuspectRule};
pub use compile::GrammarError;
pub use seen::{Observation, Seen};

/// A shorter value would stand in words that have nothing to do with it.
const SHORTEST_SECRET: usize = 4;

/// An engine's rules, compiled.
#[derive(Clone, Debug)]
pub struct LogGrammar {
    /// Which patterns may match: most pieces match none, and one pass says so.
    sieve: Sieve,
    patterns: Vec<(Regex, Role)>,
    /// By the number of a rule for failures, what its traceback must hold.
    frames: BTreeMap<usize, Regex>,
    record: Option<Regex>,
    rank: Option<Regex>,
    common_rank: Regex,
    phases: Vec<PhaseKind>,
    bars: Vec<Bar>,
    failures: Vec<FailureRule>,
    suspects: Vec<(SuspectRule, Regex)>,
    first: Vec<String>,
    kinds: BTreeMap<String, KindRule>,
    serving: ServingGrammar,
    settings: BTreeMap<String, String>,
    secrets: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Benign,
    Heartbeat,
    Begin(usize),
    End(usize),
    Frames(usize),
    Bar(usize),
    Failure(usize),
    Fact,
    Version,
    Recovers,
    Suspect(usize),
    Traceback,
    Chain,
    /// A word by which Python names what went wrong.
    Error,
}

#[derive(Clone, Debug)]
struct PhaseKind {
    name: String,
    by_rank: bool,
    nested: bool,
    again: Option<Again>,
    patience_s: Option<f64>,
}

#[derive(Clone, Debug)]
struct Bar {
    unit: String,
    phase: String,
    within: bool,
}

impl LogGrammar {
    /// Values that must not be told on, by name: a server may print its own environment. The log itself keeps them; what
    /// is read from it names them `${NAME}`.
    pub fn with_secrets(mut self, secrets: &BTreeMap<String, String>) -> Self {
        let told = secrets.iter().filter(|(_, value)| value.len() >= SHORTEST_SECRET);
        self.secrets = told.map(|(name, value)| (value.clone(), format!("${{{name}}}"))).collect();
        // A value that holds another one is replaced before it.
        self.secrets.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        self
    }

    /// The piece without the values of secrets.
    pub(super) fn masked<'p>(&self, piece: &'p Piece) -> Cow<'p, Piece> {
        if !self.secrets.iter().any(|(value, _)| piece.text.contains(value)) {
            return Cow::Borrowed(piece);
        }
        let text = self.secrets.iter().fold(piece.text.clone(), |text, (value, name)| text.replace(value, name));
        Cow::Owned(Piece { text, ..piece.clone() })
    }

    /// The profile's settings by key (`memory.fraction`), for remedies that name them.
    pub fn with_settings(mut self, settings: BTreeMap<String, String>) -> Self {
        self.settings = settings;
        self
    }

    /// See [`LogGrammar::with_settings`].
    pub fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// What is read while requests are served.
    pub fn serving(&self) -> &ServingGrammar {
        &self.serving
    }

    /// A rule for failures, by its number in an [`Observation::Failure`].
    pub fn failure(&self, rule: usize) -> Option<&FailureRule> {
        self.failures.get(rule)
    }

    /// The phases in the order of the definition, which is the order they come in.
    pub fn phase_place(&self, phase: &str) -> Option<usize> {
        self.phases.iter().position(|known| known.name == phase)
    }

    /// Whether a phase also comes inside a later one.
    pub(super) fn is_nested(&self, phase: &str) -> bool {
        self.phases.iter().any(|known| known.name == phase && known.nested)
    }

    /// How long a phase may be silent before it looks stalled, in seconds.
    pub fn patience_s(&self, phase: &str) -> Option<f64> {
        self.phases.iter().find(|known| known.name == phase)?.patience_s
    }

    /// What is said of a kind of failure where its rule says no more.
    pub fn kind(&self, kind: &str) -> Option<&KindRule> {
        self.kinds.get(kind)
    }

    /// Whether the first value of a fact counts.
    pub(super) fn keeps_first(&self, key: &str) -> bool {
        self.first.iter().any(|first| first == key)
    }

    /// Whether a rule for failures holds after such frames; one that names no frames always does.
    pub(super) fn frames_fit(&self, rule: usize, frames: Option<&str>) -> bool {
        match (self.frames.get(&rule), frames) {
            (None, _) => true,
            (Some(pattern), Some(frames)) => pattern.is_match(frames.as_bytes()),
            (Some(_), None) => false,
        }
    }

    /// The suspect rules that a failure could be a consequence of, with what it names.
    pub(super) fn accuses<'t>(&self, failure: &'t str) -> Vec<(usize, &'t str)> {
        let named = self.suspects.iter().enumerate().filter_map(|(number, (_, of))| {
            let name = of.captures(failure.as_bytes())?.name("name")?;
            Some((number, failure.get(name.range())?))
        });
        named.collect()
    }

    /// A suspect rule, by number.
    pub(super) fn suspect(&self, rule: usize) -> Option<&SuspectRule> {
        self.suspects.get(rule).map(|(rule, _)| rule)
    }

    /// What a phase is the second time that a rank goes through it, if the definition says so.
    pub(super) fn again(&self, phase: &str) -> Option<&Again> {
        self.phases.iter().find(|known| known.name == phase)?.again.as_ref()
    }

    /// Whether a piece may hold a progress bar, which [`LogGrammar::read`] would tell.
    pub fn may_be_bar(&self, piece: &Piece) -> bool {
        self.sieve.may_be_bar(piece.text.as_bytes())
    }

    /// Tells by a line's bytes what it is for.
    pub(super) fn sieve(&self) -> &Sieve {
        &self.sieve
    }
}

#[cfg(test)]
mod tests;
