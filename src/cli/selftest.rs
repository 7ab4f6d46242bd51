//! `orch selftest`: how exact this machine's client is and how much it can read, and how often verdicts are right.

use std::time::Duration;

use serde_json::json;

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::history;
use crate::launch::WorkFolder;
use crate::record::index::PastFilter;
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
    Verdict(VerdictArgs),
}

/// How often the verdicts of a series are right, by its own history
///
/// Draws the starts of the series again, plants known losses, and judges them by the tolerances of its newest run: false
/// alarms where nothing is lost, and losses that are found. Needs eight starts at least.
#[derive(Debug, clap::Args)]
struct VerdictArgs {
    /// The series
    series: String,
    /// The step; the one with the most starts unless told
    #[arg(long)]
    step: Option<String>,
    /// Starts of the baseline
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=100))]
    baseline: u32,
    /// Starts that are judged
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100))]
    starts: u32,
    /// Comparisons for each loss
    #[arg(long, value_name = "N", default_value = "500", value_parser = clap::value_parser!(u32).range(20..=100_000))]
    draws: u32,
    /// Prints the result as JSON on standard output
    #[arg(long)]
    json: bool,
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

pub(crate) fn run(args: SelftestArgs, global: &Global) -> Outcome {
    match args.what {
        What::Client(args) => client(args),
        What::Verdict(args) => verdict(args, global),
    }
}

/// The losses that are planted.
const LOSSES: [f64; 6] = [0.0, 0.01, 0.02, 0.03, 0.05, 0.10];

fn verdict(args: VerdictArgs, global: &Global) -> Outcome {
    let VerdictArgs { series, step, baseline, starts, draws, json } = args;
    let store = records::store_with_others(global)?;
    let filter = PastFilter { series: series.clone(), step, host: None, limit: None };
    let past = store.past(&filter).map_err(records::failure)?;
    let trends = history::trends(&past, &["output_tokens_per_s".to_owned()]);
    let most = trends.iter().max_by_key(|trend| trend.points.len());
    let enough = most.filter(|trend| trend.points.len() >= selftest::LEAST_STARTS);
    let Some(trend) = enough else {
        let there = most.map_or(0, |trend| trend.points.len());
        let report = miette::miette!(
            code = "orch::selftest::too_few_starts",
            help = "a few nights more, or `repeat: {starts: 8}` once",
            "the series `{series}` has {there} starts that can be compared, and {} are needed",
            selftest::LEAST_STARTS
        );
        return Err(Failure::new(Exit::Usage, report));
    };
    let newest = trend.points.last().map(|point| point.run.clone()).unwrap_or_default();
    let like = store.find(&newest).and_then(|id| store.record(&id)).map_err(records::failure)?;
    let pool = selftest::residuals(trend);
    let earlier = u32::try_from(trend.points.len().min(60)).unwrap_or(60);
    let drawn = selftest::Drawn { before: baseline, now: starts, earlier, count: draws };
    let rates = selftest::rates(&like, &trend.step, &pool, &drawn, &LOSSES);
    if json {
        let all =
            json!({"series": series, "step": trend.step, "starts": trend.points.len(), "drawn": drawn, "rates": rates});
        out::line(serde_json::to_string_pretty(&all).map_err(Failure::own)?);
        return Ok(Exit::Done);
    }
    let deviation = (pool.iter().map(|value| value * value).sum::<f64>() / pool.len() as f64).sqrt();
    out::line(format!(
        "{series}, step {}: {} starts that vary by {:.1} %; {starts} against {baseline}, {draws} comparisons each\n",
        trend.step,
        trend.points.len(),
        deviation * 100.0
    ));
    out::line("planted loss   regressed   inconclusive   improved       ok");
    for each in &rates {
        let share = |value: f64| format!("{:.1} %", value * 100.0);
        out::line(format!(
            "{:<12}{:>12}{:>15}{:>11}{:>9}",
            share(each.loss),
            share(each.regressed),
            share(each.inconclusive),
            share(each.improved),
            share(each.ok)
        ));
    }
    Ok(Exit::Done)
}

fn client(args: ClientArgs) -> Outcome {
    let ClientArgs { streams, no_pin, json } = args;
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
    let runtime = crate::host::runtime::on_this_thread().map_err(Failure::own)?;
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
