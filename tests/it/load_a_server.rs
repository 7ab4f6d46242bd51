//! Load against a server: how much is sent, what becomes of answers that break, and how it ends.

use std::time::{Duration, Instant};

use orch::clock::Clock;
use orch::load::{LoadError, Options, Part, Running, run_step};
use orch::measure::{Measured, MetricValue, Outcome, Seen, summarize};
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
fn without_a_word_about_it_the_warm_up_lasts_until_the_server_is_warm() {
    // Four cold answers, then all alike.
    let mut replies = vec![Reply::tokens(16, 12); 16];
    replies.push(Reply::tokens(16, 4));
    let server = start(replies);
    let mut step = step("s", 2, Some(2));
    step.load.warmup = None;
    let (measured, warm_up) = block_on(async {
        let (clock, interrupt, options) = (Clock::system(), CancellationToken::new(), Options::default());
        let mut running = Running::start(&target(&server.url()), &step, &clock, &interrupt, &options).unwrap();
        let warm_up = running.warm_up(&mut |_| ()).await.unwrap();
        (running.measure(&mut |_| ()).await.unwrap(), warm_up)
    });
    let settled = warm_up.settled.unwrap();
    assert!(settled.rounds >= 3, "the cold round is in neither window: {settled:?}");
    assert_eq!(warm_up.requests, measured.warmup.len() as u64);
    // Rounds of eight draw the same eight prompts.
    let prompts: std::collections::BTreeSet<_> = server.posts()[..measured.warmup.len()]
        .iter()
        .map(|post| post.split("prompt ").nth(1).unwrap()[..1].to_owned())
        .collect();
    assert_eq!(prompts.len(), 8);
}

#[test]
fn a_server_that_fails_all_is_not_warmed_up_for_ever() {
    let server = start(vec![Reply::bytes("HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\nno", Then::Keep)]);
    let mut step = step("s", 2, Some(3));
    step.load.warmup = None;
    let measured = run(&server, &step);
    let warmup = measured.warmup.len();
    // On a busy machine more of them have ended before the first round is looked at.
    assert!((8..=80).contains(&warmup), "a round of eight, and what was in flight then: {warmup}");
    assert_eq!(outcomes(&measured), vec![Outcome::HttpError; 3]);
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
    open.load.arrival = Arrival::Open { rate: 4.0, shape: "gamma".to_owned(), burstiness: None };
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
fn an_open_loop_keeps_its_moments_while_the_server_stalls() {
    // The n-th request stalls for 600 ms, all others answer after 5 ms: a client that waits for answers would hide it.
    let stall = Reply::timed(vec![(0, Reply::tokens(2, 1).whole())]).delayed(600);
    let mut replies = vec![Reply::tokens(2, 2); 8];
    replies.extend(vec![stall; 30]);
    replies.push(Reply::tokens(2, 2));
    let server = start(replies);
    let mut step = step("s", 1, Some(60));
    step.load.arrival = Arrival::Open { rate: 60.0, shape: "constant".to_owned(), burstiness: None };
    let measured = run(&server, &step);
    assert_eq!(outcomes(&measured), vec![Outcome::Ok; 60]);
    assert!(measured.scheduled);
    assert_eq!(measured.late.len(), 60);
    let mut by_due: Vec<_> = measured.timelines.iter().collect();
    by_due.sort_by_key(|timeline| timeline.due);
    let first = by_due[0].due;
    for (number, timeline) in by_due.iter().enumerate() {
        let wanted = first + (number as f64 / 60.0 * 1e9) as u64;
        assert!(timeline.due.abs_diff(wanted) < 1000, "moments are those of the schedule, not of the answers");
    }
    // Nobody waited for the stalled ones: all 60 were sent within the second that they were due in, give or take.
    let sent: Vec<_> = by_due.iter().map(|timeline| timeline.sent.unwrap()).collect();
    assert!(sent.iter().zip(&by_due).all(|(sent, timeline)| sent - timeline.due < 400_000_000));
    let summary = summarize(&measured, &step, &Default::default());
    let MetricValue::Distribution(e2e) = &summary.metrics["e2e_from_due_ms"] else { panic!() };
    assert!(e2e.p50.unwrap() >= 300.0, "half of the requests lived through the stall: {e2e:?}");
    assert!(summary.metrics.contains_key("ttft_from_due_ms"));
}

#[test]
fn a_timed_open_loop_sends_nothing_after_its_end() {
    let server = start(vec![Reply::tokens(2, 1)]);
    let mut step = step("s", 1, None);
    step.load.arrival = Arrival::Open { rate: 40.0, shape: "poisson".to_owned(), burstiness: None };
    step.load.duration_s = Some(0.5);
    let measured = run(&server, &step);
    let first_due = measured.began;
    assert!(measured.timelines.len() > 3 && measured.timelines.len() < 60, "{}", measured.timelines.len());
    assert!(measured.timelines.iter().all(|timeline| timeline.due - first_due < 510_000_000));
    let again = run(&start(vec![Reply::tokens(2, 1)]), &step);
    let gaps = |measured: &Measured| {
        let mut due: Vec<_> = measured.timelines.iter().map(|timeline| timeline.due).collect();
        due.sort_unstable();
        due.windows(2).map(|pair| pair[1] - pair[0]).take(3).collect::<Vec<_>>()
    };
    assert_eq!(gaps(&measured), gaps(&again), "the seed decides");
}

#[test]
fn a_request_is_sent_again_as_often_as_was_asked() {
    let busy = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";
    let limited = "HTTP/1.1 429 Slow\r\nretry-after: 0\r\ncontent-length: 4\r\n\r\nslow";
    let wrong = "HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\nno";
    let options = |retries| Options { retries, ..Options::default() };
    let answers =
        || start(vec![Reply::bytes(busy, Then::Keep), Reply::bytes(limited, Then::Keep), Reply::tokens(2, 20)]);
    let server = answers();
    let measured = run_with(&server.url(), &step("s", 1, Some(1)), &options(2));
    let timeline = &measured.timelines[0];
    assert_eq!((timeline.outcome, timeline.attempts, server.posts().len()), (Outcome::Ok, 3, 3));
    let ttft = timeline.ttft().unwrap();
    assert!(ttft >= 120_000_000, "the wait for the answer counts from the first sending: {ttft}");
    let server = answers();
    let once = run_with(&server.url(), &step("s", 1, Some(1)), &options(1));
    assert_eq!((once.timelines[0].outcome, once.timelines[0].attempts), (Outcome::RateLimited, 2));
    let server = start(vec![Reply::bytes(wrong, Then::Keep)]);
    let refused = run_with(&server.url(), &step("s", 1, Some(1)), &options(5));
    assert_eq!((refused.timelines[0].attempts, server.posts().len()), (1, 1), "a bad request stays one");
}

#[test]
fn a_stream_that_falls_silent_is_given_up_and_says_so() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let silent = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{event}");
    let options = Options { idle_limit: Duration::from_millis(150), ..Options::default() };
    let measured = run_with(&start(vec![Reply::bytes(silent, Then::Hang)]).url(), &step("s", 1, Some(1)), &options);
    let timeline = &measured.timelines[0];
    assert_eq!(timeline.outcome, Outcome::TimedOut);
    assert!(timeline.error.as_deref().unwrap().contains("silent for 0.15 s"), "{:?}", timeline.error);
}

#[test]
fn an_answer_that_is_said_but_whose_transfer_does_not_end_is_complete() {
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let hanging = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{events}");
    let server = start(vec![Reply::bytes(hanging, Then::Hang)]);
    let began = Instant::now();
    let measured = run(&server, &step("s", 1, Some(2)));
    assert_eq!(outcomes(&measured), vec![Outcome::Ok; 2]);
    assert!(began.elapsed() < Duration::from_secs(60));
    let timeline = &measured.timelines[0];
    assert!(timeline.transfer_unended && timeline.done == Some(timeline.chunks[0].at), "{timeline:?}");
    let warnings = summarize(&measured, &step("s", 1, Some(2)), &Default::default()).warnings;
    assert!(warnings.iter().any(|warning| warning.id == "transfers_unended"), "{warnings:?}");
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
