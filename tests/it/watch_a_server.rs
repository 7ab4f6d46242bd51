//! Somebody else's server is watched: it is found, its phase is told, and not a byte is written.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::launching::until;
use crate::support::{Home, free_port};

/// A simulated server that nobody's run started, with its output in a file.
struct Stranger {
    child: Child,
    port: u16,
}

impl Stranger {
    fn start(home: &Home, scenario: &str) -> Self {
        let port = free_port();
        let log = std::fs::File::create(home.path("stranger.log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_orch"))
            .args(["sim", "--scenario", scenario, "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Stranger { child, port }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything in a folder, with when it was changed.
fn contents(folder: &Path) -> Vec<(String, std::time::SystemTime)> {
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name() != "stranger.log")
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().modified().unwrap()))
        .collect();
    all.sort();
    all
}

fn of_pid(home: &Home, pid: u32) -> Option<Value> {
    let ran = home.run(&["watch", "--once", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let all: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    all.into_iter().find(|one| one["pid"] == pid)
}

#[test]
fn a_server_that_loads_is_found_by_its_log_and_told_by_its_phase() {
    let home = Home::new();
    let server = Stranger::start(&home, "{seed: 1, as: sglang, ranks: 2, startup: {weights: 300s}}");
    let pid = server.child.id();
    until("the load", || {
        let log = std::fs::read_to_string(home.path("stranger.log")).unwrap();
        log.contains("Load weight begin").then_some(())
    });
    let before = contents(home.path("").as_path());
    let told = of_pid(&home, pid).expect("the server");
    assert_eq!((&told["engine"], &told["told"]["phase"]), (&"sim".into(), &"weights".into()), "{told:#}");
    assert!(told["by"].as_array().unwrap().contains(&"log".into()), "{told:#}");
    assert_eq!(told["log"], home.path("stranger.log").display().to_string());
    assert_eq!(contents(home.path("").as_path()), before, "not a byte was written");
    let ran = home.run(&["watch", home.path("stranger.log").to_str().unwrap(), "--once"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains(" ..  weights"), "{}", ran.stdout);
}

#[test]
fn a_server_that_serves_is_found_by_its_port_and_can_be_imported() {
    let home = Home::new();
    let server = Stranger::start(&home, "{seed: 1, as: sglang, ranks: 1}");
    let pid = server.child.id();
    let told = until("a server that serves", || {
        of_pid(&home, pid).filter(|told| told["told"]["phase"] == "serving" && told["pages"][0]["answer"] == "200")
    });
    assert_eq!(told["ports"], serde_json::json!([server.port]), "{told:#}");
    assert!(told["by"].as_array().unwrap().contains(&"port".into()));
    let ran = home.run(&["watch", "--once"]);
    assert!(ran.stdout.contains(&format!("a profile of it: orch import --pid {pid}")), "{}", ran.stdout);
    assert!(ran.stdout.contains("its log says that it serves"), "{}", ran.stdout);
    let ran = home.run(&["watch", &format!("http://127.0.0.1:{}", server.port)]);
    assert!(ran.stdout.contains("GET /v1/models 200"), "{}", ran.stdout);
}

#[test]
fn a_log_that_failed_says_why() {
    let home = Home::new();
    let mut file = std::fs::File::create(home.path("old.log")).unwrap();
    for line in [
        "[2026-11-01 09:00:00 TP0] Init parallel begin.",
        "[2026-11-01 09:00:01 TP0] Load weight begin. avail mem=78.80 GB",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.18 GiB.",
        "[2026-11-01 09:00:09] Received sigquit from a child process. It usually means the child failed.",
    ] {
        writeln!(file, "{line}").unwrap();
    }
    let ran = home.run(&["watch", home.path("old.log").to_str().unwrap(), "--once"]).expect(0);
    assert!(ran.stdout.contains("oom_weights, line 3: torch.OutOfMemoryError"), "{}", ran.stdout);
}

#[test]
fn another_host_is_not_watched_yet_and_that_is_said() {
    let home = Home::new();
    let ran = home.run(&["watch", "gpu-3"]).expect(2);
    assert!(ran.stderr.contains("other hosts cannot be watched from here yet"), "{}", ran.stderr);
    assert!(ran.stderr.contains("ssh gpu-3 orch watch"), "{}", ran.stderr);
}
