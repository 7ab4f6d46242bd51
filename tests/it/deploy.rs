//! A person redeploys a server: what changes is shown, what is worse is put back, and the outage is told. Here as a
//! process under orch's own supervisor; as a unit and as a container in `units.rs` and below.

use std::process::Stdio;

use serde_json::Value;

use crate::containers::{Engine, python};
use crate::launching::{kill, lives, until};
use crate::strangers::Stranger;
use crate::support::{Home, Ran, free_port};

/// The options of a server, as a profile of the name `serve` has them.
pub(crate) fn write_profile(home: &Home, port: u16, options: &str, more: &str) -> String {
    let server = std::env::current_dir().unwrap().join("tests/data/servers/openai.py");
    let path = home.write(
        "profiles/serve.yaml",
        &format!(
            "port: {port}\nengine: {{kind: command, command: [{}, {}, --port, '{{port}}', {options}], ready: {{http: /health}}}}\n\
             model: {{path: tiny, served_name: tiny}}\n\
             bench: {{only: {{use: chat-mix, concurrency: 2, requests: 32, output_tokens: 12}}}}\n\
             tolerance: {TOLERANCE}\n{more}",
            python(),
            server.display()
        ),
    );
    path.to_str().unwrap().to_owned()
}

/// What a busy machine of two cores does to times is no regression; what `SLOW` does is.
pub(crate) const TOLERANCE: &str = "{output_tokens_per_s: 60%, decode_tokens_per_s_per_user: 60%, ttft_ms.p50: {absolute: 900ms}, \
                                    tpot_ms.p50: {absolute: 15ms}, e2e_ms.p50: {absolute: 900ms}, startup_s: {absolute: 120s}}";

pub(crate) const GOOD: &str = "--token-pace, '0.012'";
pub(crate) const SLOW: &str = "--token-pace, '0.06'";

/// Whether the server on this port generates, and how many requests it has answered so far.
pub(crate) fn ledger(port: u16) -> Option<usize> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET /ledger HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let body: Value = serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()?;
    Some(body.as_array()?.len())
}

/// The command line of whoever listens on a port.
pub(crate) fn served_by(home: &Home) -> String {
    let listed = home.ps();
    listed.iter().map(|server| server["command"].to_string()).collect()
}

/// `outage 1.2 s` of a screen.
#[track_caller]
pub(crate) fn outage_s(ran: &Ran) -> f64 {
    let line = ran.stdout.lines().find(|line| line.starts_with("outage ")).unwrap_or_else(|| panic!("{}", ran.stdout));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn up(home: &Home, words: &[&str]) -> Ran {
    home.run(&[&["up", "--as", "process"], words].concat())
}

#[test]
fn a_profile_is_deployed_replaced_and_put_back_when_it_is_worse() {
    let home = Home::new();
    let port = free_port();
    let mut stranger = Stranger::beside(port);
    let profile = write_profile(&home, port, GOOD, "");
    home.run(&["run", &profile]).expect(0);
    home.run(&["baseline", "set"]).expect(0);

    // The first time there is nothing to replace, and so no outage.
    let first = up(&home, &[&profile]).expect(0);
    assert!(first.stdout.contains("no outage") && first.stdout.contains("+  --token-pace 0.012"), "{}", first.stdout);
    assert!(ledger(port).is_some());
    let before = served_by(&home);

    // Again: nothing differs, and it is proven and measured as it is.
    let same = up(&home, &[&profile]).expect(0);
    assert!(same.stdout.contains("is as it should be") && same.stdout.contains("unchanged"), "{}", same.stdout);
    assert_eq!(served_by(&home), before);

    // Worse: shown, replaced, measured, put back.
    let profile = write_profile(&home, port, SLOW, "");
    let dry = up(&home, &[&profile, "--dry-run"]).expect(0);
    assert!(
        dry.stdout.contains("-  --token-pace 0.012\n") && dry.stdout.contains("+  --token-pace 0.06\n"),
        "{}",
        dry.stdout
    );
    assert_eq!(served_by(&home), before);
    let worse = up(&home, &[&profile]).expect(6);
    assert!(worse.stdout.contains("REGRESSED") && worse.stdout.contains("the old one is put back"), "{}", worse.stdout);
    assert!(outage_s(&worse) > 0.0);
    assert_eq!(home.record()["verdict"]["kind"], "regressed");
    assert!(served_by(&home).contains("0.012"), "{}", served_by(&home));
    assert_eq!(ledger(port), Some(1), "the old one, started again, has answered its gate alone");

    // A server that never starts is put back as well.
    let profile = write_profile(&home, port, "--exit-code, '3'", "");
    let failed = up(&home, &[&profile]).expect(4);
    assert!(failed.stdout.contains("the old one is put back"), "{}", failed.stdout);
    assert!(outage_s(&failed) > 0.0);
    assert!(served_by(&home).contains("0.012"));

    // As good: it stays.
    let profile = write_profile(&home, port, "--token-pace, '0.012', --first-token, '0.0101'", "");
    let good = up(&home, &[&profile]).expect(0);
    assert!(outage_s(&good) > 0.0, "{}", good.stdout);
    assert!(served_by(&home).contains("0.0101"));
    assert_eq!(home.ps().len(), 1);

    home.run(&["down", "serve"]).expect(0);
    assert_eq!(ledger(port), None);
    assert_eq!(home.ps(), [Value::Null; 0]);
    home.run(&["down", "serve"]).expect(2);
    stranger.assert_untouched();
}

/// A profile whose server is the simulated engine, at this speed: renamed and forked as the real ones are.
fn simulated(home: &Home, port: u16, step: &str) -> String {
    let path = home.write(
        "profiles/simulated.yaml",
        &format!(
            "port: {port}\nengine: {{kind: sim, as: sglang, scenario: {{seed: 1, speed: {{ttft: 20ms, step: {step}}}}}}}\n\
             bench: {{only: {{use: chat-mix, concurrency: 2, requests: 32, output_tokens: 12}}}}\n\
             tolerance: {TOLERANCE}\n"
        ),
    );
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_simulated_engine_that_got_slower_is_replaced_by_the_one_before() {
    let home = Home::new();
    let port = free_port();
    let mut stranger = Stranger::beside(port);
    let profile = simulated(&home, port, "4ms");
    home.run(&["run", &profile]).expect(0);
    home.run(&["baseline", "set"]).expect(0);
    up(&home, &[&profile]).expect(0);
    let before = home.ps()[0]["command"].clone();
    let profile = simulated(&home, port, "60ms");
    let worse = up(&home, &[&profile]).expect(6);
    assert!(worse.stdout.contains("the old one is put back") && outage_s(&worse) > 0.0, "{}", worse.stdout);
    assert_eq!(home.record()["engine"]["simulated"], true);
    let listed = home.ps();
    assert_eq!((listed.len(), &listed[0]["command"]), (1, &before));
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    home.run(&["down", "simulated"]).expect(0);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    stranger.assert_untouched();
}

#[test]
fn an_up_that_is_killed_half_way_ends_with_the_old_one_serving() {
    let home = Home::new();
    let port = free_port();
    let mut stranger = Stranger::beside(port);
    let profile = write_profile(&home, port, GOOD, "");
    up(&home, &[&profile, "--dry-run"]).expect(0);
    assert_eq!(home.record()["verdict"]["reasons"][0]["id"], "dry_run");
    up(&home, &[&profile, "--no-check"]).expect(0);
    // Neither was measured, and neither failed.
    let listed = home.run(&["list"]).stdout;
    assert!(listed.matches("no baseline").count() == 2 && !listed.contains("failed"), "{listed}");
    let old = home.ps()[0]["pid"].as_u64().unwrap();
    let profile = write_profile(&home, port, "--never-ready", "");
    let mut child =
        home.orch(&["up", "--as", "process", &profile]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the new one", || served_by(&home).contains("--never-ready").then_some(()));
    assert!(!lives(old as u32));
    kill(u64::from(child.id()), nix::sys::signal::Signal::SIGKILL);
    child.wait().unwrap();
    until("the old one", || ledger(port).filter(|answered| *answered >= 1));
    // The first who asks when it is over is told how long it was away.
    let mut told = String::new();
    until("the new one's end, and the word of the restorer", || {
        let ran = home.run(&["ps"]).expect(0);
        told += &ran.stderr;
        (told.contains("serves again") && !ran.stdout.contains("--never-ready")).then_some(())
    });
    assert!(!served_by(&home).contains("--never-ready"));
    assert!(told.contains("outage "), "{told}");
    let refused = home.run(&["run", "--resume", "latest"]).expect(2);
    assert!(refused.stderr.contains("is no measurement to go on with"), "{}", refused.stderr);
    // The next one works.
    let profile = write_profile(&home, port, GOOD, "");
    up(&home, &[&profile, "--no-check"]).expect(0);
    home.run(&["down", "serve"]).expect(0);
    stranger.assert_untouched();
}

#[test]
fn an_up_that_is_interrupted_once_or_twice_ends_with_the_old_one_serving() {
    let home = Home::new();
    let port = free_port();
    let mut stranger = Stranger::beside(port);
    let profile = write_profile(&home, port, GOOD, "");
    up(&home, &[&profile, "--no-check"]).expect(0);
    let old = home.ps()[0]["command"].clone();
    let profile = write_profile(&home, port, "--never-ready", "");
    for twice in [false, true] {
        let mut child = home
            .orch(&["up", "--as", "process", &profile])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the new one", || served_by(&home).contains("--never-ready").then_some(()));
        kill(u64::from(child.id()), nix::sys::signal::Signal::SIGINT);
        if twice {
            // Signals closer together than this are one wish.
            std::thread::sleep(std::time::Duration::from_millis(350));
            kill(u64::from(child.id()), nix::sys::signal::Signal::SIGINT);
        }
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let listed = until("the old one", || {
            let listed = home.ps();
            let only = listed.len() == 1 && listed[0]["state"] == "running";
            (only && ledger(port).is_some_and(|answered| answered >= 1)).then_some(listed)
        });
        assert_eq!(listed[0]["command"], old);
    }
    home.run(&["down", "serve"]).expect(0);
    stranger.assert_untouched();
}

#[test]
fn an_up_that_is_killed_while_the_old_one_is_going_has_it_started_again() {
    let home = Home::new();
    let port = free_port();
    let mut stranger = Stranger::beside(port);
    // It takes no notice of SIGTERM, so its stop takes seconds.
    let stubborn = |step: &str| {
        let profile = simulated(&home, port, step);
        let text = std::fs::read_to_string(&profile).unwrap();
        let more = "seed: 1, processes: {rename: all, orphan: true, ignore_term: true}";
        std::fs::write(&profile, text.replace("seed: 1", more)).unwrap();
        profile
    };
    up(&home, &[&stubborn("1ms"), "--no-check"]).expect(0);
    let old = home.ps().remove(0);
    let journal = std::fs::read_to_string(home.newest_run().join("journal.jsonl")).unwrap();
    assert!(journal.lines().any(|line| line.contains("\"telemetry\"") && line.contains("resident_bytes")), "{journal}");
    let next = stubborn("2ms");
    let words = ["up", "--as", "process", &next, "--no-check"];
    let mut child = home.orch(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the stop", || home.ps().iter().any(|one| one["state"] == "stopping").then_some(()));
    kill(u64::from(child.id()), nix::sys::signal::Signal::SIGKILL);
    child.wait().unwrap();
    let undone = |path: &std::path::Path| path.extension().is_some_and(|end| end == "json");
    until("the restorer's end", || {
        let undo = std::fs::read_dir(home.state().join("orch/undo")).unwrap();
        (!undo.map(|entry| entry.unwrap().path()).any(|path| undone(&path))).then_some(())
    });
    let listed = home.ps();
    assert_eq!(listed.len(), 1, "{listed:#?}");
    assert_eq!((&listed[0]["state"], &listed[0]["run"]), (&"running".into(), &old["run"]));
    assert_eq!(listed[0]["command"], old["command"]);
    assert_ne!(listed[0]["pid"], old["pid"], "it was started again");
    std::net::TcpStream::connect(("127.0.0.1", port)).expect("it serves");
    home.run(&["down", "simulated"]).expect(0);
    stranger.assert_untouched();
}

#[test]
fn a_secret_of_a_deployment_is_kept_for_its_owner_alone_and_a_step_that_is_none_is_refused() {
    let home = Home::new();
    let port = free_port();
    let _stranger = Stranger::beside(port);
    let profile = write_profile(&home, port, GOOD, "secrets: [TOKEN]\n");
    let mut command = home.orch(&["up", "--as", "process", &profile, "--no-check"]);
    Ran::of(command.env("TOKEN", "s3cret-value").output().unwrap()).expect(0);
    let folder = home.state().join("orch/deployments/serve");
    for entry in std::fs::read_dir(&folder).unwrap() {
        use std::os::unix::fs::PermissionsExt;
        let path = entry.unwrap().path();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.contains("s3cret-value"), path.ends_with("secrets.json"), "{}", path.display());
    }
    let wrong = up(&home, &[&profile, "--check", "other"]).expect(2);
    assert!(wrong.stderr.contains("no step `other`") || wrong.stderr.contains("secret"), "{}", wrong.stderr);
    home.run(&["down", "serve"]).expect(0);
    assert!(!folder.exists());
}

#[test]
fn a_deployment_in_a_stand_in_container_is_replaced_and_put_back() {
    let engine = Engine::new();
    let port = free_port();
    let _stranger = Stranger::beside(port);
    let profile = engine.profile("serve", port, GOOD);
    let up = |words: &[&str]| engine.run(&[&["up"], words].concat());
    engine.docker(&["pull", "engine:v1"]).expect(0);
    // A stranger's container has the name: it is told, and left alone.
    let python = python();
    let stranger = [
        "run",
        "--detach",
        "--name",
        "orch-serve",
        "--entrypoint",
        &python,
        "engine:v1",
        "-c",
        "import time; time.sleep(600)",
    ];
    let stranger = engine.docker(&stranger).expect(0).stdout.trim().to_owned();
    let refused = up(&[&profile, "--no-check"]).expect(3);
    assert!(refused.stdout.contains("orch leaves it alone"), "{}", refused.stdout);
    engine.docker(&["rename", &stranger, "somebody-else"]).expect(0);

    up(&[&profile, "--no-check"]).expect(0);
    let record = engine.home.record();
    engine.run(&["run", &profile, "--set", &format!("port={}", free_port())]).expect(0);
    engine.run(&["baseline", "set"]).expect(0);
    let env = std::fs::read_to_string(engine.home.state().join("orch/deployments/serve/secrets.env")).unwrap();
    assert_eq!(env, "TOKEN=s3cret-value\n");
    let calls = engine.calls();
    let run = calls.iter().find(|call| call.contains(&"--restart".to_owned())).unwrap();
    let label = format!("orch.run={}", record["id"].as_str().unwrap());
    assert!(run.contains(&label) && run.contains(&"orch.deployment=serve".to_owned()), "{run:?}");
    assert!(!format!("{calls:?}").contains("s3cret-value"));

    let profile = engine.profile("serve", port, SLOW);
    let worse = up(&[&profile]).expect(6);
    assert!(worse.stdout.contains("the old one is put back") && outage_s(&worse) > 0.0, "{}", worse.stdout);
    // The very container that served before serves again, under its name.
    let names: Vec<String> = engine.containers().iter().map(|id| engine.docker(&["inspect", id]).stdout).collect();
    assert_eq!(names.len(), 2, "{names:#?}");
    assert!(
        names
            .iter()
            .any(|one| one.contains("\"Name\": \"/orch-serve\"") && one.contains(record["id"].as_str().unwrap())),
        "{names:#?}"
    );
    assert_eq!(ledger(port), Some(1));
    engine.run(&["down", "serve"]).expect(0);
    assert_eq!(engine.containers(), [stranger]);
}

#[test]
fn an_up_that_is_killed_after_the_new_one_was_proven_leaves_nothing_of_the_old_one() {
    let engine = Engine::new();
    let port = free_port();
    let _stranger = Stranger::beside(port);
    let up = |options: &str| engine.run(&["up", &engine.profile("serve", port, options), "--no-check"]).expect(0);
    engine.docker(&["pull", "engine:v1"]).expect(0);
    up(GOOD);
    let old = engine.home.record()["id"].as_str().unwrap().to_owned();
    up("--token-pace, '0.011'");
    let serving = engine.containers();
    assert_eq!(serving.len(), 1);
    // As it is when orch is killed between the new one's success and the end of the old one.
    let label = format!("orch.run={old}");
    let python = python();
    let aside = ["run", "--detach", "--name", "orch-serve-before", "--label", &label, "--entrypoint", &python];
    engine.docker(&[&aside[..], &["engine:v1", "-c", "import time; time.sleep(600)"]].concat()).expect(0);
    let current = engine.home.state().join("orch/deployments/serve/current.json");
    let current: Value = serde_json::from_slice(&std::fs::read(current).unwrap()).unwrap();
    let undone = serde_json::json!({
        "v": 1, "key": "deployment-serve", "run": current["run"], "since": current["since"],
        "what": {"deployment": current},
    });
    let undo = engine.home.state().join("orch/undo");
    std::fs::create_dir_all(&undo).unwrap();
    std::fs::write(undo.join("deployment-serve.json"), undone.to_string()).unwrap();
    engine.run(&["restore"]).expect(0);
    assert_eq!(engine.containers(), serving);
    assert!(ledger(port).is_some());
    up(GOOD);
    assert_eq!(engine.containers().len(), 1);
    engine.run(&["down", "serve"]).expect(0);
    assert!(engine.containers().is_empty());
}
