//! What a log tells while requests are served: how the engine was at intervals, and what should not have happened.
//!
//! The rules are an engine's own (`log.serving`); the names they give are the same for all. What belongs to the phase
//! `compile` of a start-up is, while it is measured, something that was compiled.

use regex::{Captures, Regex, RegexSet};

use super::grammar::{GrammarError, LogGrammar};
use super::{LogRules, Piece};
use crate::measure::Logged;

/// The phase whose records tell that something is compiled.
const COMPILE: &str = "compile";
/// How much of a line is kept, in characters.
const LINE_CHARS: usize = 300;

/// `log.serving`, compiled.
#[derive(Clone, Debug)]
pub struct ServingGrammar {
    /// The patterns of samples and events in one automaton: most lines match none.
    set: RegexSet,
    rules: Vec<Rule>,
    tells: Tells,
}

/// Which things a log can tell at all: what it cannot is not known, and what it could and did not is none.
#[derive(Clone, Copy, Debug, Default)]
struct Tells {
    retracted: bool,
    compiled: bool,
}

#[derive(Clone, Debug)]
enum Rule {
    Sample(Vec<Regex>),
    Retracted(Regex),
    Compiled,
}

impl ServingGrammar {
    pub(super) fn new(rules: &LogRules) -> Result<Self, GrammarError> {
        let (mut texts, mut compiled) = (Vec::new(), Vec::new());
        for (number, sample) in rules.serving.samples.iter().enumerate() {
            let fields = sample.fields.iter().enumerate();
            let fields = fields.map(|(at, field)| compile(&format!("serving.samples[{number}].fields[{at}]"), field));
            compile(&format!("serving.samples[{number}].match"), &sample.pattern)?;
            texts.push(sample.pattern.as_str());
            compiled.push(Rule::Sample(fields.collect::<Result<_, _>>()?));
        }
        for (number, event) in rules.serving.events.iter().enumerate() {
            let regex = compile(&format!("serving.events[{number}].match"), &event.pattern)?;
            texts.push(&event.pattern);
            compiled.push(if event.event == "retracted" { Rule::Retracted(regex) } else { Rule::Compiled });
        }
        let phases = rules.phases.iter().filter(|rule| rule.phase == COMPILE);
        let phases = phases.flat_map(|rule| [&rule.begin, &rule.end]).flatten();
        let bars = rules.bars.iter().filter(|rule| rule.phase == COMPILE).map(|rule| &rule.pattern);
        for pattern in phases.chain(bars) {
            texts.push(pattern);
            compiled.push(Rule::Compiled);
        }
        let tells = Tells {
            retracted: compiled.iter().any(|rule| matches!(rule, Rule::Retracted(_))),
            compiled: compiled.iter().any(|rule| matches!(rule, Rule::Compiled)),
        };
        let set = RegexSet::new(texts)
            .map_err(|source| GrammarError { place: "serving".to_owned(), source: Box::new(source) })?;
        Ok(ServingGrammar { set, rules: compiled, tells })
    }

    /// Whether there is anything that could be read.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// What was told so far.
#[derive(Clone, Debug)]
pub struct Serving<'g> {
    grammar: &'g LogGrammar,
    told: Logged,
}

impl<'g> Serving<'g> {
    /// Nothing was told yet.
    pub fn new(grammar: &'g LogGrammar) -> Self {
        let tells = grammar.serving().tells;
        let told = Logged {
            retracted: tells.retracted.then_some(0),
            compiled: tells.compiled.then_some(0),
            ..Logged::default()
        };
        Serving { grammar, told }
    }

    /// Takes the next piece of the log.
    pub fn take(&mut self, piece: &Piece) {
        let grammar = self.grammar.serving();
        for record in self.grammar.records(&piece.text) {
            let found = grammar.set.matches(record);
            let mut is_compiled = false;
            for rule in found.iter().filter_map(|number| grammar.rules.get(number)) {
                match rule {
                    Rule::Sample(fields) => self.sample(record, fields),
                    Rule::Retracted(regex) => {
                        let count = regex.captures(record).and_then(|groups| count(&groups)).unwrap_or(1);
                        let before = self.told.retracted.unwrap_or(0);
                        self.told.retracted = Some(before.saturating_add(count));
                    }
                    // One line, however many rules know it.
                    Rule::Compiled => is_compiled = true,
                }
            }
            if is_compiled {
                self.told.compiled = Some(self.told.compiled.unwrap_or(0) + 1);
                let masked = self.grammar.masked(piece);
                self.told.compiled_line.get_or_insert_with(|| masked.text.trim().chars().take(LINE_CHARS).collect());
            }
        }
    }

    /// What the log told so far.
    pub fn so_far(&self) -> &Logged {
        &self.told
    }

    /// What the log told.
    pub fn told(self) -> Logged {
        self.told
    }

    fn sample(&mut self, record: &str, fields: &[Regex]) {
        let told = &mut self.told;
        told.samples += 1;
        for (regex, groups) in fields.iter().filter_map(|regex| Some((regex, regex.captures(record)?))) {
            for (name, text) in regex.capture_names().flatten().filter_map(|name| Some((name, groups.name(name)?))) {
                let text = text.as_str();
                match name {
                    "running_requests" => told.most_running = told.most_running.max(text.parse().ok()),
                    "waiting_requests" => {
                        if let Ok(waiting) = text.parse::<u64>() {
                            told.queue_samples += 1;
                            told.queued += u64::from(waiting > 0);
                        }
                    }
                    "in_graph" => {
                        told.graph_samples += 1;
                        told.in_graph += u64::from(text.eq_ignore_ascii_case("true"));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn compile(place: &str, pattern: &str) -> Result<Regex, GrammarError> {
    Regex::new(pattern).map_err(|source| GrammarError { place: place.to_owned(), source: Box::new(source) })
}

fn count(groups: &Captures<'_>) -> Option<u64> {
    groups.name("count")?.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::log::{EventRule, PhaseRule, SampleRule, ServingRules};

    fn grammar() -> LogGrammar {
        let event = |event: &str, pattern: &str| EventRule { event: event.into(), pattern: pattern.into() };
        LogGrammar::new(&LogRules {
            record: Some(r"^\[\d{4}-".into()),
            serving: ServingRules {
                samples: vec![SampleRule {
                    pattern: "Decode batch".into(),
                    fields: vec![
                        r"#running-req: (?<running_requests>\d+)".into(),
                        r"#queue-req: (?<waiting_requests>\d+)".into(),
                        r"\w+ graph: (?<in_graph>True|False)".into(),
                    ],
                }],
                events: vec![
                    event("retracted", r"Retract requests\. #retracted_reqs: (?<count>\d+)"),
                    event("compiled", "JIT kernel"),
                ],
                ..ServingRules::default()
            },
            phases: vec![PhaseRule {
                phase: "compile".into(),
                begin: Some("Running FlashInfer autotune".into()),
                ..PhaseRule::default()
            }],
            ..LogRules::default()
        })
        .unwrap()
    }

    fn told(lines: &[&str]) -> Logged {
        let grammar = grammar().with_secrets(&[("TOKEN".to_owned(), "hunter22".to_owned())].into());
        let mut serving = Serving::new(&grammar);
        for (number, text) in lines.iter().enumerate() {
            serving.take(&Piece { line_no: number as u64 + 1, text: (*text).to_owned(), cut: false });
        }
        serving.told()
    }

    #[test]
    fn fields_that_come_and_go_between_versions_are_read_where_they_are() {
        let told = told(&[
            // 0.5.23, glued to a record before it; 0.5.5 with a comma at its end; 0.4.6 without the comma after the word.
            "[2026-11-01 09:00:00] x[2026-11-01 09:01:00] Decode batch, #running-req: 8, #token: 40, token usage: 0.00, cuda graph: True, gen throughput (token/s): 1.59, #queue-req: 0",
            "[2025-11-10 10:01:10 TP0] Decode batch, #running-req: 10, #token: 2100, accept len: 2.71, cuda graph: False, gen throughput (token/s): 812.40, #queue-req: 6,",
            "[2025-05-10 10:01:10] Decode batch. #running-req: 9, #token: 2100, gen throughput (token/s): 812.40, #queue-req: 0",
            "[2025-05-10 10:01:10] Prefill batch, #running-req: 90, #queue-req: 3",
        ]);
        assert_eq!((told.samples, told.most_running), (3, Some(10)));
        assert_eq!((told.graph_samples, told.in_graph), (2, 1));
        assert_eq!((told.in_graph_ratio(), told.queued_ratio()), (Some(0.5), Some(1.0 / 3.0)));
        assert_eq!((told.retracted, told.compiled), (Some(0), Some(0)), "none, since this log would say so");
    }

    #[test]
    fn what_should_not_happen_is_counted_and_its_first_line_kept_without_secrets() {
        let told = told(&[
            "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 12",
            "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 2",
            "Running FlashInfer autotune with cache: /x/hunter22",
            "JIT kernel Running FlashInfer autotune",
        ]);
        assert_eq!((told.retracted, told.compiled), (Some(4), Some(2)));
        assert_eq!(told.compiled_line.as_deref(), Some("Running FlashInfer autotune with cache: /x/${TOKEN}"));
    }

    #[test]
    fn what_a_log_cannot_tell_is_not_known() {
        let silent = LogGrammar::new(&LogRules::default()).unwrap();
        let told = Serving::new(&silent).told();
        assert_eq!(told, Logged::default());
        assert_eq!(
            (told.retracted, told.compiled, told.in_graph_ratio(), told.queued_ratio()),
            (None, None, None, None)
        );
    }

    #[test]
    fn a_rule_that_is_no_expression_is_named_by_its_place() {
        let mut rules = LogRules::default();
        rules.serving.samples = vec![SampleRule { pattern: "x".into(), fields: vec!["(".into()] }];
        let error = LogGrammar::new(&rules).unwrap_err().to_string();
        assert!(error.starts_with("`log.serving.samples[0].fields[0]` is not a regular expression: "), "{error}");
    }
}
