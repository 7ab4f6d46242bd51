//! A server that stays after its run, a run that measures on it, and a run that goes on where it was interrupted: all
//! found by their names alone, whatever `--results` says.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::strangers::{Stranger, port_of};
use crate::support::{Home, Ran, read_json};
use crate::whole_runs::{QUICK, Running, assert_nothing_left, lives, pids, profile};

/// A first step that is over at once, and a second one that lasts.
const TWO: &str = "{first: {use: chat-mix, concurrency: 2, requests: 16, output_tokens: 4}, second: {use: chat-mix, concurrency: 2, requests: 60, output_tokens: 8}}";

fn short(home: &Home) -> String {
    let run = home.newest_run();
    format!("r{}", run.file_name().unwrap().to_str().unwrap().rsplit_once('-').unwrap().1)
}

/// How often each step ended, as the journal tells.
fn ended_steps(home: &Home) -> Vec<String> {
    let journal = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["event"] == "step_ended")
        .map(|event| event["data"]["result"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Rows by step.
fn rows(home: &Home, step: &str) -> usize {
    let rows = orch::measure::read_rows(&home.newest_run().join("requests.jsonl.zst")).unwrap();
    rows.iter().filter(|row| row.step == step).count()
}

/// It came to its end. On a busy machine its numbers may rightly be found unusable; that is not what these are about.
#[track_caller]
fn came_to_its_end(ran: Ran) -> Ran {
    assert!(ran.code == 0 || (ran.code == 5 && ran.stdout.contains("INVALID")), "{ran:#?}");
    ran
}

#[test]
fn a_kept_server_stays_and_is_measured_on_again_until_it_is_stopped() {
    let home = Home::new();
    let profile = profile(&home, "kept", "--workers, '1', --worker-kind, orphan", QUICK);
    let _stranger = Stranger::beside(port_of(&profile));
    let profile = profile.to_str().unwrap();
    let ran = came_to_its_end(home.run(&["run", profile, "--keep"]));
    let id = short(&home);
    assert!(ran.stdout.contains(&format!("orch stop {id}")), "{}", ran.stdout);
    let record = home.record();
    let ps = home.ps();
    assert_eq!((ps.len(), &ps[0]["state"]), (1, &"running".into()));
    assert_eq!(record["left"]["kept"], ps[0]["id"]);
    assert_eq!(record["left"]["processes"], 2);
    let before = pids(&home);
    // With its own profile, and from a results folder of its own.
    let other = home.path("elsewhere");
    let ran = came_to_its_end(home.run(&["run", "--attach", &id, "--results", other.to_str().unwrap()]));
    assert!(ran.stdout.contains("the server was left as it is"), "{}", ran.stdout);
    let runs: Vec<_> = std::fs::read_dir(other.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let attached = read_json(&runs[0].join("run.json"));
    assert_eq!((&attached["complete"], &attached["left"]), (&true.into(), &Value::Null));
    assert_eq!(attached["startup"], Value::Null, "it has no start of its own");
    assert_eq!(attached["provenance"]["attached"], ps[0]["id"]);
    assert_eq!(attached["command"], record["command"]);
    assert_eq!(attached["steps"][0]["counts"]["ok"], 16);
    // Other settings than it was started with would be a lie in the record.
    let ran = home.run(&["run", profile, "--attach", &id, "--set", "env.A=b"]).expect(3);
    assert!(ran.stdout.contains("other settings than this profile's: `env`"), "{}", ran.stdout);
    // By its address, too.
    let url = format!("http://127.0.0.1:{}/v1", ps[0]["port"]);
    came_to_its_end(home.run(&["run", profile, "--attach", &url]));
    assert_eq!(pids(&home), before, "no server was started, and none ended");
    assert!(before.iter().all(|pid| lives(*pid)));
    home.run(&["stop", &id]).expect(0);
    assert_nothing_left(&home);
    let ran = home.run(&["run", profile, "--attach", &id]);
    assert!(ran.code == 3 && ran.stdout.contains("cannot measure on"), "{ran:?}");
}

/// Interrupts a run in its second step.
fn interrupted_in_the_second_step(home: &Home, words: &[&str]) {
    let mut command = home.orch(words);
    let mut child = command.arg("--events").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut events = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let second = |line: &str| line.contains("\"step_began\"") && line.contains("\"step:second\"");
    assert!(events.any(|line| second(&line.unwrap())), "the second step did not begin");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_run_on_a_kept_server_goes_on_with_that_one_or_not_at_all() {
    let home = Home::new();
    let profile = profile(&home, "kept-on", "", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let profile = profile.to_str().unwrap();
    came_to_its_end(home.run(&["run", profile, "--keep"]));
    let (kept, before) = (short(&home), pids(&home));
    let server = home.ps()[0]["id"].clone();
    let words = ["run", "--attach", &kept, "--against", &kept];
    interrupted_in_the_second_step(&home, &words);
    assert_ne!(short(&home), kept);
    let usage = home.run(&["run", "--resume", "latest", "--keep"]).expect(2);
    assert!(usage.stderr.contains("a server that it did not start"), "{}", usage.stderr);
    let ran = home.run(&["run", "--resume", "latest"]);
    assert!(matches!(ran.code, 0 | 5 | 6), "{ran:#?}");
    let record = home.record();
    assert_eq!((&record["complete"], &record["provenance"]["attached"]), (&true.into(), &server));
    assert_eq!(record["left"], Value::Null, "the server is not the run's to end");
    assert_eq!((pids(&home), ended_steps(&home)), (before.clone(), vec!["first".to_owned(), "second".to_owned()]));
    let journal = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    let began: Vec<Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let began: Vec<&Value> = began.iter().filter(|event| event["event"] == "run_began").collect();
    assert_eq!(began.len(), 2);
    let kept_id = server.as_str().unwrap().split('.').next().unwrap();
    assert!(began.iter().all(|event| event["data"]["asked"]["against"] == kept_id), "{began:#?}");
    // Once more, and now the server ends in between.
    interrupted_in_the_second_step(&home, &words);
    home.run(&["stop", &kept]).expect(0);
    let refused = home.run(&["run", "--resume", "latest"]).expect(3);
    assert!(refused.stderr.contains("cannot go on") && refused.stderr.contains("1 of its steps"), "{refused:#?}");
    assert_eq!((pids(&home), ended_steps(&home)), (before, vec!["first".to_owned()]), "nothing was started");
    assert_nothing_left(&home);
}

#[test]
fn a_run_that_keeps_its_server_keeps_it_when_it_is_resumed() {
    let home = Home::new();
    let profile = profile(&home, "keeps", "", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    interrupted_in_the_second_step(&home, &["run", profile.to_str().unwrap(), "--keep"]);
    let refused = home.run(&["run", "--resume", "latest", "--displace"]).expect(2);
    assert!(refused.stderr.contains("keeps its server, and production"), "{}", refused.stderr);
    came_to_its_end(home.run(&["run", "--resume", "latest"]));
    assert_eq!(home.record()["left"]["kept"], home.ps()[0]["id"]);
    home.run(&["stop", "--all"]).expect(0);
    assert_nothing_left(&home);
}

#[test]
fn a_killed_run_goes_on_with_its_server_and_measures_nothing_twice() {
    let home = Home::new();
    let profile = profile(&home, "on", "--workers, '1', --worker-kind, orphan", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let mut running = Running::start(&home, &profile);
    while running.until("step_began")["scope"] != "step:second" {}
    running.signal(Signal::SIGKILL);
    running.end();
    let before = pids(&home);
    let id = short(&home);
    assert_eq!(ended_steps(&home), ["first"]);
    // While somebody looks elsewhere.
    let elsewhere = home.path("elsewhere");
    let ran = came_to_its_end(home.run(&["run", "--resume", &id, "--results", elsewhere.to_str().unwrap()]));
    assert!(!elsewhere.exists(), "it went on in its own folder");
    assert_eq!(pids(&home), before, "its server was taken over");
    assert_eq!(ended_steps(&home), ["first", "second"]);
    let record = home.record();
    assert_eq!(record["complete"], true);
    assert_eq!(record["left"]["processes"], 0);
    assert!(record["startup"]["ready_s"].as_f64().unwrap() > 0.0, "the start is that of the first attempt");
    assert_eq!((rows(&home, "first"), rows(&home, "second")), (16, 60), "no row is lost, and none is there twice");
    let log = std::fs::read_to_string(home.newest_run().join("histograms.hlog")).unwrap();
    for step in ["first", "second"] {
        assert_eq!(log.lines().filter(|line| line.starts_with(&format!("Tag={step}/ttft_ms,"))).count(), 1, "{step}");
    }
    assert_nothing_left(&home);
    // Once more there is nothing to do, and it says how it ended.
    let again = home.run(&["run", "--resume", &id]).expect(ran.code);
    assert!(again.stdout.contains(&format!("exit {}", ran.code)), "{}", again.stdout);
    assert_eq!(ended_steps(&home), ["first", "second"]);
}

#[test]
fn a_run_whose_server_is_gone_starts_another_and_does_the_rest() {
    let home = Home::new();
    let profile = profile(&home, "anew", "--workers, '1', --worker-kind, session, --workers-outlive", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let mut running = Running::start(&home, &profile);
    while running.until("step_began")["scope"] != "step:second" {}
    running.signal(Signal::SIGKILL);
    running.end();
    let ps = home.ps();
    for key in ["supervisor_pid", "pid"] {
        crate::launching::kill(ps[0][key].as_u64().unwrap(), Signal::SIGKILL);
    }
    let before = pids(&home);
    came_to_its_end(home.run(&["run", "--resume", "latest"]));
    assert_eq!(ended_steps(&home), ["first", "second"]);
    assert!(before.iter().all(|pid| !lives(*pid)), "what the first attempt had left was ended");
    assert!(pids(&home).len() > before.len(), "another server was started");
    assert_eq!(home.record()["complete"], true);
    assert_nothing_left(&home);
}

#[test]
fn an_interrupted_run_goes_on_and_one_that_still_goes_on_is_left_alone() {
    let home = Home::new();
    let profile = profile(&home, "stopped", "", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let mut running = Running::start(&home, &profile);
    while running.until("step_began")["scope"] != "step:second" {}
    // Stopped, it keeps what it holds, and its step does not end meanwhile.
    running.signal(Signal::SIGSTOP);
    let busy = home.run(&["run", "--resume", "latest"]).expect(3);
    assert!(busy.stderr.contains("another orch is writing the journal"), "{}", busy.stderr);
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGCONT);
    running.end().expect(143);
    assert_nothing_left(&home);
    came_to_its_end(home.run(&["run", "--resume", "latest", "--keep"]));
    assert_eq!(ended_steps(&home), ["first", "second"]);
    assert_eq!(home.record()["left"]["kept"], home.ps()[0]["id"]);
    home.run(&["stop", "--all"]).expect(0);
    assert_nothing_left(&home);
}

#[test]
fn a_run_of_before_a_reboot_goes_on_with_a_new_server() {
    let home = Home::new();
    let profile = profile(&home, "reboot", "", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let mut running = Running::start(&home, &profile);
    while running.until("step_began")["scope"] != "step:second" {}
    running.signal(Signal::SIGKILL);
    running.end();
    let ps = home.ps();
    for key in ["supervisor_pid", "pid"] {
        crate::launching::kill(ps[0][key].as_u64().unwrap(), Signal::SIGKILL);
    }
    // A reboot as its traces show it: nothing of it lives, and all it wrote is of another boot. The pid of its server
    // belongs to a stranger by now.
    let mut stranger = Command::new("sleep").arg("600").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let folder = home.state().join("orch/servers").join(ps[0]["id"].as_str().unwrap());
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for file in ["plan.json", "pid", "supervisor"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap().replace(boot.trim(), "another-boot");
        let pid = format!("\"pid\":{}", ps[0]["pid"]);
        std::fs::write(folder.join(file), text.replace(&pid, &format!("\"pid\":{}", stranger.id()))).unwrap();
    }
    let listed = home.run(&["ps", "--all"]).expect(0);
    assert!(listed.stdout.contains("ended (reboot)"), "{}", listed.stdout);
    came_to_its_end(home.run(&["run", "--resume", "latest"]));
    assert_eq!(ended_steps(&home), ["first", "second"]);
    assert_eq!(stranger.try_wait().unwrap(), None, "a stranger was ended");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_nothing_left(&home);
}

#[test]
fn a_server_whose_supervisor_is_killed_is_told_measured_and_ended() {
    let home = Home::new();
    let profile = profile(&home, "orphan", "--workers, '2', --worker-kind, orphan", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let mut running = Running::start(&home, &profile);
    let began = running.until("process_began");
    running.until("step_began");
    crate::launching::kill(began["data"]["supervisor_pid"].as_u64().unwrap(), Signal::SIGKILL);
    let warning = running.until("warning");
    assert_eq!(warning["data"]["id"], "supervisor_gone", "{warning}");
    came_to_its_end(running.end());
    assert_eq!(home.record()["left"]["processes"], 0);
    assert_nothing_left(&home);
}
