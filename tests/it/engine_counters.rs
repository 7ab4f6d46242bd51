//! The engine's own counters: a real llama.cpp that speculates, and endpoints that have counters, others, or none.

use std::path::Path;

use serde_json::Value;

use crate::server::{self, Reply};
use crate::sim::Sim;
use crate::support::{Home, free_port};

/// What llama.cpp's log says of the drafts of one request: accepted, drafted, tokens a verify step.
fn drafts(run: &Path) -> Vec<(f64, f64, f64)> {
    let log = std::fs::read_to_string(run.join("server.log")).unwrap();
    let number = |text: &str| -> f64 { text.split_whitespace().next().unwrap().parse().unwrap() };
    log.lines()
        .filter_map(|line| line.split_once("draft acceptance = "))
        .map(|(_, rest)| {
            let accepted = number(rest.split_once('(').unwrap().1);
            let drafted = number(rest.split_once("accepted /").unwrap().1);
            (accepted, drafted, number(rest.split_once("mean len =").unwrap().1))
        })
        .collect()
}

#[track_caller]
fn within(is: f64, should: f64, share: f64, what: &str) {
    assert!((is / should - 1.0).abs() <= share, "{what} is {is}, and should be {should}");
}

#[test]
fn acceptance_on_a_real_llamacpp_is_that_of_its_log_and_the_throughput_closes() {
    let Some(home) = Home::with_engine() else { return };
    let profile = home.write(
        "profiles/draft.yaml",
        &format!(
            "extends: {}\nport: {}\nname: draft\n\
             bench: {{single: null, ladder: {{use: chat-mix, output: {{stop: natural, max_tokens: 32}}, concurrency: 2, requests: 16, warmup: 2}}}}\n",
            std::env::current_dir().unwrap().join("profiles/smollm2-draft.yaml").display(),
            free_port()
        ),
    );
    let ran = home.run(&["run", profile.to_str().unwrap()]).expect(0);
    let record = home.record();
    let step = &record["steps"][0];
    let own = drafts(&home.newest_run());
    // The proof of readiness and the warm-up come before the measured requests. An answer of a token or two may have
    // no draft, and so no line.
    let own = &own[own.len().saturating_sub(16)..];
    let (accepted, drafted) = own.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!(own.len(), 16, "{own:?}");
    assert_eq!(step["counters"]["accepted_tokens"], accepted, "{step:#}");
    assert_eq!(step["counters"]["draft_tokens"], drafted);
    within(step["metrics"]["acceptance_ratio"].as_f64().unwrap(), accepted / drafted, 1e-9, "the ratio");
    // Verify steps by its log: accepted / (mean length - 1), where any was accepted.
    let verified: f64 = own.iter().filter(|one| one.2 > 1.0).map(|one| one.0 / (one.2 - 1.0)).sum();
    if own.iter().all(|one| one.2 > 1.0) {
        within(step["metrics"]["acceptance_length"].as_f64().unwrap(), 1.0 + accepted / verified, 0.01, "the length");
    }
    let by_position: f64 =
        step["acceptance_by_position"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).sum();
    within(step["metrics"]["acceptance_length"].as_f64().unwrap(), 1.0 + by_position, 1e-9, "the sum over positions");
    for (id, source) in [("acceptance_length", "counters"), ("closure_ratio", "counters"), ("waiting_ratio", "sampled")]
    {
        assert_eq!(step["sources"][id], source, "{id}");
    }
    // The answers' own words give the same ratio.
    let metrics = &step["metrics"];
    let product: f64 = ["steps_per_s", "requests_per_step", "tokens_per_request_step"]
        .iter()
        .map(|id| metrics[*id].as_f64().unwrap_or_else(|| panic!("{id}: {metrics:#}")))
        .product();
    within(product, metrics["output_tokens_per_s"].as_f64().unwrap(), 0.02, "the product of the three");
    within(metrics["closure_ratio"].as_f64().unwrap(), 1.0, 0.02, "the closure");
    let ids: Vec<&str> =
        record["warnings"].as_array().unwrap().iter().map(|warning| warning["id"].as_str().unwrap()).collect();
    for id in ["closure", "forced_past_eos", "few_prompts", "no_chat_template", "acceptance_unknown"] {
        assert!(!ids.contains(&id), "{ids:?}");
    }
    assert!(ran.stdout.contains("accepted per step: on the workload chat-mix"), "{}", ran.stdout);
    assert!(ran.stdout.contains("closure: steps/s x requests a step x tokens"), "{}", ran.stdout);
}

/// `orch bench` of an endpoint, and the record of it.
fn bench(url: &str, more: &[&str]) -> Value {
    let home = Home::new();
    let words =
        ["bench", "--url", url, "--requests", "32", "--concurrency", "4", "--warmup", "4", "--no-record", "--json"];
    let ran = home.run(&[&words[..], more].concat());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr))
}

fn warnings(record: &Value) -> Vec<&str> {
    record["warnings"].as_array().unwrap().iter().map(|warning| warning["id"].as_str().unwrap()).collect()
}

#[test]
fn the_counters_of_each_engine_are_read_over_the_measured_requests_alone() {
    for engine in ["sglang", "vllm", "llamacpp"] {
        let sim = Sim::start(&format!(
            "as: {engine}\nspeed: {{ttft: 5ms, step: 4ms}}\nacceptance: [0.8, 0.6, 0.4]\noutput: 40\n"
        ));
        let record = bench(&sim.url(), &[]);
        let step = &record["steps"][0];
        // The four of the warm-up came first.
        let ledger = sim.ledger_of(36);
        let sum = |name: &str| ledger[4..].iter().map(|line| line[name].as_f64().unwrap()).sum::<f64>();
        let (accepted, drafted, verified) = (sum("accepted_tokens"), sum("drafted_tokens"), sum("verify_steps"));
        assert!(accepted > 100.0 && verified > 100.0, "{engine}: {ledger:?}");
        let counts = ["accepted_tokens", "draft_tokens", "verify_steps"].map(|name| step["counters"][name].as_f64());
        assert_eq!(counts, [accepted, drafted, verified].map(Some), "{engine}: {step:#}");
        within(step["metrics"]["acceptance_length"].as_f64().unwrap(), 1.0 + accepted / verified, 1e-9, engine);
        within(step["metrics"]["acceptance_ratio"].as_f64().unwrap(), accepted / drafted, 1e-9, engine);
        within(step["metrics"]["closure_ratio"].as_f64().unwrap(), 1.0, 0.02, engine);
        assert_eq!(step["sources"]["acceptance_length"], "counters", "{engine}");
        assert!(!warnings(&record).contains(&"closure"), "{record:#}");
    }
}

#[test]
fn without_speculation_an_acceptance_is_absent_and_not_0() {
    for engine in ["sglang", "vllm", "llamacpp"] {
        let sim = Sim::start(&format!("as: {engine}\nspeed: {{ttft: 5ms, step: 4ms}}\noutput: 40\n"));
        let record = bench(&sim.url(), &["--api", "completions", "--output-tokens", "16"]);
        let metrics = &record["steps"][0]["metrics"];
        for id in ["acceptance_length", "acceptance_ratio"] {
            assert!(metrics[id].is_null(), "{engine}: {id} is {}", metrics[id]);
        }
        within(metrics["closure_ratio"].as_f64().unwrap(), 1.0, 0.02, engine);
        for id in ["closure", "forced_past_eos", "no_chat_template", "few_prompts"] {
            assert!(!warnings(&record).contains(&id), "{engine}: {id}");
        }
    }
}

#[test]
fn an_acceptance_of_forced_answers_without_a_template_is_warned_of_and_the_step_is_valid() {
    let sim = Sim::start("as: vllm\nspeed: {ttft: 5ms, step: 4ms}\nacceptance: [0.8, 0.6]\n");
    let record = bench(&sim.url(), &["--api", "completions", "--output-tokens", "32"]);
    for id in ["forced_past_eos", "no_chat_template"] {
        assert!(warnings(&record).contains(&id), "{:?}", warnings(&record));
    }
    assert!(!warnings(&record).contains(&"few_prompts"));
    let reasons = record["steps"][0]["reasons"].as_array().unwrap();
    assert!(!reasons.iter().any(|reason| reason["id"] == "forced_past_eos"), "{reasons:?}");
}

#[test]
fn an_endpoint_whose_pages_are_nonsense_is_measured_without_counters() {
    let server = server::start(vec![Reply::tokens(8, 1)]);
    let record = bench(&server.url(), &[]);
    let step = &record["steps"][0];
    assert_eq!(step["counts"]["ok"], 32);
    assert!(step["counters"].as_object().unwrap().is_empty(), "{step:#}");
    for id in ["steps_per_s", "closure_ratio", "acceptance_length", "waiting_ratio"] {
        assert!(step["metrics"][id].is_null(), "{id}");
    }
    assert_eq!(server.posts().len(), 36, "the generating endpoint is asked for the requests alone");
}
