//! Somebody runs on another host: the run lives there, the viewer here, and the record comes back.
//!
//! The host is this machine with another work folder, entered by `env`: everything but the transport is the real thing.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::sshd::Lab;
use crate::support::{Home, Ran, free_port, read_json};

/// A host beside a home. What runs there is stopped at the end.
struct Far {
    home: Home,
    /// What more its entry says.
    path_first: Option<PathBuf>,
}

impl Far {
    fn new() -> Self {
        let far = Far { home: Home::new(), path_first: None };
        far.write_hosts();
        far
    }

    /// The same, where a folder of programs comes first on the `PATH`.
    fn with_programs(programs: &[(&str, &str)]) -> Self {
        let mut far = Far::new();
        for (name, text) in programs {
            let path = far.home.write(&format!("programs/{name}"), text);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        far.path_first = Some(far.home.path("programs"));
        far.write_hosts();
        far
    }

    fn write_hosts(&self) {
        let path = std::env::var("PATH").unwrap();
        let path = self.path_first.as_ref().map_or(path.clone(), |first| format!("{}:{path}", first.display()));
        let state = self.home.path("far-state");
        let text = format!(
            "far: {{ssh: local, enter: \"env -u FAR_TOKEN_FILE XDG_STATE_HOME={} PATH={path}\"}}\n",
            state.display()
        );
        self.home.write("hosts.yaml", &text);
    }

    fn hosts(&self) -> String {
        self.home.path("hosts.yaml").display().to_string()
    }

    /// The work folder there.
    fn work(&self) -> PathBuf {
        self.home.path("far-state/orch")
    }

    /// orch here, with the host's name and the file that names it.
    fn orch(&self, words: &[&str]) -> Command {
        let mut command = self.home.orch(words);
        command.args(["-H", "far", "--hosts", &self.hosts()]);
        command
    }

    fn run(&self, words: &[&str]) -> Ran {
        Ran::of(self.orch(words).output().unwrap())
    }

    /// The files of all runs there, or here.
    fn runs(results: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(results.join("runs")).into_iter().flatten();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        all.retain(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'));
        all.sort();
        all
    }

    fn jobs(&self) -> usize {
        std::fs::read_dir(self.work().join("jobs")).map_or(0, Iterator::count)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.home.orch(&["stop", "--all"]).env("XDG_STATE_HOME", self.home.path("far-state")).output();
    }
}

fn quick() -> Vec<String> {
    let set = |set: &str| ["--set".to_owned(), set.to_owned()];
    let bench = "bench={only: {use: chat-short, concurrency: 4, requests: 16}}";
    [set(&format!("port={}", free_port())), set("bench.single=null"), set("bench.many=null"), set(bench)].concat()
}

fn words<'a>(first: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    first.iter().copied().chain(more.iter().map(String::as_str)).collect()
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

/// What was drawn for people, without the breaks of its lines.
fn flat(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '│').collect()
}

/// Waits until something is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what} never came");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_run_there_is_shown_as_one_here_and_its_record_comes_back_whole() {
    let far = Far::new();
    let quick = quick();
    let ran = far.run(&words(&["run", "sim-quick"], &quick)).expect(0);
    for shown in ["sim-quick on far", "ok  ready", "nothing of r", "exit 0"] {
        assert!(ran.stdout.contains(shown), "{shown}:\n{}", ran.stdout);
    }
    let record = far.home.record();
    assert_eq!((&record["host"]["name"], &record["complete"]), (&json!("far"), &json!(true)));
    assert_eq!(record["profile"].get("host"), None, "there it is this machine");
    let (here, there) = (Far::runs(&far.home.results()), Far::runs(&far.work().join("results")));
    assert_eq!((here.len(), there.len()), (1, 1));
    assert_eq!(contents(&here[0]), contents(&there[0]));
    assert_eq!(far.jobs(), 0, "what it was started with is taken away");
    // What is here already is not brought again, and nothing doubles it.
    let pulled = far.run(&["pull", "--json"]).expect(0);
    let id = record["id"].as_str().unwrap();
    let rows: Value = serde_json::from_str(&pulled.stdout).unwrap();
    assert_eq!(rows, json!([{"run": id, "brought": false}]));
    assert_eq!(Far::runs(&far.home.results()), here);
    // Whatever is done with records is done here.
    let listed: Value = serde_json::from_str(&far.home.run(&["list", "--json"]).expect(0).stdout).unwrap();
    assert_eq!((&listed[0]["id"], &listed[0]["host"]), (&json!(id), &json!("far")));
    assert!(!far.home.run(&["logs", "latest"]).expect(0).stdout.is_empty());
}

#[test]
fn verbs_happen_there_and_their_codes_come_back() {
    let far = Far::new();
    assert_eq!(far.run(&["ps", "--json"]).expect(0).stdout.trim(), "[]");
    assert_eq!(far.run(&["stop", "--all"]).expect(0).stderr.trim(), "nothing of orch is left here");
    let ran = far.run(&["show", "r0000"]).expect(2);
    assert!(
        ran.stderr.contains("no run `r0000` in ") && ran.stderr.contains("far-state/orch/results"),
        "{}",
        ran.stderr
    );
    let placed: Vec<_> = std::fs::read_dir(far.work().join("bin")).unwrap().collect();
    assert_eq!(placed.len(), 1, "one program serves all of them");
    let ran = far.run(&["sweep", "qwen-spec"]).expect(2);
    assert!(flat(&ran.stderr).contains("`orchsweep`isnotdoneonanotherhost"), "{}", ran.stderr);
    let ran = far.run(&["attach", "r0000"]).expect(2);
    assert!(flat(&ran.stderr).contains("thereisnorun`r0000`onfar"), "{}", ran.stderr);
    let ran = Ran::of(far.home.orch(&["ps", "-H", "near", "--hosts", &far.hosts()]).output().unwrap());
    assert_ne!(ran.code, 0, "a host that nobody knows");
}

/// A start that takes a while, to do something in the middle of it.
fn slow() -> Vec<String> {
    let mut all = quick();
    all.extend(["--set".to_owned(), "engine.scenario.startup={weights: 6s}".to_owned()]);
    all
}

/// The run that was begun from here, as soon as it is known.
fn known(far: &Far) -> Option<Value> {
    known_at(&far.home)
}

fn known_at(home: &Home) -> Option<Value> {
    let text = std::fs::read_to_string(home.state().join("orch/far.jsonl")).ok()?;
    serde_json::from_str(text.lines().last()?).ok()
}

#[test]
fn a_viewer_that_is_killed_changes_nothing_and_another_one_shows_all_of_it() {
    let far = Far::new();
    let slow = slow();
    let mut viewer =
        far.orch(&words(&["run", "sim-quick"], &slow)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the run", || known(&far).is_some());
    viewer.kill().unwrap();
    viewer.wait().unwrap();
    let run = known(&far).unwrap()["run"].as_str().unwrap().to_owned();
    assert_eq!(Far::runs(&far.home.results()).len(), 0, "nothing is here before it has ended");
    // Where it is, is known from here: neither host nor file have to be named.
    let ran = far.home.run(&["attach", &run, "--events"]).expect(0);
    let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "each line once, from the first on");
    assert_eq!(events.last().unwrap()["event"], "run_ended");
    let record = far.home.record();
    assert_eq!((&record["id"], &record["complete"]), (&json!(run), &json!(true)));
    assert_eq!(far.jobs(), 0);
}

#[test]
fn a_run_that_nobody_watched_is_brought_later() {
    let far = Far::new();
    let slow = slow();
    let mut viewer =
        far.orch(&words(&["run", "sim-quick"], &slow)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the run", || known(&far).is_some());
    // A terminal that goes away leaves the run alone.
    kill(Pid::from_raw(viewer.id() as i32), Signal::SIGHUP).unwrap();
    assert_eq!(viewer.wait().unwrap().code(), Some(0));
    let early = far.run(&["pull"]).expect(0);
    assert!(early.stderr.contains("still goes on: orch attach r"), "{}{}", early.stdout, early.stderr);
    until("its end", || {
        let runs = Far::runs(&far.work().join("results"));
        read_json(&runs[0].join("run.json"))["complete"] == true
    });
    let brought = || {
        let pulled = far.run(&["pull", "--json"]).expect(0);
        let rows: Value = serde_json::from_str(&pulled.stdout).unwrap();
        rows.as_array().unwrap().first().map(|row| row["brought"].as_bool().unwrap())
    };
    let began = Instant::now();
    while brought() != Some(true) {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never brought");
    }
    assert_eq!(brought(), Some(false), "a second time brings nothing");
    assert_eq!(Far::runs(&far.home.results()).len(), 1);
}

#[test]
fn an_interrupt_is_passed_on_and_the_record_of_the_run_comes_back() {
    let far = Far::new();
    let slow = slow();
    let viewer =
        far.orch(&words(&["run", "sim-quick"], &slow)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("its launch", || {
        let runs = Far::runs(&far.work().join("results"));
        runs.first().is_some_and(|run| {
            std::fs::read_to_string(run.join("journal.jsonl")).unwrap_or_default().contains("\"process_began\"")
        })
    });
    kill(Pid::from_raw(viewer.id() as i32), Signal::SIGINT).unwrap();
    let ran = Ran::of(viewer.wait_with_output().unwrap()).expect(130);
    assert!(ran.stderr.contains("the run on far is told to end"), "{}", ran.stderr);
    let record = far.home.record();
    assert_eq!((&record["complete"], &record["verdict"]["reasons"][0]["id"]), (&json!(false), &json!("interrupted")));
    assert_eq!(record["left"]["processes"], 0);
    let run = record["id"].as_str().unwrap();
    let ran = far.home.run(&["run", "--resume", run]).expect(2);
    assert!(flat(&ran.stderr).contains("wasmadeonfar,andgoesonthere"), "{}", ran.stderr);
    // It goes on there, and what is here becomes the whole of it.
    far.run(&["run", "--resume", run]).expect(0);
    assert_eq!(far.home.record()["complete"], true);
    assert_eq!(Far::runs(&far.home.results()).len(), 1);
}

#[test]
fn the_verdict_there_is_made_from_what_is_here() {
    let far = Far::new();
    let quick = quick();
    far.run(&words(&["run", "sim-quick"], &quick)).expect(0);
    let first = far.home.record()["id"].as_str().unwrap().to_owned();
    assert_eq!(far.home.record()["verdict"]["kind"], "no_baseline");
    far.home.run(&["baseline", "set", &first]).expect(0);
    let slower = [&quick[..], &["--set".to_owned(), "engine.scenario.speed.step=60ms".to_owned()]].concat();
    let ran = far.run(&words(&["run", "sim-quick"], &slower)).expect(6);
    assert!(ran.stdout.contains("REGRESSED"), "{}", ran.stdout);
    let record = far.home.record();
    assert_eq!(record["comparisons"][0]["verdict"], "regressed");
    // As it would be judged here.
    let id = record["id"].as_str().unwrap();
    let again: Value = serde_json::from_str(&far.home.run(&["compare", id, "--json"]).expect(6).stdout).unwrap();
    assert_eq!(again["verdict"]["kind"], record["verdict"]["kind"]);
    // What the host itself has recorded meanwhile counts for nothing: it has no baselines.
    assert!(!far.work().join("results/baselines.jsonl").exists());
}

#[test]
fn a_secret_arrives_and_is_nowhere() {
    let far = Far::new();
    let value = "hush-hush-0815-4711";
    let mut quick = quick();
    quick.extend(["--set".to_owned(), "secrets=[FAR_TOKEN]".to_owned()]);
    let missing = far.run(&words(&["run", "sim-quick"], &quick)).expect(2);
    assert!(flat(&missing.stderr).contains("thesecret`FAR_TOKEN`isnotset"), "{}", missing.stderr);
    assert!(!far.work().exists(), "nothing was put there for a run that cannot be");
    let mut command = far.orch(&words(&["run", "sim-quick"], &quick));
    let token = far.home.write("token", value);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    // By its file, of which the host's own environment knows nothing.
    command.env("FAR_TOKEN_FILE", &token);
    Ran::of(command.output().unwrap()).expect(0);
    std::fs::remove_file(token).unwrap();
    let found = Command::new("grep").args(["-rlF", value]).arg(far.home.path("")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "no file holds it");
}

#[test]
fn another_machine_is_named_before_anything_is_put_there() {
    let far = Far::with_programs(&[("uname", "#!/bin/sh\n[ \"$1\" = -m ] && echo aarch64 || echo Linux\n")]);
    let ran = far.run(&["ps"]).expect(3);
    let said = flat(&ran.stderr);
    let expected = format!("isaprogramforLinux{}", std::env::consts::ARCH);
    assert!(said.contains("farisLinuxaarch64,and") && said.contains(&expected), "{}", ran.stderr);
    assert!(said.contains("--runnerFILE"), "{}", ran.stderr);
    assert_eq!(std::fs::read_dir(far.work().join("bin")).unwrap().count(), 0);
}

#[test]
fn a_strangers_file_in_the_way_is_left_alone() {
    let far = Far::new();
    far.run(&["ps"]).expect(0);
    let placed = std::fs::read_dir(far.work().join("bin")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&placed, "#!/bin/sh\necho something else\n").unwrap();
    std::fs::set_permissions(&placed, std::fs::Permissions::from_mode(0o600)).unwrap();
    let ran = far.run(&["run", "sim-quick"]).expect(3);
    assert!(flat(&ran.stderr).contains("isnottheorchthatbelongsthere:itsSHA-256is"), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&placed).unwrap(), "#!/bin/sh\necho something else\n");
}

#[test]
fn a_profile_names_its_host_and_local_has_the_last_word() {
    let far = Far::new();
    let quick = quick();
    let profile = far.home.write("profiles/there.yaml", "extends: sim-quick\nname: there\nhost: far\n");
    let profile = profile.to_str().unwrap();
    let hosts = far.hosts();
    let all = words(&["run", profile, "--hosts", &hosts], &quick);
    far.home.run(&all).expect(0);
    assert_eq!(far.home.record()["host"]["name"], "far");
    far.home.run(&[&all[..], &["-H", "local"]].concat()).expect(0);
    assert_ne!(far.home.record()["host"]["name"], "far");
}

/// What runs in a work folder is stopped at the end.
struct Stopped<'a>(&'a Home, PathBuf);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _ = self.0.orch(&["stop", "--all"]).env("ORCH_WORK", &self.1).output();
    }
}

#[test]
fn over_ssh_a_line_that_is_cut_is_opened_anew_and_nothing_is_shown_twice() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve("a", &[]);
    lab.knows(&[&server]);
    let config = lab.config(&[("box", server.port, "")]);
    let home = Home::new();
    let work = Stopped(&home, home.path("far/orch"));
    let hosts = home.write("hosts.yaml", &format!("box: {{work: {}}}\n", work.1.display()));
    let slow = slow();
    let mut all = words(&["run", "sim-quick", "-H", "box", "--events", "--set", "share=true"], &slow);
    all.extend(["--hosts", hosts.to_str().unwrap(), "--ssh-config", config.to_str().unwrap()]);
    let viewer = home.orch(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the run", || known_at(&home).is_some());
    let port = server.port;
    server.stop();
    std::thread::sleep(Duration::from_secs(5));
    let mut again = None;
    until("the server", || {
        again = lab.serve_at("a", port, &[]);
        again.is_some()
    });
    let ran = Ran::of(viewer.wait_with_output().unwrap()).expect(0);
    let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(events.last().unwrap()["event"], "run_ended");
    // How soon it is noticed, and how often it is lost again while the server comes up, is the machine's affair.
    let told = |what: &str| ran.stderr.matches(what).count();
    let (lost, back) = (told("the run goes on, trying again"), told("ok  line       back after"));
    assert!(lost == back && lost < 5, "{}", ran.stderr);
    assert_eq!((&home.record()["complete"], &home.record()["host"]["name"]), (&json!(true), &json!("box")));
    assert_eq!(contents(&home.newest_run()), contents(&Far::runs(&work.1.join("results"))[0]));
}
