//! Whatever is killed at whatever moment: the record is true, the exit code says what happened, nothing is left, and the
//! next command works.
//!
//! Each cell runs the built program as a process of its own on the simulated engine, with workers that take the engine's
//! titles, lose their parent and take no notice of SIGTERM. The journal is watched from outside until a line of the kind
//! is there, and then the signal is sent from outside. The matrix is printed.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Home, Ran, free_port, read_json};

/// Who is killed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    Orch,
    Supervisor,
    Server,
    TermOrch,
}

const KILLS: [(Kill, &str); 4] = [
    (Kill::Orch, "KILL orch"),
    (Kill::Supervisor, "KILL supervisor"),
    (Kill::Server, "KILL server"),
    (Kill::TermOrch, "TERM orch"),
];

/// Lines after which nothing of the run can be told by a kill any more.
const LAST: [&str; 2] = ["judged", "run_ended"];

/// A fast profile with two steps, so that a first one is finished when the second is killed.
fn profile(home: &Home) -> PathBuf {
    let scenario = "{seed: 1, ranks: 2, startup: {weights: 100ms, graph_capture: 100ms}, speed: {ttft: 4ms, step: 2ms}, \
                    processes: {rename: all, orphan: true, ignore_term: true, helper: true, leftovers: true}}";
    let engine = format!("engine: {{kind: sim, as: sglang, scenario: {scenario}}}");
    let step = "use: chat, concurrency: 4, requests: 24, output_tokens: 4, warmup: 4";
    home.write(
        "profiles/matrix.yaml",
        &format!(
            "port: auto\n{engine}\nlaunch: {{abandon: 10m}}\n\
             bench:\n  first: {{{step}}}\n  second: {{{step}, seed: 2}}\n"
        ),
    )
}

/// A run whose journal is watched from outside.
struct Watched {
    child: Child,
    journal: Option<PathBuf>,
    runs: PathBuf,
}

impl Watched {
    fn start(home: &Home, words: &[&str]) -> Self {
        let mut command = home.orch(words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Watched { child, journal: None, runs: home.results().join("runs") }
    }

    /// Waits for the `nth` line of this kind; `None` when the run has ended before.
    fn until(&mut self, kind: &str, nth: usize) -> Option<Vec<Value>> {
        let needle = format!("\"event\":\"{kind}\"");
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let ended = self.child.try_wait().unwrap().is_some();
            if self.journal.is_none() {
                let mut runs = std::fs::read_dir(&self.runs).into_iter().flatten();
                self.journal = runs.next().map(|run| run.unwrap().path().join("journal.jsonl"));
            }
            let text = self.journal.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            if whole.matches(&needle).count() >= nth {
                return Some(events(whole));
            }
            if ended {
                return None;
            }
            assert!(Instant::now() < limit, "`{kind}` did not come");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(self) -> Ran {
        Ran::of(self.child.wait_with_output().unwrap())
    }
}

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn journal(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("journal.jsonl")).unwrap();
    let events = events(&text);
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], at, "the journal has no gap");
    }
    events
}

fn send(pid: u64, signal: Signal) -> bool {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()), signal).is_ok()
}

/// Everything on this machine that carries the marks of one of this home's servers, whatever it calls itself.
fn marked(home: &Home) -> Vec<String> {
    let state = home.state();
    let ours = |pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environ = String::from_utf8_lossy(&environ).into_owned();
        let folder = format!("XDG_STATE_HOME={}", state.display());
        let by_memory = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().any(|open| {
            std::fs::read_link(open.path()).is_ok_and(|link| {
                let link = link.display().to_string();
                link.starts_with("/memfd:ORCH_RUN=") && home_of(&link, home)
            })
        });
        environ.split('\0').any(|entry| entry == folder) || by_memory
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let lives = |pid: &u32| crate::launching::lives(*pid);
    pids.filter(ours)
        .filter(lives)
        .map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} {}", name.trim())
        })
        .collect()
}

/// Whether the server's id in a mark is that of a run of this home.
fn home_of(link: &str, home: &Home) -> bool {
    let id = link.trim_start_matches("/memfd:ORCH_RUN=").split('.').next().unwrap_or_default();
    home.results().join("runs").join(id).exists()
}

#[track_caller]
fn assert_nothing_left(home: &Home) {
    assert_eq!(home.ps(), [Value::Null; 0]);
    let limit = Instant::now() + Duration::from_secs(5);
    while !marked(home).is_empty() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(marked(home), [""; 0], "processes that are left");
    let servers = home.state().join("orch/servers");
    assert_eq!(std::fs::read_dir(servers).map_or(0, Iterator::count), 0, "folders under servers/");
}

/// The record as orch itself reads it: a kill in the first moment leaves a journal without `run.json`.
fn shown(home: &Home) -> Value {
    let ran = home.run(&["show", "latest", "--json"]).expect(0);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// What a cell must come to. `None` where there is nothing that could be killed.
fn cell(kind: &str, nth: usize, kill: Kill) -> Option<&'static str> {
    let home = Home::new();
    let file = profile(&home);
    let file = file.to_str().unwrap();
    let mut run = Watched::start(&home, &["run", file]);
    let so_far = run.until(kind, nth)?;
    let process = so_far.iter().find(|event| event["event"] == "process_began").map(|event| &event["data"]);
    let stopping = so_far.iter().any(|event| event["event"] == "stopping");
    let sent = match (kill, process) {
        (Kill::Orch, _) => send(run.child.id().into(), Signal::SIGKILL),
        (Kill::TermOrch, _) => send(run.child.id().into(), Signal::SIGTERM),
        (_, None) => {
            send(run.child.id().into(), Signal::SIGKILL);
            run.end();
            home.run(&["stop", "--all"]).expect(0);
            return None;
        }
        (Kill::Supervisor, Some(process)) => send(process["supervisor_pid"].as_u64().unwrap(), Signal::SIGKILL),
        (Kill::Server, Some(process)) => send(process["pid"].as_u64().unwrap(), Signal::SIGKILL),
    };
    let ran = run.end();
    let folder = home.newest_run();
    let record = shown(&home);
    let complete = record["complete"] == true;
    let told = || format!("after {kill:?} at {kind} {nth} (sent: {sent}): {ran:#?}\n{record:#}");
    if kill == Kill::Orch {
        home.run(&["stop", "--all"]).expect(0);
    }
    let outcome = match kill {
        Kill::Orch if ran.code == 128 + 9 => {
            // It may have been killed after the record was written.
            assert!(!complete || LAST.contains(&kind), "{}", told());
            "kept"
        }
        Kill::TermOrch if !complete => {
            assert_eq!(ran.code, 143, "{}", told());
            assert_eq!(record["verdict"]["reasons"][0]["id"], "interrupted", "{}", told());
            assert_eq!(record["left"]["processes"], 0, "{}", told());
            "interrupted"
        }
        Kill::Server if !complete => {
            let stage = record["failure"]["stage"].as_str().unwrap_or_default();
            assert_eq!(
                ran.code,
                match stage {
                    "gate" => 4,
                    "server" => 5,
                    _ => -1,
                },
                "{}",
                told()
            );
            "failed"
        }
        // The run goes on without its supervisor, and says so unless that was ending the server already.
        Kill::Supervisor if complete => {
            let warned =
                record["warnings"].as_array().unwrap().iter().any(|warning| warning["id"] == "supervisor_gone");
            assert!(warned || stopping || kind == "step_ended" || nth > 1 || LAST.contains(&kind), "{}", told());
            assert_eq!(record["left"]["processes"], 0, "{}", told());
            "done"
        }
        // It came too late to change anything.
        _ if complete => "done",
        _ => panic!("{}", told()),
    };
    if complete && ran.code != 128 + 9 {
        // What a busy machine does to the numbers is another question.
        assert!(matches!(ran.code, 0 | 5), "{}", told());
    } else if !complete {
        assert_eq!(record["verdict"]["kind"], "failed", "{}", told());
    }
    let before = journal(&folder);
    assert_nothing_left(&home);
    // What was interrupted goes on to the right end.
    let again = home.run(&["run", "--resume", "latest"]);
    assert!(matches!(again.code, 0 | 5), "resumed {}\n{again:#?}", told());
    assert_eq!(home.newest_run(), folder, "the same run");
    let record = read_json(&folder.join("run.json"));
    assert_eq!(record["complete"], true, "resumed {}\n{again:#?}\n{record:#}", told());
    let names: Vec<&str> =
        record["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "second"]);
    let after = journal(&folder);
    assert!(after.starts_with(&before), "nothing of the journal is lost");
    for step in names {
        let ended = |events: &[Value]| {
            let scope = format!("step:{step}");
            events.iter().filter(|event| event["event"] == "step_ended" && event["scope"] == scope.as_str()).count()
        };
        assert_eq!(ended(&after), 1, "{step} was measured once");
    }
    let rows = orch::measure::read_rows(&folder.join("requests.jsonl.zst")).unwrap();
    for step in ["first", "second"] {
        assert_eq!(rows.iter().filter(|row| row.step == step).count(), 24, "rows of {step}");
    }
    assert_nothing_left(&home);
    Some(outcome)
}

/// The moments of a run: each kind that it writes at its first line, and what is between the two steps.
fn moments() -> Vec<(String, usize)> {
    let home = Home::new();
    let file = profile(&home);
    let ran = home.run(&["run", file.to_str().unwrap()]);
    assert!(matches!(ran.code, 0 | 5), "{ran:#?}");
    assert_eq!(home.record()["complete"], true);
    let mut seen = BTreeSet::new();
    let mut moments: Vec<(String, usize)> = Vec::new();
    for event in journal(&home.newest_run()) {
        let kind = event["event"].as_str().unwrap().to_owned();
        if seen.insert(kind.clone()) {
            moments.push((kind, 1));
        } else if kind == "step_began" {
            moments.push((kind, 2));
        }
    }
    moments
}

/// A stranger's server: the same program under the same kind of name, with every word of ours in its arguments.
struct Decoy(Child);

impl Decoy {
    fn start(home: &Home) -> Self {
        let port = free_port();
        let scenario = home.write("decoy.yaml", "{seed: 1, as: sglang}");
        let child = Command::new(env!("CARGO_BIN_EXE_orch"))
            .args(["sim", "--port", &port.to_string(), "--scenario", scenario.to_str().unwrap()])
            .env("NOTE", "ORCH_RUN=matrix orch supervise sglang::server")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        crate::launching::until("the decoy", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        Decoy(child)
    }
}

impl Drop for Decoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cell by row and column, and how it came out.
type Judged<'a> = (usize, usize, Result<Option<&'a str>, String>);

#[test]
fn whatever_is_killed_the_record_is_true_and_nothing_is_left() {
    let began = Instant::now();
    let home = Home::new();
    let mut decoy = Decoy::start(&home);
    let moments = moments();
    let cells: Vec<(usize, usize)> =
        (0..moments.len()).flat_map(|row| (0..KILLS.len()).map(move |at| (row, at))).collect();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Judged<'_>>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let Some(&(row, at)) = cells.get(next.fetch_add(1, Ordering::SeqCst)) else { return };
                    let (kind, nth) = &moments[row];
                    let result = std::panic::catch_unwind(|| cell(kind, *nth, KILLS[at].0)).map_err(|panic| {
                        let text = panic.downcast_ref::<String>().cloned();
                        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
                    });
                    results.lock().unwrap().push((row, at, result));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let mut text = format!("{:<18}{}\n", "", KILLS.map(|(_, name)| format!("{name:<17}")).concat());
    for (row, (kind, nth)) in moments.iter().enumerate() {
        let name = if *nth == 1 { kind.clone() } else { format!("{kind} {nth}") };
        text.push_str(&format!("{name:<18}"));
        for at in 0..KILLS.len() {
            let word = results.iter().find(|(r, a, _)| (*r, *a) == (row, at)).map(|(.., result)| result);
            let word = match word {
                Some(Ok(Some(word))) => word,
                Some(Ok(None)) => "-",
                Some(Err(_)) => "WRONG",
                None => "?",
            };
            text.push_str(&format!("{word:<17}"));
        }
        text.push('\n');
    }
    let absent: Vec<&str> =
        orch::event::Event::KINDS.into_iter().filter(|kind| moments.iter().all(|(seen, _)| seen != kind)).collect();
    // Past the capture of the output: this is what the test is for.
    let _ = writeln!(
        std::io::stderr().lock(),
        "\n{text}kept: the record says interrupted until a resume; -: nothing to kill yet; not in this run: {}\n{} cells in {:.0} s",
        absent.join(" "),
        results.len(),
        began.elapsed().as_secs_f64()
    );
    assert_eq!(decoy.0.try_wait().unwrap(), None, "a stranger's server was ended");
    let wrong: Vec<String> = results
        .into_iter()
        .filter_map(|(row, at, result)| Some(format!("{} x {}: {}", moments[row].0, KILLS[at].1, result.err()?)))
        .collect();
    assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Thirty moments that a seed draws, on a real llama.cpp: whoever is killed then, the record is true, nothing is left, and
/// the run goes on to its end without measuring a step twice.
#[test]
#[ignore = "takes minutes; by choice: cargo test --test it thirty_random -- --ignored"]
fn thirty_random_moments_on_a_real_engine() {
    use rand::{RngExt, SeedableRng};
    const SEED: u64 = 4;
    let Some(first) = Home::with_engine() else { return };
    let mut decoy = Decoy::start(&first);
    let words = |port: &str| {
        let bench = "bench={single: null, ladder: null, first: {use: chat, concurrency: 2, requests: 16, output_tokens: 4}, \
                     second: {use: chat, concurrency: 2, requests: 16, output_tokens: 4, seed: 2}}";
        ["run", "smollm2", "--set", port, "--set", bench].map(str::to_owned)
    };
    let run = |home: &Home| {
        let words = words(&format!("port={}", free_port()));
        Watched::start(home, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let began = Instant::now();
    let ran = run(&first).end();
    assert!(matches!(ran.code, 0 | 5), "{ran:#?}");
    let length = began.elapsed();
    let mut draw = rand_chacha::ChaCha8Rng::seed_from_u64(SEED);
    for number in 0..30 {
        let kill = KILLS[number % KILLS.len()].0;
        let moment = length.mul_f64(draw.random::<f64>());
        let home = Home::with_engine().unwrap();
        let mut watched = run(&home);
        std::thread::sleep(moment);
        let server = home.ps().into_iter().next();
        let pid = match kill {
            Kill::Orch | Kill::TermOrch => Some(u64::from(watched.child.id())),
            Kill::Supervisor => server.as_ref().and_then(|server| server["supervisor_pid"].as_u64()),
            Kill::Server => server.as_ref().and_then(|server| server["pid"].as_u64()),
        };
        let signal = if kill == Kill::TermOrch { Signal::SIGTERM } else { Signal::SIGKILL };
        let alive = watched.child.try_wait().unwrap().is_none();
        let sent = alive && pid.is_some_and(|pid| send(pid, signal));
        let ran = watched.end();
        home.run(&["stop", "--all"]).expect(0);
        assert_nothing_left(&home);
        let began = home.results().join("runs").read_dir().is_ok_and(|mut runs| runs.next().is_some());
        let line = if began {
            let record = shown(&home);
            let complete = record["complete"] == true;
            assert!(complete || record["verdict"]["kind"] == "failed", "{record:#}");
            assert!(complete || !matches!(ran.code, 0), "{ran:#?}\n{record:#}");
            let again = home.run(&["run", "--resume", "latest"]);
            assert!(matches!(again.code, 0 | 5), "{again:#?}");
            let record = read_json(&home.newest_run().join("run.json"));
            assert_eq!(record["complete"], true, "{again:#?}");
            let events = journal(&home.newest_run());
            assert_eq!(events.iter().filter(|event| event["event"] == "step_ended").count(), 2, "each step once");
            assert_nothing_left(&home);
            if complete { "complete before" } else { "resumed" }
        } else {
            "not begun"
        };
        let _ = writeln!(
            std::io::stderr().lock(),
            "{number:>3}  {kill:?} at {:.2} s of {:.2} (sent: {sent}): exit {}, {line}",
            moment.as_secs_f64(),
            length.as_secs_f64(),
            ran.code
        );
        assert_eq!(decoy.0.try_wait().unwrap(), None, "a stranger's server was ended");
    }
}
