//! Full disks, results that vanish, no file descriptors: an error that names the place, a journal that reads, nothing left,
//! and what is known is shown.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::strangers::{Stranger, port_of};
use crate::support::{Home, Ran, skipped};
use crate::whole_runs::{LONG, QUICK, Running, assert_nothing_left, profile};

/// Two steps, so that one is finished when the place breaks in the second.
const TWO: &str = "{first: {use: chat-mix, concurrency: 2, requests: 16, output_tokens: 4}, second: {use: chat-mix, concurrency: 2, requests: 300, output_tokens: 8}}";

/// Every whole line of the only journal under a results folder.
fn journal(results: &Path) -> Vec<Value> {
    let run = std::fs::read_dir(results.join("runs")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(run.join("journal.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn results_that_vanish_under_a_run_are_told_with_what_was_measured() {
    let home = Home::new();
    let profile = profile(&home, "gone", "--token-pace, '0.004'", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let mut running = Running::start(&home, &profile);
    while running.until("step_began")["scope"] != "step:second" {}
    std::fs::remove_dir_all(home.results()).unwrap();
    let ran = running.end().expect(5);
    // Events are on standard output, so what people read is on standard error.
    for told in ["first", "exit 5", "could not all be written down", "nothing of r", "run.json"] {
        assert!(ran.stderr.contains(told), "{told}:\n{}", ran.stderr);
    }
    assert_eq!(ran.stderr.matches("No such file or directory").count(), 1, "said once:\n{}", ran.stderr);
    assert_nothing_left(&home);
}

#[test]
fn a_run_goes_on_when_there_is_room_again() {
    if !nix::unistd::geteuid().is_root() {
        return skipped("only root can mount a small file system");
    }
    let home = Home::new();
    let small = home.path("small");
    std::fs::create_dir_all(&small).unwrap();
    let mount = |options: &str| {
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&small)
            .status()
            .is_ok_and(|status| status.success())
    };
    if !mount("size=1m") {
        return skipped("a small file system cannot be mounted here");
    }
    let profile = profile(&home, "room", "--token-pace, '0.004'", TWO);
    let _stranger = Stranger::beside(port_of(&profile));
    let words = ["run", profile.to_str().unwrap(), "--results", small.to_str().unwrap(), "--events"];
    let mut running = Running::of(home.orch(&words));
    while running.until("step_began")["scope"] != "step:second" {}
    // Somebody else fills the disk.
    let mut filler = std::fs::File::create(small.join("filler")).unwrap();
    while std::io::Write::write(&mut filler, &[0; 4096]).is_ok() {}
    let ran = running.end();
    drop(filler);
    std::fs::remove_file(small.join("filler")).unwrap();
    let before = journal(&small);
    let resumed = home.run(&["run", "--resume", "latest", "--results", small.to_str().unwrap()]);
    let after = journal(&small);
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    let ran = ran.expect(5);
    assert!(ran.stderr.contains("No space left on device") && ran.stderr.contains("small/runs/"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\nfirst "), "what was measured is shown: {}", ran.stderr);
    assert!(matches!(resumed.code, 0 | 5) && resumed.stdout.contains("\nsecond "), "{resumed:#?}");
    assert!(after.starts_with(&before));
    let ended: Vec<&str> = after
        .iter()
        .filter(|event| event["event"] == "step_ended")
        .map(|event| event["scope"].as_str().unwrap())
        .collect();
    assert_eq!(ended, ["step:first", "step:second"]);
    assert_nothing_left(&home);
}

#[test]
fn without_file_descriptors_the_place_is_named_and_nothing_is_left() {
    for limit in [8, 14, 20] {
        let home = Home::new();
        let profile = profile(&home, "few", "", QUICK);
        let _stranger = Stranger::beside(port_of(&profile));
        let mut command = Command::new("sh");
        let orch = home.orch(&["run", profile.to_str().unwrap()]);
        command
            .args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")])
            .arg(orch.get_program())
            .args(orch.get_args());
        for (name, value) in orch.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let ran = Ran::of(command.stdin(Stdio::null()).output().unwrap());
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(matches!(ran.code, 0 | 1 | 3 | 4 | 5), "{limit}: {ran:#?}");
        assert!(
            ran.code == 0 || said.contains("Too many open files") || said.contains("more open files"),
            "{limit}: {ran:#?}"
        );
        assert!(!said.contains("panicked"), "{limit}: {ran:#?}");
        home.run(&["stop", "--all"]).expect(0);
        assert_nothing_left(&home);
        // The place is as if nothing had been.
        let next = home.run(&["run", profile.to_str().unwrap()]);
        assert!(matches!(next.code, 0 | 5), "{limit}: {next:#?}");
    }
}

#[test]
fn a_viewer_shows_a_run_and_leaves_it_alone() {
    let home = Home::new();
    let profile = profile(&home, "watched", "", LONG);
    let _stranger = Stranger::beside(port_of(&profile));
    let mut running = Running::start(&home, &profile);
    running.until("step_began");
    let elsewhere = home.path("elsewhere");
    let attach = ["attach", "latest", "--events", "--results", elsewhere.to_str().unwrap()];
    let mut viewer = Running::of(home.orch(&attach));
    viewer.until("run_began");
    viewer.until("load_progress");
    viewer.signal(Signal::SIGINT);
    let ran = viewer.end().expect(0);
    assert!(ran.stderr.contains("the run goes on"), "{}", ran.stderr);
    let logs = home.run(&["logs", "latest", "--results", elsewhere.to_str().unwrap()]).expect(0);
    assert!(logs.stdout.contains("model loaded"), "{}", logs.stdout);
    let at = home.run(&["logs", "latest", "--at", "2"]).expect(0);
    assert!(at.stdout.lines().any(|line| line.starts_with(">     2  ")), "{}", at.stdout);
    let follower = home.orch(&["logs", "latest", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let watcher = home.orch(&["attach", "latest"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    running.signal(Signal::SIGINT);
    running.end().expect(130);
    let followed = Ran::of(follower.wait_with_output().unwrap()).expect(0);
    assert!(followed.stdout.contains("POST /v1/chat/completions"), "it follows to the server's end");
    let watched = Ran::of(watcher.wait_with_output().unwrap()).expect(130);
    assert!(watched.stdout.contains("the run was interrupted before its end"), "{}", watched.stdout);
    home.run(&["logs", "rffff"]).expect(2);
    assert_nothing_left(&home);
}
