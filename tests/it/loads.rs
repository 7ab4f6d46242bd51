//! Shapes of load: schedules, recorded traces, conversations, shared prefixes, a search for the highest load.

use orch::load::Options;
use orch::load::lengths::calibrate;
use orch::measure::{Measured, MetricValue, Outcome, Seen, summarize};
use orch::profile::{Length, Trace, TraceRow};
use orch::render::{Api, Arrival, Stage, Step, Stop};
use serde_json::Value;

use crate::server::{Reply, block_on, run, run_with, start, step, target};
use crate::sim::Sim;
use crate::support::Home;

fn open(rate: f64, requests: u64) -> Step {
    let mut step = step("s", 1, Some(requests));
    step.load.arrival = Arrival::Open { rate, shape: "poisson".to_owned(), burstiness: None };
    step
}

/// The moments at which requests were due, in order, in seconds.
fn due(measured: &Measured) -> Vec<f64> {
    let mut due: Vec<u64> = measured.timelines.iter().map(|timeline| timeline.due).collect();
    due.sort_unstable();
    due.into_iter().map(|at| at as f64 / 1e9).collect()
}

/// Standard deviation over mean of the gaps.
fn variation(due: &[f64]) -> f64 {
    let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    variance.sqrt() / mean
}

fn body(post: &str) -> Value {
    serde_json::from_str(post.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_stall_of_the_server_is_in_the_percentiles_from_due_and_moves_no_moment() {
    for (rate, requests) in [(50.0, 250), (200.0, 800)] {
        let sim = Sim::start("{seed: 1, speed: {ttft: 5ms, step: 1ms}, serve: {stall: {at: 1s, for: 2s}}}");
        let mut step = open(rate, requests);
        step.workload.seed = 4;
        step.workload.stop = Stop::Exact { tokens: 2 };
        let measured = run_with(&sim.url(), &step, &Options::default());
        let variation = variation(&due(&measured));
        assert!((variation - 1.0).abs() < 0.1, "{variation} at {rate}");
        let summary = summarize(&measured, &step, &Seen::default());
        let MetricValue::Distribution(e2e) = &summary.metrics["e2e_from_due_ms"] else { panic!() };
        // Those that came at its beginning waited for all of it.
        assert!(e2e.max.unwrap() > 1900.0 && e2e.p90.unwrap() > 500.0, "{e2e:?} at {rate}");
        let span = due(&measured).last().unwrap() - due(&measured)[0];
        assert!((span - requests as f64 / rate).abs() < 0.2 * span, "{span} s at {rate}");
    }
}

#[test]
fn a_recorded_trace_is_replayed_at_its_moments() {
    let server = start(vec![Reply::tokens(1, 0)]);
    let mut step = step("s", 1, Some(300));
    let rows = (0..300).map(|n| TraceRow { at_ms: f64::from(n * n % 7) + f64::from(n) * 6.0, ..TraceRow::default() });
    let mut rows: Vec<TraceRow> = rows.collect();
    rows.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
    step.load.arrival = Arrival::Trace { speed: 2.0 };
    step.workload.special.trace = Some(Trace { rows: rows.clone(), block_tokens: 512 });
    let measured = run(&server, &step);
    assert_eq!(measured.timelines.len(), 300);
    let due = due(&measured);
    for (due, row) in due.iter().zip(&rows) {
        let wanted = row.at_ms / 2e3;
        assert!((due - measured.began as f64 / 1e9 - wanted).abs() < 0.002, "{due} instead of {wanted}");
    }
    let mut late: Vec<u64> = measured.timelines.iter().filter_map(|one| Some(one.sent? - one.due)).collect();
    late.sort_unstable();
    assert!(late[150] < 2_000_000, "half of them are sent within 2 ms: {} ns", late[150]);
}

#[test]
fn a_trace_with_lengths_makes_prompts_that_share_their_blocks() {
    let sim = Sim::start("{seed: 1, as: vllm, speed: {ttft: 1ms, step: 1ms}, serve: {cache_report: true}}");
    let row =
        |at_ms, input, blocks: &[u64]| TraceRow { at_ms, input: Some(input), output: Some(3), blocks: blocks.to_vec() };
    let mut step = step("s", 1, Some(3));
    step.workload.prompts.clear();
    step.workload.stop = Stop::Exact { tokens: 3 };
    step.load.arrival = Arrival::Trace { speed: 1.0 };
    let rows = vec![row(0.0, 300, &[1, 2]), row(200.0, 320, &[1, 3]), row(400.0, 300, &[4, 2])];
    step.workload.special.trace = Some(Trace { rows, block_tokens: 200 });
    let clock = orch::clock::Clock::system();
    let vocabulary = block_on(calibrate(&target(&sim.url()), &step.workload, &clock)).unwrap();
    let measured = run_with(&sim.url(), &step, &Options { vocabulary, ..Options::default() });
    let mut all: Vec<_> = measured.timelines.iter().collect();
    all.sort_by_key(|timeline| timeline.id);
    let inputs: Vec<_> = all.iter().map(|one| one.usage.unwrap().prompt_tokens.unwrap()).collect();
    assert_eq!(inputs, [300, 320, 300]);
    assert!(all.iter().all(|one| one.output_tokens().0 == 3));
    let cached: Vec<_> = all.iter().map(|one| one.usage.unwrap().cached_tokens.unwrap_or(0)).collect();
    // The simulated cache has blocks of 16.
    assert!((184..=200).contains(&cached[1]) && cached[2] < 32, "{cached:?}");
}

#[test]
fn stages_and_bursts_come_when_they_should() {
    let server = start(vec![Reply::tokens(1, 0)]);
    let mut ramp = step("s", 1, None);
    let stage = |from, to, duration_s| Stage { from, to, duration_s };
    ramp.load.arrival = Arrival::Stages {
        stages: vec![stage(20.0, 20.0, 0.5), stage(20.0, 100.0, 0.5)],
        shape: "constant".to_owned(),
        burstiness: None,
    };
    ramp.load.duration_s = Some(1.0);
    let measured = run(&server, &ramp);
    let count = measured.timelines.len();
    assert!((38..=40).contains(&count), "10 in the first half, 30 in the second: {count}");
    let mut bursts = step("s", 1, Some(9));
    bursts.load.arrival = Arrival::Bursts { requests: 3, every_s: 0.2 };
    let due = due(&run(&server, &bursts));
    assert_eq!((due[0], due[3]), (due[2], due[5]));
    assert!((due[3] - due[0] - 0.2).abs() < 1e-6 && (due[8] - due[0] - 0.4).abs() < 1e-6);
}

#[test]
fn each_turn_is_sent_with_what_was_said_before() {
    let server = start(vec![Reply::tokens(2, 0)]);
    let mut step = step("s", 1, Some(5));
    step.workload.special.turns = Some(2);
    let measured = run_with(&server.url(), &step, &Options::default());
    assert!(measured.timelines.iter().all(|timeline| timeline.outcome == Outcome::Ok && timeline.text.is_none()));
    let messages: Vec<Vec<Value>> =
        server.posts().iter().map(|post| body(post)["messages"].as_array().unwrap().clone()).collect();
    assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [1, 3, 1, 3, 1]);
    assert_eq!(messages[1][0], messages[0][0]);
    assert_eq!(messages[1][1], serde_json::json!({"role": "assistant", "content": " w0 w1"}));
    assert_ne!(messages[1][2]["content"], messages[1][0]["content"]);
}

#[test]
fn each_request_of_a_cold_workload_has_a_salt_of_its_own() {
    let server = start(vec![Reply::tokens(1, 0)]);
    let mut step = step("s", 2, Some(12));
    step.load.warmup = Some(3);
    step.workload.cold_prefix = true;
    step.workload.body.insert("cache_salt".to_owned(), "{unique}".into());
    run(&server, &step);
    let salts: std::collections::BTreeSet<String> =
        server.posts().iter().map(|post| body(post)["cache_salt"].as_str().unwrap().to_owned()).collect();
    assert_eq!(salts.len(), 15);
    assert!(salts.iter().all(|salt| salt.len() == 32));
}

#[test]
fn a_salted_prompt_is_not_found_in_the_cache_of_another() {
    let sim = Sim::start("{seed: 1, as: vllm, speed: {ttft: 1ms, step: 1ms}, serve: {cache_report: true}}");
    let mut step = step("s", 2, Some(16));
    for prompt in &mut step.workload.prompts {
        prompt.text = "the same words again ".repeat(20);
    }
    let cached = |step: &Step| -> u64 {
        let measured = run_with(&sim.url(), step, &Options::default());
        measured.timelines.iter().filter_map(|one| one.usage?.cached_tokens).sum()
    };
    assert!(cached(&step) > 0);
    step.workload.cold_prefix = true;
    step.workload.body.insert("cache_salt".to_owned(), "{unique}".into());
    assert_eq!(cached(&step), 0);
}

#[test]
fn a_wanted_share_of_the_prompts_is_in_the_cache() {
    let sim = Sim::start("{seed: 1, as: vllm, speed: {ttft: 1ms, step: 1ms}, serve: {cache_report: true}}");
    let mut step = step("s", 2, Some(20));
    step.load.warmup = Some(4);
    step.workload.prompts.clear();
    step.workload.lengths.input = Some(Length::Exact(400));
    step.workload.special.hit_ratio = Some(0.6);
    let clock = orch::clock::Clock::system();
    let vocabulary = block_on(calibrate(&target(&sim.url()), &step.workload, &clock)).unwrap();
    let measured = run_with(&sim.url(), &step, &Options { vocabulary, ..Options::default() });
    let (mut cached, mut all) = (0, 0);
    for usage in measured.timelines.iter().filter_map(|timeline| timeline.usage) {
        cached += usage.cached_tokens.unwrap_or(0);
        all += usage.prompt_tokens.unwrap();
    }
    let ratio = cached as f64 / all as f64;
    // The simulated cache has blocks of 16, the template of this server's chat is short.
    assert!((ratio - 0.6).abs() < 0.06, "{ratio}");
}

#[test]
fn a_whole_answer_and_one_of_the_responses_endpoint_are_read() {
    let whole = r#"{"choices":[{"message":{"content":"hi there"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let reply =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{whole}", whole.len());
    let server = start(vec![Reply::bytes(reply, crate::server::Then::Keep)]);
    let mut step = step("s", 1, Some(2));
    step.workload.special.whole = true;
    let measured = run(&server, &step);
    assert!(
        measured.timelines.iter().all(|timeline| timeline.outcome == Outcome::Ok && timeline.output_tokens().0 == 2)
    );
    assert_eq!(body(&server.posts()[0])["stream"], false);

    let event = |kind: &str, more: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{more}}}\n\n");
    let events = [
        event("response.created", r#""response":{"status":"in_progress"}"#),
        event("response.output_text.delta", r#""delta":" a""#),
        event("response.output_text.delta", r#""delta":" b""#),
        event(
            "response.completed",
            r#""response":{"status":"completed","usage":{"input_tokens":4,"output_tokens":2}}"#,
        ),
    ];
    let server = start(vec![Reply::events(&events, 1)]);
    step.workload.special.whole = false;
    step.workload.api = Api::Responses;
    let measured = run(&server, &step);
    let timeline = &measured.timelines[0];
    assert_eq!((timeline.outcome, timeline.text.as_deref()), (Outcome::Ok, Some(" a b")), "{:?}", timeline.error);
    assert_eq!((timeline.chunks.len(), timeline.input_tokens()), (2, Some(4)));
    let post = &server.posts()[0];
    assert!(post.starts_with("POST /v1/responses HTTP/1.1\r\n"), "{post}");
    assert_eq!(body(post)["max_output_tokens"], 16);
    assert!(body(post)["input"].as_str().unwrap().starts_with("prompt "), "{post}");
}

#[test]
fn a_search_finds_the_highest_load_within_the_limits() {
    let home = Home::new();
    // A server that runs four at a time: the fifth request waits for a whole answer, which no limit allows.
    let profile = home.write(
        "profiles/slo.yaml",
        "engine: {kind: sim, as: vllm, scenario: {seed: 1, speed: {ttft: 20ms, step: 10ms}, serve: {cap_running: 4}}}\n\
         bench: {slo: {prompts: [builtin/chat], output_tokens: 16, search: {concurrency: {from: 1, to: 32}}, \
         goodput: {ttft_ms: 120ms}, requests: 40, warmup: 2}}\n",
    );
    home.run(&["run", profile.to_str().unwrap()]).expect(0);
    let record = home.record();
    let steps: Vec<(&str, bool)> = record["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| (step["name"].as_str().unwrap(), step["probe"].as_bool().unwrap_or(false)))
        .collect();
    assert_eq!(steps.last(), Some(&("slo", false)), "{steps:?}");
    assert!(steps[..steps.len() - 1].iter().all(|(name, probe)| *probe && name.starts_with("slo@")), "{steps:?}");
    assert_eq!(record["steps"].as_array().unwrap().last().unwrap()["metrics"]["highest_concurrency"], 4.0);
    assert_eq!((&record["complete"], &record["verdict"]["kind"]), (&true.into(), &"no_baseline".into()));
}

#[test]
fn a_search_is_typed_in_the_words_of_a_profile() {
    let (home, sim) =
        (Home::new(), Sim::start("{seed: 1, as: vllm, speed: {ttft: 20ms, step: 10ms}, serve: {cap_running: 4}}"));
    let url = sim.url();
    let common = ["bench", "--url", &url, "--requests", "24", "--output-tokens", "16", "--warmup", "2", "--search"];
    let limits = ["--goodput", "ttft_ms=120ms"];
    home.run(&[&common[..], &["{concurrency: {from: 2, to: 8}}"], &limits].concat()).expect(0);
    let record = home.record();
    let steps = record["steps"].as_array().unwrap();
    let (probes, found) = steps.split_at(steps.len() - 1);
    assert!(probes.len() >= 3 && probes.iter().all(|probe| probe["probe"] == true), "{probes:?}");
    assert_eq!((&found[0]["name"], &found[0]["metrics"]["highest_concurrency"]), (&"bench".into(), &4.0.into()));
    let search = &record["profile"]["bench"]["bench"]["search"];
    assert_eq!(search["concurrency"], serde_json::json!({"from": 2.0, "to": 8.0}));
    for (words, told) in [
        (&["{concurency: {from: 2, to: 8}}", "--goodput", "ttft_ms=1s"][..], "did you mean `concurrency`?"),
        (&["{concurrency: {from: 8, to: 2}}", "--goodput", "ttft_ms=1s"], "`from` is not below `to`"),
        (&["{concurrency: {from: 2, to: 8}}"], "--goodput"),
        (&["{rate: {from: 2, to: 8}}", "--goodput", "ttft_ms=1s", "--rate", "3"], "cannot be used with"),
        (
            &["{concurrency: {from: 2, to: 8}}", "--goodput", "ttft_ms=1s", "--arrival", "constant"],
            "orch::bench::arrival",
        ),
    ] {
        let refused = home.run(&[&common[..], words].concat()).expect(2);
        assert!(refused.stderr.contains(told), "{words:?}: {}", refused.stderr);
    }
}

#[test]
fn more_streams_than_there_may_be_open_files_are_refused_before_anything_is_sent() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(1, 0)]));
    let orch = home.orch(&[]);
    let program = orch.get_program().to_str().unwrap();
    let script =
        format!("ulimit -n 300; exec {program} bench --url {} --requests 2000 --concurrency 1000", server.url());
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", &script]).env("XDG_STATE_HOME", home.state()).env("ORCH_RESULTS", home.results());
    let refused = crate::support::Ran::of(limited.output().unwrap()).expect(2);
    let told = ["1000 connections need more open files than the limit of 300", "ulimit -Hn"];
    assert!(told.iter().all(|words| refused.stderr.contains(words)), "{}", refused.stderr);
    assert!(server.posts().is_empty());
}

#[test]
fn a_quick_look_is_one_step_and_never_a_baseline() {
    let home = Home::new();
    let profile = home.write(
        "profiles/two.yaml",
        "engine: {kind: sim, as: vllm, scenario: {seed: 1, speed: {ttft: 20ms, step: 10ms}}}\n\
         bench: {one: {prompts: [builtin/chat], output_tokens: 8, concurrency: [2, 4], requests: 24}, \
         two: {prompts: [builtin/chat], output_tokens: 8, concurrency: 1, requests: 24}}\n",
    );
    let ran = home.run(&["run", profile.to_str().unwrap(), "--quick"]);
    // On a busy machine its numbers may not be used; a baseline it is in no case.
    assert!([0, 5].contains(&ran.code), "{}", ran.stderr);
    let record = home.record();
    assert_eq!(record["steps"].as_array().unwrap().len(), 1);
    assert_eq!(record["steps"][0]["load"]["duration_s"], 45.0);
    let refused = home.run(&["baseline", "set"]);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("quick look"), "{}", refused.stderr);
}
