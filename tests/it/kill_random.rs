//! Moments that a seed draws, on a real llama.cpp: whoever is killed then, the record is true, nothing is left, and the run
//! goes on to its end without measuring a step twice.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng};

use crate::killed::{KILLS, Kill, Watched, assert_nothing_left, journal, send, shown};
use crate::strangers::Stranger;
use crate::support::{Home, free_port, read_json};

const SEED: u64 = 4;
/// So many runs go on at once: each has a model in memory and works on every core.
const AT_ONCE: usize = 2;

/// Two short steps on the smallest model.
fn start(home: &Home) -> Watched {
    let bench = "bench={single: null, ladder: null, first: {use: chat, concurrency: 2, requests: 8, output_tokens: 4, warmup: 2}, \
                 second: {use: chat, concurrency: 2, requests: 8, output_tokens: 4, warmup: 2, seed: 2}}";
    let port = format!("port={}", free_port());
    Watched::start(home, home.orch(&["run", "smollm2", "--set", &port, "--set", bench]))
}

/// How long a run takes that nobody kills, with as many beside it as there will be.
fn usual_length() -> Duration {
    let homes: Vec<Home> = (0..AT_ONCE).map(|_| Home::with_engine().unwrap()).collect();
    let began = Instant::now();
    let running: Vec<Watched> = homes.iter().map(start).collect();
    for run in running {
        let ran = run.end();
        assert!(matches!(ran.code, 0 | 5), "{ran:#?}");
    }
    began.elapsed()
}

/// Kills at a moment, and says what came of it.
fn moment(kill: Kill, after: Duration) -> String {
    let home = Home::with_engine().unwrap();
    let mut watched = start(&home);
    std::thread::sleep(after);
    let server = home.ps().into_iter().next();
    let of_server = |key: &str| server.as_ref().and_then(|server| server[key].as_u64());
    let pid = match kill {
        Kill::Orch | Kill::TermOrch => Some(watched.pid()),
        Kill::Supervisor => of_server("supervisor_pid"),
        Kill::Server => of_server("pid"),
    };
    let signal = if kill == Kill::TermOrch { Signal::SIGTERM } else { Signal::SIGKILL };
    let sent = !watched.has_ended() && pid.is_some_and(|pid| send(pid, signal));
    let ran = watched.end();
    home.run(&["stop", "--all"]).expect(0);
    assert_nothing_left(&home);
    if home.results().join("runs").read_dir().map_or(true, |mut runs| runs.next().is_none()) {
        return format!("sent: {sent}, exit {}, not begun", ran.code);
    }
    let record = shown(&home);
    let complete = record["complete"] == true;
    assert!(complete || record["verdict"]["kind"] == "failed", "{record:#}");
    assert!(complete || ran.code != 0, "{ran:#?}\n{record:#}");
    let phase = last_kind(&home.newest_run());
    let again = home.run(&["run", "--resume", "latest"]);
    assert!(matches!(again.code, 0 | 5), "{again:#?}");
    let record = read_json(&home.newest_run().join("run.json"));
    assert_eq!(record["complete"], true, "{again:#?}");
    let ended = journal(&home.newest_run()).iter().filter(|event| event["event"] == "step_ended").count();
    assert_eq!(ended, 2, "each step once");
    assert_nothing_left(&home);
    let end = if complete { "complete before" } else { "resumed to its end" };
    format!("sent: {sent}, exit {}, last line {phase}, {end}", ran.code)
}

fn last_kind(run: &Path) -> String {
    journal(run).last().map(|event| event["event"].as_str().unwrap().to_owned()).unwrap_or_default()
}

#[test]
fn five_random_moments_on_a_real_engine() {
    random_moments(5);
}

#[test]
#[ignore = "takes minutes on a small machine; by choice: cargo test --test it thirty_random -- --ignored"]
fn thirty_random_moments_on_a_real_engine() {
    random_moments(30);
}

fn random_moments(count: usize) {
    if Home::with_engine().is_none() {
        return;
    }
    let began = Instant::now();
    let mut stranger = Stranger::beside(free_port());
    let length = usual_length();
    let mut draw = rand_chacha::ChaCha8Rng::seed_from_u64(SEED);
    let moments: Vec<(Kill, Duration)> =
        (0..count).map(|number| (KILLS[number % KILLS.len()].0, length.mul_f64(draw.random::<f64>()))).collect();
    let next = AtomicUsize::new(0);
    let wrong: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    let Some(&(kill, after)) = moments.get(number) else { return };
                    let told = std::panic::catch_unwind(|| moment(kill, after));
                    let told = told.unwrap_or_else(|panic| {
                        let text = panic.downcast_ref::<String>().cloned();
                        wrong.lock().unwrap().push(format!("{number}: {kill:?}: {}", text.unwrap_or_default()));
                        "WRONG".to_owned()
                    });
                    let _ = writeln!(
                        std::io::stderr().lock(),
                        "{number:>3}  {kill:?} at {:.2} s of {:.2}: {told}",
                        after.as_secs_f64(),
                        length.as_secs_f64()
                    );
                }
            });
        }
    });
    let _ = writeln!(std::io::stderr().lock(), "{count} moments in {:.0} s", began.elapsed().as_secs_f64());
    stranger.assert_untouched();
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} moments are wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}
