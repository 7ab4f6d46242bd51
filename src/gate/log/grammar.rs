//! From pieces of text to observations, by an engine's rules.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex, RegexSet};
use serde_json::Value;

use super::{Again, FailureRule, LogRules, Piece, ServingGrammar};

/// A shorter value would stand in words that have nothing to do with it.
const SHORTEST_SECRET: usize = 4;

/// An engine's rules, compiled.
#[derive(Clone, Debug)]
pub struct LogGrammar {
    /// All patterns in one automaton: most pieces match none, and one pass says so.
    set: RegexSet,
    patterns: Vec<(Regex, Role)>,
    record: Option<Regex>,
    rank: Option<Regex>,
    phases: Vec<PhaseKind>,
    bars: Vec<Bar>,
    failures: Vec<FailureRule>,
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
    Bar(usize),
    Failure(usize),
    Fact,
}

#[derive(Clone, Debug)]
struct PhaseKind {
    name: String,
    by_rank: bool,
    again: Option<Again>,
}

#[derive(Clone, Debug)]
struct Bar {
    unit: String,
    phase: String,
}

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

/// What a record tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// It comes at intervals whatever happens, and proves nothing.
    Heartbeat,
    /// A phase begins.
    Begin {
        /// Which.
        phase: String,
        /// Whether each rank has its own.
        by_rank: bool,
    },
    /// A phase ends.
    End {
        /// Which.
        phase: String,
        /// Whether each rank has its own.
        by_rank: bool,
    },
    /// A progress bar moved.
    Bar {
        /// The phase it belongs to.
        phase: String,
        /// So many are done,
        done: f64,
        /// of so many, if it says.
        total: Option<f64>,
        /// What is counted.
        unit: String,
    },
    /// The engine says something of itself.
    Fact {
        /// Under which key.
        key: String,
        /// What.
        value: Value,
    },
    /// Something failed. When several rules fit, all are given in their order: which of them holds depends on the phase.
    Failure {
        /// The rules that fit, by number: see [`LogGrammar::failure`].
        rules: Vec<usize>,
    },
}

/// An observation, and the rank it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The rank, if the record says.
    pub rank: Option<u32>,
    /// What was observed.
    pub what: Observation,
}

impl LogGrammar {
    /// Compiles an engine's rules.
    pub fn new(rules: &LogRules) -> Result<Self, GrammarError> {
        let mut compiler = Compiler::default();
        for (number, pattern) in rules.benign.iter().enumerate() {
            compiler.add(format!("benign[{number}]"), pattern, Role::Benign)?;
        }
        for (number, pattern) in rules.heartbeat.iter().enumerate() {
            compiler.add(format!("heartbeat[{number}]"), pattern, Role::Heartbeat)?;
        }
        for (number, rule) in rules.phases.iter().enumerate() {
            // An end before a begin: a record that is both ends the old one first.
            if let Some(end) = &rule.end {
                compiler.add(format!("phases[{number}].end"), end, Role::End(number))?;
            }
            if let Some(begin) = &rule.begin {
                compiler.add(format!("phases[{number}].begin"), begin, Role::Begin(number))?;
            }
        }
        for (number, rule) in rules.bars.iter().enumerate() {
            compiler.add(format!("bars[{number}].match"), &rule.pattern, Role::Bar(number))?;
        }
        for (number, pattern) in rules.facts.iter().enumerate() {
            compiler.add(format!("facts[{number}]"), pattern, Role::Fact)?;
        }
        for (number, rule) in rules.failures.iter().enumerate() {
            compiler.add(format!("failures[{number}].match"), &rule.pattern, Role::Failure(number))?;
        }
        // The beginning of a record is looked for inside lines too.
        let record = rules.record.as_ref().map(|record| compile("record", record.strip_prefix('^').unwrap_or(record)));
        let rank = rules.rank.as_ref().map(|rank| compile("rank", rank));
        let set = RegexSet::new(compiler.texts)
            .map_err(|source| GrammarError { place: "all together".to_owned(), source: Box::new(source) })?;
        let phase = |rule: &super::PhaseRule| PhaseKind {
            name: rule.phase.clone(),
            by_rank: rule.scope.as_deref() == Some("rank"),
            again: rule.again.clone(),
        };
        Ok(LogGrammar {
            set,
            patterns: compiler.patterns,
            record: record.transpose()?,
            rank: rank.transpose()?,
            phases: rules.phases.iter().map(phase).collect(),
            bars: rules.bars.iter().map(|rule| Bar { unit: rule.unit.clone(), phase: rule.phase.clone() }).collect(),
            failures: rules.failures.clone(),
            serving: ServingGrammar::new(rules)?,
            settings: BTreeMap::new(),
            secrets: Vec::new(),
        })
    }

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

    /// What a phase is the second time that a rank goes through it, if the definition says so.
    pub(super) fn again(&self, phase: &str) -> Option<&Again> {
        self.phases.iter().find(|known| known.name == phase)?.again.as_ref()
    }

    /// What a piece tells: of each record in it, since a bar and a record can share a line.
    pub fn read(&self, piece: &Piece) -> Vec<Seen> {
        self.records(&piece.text).into_iter().flat_map(|record| self.read_record(record)).collect()
    }

    /// The records in a piece: a bar and a record can share a line.
    pub(super) fn records<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let Some(pattern) = &self.record else { return vec![text] };
        let mut cuts: Vec<usize> = pattern.find_iter(text).map(|found| found.start()).collect();
        cuts.insert(0, 0);
        cuts.push(text.len());
        cuts.windows(2).filter(|pair| pair[0] < pair[1]).map(|pair| &text[pair[0]..pair[1]]).collect()
    }

    fn read_record(&self, record: &str) -> Vec<Seen> {
        let found = self.set.matches(record);
        if !found.matched_any() {
            return Vec::new();
        }
        let rank = self.rank.as_ref().and_then(|rank| rank.captures(record)?.get(1)?.as_str().parse().ok());
        let mut seen = Vec::new();
        let mut failures = Vec::new();
        let mut benign = false;
        for (regex, role) in found.iter().filter_map(|number| self.patterns.get(number)) {
            match role {
                Role::Benign => benign = true,
                Role::Failure(rule) => failures.push(*rule),
                role => {
                    let Some(groups) = regex.captures(record) else { continue };
                    self.observe(*role, record, &groups, &mut seen);
                    if !matches!(role, Role::Bar(_)) {
                        seen.extend(facts(regex, &groups));
                    }
                }
            }
        }
        if !benign && !failures.is_empty() {
            for rule in &failures {
                let pattern = self.patterns.iter().find(|(_, role)| *role == Role::Failure(*rule));
                if let Some((regex, groups)) = pattern.and_then(|(regex, _)| Some((regex, regex.captures(record)?))) {
                    seen.extend(facts(regex, &groups));
                }
            }
            seen.push(Observation::Failure { rules: failures });
        }
        seen.into_iter().map(|what| Seen { rank, what }).collect()
    }

    fn observe(&self, role: Role, record: &str, groups: &Captures<'_>, seen: &mut Vec<Observation>) {
        match role {
            Role::Heartbeat => seen.push(Observation::Heartbeat),
            Role::Begin(number) => {
                let PhaseKind { name, by_rank, .. } = &self.phases[number];
                seen.push(Observation::Begin { phase: name.clone(), by_rank: *by_rank });
            }
            Role::End(number) => {
                let PhaseKind { name, by_rank, .. } = &self.phases[number];
                seen.push(Observation::End { phase: name.clone(), by_rank: *by_rank });
            }
            Role::Bar(number) => {
                let Bar { unit, phase } = &self.bars[number];
                if let Some(Position { done, total, is_share }) = position(record, groups) {
                    let unit = if is_share { "percent".to_owned() } else { unit.clone() };
                    seen.push(Observation::Bar { phase: phase.clone(), done, total, unit });
                }
            }
            Role::Benign | Role::Failure(_) | Role::Fact => {}
        }
    }
}

#[derive(Default)]
struct Compiler {
    texts: Vec<String>,
    patterns: Vec<(Regex, Role)>,
}

impl Compiler {
    fn add(&mut self, place: String, pattern: &str, role: Role) -> Result<(), GrammarError> {
        let regex = compile(&place, pattern)?;
        self.texts.push(pattern.to_owned());
        self.patterns.push((regex, role));
        Ok(())
    }
}

pub(super) fn compile(place: &str, pattern: &str) -> Result<Regex, GrammarError> {
    Regex::new(pattern).map_err(|source| GrammarError { place: place.to_owned(), source: Box::new(source) })
}

/// How far a bar is.
struct Position {
    done: f64,
    total: Option<f64>,
    is_share: bool,
}

/// By its groups `done` and `total`, else by `n/m`, else by `p%`.
fn position(record: &str, groups: &Captures<'_>) -> Option<Position> {
    // No word boundary at the end: another writer's line may be glued to the number.
    static COUNT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)").ok());
    static SHARE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(\d+(?:\.\d+)?)\s?%").ok());
    let group = |name: &str| groups.name(name).and_then(|text| number(text.as_str()));
    if let Some(done) = group("done") {
        return Some(Position { done, total: group("total"), is_share: false });
    }
    // After the bar's own words: a path before them may hold a `/` between digits.
    let rest = groups.get(0).map_or(record, |found| &record[found.start()..]);
    let pair = |captures: Captures<'_>| Some((number(captures.get(1)?.as_str())?, number(captures.get(2)?.as_str())?));
    if let Some((done, total)) = COUNT.as_ref().and_then(|count| count.captures(rest)).and_then(pair) {
        return Some(Position { done, total: Some(total), is_share: false });
    }
    let share = SHARE.as_ref()?.captures(rest)?.get(1)?;
    Some(Position { done: number(share.as_str())?, total: Some(100.0), is_share: true })
}

fn facts(regex: &Regex, groups: &Captures<'_>) -> Vec<Observation> {
    let fact = |key: &str| {
        let value = value(groups.name(key)?.as_str());
        Some(Observation::Fact { key: key.to_owned(), value })
    };
    regex.capture_names().flatten().filter_map(fact).collect()
}

/// A number where it is one: thousands separators are dropped, a percentage becomes a share.
fn value(text: &str) -> Value {
    let text = text.trim();
    if let Some(share) = text.strip_suffix('%').and_then(|text| number(text.trim_end())) {
        return serde_json::json!(share / 100.0);
    }
    match number(text) {
        Some(whole) if whole.fract() == 0.0 && whole.abs() < 9e15 && !text.contains('.') => {
            serde_json::json!(whole as i64)
        }
        Some(number) => serde_json::json!(number),
        None => Value::String(text.to_owned()),
    }
}

fn number(text: &str) -> Option<f64> {
    let digits = text.replace(',', "");
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
    // `inf`, `nan` and `1e5` are words here.
    if !digits.chars().all(plain) || !digits.chars().any(|c| c.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gate::log::{BarRule, PhaseRule};

    fn grammar() -> LogGrammar {
        let phase = |phase: &str, begin: &str, end: Option<&str>| PhaseRule {
            phase: phase.into(),
            begin: Some(begin.into()),
            end: end.map(Into::into),
            scope: Some("rank".into()),
            patience: None,
            again: None,
        };
        let failure = |kind: &str, pattern: &str, wraps: bool| FailureRule {
            kind: kind.into(),
            pattern: pattern.into(),
            phase: None,
            wraps,
            retry: None,
            remedy: None,
            seen: Vec::new(),
        };
        LogGrammar::new(&LogRules {
            rank: Some(r"TP(\d+)".into()),
            record: Some(r"^\[\d{4}-".into()),
            benign: vec!["error: ignored".into()],
            heartbeat: vec!["still waiting".into()],
            phases: vec![
                phase("weights", "Load weight begin", Some(r"Load weight end.*mem usage=(?<weights_gb>[\d.]+) GB")),
                phase("graph_capture", "Capture cuda graph begin", None),
            ],
            bars: vec![BarRule {
                pattern: "Capturing batches|Loading".into(),
                unit: "graphs".into(),
                phase: "graph_capture".into(),
            }],
            failures: vec![
                failure("oom_capture", "(?i)out of memory|error", false),
                failure("unknown", "child failed", true),
            ],
            facts: vec![
                r"#tokens: (?<kv_tokens>[\d,]+), K size: (?<kv_type>\w+)".into(),
                r"rate (?<hit_ratio>[\d.]+%)".into(),
            ],
            ..LogRules::default()
        })
        .unwrap()
    }

    fn read(text: &str) -> Vec<Seen> {
        grammar().read(&Piece { line_no: 1, text: text.to_owned(), cut: false })
    }

    #[test]
    fn a_phase_its_rank_and_its_facts_are_seen() {
        let seen = read("[2025-11-10 10:00:26 TP1] Load weight end. type=X, avail mem=70.50 GB, mem usage=7.60 GB.");
        let end = Observation::End { phase: "weights".into(), by_rank: true };
        let fact = Observation::Fact { key: "weights_gb".into(), value: json!(7.6) };
        assert_eq!(seen, [Seen { rank: Some(1), what: end }, Seen { rank: Some(1), what: fact }]);
    }

    #[test]
    fn a_bar_and_a_record_on_one_line_are_two() {
        let seen = read(
            "  0%| | 0/23 [00:00<?]Capturing batches (bs=8): 13%|█| 3/23 [00:01][2025-11-10 10:00:27 TP2] Capture cuda graph begin.",
        );
        let bar =
            Observation::Bar { phase: "graph_capture".into(), done: 3.0, total: Some(23.0), unit: "graphs".into() };
        let begin = Observation::Begin { phase: "graph_capture".into(), by_rank: true };
        assert_eq!(seen, [Seen { rank: None, what: bar }, Seen { rank: Some(2), what: begin }]);
    }

    #[test]
    fn a_bar_tells_its_count_else_its_share() {
        let bar = |text: &str| match &read(text)[0].what {
            Observation::Bar { done, total, unit, .. } => (*done, *total, unit.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(bar("/a/1/2 Loading 45.5% done"), (45.5, Some(100.0), "percent".into()));
        assert_eq!(bar("Loading: 10% | 1/10INFO: glued"), (1.0, Some(10.0), "graphs".into()));
        assert_eq!(read("Loading model"), []);
    }

    #[test]
    fn numbers_are_numbers_and_words_are_words() {
        let seen = read("#tokens: 262,144, K size: fp8, rate 93.5%");
        let values: Vec<&Value> = seen
            .iter()
            .map(|seen| match &seen.what {
                Observation::Fact { value, .. } => value,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(values, [&json!(262_144), &json!("fp8"), &json!(0.935)]);
        assert_eq!(value("1e5"), json!("1e5"));
        assert_eq!(value("-"), json!("-"));
        assert_eq!(value("5.0"), json!(5.0));
    }

    #[test]
    fn a_benign_line_is_no_failure() {
        assert_eq!(read("error: ignored (out of memory)"), []);
        assert_eq!(read("CUDA out of memory")[0].what, Observation::Failure { rules: vec![0] });
        assert_eq!(read("error: child failed")[0].what, Observation::Failure { rules: vec![0, 1] });
    }

    #[test]
    fn a_rule_that_is_no_expression_is_named_by_its_place() {
        let rules = LogRules { facts: vec!["ok".into(), "(".into()], ..LogRules::default() };
        let error = LogGrammar::new(&rules).unwrap_err().to_string();
        assert!(error.starts_with("`log.facts[1]` is not a regular expression: "), "{error}");
    }
}
