//! A server that ends before it is ready: noticed at once, with how it ended, its last words, and the line that is the cause.

use std::time::{Duration, Instant};

use miette::Diagnostic;
use nix::sys::signal::Signal;
use orch::gate::GateError;

use crate::launching::{Place, kill, until};

#[tokio::test]
async fn an_exit_code_comes_with_the_root_line_and_its_remedy() {
    let place = Place::new();
    let line = "torch.OutOfMemoryError: tried to allocate 1.18 GiB";
    let launch = place.server(&["--start-delay", "0.2", "--exit-code", "3", "--exit-line", line, "--bind-after"]);
    let server = launch.start().await.unwrap();
    let error = launch.wait(&server, &launch.readiness()).await.unwrap_err();
    let GateError::Exited { exited, log } = &error else { panic!("{error}") };
    assert_eq!((exited.code, exited.signal, exited.stopped), (Some(3), None, false));
    assert_eq!(log.phase, "weights");
    let root = log.root.as_ref().unwrap();
    assert_eq!((root.kind.as_str(), root.line.as_str(), root.line_no), ("oom_weights", line, 4));
    assert_eq!(root.remedy.as_deref(), Some("lower `context_length`"));
    let bar = "Loading weights: 100% | 10/10";
    assert_eq!(log.last_words, ["loading model 'tiny'", bar, "INFO: the next line says why", line]);
    assert!(error.to_string().starts_with("the server ended before it was ready: exit code 3, "), "{error}");
    let help = error.help().unwrap().to_string();
    assert!(help.starts_with(&format!("{}:4  {line}\nlower `context_length`\n", place.log().display())), "{help}");
    let seen = &launch.said.of("failure_seen")[0];
    assert_eq!((&seen["kind"], &seen["line_no"]), (&"oom_weights".into(), &4.into()));
    let ended = launch.said.of("process_ended");
    assert_eq!((ended.len(), &ended[0]["code"], &ended[0]["expected"]), (1, &3.into(), &false.into()));
    let left = server.release(&launch.said, "failed").await.unwrap();
    assert_eq!(left.processes, 0);
    assert_eq!(launch.said.of("process_ended").len(), 1, "told once");
    assert_eq!(place.ps(), [serde_json::Value::Null; 0]);
}

#[tokio::test]
async fn a_signal_is_told_as_one_and_within_a_second() {
    let place = Place::new();
    let launch = place.server(&["--never-ready"]);
    let server = launch.start().await.unwrap();
    let pid = server.pid();
    let killer = std::thread::spawn({
        let log = place.log();
        move || {
            until("the log", || std::fs::read_to_string(&log).unwrap_or_default().contains("loading").then_some(()));
            kill(pid.into(), Signal::SIGSEGV);
            Instant::now()
        }
    });
    let error = launch.wait(&server, &launch.readiness()).await.unwrap_err();
    let noticed = Instant::now();
    assert!(error.to_string().starts_with("the server ended before it was ready: killed by SIGSEGV, "), "{error}");
    // A second is what is promised; the rest is for a machine that is busy with other tests.
    assert!(noticed.duration_since(killer.join().unwrap()) < Duration::from_secs(5));
    server.release(&launch.said, "failed").await.unwrap();
}

#[tokio::test]
async fn words_without_a_line_end_are_not_lost() {
    let place = Place::new();
    let mut launch = place.server(&[]);
    launch.rank.argv = ["sh", "-c", "printf 'first\\nthe very last'; exit 1"].map(Into::into).to_vec();
    let server = launch.start().await.unwrap();
    let error = launch.wait(&server, &launch.readiness()).await.unwrap_err();
    assert_eq!(error.log().unwrap().last_words, ["first", "the very last"]);
    server.release(&launch.said, "failed").await.unwrap();
}

#[tokio::test]
async fn a_server_that_says_nothing_at_all_is_told_so() {
    let place = Place::new();
    let mut launch = place.server(&[]);
    launch.rank.argv = vec!["false".into()];
    let server = launch.start().await.unwrap();
    let error = launch.wait(&server, &launch.readiness()).await.unwrap_err();
    assert_eq!(error.help().unwrap().to_string(), format!("its log {} is empty", place.log().display()));
    server.release(&launch.said, "failed").await.unwrap();
}

#[tokio::test]
async fn a_server_that_orch_stop_ended_was_told_to() {
    let place = Place::new();
    let launch = place.server(&["--never-ready"]);
    let server = launch.start().await.unwrap();
    place.wait_for_pids(1);
    assert!(place.orch(&["stop", "--all"]).status.success());
    let error = launch.wait(&server, &launch.readiness()).await.unwrap_err();
    let GateError::Exited { exited, .. } = error else { panic!("{error}") };
    assert!(exited.stopped);
    server.release(&launch.said, "failed").await.unwrap();
    assert_eq!(std::fs::read_dir(place.work.servers()).unwrap().count(), 0);
}
