//! From an engine's rules to a grammar.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};

use super::{Bar, LogGrammar, PhaseKind, Role};
use crate::gate::log::sieve::{Sieve, Use};
use crate::gate::log::{BarRule, LogRules, PhaseRule, ServingGrammar, traceback};
use crate::units;

/// How ranks are named in what libraries write below every engine.
const RANKS: &str = r"\[rank(\d+)\]:|\[(\d+)\] (?:\S+ )?NCCL ";
/// What holds a word by which Python names what went wrong.
const ERROR: &str = r"(?:Error|Exception|Failed|Failure|Timeout|OutOfResources)\b";
/// The phase of a server that works.
const SERVING: &str = "serving";

/// A rule that is no regular expression.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("`log.{place}` is not a regular expression: {source}")]
#[diagnostic(code(orch::gate::grammar))]
pub struct GrammarError {
    /// Where it stands: `phases[2].begin`.
    pub place: String,
    /// What is wrong with it.
    pub source: Box<regex::Error>,
}

impl LogGrammar {
    /// Compiles an engine's rules.
    pub fn new(rules: &LogRules) -> Result<Self, GrammarError> {
        let compiler = Compiler::of(rules)?;
        let mut suspects = Vec::new();
        for (number, rule) in rules.suspects.iter().enumerate() {
            suspects.push((rule.clone(), compile(&format!("suspects[{number}].of"), &rule.of)?));
        }
        let mut frames = BTreeMap::new();
        for (number, rule) in rules.failures.iter().enumerate() {
            if let Some(pattern) = &rule.frames {
                frames.insert(number, compile(&format!("failures[{number}].frames"), pattern)?);
            }
        }
        // The beginning of a record is looked for inside lines too.
        let record = rules.record.as_ref().map(|record| compile("record", record.strip_prefix('^').unwrap_or(record)));
        let rank = rules.rank.as_ref().map(|rank| compile("rank", rank));
        Ok(LogGrammar {
            sieve: compiler.sieve(rules)?,
            patterns: compiler.patterns,
            frames,
            record: record.transpose()?,
            rank: rank.transpose()?,
            common_rank: compile("rank", RANKS)?,
            phases: rules.phases.iter().map(PhaseKind::of).collect(),
            bars: rules.bars.iter().map(Bar::of).collect(),
            failures: rules.failures.clone(),
            suspects,
            first: rules.first.clone(),
            kinds: rules.kinds.iter().map(|(kind, rule)| (kind.clone(), rule.clone())).collect(),
            serving: ServingGrammar::new(rules)?,
            settings: BTreeMap::new(),
            secrets: Vec::new(),
        })
    }
}

impl PhaseKind {
    fn of(rule: &PhaseRule) -> Self {
        let patience = rule.patience.as_deref().and_then(|span| units::parse_duration(span).ok());
        PhaseKind {
            name: rule.phase.clone(),
            by_rank: rule.scope.as_deref() == Some("rank"),
            nested: rule.nested,
            again: rule.again.clone(),
            patience_s: patience.map(|s| s.as_secs_f64()),
        }
    }
}

impl Bar {
    fn of(rule: &BarRule) -> Self {
        Bar { unit: rule.unit.clone(), phase: rule.phase.clone(), within: rule.within }
    }
}

/// All patterns, in the order in which a record is held against them.
#[derive(Default)]
struct Compiler {
    texts: Vec<String>,
    patterns: Vec<(Regex, Role)>,
}

impl Compiler {
    fn of(rules: &LogRules) -> Result<Self, GrammarError> {
        let mut compiler = Compiler::default();
        compiler.add("traceback".to_owned(), &regex::escape(traceback::BEGIN), Role::Traceback)?;
        compiler.add("chain".to_owned(), traceback::CHAIN, Role::Chain)?;
        compiler.add("error".to_owned(), ERROR, Role::Error)?;
        compiler.add_all("benign", &rules.benign, Role::Benign)?;
        compiler.add_all("heartbeat", &rules.heartbeat, Role::Heartbeat)?;
        compiler.add_all("recovers", &rules.recovers, Role::Recovers)?;
        for (number, rule) in rules.phases.iter().enumerate() {
            // An end before a begin: a record that is both ends the old one first.
            for (word, pattern, role) in [
                ("end", &rule.end, Role::End(number)),
                ("begin", &rule.begin, Role::Begin(number)),
                ("frames", &rule.frames, Role::Frames(number)),
            ] {
                if let Some(pattern) = pattern {
                    compiler.add(format!("phases[{number}].{word}"), pattern, role)?;
                }
            }
        }
        for (number, rule) in rules.bars.iter().enumerate() {
            compiler.add(format!("bars[{number}].match"), &rule.pattern, Role::Bar(number))?;
        }
        compiler.add_all("facts", &rules.facts, Role::Fact)?;
        if let Some(version) = &rules.version {
            compiler.add("version".to_owned(), version, Role::Version)?;
        }
        for (number, rule) in rules.suspects.iter().enumerate() {
            compiler.add(format!("suspects[{number}].match"), &rule.pattern, Role::Suspect(number))?;
        }
        for (number, rule) in rules.failures.iter().enumerate() {
            compiler.add(format!("failures[{number}].match"), &rule.pattern, Role::Failure(number))?;
        }
        Ok(compiler)
    }

    fn add(&mut self, place: String, pattern: &str, role: Role) -> Result<(), GrammarError> {
        let regex = compile(&place, pattern)?;
        self.texts.push(pattern.to_owned());
        self.patterns.push((regex, role));
        Ok(())
    }

    fn add_all(&mut self, place: &str, patterns: &[String], role: Role) -> Result<(), GrammarError> {
        let mut all = patterns.iter().enumerate();
        all.try_for_each(|(number, pattern)| self.add(format!("{place}[{number}]"), pattern, role))
    }

    fn sieve(&self, rules: &LogRules) -> Result<Sieve, GrammarError> {
        let serves = |phase: usize| rules.phases.get(phase).is_some_and(|rule| rule.phase == SERVING);
        // Of a fact whose first value counts, the first record matters, and not the last.
        let keeps_first = |regex: &Regex| {
            let mut groups = regex.capture_names().flatten();
            groups.any(|group| matches!(group, "version" | "build") || rules.first.iter().any(|first| first == group))
        };
        let uses = self.patterns.iter().map(|(regex, role)| match role {
            Role::Benign | Role::Frames(_) => Use::Harmless,
            Role::Bar(_) => Use::Bar,
            Role::Fact if !keeps_first(regex) => Use::Sample,
            Role::Heartbeat if !keeps_first(regex) => Use::Heartbeat,
            Role::Begin(phase) if serves(*phase) && !keeps_first(regex) => Use::Serving,
            _ => Use::Tells,
        });
        let texts = self.texts.iter().map(String::as_str);
        Sieve::new(texts.zip(uses)).map_err(|error| GrammarError {
            place: "all together".to_owned(),
            source: Box::new(regex::Error::Syntax(error.to_string())),
        })
    }
}

/// Compiles a pattern. What is looked for is ASCII; tables of all alphabets would make it ten times as large.
fn compile(place: &str, pattern: &str) -> Result<Regex, GrammarError> {
    let plain = RegexBuilder::new(pattern).unicode(false).build();
    plain
        .or_else(|_| RegexBuilder::new(pattern).build())
        .map_err(|source| GrammarError { place: place.to_owned(), source: Box::new(source) })
}
