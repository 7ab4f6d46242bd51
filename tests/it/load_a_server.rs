//! Load against a server: how much is sent, what becomes of answers that break, and how it ends.

use std::time::{Duration, Instant};

use orch::clock::Clock;
use orch::load::{LoadError, Options, Part, Running, run_step};
use orch::measure::{Measured, Outcome, Seen, summarize};
use orch::render::{Arrival, Step, Stop};
use tokio_util::sync::CancellationToken;

use crate::server::{self, Reply, Then, block_on, run, run_with, start, step, target};

fn outcomes(measured: &Measured) -> Vec<Outcome> {
    measured.timelines.iter().map(|timeline| timeline.outcome).collect()
}

/// The outcome of a single request that is answered so.
fn outcome_of(reply: Reply) -> Outcome {
    outcomes(&run(&start(vec![reply]), &step("s", 1, Some(1))))[0]
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

#[test]
fn exactly_the_requests_that_were_asked_for_are_sent() {
    let server = start(vec![Reply::tokens(3, 1)]);
    let mut step = step("s", 3, Some(10));
    step.load.warmup = Some(4);
    let measured = run(&server, &step);
    assert_eq!((measured.warmup.len(), measured.timelines.len(), server.posts().len()), (4, 10, 14));
    assert!(measured.timelines.iter().all(|timeline| timeline.outcome == Outcome::Ok && timeline.connection_reused));
    assert_eq!(measured.connects.len(), 3);
    let mut ids: Vec<_> = measured.timelines.iter().map(|timeline| timeline.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..10).collect::<Vec<_>>());
    let texts: Vec<_> = measured.timelines.iter().map(|timeline| timeline.text.as_deref()).collect();
    assert_eq!(texts, vec![Some(" w0 w1 w2"); 10]);
    assert!(!measured.interrupted && measured.gave_up.is_none() && measured.began <= measured.ended);
}

#[test]
fn without_a_word_about_it_the_warm_up_is_one_round_and_at_least_two() {
    for (concurrency, expected) in [(1, 2), (5, 5)] {
        let server = start(vec![Reply::tokens(1, 0)]);
        let mut step = step("s", concurrency, Some(1));
        step.load.warmup = None;
        assert_eq!(run(&server, &step).warmup.len(), expected);
    }
}

#[test]
fn a_request_says_what_the_step_says() {
    let server = start(vec![Reply::tokens(4, 0)]);
    let mut step = server::step_of("s", 1, Some(1), false);
    step.workload.stop = Stop::Exact { tokens: 4 };
    step.workload.body.insert("cache_prompt".to_owned(), false.into());
    let measured = run(&server, &step);
    assert_eq!(measured.timelines[0].wanted_tokens, Some(4));
    let post = &server.posts()[0];
    assert!(post.starts_with("POST /v1/completions HTTP/1.1\r\n"), "{post}");
    let body: serde_json::Value = serde_json::from_str(post.split_once("\r\n\r\n").unwrap().1).unwrap();
    for (key, value) in [
        ("model", serde_json::json!("the-model")),
        ("stream", true.into()),
        ("max_tokens", 4.into()),
        ("ignore_eos", true.into()),
        ("cache_prompt", false.into()),
        ("stream_options", serde_json::json!({"include_usage": true})),
    ] {
        assert_eq!(body[key], value, "{key}");
    }
}

#[test]
fn a_server_that_closes_after_each_answer_costs_connections_and_no_request() {
    // Neither the head nor the framing says that it will close: only the bytes after the answer do.
    let mut reply = Reply::tokens(2, 0);
    reply.close();
    let server = start(vec![reply]);
    let measured = run(&server, &step("s", 2, Some(12)));
    assert_eq!(outcomes(&measured), vec![Outcome::Ok; 12]);
    let reopened = measured.timelines.iter().filter(|timeline| timeline.connect.is_some()).count();
    assert_eq!(reopened, 10, "all but the first of each slot");
    assert!(measured.timelines.iter().all(|timeline| timeline.connect.is_some() != timeline.connection_reused));
    assert_eq!(server.posts().len(), 12);
}

#[test]
fn hostile_bytes_end_as_what_they_are() {
    let endless_head = format!("HTTP/1.1 200 OK\r\n{}", "x: yyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(10_000));
    let long_line = [format!("{CHUNKED}{:x}\r\n", 64 << 20).into_bytes(), vec![b'x'; 64 << 20]].concat();
    for (bytes, then, expected) in [
        (endless_head.into_bytes(), Then::Hang, Outcome::BadResponse),
        (long_line, Then::Hang, Outcome::BadResponse),
        (format!("{CHUNKED}xyz\r\n").into_bytes(), Then::Hang, Outcome::BadResponse),
        (format!("{CHUNKED}5\r\nab\r\n0\r\n\r\n").into_bytes(), Then::Hang, Outcome::BadResponse),
        (b"\x00\x01\x02\x03 not http".to_vec(), Then::Hang, Outcome::BadResponse),
        (CHUNKED.as_bytes().to_vec(), Then::Close, Outcome::IncompleteBody),
        (b"HTTP/1.1 200 OK\r\nconten".to_vec(), Then::Close, Outcome::ConnectFailed),
        (Vec::new(), Then::Close, Outcome::ConnectFailed),
        (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), Then::Close, Outcome::StreamEndedEarly),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\ndata: [DONE]\n\n".to_vec(), Then::Keep, Outcome::NoTokens),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert_eq!(outcome_of(Reply::bytes(bytes, then)), expected, "{shown}");
    }
}

#[test]
fn nobody_at_the_port_is_a_failed_request_not_a_failed_program() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let measured = run_with(&format!("http://{free}"), &step("s", 2, Some(3)), &Options::default());
    assert_eq!(outcomes(&measured), vec![Outcome::ConnectFailed; 3]);
    assert!(measured.timelines.iter().all(|timeline| timeline.sent.is_none()));
    let summary = summarize(&measured, &step("s", 2, Some(3)), &Seen::default());
    assert_eq!(summary.reasons[0].id, "no_successful_request");
    assert!(summary.reasons[0].text.contains("connect_failed"), "{}", summary.reasons[0].text);
}

#[test]
fn a_host_that_is_not_found_is_said_to_be() {
    let measured = run_with("http://no-such-host.invalid:1", &step("s", 1, Some(1)), &Options::default());
    let timeline = &measured.timelines[0];
    assert_eq!(timeline.outcome, Outcome::ConnectFailed);
    assert!(timeline.error.as_deref().unwrap().contains("no-such-host.invalid is not found"));
}

#[test]
fn an_answer_that_never_ends_meets_the_limit() {
    let server = start(vec![Reply::bytes(CHUNKED, Then::Hang)]);
    let options = Options { request_limit: Duration::from_millis(100), ..Options::default() };
    let measured = run_with(&server.url(), &step("s", 1, Some(1)), &options);
    assert_eq!((measured.timelines[0].outcome, measured.timelines[0].http_status), (Outcome::TimedOut, Some(200)));
}

#[test]
fn a_wrong_path_stops_the_run_at_its_first_answer() {
    let not_found = "HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{\"detail\":\"Not Found\"}";
    for warmup in [0, 2] {
        let server = start(vec![Reply::bytes(not_found, Then::Keep)]);
        let mut step = step("s", 1, Some(500));
        step.load.warmup = Some(warmup);
        let measured = run(&server, &step);
        assert!(server.posts().len() <= 2, "{} requests", server.posts().len());
        assert_eq!(outcomes(&measured), [Outcome::HttpError]);
        let words = measured.gave_up.clone().unwrap();
        assert!(words.contains("/v1/chat/completions answered 404: Not Found"), "{words}");
        let ids: Vec<_> =
            summarize(&measured, &step, &Seen::default()).reasons.into_iter().map(|reason| reason.id).collect();
        assert_eq!(ids, ["gave_up", "no_successful_request"]);
    }
}

#[test]
fn one_bad_answer_among_good_ones_is_one_failure() {
    let busy = Reply::bytes("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbusy", Then::Keep);
    let server = start(vec![Reply::tokens(2, 0), busy, Reply::tokens(2, 0)]);
    let measured = run(&server, &step("s", 1, Some(5)));
    assert_eq!(outcomes(&measured), [Outcome::Ok, Outcome::RateLimited, Outcome::Ok, Outcome::Ok, Outcome::Ok]);
    assert_eq!(server.posts().len(), 5, "nothing was sent a second time");
}

fn timed(seconds: f64) -> Step {
    let mut step = step("s", 2, None);
    step.load.duration_s = Some(seconds);
    step
}

#[test]
fn a_timed_step_starts_nothing_after_its_end_and_lets_what_runs_finish() {
    let server = start(vec![Reply::tokens(3, 20)]);
    let measured = run(&server, &timed(0.3));
    let end = measured.began + 300_000_000;
    assert!(measured.timelines.len() >= 2);
    assert!(measured.timelines.iter().all(|timeline| timeline.outcome == Outcome::Ok && timeline.due < end));
    assert!(!measured.interrupted);
}

#[test]
fn what_outlives_the_grace_is_cut_off_and_recorded() {
    let server = start(vec![Reply::bytes(CHUNKED, Then::Hang)]);
    let options = Options { grace: Duration::from_millis(100), ..Options::default() };
    let began = Instant::now();
    let measured = run_with(&server.url(), &timed(0.1), &options);
    assert!(began.elapsed() < Duration::from_secs(30), "the limit of a request is not waited for");
    assert_eq!(outcomes(&measured), [Outcome::Cancelled; 2]);
    assert!(!measured.interrupted, "orch ended them, nobody interrupted it");
    assert_eq!(measured.outlived_grace, 2);
    let reasons = orch::measure::summarize(&measured, &timed(0.1), &Seen::default()).reasons;
    assert_eq!(reasons[0].id, "no_successful_request");
}

#[test]
fn a_wait_of_our_own_between_two_requests_is_time_in_the_queue() {
    let server = start(vec![Reply::tokens(2, 0)]);
    let mut step = step("s", 1, Some(2));
    step.load.warmup = Some(0);
    let measured = run(&server, &step);
    let [first, second] = &measured.timelines[..] else { panic!("{:?}", measured.timelines) };
    // After the first answer of a connection it is watched for 5 ms, in case the server closes it.
    assert!(second.due >= first.done.unwrap());
    assert!(second.sent.unwrap() - second.due >= 5_000_000, "{second:?}");
}

#[test]
fn an_interrupt_keeps_what_was_finished() {
    let mut replies = vec![Reply::tokens(2, 0); 5];
    replies.push(Reply::bytes(CHUNKED, Then::Hang));
    let server = start(replies);
    let interrupt = CancellationToken::new();
    let mut finished = 0;
    let measured = block_on(async {
        let (target, step, clock) = (target(&server.url()), step("s", 1, Some(100)), Clock::system());
        let stop = interrupt.clone();
        let mut progress = |progress: orch::load::Progress<'_>| {
            finished += progress.finished.len();
            // The sixth hangs: what is done by the first second is all that will be.
            if progress.part == Part::Measured && progress.elapsed_s > 0.5 {
                stop.cancel();
            }
        };
        run_step(&target, &step, &clock, &interrupt, &Options::default(), &mut progress).await.unwrap()
    });
    assert!(measured.interrupted);
    assert_eq!(measured.outlived_grace, 0, "an interrupt is not the server's fault");
    assert_eq!(outcomes(&measured), [vec![Outcome::Ok; 5], vec![Outcome::Cancelled]].concat());
    assert_eq!(finished, 6, "each request was handed over once");
}

#[test]
fn a_load_that_cannot_be_sent_is_refused_not_approximated() {
    let refuse = |url: &str, step: &Step| {
        let result = block_on(run_step(
            &target(url),
            step,
            &Clock::system(),
            &CancellationToken::new(),
            &Options::default(),
            &mut |_| (),
        ));
        result.unwrap_err()
    };
    let mut open = step("s", 1, Some(1));
    open.load.arrival = Arrival::Open { rate: 4.0, shape: "poisson".to_owned() };
    assert!(matches!(refuse("http://127.0.0.1:1", &open), LoadError::Unsupported { .. }));
    assert!(matches!(refuse("127.0.0.1:1", &step("s", 1, Some(1))), LoadError::Url { .. }));
    assert!(matches!(refuse("http://127.0.0.1:1", &step("s", 1, None)), LoadError::Step { .. }));
    assert!(matches!(refuse("http://127.0.0.1:1", &step("s", 0, Some(1))), LoadError::Step { .. }));
}

#[test]
fn time_before_the_first_token_and_between_tokens_is_the_server_s() {
    let server = start(vec![Reply::tokens(5, 20)]);
    let measured = run(&server, &step("s", 1, Some(1)));
    let timeline = &measured.timelines[0];
    // The server is never early. How late a busy machine makes it is not judged here.
    assert!(timeline.ttft_ms().unwrap() >= 19.0, "{:?}", timeline.ttft_ms());
    assert!(timeline.e2e_ms().unwrap() >= 99.0, "{:?}", timeline.e2e_ms());
    assert!(timeline.headers.unwrap() <= timeline.chunks[0].at);
    assert_eq!(timeline.itl_ms().unwrap().len(), 4);
}

#[test]
fn nothing_is_sent_between_the_warm_up_and_the_go() {
    let server = start(vec![Reply::tokens(2, 1)]);
    let mut step = step("s", 2, Some(6));
    step.load.warmup = Some(5);
    block_on(async {
        let (clock, interrupt) = (Clock::system(), CancellationToken::new());
        let options = Options::default();
        let mut running = Running::start(&target(&server.url()), &step, &clock, &interrupt, &options).unwrap();
        let warmed_up = running.warm_up(&mut |_| ()).await.unwrap();
        assert_eq!((warmed_up.requests, server.posts().len()), (5, 5));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let go = clock.nanos();
        assert_eq!(server.posts().len(), 5, "whatever the caller does in between, the server is left alone");
        let measured = running.measure(&mut |_| ()).await.unwrap();
        assert!(clock.nanos() >= measured.ended && measured.began >= go);
        assert_eq!((measured.warmup.len(), measured.timelines.len(), server.posts().len()), (5, 6, 11));
        assert!(measured.timelines.iter().all(|timeline| timeline.sent.unwrap() >= go && timeline.connection_reused));
    });
}

#[test]
fn a_caller_that_goes_away_before_the_go_ends_the_load() {
    let server = start(vec![Reply::tokens(2, 1)]);
    let mut step = step("s", 2, Some(6));
    step.load.warmup = Some(2);
    block_on(async {
        let (clock, interrupt) = (Clock::system(), CancellationToken::new());
        let options = Options::default();
        let mut running = Running::start(&target(&server.url()), &step, &clock, &interrupt, &options).unwrap();
        running.warm_up(&mut |_| ()).await.unwrap();
        drop(running);
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
    assert_eq!(server.posts().len(), 2);
}
