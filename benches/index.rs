//! How long `orch list`, `orch history` and `orch compare` take as whole processes over a folder of many runs. Exits with 1
//! when one of them takes more than 100 ms.
//!
//! `cargo bench --bench index`; a number after `--` says how many runs there are (100000). They are made, not measured.
#![allow(clippy::print_stdout, reason = "a bench says what it measured")]
#![allow(dead_code, clippy::unwrap_used, reason = "it shares the stories' helpers")]

#[path = "../tests/it/built.rs"]
mod built;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use built::{orch, run};
use jiff::{SignedDuration, Timestamp};

const SERIES: u32 = 20;
const LIMIT: Duration = Duration::from_millis(100);
const TRIES: usize = 7;

fn main() -> ExitCode {
    let count: u32 = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(100_000);
    let results = tempfile::tempdir().unwrap();
    let newest = make(results.path(), count);
    // A folder that changed a moment ago is looked through once more.
    std::thread::sleep(Duration::from_secs(3));
    let began = Instant::now();
    let ended = orch(results.path(), &["index"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    println!("{count} runs in {SERIES} series, four steps each; index made in {:.1} s", began.elapsed().as_secs_f64());
    let set = orch(results.path(), &["baseline", "set", &before(&newest)]);
    assert_eq!(set.code, 0, "{}", set.err);
    let mut good = true;
    for (words, code) in [
        (&["list"][..], 0),
        (&["list", "--limit", "100", "--series", "series-7"], 0),
        (&["history", "series-7"], 0),
        (&["history", "series-7", "--step", "single", "--metric", "output_tokens_per_s"], 0),
        (&["compare", &newest], 0),
        (&["show", "latest"], 0),
    ] {
        let median = time(results.path(), words, code);
        good &= median <= LIMIT;
        println!("{:>7.1} ms  orch {}", median.as_secs_f64() * 1e3, words.join(" "));
    }
    println!("{}", if good { "within the limit" } else { "OUTSIDE THE LIMIT" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The median of some tries, after one that warms the caches.
fn time(results: &Path, words: &[&str], code: i32) -> Duration {
    let mut taken: Vec<Duration> = (0..=TRIES)
        .map(|_| {
            let began = Instant::now();
            let ended = orch(results, words);
            let took = began.elapsed();
            assert_eq!(ended.code, code, "{words:?}: {}", ended.err);
            took
        })
        .skip(1)
        .collect();
    taken.sort();
    taken[TRIES / 2]
}

/// Makes the runs, ten minutes apart and the series in turn. Gives the newest run's id.
fn make(results: &Path, count: u32) -> String {
    let first: Timestamp = "2025-01-01T00:00:00Z".parse().unwrap();
    let mut newest = String::new();
    for number in 0..count {
        let at = first + SignedDuration::from_mins(10 * i64::from(number));
        newest = id(at, number);
        let wobble = 1.0 + f64::from(number * 7919 % 101) / 10_000.0;
        let mut built = run(&newest);
        for (step, concurrency) in [("single", 1), ("ladder@4", 4), ("ladder@8", 8), ("ladder@16", 16)] {
            built = built.step(step, concurrency, 70.0 * wobble);
        }
        built.with(|record| record.series = format!("series-{}", number % SERIES)).keep(results);
    }
    newest
}

fn id(at: Timestamp, number: u32) -> String {
    format!("{}-made-{:04x}", at.strftime("%Y%m%d-%H%M%S"), number % 0x1_0000)
}

/// The run of the same series before this one.
fn before(newest: &str) -> String {
    let began = newest.parse::<orch::record::RunId>().unwrap().began_at().unwrap();
    let number = u32::from_str_radix(&newest[newest.len() - 4..], 16).unwrap();
    let back = began - SignedDuration::from_mins(10 * i64::from(SERIES));
    id(back, number.wrapping_sub(SERIES) & 0xffff)
}
