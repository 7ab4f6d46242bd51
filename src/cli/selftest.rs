//! `orch selftest client`: how exact this machine's client is, and how much it can read.

use std::time::Duration;

use serde_json::json;

use super::{Exit, Failure, Global, Outcome, out};
use crate::launch::WorkFolder;
use crate::selftest::{self, Ceiling, Course, Pins, remember, timer_error};

/// Tests orch itself on this machine
#[derive(Debug, clap::Args)]
pub(crate) struct SelftestArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Client(ClientArgs),
}

/// How exact this machine's client is, and how much it can read
///
/// Sends load to a simulated engine on this machine and holds what the client measured against what the server wrote
/// down. The ceiling is remembered: later runs say how near they came to it.
#[derive(Debug, clap::Args)]
struct ClientArgs {
    /// Requests in flight, one course each
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,64,256,1000",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    streams: Vec<u32>,
    /// Let the system choose the cores, instead of one for the server and one for the client
    #[arg(long)]
    no_pin: bool,
    /// Prints the result as JSON on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: SelftestArgs, _global: &Global) -> Outcome {
    let What::Client(ClientArgs { streams, no_pin, json }) = args.what;
    let most = streams.iter().copied().max().unwrap_or(1);
    crate::load::allow_open_files(most).map_err(|error| Failure::new(Exit::Usage, error))?;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    // Whoever measures meanwhile would be in these numbers, and this load in theirs.
    let _alone = work
        .measure(&format!("selftest (pid {})", std::process::id()))
        .map_err(|error| Failure::new(Exit::NotLaunched, error))?;
    let orch = std::env::current_exe().map_err(Failure::own)?;
    let pins = if no_pin { None } else { Pins::of_this_machine() };
    let folder = tempfile::tempdir().map_err(Failure::own)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::own)?;
    let course = |course: &Course| {
        let ran = runtime.block_on(selftest::run(&orch, course, pins, folder.path()));
        ran.map_err(|error| Failure::new(Exit::NoMeasurement, error))
    };
    let timer = timer_error();
    let (mut exact, mut ceilings) = (Vec::new(), Vec::new());
    for streams in streams {
        exact.push(course(&known_answer(streams, 1))?);
        ceilings.extend(Ceiling::of(&course(&full_speed(streams))?));
    }
    remember(&work, &ceilings).map_err(|error| Failure::new(Exit::Own, error))?;
    if json {
        let all = json!({"pins": pins, "timer_error_ms": timer, "exactness": exact, "ceiling": ceilings});
        out::line(serde_json::to_string_pretty(&all).map_err(Failure::own)?);
    } else {
        let late = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |ms| format!("{ms:.3} ms"));
        out::line(format!("timers wake late by {} (p50), {} (p99)\n", late(timer.p50), late(timer.p99)));
        table(&exact, &ceilings);
    }
    let good = exact.iter().all(|outcome| outcome.counts_agree && outcome.failed == 0);
    Ok(if good { Exit::Done } else { Exit::NoMeasurement })
}

/// The course whose answer is known: 50 ms to the first chunk and 20 ms between chunks.
fn known_answer(streams: u32, tokens_per_chunk: u32) -> Course {
    Course {
        streams,
        requests: (u64::from(streams) * 3).max(16),
        ttft: Duration::from_millis(50),
        gap: Duration::from_millis(20),
        chunks: 32,
        tokens_per_chunk,
    }
}

/// A server that sends as fast as it can.
fn full_speed(streams: u32) -> Course {
    let gap = Duration::from_millis(1);
    let chunks = if streams < 64 { 1000 } else { 200 };
    Course { streams, requests: u64::from(streams) * 3, ttft: gap, gap, chunks, tokens_per_chunk: 1 }
}

fn table(exact: &[selftest::Outcome], ceilings: &[Ceiling]) {
    out::line("errors against the server's ledger, ms           p50 and p99 of each");
    out::line("streams   TTFT          TPOT          chunk gap     E2E           counts");
    for outcome in exact {
        let cell = |metric: &str| {
            let error = |percentile: &str| {
                outcome.error_ms(metric, percentile).map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"))
            };
            format!("{:<14}", format!("{} {}", error("p50"), error("p99")))
        };
        let cells: String = ["ttft_ms", "tpot_ms", "chunk_gap_ms", "e2e_ms"].map(cell).concat();
        let counts = if outcome.counts_agree { "agree" } else { "DIFFER" };
        out::line(format!("{:<10}{cells}{counts}", outcome.streams));
    }
    out::line("\nstreams   chunks/s read   of a core   ceiling, chunks/s   limited by");
    for one in ceilings {
        let share = format!("{:.0} %", one.busy_ratio * 100.0);
        out::line(format!(
            "{:<10}{:<16.0}{share:<12}{:<20.0}{}",
            one.streams, one.chunks_per_s, one.ceiling_chunks_per_s, one.limited_by
        ));
    }
}
