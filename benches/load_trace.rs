//! A recorded trace of 2,000 requests against the simulated server, with the lengths and the shared blocks of its prompts
//! as Mooncake's traces have them. Server and client have a core each.
//!
//! `cargo bench --bench load_trace`; a number after `--` says how often it is tried (3). Exits with 1 when a request is sent
//! more than 2 ms from its time in every try, as the client and as the server's ledger have it, or when the share of prompt
//! tokens that came from the cache is more than 3 points from what the trace's blocks say.
#![allow(clippy::print_stdout, reason = "a bench says what it measured")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot run has nothing to say")]

mod shared;

use std::collections::HashMap;
use std::process::ExitCode;

use orch::clock::Clock;
use orch::load::cores::Cores;
use orch::load::lengths::calibrate;
use orch::load::{Options, Target, run_step};
use orch::measure::{Measured, Outcome};
use orch::profile::{Trace, TraceRow};
use orch::render::{Api, Arrival, Lengths, Load, Special, Step, Stop, Workload};
use orch::selftest::Pins;
use shared::{Line, Sim};
use tokio_util::sync::CancellationToken;

const REQUESTS: usize = 2000;
/// Tokens of a block. The simulated cache has blocks of 16.
const BLOCK: u64 = 256;
const LIMIT_MS: f64 = 2.0;
const LIMIT_POINTS: f64 = 3.0;

fn main() -> ExitCode {
    let tries: usize = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(3);
    let pins = Pins::of_this_machine();
    let rows = recorded();
    let wanted = wanted_hits(&rows);
    let span_s = rows.last().map_or(0.0, |row| row.at_ms / 1e3);
    println!("cores: {pins:?}; {REQUESTS} requests in {span_s:.1} s, best of {tries}\n");
    let (mut best, mut good) = (f64::INFINITY, true);
    for _ in 0..tries {
        let tried = replay(&rows, pins);
        println!(
            "  sent after its time   p50 {:.3} p99 {:.3} max {:.3} ms",
            tried.sent[REQUESTS / 2],
            tried.sent[REQUESTS * 99 / 100],
            tried.sent[REQUESTS - 1]
        );
        println!("  by the server's ledger, from the most punctual on: max {:.3} ms", tried.arrived);
        println!("  from the cache {:.1} % of the prompts, by the trace's blocks {:.1} %\n", tried.hits, wanted);
        good &= tried.ok && (tried.hits - wanted).abs() <= LIMIT_POINTS;
        best = best.min(tried.sent[REQUESTS - 1].max(tried.arrived));
    }
    good &= best <= LIMIT_MS;
    println!("furthest from its time in the best try: {best:.3} ms, limit {LIMIT_MS}");
    println!("{}", if good { "within the limits" } else { "OUTSIDE THE LIMITS" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A recording: conversations that come back with all their blocks and one more, and new ones. Made, and the same each
/// time.
fn recorded() -> Vec<TraceRow> {
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut at, mut block) = (0.0, 0);
    let mut talks: Vec<Vec<u64>> = Vec::new();
    let mut fresh = || {
        block += 1;
        block
    };
    let row = |_| {
        // 0 to 20 ms between two, in quarters of a millisecond.
        at += draw(80) as f64 / 4.0;
        let blocks = if talks.len() < 20 || draw(3) == 0 {
            // All begin with the same system prompt.
            let talk = vec![u64::MAX >> 8, fresh()];
            talks.push(talk.clone());
            talk
        } else {
            let place = draw(talks.len() as u64) as usize;
            let talk = &mut talks[place];
            if talk.len() > 6 {
                talk.truncate(2);
            }
            talk.push(fresh());
            talk.clone()
        };
        let input = blocks.len() as u64 * BLOCK - draw(BLOCK / 2);
        TraceRow { at_ms: at, input: Some(input), output: Some(2 + draw(6)), blocks }
    };
    (0..REQUESTS).map(row).collect()
}

/// Percent of the prompts' tokens that are in blocks which an earlier prompt has had in the same places.
fn wanted_hits(rows: &[TraceRow]) -> f64 {
    // How much of a block was seen behind the blocks before it: the last one of a prompt is cut short.
    let mut known: HashMap<Vec<u64>, u64> = HashMap::new();
    let (mut hits, mut all) = (0, 0);
    for row in rows {
        let input = row.input.unwrap_or(0);
        all += input;
        let mut unbroken = true;
        for length in 1..=row.blocks.len() {
            let own = BLOCK.min(input.saturating_sub((length as u64 - 1) * BLOCK));
            let seen = known.entry(row.blocks[..length].to_vec()).or_default();
            hits += if unbroken { own.min(*seen) } else { 0 };
            unbroken &= *seen == BLOCK;
            *seen = own.max(*seen);
        }
    }
    hits as f64 / all as f64 * 100.0
}

/// What a try came to.
struct Tried {
    /// Milliseconds after its moment at which each was sent, in order.
    sent: Vec<f64>,
    /// Milliseconds by which arrivals are apart from their moments, beyond the least.
    arrived: f64,
    /// Percent of the prompts' tokens from the cache.
    hits: f64,
    ok: bool,
}

fn replay(rows: &[TraceRow], pins: Option<Pins>) -> Tried {
    let scenario =
        "{seed: 1, as: vllm, stop: {drain: none}, speed: {ttft: 20ms, step: 5ms}, serve: {cache_report: true}}";
    let sim = Sim::start(scenario, pins.map(|pins| pins.server));
    let special = Special { trace: Some(Trace { rows: rows.to_vec(), block_tokens: BLOCK }), ..Special::default() };
    let stop = Stop::Exact { tokens: 8 };
    let step = Step {
        name: "trace".to_owned(),
        workload: Workload::special("trace", Api::Chat, Vec::new(), stop, 3, Lengths::default(), special),
        load: Load {
            arrival: Arrival::Trace { speed: 1.0 },
            requests: Some(REQUESTS as u64),
            duration_s: None,
            warmup: Some(0),
        },
        goodput: None,
    };
    let target = Target { base_url: sim.url().to_owned(), model: Some("simulated".to_owned()), ..Target::default() };
    let (clock, never) = (Clock::system(), CancellationToken::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let measured = runtime.block_on(async {
        let vocabulary = calibrate(&target, &step.workload, &clock).await.unwrap();
        let cores = pins.map(|pins| Cores::one(pins.client)).unwrap_or_default();
        let options = Options { cores, vocabulary, ..Options::default() };
        run_step(&target, &step, &clock, &never, &options, &mut |_| ()).await.unwrap()
    });
    let lines = sim.stop();
    let asked_before = lines.len() - REQUESTS;
    let lines = &lines[asked_before..];
    let tokens = |line: &Line| line.chunks.iter().map(|(_, tokens)| u64::from(*tokens)).sum::<u64>();
    let as_recorded = lines.iter().zip(rows).filter(|(line, row)| Some(tokens(line)) == row.output).count();
    let span_s = (lines.iter().map(|line| line.end_ns).max().unwrap() - lines[0].arrived_ns) as f64 / 1e9;
    println!("  {as_recorded} answers as long as recorded, the last one done after {span_s:.1} s");
    let mut offsets: Vec<f64> =
        lines.iter().zip(rows).map(|(line, row)| line.arrived_ns as f64 / 1e6 - row.at_ms).collect();
    offsets.sort_by(f64::total_cmp);
    let arrived = offsets[REQUESTS - 1] - offsets[0];
    Tried { sent: sent(&measured, rows), arrived, hits: hits(&measured), ok: all_ok(&measured) }
}

fn sent(measured: &Measured, rows: &[TraceRow]) -> Vec<f64> {
    let first = measured.timelines.iter().map(|one| one.due).min().unwrap() as f64 / 1e6 - rows[0].at_ms;
    let after = |one: &orch::measure::Timeline| {
        let row = &rows[usize::try_from(one.id).unwrap()];
        (one.sent.unwrap() as f64 / 1e6 - first - row.at_ms).abs()
    };
    let mut sent: Vec<f64> = measured.timelines.iter().map(after).collect();
    sent.sort_by(f64::total_cmp);
    sent
}

fn hits(measured: &Measured) -> f64 {
    let usages = || measured.timelines.iter().filter_map(|one| one.usage);
    let cached: u64 = usages().filter_map(|usage| usage.cached_tokens).sum();
    let all: u64 = usages().filter_map(|usage| usage.prompt_tokens).sum();
    cached as f64 / all as f64 * 100.0
}

/// Whether all were answered, with prompts and answers of the lengths that were recorded.
fn all_ok(measured: &Measured) -> bool {
    let bad = measured.timelines.iter().filter(|one| one.outcome != Outcome::Ok).count();
    if bad > 0 || measured.timelines.len() != REQUESTS {
        println!("  {bad} of {} requests failed", measured.timelines.len());
        return false;
    }
    true
}
