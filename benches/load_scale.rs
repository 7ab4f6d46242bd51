//! How many streams the client holds, in how much memory, and how soon it begins and ends. The client is `orch bench` as a
//! process of its own, the server `orch sim` as another; what the server wrote down is the truth.
//!
//! `cargo bench --bench load_scale`, about two minutes; words after `--` choose parts: `held`, `memory`, `ends`. Exits with
//! 1 when something is outside its limit.
//!
//! - `held`: 10,000 streams at once for a minute, each of them answered in full.
//! - `memory`: the client with 1,000 streams stays under 60 MB.
//! - `ends`: with 64 streams the first request is there 100 ms after the program was started, and the program has told its
//!   result and ended 100 ms after the last token. The best of several tries counts: noise only ever adds.
#![allow(clippy::print_stdout, reason = "a bench says what it measured")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot run has nothing to say")]

mod shared;

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use serde_json::Value;
use shared::{Line, ORCH, Sim};

/// A client that has ended.
struct Ended {
    code: Option<i32>,
    said: String,
    /// The most memory that it had, in bytes.
    peak_bytes: u64,
    began: u64,
    ended: u64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let chosen = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let good = (!chosen("ends") || ends()) & (!chosen("memory") || memory()) & (!chosen("held") || held());
    println!("{}", if good { "within the limits" } else { "OUTSIDE THE LIMITS" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, in which the ledger is written too.
fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(Duration::from(time).as_nanos()).unwrap()
}

fn mark(within: bool) -> &'static str {
    if within { "ok" } else { "OUTSIDE" }
}

/// Runs the client to its end. `watched`: its memory is looked at meanwhile.
fn client(sim: &Sim, words: &str, watched: bool) -> Ended {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(ORCH);
    command.args(["bench", "--share", "--url", sim.url()]).args(words.split_whitespace());
    command.env("XDG_STATE_HOME", home.path().join("state")).env("ORCH_RESULTS", home.path().join("results"));
    command.env_remove("ORCH_STORE");
    let began = now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        said
    });
    let mut peak_bytes = 0;
    while watched && child.try_wait().unwrap().is_none() {
        peak_bytes = peak_of(child.id()).unwrap_or(0).max(peak_bytes);
        std::thread::sleep(Duration::from_millis(5));
    }
    let code = child.wait().unwrap().code();
    Ended { code, ended: now(), said: reader.join().unwrap(), peak_bytes, began }
}

/// The most memory that a process has had so far, as the kernel counts it.
fn peak_of(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Requests that ended well, and that did not, by the client's own record.
fn counts(ended: &Ended) -> (u64, u64) {
    let record: Value = serde_json::from_str(&ended.said).unwrap_or_default();
    let count = |key: &str| record["steps"][0]["counts"][key].as_u64().unwrap_or(0);
    (count("ok"), count("failed"))
}

/// Whether all requests were answered in full, by the client's record and by the server's ledger.
fn answered(ended: &Ended, lines: &[Line], requests: u64, chunks: usize) -> bool {
    let (ok, failed) = counts(ended);
    let whole = lines.iter().filter(|line| line.chunks.len() == chunks).count() as u64;
    let within = (ok, failed, whole) == (requests, 0, requests);
    println!("  answered {ok}, failed {failed}, whole by the ledger {whole} of {requests}   {}", mark(within));
    if !within {
        println!("  exit {:?}", ended.code);
    }
    within
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn held() -> bool {
    const STREAMS: u64 = 10_000;
    const CHUNKS: usize = 36;
    println!("{STREAMS} streams, a token every 2 s");
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if hard < STREAMS + 300 {
        println!("  the hard limit of open files is {hard}: raise it (ulimit -Hn) to hold so many   OUTSIDE\n");
        return false;
    }
    let sim = Sim::start("{seed: 1, as: vllm, stop: {drain: none}, speed: {ttft: 2s, step: 2s}}", None);
    let words =
        format!("--json --no-record --warmup 0 --requests {STREAMS} --concurrency {STREAMS} --output-tokens {CHUNKS}");
    let ended = client(&sim, &words, true);
    let lines = sim.stop();
    let mut good = answered(&ended, &lines, STREAMS, CHUNKS);
    let last_in = lines.iter().map(|line| line.arrived_ns).max().unwrap_or(0);
    let first_out = lines.iter().map(|line| line.end_ns).min().unwrap_or(0);
    let together_s = first_out.saturating_sub(last_in) as f64 / 1e9;
    good &= together_s >= 60.0;
    println!("  all of them open together for {together_s:.1} s, at least 60   {}", mark(together_s >= 60.0));
    println!("  client's peak memory {:.1} MB\n", megabytes(ended.peak_bytes));
    good
}

fn memory() -> bool {
    const STREAMS: u64 = 1000;
    const CHUNKS: usize = 64;
    const LIMIT: f64 = 60.0;
    println!("{STREAMS} streams, a token every 20 ms");
    let sim = Sim::start("{seed: 1, as: vllm, stop: {drain: none}, speed: {ttft: 50ms, step: 20ms}}", None);
    let requests = STREAMS * 4;
    let words = format!("--json --warmup 0 --requests {requests} --concurrency {STREAMS} --output-tokens {CHUNKS}");
    let ended = client(&sim, &words, true);
    let lines = sim.stop();
    let good = answered(&ended, &lines, requests, CHUNKS);
    let peak = megabytes(ended.peak_bytes);
    println!("  client's peak memory {peak:.1} MB, limit {LIMIT}   {}\n", mark(peak < LIMIT));
    good && peak < LIMIT
}

fn ends() -> bool {
    const STREAMS: u64 = 64;
    const LIMIT_MS: f64 = 100.0;
    println!("{STREAMS} streams, begun and told");
    let (mut first, mut told) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let sim = Sim::start("{seed: 1, as: vllm, stop: {drain: none}, speed: {ttft: 50ms, step: 20ms}}", None);
        let words = format!("--warmup 0 --requests {STREAMS} --concurrency {STREAMS} --output-tokens 16");
        let ended = client(&sim, &words, false);
        assert!(ended.said.lines().last().is_some_and(|line| line.starts_with("exit ")), "not told: {}", ended.said);
        let lines = sim.stop();
        let begun = lines.iter().map(|line| line.arrived_ns).min().unwrap();
        let last = lines.iter().filter_map(|line| line.chunks.last()).map(|(at, _)| *at).max().unwrap();
        first.push((begun - ended.began) as f64 / 1e6);
        told.push((ended.ended - last) as f64 / 1e6);
    }
    let mut good = true;
    for (what, all) in [("first request after the start", first), ("told after the last token", told)] {
        let best = all.iter().copied().fold(f64::INFINITY, f64::min);
        let each: Vec<String> = all.iter().map(|ms| format!("{ms:.0}")).collect();
        good &= best <= LIMIT_MS;
        println!("  {what:<30} {} ms, limit {LIMIT_MS}   {}", each.join(" "), mark(best <= LIMIT_MS));
    }
    println!();
    good
}
