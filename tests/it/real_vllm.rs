//! A real vLLM that speculates with n-grams, on the processor, measured by `orch bench`. Only by choice, for the engine is
//! gigabytes:
//!
//! ```text
//! ORCH_TEST_VLLM=…/bin/vllm ORCH_TEST_VLLM_MODEL=…/tiny-llama cargo test --test it real_vllm
//! ```
//!
//! The model may be of random weights: greedy, it falls into loops, and those are what n-grams find.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Home, free_port, not_chosen};

const REQUESTS: u64 = 24;
const TOKENS: u64 = 64;
/// Tokens drafted at most.
const DRAFT: u64 = 3;

/// vLLM's own imports take a minute, and ten times that beside other work.
const READY: Duration = Duration::from_mins(20);

#[test]
fn what_is_measured_of_speculation_is_what_the_engine_counted() {
    let chosen = |name| std::env::var_os(name).map(PathBuf::from);
    let (Some(vllm), Some(model)) = (chosen("ORCH_TEST_VLLM"), chosen("ORCH_TEST_VLLM_MODEL")) else {
        not_chosen("ORCH_TEST_VLLM (a vllm executable) and ORCH_TEST_VLLM_MODEL (a model's folder) are not set");
        return;
    };
    let home = Home::new();
    let engine = Engine::start(&vllm, &model, &home.path("vllm.log"));
    // So that no request of the two readings below lies outside of what is measured.
    let counts = ["--requests", "24", "--output-tokens", "64", "--concurrency", "4", "--warmup", "0"];
    let _ = home.run(&[&["bench", "--url", &engine.url(), "--no-record"], &counts[..]].concat()).expect(0);

    let rows = home.path("rows.jsonl");
    let before = engine.counters();
    let out = ["--seed", "1", "--json", "--keep-chunks", "--requests-out", rows.to_str().unwrap()];
    let ran = home.run(&[&["bench", "--url", &engine.url()], &counts[..], &out].concat()).expect(0);
    let counted = difference(&before, &engine.counters());

    let record: Value = serde_json::from_str(&ran.stdout).unwrap();
    let step = &record["steps"][0];
    assert_eq!(step["counts"]["ok"], REQUESTS, "{step:#}");
    tokens_are_those_of_the_usage(&rows, &counted);
    acceptance_is_the_engines(step, &counted);
    throughput_closes(&record, step, &counted);
}

fn tokens_are_those_of_the_usage(rows: &Path, counted: &Counted) {
    let text = std::fs::read_to_string(rows).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in &rows {
        assert_eq!((&row["output_tokens"], &row["token_source"]), (&TOKENS.into(), &"usage".into()), "{row}");
    }
    assert_eq!(counted["generation_tokens_total"], (REQUESTS * TOKENS) as f64, "what the engine says it made");
    // The reason for all this: a client that takes a chunk for a token is wrong here.
    let chunks: u64 = rows.iter().map(|row| row["chunks"].as_u64().unwrap()).sum();
    assert!(chunks < REQUESTS * TOKENS, "{chunks} chunks, so nothing was accepted");
}

fn acceptance_is_the_engines(step: &Value, counted: &Counted) {
    let [drafts, drafted, accepted] =
        ["drafts", "draft_tokens", "accepted_tokens"].map(|name| counted[&*format!("spec_decode_num_{name}_total")]);
    assert!(accepted > 0.0, "the engine accepted nothing: {counted:?}");
    let metrics = &step["metrics"];
    let expected = [("acceptance_length", 1.0 + accepted / drafts), ("acceptance_ratio", accepted / drafted)];
    for (id, expected) in expected {
        let got = metrics[id].as_f64().unwrap_or_else(|| panic!("no {id}: {metrics:#}"));
        assert!((got - expected).abs() < 1e-9, "{id} {got}, by the engine's counters {expected}");
    }
}

/// total tok/s = steps/s × requests per step × tokens per request-step. A step of a request need not have a draft, so
/// that the last factor is not the acceptance length. What is accepted beyond the length that was asked for is counted
/// and never sent: as far as a draft a request it is left out, and the product is the client's figure.
fn throughput_closes(record: &Value, step: &Value, counted: &Counted) {
    let metrics = &step["metrics"];
    let metric = |id: &str| metrics[id].as_f64().unwrap_or_else(|| panic!("no {id}: {metrics:#}"));
    let [tokens, accepted, first, further] = [
        "generation_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
    ]
    .map(|id| counted[id]);
    let stepped = first + further;
    let cut = stepped + accepted - tokens;
    let most = (DRAFT * REQUESTS) as f64;
    assert!((0.0..=most).contains(&cut), "{cut} accepted tokens were not sent: {counted:?}");
    let each = metric("tokens_per_request_step");
    assert!((each - tokens / stepped).abs() < 1e-9, "tokens_per_request_step {each}: {counted:?}");
    let product = metric("steps_per_s") * metric("requests_per_step") * each;
    let closure = product / metric("output_tokens_per_s");
    assert!((closure - 1.0).abs() < 1e-6, "the product is {closure} of the client's: {counted:?}");
    assert!((metric("closure_ratio") - closure).abs() < 1e-9, "{metrics:#}");
    let said = record["warnings"].to_string();
    assert!(!said.contains("\"closure\""), "{said}");
}

/// Counters by name, without their prefix and labels; those that differ by a label alone are added up.
type Counted = BTreeMap<String, f64>;

fn difference(before: &Counted, after: &Counted) -> Counted {
    after.iter().map(|(name, value)| (name.clone(), value - before.get(name).unwrap_or(&0.0))).collect()
}

/// A vLLM, ended with all that it started when this is dropped.
struct Engine {
    child: Child,
    port: u16,
}

impl Engine {
    /// Starts it and waits until it is ready.
    fn start(vllm: &Path, model: &Path, log: &Path) -> Self {
        let port = free_port();
        let file = std::fs::File::create(log).unwrap();
        let child = Command::new(vllm)
            .arg("serve")
            .arg(model)
            .args(["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--max-model-len", "1024", "--max-num-seqs", "8", "--dtype", "float32", "--enforce-eager"])
            .args(["--override-generation-config", r#"{"temperature": 0}"#])
            .arg("--speculative-config")
            .arg(format!(
                r#"{{"method":"ngram","num_speculative_tokens":{DRAFT},"prompt_lookup_max":4,"prompt_lookup_min":1}}"#
            ))
            .envs([("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1"), ("HF_HUB_OFFLINE", "1")])
            .env("VLLM_CPU_KVCACHE_SPACE", "1")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", vllm.display()));
        let mut engine = Engine { child, port };
        engine.wait_until_ready(log);
        engine
    }

    fn wait_until_ready(&mut self, log: &Path) {
        let begin = Instant::now();
        while self.get("/health").is_none() {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || begin.elapsed() > READY {
                let text = String::from_utf8_lossy(&std::fs::read(log).unwrap()).into_owned();
                let lines: Vec<_> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(40)..].join("\n");
                panic!("vLLM is not ready after {:?} ({ended:?})\n{tail}", begin.elapsed());
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The body of an answer of 200.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let head = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
    }

    fn counters(&self) -> Counted {
        let page = self.get("/metrics").unwrap();
        let mut counted = Counted::new();
        for line in page.lines().filter_map(|line| line.strip_prefix("vllm:")) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap().to_owned();
            *counted.entry(name).or_default() += value.parse::<f64>().unwrap();
        }
        counted
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A group of its own: vLLM's engine and workers are in it. A program that is gone is no fault here.
        let group = Pid::from_raw(self.child.id() as i32);
        let _ = killpg(group, Signal::SIGTERM);
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}
