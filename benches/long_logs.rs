//! How fast long logs are diagnosed, in how much memory, and what it costs to follow one. The logs are made: no line of them
//! was written by an engine. Exits with 1 when a log is read at less than 200 MB a second of one core, when 1 GB of it takes
//! more than 64 MB, or when 1,000 lines a second take more than 1 % of a core.
//!
//! `cargo bench --bench long_logs`; a number after `--` says how many MB a log has (1000).
#![allow(clippy::print_stdout, reason = "a bench says what it measured")]
#![allow(dead_code, clippy::unwrap_used, reason = "it shares the stories' helpers")]

#[path = "../tests/it/made_log.rs"]
mod made_log;

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use made_log::Engine;
use nix::sys::resource::{UsageWho, getrusage};
use orch::clock::Clock;
use orch::gate::log::{SavedLog, Splitter};
use orch::gate::starting::Starting;
use orch::gate::{Conduct, LogGrammar};
use orch::host::{Follow, Local};
use orch::profile::EngineKind;

const LEAST_MB_PER_S: f64 = 200.0;
const MOST_RSS_MB: f64 = 64.0;
const MOST_OF_A_CORE: f64 = 0.01;
/// Each log is read so often; noise only ever adds to a time, so the best counts.
const TRIES: usize = 3;
const FOLLOWED: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let mb: u64 = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(1000);
    let folder = tempfile::tempdir().unwrap();
    let mut good = true;
    println!("made logs of {mb} MB, on one core; best of {TRIES}\n");
    println!("{:<9} {:>9} {:>13} {:>9} {:>9}", "", "MB/s", "lines alone", "ratio", "peak MB");
    for engine in Engine::ALL {
        let path = folder.path().join("server.log");
        made_log::write(engine, mb * 1_000_000, BufWriter::with_capacity(1 << 20, File::create(&path).unwrap()))
            .unwrap();
        let size_mb = std::fs::metadata(&path).unwrap().len() as f64 / 1e6;
        let grammar = grammar(engine);
        let alone = size_mb / best(|| assert!(count_lines(&path) > 0));
        let speed = size_mb / best(|| assert_right(&path, &grammar, engine));
        let peak_mb = peak_mb(&path);
        good &= speed >= LEAST_MB_PER_S && peak_mb <= MOST_RSS_MB;
        println!("{:<9} {speed:>9.0} {alone:>13.0} {:>9.2} {peak_mb:>9.1}", engine.word(), speed / alone);
        std::fs::remove_file(&path).unwrap();
    }
    println!("\nfollowing 1,000 lines/s for {} s", FOLLOWED.as_secs());
    for engine in Engine::ALL {
        let share = follow(engine, &folder.path().join("live.log"));
        good &= share <= MOST_OF_A_CORE;
        println!("{:<9} {:>8.2} % of a core", engine.word(), share * 100.0);
    }
    println!("{}", if good { "within the limits" } else { "OUTSIDE THE LIMITS" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn grammar(engine: Engine) -> LogGrammar {
    let kind = match engine {
        Engine::Sglang => EngineKind::Sglang,
        Engine::Vllm => EngineKind::Vllm,
        Engine::Llamacpp => EngineKind::Llamacpp,
    };
    LogGrammar::new(&orch::engine::definition(kind, &[]).unwrap().log).unwrap()
}

/// Seconds of this thread's time on a core, system calls included.
fn cpu_s(who: UsageWho) -> f64 {
    let usage = getrusage(who).unwrap();
    [usage.user_time(), usage.system_time()].iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum()
}

fn best(mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let before = cpu_s(UsageWho::RUSAGE_THREAD);
        work();
        cpu_s(UsageWho::RUSAGE_THREAD) - before
    };
    (0..TRIES).map(time).fold(f64::INFINITY, f64::min)
}

/// As little as can be done with a log: its lines are counted.
fn count_lines(path: &Path) -> usize {
    let (mut file, mut block, mut lines) = (File::open(path).unwrap(), vec![0; 256 << 10], 0);
    loop {
        match file.read(&mut block).unwrap() {
            0 => return lines,
            read => lines += memchr::memchr_iter(b'\n', &block[..read]).count(),
        }
    }
}

fn assert_right(path: &Path, grammar: &LogGrammar, engine: Engine) {
    let startup = SavedLog::open(path).unwrap().fold(grammar, None).unwrap();
    assert_eq!(startup.root().map(|root| root.kind.as_str()), Some(engine.ends_in()));
}

/// The most memory that `orch diagnose` of a log has, sampled until it ends.
fn peak_mb(path: &Path) -> f64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orch"));
    let mut child = command.args(["diagnose", path.to_str().unwrap(), "--json"]).stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        peak_kib = peak_kib.max(line.unwrap_or(0_u64));
        std::thread::sleep(Duration::from_millis(2));
    }
    peak_kib as f64 * 1024.0 / 1e6
}

/// Which share of a core it takes to follow a log that grows by 1,000 lines a second, as the gate does.
fn follow(engine: Engine, path: &Path) -> f64 {
    let mut text = Vec::new();
    made_log::write(engine, 4_000_000, &mut text).unwrap();
    let mut file = File::create(path).unwrap();
    let (grammar, conduct, clock) = (grammar(engine), Conduct::default(), Clock::system());
    let mut starting = Starting::new(&conduct, &grammar, clock.nanos());
    let (mut follow, mut splitter) = (Follow::new(Local, path.to_owned(), 0), Splitter::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Whatever stands before: a start that is read anew.
    let mut lines = text.split_inclusive(|byte| *byte == b'\n');
    let (began, mut writing_s, mut written) = (Instant::now(), 0.0, 0_u64);
    let before = cpu_s(UsageWho::RUSAGE_SELF);
    while began.elapsed() < FOLLOWED {
        let writing = cpu_s(UsageWho::RUSAGE_SELF);
        let due = (began.elapsed().as_secs_f64() * 1000.0) as u64;
        let block: Vec<u8> = lines.by_ref().take((due - written) as usize).flatten().copied().collect();
        file.write_all(&block).unwrap();
        written = due;
        writing_s += cpu_s(UsageWho::RUSAGE_SELF) - writing;
        let now = clock.nanos();
        runtime.block_on(follow.more(|block| splitter.feed(block, |piece| drop(starting.take(&piece, now))))).unwrap();
        let _ = starting.tick(now);
        std::thread::sleep(Duration::from_millis(100));
    }
    (cpu_s(UsageWho::RUSAGE_SELF) - before - writing_s) / began.elapsed().as_secs_f64()
}
