//! `orch run --displace`: production makes room and comes back, whatever is killed.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::containers::python;
use crate::deploy::{GOOD, ledger, write_profile};
use crate::launching::{kill, until};
use crate::strangers::Stranger;
use crate::support::{Home, free_port, read_json};

/// Production with commands of its own: a script that starts and stops `openai.py` by a pid file, and writes down when it
/// does so. It takes a second for it while there is a file `slow`. What it starts has nothing of orch's environment by which
/// it could be taken for one of ours.
pub(crate) struct Production {
    pub(crate) home: Home,
    port: u16,
    hosts: PathBuf,
}

impl Production {
    pub(crate) fn start(idle: &str) -> Self {
        let home = Home::new();
        let port = free_port();
        let server = std::env::current_dir().unwrap().join("tests/data/servers/openai.py");
        let pid = home.path("production.pid");
        let script = home.write(
            "production.sh",
            &format!(
                "#!/bin/sh\nalive() {{ [ -f {pid} ] && kill -0 $(cat {pid}) 2>/dev/null; }}\n\
                 act() {{ echo $1 >> {log}; if [ -f {slow} ]; then sleep 1; fi; }}\n\
                 case $1 in\n\
                 start) alive || {{ act start; env -u XDG_STATE_HOME setsid {python} {server} --port {port} --start-delay 0.2 >/dev/null 2>&1 & echo $! > {pid}; }} ;;\n\
                 stop) if alive; then act stop; kill $(cat {pid}); while alive; do sleep 0.05; done; fi ;;\n\
                 status) alive ;;\nesac\n",
                pid = pid.display(),
                slow = home.path("slow").display(),
                log = home.path("production.log").display(),
                python = python(),
                server = server.display(),
            ),
        );
        let words = |verb: &str| format!("[sh, {}, {verb}]", script.display());
        let hosts = home.write(
            "hosts.yaml",
            &format!(
                "local:\n  production:\n    command: {{start: {}, stop: {}, status: {}}}\n    url: http://127.0.0.1:{port}\n    idle: {idle}\n    ready: 240s\n",
                words("start"),
                words("stop"),
                words("status")
            ),
        );
        let production = Production { home, port, hosts };
        production.control("start");
        until("production", || ledger(port));
        production
    }

    fn control(&self, verb: &str) {
        let status = std::process::Command::new("sh").arg(self.home.path("production.sh")).arg(verb).status().unwrap();
        assert!(status.success());
    }

    /// It answers, and every restorer is done.
    pub(crate) fn serves_again(&self) {
        until("the restorers' end", || self.restorers().is_empty().then_some(()));
        until("production", || ledger(self.port));
    }

    pub(crate) fn acts(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.home.path("production.log")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn words<'a>(&'a self, profile: &'a str) -> Vec<&'a str> {
        vec!["run", profile, "--displace", "--hosts", self.hosts.to_str().unwrap()]
    }

    fn background(&self, profile: &str) -> Child {
        let mut command = self.home.orch(&self.words(profile));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// The processes of ours that wait for the end of a run.
    fn restorers(&self) -> Vec<u32> {
        let work = self.home.state().join("orch");
        let of_ours = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            words.contains("restore") && words.contains(work.to_str().unwrap())
        };
        let pids =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(of_ours).collect()
    }
}

/// Without the breaks of a narrow screen.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Drop for Production {
    fn drop(&mut self) {
        let _ = self.home.orch(&["restore"]).output();
        self.control("stop");
    }
}

#[test]
fn production_makes_room_and_comes_back_with_the_outage_told() {
    let production = Production::start("unchecked");
    let mut stranger = Stranger::beside(production.port);
    // The very port that production has.
    let profile = write_profile(&production.home, production.port, GOOD, "");
    let ran = production.home.run(&production.words(&profile)).expect(0);
    let said = flat(&ran.stdout);
    assert!(said.contains("will stop production of") && said.contains("outage "), "{said}");
    assert_eq!(production.acts(), ["start", "stop", "start"]);
    assert_eq!(ledger(production.port), Some(1), "it has proven itself");
    let journal = std::fs::read_to_string(production.home.newest_run().join("journal.jsonl")).unwrap();
    let events: Vec<Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let restored = events.iter().find(|event| event["event"] == "restored").unwrap();
    assert!(restored["data"]["outage_s"].as_f64().unwrap() > 0.0);
    assert_eq!(read_json(&production.home.newest_run().join("run.json"))["complete"], true);
    // A run that cannot even start hands it back too.
    let profile = write_profile(&production.home, production.port, "--exit-code, '3'", "");
    production.home.run(&production.words(&profile)).expect(4);
    assert!(ledger(production.port).is_some());
    // What is down already is none of ours to start.
    production.control("stop");
    let profile = write_profile(&production.home, production.port, GOOD, "");
    let ran = production.home.run(&production.words(&profile)).expect(0);
    assert!(flat(&ran.stdout).contains("is not up: there is nothing to stop"), "{}", ran.stdout);
    assert_eq!(ledger(production.port), None);
    stranger.assert_untouched();
}

#[test]
fn production_that_may_be_in_use_is_not_stopped() {
    let production = Production::start("10m");
    let _stranger = Stranger::beside(production.port);
    let profile = write_profile(&production.home, free_port(), GOOD, "");
    // Neither log nor counters: nobody can tell, so it counts as in use.
    let refused = production.home.run(&production.words(&profile)).expect(3);
    assert!(
        refused.stdout.contains("nobody can tell") && refused.stdout.contains("--force-displace"),
        "{}",
        refused.stdout
    );
    assert_eq!(production.acts(), ["start"]);
    let words = ["run", &profile, "--force-displace", "--hosts", production.hosts.to_str().unwrap()];
    production.home.run(&words).expect(0);
    assert_eq!(production.acts(), ["start", "stop", "start"]);
    // A host that has no production, and a file with a mistake in it.
    let hosts = production.home.write("other.yaml", "elsewhere: {ssh: root@x}\n");
    let none = production.home.run(&["run", &profile, "--displace", "--hosts", hosts.to_str().unwrap()]).expect(2);
    assert!(none.stderr.contains("has no host `local`"), "{}", none.stderr);
    let hosts = production.home.write("wrong.yaml", "local: {production: {unt: a, url: u}}\n");
    let wrong = production.home.run(&["run", &profile, "--hosts", hosts.to_str().unwrap()]).expect(2);
    assert!(wrong.stderr.contains("unt"), "{}", wrong.stderr);
}

#[test]
fn what_was_deployed_serves_on_when_production_comes_back() {
    let production = Production::start("unchecked");
    let mut stranger = Stranger::beside(production.port);
    let port = free_port();
    let profile = write_profile(&production.home, port, GOOD, "");
    let hosts = production.hosts.to_str().unwrap();
    let up = production.home.run(&["up", &profile, "--as", "process", "--displace", "--hosts", hosts]).expect(0);
    assert!(up.stdout.contains("serves at") && flat(&up.stdout).contains("outage "), "{}", up.stdout);
    assert_eq!(production.acts(), ["start", "stop", "start"]);
    assert!(ledger(port).is_some(), "the deployment serves");
    assert_eq!(ledger(production.port), Some(1), "production has proven itself");
    assert_eq!(production.home.ps().len(), 1);
    production.home.run(&["down", "serve"]).expect(0);
    // The very port of production is none to deploy at: production comes back to it.
    let profile = write_profile(&production.home, production.port, GOOD, "");
    production.home.run(&["up", &profile, "--as", "process", "--displace", "--hosts", hosts]).expect(3);
    assert_eq!(production.acts(), ["start", "stop", "start"]);
    // A measured server cannot stay where production comes back to.
    for flag in ["--displace", "--force-displace"] {
        let refused = production.home.run(&["run", &profile, "--keep", flag, "--hosts", hosts]).expect(2);
        assert!(refused.stderr.contains("--keep") && refused.stderr.contains(flag), "{}", refused.stderr);
    }
    stranger.assert_untouched();
}

const LONG: &str = "bench: {only: {use: chat-mix, concurrency: 2, requests: 1000000, output_tokens: 12}}\n";

fn long_profile(production: &Production) -> String {
    let profile = write_profile(&production.home, production.port, GOOD, "");
    let text = std::fs::read_to_string(&profile).unwrap();
    let kept: String =
        text.lines().filter(|line| !line.starts_with("bench:")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&profile, kept + LONG).unwrap();
    profile
}

#[test]
fn a_killed_orch_brings_production_back_and_a_second_one_is_told_who_has_it() {
    let production = Production::start("unchecked");
    let mut stranger = Stranger::beside(production.port);
    let profile = long_profile(&production);
    let mut child = production.background(&profile);
    // Production answers no ledger with more than one entry: what answers so is the measured server.
    until("the load", || ledger(production.port).filter(|answered| *answered > 8));
    let listed = production.home.ps();
    assert!(listed.iter().any(|one| one["state"] == "displaced"), "{listed:#?}");
    let shown = production.home.run(&["ps"]).stdout;
    assert!(shown.contains("displaced"), "{shown}");
    let held = production.home.run(&["restore"]).expect(1);
    assert!(held.stdout.contains("in the hands of run"), "{}", held.stdout);
    // Another run, that shares the host's right to measure, finds production in hand.
    let words = [&production.words(&profile)[..], &["--set", "share=true", "--set", "port=auto"]].concat();
    let second = production.home.run(&words).expect(3);
    assert!(flat(&second.stdout).contains("in the hands of run"), "{}", second.stdout);
    kill(u64::from(child.id()), Signal::SIGKILL);
    child.wait().unwrap();
    until("production", || ledger(production.port).filter(|answered| *answered == 1));
    assert_eq!(production.acts(), ["start", "stop", "start"]);
    until("the restorer's end", || production.restorers().is_empty().then_some(()));
    let told = production.home.run(&["ps"]);
    assert!(told.stderr.contains("serves again") && told.stderr.contains("outage "), "{}", told.stderr);
    assert_eq!(production.home.ps(), [Value::Null; 0], "the measured server is gone");
    stranger.assert_untouched();
}

#[test]
fn when_orch_and_its_restorer_are_killed_the_next_orch_brings_production_back() {
    let production = Production::start("unchecked");
    let _stranger = Stranger::beside(production.port);
    let profile = long_profile(&production);
    let mut child = production.background(&profile);
    until("the load", || ledger(production.port).filter(|answered| *answered > 8));
    for pid in production.restorers() {
        kill(u64::from(pid), Signal::SIGKILL);
    }
    kill(u64::from(child.id()), Signal::SIGKILL);
    child.wait().unwrap();
    assert_eq!(production.acts(), ["start", "stop"]);
    // As after a reboot: a record on disk, and nobody who has it in hand.
    let ran = production.home.run(&["restore"]).expect(0);
    assert!(ran.stdout.contains("bringing back") && ran.stderr.contains("outage "), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ledger(production.port), Some(1));
    // Twice is harmless.
    production.home.run(&["restore"]).expect(0);
    assert_eq!(production.acts(), ["start", "stop", "start"]);
}

#[test]
fn a_kill_in_the_middle_of_the_stop_or_the_start_brings_production_back_once() {
    let production = Production::start("unchecked");
    let mut stranger = Stranger::beside(production.port);
    production.home.write("slow", "");
    let profile = write_profile(&production.home, production.port, GOOD, "");
    let mut done = vec!["start"];
    // It is killed while the last of these acts goes on: the act is not cut off, and none is done beside it.
    for acts in [&["stop"][..], &["stop", "start"]] {
        let mut child = production.background(&profile);
        let reached: Vec<&str> = done.iter().chain(acts).copied().collect();
        until("the act", || (production.acts() == reached).then_some(()));
        kill(u64::from(child.id()), Signal::SIGKILL);
        child.wait().unwrap();
        production.serves_again();
        done.extend(["stop", "start"]);
        assert_eq!(production.acts(), done);
        assert_eq!(ledger(production.port), Some(1), "it has proven itself");
    }
    assert_eq!(production.home.ps(), [Value::Null; 0], "the measured servers are gone");
    stranger.assert_untouched();
}

#[test]
fn an_interrupt_ends_the_run_and_hands_production_back() {
    let production = Production::start("unchecked");
    let _stranger = Stranger::beside(production.port);
    let profile = long_profile(&production);
    let child = production.background(&profile);
    until("the load", || ledger(production.port).filter(|answered| *answered > 8));
    kill(u64::from(child.id()), Signal::SIGTERM);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(143));
    assert_eq!(ledger(production.port), Some(1));
    assert_eq!(production.home.record()["verdict"]["reasons"][0]["id"], "interrupted");
}

#[test]
fn a_second_interrupt_ends_the_run_at_once_and_production_comes_back_all_the_same() {
    let production = Production::start("unchecked");
    let mut stranger = Stranger::beside(production.port);
    // Its manager takes its time.
    production.home.write("slow", "");
    let profile = long_profile(&production);
    let child = production.background(&profile);
    until("the load", || ledger(production.port).filter(|answered| *answered > 8));
    kill(u64::from(child.id()), Signal::SIGINT);
    until("production's start", || (production.acts() == ["start", "stop", "start"]).then_some(()));
    kill(u64::from(child.id()), Signal::SIGINT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    production.serves_again();
    assert_eq!(production.acts(), ["start", "stop", "start"], "it was not started twice");
    let record = production.home.record();
    assert_eq!((&record["complete"], &record["verdict"]["reasons"][0]["id"]), (&false.into(), &"interrupted".into()));
    assert_eq!(production.home.ps(), [Value::Null; 0], "the measured server is gone");
    stranger.assert_untouched();
}

#[test]
fn a_displacement_outlives_a_reboot_and_its_run_goes_on_with_another() {
    let production = Production::start("unchecked");
    let mut stranger = Stranger::beside(production.port);
    let home = &production.home;
    let profile = write_profile(home, production.port, GOOD, "");
    let mut child = production.background(&profile);
    until("the load", || ledger(production.port).filter(|answered| *answered > 8));
    let listed = home.ps().into_iter().find(|one| one["pid"].is_u64()).unwrap();
    // A reboot as its traces show it: nothing of it lives, and all that was written is of another boot. The pid of the
    // server belongs to a stranger by now, and the clock is an hour behind what it was.
    for pid in production.restorers() {
        kill(u64::from(pid), Signal::SIGKILL);
    }
    for pid in [u64::from(child.id()), listed["supervisor_pid"].as_u64().unwrap(), listed["pid"].as_u64().unwrap()] {
        kill(pid, Signal::SIGKILL);
    }
    child.wait().unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let server = home.state().join("orch/servers").join(listed["id"].as_str().unwrap());
    let undo = std::fs::read_dir(home.state().join("orch/undo")).unwrap().map(|entry| entry.unwrap().path());
    let undo = undo.filter(|path| path.extension() == Some("json".as_ref()));
    for path in undo.chain(["plan.json", "pid", "supervisor"].map(|name| server.join(name))) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(boot.trim()), "{text}");
        let pid = format!("\"pid\":{}", listed["pid"]);
        let text = text.replace(boot.trim(), "another-boot").replace(&pid, &format!("\"pid\":{}", stranger.pid()));
        let mut value: Value = serde_json::from_str(&text).unwrap();
        if path.starts_with(home.state().join("orch/undo")) {
            value["since"] = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1)).to_string().into();
        }
        std::fs::write(&path, value.to_string()).unwrap();
    }
    let ps = home.run(&["ps"]);
    assert!(ps.stderr.contains("is being brought back"), "{ps:#?}");
    production.serves_again();
    let told = home.run(&["ps"]);
    assert!(told.stderr.contains("serves again") && told.stderr.contains("outage 0.0 s"), "{}", told.stderr);
    assert_eq!(production.acts(), ["start", "stop", "start"]);
    // What was asked for when it began holds: production makes room once more.
    let ran = home.run(&["run", "--resume", "latest"]);
    assert!(matches!(ran.code, 0 | 5), "{ran:#?}");
    assert_eq!(home.record()["complete"], true);
    assert_eq!(production.acts(), ["start", "stop", "start", "stop", "start"]);
    assert!(ledger(production.port).is_some());
    stranger.assert_untouched();
}
