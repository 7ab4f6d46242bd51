//! Two runs for GPUs that overlap, and for one port: exactly one runs, and the other says who has it and since when.
//! The GPUs are files that stand for some. Each time a stranger's server runs beside, by the same name, with the same
//! words in its arguments: it is never touched.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::launching::{kill, script, until};
use crate::support::{Home, Ran, free_port};
use crate::whole_runs::{LONG, QUICK, assert_nothing_left, lives, profile};

/// A folder of made GPUs, whose names nobody else on this machine uses.
fn gpus(home: &Home, count: usize) -> (PathBuf, Vec<String>) {
    let folder = home.path("gpus");
    std::fs::create_dir_all(&folder).unwrap();
    let unique = home.path("").to_str().unwrap().replace(|c: char| !c.is_ascii_alphanumeric(), "");
    let names: Vec<String> = (0..count).map(|number| format!("GPU-{number}-{unique}")).collect();
    for name in &names {
        std::fs::write(folder.join(name), r#"{"name": "H200", "memory_mib": 1000, "used_mib": 3}"#).unwrap();
    }
    (folder, names)
}

fn orch(home: &Home, gpus: &PathBuf, words: &[&str]) -> Command {
    let mut command = home.orch(words);
    command.env("ORCH_MADE_GPUS", gpus).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server of somebody else's: the same program, with orch's word and the run's mark in its arguments.
struct Stranger(Child, u32);

impl Stranger {
    fn start(home: &Home, port: u16) -> Self {
        let pids = home.path("strangers");
        std::fs::create_dir_all(&pids).unwrap();
        let child = Command::new("python3")
            .arg(script())
            .args(["--port", &port.to_string(), "--model", "tiny", "--pid-dir", pids.to_str().unwrap()])
            .args(["--exit-line", "orch ORCH_RUN=orch supervise", "--ignore-term"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the stranger", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        let pid = child.id();
        Stranger(child, pid)
    }

    #[track_caller]
    fn assert_untouched(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "a stranger was ended");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn started(home: &Home) -> Value {
    until("the server in `orch ps`", || home.ps().into_iter().find(|listed| listed["state"] == "running"))
}

#[test]
fn of_two_runs_for_gpus_that_overlap_exactly_one_runs() {
    let home = Home::new();
    let mut stranger = Stranger::start(&home, free_port());
    let (folder, names) = gpus(&home, 3);
    let file = profile(&home, "pair", "--workers, '1', --worker-kind, bare, --workers-outlive", LONG);
    let file = file.to_str().unwrap();
    let run = |devices: &str| {
        let set = format!("env={{CUDA_VISIBLE_DEVICES: '{devices}'}}");
        // Which of them may measure is another question, and `share` takes it away.
        orch(&home, &folder, &["run", file, "--set", &set, "--set", "share=true", "--set", "port=auto"])
            .spawn()
            .unwrap()
    };
    let (mut first, mut second) = (run("0,1"), run("1,2"));
    let (first_lost, lost) =
        until("the end of one of them", || match (first.try_wait().unwrap(), second.try_wait().unwrap()) {
            (Some(code), None) => Some((true, code)),
            (None, Some(code)) => Some((false, code)),
            (None, None) => None,
            both => panic!("both ended: {both:?}"),
        });
    assert_eq!(lost.code(), Some(3));
    let (ended, mut running) = if first_lost { (first, second) } else { (second, first) };
    let said = Ran::of(ended.wait_with_output().unwrap()).stdout;
    let told = format!("gpu:{} is taken by ", names[1]);
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(&told) && flat.contains(" since 2"), "{said}");
    let listed = started(&home);
    let leases: Vec<&str> = listed["leases"].as_array().unwrap().iter().map(|lease| lease.as_str().unwrap()).collect();
    assert_eq!(leases.iter().filter(|lease| lease.starts_with("gpu:")).count(), 2, "{leases:?}");
    assert!(leases.contains(&format!("gpu:{}", names[1]).as_str()));

    // The supervisor alone is killed: the orphan still has them, is named, and `orch stop` ends it.
    kill(listed["supervisor_pid"].as_u64().unwrap(), Signal::SIGKILL);
    kill(u64::from(running.id()), Signal::SIGKILL);
    running.wait().unwrap();
    let orphan = until("the orphan", || home.ps().into_iter().find(|listed| listed["state"] == "orphan"));
    let set = "env={CUDA_VISIBLE_DEVICES: '1'}";
    let words = ["run", file, "--set", set, "--set", "share=true", "--set", "port=auto"];
    let refused = Ran::of(orch(&home, &folder, &words).output().unwrap()).expect(3);
    let flat = refused.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(&format!("{told}{}", orphan["id"].as_str().unwrap())), "{}", refused.stdout);
    let stopped = Ran::of(orch(&home, &folder, &["stop", "--all"]).output().unwrap()).expect(0);
    assert!(stopped.stdout.contains("the memory of its GPUs is free"), "{}", stopped.stdout);
    assert_nothing_left(&home);
    stranger.assert_untouched();
    assert!(lives(stranger.1));
}

#[test]
fn after_sigkill_of_supervisor_and_server_the_leases_are_free_at_once() {
    let home = Home::new();
    let (folder, names) = gpus(&home, 1);
    let file = profile(&home, "killed", "", LONG);
    let mut running = orch(&home, &folder, &["run", file.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
    let listed = started(&home);
    let mut stranger = Stranger::start(&home, free_port());
    for pid in [running.id().into(), listed["supervisor_pid"].as_u64().unwrap(), listed["pid"].as_u64().unwrap()] {
        kill(pid, Signal::SIGKILL);
    }
    running.wait().unwrap();
    // On the same port and the same GPU, without `orch stop` before.
    let next = profile(&home, "next", "", QUICK);
    let port = format!("port={}", listed["port"]);
    let words = ["run", next.to_str().unwrap(), "--set", &port];
    let ran = Ran::of(orch(&home, &folder, &words).output().unwrap());
    assert!(ran.code == 0 || ran.code == 5, "{ran:#?}");
    let record = home.record();
    assert_eq!((&record["complete"], &record["left"]["gpu_mib"]), (&true.into(), &0.into()), "{record:#}");
    assert!(record["host"]["hardware"].as_str().unwrap().starts_with("1x H200 (made, no device)"));
    let journal = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    for event in [format!("gpu:{}", names[0]), "\"memory_returned\"".to_owned()] {
        assert!(journal.contains(&event), "{event}");
    }
    home.run(&["stop", "--all"]).expect(0);
    stranger.assert_untouched();
}

#[test]
fn of_two_runs_for_one_port_exactly_one_runs_also_from_another_home() {
    let (home, other) = (Home::new(), Home::new());
    let mut stranger = Stranger::start(&home, free_port());
    let file = profile(&home, "port", "", LONG);
    let mut running = home.orch(&["run", file.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
    let listed = started(&home);
    let words = ["run", file.to_str().unwrap(), "--set", "share=true"];
    let same = home.run(&words).expect(3);
    let flat = same.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = format!("port:{} is taken by {} since 2", listed["port"], listed["id"].as_str().unwrap());
    assert!(flat.contains(&told), "{}", same.stdout);
    // Whoever has another work folder knows no more than that somebody has it.
    let elsewhere = other.run(&words).expect(3);
    let flat = elsewhere.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = format!("port:{} is taken by pid ", listed["port"]);
    assert!(flat.contains(&told) && flat.contains("of another work folder since 2"), "{}", elsewhere.stdout);
    kill(u64::from(running.id()), Signal::SIGINT);
    running.wait().unwrap();
    assert_nothing_left(&home);
    stranger.assert_untouched();
}

#[test]
fn memory_that_does_not_come_back_is_told() {
    let home = Home::new();
    let (folder, names) = gpus(&home, 1);
    let file = profile(&home, "leak", "", LONG);
    let mut running = orch(&home, &folder, &["run", file.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
    started(&home);
    std::fs::write(folder.join(&names[0]), r#"{"used_mib": 503}"#).unwrap();
    kill(u64::from(running.id()), Signal::SIGINT);
    running.wait().unwrap();
    assert_eq!(home.record()["left"]["gpu_mib"], 500);
    assert_nothing_left(&home);
}
