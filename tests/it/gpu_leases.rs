//! Two runs for GPUs that overlap, and for one port: exactly one runs, and the other says who has it and since when.
//! The GPUs are files that stand for some. Each time a stranger's server runs beside, by the same name, with the same
//! words in its arguments: it is never touched.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::containers::python;
use crate::launching::{Place, kill, until};
use crate::strangers::{Stranger, port_of};
use crate::support::{Home, Ran, free_port};
use crate::whole_runs::{LONG, QUICK, assert_nothing_left, profile};

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

fn started(home: &Home) -> Value {
    let runs = |listed: &Value| listed["state"] == "running" && listed["pid"].is_u64();
    until("the server in `orch ps`", || home.ps().into_iter().find(runs))
}

#[test]
fn of_two_runs_for_gpus_that_overlap_exactly_one_runs() {
    let home = Home::new();
    let mut stranger = Stranger::beside(free_port());
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
}

#[test]
fn after_sigkill_of_supervisor_and_server_the_leases_are_free_at_once() {
    let home = Home::new();
    let (folder, names) = gpus(&home, 1);
    let file = profile(&home, "killed", "", LONG);
    let mut running = orch(&home, &folder, &["run", file.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
    let listed = started(&home);
    let mut stranger = Stranger::beside(port_of(&file));
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
fn the_leases_of_a_killed_process_are_waited_for_while_it_dies_and_those_of_a_living_one_are_not() {
    let place = Place::new();
    let lease = format!("GPU-dying-{}", std::process::id());
    let path = place.work.root().join(format!("leases/gpu-{lease}"));
    // Half a gigabyte that is really there takes the kernel longer to free than a lease is looked at.
    let text = "import fcntl, sys, time\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n\
                m = b'x' * (512 << 20)\nprint('held', flush=True)\ntime.sleep(600)\n";
    for at_once in [true, false] {
        let mut child = Command::new(python());
        let mut child = child.args(["-c", text]).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        let gpus = [lease.clone()];
        let refused = orch::launch::reserve_gpus(&place.work, &gpus, None, "run r1").unwrap_err().to_string();
        assert!(refused.contains("is taken by"), "{refused}");
        // Both when it is looked at in this very moment, and when the kernel has begun.
        kill(child.id().into(), Signal::SIGKILL);
        if !at_once {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(orch::launch::reserve_gpus(&place.work, &gpus, None, "run r1").unwrap(), gpus);
        place.work.unreserve(&orch::launch::Lease::Gpu(lease.clone()));
        child.wait().unwrap();
    }
}

#[test]
fn of_two_runs_for_one_port_exactly_one_runs_also_from_another_home() {
    let (home, other) = (Home::new(), Home::new());
    let file = profile(&home, "port", "", LONG);
    let mut stranger = Stranger::beside(port_of(&file));
    let mut running = home.orch(&["run", file.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
    let listed = started(&home);
    let words = ["run", file.to_str().unwrap(), "--set", "share=true"];
    let same = home.run(&words).expect(3);
    let flat = same.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = format!("port:{} is taken by {} since 2", listed["port"], listed["id"].as_str().unwrap());
    assert!(flat.contains(&told), "{}", same.stdout);
    let elsewhere = other.run(&words).expect(3);
    let flat = elsewhere.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = format!(
        "port:{} is taken by {}, of another work folder since 2",
        listed["port"],
        listed["id"].as_str().unwrap()
    );
    assert!(flat.contains(&told), "{}", elsewhere.stdout);
    kill(u64::from(running.id()), Signal::SIGINT);
    running.wait().unwrap();
    assert_nothing_left(&home);
    stranger.assert_untouched();
}

#[test]
fn of_two_that_measure_exactly_one_does_also_from_another_home() {
    let (home, other) = (Home::new(), Home::new());
    let file = profile(&home, "measures", "", LONG);
    let mut stranger = Stranger::beside(port_of(&file));
    let next = profile(&other, "waits", "", QUICK);
    let next = next.to_str().unwrap();
    // Both measure on one machine, apart from whoever else does so here.
    let scope = home.path("machine");
    let orch = |home: &Home, words: &[&str]| {
        let mut command = home.orch(words);
        command.env("ORCH_MEASURE_SCOPE", &scope);
        command
    };
    let mut running = orch(&home, &["run", file.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
    let listed = started(&home);
    let refused = Ran::of(orch(&other, &["run", next]).output().unwrap()).expect(3);
    let flat = refused.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = format!(
        "the right to measure on this host is taken by run {} (pid {}), of another work folder since 2",
        listed["run"].as_str().unwrap(),
        running.id()
    );
    assert!(flat.contains(&told), "{}", refused.stdout);
    // Who measures nothing waits for nobody, and who shares says so in the record.
    let shared = Ran::of(orch(&other, &["run", next, "--set", "share=true"]).output().unwrap());
    assert!(matches!(shared.code, 0 | 5), "{shared:#?}");
    assert_eq!(other.record()["profile"]["share"], true);
    // Killed, it has it no longer, though its server lives on.
    kill(u64::from(running.id()), Signal::SIGKILL);
    running.wait().unwrap();
    let ran = Ran::of(orch(&other, &["run", next]).output().unwrap());
    assert!(matches!(ran.code, 0 | 5), "{ran:#?}");
    let journal = std::fs::read_to_string(other.newest_run().join("journal.jsonl")).unwrap();
    let lease = format!("measure@{}", scope.display());
    for event in ["lease_taken", "lease_left"] {
        let line = journal.lines().find(|line| line.contains(&format!("\"{event}\"")) && line.contains(&lease));
        assert!(line.is_some(), "{event}:\n{journal}");
    }
    home.run(&["stop", "--all"]).expect(0);
    assert_nothing_left(&home);
    stranger.assert_untouched();
}

#[test]
fn memory_that_does_not_come_back_is_told() {
    let home = Home::new();
    let (folder, names) = gpus(&home, 1);
    let file = profile(&home, "leak", "", LONG);
    let _stranger = Stranger::beside(port_of(&file));
    let mut running = orch(&home, &folder, &["run", file.to_str().unwrap()]).stdout(Stdio::null()).spawn().unwrap();
    started(&home);
    std::fs::write(folder.join(&names[0]), r#"{"used_mib": 503}"#).unwrap();
    kill(u64::from(running.id()), Signal::SIGINT);
    running.wait().unwrap();
    assert_eq!(home.record()["left"]["gpu_mib"], 500);
    assert_nothing_left(&home);
}

#[test]
fn what_the_gpus_draw_and_hold_is_told_beside_the_rates() {
    let home = Home::new();
    let (folder, names) = gpus(&home, 3);
    for (name, watts) in names.iter().zip([100, 200, 700]) {
        let made = format!(r#"{{"name": "H200", "memory_mib": 1000, "used_mib": 3, "power_w": {watts}}}"#);
        std::fs::write(folder.join(name), made).unwrap();
    }
    let file = profile(&home, "power", "", QUICK);
    let words = ["run", file.to_str().unwrap(), "--set", "env={CUDA_VISIBLE_DEVICES: '0,1'}", "--set", "port=auto"];
    let ran = Ran::of(orch(&home, &folder, &words).output().unwrap());
    assert!(ran.code == 0 || ran.code == 5, "{ran:#?}");
    let record = home.record();
    let metrics = &record["steps"][0]["metrics"];
    let number = |id: &str| metrics[id].as_f64().unwrap_or_else(|| panic!("{id}: {metrics:#}"));
    // Two of the three are its own: 300 W all the while, so a token costs that, divided by the tokens a second.
    let rate = number("output_tokens_per_s");
    assert!((number("joules_per_token") * rate / 300.0 - 1.0).abs() < 1e-9, "{metrics:#}");
    assert!((number("output_tokens_per_s_per_gpu") * 2.0 / rate - 1.0).abs() < 1e-9, "{metrics:#}");
    assert_eq!(number("peak_memory_bytes"), 2.0 * 3.0 * 1_048_576.0);
    // Each reading is kept with its moment.
    let run = home.newest_run();
    let file = std::fs::File::open(run.join("telemetry.jsonl.zst")).unwrap();
    let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
    let readings: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!readings.is_empty());
    assert!(
        readings.iter().all(|reading| reading["values"]["gpu1_power_w"] == 200.0 && reading["at"].is_string()),
        "{text}"
    );
    let moments: Vec<u64> = readings.iter().map(|reading| reading["since_start_ns"].as_u64().unwrap()).collect();
    assert!(moments.is_sorted(), "{moments:?}");
}
