//! The simulated engine as the built program: its answers over real sockets, its ledger, its counters, its end.

use serde_json::{Value, json};

use orch::load::Options;
use orch::measure::{Measured, Outcome};
use orch::render::{Step, Stop};

use crate::server::{run_with, step};
use crate::sim::Sim;

/// A step of so many requests at once, each for exactly so many tokens.
fn exactly(concurrency: u32, requests: u64, tokens: u64) -> Step {
    let mut step = step("s", concurrency, Some(requests));
    step.workload.stop = Stop::Exact { tokens };
    step
}

fn measure(sim: &Sim, step: &Step) -> Measured {
    run_with(&sim.url(), step, &Options { keep_text: true, ..Options::default() })
}

/// The outcome of one request to an engine with a fault.
fn outcome_of(fault: &str) -> (Outcome, u64) {
    let sim = Sim::start(&format!("{{seed: 1, speed: {{ttft: 5ms, step: 2ms}}, serve: {{faults: [{{{fault}}}]}}}}"));
    let options = Options { request_limit: std::time::Duration::from_millis(700), ..Options::default() };
    let measured = run_with(&sim.url(), &exactly(1, 1, 8), &options);
    let timeline = &measured.timelines[0];
    (timeline.outcome, timeline.chunks.len() as u64)
}

#[test]
fn each_failure_is_read_as_what_it_is() {
    for (fault, outcome, chunks) in [
        ("kind: status, status: 429", Outcome::RateLimited, 0),
        ("kind: status, status: 503", Outcome::HttpError, 0),
        ("kind: status, status: 500", Outcome::HttpError, 0),
        ("kind: status, status: 404", Outcome::HttpError, 0),
        ("kind: error_in_stream", Outcome::ServerErrorInStream, 4),
        ("kind: error_in_stream, after_tokens: 2", Outcome::ServerErrorInStream, 2),
        ("kind: error_in_body", Outcome::ServerErrorInBody, 0),
        ("kind: cut_body", Outcome::IncompleteBody, 4),
        ("kind: reset", Outcome::IncompleteBody, 4),
        ("kind: no_end", Outcome::StreamEndedEarly, 8),
        ("kind: no_tokens", Outcome::NoTokens, 0),
        ("kind: finish_error", Outcome::ServerErrorInStream, 8),
        ("kind: hang", Outcome::TimedOut, 4),
        ("kind: no_answer", Outcome::ConnectFailed, 0),
        ("kind: bad_json", Outcome::BadResponse, 8),
        ("kind: invalid_utf8", Outcome::BadResponse, 0),
    ] {
        assert_eq!(outcome_of(fault), (outcome, chunks), "{fault}");
    }
}

#[test]
fn a_stream_is_what_the_ledger_says() {
    let sim = Sim::start("{seed: 1, speed: {ttft: 20ms, step: 5ms, tokens_per_step: 4}}");
    let measured = measure(&sim, &exactly(4, 8, 21));
    for timeline in &measured.timelines {
        assert_eq!((timeline.outcome, timeline.chunks.len()), (Outcome::Ok, 6));
        assert_eq!(timeline.usage.unwrap().completion_tokens, Some(21));
        let text = timeline.text.as_deref().unwrap();
        assert_eq!(text.split_whitespace().count(), 21, "{text}");
    }
    let ledger = sim.stop();
    assert_eq!(ledger.len(), 8);
    for line in &ledger {
        let tokens: Vec<u64> =
            line["chunks"].as_array().unwrap().iter().map(|chunk| chunk[1].as_u64().unwrap()).collect();
        assert_eq!(tokens, [1, 4, 4, 4, 4, 4]);
        let at = |index: usize| line["chunks"][index][0].as_u64().unwrap();
        let arrived = line["arrived_ns"].as_u64().unwrap();
        assert!(at(0) >= arrived + 20_000_000, "never early");
        assert!(at(5) >= arrived + 45_000_000, "never early");
        assert!(line["end_ns"].as_u64().unwrap() >= at(5));
        assert_eq!((line["status"].as_u64(), line["aborted"].as_bool()), (Some(200), Some(false)));
    }
}

#[test]
fn the_same_seed_sends_the_same_tokens() {
    let tokens = |seed: u64| -> Vec<Value> {
        let sim = Sim::start(&format!("{{seed: {seed}, acceptance: [0.7, 0.4], speed: {{ttft: 1ms, step: 1ms}}}}"));
        let mut step = step("s", 3, Some(9));
        step.workload.stop = Stop::Natural { max_tokens: 60 };
        measure(&sim, &step);
        let mut counts: Vec<Value> = sim
            .stop()
            .iter()
            .map(|line| line["chunks"].as_array().unwrap().iter().map(|chunk| chunk[1].clone()).collect())
            .collect();
        counts.sort_by_key(ToString::to_string);
        counts
    };
    let first = tokens(5);
    assert_eq!(first.len(), 9);
    assert_eq!(first, tokens(5));
    assert_ne!(first, tokens(6));
}

#[test]
fn counters_add_up_with_the_ledger() {
    for (engine, output, drafts, drafted, accepted, prompt) in [
        (
            "vllm",
            "vllm:generation_tokens_total",
            "vllm:spec_decode_num_drafts_total",
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
            "vllm:prompt_tokens_total",
        ),
        (
            "llamacpp",
            "llamacpp:tokens_predicted_total",
            "llamacpp:spec_decode_num_drafts_total",
            "llamacpp:spec_decode_num_draft_tokens_total",
            "llamacpp:spec_decode_num_accepted_tokens_total",
            "llamacpp:prompt_tokens_total",
        ),
    ] {
        let sim = Sim::start(&format!(
            "{{seed: 1, as: {engine}, acceptance: [0.8, 0.5, 0.3], speed: {{ttft: 2ms, step: 1ms}}}}"
        ));
        measure(&sim, &exactly(4, 12, 40));
        let ledger = sim.ledger_of(12);
        let sum = |key: &str| ledger.iter().map(|line| line[key].as_u64().unwrap()).sum::<u64>() as f64;
        let sent: u64 = ledger
            .iter()
            .flat_map(|line| line["chunks"].as_array().unwrap().iter().map(|chunk| chunk[1].as_u64().unwrap()))
            .sum();
        assert_eq!(sent, 12 * 40);
        assert_eq!(sim.metric(output), Some(sent as f64));
        assert_eq!(sim.metric(drafts), Some(sum("verify_steps")));
        assert_eq!(sim.metric(drafted), Some(sum("drafted_tokens")));
        assert_eq!(sim.metric(drafted), Some(3.0 * sum("verify_steps")));
        assert_eq!(sim.metric(accepted), Some(sum("accepted_tokens")));
        assert_eq!(sim.metric(&accepted.replace("tokens_total", "tokens_per_pos_total")), Some(sum("accepted_tokens")));
        // The first token of each comes from its prompt, every other from a verify step or a draft.
        assert_eq!(sum("output_tokens"), 12.0 + sum("verify_steps") + sum("accepted_tokens"));
        let cached = if engine == "llamacpp" { sum("cached_tokens") } else { 0.0 };
        assert_eq!(sim.metric(prompt), Some(sum("prompt_tokens") - cached));
    }
}

#[test]
fn a_cap_makes_requests_wait() {
    let sim =
        Sim::start("{seed: 1, max_running_requests: 16, speed: {ttft: 30ms, step: 2ms}, serve: {cap_running: 2}}");
    let info = sim.json("/server_info");
    assert_eq!(info["max_running_requests"], 16);
    assert_eq!(info["internal_states"][0]["effective_max_running_requests_per_dp"], 2);
    measure(&sim, &exactly(6, 6, 10));
    let ledger = sim.stop();
    let span = |line: &Value| (line["started_ns"].as_u64().unwrap(), line["end_ns"].as_u64().unwrap());
    for line in &ledger {
        let (start, _) = span(line);
        let others = ledger.iter().filter(|other| span(other).0 <= start && start < span(other).1).count();
        assert!(others <= 2, "{others} at once");
    }
    let waited = ledger.iter().filter(|line| line["started_ns"] != line["arrived_ns"]).count();
    assert_eq!(waited, 4);
}

#[test]
fn everything_says_that_it_is_simulated() {
    for engine in ["sglang", "vllm", "llamacpp"] {
        let sim = Sim::start(&format!("{{as: {engine}, served_name: tiny}}"));
        assert_eq!(sim.json("/version")["simulated"], true);
        assert_eq!(sim.json("/v1/models")["data"][0]["id"], "tiny");
        assert_eq!(sim.get("/health").0, 200);
        assert_eq!(sim.get("/nothing").0, 404);
        let (status, text) =
            sim.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "6 times 7?"}]}));
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["choices"][0]["message"]["content"], "42");
        assert_eq!(answer["usage"]["completion_tokens"], 1);
        assert_eq!(sim.post("/v1/chat/completions", &json!({})).0, 400);
    }
}
