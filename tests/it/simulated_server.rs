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
    // Only what hangs is to run into the limit, however busy the machine is.
    let limit = if fault.starts_with("kind: hang") { 700 } else { 20_000 };
    let options = Options { request_limit: std::time::Duration::from_millis(limit), ..Options::default() };
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
        Sim::start("{seed: 1, max_running_requests: 16, speed: {ttft: 150ms, step: 2ms}, serve: {cap_running: 2}}");
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

#[test]
fn a_stream_has_the_shape_of_its_engine() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Tell me something"}], "stream": true,
        "max_tokens": 3, "ignore_eos": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = |sim: &Sim, path: &str, body: &Value| -> Vec<Value> {
        let (status, text) = sim.post(path, body);
        assert_eq!(status, 200, "{text}");
        assert!(!text.contains("data: [DONE]") || text.trim_end().ends_with("0"), "{text}");
        let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|line| *line != "[DONE]").map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let counts = |events: &[Value]| -> Vec<Option<u64>> {
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64()).collect()
    };

    let sim = Sim::start("{as: sglang, speed: {ttft: 1ms, step: 1ms}}");
    let sglang = events(&sim, "/v1/chat/completions", &body);
    assert_eq!(counts(&sglang), [None, Some(1), Some(2), Some(3), None, Some(3)]);
    assert_eq!(sglang[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(sglang[4]["choices"][0]["finish_reason"], "length");
    let asked =
        json!({"text": "one two", "sampling_params": {"max_new_tokens": 3, "ignore_eos": true}, "stream": true});
    let native = events(&sim, "/generate", &asked);
    let texts: Vec<usize> =
        native.iter().map(|event| event["text"].as_str().unwrap().split_whitespace().count()).collect();
    assert_eq!(texts, [1, 2, 3], "it says everything again each time");
    assert_eq!(native[2]["meta_info"]["completion_tokens"], 3);

    let sim = Sim::start("{as: vllm, speed: {ttft: 1ms, step: 1ms}, serve: {reasoning: {tokens: 2}}}");
    let vllm = events(&sim, "/v1/chat/completions", &body);
    assert_eq!(counts(&vllm), [None, Some(1), Some(2), Some(3), Some(3)]);
    assert!(vllm[1]["choices"][0]["delta"]["reasoning"].is_string());
    assert!(vllm[3]["choices"][0]["delta"]["content"].is_string());
    assert_eq!(vllm[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(vllm[4]["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);

    let sim = Sim::start("{as: llamacpp, speed: {ttft: 1ms, step: 1ms}, acceptance: [1]}");
    let llama = events(&sim, "/v1/chat/completions", &body);
    assert_eq!(counts(&llama), [None, None, None, None, Some(3)], "it has no usage in each chunk");
    let timings = &llama[4]["timings"];
    assert_eq!((timings["predicted_n"].as_u64(), timings["draft_n_accepted"].as_u64()), (Some(3), Some(1)));
    let native =
        events(&sim, "/completion", &json!({"prompt": "one", "n_predict": 3, "ignore_eos": true, "stream": true}));
    assert_eq!(
        (native.last().unwrap()["stop"].as_bool(), native.last().unwrap()["stop_type"].as_str()),
        (Some(true), Some("limit"))
    );
}

#[test]
fn hidden_reasoning_is_counted_and_not_sent() {
    let sim = Sim::start("{speed: {ttft: 2ms, step: 2ms}, serve: {reasoning: {tokens: 10, hidden: true}}}");
    let measured = measure(&sim, &exactly(1, 1, 16));
    let timeline = &measured.timelines[0];
    let usage = timeline.usage.unwrap();
    assert_eq!((usage.completion_tokens, usage.reasoning_tokens), (Some(16), Some(10)));
    assert_eq!((timeline.chunks.len(), timeline.reasoning_text.as_deref().unwrap_or("")), (6, ""));
    let ledger = sim.stop();
    assert_eq!((ledger[0]["chunks"].as_array().unwrap().len(), ledger[0]["output_tokens"].as_u64()), (6, Some(16)));
}

#[test]
fn without_room_a_request_is_retracted_and_ends_all_the_same() {
    let scenario = "{as: vllm, speed: {ttft: 50ms, step: 5ms}, serve: {kv_tokens: 60}}";
    let sim = Sim::start(scenario);
    let measured = measure(&sim, &exactly(3, 3, 40));
    assert!(measured.timelines.iter().all(|timeline| timeline.outcome == Outcome::Ok));
    let ledger = sim.ledger_of(3);
    let retracted: u64 = ledger.iter().map(|line| line["retracted"].as_u64().unwrap()).sum();
    assert!(retracted > 0, "{ledger:?}");
    assert_eq!(sim.metric("vllm:num_preemptions_total"), Some(retracted as f64));
    assert!(ledger.iter().all(|line| line["output_tokens"] == 40));
}

#[test]
fn a_prompt_that_comes_again_is_cached() {
    let sim = Sim::start("{as: llamacpp, speed: {ttft: 1ms, step: 1ms}}");
    let prompt = "the same words again ".repeat(10);
    let ask = |more: Value| {
        let mut body = json!({"prompt": prompt, "max_tokens": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (_, text) = sim.post("/v1/completions", &body);
        let answer: Value = serde_json::from_str(&text).unwrap();
        let usage = &answer["usage"];
        (usage["prompt_tokens"].as_u64().unwrap(), usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    };
    assert_eq!(ask(json!({})), (40, 0));
    assert_eq!(ask(json!({})), (40, 32), "two blocks of 16");
    assert_eq!(ask(json!({"cache_prompt": false})), (40, 0));
    assert_eq!(sim.metric("llamacpp:prompt_tokens_cached_total"), Some(32.0));
    let (status, text) = sim.post("/tokenize", &json!({"content": prompt}));
    let tokens: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, tokens["tokens"].as_array().unwrap().len()), (200, 40));
}

#[test]
fn a_held_back_stream_comes_at_once() {
    let sim = Sim::start("{speed: {ttft: 60ms, step: 10ms}, serve: {buffer: true}}");
    let measured = measure(&sim, &exactly(1, 1, 12));
    let timeline = &measured.timelines[0];
    assert_eq!((timeline.outcome, timeline.chunks.len()), (Outcome::Ok, 12));
    let ledger = sim.stop();
    assert_eq!(ledger[0]["chunks"].as_array().unwrap().len(), 1, "one write");
    assert_eq!(ledger[0]["chunks"][0][1], 12);
}

#[test]
fn a_stall_delays_the_steps_in_it_and_no_more() {
    let sim = Sim::start("{speed: {ttft: 10ms, step: 10ms}, serve: {stall: {at: 40ms, for: 200ms}}}");
    measure(&sim, &exactly(1, 1, 10));
    let ledger = sim.stop();
    let times: Vec<u64> =
        ledger[0]["chunks"].as_array().unwrap().iter().map(|chunk| chunk[0].as_u64().unwrap()).collect();
    let arrived = ledger[0]["arrived_ns"].as_u64().unwrap();
    let stalled: Vec<_> = times.iter().filter(|at| (**at - arrived) / 1_000_000 >= 240).collect();
    assert_eq!(stalled.len(), 7, "{times:?}");
    assert!(times[9] >= arrived + 300_000_000, "they go on at their pace: {times:?}");
}

#[test]
fn it_ends_as_it_is_told() {
    let ask = |sim: &Sim| {
        let body = json!({"prompt": "one", "max_tokens": 30, "ignore_eos": true, "stream": true});
        sim.post("/v1/completions", &body)
    };
    // SGLang lets what runs come to its end,
    let slow = "speed: {ttft: 50ms, step: 50ms}";
    for (engine, whole) in [("sglang", true), ("llamacpp", false), ("vllm", false)] {
        let sim = Sim::start(&format!("{{as: {engine}, {slow}}}"));
        let text = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&sim).1);
            while !sim.running() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            sim.terminate();
            asking.join().unwrap()
        });
        assert_eq!(text.contains("[DONE]"), whole, "{engine}: {text}");
        let (status, _, ledger) = sim.end();
        assert_eq!(status.code(), Some(0), "{engine}");
        // and nothing is lost of what was cut off.
        assert_eq!((ledger.len(), ledger[0]["aborted"].as_bool()), (1, Some(!whole)), "{engine}");
    }
}

#[test]
fn it_dies_as_it_is_told() {
    use std::os::unix::process::ExitStatusExt;
    let body = json!({"prompt": "one", "max_tokens": 8, "ignore_eos": true, "stream": true});
    let sim = Sim::start("{speed: {ttft: 1ms, step: 1ms}, serve: {die: {after: 2, how: kill}}}");
    for _ in 0..2 {
        sim.post("/v1/completions", &body);
    }
    let (status, log, ledger) = sim.end();
    assert_eq!((status.signal(), ledger.len()), (Some(9), 2), "{log}");
    let sim = Sim::start("{speed: {ttft: 1ms, step: 1ms}, serve: {die: {mid_stream: 1, code: 7}}}");
    let (_, text) = sim.post("/v1/completions", &body);
    assert!(!text.contains("[DONE]"), "{text}");
    let (status, log, ledger) = sim.end();
    assert_eq!((status.code(), ledger[0]["output_tokens"].as_u64()), (Some(7), Some(4)), "{log}");
}

#[test]
fn a_restart_loses_connections_and_counts() {
    let sim = Sim::start("{as: vllm, speed: {ttft: 1ms, step: 1ms}, serve: {restart: {after: 3, for: 50ms}}}");
    let body = json!({"prompt": "one", "max_tokens": 8, "ignore_eos": true});
    for _ in 0..3 {
        assert_eq!(sim.post("/v1/completions", &body).0, 200);
    }
    let begun = std::time::Instant::now();
    loop {
        // While it is away nobody listens.
        let there = std::net::TcpStream::connect(("127.0.0.1", sim.port())).is_ok();
        if there && sim.metric("vllm:generation_tokens_total") == Some(0.0) {
            break;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(sim.post("/v1/completions", &body).0, 200);
    assert_eq!(sim.metric("vllm:generation_tokens_total"), Some(8.0));
    assert_eq!(sim.stop().len(), 4);
}

#[test]
fn endpoints_may_be_missing_or_broken() {
    let sim =
        Sim::start("serve: {metrics: false, endpoints: {/server_info: nonsense, /v1/models: error, /version: absent}}");
    assert_eq!(sim.get("/metrics").0, 404);
    assert!(sim.get("/server_info").1.starts_with("<!doctype html>"));
    assert_eq!((sim.get("/v1/models").0, sim.get("/version").0), (500, 404));
}

#[test]
fn a_bad_scenario_is_told_before_anything_serves() {
    let home = crate::support::Home::new();
    let path = home.write("scenario.yaml", "speed: {tttft: 50ms}\nserve: {die: {}}\n");
    let ran = home.run(&["sim", "--port", "0", "--scenario", path.to_str().unwrap()]).expect(2);
    assert!(
        ran.stderr.contains("unknown key `speed.tttft`") && ran.stderr.contains("did you mean `ttft`?"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("`serve.die` does not say when"), "{}", ran.stderr);
}

#[test]
fn the_examples_of_its_page_are_scenarios() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/simulated.md")).unwrap();
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 5, "{}", blocks.len());
    for block in blocks {
        orch::sim::Scenario::parse("the page", block).unwrap_or_else(|error| panic!("{block}\n{error:?}"));
    }
}
