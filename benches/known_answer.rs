//! The known answer: 50 ms to the first token and 20 ms between chunks, server and client on a core each. Exits with 1
//! when what the client says is further from the server's ledger than it may be.
//!
//! `cargo bench --bench known_answer`; a number after `--` says how often each course is tried (3). Noise only ever adds
//! to an error, so the best try counts.
#![allow(clippy::print_stdout, reason = "a bench says what it measured")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use orch::selftest::{Course, Outcome, Pins, run};

/// Metric, percentile, and the error in milliseconds that it may have.
type Limits = &'static [(&'static str, &'static str, f64)];

const LIMITS: Limits = &[
    ("ttft_ms", "p50", 0.5),
    ("ttft_ms", "p99", 3.0),
    ("tpot_ms", "p50", 0.1),
    ("tpot_ms", "p99", 2.0),
    ("chunk_gap_ms", "p50", 0.1),
    ("chunk_gap_ms", "p99", 2.0),
    ("e2e_ms", "p99", 5.0),
];
const LIMITS_AT_1000: Limits = &[("ttft_ms", "p50", 1.0), ("ttft_ms", "p99", 10.0)];

fn main() -> ExitCode {
    let tries = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(3);
    let pins = Pins::of_this_machine();
    println!("cores: {pins:?}; best of {tries}\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let mut good = true;
    for (streams, limits) in [(64, LIMITS), (256, LIMITS), (1000, LIMITS_AT_1000)] {
        for tokens_per_chunk in [1, 4] {
            let course = Course {
                streams,
                requests: u64::from(streams) * 4,
                ttft: Duration::from_millis(50),
                gap: Duration::from_millis(20),
                chunks: 64,
                tokens_per_chunk,
            };
            let outcomes: Vec<Outcome> = (0..tries)
                .map(|_| {
                    let ran = run(Path::new(env!("CARGO_BIN_EXE_orch")), &course, pins, folder.path());
                    runtime.block_on(ran).expect("a course that runs")
                })
                .collect();
            good &= tell(&course, &outcomes, limits);
        }
    }
    println!("{}", if good { "within the limits" } else { "OUTSIDE THE LIMITS" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a course, and says whether its best try is within the limits.
fn tell(course: &Course, outcomes: &[Outcome], limits: Limits) -> bool {
    let Course { streams, tokens_per_chunk, .. } = course;
    println!("{streams} streams, {tokens_per_chunk} tokens a chunk");
    let mut good = outcomes.iter().all(|outcome| outcome.counts_agree && outcome.failed == 0);
    let busy: Vec<String> = outcomes.iter().map(|one| format!("{:.2}", one.client.busy_ratio.unwrap_or(0.0))).collect();
    println!("  counts {}; client busy {}", if good { "agree" } else { "DIFFER" }, busy.join(" "));
    for (metric, percentile, limit) in limits {
        let errors: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.error_ms(metric, percentile)).collect();
        let best = errors.iter().copied().min_by(f64::total_cmp);
        let within = best.is_some_and(|best| best <= *limit);
        good &= within;
        let all: Vec<String> = errors.iter().map(|error| format!("{error:.3}")).collect();
        let mark = if within { "ok" } else { "OUTSIDE" };
        println!("  {metric:<13} {percentile}  limit {limit:>5}  errors {:<28} {mark}", all.join(" "));
    }
    good
}
