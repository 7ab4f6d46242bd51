//! Whole runs against a small server of known behaviour: how each kind of end is told, and that nothing stays.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Home, Ran, free_port, read_json, skipped};

/// A profile for `tests/data/servers/openai.py` with these options.
pub(crate) fn profile(home: &Home, name: &str, options: &str, bench: &str) -> PathBuf {
    let server = std::env::current_dir().unwrap().join("tests/data/servers/openai.py");
    let pids = home.path("pids");
    std::fs::create_dir_all(&pids).unwrap();
    let command = format!(
        "[python3, {}, --port, '{{port}}', --model, tiny, --pid-dir, {}, {options}]",
        server.display(),
        pids.display()
    );
    let port = free_port();
    home.write(
        &format!("profiles/{name}.yaml"),
        &format!(
            "port: {port}\nengine: {{kind: command, command: {command}, ready: {{http: /health}}}}\nmodel: {{path: tiny, served_name: tiny}}\nbench: {bench}\n"
        ),
    )
}

pub(crate) const QUICK: &str = "{only: {use: chat-mix, concurrency: 2, requests: 16, output_tokens: 8}}";
/// Longer than any test waits.
pub(crate) const LONG: &str = "{only: {use: chat-mix, concurrency: 2, requests: 100000, output_tokens: 8}}";

/// A run in the background, read by its events.
pub(crate) struct Running {
    child: Child,
    events: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub(crate) fn start(home: &Home, profile: &Path) -> Self {
        Running::of(home.orch(&["run", profile.to_str().unwrap(), "--events"]))
    }

    /// A command that prints events.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let events = BufReader::new(child.stdout.take().unwrap());
        Running { child, events }
    }

    /// Reads until an event of this kind.
    pub(crate) fn until(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.events.read_line(&mut line).unwrap(), 0, "the run ended before `{kind}`");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub(crate) fn end(mut self) -> Ran {
        // Its events are read to the end, so that it never waits for us.
        std::io::copy(&mut self.events, &mut std::io::sink()).unwrap();
        Ran::of(self.child.wait_with_output().unwrap())
    }
}

/// The pids that the server and its workers wrote down.
pub(crate) fn pids(home: &Home) -> Vec<u32> {
    std::fs::read_dir(home.path("pids"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect()
}

pub(crate) fn lives(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z')
}

#[track_caller]
pub(crate) fn assert_nothing_left(home: &Home) {
    let pids = pids(home);
    let deadline = Instant::now() + Duration::from_secs(5);
    while pids.iter().any(|pid| lives(*pid)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left: Vec<&u32> = pids.iter().filter(|pid| lives(**pid)).collect();
    assert!(left.is_empty(), "processes left: {left:?}");
    assert_eq!(home.ps(), [Value::Null; 0]);
}

/// The record says that the run did not come to its end, and every line of its journal reads.
#[track_caller]
pub(crate) fn assert_true_record(run: &Path) {
    let record = read_json(&run.join("run.json"));
    assert_eq!(record["complete"], false);
    assert_eq!(record["verdict"]["kind"], "failed");
    let journal = std::fs::read_to_string(run.join("journal.jsonl")).unwrap();
    for (at, line) in journal.lines().enumerate() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["seq"], at);
    }
}

#[test]
fn a_good_run_ends_with_no_baseline_and_says_how_to_set_one() {
    let home = Home::new();
    let profile = profile(&home, "good", "--workers, '2', --worker-kind, orphan, --workers-outlive", QUICK);
    let ran = home.run(&["run", profile.to_str().unwrap()]).expect(0);
    assert!(ran.stdout.contains("NO BASELINE"), "{}", ran.stdout);
    let run = home.newest_run();
    let short = run.file_name().unwrap().to_str().unwrap().rsplit_once('-').unwrap().1.to_owned();
    assert!(ran.stdout.contains(&format!("orch baseline set r{short}")), "{}", ran.stdout);
    let record = home.record();
    assert_eq!(record["complete"], true);
    assert_eq!(record["verdict"]["kind"], "no_baseline");
    assert_eq!(record["left"]["processes"], 0);
    let step = &record["steps"][0];
    assert_eq!((&step["name"], &step["valid"]), (&"only".into(), &true.into()), "{step:#}");
    assert_eq!((&step["counts"]["ok"], &step["counts"]["failed"]), (&16.into(), &0.into()));
    assert!(
        step["metrics"]["ttft_ms"]["p50"].as_f64().unwrap() >= 10.0,
        "the server waits 10 ms before its first token"
    );
    assert!(record["startup"]["ready_s"].as_f64().unwrap() > 0.0);
    for file in ["journal.jsonl", "profile.yaml", "command.txt", "server.log", "requests.jsonl.zst", "histograms.hlog"]
    {
        assert!(run.join(file).metadata().unwrap().len() > 0, "{file}");
    }
    assert_nothing_left(&home);
    // The resolved profile of the record is a profile.
    home.run(&["check", run.join("profile.yaml").to_str().unwrap()]).expect(0);
}

#[test]
fn the_second_run_is_compared_and_strict_is_strict() {
    let home = Home::new();
    let profile = profile(&home, "twice", "", QUICK);
    let profile = profile.to_str().unwrap();
    home.run(&["run", profile, "--strict"]).expect(7);
    home.run(&["baseline", "set"]).expect(0);
    home.run(&["run", profile]).expect(0);
    assert!(["ok", "improved", "inconclusive"].contains(&home.record()["verdict"]["kind"].as_str().unwrap()));
    // Ten times as slow is beyond every noise.
    let slow = home.run(&["run", profile, "--set", "env.SERVER_FIRST_TOKEN=0.2"]).expect(6);
    assert!(slow.stdout.contains("REGRESSED"), "{}", slow.stdout);
    assert!(slow.stdout.contains("exit 6"), "{}", slow.stdout);
    assert_eq!(home.record()["verdict"]["kind"], "regressed");
}

#[test]
fn a_server_that_exits_at_once_is_told_with_its_last_words() {
    let home = Home::new();
    let profile = profile(&home, "exits", "--exit-code, '3'", QUICK);
    let ran = home.run(&["run", profile.to_str().unwrap()]).expect(4);
    assert!(ran.stdout.contains("exit code 3"), "{}", ran.stdout);
    assert!(ran.stdout.contains("this server was told to fail"), "{}", ran.stdout);
    assert_true_record(&home.newest_run());
    assert_eq!(home.record()["failure"]["stage"], "gate");
    assert_nothing_left(&home);
}

#[test]
fn a_server_that_is_never_ready_is_given_up_at_the_limit() {
    let home = Home::new();
    let profile = profile(&home, "never", "--never-ready", QUICK);
    let ran = home.run(&["run", profile.to_str().unwrap(), "--set", "gate.timeout=3s"]).expect(4);
    assert!(ran.stdout.contains("not ready within"), "{}", ran.stdout);
    assert_true_record(&home.newest_run());
    assert_nothing_left(&home);
}

#[test]
fn a_server_that_dies_under_load_is_a_failure_and_no_regression() {
    let home = Home::new();
    let profile = profile(&home, "dies", "--die-after, '12', --workers, '1', --worker-kind, session", LONG);
    let ran = home.run(&["run", profile.to_str().unwrap()]).expect(5);
    assert!(ran.stdout.contains("DIED WHILE MEASURED"), "{}", ran.stdout);
    assert!(ran.stdout.contains("SIGKILL"), "{}", ran.stdout);
    assert_true_record(&home.newest_run());
    let record = home.record();
    assert_eq!(record["failure"]["stage"], "server");
    let cause = &record["verdict"]["cause"];
    assert!(cause["sentence"].as_str().unwrap().contains("killed by SIGKILL"), "{cause}");
    let told = home.run(&["show"]).stdout;
    assert!(told.matches("the server ended while step").count() == 2, "the verdict and the failure, once each: {told}");
    assert!(pids(&home).len() >= 2, "a server and its worker ran");
    assert_nothing_left(&home);
}

#[test]
fn a_port_that_a_stranger_has_is_told_with_the_stranger() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let profile = profile(&home, "port", "", QUICK);
    let ran = home.run(&["run", profile.to_str().unwrap(), "--set", &format!("port={port}")]).expect(3);
    let told = format!("port {port} is taken by pid {}", std::process::id());
    assert!(ran.stdout.contains(&told), "{}\n{}", ran.stdout, ran.stderr);
    assert_true_record(&home.newest_run());
    drop(taken);
    assert!(pids(&home).is_empty(), "nothing was started");
}

#[test]
fn ctrl_c_ends_the_run_in_order_and_keeps_its_record() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let home = Home::new();
        let profile = profile(&home, "long", "--workers, '2', --worker-kind, bare", LONG);
        let mut running = Running::start(&home, &profile);
        running.until("load_progress");
        running.signal(signal);
        running.end().expect(code);
        assert_true_record(&home.newest_run());
        assert_eq!(home.record()["verdict"]["reasons"][0]["id"], "interrupted");
        assert_nothing_left(&home);
    }
}

#[test]
fn ctrl_c_before_the_server_is_ready_leaves_nothing() {
    let home = Home::new();
    let profile = profile(&home, "early", "--never-ready, --workers, '1', --worker-kind, orphan", QUICK);
    let mut running = Running::start(&home, &profile);
    running.until("process_began");
    running.signal(Signal::SIGINT);
    running.end().expect(130);
    assert_true_record(&home.newest_run());
    assert_eq!(home.ps(), [Value::Null; 0]);
}

#[test]
fn twice_ctrl_c_ends_at_once() {
    let home = Home::new();
    // A server that would use up all of its patience.
    let profile = profile(&home, "stubborn", "--ignore-term", LONG);
    let mut running = Running::start(&home, &profile);
    running.until("load_progress");
    running.signal(Signal::SIGINT);
    running.until("stopping");
    // A second wish, not the echo of the first.
    std::thread::sleep(Duration::from_millis(400));
    running.signal(Signal::SIGINT);
    running.end().expect(130);
    assert_true_record(&home.newest_run());
    home.run(&["stop", "--all"]).expect(0);
    assert_nothing_left(&home);
}

#[test]
fn a_killed_orch_leaves_a_true_record_and_a_server_that_stop_ends() {
    for at in ["process_began", "ready", "step_began", "load_progress"] {
        let home = Home::new();
        let profile = profile(&home, "killed", "--workers, '2', --worker-kind, orphan", LONG);
        let mut running = Running::start(&home, &profile);
        running.until(at);
        running.signal(Signal::SIGKILL);
        running.end().expect(128 + 9);
        assert_true_record(&home.newest_run());
        let ps = home.ps();
        assert_eq!(ps.len(), 1, "after SIGKILL at {at}: {ps:?}");
        home.run(&["stop", "--all"]).expect(0);
        assert_nothing_left(&home);
        // The next one finds the place as if nothing had been.
        let next = self::profile(&home, "next", "", QUICK);
        home.run(&["run", next.to_str().unwrap()]).expect(0);
        assert_nothing_left(&home);
    }
}

#[test]
fn a_second_run_says_who_has_the_machine() {
    let home = Home::new();
    let profile = profile(&home, "first", "", LONG);
    let mut running = Running::start(&home, &profile);
    running.until("load_progress");
    let second = home.run(&["run", profile.to_str().unwrap(), "--set", "port=auto"]).expect(3);
    assert!(second.stdout.contains("the right to measure on this host is"), "{}", second.stdout);
    running.signal(Signal::SIGINT);
    running.end().expect(130);
    assert_nothing_left(&home);
}

#[test]
fn a_full_disk_ends_the_run_and_the_server() {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root can mount a small file system");
        return;
    }
    let home = Home::new();
    let small = home.path("small");
    std::fs::create_dir_all(&small).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=96k", "tmpfs"]).arg(&small).status();
    if !mount.is_ok_and(|status| status.success()) {
        skipped("a small file system cannot be mounted here");
        return;
    }
    let profile = profile(&home, "full", "--workers, '1', --worker-kind, orphan", LONG);
    let ran = home.run(&["run", profile.to_str().unwrap(), "--results", small.to_str().unwrap()]);
    let runs: Vec<_> = std::fs::read_dir(small.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(runs.len(), 1);
    assert_true_record(&runs[0]);
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    let ran = ran.expect(5);
    // Which file met the end of the space first, and where a line breaks, differs from run to run.
    let said = ran.stderr.replace("\n  │ ", "").replace(home.path("").to_str().unwrap(), "HOME/");
    let said = regex::Regex::new(r"(small/runs)/[-\w.]+/[\w.]+").unwrap().replace_all(&said, "$1/RUN/FILE");
    let said = regex::Regex::new(r"cannot write (the \w+ )?HOME").unwrap().replace_all(&said, "cannot write HOME");
    let from = said.find("  × ").unwrap_or_default();
    insta::assert_snapshot!(said[from..].lines().next().unwrap_or_default());
    assert_nothing_left(&home);
}

#[test]
fn results_that_cannot_be_written_are_told_before_anything_starts() {
    let home = Home::new();
    let profile = profile(&home, "readonly", "", QUICK);
    let file = home.write("a-file", "");
    let ran = home.run(&["run", profile.to_str().unwrap(), "--results", file.to_str().unwrap()]).expect(2);
    assert!(ran.stderr.contains("a-file"), "{}", ran.stderr);
    assert!(pids(&home).is_empty());
}

#[test]
fn events_are_the_journal_to_the_letter() {
    let home = Home::new();
    let profile = profile(&home, "events", "", QUICK);
    let ran = home.run(&["run", profile.to_str().unwrap(), "--events"]).expect(0);
    let journal = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    assert_eq!(ran.stdout, journal);
    assert!(ran.stderr.contains("NO BASELINE"), "people read standard error then: {}", ran.stderr);
}

#[test]
fn what_this_build_cannot_do_yet_is_refused_before_anything_starts() {
    let home = Home::new();
    let profile = profile(&home, "later", "", QUICK);
    let profile = profile.to_str().unwrap();
    let hook = "hooks.before_launch=[\"true\"]";
    // It is a right profile all the same.
    home.run(&["check", profile, "--set", hook]).expect(0);
    let ran = home.run(&["run", profile, "--set", hook]).expect(3);
    assert!(ran.stderr.contains("`hooks.before_launch`: this build of orch cannot"), "{}", ran.stderr);
    // A server of several ranks on several hosts.
    let text = "engine: sglang\nmodel: m\nparallel: {tensor: 16, nodes: 2}\nhosts: [a, b]\nbench: {only: {use: chat-mix, concurrency: 1, requests: 16}}\n";
    let nodes = home.write("profiles/nodes.yaml", text);
    for verb in ["run", "up"] {
        let ran = home.run(&[verb, nodes.to_str().unwrap()]).expect(3);
        assert!(
            ran.stderr.contains("`parallel.nodes`: this build of orch cannot run on several nodes"),
            "{}",
            ran.stderr
        );
    }
    assert!(pids(&home).is_empty() && !home.results().join("runs").exists());
}

#[test]
fn a_baseline_file_that_cannot_be_read_is_told_before_anything_starts() {
    let home = Home::new();
    let profile = profile(&home, "damaged", "", QUICK);
    home.write("results/baselines.jsonl", "{\"v\":1,\n{}\n");
    let ran = home.run(&["run", profile.to_str().unwrap()]).expect(2);
    assert!(ran.stderr.contains("baselines.jsonl"), "{}", ran.stderr);
    assert!(pids(&home).is_empty());
}

#[test]
fn a_server_that_orch_stop_ends_under_a_run_was_stopped_and_did_not_fail_by_itself() {
    let home = Home::new();
    let profile = profile(&home, "stopped", "", LONG);
    let mut running = Running::start(&home, &profile);
    running.until("load_progress");
    home.run(&["stop", "--all"]).expect(0);
    running.end().expect(5);
    let record = home.record();
    assert_eq!(record["failure"]["kind"], "stopped", "{:#}", record["failure"]);
    assert_nothing_left(&home);
}

#[test]
fn output_that_is_lost_is_no_success() {
    let home = Home::new();
    for words in [&["schema"][..], &["list", "--json"], &["render", "smollm2"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = home.orch(words).stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("No space left on device"), "{words:?}");
    }
}

#[test]
fn a_secret_that_the_server_prints_stays_in_its_own_log() {
    let home = Home::new();
    let profile = profile(&home, "secret", "--exit-code, '3'", QUICK);
    let words = ["run", profile.to_str().unwrap(), "--set", "secrets=[SERVER_EXIT_LINE]"];
    let ran = Ran::of(home.orch(&words).env("SERVER_EXIT_LINE", "s3cr3t-t0ken").output().unwrap()).expect(4);
    assert!(ran.stdout.contains("${SERVER_EXIT_LINE}"), "{}", ran.stdout);
    assert!(!format!("{}{}", ran.stdout, ran.stderr).contains("s3cr3t"));
    let run = home.newest_run();
    for file in ["journal.jsonl", "run.json", "profile.yaml", "command.txt"] {
        assert!(!std::fs::read_to_string(run.join(file)).unwrap().contains("s3cr3t"), "{file}");
    }
    use std::os::unix::fs::PermissionsExt;
    let log = run.join("server.log").metadata().unwrap();
    assert_eq!(log.permissions().mode() & 0o077, 0, "only its owner reads the log of a server");
}
