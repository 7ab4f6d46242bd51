//! Whatever is killed at whatever moment: the record is true, the exit code says what happened, nothing is left, and the
//! next command works.
//!
//! Each cell runs the built program as a process of its own on the simulated engine, with workers that take the engine's
//! titles and lose their parent; in every fourth cell they also take no notice of SIGTERM, which costs seconds at each stop. The journal is watched from outside until a line of the kind
//! is there, and then the signal is sent from outside. `ORCH_TEST_ROWS=WORD,WORD` tries the rows that hold one of the words. The matrix is printed. GPUs are files that stand for some.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::displace::Production;
use crate::killed::{KILLS, Kill, Watched, assert_nothing_left, journal, send, shown};
use crate::launching::until;
use crate::strangers::Stranger;
use crate::support::{Home, Ran, free_port, read_json};

/// What is killed, since no single command writes lines of all kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// A run of two steps on two GPUs, with questions that have known answers.
    Run,
    /// A run whose server says why it fails.
    Fails,
    /// A run whose server comes to a stand while it starts.
    Stalls,
    /// The replacement of a deployment.
    Up,
    /// A run that production makes room for.
    Displaces,
}

impl Story {
    const ALL: [Story; 5] = [Story::Run, Story::Fails, Story::Stalls, Story::Up, Story::Displaces];

    /// What stands before the kind in the table.
    fn prefix(self) -> &'static str {
        match self {
            Story::Run => "",
            Story::Fails => "fails: ",
            Story::Stalls => "stalls: ",
            Story::Up => "up: ",
            Story::Displaces => "displace: ",
        }
    }

    /// The kinds that this story is there for; of a run, all that it writes.
    fn shows(self, kind: &str) -> bool {
        match self {
            Story::Run => true,
            Story::Fails => kind == "failure_seen",
            Story::Stalls => kind == "stalled",
            Story::Up => matches!(kind, "change" | "displaced" | "restored"),
            Story::Displaces => matches!(kind, "displaced" | "restored"),
        }
    }
}

/// So many cells at once: most of a cell is waiting.
const AT_ONCE: usize = 8;

/// Lines after which nothing of the run can be told by a kill any more.
const LAST: [&str; 2] = ["judged", "run_ended"];

/// What processes the simulated engine has; `stubborn` ones take no notice of SIGTERM.
fn processes(stubborn: bool) -> String {
    format!("processes: {{rename: all, orphan: true, ignore_term: {stubborn}, helper: true, leftovers: true}}")
}

const FAST: &str = "startup: {weights: 60ms, graph_capture: 60ms}, speed: {ttft: 2ms, step: 1ms}";

/// The program with GPUs that are files.
fn orch(home: &Home, words: &[&str]) -> Command {
    let folder = home.path("gpus");
    if !folder.exists() {
        let unique = home.path("").to_str().unwrap().replace(|c: char| !c.is_ascii_alphanumeric(), "");
        for number in 0..2 {
            let text = r#"{"name": "H200", "memory_mib": 1000, "used_mib": 3}"#;
            home.write(&format!("gpus/GPU-{number}-{unique}"), text);
        }
    }
    let mut command = home.orch(words);
    command.env("ORCH_MADE_GPUS", folder);
    command
}

fn run(home: &Home, words: &[&str]) -> Ran {
    Ran::of(orch(home, words).output().unwrap())
}

/// A fast profile with two steps, so that a first one is finished when the second is killed.
fn profile(home: &Home, stubborn: bool, more: &str) -> String {
    let processes = processes(stubborn);
    let step = "use: chat, concurrency: 4, requests: 16, output_tokens: 4, warmup: 4";
    home.write("profiles/answers.jsonl", "{\"prompt\": \"What is 2 + 2?\"}\n");
    let path = home.write(
        "profiles/matrix.yaml",
        &format!(
            "port: auto\nengine: {{kind: sim, as: sglang, scenario: {{seed: 1, ranks: 2, {FAST}, {processes}{more}}}}}\n\
             parallel: {{tensor: 2}}\nlaunch: {{abandon: 10m}}\nquality: {{file: answers.jsonl}}\n\
             bench:\n  first: {{{step}}}\n  second: {{{step}, seed: 2}}\n"
        ),
    );
    path.to_str().unwrap().to_owned()
}

/// What is killed of a command: of a server those of the newest that its journal tells, else `before`, if anything.
/// Whether the signal was sent; `None` where there is nothing that could be killed.
fn kill(watched: &Watched, so_far: &[Value], before: Option<&Value>, kill: Kill) -> Option<bool> {
    let process = so_far.iter().rev().find(|event| event["event"] == "process_began").map(|event| &event["data"]);
    let process = process.or(before);
    Some(match kill {
        Kill::Orch => send(watched.pid(), Signal::SIGKILL),
        Kill::TermOrch => send(watched.pid(), Signal::SIGTERM),
        Kill::Supervisor => send(process?["supervisor_pid"].as_u64().unwrap(), Signal::SIGKILL),
        Kill::Server => send(process?["pid"].as_u64().unwrap(), Signal::SIGKILL),
    })
}

/// Ends what there was nothing to kill of.
fn give_up(watched: Watched, home: &Home) {
    send(watched.pid(), Signal::SIGKILL);
    watched.end();
    run(home, &["stop", "--all"]).expect(0);
}

/// What a cell must come to. `None` where there is nothing that could be killed.
fn cell(story: Story, kind: &str, nth: usize, kill: Kill, stubborn: bool) -> Option<&'static str> {
    match story {
        Story::Run => of_a_run(kind, nth, kill, stubborn),
        Story::Fails => of_a_failure(kind, kill, stubborn),
        Story::Stalls => of_a_stall(kind, kill, stubborn),
        Story::Up => of_a_replacement(kind, kill, stubborn),
        Story::Displaces => of_a_displacement(kind, kill, stubborn),
    }
}

fn of_a_run(kind: &str, nth: usize, who: Kill, stubborn: bool) -> Option<&'static str> {
    let home = Home::new();
    let file = profile(&home, stubborn, "");
    let mut watched = Watched::start(&home, orch(&home, &["run", &file]));
    let so_far = watched.until(kind, nth)?;
    let stopping = so_far.iter().any(|event| event["event"] == "stopping");
    let Some(sent) = kill(&watched, &so_far, None, who) else {
        give_up(watched, &home);
        return None;
    };
    let ran = watched.end();
    let folder = home.newest_run();
    let record = shown(&home);
    let complete = record["complete"] == true;
    let told = || format!("after {who:?} at {kind} {nth} (sent: {sent}): {ran:#?}\n{record:#}");
    if who == Kill::Orch {
        run(&home, &["stop", "--all"]).expect(0);
    }
    let outcome = match who {
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
            let code = match stage {
                "gate" => 4,
                "server" => 5,
                _ => -1,
            };
            assert_eq!(ran.code, code, "{}", told());
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
        assert_eq!(record["left"]["gpu_mib"], 0, "{}", told());
    } else if !complete {
        assert_eq!(record["verdict"]["kind"], "failed", "{}", told());
    }
    let before = journal(&folder);
    assert_nothing_left(&home);
    // What was interrupted goes on to the right end.
    let again = run(&home, &["run", "--resume", "latest"]);
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
        assert_eq!(rows.iter().filter(|row| row.step == step).count(), 16, "rows of {step}");
    }
    assert_nothing_left(&home);
    Some(outcome)
}

/// The server says why it ends and ends: however that is cut short, resumed it comes to the same end.
fn of_a_failure(kind: &str, who: Kill, stubborn: bool) -> Option<&'static str> {
    let home = Home::new();
    let file = profile(&home, stubborn, ", fail: {kind: oom_capture}");
    let mut watched = Watched::start(&home, orch(&home, &["run", &file]));
    let so_far = watched.until(kind, 1)?;
    let sent = kill(&watched, &so_far, None, who)?;
    let ran = watched.end();
    let record = shown(&home);
    let told = || format!("after {who:?} at {kind} (sent: {sent}): {ran:#?}\n{record:#}");
    let (outcome, codes) = match who {
        Kill::Orch => ("kept", [128 + 9, 4]),
        Kill::TermOrch => ("interrupted", [143, 4]),
        Kill::Supervisor | Kill::Server => ("failed", [4, 4]),
    };
    assert!(codes.contains(&ran.code), "{}", told());
    assert_eq!((&record["complete"], &record["verdict"]["kind"]), (&false.into(), &"failed".into()), "{}", told());
    run(&home, &["stop", "--all"]).expect(0);
    assert_nothing_left(&home);
    let again = run(&home, &["run", "--resume", "latest"]).expect(4);
    let record = home.record();
    assert_eq!(record["failure"]["kind"], "oom_capture", "resumed {}\n{again:#?}\n{record:#}", told());
    assert_eq!((&record["complete"], &record["left"]["processes"]), (&false.into(), &0.into()));
    assert_nothing_left(&home);
    // The next one is none the worse for it.
    let next = run(&home, &["run", &profile(&home, stubborn, "")]);
    assert!(matches!(next.code, 0 | 5), "{next:#?}");
    assert_nothing_left(&home);
    Some(outcome)
}

/// What makes the server stand still, and orch say so soon.
const STALL: &str = ", fail: {kind: hang_collective}";

fn stalling(home: &Home, stubborn: bool) -> String {
    let file = profile(home, stubborn, STALL);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "gate: {patience: {graph_capture: 300ms}}\n").unwrap();
    file
}

/// The server stands still and nothing ends by itself: whoever is killed, a person can end the rest in order.
fn of_a_stall(kind: &str, who: Kill, stubborn: bool) -> Option<&'static str> {
    let home = Home::new();
    let file = stalling(&home, stubborn);
    let mut watched = Watched::start(&home, orch(&home, &["run", &file]));
    let so_far = watched.until(kind, 1)?;
    let sent = kill(&watched, &so_far, None, who)?;
    if who == Kill::Supervisor {
        watched.until("warning", 1)?;
        send(watched.pid(), Signal::SIGTERM);
    }
    let ran = watched.end();
    let record = shown(&home);
    let told = || format!("after {who:?} at {kind} (sent: {sent}): {ran:#?}\n{record:#}");
    let (outcome, code) = match who {
        Kill::Orch => ("kept", 128 + 9),
        Kill::TermOrch | Kill::Supervisor => ("interrupted", 143),
        Kill::Server => ("failed", 4),
    };
    assert_eq!(ran.code, code, "{}", told());
    assert_eq!((&record["complete"], &record["verdict"]["kind"]), (&false.into(), &"failed".into()), "{}", told());
    run(&home, &["stop", "--all"]).expect(0);
    assert_nothing_left(&home);
    let mut again = Watched::start(&home, orch(&home, &["run", "--resume", "latest"]));
    again.goes_on_in(&home.newest_run());
    let stalls = so_far.iter().filter(|event| event["event"] == kind).count();
    let stalled = again.until(kind, stalls + 1).unwrap_or_else(|| panic!("{}", told()));
    let phase = &stalled.iter().rfind(|event| event["event"] == kind).unwrap()["data"]["phase"];
    assert_eq!(phase, "graph_capture", "of its own log, and not of the first start's: {}", told());
    send(again.pid(), Signal::SIGTERM);
    assert_eq!(again.end().code, 143, "{}", told());
    assert_nothing_left(&home);
    Some(outcome)
}

/// A server that a person replaces, by its speed.
fn deployed(home: &Home, port: u16, step: &str, stubborn: bool) -> String {
    let processes = processes(stubborn);
    let scenario = format!("{{seed: 1, ranks: 2, startup: {{weights: 60ms}}, speed: {{step: {step}}}, {processes}}}");
    let engine = format!("engine: {{kind: sim, as: sglang, scenario: {scenario}}}");
    let bench = "bench: {only: {use: chat, concurrency: 1, requests: 8, output_tokens: 4}}";
    let path = home.write("profiles/served.yaml", &format!("port: {port}\n{engine}\n{bench}\n"));
    path.to_str().unwrap().to_owned()
}

/// Which of the two serves on the port: `1ms`, `2ms`, or nothing.
fn serves(home: &Home, port: u16) -> Option<&'static str> {
    std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    let listed: Vec<Value> = home.ps().into_iter().filter(|one| one["port"] == port && one["pid"].is_u64()).collect();
    let [one] = &listed[..] else { return None };
    let command = one["command"].to_string();
    ["1ms", "2ms"].into_iter().find(|step| command.contains(step)).or_else(|| {
        // The scenario is a file that the command names.
        let file = one["command"].as_array()?.iter().find_map(|word| std::fs::read_to_string(word.as_str()?).ok())?;
        ["1ms", "2ms"].into_iter().find(|step| file.contains(step))
    })
}

/// Whatever is killed, the old one serves or the new one does, and never a mixture; and the next replacement works.
fn of_a_replacement(kind: &str, who: Kill, stubborn: bool) -> Option<&'static str> {
    let home = Home::new();
    let port = free_port();
    let up = ["up", "--as", "process", "--no-check"];
    home.run(&[&up[..], &[&deployed(&home, port, "1ms", stubborn)]].concat()).expect(0);
    let before = home.ps().remove(0);
    let file = deployed(&home, port, "2ms", stubborn);
    let mut watched = Watched::start(&home, home.orch(&[&up[..], &[&file]].concat()));
    let so_far = watched.until(kind, 1)?;
    let sent = kill(&watched, &so_far, Some(&before), who)?;
    let ran = watched.end();
    let told = || format!("after {who:?} at {kind} (sent: {sent}): {ran:#?}\n{:#?}", home.ps());
    let complete = read_json(&home.newest_run().join("run.json"))["complete"] == true;
    let new = match ran.code {
        0 => true,
        // The new one was proven, and what was left to do is to say so.
        137 => kind == "restored",
        _ => false,
    };
    let codes: &[i32] = match who {
        Kill::Orch => &[137],
        Kill::TermOrch => &[143, 0],
        Kill::Supervisor | Kill::Server => &[0],
    };
    assert!(codes.contains(&ran.code), "{}", told());
    assert_eq!(complete, ran.code == 0, "{}", told());
    let outcome = if kind == "restored" && who == Kill::Server {
        until("nothing that serves", || serves(&home, port).is_none().then_some(()));
        "none serves"
    } else {
        let expected = if new { "2ms" } else { "1ms" };
        until(&format!("{expected} {}", told()), || (serves(&home, port) == Some(expected)).then_some(()));
        if new { "new serves" } else { "old serves" }
    };
    until("the restorers' end", || {
        let undo = std::fs::read_dir(home.state().join("orch/undo")).into_iter().flatten();
        undo.map(|entry| entry.unwrap().path()).all(|path| path.extension() != Some("json".as_ref())).then_some(())
    });
    home.run(&[&up[..], &[&file]].concat()).expect(0);
    until("the new one", || (serves(&home, port) == Some("2ms")).then_some(()));
    home.run(&["down", "served"]).expect(0);
    assert_nothing_left(&home);
    Some(outcome)
}

/// Whatever is killed, production serves again; and the run goes on with production making room once more.
fn of_a_displacement(kind: &str, who: Kill, stubborn: bool) -> Option<&'static str> {
    let production = Production::start("unchecked");
    let home = &production.home;
    let file = profile(home, stubborn, "");
    let words = production.words(&file);
    let mut watched = Watched::start(home, orch(home, &words));
    let so_far = watched.until(kind, 1)?;
    let Some(sent) = kill(&watched, &so_far, None, who) else {
        give_up(watched, home);
        production.serves_again();
        return None;
    };
    let ran = watched.end();
    let record = shown(home);
    let complete = record["complete"] == true;
    let told = || format!("after {who:?} at {kind} (sent: {sent}): {ran:#?}\n{record:#}");
    production.serves_again();
    let before = production.acts();
    // Killed between the word that it will be stopped and the act, it never was.
    let untouched = who == Kill::Orch && kind == "displaced" && before == ["start"];
    assert!(untouched || before == ["start", "stop", "start"], "{before:?} {}", told());
    match who {
        Kill::Orch => assert_eq!(ran.code, 137, "{}", told()),
        Kill::TermOrch => assert!(ran.code == 143 || complete, "{}", told()),
        // By then the server is gone.
        Kill::Supervisor | Kill::Server => assert!(complete && !sent, "{}", told()),
    }
    assert!(complete || record["verdict"]["kind"] == "failed", "{}", told());
    assert_nothing_left(home);
    let again = run(home, &["run", "--resume", "latest"]);
    assert!(matches!(again.code, 0 | 5), "resumed {}\n{again:#?}", told());
    assert_eq!(home.record()["complete"], true);
    production.serves_again();
    // What was done before production came back is not done again, so production is not stopped for it again either.
    let undone = record["steps"].as_array().unwrap().len() < 2;
    let acts = [before, vec!["stop".to_owned(), "start".to_owned()]].concat();
    assert!(production.acts() == acts || !undone, "{:?} resumed {}\n{again:#?}", production.acts(), told());
    assert_nothing_left(home);
    Some(if complete { "done" } else { "back" })
}

/// The moments of a story: each kind that it writes at its first line, and of a run what is between the two steps.
fn moments(story: Story) -> Vec<(Story, String, usize)> {
    let home = Home::new();
    let _production = match story {
        Story::Run => run(&home, &["run", &profile(&home, false, "")]),
        Story::Fails => run(&home, &["run", &profile(&home, false, ", fail: {kind: oom_capture}")]),
        Story::Stalls | Story::Up | Story::Displaces => {
            let kinds = ["stalled", "change", "displaced", "restored"].into_iter().filter(|kind| story.shows(kind));
            return kinds.map(|kind| (story, kind.to_owned(), 1)).collect();
        }
    };
    let mut seen = BTreeSet::new();
    let mut moments = Vec::new();
    for event in journal(&home.newest_run()) {
        let kind = event["event"].as_str().unwrap().to_owned();
        if !story.shows(&kind) {
            continue;
        }
        if seen.insert(kind.clone()) {
            moments.push((story, kind, 1));
        } else if kind == "step_began" {
            moments.push((story, kind, 2));
        }
    }
    moments
}

/// A cell by row and column, and how it came out.
type Judged<'a> = (usize, usize, Result<Option<&'a str>, String>);

#[test]
fn whatever_is_killed_the_record_is_true_and_nothing_is_left() {
    let began = Instant::now();
    let mut stranger = Stranger::beside(free_port());
    let rows = std::env::var("ORCH_TEST_ROWS").ok();
    let wanted = |(story, kind, _): &(Story, String, usize)| {
        let name = format!("{}{kind}", story.prefix());
        rows.as_ref().is_none_or(|rows| rows.split(',').any(|word| name.contains(word)))
    };
    let moments: Vec<(Story, String, usize)> =
        Story::ALL.into_iter().flat_map(moments).filter(|moment| wanted(moment)).collect();
    let cells: Vec<(usize, usize)> =
        (0..moments.len()).flat_map(|row| (0..KILLS.len()).map(move |at| (row, at))).collect();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Judged<'_>>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(&(row, at)) = cells.get(next.fetch_add(1, Ordering::SeqCst)) else { return };
                    let (story, kind, nth) = &moments[row];
                    let result =
                        std::panic::catch_unwind(|| cell(*story, kind, *nth, KILLS[at].0, (row + at) % 4 == 0))
                            .map_err(|panic| {
                                let text = panic.downcast_ref::<String>().cloned();
                                text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                                    .unwrap_or_default()
                            });
                    results.lock().unwrap().push((row, at, result));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let name = |row: usize| {
        let (story, kind, nth) = &moments[row];
        if *nth == 1 { format!("{}{kind}", story.prefix()) } else { format!("{}{kind} {nth}", story.prefix()) }
    };
    let mut text = format!("{:<21}{}\n", "", KILLS.map(|(_, name)| format!("{name:<17}")).concat());
    for row in 0..moments.len() {
        text.push_str(&format!("{:<21}", name(row)));
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
        orch::event::Event::KINDS.into_iter().filter(|kind| moments.iter().all(|(_, seen, _)| seen != kind)).collect();
    // Past the capture of the output: this is what the test is for.
    let _ = writeln!(
        std::io::stderr().lock(),
        "\n{text}kept: the record says interrupted until a resume; back: and production serves; -: nothing to kill there\n\
         kinds without a row: {}\n{} cells in {:.0} s",
        if absent.is_empty() { "none".to_owned() } else { absent.join(" ") },
        results.len(),
        began.elapsed().as_secs_f64()
    );
    stranger.assert_untouched();
    let wrong: Vec<String> = results
        .into_iter()
        .filter_map(|(row, at, result)| Some(format!("{} x {}: {}", name(row), KILLS[at].1, result.err()?)))
        .collect();
    assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}
