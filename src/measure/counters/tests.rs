//! Pages of real servers, and made ones in their shapes, to the figures that follow from them.

use super::{Counter, CounterRules, Figures, Page, Reading, Source, Window};
use crate::engine;
use crate::measure::testing::{closed, ok, step};
use crate::measure::{EngineTimings, Measured, Outcome, Seen, Timeline};
use crate::profile::EngineKind;

const SECOND: u64 = 1_000_000_000;

fn rules(kind: EngineKind) -> CounterRules {
    engine::definition(kind, &[]).unwrap().facts.counters
}

fn page(name: &str) -> Page {
    Page::read(&std::fs::read_to_string(format!("tests/data/metrics/{name}.txt")).unwrap())
}

/// A window between two pages, with a third in between.
fn window(kind: EngineKind, before: Page, during: Page, after: Page) -> Window {
    let rules = rules(kind);
    let reading = |page, at| Reading::of(page, &rules, at, 1_000_000).unwrap();
    Window::between(&reading(before, 0), &[reading(during, SECOND)], &reading(after, 11 * SECOND), &rules)
}

/// Four requests of 278 tokens each, 1,112 in all, in ten seconds.
fn measured() -> Measured {
    Measured { timelines: (0..4).map(|_| ok(0, 100, 10_000, 278)).collect(), ..Measured::default() }
}

fn figures(measured: &Measured, window: Window) -> Figures {
    Figures::of(measured, &step(closed(4)), &Seen { counters: Some(window), ..Seen::default() })
}

#[track_caller]
fn close_to(figures: &Figures, expected: &[(&str, f64)]) {
    for (id, value) in expected {
        let found = figures.metrics.get(*id).copied().unwrap_or(f64::NAN);
        assert!((found - value).abs() < 1e-6 * value.abs().max(1.0), "{id} is {found}, not {value}: {figures:#?}");
    }
}

#[test]
fn two_engines_of_vllm_with_ngrams() {
    let names = ["made-vllm-ngram-before", "made-vllm-ngram-after", "made-vllm-ngram-after"];
    let [before, during, after] = names.map(page);
    let figures = figures(&measured(), window(EngineKind::Vllm, before, during, after));
    // Drafts 300 + 100, accepted 540 + 160, drafted 900 + 300. Steps 310 + 110; samples of first tokens and of gaps
    // 8 + 4 and 300 + 100.
    close_to(
        &figures,
        &[
            ("acceptance_length", 1.0 + 700.0 / 400.0),
            ("acceptance_ratio", 700.0 / 1200.0),
            ("steps_per_s", 42.0),
            ("requests_per_step", 412.0 / 420.0),
            ("tokens_per_request_step", 1112.0 / 412.0),
            ("closure_ratio", 1.0),
            ("cache_hit_ratio", 300.0 / 1200.0),
            ("engine_queue_ms", 100.0),
            ("preemptions", 2.0),
            ("kv_peak_ratio", 0.1),
        ],
    );
    assert_eq!(figures.by_position, [0.8, 0.575, 0.375]);
    let counts = ["accepted_tokens", "verify_steps", "draft_tokens", "accepted_by_position.2"];
    assert_eq!(counts.map(|name| figures.counters[name]), [700.0, 400.0, 1200.0, 150.0]);
    assert!(figures.sources.iter().all(|(id, source)| *source == Source::Counters || id.ends_with("_ratio")));
    assert!(!figures.warnings.iter().any(|warning| warning.id == "closure"), "{:?}", figures.warnings);
}

#[test]
fn sglang_with_eagle_on_two_gpus_counts_its_ranks_once() {
    let names = ["made-sglang-eagle-before", "made-sglang-eagle-before", "made-sglang-eagle-after"];
    let [before, during, after] = names.map(page);
    let figures = figures(&measured(), window(EngineKind::Sglang, before, during, after));
    // 1,112 tokens of 12 requests in 400 verify steps: 700 were accepted, of 3 drafted in each.
    close_to(
        &figures,
        &[
            ("acceptance_length", 2.75),
            ("acceptance_ratio", 700.0 / 1200.0),
            ("steps_per_s", 41.2),
            ("requests_per_step", 1.0),
            ("tokens_per_request_step", 1112.0 / 412.0),
            ("closure_ratio", 1.0),
            ("in_graph_ratio", 0.95),
            ("cache_hit_ratio", 0.25),
        ],
    );
}

#[test]
fn an_old_sglang_has_its_gauge_alone() {
    let text = |length: &str, tokens: u64, requests: u64| {
        Page::read(&format!(
            "sglang:spec_accept_length{{model_name=\"m\"}} {length}\nsglang:generation_tokens_total{{model_name=\"m\"}} {tokens}\n\
             sglang:num_requests_total{{model_name=\"m\"}} {requests}\nsglang:num_running_reqs{{model_name=\"m\"}} 4\n"
        ))
    };
    let figures =
        figures(&measured(), window(EngineKind::Sglang, text("0.0", 0, 0), text("2.4", 9, 1), text("2.4", 1112, 4)));
    close_to(&figures, &[("acceptance_length", 2.4)]);
    assert_eq!(figures.sources["acceptance_length"], Source::Sampled);
    assert!(!figures.metrics.contains_key("acceptance_ratio") && !figures.metrics.contains_key("closure_ratio"));
}

#[test]
fn recorded_servers_without_speculation_have_no_acceptance() {
    for (kind, name) in
        [(EngineKind::Sglang, "sglang-0.5.23-cpu-metrics"), (EngineKind::Vllm, "vllm-0.32.0-cpu-metrics")]
    {
        let known = page(name);
        assert!(rules(kind).known_on(&known) >= 8, "{name}");
        let others =
            [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp].into_iter().filter(|other| *other != kind);
        assert!(others.into_iter().all(|other| rules(other).known_on(&known) == 0), "{name}");
        let figures = figures(&measured(), window(kind, page(name), page(name), known));
        for id in ["acceptance_length", "acceptance_ratio", "closure_ratio", "steps_per_s"] {
            assert!(!figures.metrics.contains_key(id), "{name}: {id} is {}", figures.metrics[id]);
        }
        assert_eq!(figures.metrics["waiting_ratio"], 0.0);
        assert_eq!(figures.metrics["kv_peak_ratio"], 0.0);
        assert!(figures.warnings.is_empty(), "{:?}", figures.warnings);
    }
    let recorded = rules(EngineKind::Sglang);
    let reading = Reading::of(page("sglang-0.5.23-cpu-metrics"), &recorded, 0, 0).unwrap();
    assert_eq!(reading.value(Counter::Steps, &recorded), Some(1.0), "the engine's own warm-up");
    assert_eq!(reading.value(Counter::QueuedRequests, &recorded), Some(1.0));
    assert_eq!(reading.value(Counter::IntervalAcceptanceLength, &recorded), Some(0.0));
}

fn llamacpp(decodes: u64, busy: f64, tokens: u64, drafts: u64, drafted: u64, accepted: u64) -> Page {
    Page::read(&format!(
        "llamacpp:n_decode_total {decodes}\nllamacpp:n_busy_slots_per_decode {busy}\nllamacpp:tokens_predicted_total {tokens}\n\
         llamacpp:spec_decode_num_drafts_total {drafts}\nllamacpp:spec_decode_num_draft_tokens_total {drafted}\n\
         llamacpp:spec_decode_num_accepted_tokens_total {accepted}\nllamacpp:requests_processing 4\n"
    ))
}

#[test]
fn llamacpps_mean_since_the_start_becomes_the_batch_of_the_run() {
    // 100 steps of 1 before, 206 of 2 in the run: 512 / 306 since the start.
    let after = llamacpp(306, 512.0 / 306.0, 1212, 400, 1200, 700);
    let figures =
        figures(&measured(), window(EngineKind::Llamacpp, llamacpp(100, 1.0, 100, 0, 0, 0), after.clone(), after));
    close_to(&figures, &[("requests_per_step", 2.0), ("acceptance_length", 2.75), ("closure_ratio", 1.0)]);
}

#[test]
fn what_does_not_close_is_said_with_its_numbers() {
    let after = llamacpp(306, 512.0 / 306.0, 1212, 400, 1200, 800);
    let window = window(EngineKind::Llamacpp, llamacpp(100, 1.0, 100, 0, 0, 0), after.clone(), after);
    let figures = figures(&measured(), window);
    close_to(&figures, &[("closure_ratio", 1212.0 / 1112.0)]);
    let warning = figures.warnings.iter().find(|warning| warning.id == "closure").unwrap();
    insta::assert_snapshot!(warning.text, @"20.60 steps/s x 2.000 requests a step x 2.942 tokens = 121.2 tok/s, 9.0 % off the client's 111.2 tok/s; the engine's own count of tokens agrees with the client's, so some of its steps or accepted drafts gave no answer a token (such as drafts that were accepted and cut off where an answer ended)");
}

#[test]
fn drafts_that_an_answers_end_cuts_off_are_no_tokens_of_a_step() {
    // Two for each of four requests, with drafts of three: the engine's own count of tokens has them not.
    let after = llamacpp(306, 512.0 / 306.0, 1212, 400, 1200, 708);
    let whole = window(EngineKind::Llamacpp, llamacpp(100, 1.0, 100, 0, 0, 0), after.clone(), after);
    close_to(&figures(&measured(), whole), &[("closure_ratio", 1.0), ("acceptance_length", 2.77)]);
}

#[test]
fn digits_that_are_not_printed_are_no_fault_of_the_closure() {
    // As in the run that closes, after a million of each: of a step's tokens the last digit is one of tens.
    let page = |steps: &str, tokens: &str, accepted: u64| {
        Page::read(&format!(
            "llamacpp:n_decode_total {steps}\nllamacpp:n_busy_slots_per_decode 2\nllamacpp:tokens_predicted_total {tokens}\n             llamacpp:spec_decode_num_drafts_total {accepted}\nllamacpp:spec_decode_num_draft_tokens_total {accepted}\n             llamacpp:spec_decode_num_accepted_tokens_total {accepted}\nllamacpp:requests_processing 4\n"
        ))
    };
    // 420 steps of requests, and of 30 tokens nobody knows: 2.7 % beside the 2 %.
    let warns = |accepted: u64| {
        let after = page("1.00022e+06", "3.00111e+06", 1000 + accepted);
        let rounded = window(EngineKind::Llamacpp, page("1.00001e+06", "3e+06", 1000), after.clone(), after);
        let figures = figures(&measured(), rounded);
        close_to(&figures, &[("closure_ratio", (420 + accepted) as f64 / 1112.0)]);
        figures.warnings.iter().any(|warning| warning.id == "closure")
    };
    assert_eq!((warns(740), warns(750)), (false, true));
}

#[test]
fn tokens_of_failed_requests_are_the_engines_work_too() {
    let mut measured = measured();
    measured.timelines[3].outcome = Outcome::IncompleteBody;
    let after = llamacpp(306, 512.0 / 306.0, 1212, 400, 1200, 700);
    let figures =
        figures(&measured, window(EngineKind::Llamacpp, llamacpp(100, 1.0, 100, 0, 0, 0), after.clone(), after));
    close_to(&figures, &[("closure_ratio", 1.0)]);
}

#[test]
fn without_counters_the_answers_words_are_summed_up() {
    let mut measured = measured();
    for timeline in &mut measured.timelines {
        // 1 of the prompt, 100 verify steps with 177 accepted of 300.
        timeline.engine = Some(EngineTimings {
            predicted_n: Some(278),
            draft_n: Some(300),
            draft_n_accepted: Some(177),
            ..EngineTimings::default()
        });
    }
    let by_requests = Figures::of(&measured, &step(closed(4)), &Seen::default());
    close_to(&by_requests, &[("acceptance_length", 2.77), ("acceptance_ratio", 0.59)]);
    assert_eq!(by_requests.sources["acceptance_ratio"], Source::Requests);
    assert_eq!(by_requests.sources["acceptance_length"], Source::Estimate);
    assert_eq!(by_requests.counters["accepted_tokens"], 708.0);
    for timeline in &mut measured.timelines {
        timeline.engine.as_mut().unwrap().verify_n = Some(100);
    }
    let told = Figures::of(&measured, &step(closed(4)), &Seen::default());
    assert_eq!(told.sources["acceptance_length"], Source::Requests);
    let plain = Figures::of(&self::measured(), &step(closed(4)), &Seen::default());
    assert!(!plain.metrics.contains_key("acceptance_length"), "{plain:?}");
}

#[test]
fn acceptance_of_unreal_text_is_warned_of_and_only_with_speculation() {
    use crate::render::{Api, Stop};
    let mut forced = step(closed(4));
    forced.workload.stop = Stop::Exact { tokens: 64 };
    forced.workload.api = Api::Completions;
    let ids = |step: &crate::render::Step, speculates| -> Vec<String> {
        let seen = Seen { speculates, ..Seen::default() };
        Figures::of(&Measured::default(), step, &seen).warnings.into_iter().map(|warning| warning.id).collect()
    };
    assert_eq!(ids(&forced, true), ["forced_past_eos", "no_chat_template", "few_prompts"]);
    assert!(ids(&forced, false).is_empty());
    let mut real = step(closed(4));
    let prompt = |n: usize| crate::profile::Prompt {
        text: format!("prompt {n}"),
        ..crate::profile::prompts("chat").unwrap()[0].clone()
    };
    real.workload.prompts = (0..64).map(prompt).collect();
    assert!(ids(&real, true).is_empty());
    real.workload.prompts[1] = prompt(0);
    assert_eq!(ids(&real, true), ["few_prompts"]);
}

#[test]
fn a_server_that_was_told_to_speculate_and_says_nothing_of_it_is_told() {
    let seen = Seen { speculates: true, ..Seen::default() };
    let figures = Figures::of(&measured(), &step(closed(4)), &seen);
    assert!(figures.warnings.iter().any(|warning| warning.id == "acceptance_unknown"), "{:?}", figures.warnings);
    let failed = Measured { timelines: vec![Timeline::default()], ..Measured::default() };
    let figures = Figures::of(&failed, &step(closed(4)), &seen);
    assert!(!figures.warnings.iter().any(|warning| warning.id == "acceptance_unknown"));
}
