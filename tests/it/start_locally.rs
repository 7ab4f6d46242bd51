//! A server is started on this machine and proves that it is ready by generating tokens.

use std::os::unix::fs::PermissionsExt;

use orch::launch::{LaunchError, Lease};
use orch::render::File;

use crate::launching::{Launch, Place, lives};

/// What the probes answered, in order.
fn answers(launch: &Launch<'_>, probe: &str) -> Vec<String> {
    let of = launch.said.of("probe_answered");
    of.iter().filter(|data| data["probe"] == probe).map(|data| data["answer"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_server_that_answers_while_it_loads_is_ready_when_it_generates() {
    let place = Place::new();
    let launch = place.server(&["--start-delay", "0.7"]);
    let server = launch.start().await.unwrap();
    let ready = launch.wait(&server, &launch.readiness()).await.unwrap();
    assert_eq!((ready.model.as_str(), ready.tokens), ("tiny", 8));
    assert_eq!(ready.base_url, format!("http://127.0.0.1:{}", launch.port));
    assert!(ready.after.as_secs_f64() >= 0.7);
    assert_eq!(ready.facts["port"], launch.port);
    // Python takes a while to be there, and nothing answers until then.
    let health = answers(&launch, "/health");
    assert_eq!(health[health.len() - 2..], ["503", "200"], "{health:?}");
    assert_eq!(answers(&launch, "/v1/models"), ["200"]);
    assert_eq!(answers(&launch, &format!("port {}", launch.port)), ["by this server"]);
    assert_eq!(answers(&launch, "/v1/chat/completions"), ["8 tokens"]);
    let phases: Vec<&str> = ready.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert!(phases.contains(&"launch") && phases.contains(&"weights"), "{phases:?}");
    let progress = launch.said.of("phase_progress");
    for data in &progress {
        assert_eq!((&data["phase"], &data["total"], &data["unit"]), (&"weights".into(), &10.0.into(), &"parts".into()));
    }
    assert_eq!(progress.last().unwrap()["done"], 10.0);
    let told = launch.said.of("ready");
    assert_eq!((&told[0]["tokens"], &told[0]["model"]), (&8.into(), &"tiny".into()));
    assert_eq!(told[0]["ready_s"], ready.after.as_secs_f64());
    server.release(&launch.said, "done").await.unwrap();
}

#[tokio::test]
async fn a_server_that_listens_only_when_loaded_is_ready_as_well() {
    let place = Place::new();
    let launch = place.server(&["--start-delay", "0.3", "--bind-after"]);
    let server = launch.start().await.unwrap();
    launch.wait(&server, &launch.readiness()).await.unwrap();
    assert_eq!(answers(&launch, "/health"), ["refused", "200"]);
    server.release(&launch.said, "done").await.unwrap();
}

#[tokio::test]
async fn a_server_that_only_thinks_has_generated() {
    for text in ["reasoning", "reasoning-key"] {
        let place = Place::new();
        let launch = place.server(&["--text", text, "--no-usage"]);
        let server = launch.start().await.unwrap();
        assert_eq!(launch.wait(&server, &launch.readiness()).await.unwrap().tokens, 8, "{text}");
        server.release(&launch.said, "done").await.unwrap();
    }
}

#[tokio::test]
async fn any_command_is_waited_for_by_a_sign_in_its_log() {
    let place = Place::new();
    let launch = place.server(&["--start-delay", "0.3"]);
    let server = launch.start().await.unwrap();
    let mut readiness = launch.readiness();
    (readiness.health, readiness.models, readiness.model) = (None, None, None);
    readiness.log = Some("model (loaded|ready)".into());
    let ready = launch.wait(&server, &readiness).await.unwrap();
    assert_eq!((ready.model.as_str(), ready.tokens), ("tiny", 8), "the name is the one that the answer has");
    // Before the sign nothing was asked, so nothing answered 503.
    assert_eq!(answers(&launch, "/v1/chat/completions"), ["8 tokens"]);
    server.release(&launch.said, "done").await.unwrap();
}

#[tokio::test]
async fn the_log_goes_to_the_run_and_is_linked_beside_the_server() {
    let place = Place::new();
    let mut launch = place.server(&[]);
    launch.rank.files = vec![File { path: "extra/config.json".into(), content: "{}".into() }];
    let server = launch.start().await.unwrap();
    launch.wait(&server, &launch.readiness()).await.unwrap();
    assert_eq!(std::fs::read_link(server.folder().join("server.log")).unwrap(), place.log());
    let config = server.folder().join("files/extra/config.json");
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "{}");
    assert_eq!(std::fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
    server.release(&launch.said, "done").await.unwrap();
    assert!(place.log_text().contains("POST /v1/chat/completions"), "the log stays");
}

/// Nothing may be left of a launch that failed: no folder, no lease.
fn assert_nothing_taken(launch: &Launch<'_>) {
    assert_eq!(std::fs::read_dir(launch.place.work.servers()).unwrap().count(), 0);
    let other = orch::launch::WorkFolder::at(launch.place.work.root()).unwrap();
    other.reserve(&Lease::Port(launch.port), "another").unwrap();
}

#[tokio::test]
async fn a_port_that_a_stranger_has_is_told_before_anything_starts() {
    let place = Place::new();
    let launch = place.server(&[]);
    let _stranger = std::net::TcpListener::bind(("127.0.0.1", launch.port)).unwrap();
    match launch.start().await.unwrap_err() {
        LaunchError::PortTaken { port, holder } => {
            assert_eq!(port, launch.port);
            assert!(holder.starts_with(&format!("pid {} (", std::process::id())), "{holder}");
        }
        error => panic!("{error}"),
    }
    assert_eq!(launch.said.kinds(), [""; 0]);
    assert_nothing_taken(&launch);
}

#[tokio::test]
async fn a_missing_program_is_told_before_anything_starts() {
    let place = Place::new();
    let mut launch = place.server(&[]);
    launch.rank.argv = vec!["no-such-engine".into(), "serve".into()];
    launch.rank.env.insert("PATH".into(), "/nowhere:/neither".into());
    let error = launch.start().await.unwrap_err().to_string();
    assert_eq!(error, "cannot find the program `no-such-engine`: it is in no folder of PATH (/nowhere:/neither)");
    let plain = place.folder().join("plain");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    launch.rank.argv = vec![plain.display().to_string()];
    let error = launch.start().await.unwrap_err().to_string();
    assert_eq!(error, format!("cannot find the program `{}`: it is not executable", plain.display()));
    assert_nothing_taken(&launch);
}

#[tokio::test]
async fn a_program_that_the_system_refuses_is_told_and_nothing_is_left() {
    let place = Place::new();
    let mut launch = place.server(&[]);
    let program = place.folder().join("engine");
    std::fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    launch.rank.argv = vec![program.display().to_string()];
    match launch.start().await.unwrap_err() {
        LaunchError::Exec { program: named, why } => {
            assert_eq!(named, program.display().to_string());
            assert!(why.contains("No such file"), "{why}");
        }
        error => panic!("{error}"),
    }
    assert_eq!(launch.said.kinds(), ["lease_taken", "launching"]);
    assert_nothing_taken(&launch);
}

#[tokio::test]
async fn a_log_that_cannot_be_written_starts_nothing() {
    let place = Place::new();
    let launch = place.server(&[]);
    std::fs::create_dir(place.log()).unwrap();
    let error = launch.start().await.unwrap_err().to_string();
    assert!(error.contains("cannot open") && error.contains("server.log"), "{error}");
    assert_nothing_taken(&launch);
}

#[tokio::test]
async fn a_start_that_is_given_up_half_way_leaves_nothing_running() {
    let place = Place::new();
    let launch = place.server(&[]);
    // Long enough for the supervisor to be there, mostly too short for its answer.
    let given_up = tokio::time::timeout(std::time::Duration::from_millis(15), launch.start()).await;
    if let Ok(started) = given_up {
        started.unwrap().release(&launch.said, "it was quicker").await.unwrap();
    }
    crate::launching::until("the end", || {
        let listed = orch::launch::list(&place.work).unwrap();
        listed.iter().all(|listed| !listed.lives()).then_some(())
    });
    assert!(place.orch(&["stop", "--all"]).status.success());
    assert!(!place.pids().into_iter().any(lives));
    assert_nothing_taken(&launch);
}
