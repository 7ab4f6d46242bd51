//! Someone without a GPU runs the simulated engine: the whole story, and starts that fail as real ones do.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{Home, free_port, read_json};

/// A profile of the simulated engine with this scenario.
fn profile(home: &Home, name: &str, played: &str, scenario: &str, more: &str) -> PathBuf {
    home.write(
        &format!("profiles/{name}.yaml"),
        &format!(
            "engine: {{kind: sim, as: {played}, scenario: {scenario}}}\nmodel: {{path: m, served_name: m}}\n{more}\n"
        ),
    )
}

/// Runs in other homes know nothing of this one's port.
fn port() -> String {
    format!("port={}", free_port())
}

const QUICK: &str = "bench: {only: {use: chat-short, concurrency: 4, requests: 16}}";

fn record(home: &Home) -> Value {
    read_json(&home.newest_run().join("run.json"))
}

fn names(phases: &Value) -> Vec<String> {
    phases.as_array().unwrap().iter().map(|phase| phase["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_demo_goes_from_a_profile_to_a_verdict() {
    let home = Home::new();
    let ran = home.run(&["run", "profiles/sim-demo.yaml", "--set", &port()]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("sim 0.5.23, simulated"), "{}", ran.stdout);
    let record = record(&home);
    assert_eq!(record["verdict"]["kind"], "no_baseline");
    assert_eq!(record["engine"], json!({"kind": "sim", "version": "0.5.23", "simulated": true}));
    let startup = &record["startup"];
    let phases = [
        "launch",
        "config",
        "dist_init",
        "weights",
        "kv_pool",
        "graph_capture",
        "draft_weights",
        "draft_capture",
        "http_up",
        "warmup",
    ];
    assert_eq!(names(&startup["phases"])[..phases.len()], phases);
    // Memory falls from phase to phase, on each of the ranks; what the single graphs left is a trail of its own.
    for rank in 0..2 {
        let free: Vec<f64> = startup["memory"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|point| point["rank"] == rank && point["graphs"].is_null())
            .map(|point| point["free_gb"].as_f64().unwrap())
            .collect();
        assert!(free.len() >= 5 && free.windows(2).all(|pair| pair[1] <= pair[0]), "rank {rank}: {free:?}");
    }
    assert_eq!(startup["facts"]["draft_weights_gb"], 0.78);
    assert_eq!(startup["facts"]["weights_gb"], 28.8);
    let folder = home.newest_run();
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let log = std::fs::read_to_string(folder.join("server.log")).unwrap_or_else(|error| panic!("{error}: {files:?}"));
    assert!(log.contains("accept len: "), "{log}");
    assert!(log.contains("simulated sglang 0.5.23"), "the log says what it is");
}

#[test]
fn a_start_beyond_the_cliff_fails_in_graph_capture() {
    let home = Home::new();
    let ran = home.run(&["run", "profiles/sim-oom.yaml", "--set", &port()]);
    assert_eq!(ran.code, 4, "{}{}", ran.stdout, ran.stderr);
    let record = record(&home);
    let failure = &record["failure"];
    assert_eq!(failure["kind"], "oom_capture", "{failure}");
    assert!(failure["text"].as_str().unwrap().ends_with("in phase graph_capture"), "{failure}");
    assert!(ran.stdout.contains("torch.OutOfMemoryError: CUDA out of memory."), "{}", ran.stdout);
    assert!(ran.stdout.contains("lower `memory.fraction` (now 0.92), or capture fewer batches"), "{}", ran.stdout);
    assert_eq!(record["engine"]["simulated"], true);
    assert_eq!(record["left"]["processes"], 0);
}

#[test]
fn failed_starts_of_each_engine_are_told_by_their_kind() {
    let home = Home::new();
    for (played, kind) in [
        ("sglang", "oom_kv"),
        ("sglang", "oom_host"),
        ("sglang", "bad_flag"),
        ("vllm", "oom_weights"),
        ("vllm", "oom_capture"),
        ("vllm", "gpu_busy"),
        ("llamacpp", "weights_mismatch"),
        ("llamacpp", "oom_kv"),
    ] {
        let scenario = format!("{{ranks: 2, fail: {{kind: {kind}}}}}");
        let path = profile(&home, &format!("{played}-{kind}"), played, &scenario, QUICK);
        let ran = home.run(&["run", path.to_str().unwrap(), "--set", &port()]);
        assert_eq!(ran.code, 4, "{played} {kind}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(record(&home)["failure"]["kind"], kind, "{played}: {}", ran.stdout);
    }
}

#[test]
fn a_simulated_run_never_judges_a_real_one() {
    let home = Home::new();
    let path = profile(&home, "twin", "llamacpp", "{seed: 1}", QUICK);
    let ran = home.run(&["run", path.to_str().unwrap(), "--set", &port()]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let id = home.newest_run().file_name().unwrap().to_str().unwrap().to_owned();
    let set = home.run(&["baseline", "set", &id]);
    assert_eq!(set.code, 0, "{}", set.stderr);
    // The same run, as if a real engine had been measured.
    let mut real = record(&home);
    real["engine"]["simulated"] = json!(false);
    let file = home.newest_run().join("run.json");
    std::fs::write(&file, serde_json::to_vec(&real).unwrap()).unwrap();
    let again = home.run(&["run", path.to_str().unwrap(), "--set", &port(), "--against", &id]);
    assert!(again.stdout.contains("is simulated, the other is real"), "{}{}", again.stdout, again.stderr);
}

/// `orch sim` on its own, with its processes.
struct Server {
    child: std::process::Child,
    mark: String,
}

impl Server {
    fn start(scenario: &str, keep_env: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("ORCH_RUN=t{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_orch"));
        command.args(["sim", "--port", "0", "--scenario", scenario]).env("ORCH_RUN", &mark["ORCH_RUN=".len()..]);
        match keep_env {
            true => command.env("SPT_NOENV", "1"),
            false => command.env_remove("SPT_NOENV"),
        };
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Server { child, mark }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the kernel tells of a process: its command line, its environment, its parent.
struct Seen {
    pid: u32,
    cmdline: Vec<u8>,
    environ: Vec<u8>,
    parent: u32,
}

/// Processes of this title.
fn titled(title: &str) -> Vec<Seen> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let folder = Path::new("/proc").join(pid.to_string());
        let cmdline = std::fs::read(folder.join("cmdline")).ok()?;
        if !cmdline.starts_with(title.as_bytes()) {
            return None;
        }
        let environ = std::fs::read(folder.join("environ")).ok()?;
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Some(Seen { pid, cmdline, environ, parent })
    })
    .collect()
}

/// Looks until it is so, or fails after a while.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn children(server: &Server, title: &str) -> Vec<Seen> {
    titled(title).into_iter().filter(|seen| seen.parent == server.pid()).collect()
}

#[test]
fn workers_carry_the_engines_titles_and_their_environment_is_gone() {
    let server = Server::start("{as: sglang, ranks: 2}", false);
    until("two schedulers", || children(&server, "sglang::scheduler_TP").len() == 2);
    until("the detokenizer", || children(&server, "sglang::detokenizer").len() == 1);
    let workers = children(&server, "sglang::scheduler_TP0");
    assert_eq!(workers[0].cmdline, b"sglang::scheduler_TP0\0", "the title and nothing else");
    assert_eq!(workers[0].environ, b"");

    let kept = Server::start("{as: vllm, ranks: 2}", true);
    until("two workers", || children(&kept, "VLLM::Worker_TP").len() == 2);
    let workers = children(&kept, "VLLM::EngineCore");
    let environ = String::from_utf8_lossy(&workers[0].environ).into_owned();
    assert!(environ.split('\0').any(|entry| entry == kept.mark), "{environ}");
}

#[test]
fn workers_die_with_their_server_and_it_with_them() {
    let mut server = Server::start("{as: sglang, ranks: 2}", false);
    until("two schedulers", || children(&server, "sglang::scheduler_TP").len() == 2);
    let workers: Vec<u32> = children(&server, "sglang::").iter().map(|seen| seen.pid).collect();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    until("all gone", || workers.iter().all(|pid| !titled("sglang::").iter().any(|seen| seen.pid == *pid)));

    let mut server = Server::start("{as: sglang, ranks: 2}", false);
    until("two schedulers", || children(&server, "sglang::scheduler_TP").len() == 2);
    let first = children(&server, "sglang::scheduler_TP1").remove(0).pid;
    kill(Pid::from_raw(i32::try_from(first).unwrap()), Signal::SIGKILL).unwrap();
    let status = server.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it kills its own tree");

    let mut server = Server::start("{as: vllm, ranks: 2}", false);
    until("two workers", || children(&server, "VLLM::Worker_TP").len() == 2);
    let first = children(&server, "VLLM::Worker_TP0").remove(0).pid;
    kill(Pid::from_raw(i32::try_from(first).unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
}

#[test]
fn an_orphan_outlives_its_server_and_a_stubborn_one_takes_no_notice_of_sigterm() {
    let mut server =
        Server::start("{as: sglang, ranks: 1, processes: {orphan: true, ignore_term: true, leftovers: true}}", true);
    let mark = server.mark.clone();
    let mine = || {
        let is_mine = |seen: &Seen| String::from_utf8_lossy(&seen.environ).split('\0').any(|entry| entry == mark);
        titled("sglang::scheduler").into_iter().filter(is_mine).collect::<Vec<_>>()
    };
    // Its first parent is gone as soon as it is there, and was of the same title.
    let lost = || {
        mine()
            .into_iter()
            .find(|seen| !titled("sglang::").iter().any(|one| one.pid == seen.parent) && seen.parent != server.pid())
    };
    until("an orphan", || lost().is_some());
    let orphan = lost().unwrap();
    let shared = PathBuf::from(format!("/dev/shm/sgl_shm_sim_{}_0", orphan.pid));
    until("its shared memory", || shared.exists());
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let pid = Pid::from_raw(i32::try_from(orphan.pid).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(kill(pid, None).is_ok(), "it lives on");
    kill(pid, Signal::SIGKILL).unwrap();
    until("gone", || !mine().iter().any(|seen| seen.pid == orphan.pid));
    assert!(shared.exists(), "what it left stays behind");
    std::fs::remove_file(&shared).unwrap();
    let _ = std::fs::remove_file(std::env::temp_dir().join(format!("sgl_shm_sim_ipc_{}.sock", orphan.pid)));
}
