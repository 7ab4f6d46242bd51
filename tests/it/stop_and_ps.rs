//! Whatever is killed, `orch ps` shows what is left, and `orch stop` ends it to the last process and touches nothing else.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use orch::launch::{LaunchError, Lease, Which, WorkFolder, stop};

use crate::launching::{ORCH, Place, Said, kill, lives, script, until};
use crate::strangers::Stranger;

/// A private place, with a stranger's server beside it.
fn place() -> (Place, Stranger) {
    (Place::new(), Stranger::beside(crate::launching::free_port()))
}

/// What a server and its workers must have become: nothing, in the process table, on disk and in the leases.
fn assert_nothing_left(place: &Place, pids: &[u32]) {
    let left: Vec<u32> = pids.iter().copied().filter(|pid| lives(*pid)).collect();
    assert_eq!(left, [0; 0], "processes that still live");
    assert_eq!(place.ps(), [serde_json::Value::Null; 0]);
    assert_eq!(std::fs::read_dir(place.work.servers()).unwrap().count(), 0, "folders under servers/");
}

#[tokio::test]
async fn a_server_is_started_listed_and_released() {
    let (place, _stranger) = place();
    let launch = place.server(&["--workers", "2"]);
    let server = launch.start().await.unwrap();
    let pids = place.wait_for_pids(3);
    assert!(pids.contains(&server.pid()));
    let listed = place.ps();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["id"], server.id());
    assert_eq!(listed[0]["run"], "20260101-120000-tiny-0420");
    assert_eq!(listed[0]["state"], "running");
    assert_eq!(listed[0]["pid"], server.pid());
    assert_eq!(listed[0]["port"], launch.port);
    assert_eq!(listed[0]["leases"], serde_json::json!([format!("port:{}", launch.port)]));
    assert_eq!(listed[0]["command"][0], "python3");
    let supervisor = u32::try_from(listed[0]["supervisor_pid"].as_u64().unwrap()).unwrap();
    assert!(lives(supervisor));
    let left = server.release(&launch.said, "done").await.unwrap();
    assert_eq!((left.processes, left.gpu_mib), (0, None));
    assert_nothing_left(&place, &[pids, vec![supervisor]].concat());
    assert_eq!(
        launch.said.kinds(),
        ["lease_taken", "launching", "process_began", "stopping", "process_ended", "lease_left"]
    );
    let ended = &launch.said.of("process_ended")[0];
    assert_eq!((&ended["code"], &ended["signal"], &ended["expected"]), (&0.into(), &().into(), &true.into()));
}

#[tokio::test]
async fn the_server_has_its_environment_and_a_session_of_its_own() {
    let (place, _stranger) = place();
    let mut launch = place.server(&[]);
    launch.rank.env.insert("SERVER_MODEL".into(), "from the plan".into());
    launch.secrets.insert("TOKEN".into(), "s3cret".into());
    let server = launch.start().await.unwrap();
    place.wait_for_pids(1);
    let environ = std::fs::read(format!("/proc/{}/environ", server.pid())).unwrap();
    let entries: Vec<&str> =
        environ.split(|byte| *byte == 0).map(|entry| std::str::from_utf8(entry).unwrap()).collect();
    let mark = format!("ORCH_RUN={}", server.id());
    for entry in [&mark, "SPT_NOENV=1", "PYTHONUNBUFFERED=1", "SERVER_MODEL=from the plan", "TOKEN=s3cret"] {
        assert!(entries.contains(&entry), "{entry}");
    }
    let session = |pid: u32| nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid.cast_signed()))).unwrap().as_raw();
    let supervisor = server.supervisor().unwrap().pid;
    assert_eq!(session(server.pid()), server.pid().cast_signed());
    assert_eq!(session(supervisor), supervisor.cast_signed());
    for file in std::fs::read_dir(server.folder()).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read(&path).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains("s3cret"), "the secret stands in {}", path.display());
    }
    server.release(&launch.said, "done").await.unwrap();
}

/// Not a test: the run that another test kills. It starts a server and waits for its end.
#[tokio::test]
#[ignore = "a process of its own for other tests"]
async fn a_run_in_a_process_of_its_own() {
    let folder = std::env::var("STORY_FOLDER").expect("only another test calls this");
    let options: Vec<String> = serde_json::from_str(&std::env::var("STORY_OPTIONS").unwrap()).unwrap();
    let abandon: u64 = std::env::var("STORY_ABANDON_MS").unwrap().parse().unwrap();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let place = Place::at(folder.into());
    let mut launch = place.server(&options);
    launch.abandon = Duration::from_millis(abandon);
    launch.stop.patience = Duration::from_secs(1);
    let server = launch.start().await.unwrap();
    server.exited().await;
}

/// Starts a run in a process of its own and returns it with the entry that `orch ps` has for its server.
fn run_apart(
    place: &Place,
    options: &[&str],
    abandon: Duration,
    processes: usize,
) -> (std::process::Child, serde_json::Value) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stop_and_ps::a_run_in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env("STORY_FOLDER", place.folder())
        .env("STORY_OPTIONS", serde_json::to_string(options).unwrap())
        .env("STORY_ABANDON_MS", abandon.as_millis().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    place.wait_for_pids(processes);
    let listed =
        until("the server in `orch ps`", || place.ps().into_iter().find(|listed| listed["state"] == "running"));
    (run, listed)
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn after_sigkill_of_the_run_its_server_is_listed_and_stopped() {
    let (place, _stranger) = place();
    let (mut run, listed) = run_apart(&place, &["--workers", "2", "--worker-kind", "orphan"], LONG, 3);
    run.kill().unwrap();
    run.wait().unwrap();
    let mut pids = place.pids();
    pids.push(u32::try_from(listed["supervisor_pid"].as_u64().unwrap()).unwrap());
    assert!(pids.iter().all(|pid| lives(*pid)));
    let still = place.ps();
    assert_eq!((still.len(), &still[0]["state"], &still[0]["id"]), (1, &"running".into(), &listed["id"]));
    let output = place.orch(&["stop", listed["id"].as_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let port = listed["port"].as_u64().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("{}: nothing is left, port {port} is free\n", listed["id"].as_str().unwrap()));
    assert_nothing_left(&place, &pids);
    let again = place.orch(&["stop", listed["id"].as_str().unwrap()]);
    assert_eq!(again.status.code(), Some(0), "what was stopped before is no fault: {again:?}");
    assert_eq!(place.orch(&["stop", "--all"]).status.code(), Some(0));
    assert_eq!(place.orch(&["stop", "rffff"]).status.code(), Some(2), "what never was is a mistake");
}

#[test]
fn a_server_whose_run_is_gone_is_stopped_by_its_supervisor() {
    let (place, _stranger) = place();
    let (mut run, listed) = run_apart(&place, &["--workers", "1"], Duration::from_millis(300), 2);
    run.kill().unwrap();
    run.wait().unwrap();
    let pids = place.pids();
    let supervisor = u32::try_from(listed["supervisor_pid"].as_u64().unwrap()).unwrap();
    until("the end of the abandoned server", || (!lives(supervisor)).then_some(()));
    assert!(!pids.iter().any(|pid| lives(*pid)));
    assert_eq!(place.ps(), [serde_json::Value::Null; 0]);
    assert!(place.orch(&["stop", "--all"]).status.success());
    assert_nothing_left(&place, &pids);
}

#[test]
fn a_server_whose_run_lives_is_not_abandoned() {
    let (place, _stranger) = place();
    let (mut run, listed) = run_apart(&place, &[], Duration::ZERO, 1);
    // More than long enough for the supervisor to look several times.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(place.ps()[0]["id"], listed["id"]);
    assert!(place.orch(&["stop", "r0420"]).status.success());
    // The run takes notice, and removes the folder itself or leaves it to the next stop.
    run.wait().unwrap();
    assert!(place.orch(&["stop", "--all"]).status.success());
    assert_nothing_left(&place, &place.pids());
}

/// Stops an orphan: the supervisor was killed, so everything has to be found by its marks.
fn an_orphan_is_ended(options: &[&str], processes: usize) {
    let (place, _stranger) = place();
    let (mut run, listed) = run_apart(&place, options, LONG, processes);
    // The supervisor looks a few times a second; this is about what it has seen by then.
    let id = listed["id"].as_str().unwrap();
    let seen = place.work.servers().join(id).join("seen");
    until("the workers in the list of what was seen", || {
        (std::fs::read_to_string(&seen).unwrap_or_default().lines().count() + 1 >= processes).then_some(())
    });
    kill(listed["supervisor_pid"].as_u64().unwrap(), Signal::SIGKILL);
    run.kill().unwrap();
    run.wait().unwrap();
    let pids = place.pids();
    let orphan = until("the orphan", || place.ps().into_iter().find(|listed| listed["state"] == "orphan"));
    assert_eq!(orphan["supervisor_pid"], serde_json::Value::Null);
    assert_eq!(orphan["processes"], processes);
    // It has inherited the lease, and still has it.
    let port = Lease::Port(u16::try_from(listed["port"].as_u64().unwrap()).unwrap());
    assert_eq!(orphan["leases"], serde_json::json!([port.to_string()]));
    match place.work.reserve(&port, "another").unwrap_err() {
        LaunchError::LeaseTaken { holder, since, .. } => assert_eq!((holder.as_str(), since.is_some()), (id, true)),
        error => panic!("{error}"),
    }
    let output = place.orch(&["stop", id]);
    assert!(output.status.success(), "{output:?}");
    assert_nothing_left(&place, &pids);
    place.work.reserve(&port, "another").unwrap();
}

#[test]
fn an_orphan_with_workers_is_ended() {
    an_orphan_is_ended(&["--workers", "2"], 3);
}

#[test]
fn an_orphan_with_workers_that_lost_their_parent_is_ended() {
    an_orphan_is_ended(&["--workers", "2", "--worker-kind", "session", "--workers-outlive"], 3);
}

#[test]
fn an_orphan_with_workers_that_cleared_their_environment_is_ended() {
    an_orphan_is_ended(&["--workers", "2", "--worker-kind", "bare", "--workers-outlive"], 3);
}

#[test]
fn an_orphan_that_takes_no_notice_of_sigterm_is_ended() {
    let (place, _stranger) = place();
    let (mut run, listed) = run_apart(&place, &["--ignore-term", "--workers", "1", "--workers-outlive"], LONG, 2);
    kill(listed["supervisor_pid"].as_u64().unwrap(), Signal::SIGKILL);
    run.kill().unwrap();
    run.wait().unwrap();
    let pids = place.pids();
    assert!(place.orch(&["stop", "--all"]).status.success());
    assert_nothing_left(&place, &pids);
}

#[tokio::test]
async fn a_server_that_takes_no_notice_of_sigterm_is_killed() {
    let (place, _stranger) = place();
    let mut launch = place.server(&["--ignore-term"]);
    launch.stop.patience = Duration::from_millis(200);
    let server = launch.start().await.unwrap();
    let pids = place.wait_for_pids(1);
    until("the server", || place.log_text().contains("listening").then_some(()));
    let left = server.release(&launch.said, "done").await.unwrap();
    assert_eq!(left.processes, 0);
    assert_nothing_left(&place, &pids);
    let ended = &launch.said.of("process_ended")[0];
    assert_eq!((&ended["code"], &ended["signal"]), (&().into(), &9.into()));
    assert!(place.log_text().contains("asked to stop, and not doing so"));
}

#[tokio::test]
async fn a_second_ctrl_c_does_not_wait() {
    let (place, _stranger) = place();
    let mut launch = place.server(&["--ignore-term", "--workers", "1", "--workers-outlive"]);
    launch.stop.patience = LONG;
    let server = launch.start().await.unwrap();
    let pids = place.wait_for_pids(2);
    let hurry = server.hurry();
    let began = std::time::Instant::now();
    let (left, ()) = tokio::join!(server.release(&launch.said, "interrupted"), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        hurry.now();
    });
    assert_eq!(left.unwrap().processes, 0);
    assert!(began.elapsed() < LONG / 10);
    assert_nothing_left(&place, &pids);
}

#[tokio::test]
async fn the_end_of_the_server_is_noticed_with_its_signal_and_its_workers_are_ended() {
    let (place, _stranger) = place();
    let mut launch = place.server(&["--workers", "2", "--worker-kind", "bare", "--workers-outlive"]);
    launch.stop.patience = Duration::from_secs(1);
    let server = launch.start().await.unwrap();
    let pids = place.wait_for_pids(3);
    kill(server.pid().into(), Signal::SIGKILL);
    let exited = server.exited().await;
    assert_eq!((exited.code, exited.signal, exited.stopped), (None, Some(9), false));
    assert_eq!(exited.to_string(), "killed by SIGKILL");
    let left = server.release(&launch.said, "failed").await.unwrap();
    assert_eq!(left.processes, 0);
    assert_nothing_left(&place, &pids);
    assert_eq!(launch.said.of("process_ended")[0]["expected"], false);
}

#[tokio::test]
async fn the_end_of_the_server_is_noticed_when_the_supervisor_was_killed() {
    let (place, _stranger) = place();
    let launch = place.server(&[]);
    let server = launch.start().await.unwrap();
    place.wait_for_pids(1);
    kill(server.supervisor().unwrap().pid.into(), Signal::SIGKILL);
    assert_eq!(server.has_exited(), None);
    kill(server.pid().into(), Signal::SIGKILL);
    let exited = server.exited().await;
    assert_eq!((exited.code, exited.signal), (None, None));
    assert_eq!(exited.to_string(), "exit code not known");
    server.release(&launch.said, "failed").await.unwrap();
    assert_nothing_left(&place, &place.pids());
}

#[tokio::test]
async fn a_run_learns_that_its_server_was_stopped_from_outside() {
    let (place, _stranger) = place();
    let launch = place.server(&[]);
    let server = launch.start().await.unwrap();
    place.wait_for_pids(1);
    let outside = stop(&place.work, &Which::All).await.unwrap();
    assert_eq!((outside.len(), &outside[0].left), (1, &Vec::new()));
    let exited = server.exited().await;
    assert_eq!((exited.code, exited.stopped), (Some(0), true));
    server.release(&launch.said, "failed").await.unwrap();
    assert_nothing_left(&place, &place.pids());
}

#[tokio::test]
async fn a_kept_server_outlives_its_run() {
    let (place, _stranger) = place();
    let mut launch = place.server(&[]);
    launch.abandon = Duration::ZERO;
    let server = launch.start().await.unwrap();
    place.wait_for_pids(1);
    let pid = server.pid();
    server.keep().unwrap();
    std::thread::sleep(Duration::from_millis(1000));
    assert!(lives(pid));
    assert_eq!(place.ps()[0]["state"], "running");
    assert!(place.orch(&["stop", "--all"]).status.success());
    assert_nothing_left(&place, &[pid]);
}

#[tokio::test]
async fn strangers_are_never_touched() {
    let (place, _stranger) = place();
    let launch = place.server(&[]);
    let server = launch.start().await.unwrap();
    place.wait_for_pids(1);
    let mark = format!("ORCH_RUN={}", server.id());
    let pids = tempfile::tempdir().unwrap();
    let stranger = |configure: &dyn Fn(&mut Command) -> &mut Command| {
        let mut command = Command::new("python3");
        command.arg(script()).args(["--port", &crate::launching::free_port().to_string()]);
        command.args(["--pid-dir", pids.path().to_str().unwrap()]).stderr(Stdio::null());
        configure(&mut command);
        command.spawn().unwrap()
    };
    let mut strangers = [
        // The same program under the same name, and with the mark in its arguments.
        stranger(&|command| command.args(["--model", &mark])),
        // A mark that only begins like ours.
        stranger(&|command| command.env("ORCH_RUN", format!("{}0", server.id()))),
        // Another variable that holds it.
        stranger(&|command| command.env("NOTE", &mark)),
    ];
    until("the strangers", || (std::fs::read_dir(pids.path()).unwrap().count() == 3).then_some(()));
    server.release(&launch.said, "done").await.unwrap();
    assert!(place.orch(&["stop", "--all"]).status.success());
    for stranger in &mut strangers {
        assert_eq!(stranger.try_wait().unwrap(), None, "a stranger was ended");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
    assert_nothing_left(&place, &place.pids());
}

#[tokio::test]
async fn what_another_boot_left_is_only_cleared() {
    let (place, _stranger) = place();
    // The pid that the old boot's server had belongs to a stranger now.
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let folder = place.work.servers().join("20260101-120000-tiny-0420.0001");
    std::fs::create_dir(&folder).unwrap();
    let process = orch::launch::Process::of(stranger.id()).unwrap();
    let identity = serde_json::json!({"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": "another"});
    let plan = serde_json::json!({
        "v": 1, "id": "20260101-120000-tiny-0420.0001", "run": "20260101-120000-tiny-0420", "argv": ["x"], "env": {},
        "secrets": [], "folder": "/", "stop": {"signal": "TERM", "patience": {"secs": 1, "nanos": 0}},
        "abandon": {"secs": 1, "nanos": 0}, "leases": [], "log": "/x", "since": "2026-01-01T12:00:00Z", "boot_id": "another",
    });
    std::fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    std::fs::write(folder.join("pid"), identity.to_string()).unwrap();
    std::fs::write(folder.join("seen"), format!("{} {}\n", process.pid, process.start_ticks)).unwrap();
    assert_eq!(place.ps(), [serde_json::Value::Null; 0]);
    let all: Vec<serde_json::Value> = serde_json::from_slice(&place.orch(&["ps", "--json", "--all"]).stdout).unwrap();
    assert_eq!((&all[0]["state"], &all[0]["pid"]), (&"ended".into(), &().into()));
    assert!(place.orch(&["stop", "r0420"]).status.success());
    assert_eq!(stranger.try_wait().unwrap(), None);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_nothing_left(&place, &[]);
}

#[test]
fn a_folder_that_a_killed_run_had_only_just_made_is_cleared() {
    let (place, _stranger) = place();
    std::fs::create_dir(place.work.servers().join("20260101-120000-tiny-0420.0001")).unwrap();
    assert_eq!(place.ps(), [serde_json::Value::Null; 0]);
    let output = place.orch(&["ps"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "nothing of orch runs here\n");
    assert!(String::from_utf8(output.stderr).unwrap().contains("1 server has ended"));
    assert!(place.orch(&["stop", "--all"]).status.success());
    assert_nothing_left(&place, &[]);
}

#[tokio::test]
async fn a_server_inherits_its_leases_and_nothing_else() {
    use std::os::fd::AsRawFd;
    let (place, _stranger) = place();
    // What a caller leaves open without care.
    let (stray, _other) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&stray, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    assert!(stray.as_raw_fd() > 2);
    let launch = place.server(&[]);
    let server = launch.start().await.unwrap();
    place.wait_for_pids(1);
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let links: Vec<String> = open
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|link| link.display().to_string())
        .filter(|link| link.starts_with("pipe:") || link.contains("/leases/"))
        .collect();
    assert_eq!(links, [place.work.leases().join(format!("port-{}", launch.port)).display().to_string()]);
    server.release(&launch.said, "done").await.unwrap();
}

#[tokio::test]
async fn of_two_for_one_lease_exactly_one_runs() {
    let (place, _stranger) = place();
    let other = WorkFolder::at(place.work.root()).unwrap();
    // Names hold for the whole machine, and other tests may run on it.
    let gpu = |name: &str| Lease::Gpu(format!("{name}-{}", std::process::id()));
    let gpus = |names: [&str; 2]| names.map(gpu).to_vec();
    let mut first = place.server(&[]);
    first.leases.extend(gpus(["GPU-0", "GPU-1"]));
    let mut second = place.server(&[]);
    second.leases.extend(gpus(["GPU-1", "GPU-2"]));
    let server = first.start().await.unwrap();
    place.wait_for_pids(1);
    match second.start().await.unwrap_err() {
        LaunchError::LeaseTaken { lease, holder, since } => {
            assert_eq!((lease, holder.as_str()), (gpu("GPU-1"), server.id()));
            assert!(since.is_some());
        }
        error => panic!("{error}"),
    }
    // What the second had taken before it failed is free again.
    other.reserve(&Lease::Port(second.port), "another").unwrap();
    other.unreserve(&Lease::Port(second.port));
    // Killed with all it has: the leases are free at once.
    kill(server.supervisor().unwrap().pid.into(), Signal::SIGKILL);
    kill(server.pid().into(), Signal::SIGKILL);
    server.exited().await;
    let third = second.start().await.unwrap();
    third.release(&Said::default(), "done").await.unwrap();
    server.release(&Said::default(), "failed").await.unwrap();
    assert_nothing_left(&place, &place.pids());
}

#[test]
fn a_work_folder_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (place, _stranger) = place();
    std::fs::set_permissions(place.work.root(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for words in [["ps"].as_slice(), &["stop", "--all"]] {
        let output = place.orch(words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("orch::launch::work_folder") && text.contains("others may write to it"), "{text}");
    }
}

#[test]
fn a_server_whose_run_was_gone_before_it_began_is_stopped_at_once() {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    let (place, _stranger) = place();
    let id = "20260101-120000-tiny-0420.0001";
    let folder = place.work.servers().join(id);
    std::fs::create_dir(&folder).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let plan = serde_json::json!({
        "v": 1, "id": id, "run": "20260101-120000-tiny-0420", "argv": ["sleep", "600"], "env": {}, "secrets": [],
        "folder": "/", "stop": {"signal": "TERM", "patience": {"secs": 20, "nanos": 0}},
        "abandon": {"secs": LONG.as_secs(), "nanos": 0}, "leases": [], "log": place.log(),
        "since": "2026-01-01T12:00:00Z", "boot_id": boot.trim(),
    });
    std::fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let order = br#"{"secrets":{}}"#;
    ours.write_all(&u32::try_from(order.len()).unwrap().to_le_bytes()).unwrap();
    ours.write_all(order).unwrap();
    // The run is gone with its order given and before any answer.
    drop(ours);
    let mut supervisor = Command::new(ORCH)
        .args(["supervise", "watch", "--server", id, "--work"])
        .arg(place.work.root())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the supervisor's end", || supervisor.try_wait().unwrap());
    let status: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("status")).unwrap()).unwrap();
    assert_eq!((&status["signal"], &status["stopped"]), (&15.into(), &true.into()));
    let pid: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("pid")).unwrap()).unwrap();
    assert!(!lives(u32::try_from(pid["pid"].as_u64().unwrap()).unwrap()));
    assert!(place.orch(&["stop", "--all"]).status.success());
    assert_nothing_left(&place, &[]);
}

#[tokio::test]
async fn a_port_that_somebody_else_has_after_the_end_is_told() {
    let (place, _stranger) = place();
    let mut launch = place.server(&[]);
    launch.rank.argv = vec!["sleep".into(), "600".into()];
    let server = launch.start().await.unwrap();
    let _stranger = std::net::TcpListener::bind(("127.0.0.1", launch.port)).unwrap();
    server.release(&launch.said, "done").await.unwrap();
    let warnings = launch.said.of("warning");
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0]["id"], "port_not_free");
    let text = warnings[0]["text"].as_str().unwrap();
    let expected = format!("port {} is held by pid {} (", launch.port, std::process::id());
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(launch.said.of("lease_left").len(), 1, "the lease is given back all the same");
    assert_nothing_left(&place, &[]);
}
