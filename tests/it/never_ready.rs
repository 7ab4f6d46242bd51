//! A server that lives and never becomes what was asked for.

use std::time::Duration;

use miette::Diagnostic;
use orch::gate::GateError;

use crate::launching::{Place, script, until};

#[tokio::test]
async fn the_limit_ends_a_start_and_says_what_was_last_seen() {
    let place = Place::new();
    let launch = place.server(&["--never-ready"]);
    let server = launch.start().await.unwrap();
    until("the log", || place.log_text().contains("loading model").then_some(()));
    let mut readiness = launch.readiness();
    readiness.timeout_s = Some(3.0);
    let error = launch.wait(&server, &readiness).await.unwrap_err();
    let GateError::TimedOut { limit, answers, log } = &error else { panic!("{error}") };
    assert_eq!((*limit, log.phase.as_str()), (Duration::from_secs(3), "weights"));
    assert_eq!(answers[..], [("/health".to_owned(), "503".to_owned())]);
    let words = [format!("listening on http://127.0.0.1:{}", launch.port), "loading model 'tiny'".to_owned()];
    assert_eq!(log.last_words[..2], words);
    assert!(
        error.to_string().starts_with("the server was not ready within 3s: phase weights, its log silent for "),
        "{error}"
    );
    server.release(&launch.said, "failed").await.unwrap();
}

/// What a server that answers wrongly is given up for.
async fn unfit(options: &[&str]) -> (String, String, String) {
    let place = Place::new();
    let launch = place.server(options);
    let server = launch.start().await.unwrap();
    let error = launch.wait(&server, &launch.readiness()).await.unwrap_err();
    let help = error.help().unwrap().to_string();
    server.release(&launch.said, "failed").await.unwrap();
    match error {
        GateError::Unfit { probe, answer, .. } => (probe, answer, help),
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn another_model_is_not_the_one_that_was_asked_for() {
    let (probe, answer, help) = unfit(&["--model", "other"]).await;
    assert_eq!((probe.as_str(), answer.as_str()), ("/v1/models", "200, without `tiny`: it has `other`"));
    assert!(help.starts_with("set `model.served_name` to what it serves, `other`\n"), "{help}");
    let (probe, answer, _) = unfit(&["--answer-model", "other"]).await;
    assert_eq!(probe, "/v1/chat/completions");
    assert_eq!(answer, "as model `other`, and `tiny` was asked for");
}

#[tokio::test]
async fn what_is_no_text_is_no_readiness() {
    for (kind, expected) in [
        ("empty", "200 without any text"),
        ("replacement", "text without a readable character"),
        ("invalid", "text that is not UTF-8"),
        ("json", "something that is not JSON"),
    ] {
        let (probe, answer, _) = unfit(&["--text", kind]).await;
        assert_eq!(probe, "/v1/chat/completions");
        assert!(answer.starts_with(expected), "{kind}: {answer}");
    }
}

#[tokio::test]
async fn a_refusal_is_told_with_its_words() {
    let (probe, answer, _) = unfit(&["--status", "401"]).await;
    assert_eq!((probe.as_str(), answer.as_str()), ("/v1/chat/completions", "401 (refused as told)"));
    let (probe, answer, _) = unfit(&["--status", "404"]).await;
    assert_eq!((probe.as_str(), answer.as_str()), ("/v1/completions", "404"));
}

#[tokio::test]
async fn a_server_that_is_only_busy_is_waited_for() {
    let place = Place::new();
    let launch = place.server(&["--status", "503"]);
    let server = launch.start().await.unwrap();
    let mut readiness = launch.readiness();
    readiness.timeout_s = Some(3.0);
    let error = launch.wait(&server, &readiness).await.unwrap_err();
    let GateError::TimedOut { answers, .. } = &error else { panic!("{error}") };
    let busy = ("/v1/chat/completions".to_owned(), "503 (refused as told)".to_owned());
    assert!(answers.contains(&busy), "{answers:?}");
    server.release(&launch.said, "failed").await.unwrap();
}

#[tokio::test]
async fn a_strangers_answer_does_not_count() {
    let place = Place::new();
    let mut launch = place.server(&[]);
    // The server of this run listens nowhere. A stranger takes its port in the moment after it was found free, and
    // answers everything as the right server would.
    launch.rank.argv = ["sleep", "600"].map(Into::into).to_vec();
    let server = launch.start().await.unwrap();
    let mut stranger = std::process::Command::new("python3")
        .arg(script())
        .args(["--port", &launch.port.to_string()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut readiness = launch.readiness();
    readiness.timeout_s = Some(4.0);
    let error = launch.wait(&server, &readiness).await.unwrap_err();
    let GateError::TimedOut { answers, .. } = &error else { panic!("{error}") };
    let port =
        (format!("port {}", launch.port), format!("by pid {} (python3), which is not this server", stranger.id()));
    assert!(answers.contains(&port), "{answers:?}");
    server.release(&launch.said, "failed").await.unwrap();
    assert_eq!(stranger.try_wait().unwrap(), None, "and it is left alone");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
