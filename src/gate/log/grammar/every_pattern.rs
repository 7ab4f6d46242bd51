//! No pattern of any definition is passed over: whatever it matches, the words that it is found by are in it.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::*;
use crate::gate::log::found::Found;
use crate::profile::EngineKind;

const KINDS: [EngineKind; 6] = [
    EngineKind::Sglang,
    EngineKind::Vllm,
    EngineKind::Llamacpp,
    EngineKind::Trtllm,
    EngineKind::Command,
    EngineKind::Sim,
];
/// Texts that are made of each pattern.
const TEXTS: usize = 60;

fn grammars() -> Vec<(EngineKind, LogGrammar)> {
    let definition = |kind| crate::engine::definition(kind, &[]).unwrap();
    KINDS.into_iter().map(|kind| (kind, LogGrammar::new(&definition(kind).log).unwrap())).collect()
}

/// A text that a pattern matches, but for what it asks of the places around it.
fn made(hir: &Hir, draw: &mut ChaCha8Rng, into: &mut Vec<u8>) {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => into.extend_from_slice(&literal.0),
        HirKind::Capture(group) => made(&group.sub, draw, into),
        HirKind::Concat(parts) => parts.iter().for_each(|part| made(part, draw, into)),
        HirKind::Alternation(parts) => made(&parts[draw.random_range(0..parts.len())], draw, into),
        HirKind::Repetition(repeated) => {
            let most = repeated.max.unwrap_or(repeated.min + 3).min(repeated.min + 3);
            for _ in 0..draw.random_range(repeated.min..=most) {
                made(&repeated.sub, draw, into);
            }
        }
        HirKind::Class(Class::Bytes(class)) => {
            let range = class.ranges()[draw.random_range(0..class.ranges().len())];
            into.push(draw.random_range(range.start()..=range.end()));
        }
        HirKind::Class(Class::Unicode(class)) => {
            let range = class.ranges()[draw.random_range(0..class.ranges().len())];
            into.extend_from_slice(range.start().to_string().as_bytes());
        }
    }
}

fn parsed(pattern: &str) -> Hir {
    let bytes = ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).ok();
    bytes.unwrap_or_else(|| ParserBuilder::new().build().parse(pattern).unwrap())
}

/// The patterns that match a text and are not found by its words.
fn missed(grammar: &LogGrammar, text: &[u8]) -> Vec<String> {
    let mut found = Found::default();
    grammar.sieve.find(text, &mut found);
    let found: Vec<usize> = found.iter().collect();
    let patterns = grammar.patterns.iter().enumerate();
    let missed = patterns.filter(|(number, (regex, _))| regex.is_match(text) && !found.contains(number));
    missed.map(|(_, (regex, _))| regex.as_str().to_owned()).collect()
}

#[test]
fn whatever_a_pattern_matches_holds_one_of_its_words() {
    let mut draw = ChaCha8Rng::seed_from_u64(29);
    for (kind, grammar) in grammars() {
        for (regex, _) in &grammar.patterns {
            let hir = parsed(regex.as_str());
            let mut matched = 0;
            for _ in 0..TEXTS {
                let mut text = Vec::new();
                made(&hir, &mut draw, &mut text);
                matched += usize::from(regex.is_match(&text));
                assert_eq!(missed(&grammar, &text), Vec::<String>::new(), "{kind:?}: {}", text.escape_ascii());
            }
            assert!(matched > 0, "{kind:?}: no text was made for {}", regex.as_str());
        }
    }
}

#[test]
fn whatever_a_pattern_matches_in_the_logs_of_the_tests_is_found() {
    let mut logs = vec![std::fs::read("tests/data/logs/variants.yaml").unwrap()];
    let folder = std::fs::read_dir("tests/data/logs/llamacpp").unwrap();
    logs.extend(folder.flatten().map(|entry| std::fs::read(entry.path()).unwrap()));
    for (kind, grammar) in grammars() {
        for line in logs.iter().flat_map(|log| log.split(|byte| *byte == b'\n')) {
            assert_eq!(missed(&grammar, line), Vec::<String>::new(), "{kind:?}: {}", line.escape_ascii());
        }
    }
}

#[test]
fn few_patterns_are_tried_on_every_line() {
    for (kind, grammar) in grammars() {
        let mut found = Found::default();
        grammar.sieve.find(b"", &mut found);
        let always: Vec<&str> = found.iter().map(|number| grammar.patterns[number].0.as_str()).collect();
        assert_eq!(always, Vec::<&str>::new(), "{kind:?}: give each of them a word of two letters or more");
    }
}

#[test]
fn what_an_engine_says_again_and_again_is_not_read_line_by_line() {
    use crate::gate::log::sieve::Weight;
    let lines = [
        (
            EngineKind::Sglang,
            "[2026-11-01 09:00:11 TP0] Decode batch, #running-req: 8, #full token: 4012, full token usage: 0.02, accept len: 2.71, accept rate: 0.57, cuda graph: True, gen throughput (token/s): 812.40, #queue-req: 0",
        ),
        (
            EngineKind::Sglang,
            "[2026-11-01 09:00:11 TP0] Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 128, token usage: 0.02, #running-req: 8, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 9012.11",
        ),
        (
            EngineKind::Sglang,
            "[2026-11-01 09:00:11] INFO:     10.0.0.7:51234 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK",
        ),
        (
            EngineKind::Sglang,
            "[2026-11-01 09:00:11 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5000 -> 0.7000",
        ),
        (
            EngineKind::Vllm,
            "(APIServer pid=101) INFO 11-01 09:00:11 [loggers.py:271] Engine 000: Avg prompt throughput: 123.4 tokens/s, Avg generation throughput: 812.4 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix cache hit rate: 21.0%",
        ),
        (
            EngineKind::Vllm,
            "(APIServer pid=101) INFO 11-01 09:00:11 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.71, Accepted throughput: 12.00 tokens/s, Drafted throughput: 30.00 tokens/s, Accepted: 123 tokens, Drafted: 456 tokens, Per-position acceptance rate: 0.800, 0.500, Avg Draft acceptance rate: 57.1%",
        ),
        (
            EngineKind::Vllm,
            "(APIServer pid=101) INFO:     10.0.0.7:51234 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK",
        ),
        (EngineKind::Llamacpp, "0.10.254.270 I slot launch_slot_: id  0 | task 0 | processing task, is_child = 0"),
        (
            EngineKind::Llamacpp,
            "0.14.814.558 I slot print_timing: id  0 | task 0 | prompt eval time =     150.85 ms /    29 tokens (    5.20 ms per token,   192.24 tokens per second)",
        ),
        (
            EngineKind::Llamacpp,
            "0.14.814.618 I slot print_timing: id  0 | task 0 |        eval time =    4409.36 ms /   128 tokens (   34.72 ms per token,    28.80 tokens per second)",
        ),
        (
            EngineKind::Llamacpp,
            "0.14.814.654 I slot print_timing: id  0 | task 0 | draft acceptance = 0.92593 (  100 accepted /   108 generated), mean len =  4.70",
        ),
        (
            EngineKind::Llamacpp,
            "0.14.814.796 I slot      release: id  0 | task 0 | stop processing: n_tokens = 156, truncated = 0",
        ),
        (EngineKind::Llamacpp, "srv  log_server_r: done request: POST /v1/chat/completions 10.0.0.7 200"),
    ];
    let grammars = grammars();
    for (kind, line) in lines {
        let grammar = &grammars.iter().find(|(known, _)| *known == kind).unwrap().1;
        let mut found = Found::default();
        let weight = grammar.sieve.weigh(line.as_bytes(), &mut found);
        let patterns: Vec<&str> = found.iter().map(|number| grammar.patterns[number].0.as_str()).collect();
        assert_ne!(weight, Weight::Telling, "{line}: {patterns:#?}");
    }
}
