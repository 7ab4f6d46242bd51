use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// Reads pieces at their milliseconds; then the connection closes in an orderly way, a millisecond later.
fn read(pieces: &[(u64, &[u8])]) -> Timeline {
    let mut exchange = Exchange::new(Timeline { sent: Some(0), ..Timeline::default() }, true);
    for (at, bytes) in pieces {
        if exchange.feed(bytes, at * MS) == Step::Over {
            return exchange.finish(u64::MAX);
        }
    }
    exchange.close(None, (pieces.last().map_or(0, |(at, _)| *at) + 1) * MS);
    exchange.finish(u64::MAX)
}

fn body(text: &str) -> Timeline {
    read(&[(10, HEAD.as_bytes()), (20, text.as_bytes())])
}

fn answer(head: &str, text: &str) -> Timeline {
    read(&[(10, format!("{head}\r\n\r\n{text}").as_bytes())])
}

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn an_answer_needs_an_end_and_a_token() {
    assert_eq!(body(&format!("{TEXT}{DONE}")).outcome, Outcome::Ok);
    assert_eq!(body(&format!("{TEXT}{STOP}")).outcome, Outcome::Ok);
    assert_eq!(body(TEXT).outcome, Outcome::StreamEndedEarly);
    assert_eq!(body("").outcome, Outcome::StreamEndedEarly);
    assert_eq!(body(&format!("{STOP}{DONE}")).outcome, Outcome::NoTokens);
    assert_eq!(body(DONE).outcome, Outcome::NoTokens);
    // The event was not complete when the stream ended.
    assert_eq!(body(&format!("{TEXT}data: [DONE]\n")).outcome, Outcome::StreamEndedEarly);
}

#[test]
fn an_answer_without_end_is_ended_here() {
    let mut exchange = Exchange::new(Timeline { sent: Some(0), ..Timeline::default() }, true).at_most(20_000);
    exchange.feed(HEAD.as_bytes(), MS);
    let some = TEXT.repeat(1000);
    let mut fed = 0;
    while exchange.feed(some.as_bytes(), 2 * MS) == Step::More {
        fed += 1000;
        assert!(fed <= 80_000, "more than four chunks a token");
    }
    assert_eq!(fed, 80_000);
    assert!(exchange.is_over() && !exchange.reusable());
    let timeline = exchange.finish(3 * MS);
    assert_eq!((timeline.outcome, timeline.chunks.len()), (Outcome::BadResponse, 80_001));
    assert_eq!(timeline.error.as_deref(), Some("the answer has more than 80000 chunks"));
}

#[test]
fn the_text_that_is_kept_has_a_limit() {
    let long = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "a".repeat(1 << 19));
    let mut exchange = Exchange::new(Timeline { sent: Some(0), ..Timeline::default() }, true);
    exchange.feed(HEAD.as_bytes(), MS);
    let steps: Vec<_> = (0..33).map(|_| exchange.feed(long.as_bytes(), 2 * MS)).collect();
    assert_eq!((steps[31], steps[32]), (Step::More, Step::Over), "32 of them are 16 MiB");
    assert_eq!(exchange.finish(3 * MS).outcome, Outcome::BadResponse);
}

#[test]
fn what_is_not_the_protocol_is_a_bad_response() {
    for text in ["data: hello\n\n", "data: [1]\n\n", "data: {\"choices\":\n\n", "data: \"a\"\n\n"] {
        let timeline = body(&format!("{TEXT}{text}{DONE}"));
        assert_eq!((timeline.outcome, timeline.chunks.len()), (Outcome::BadResponse, 1), "{text}");
    }
    let not_utf8 = b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\ndata: [DONE]\n\n";
    assert_eq!(read(&[(10, HEAD.as_bytes()), (20, not_utf8)]).outcome, Outcome::BadResponse);
    assert_eq!(
        answer("HTTP/1.1 200 OK\r\ncontent-type: text/html", "<html>login</html>").outcome,
        Outcome::BadResponse
    );
    assert_eq!(
        answer("HTTP/1.1 200 OK\r\ncontent-type: application/json", "{\"ok\": true}").outcome,
        Outcome::BadResponse
    );
    assert_eq!(answer("HTTP/1.1 200 OK\r\ncontent-type: application/json", "{\"error\"").outcome, Outcome::BadResponse);
    assert_eq!(answer("SMTP ready", "").outcome, Outcome::BadResponse);
}

#[test]
fn a_broken_transfer_says_where_it_broke() {
    assert_eq!(read(&[(10, b"HTTP/1.1 200")]).outcome, Outcome::ConnectFailed);
    assert_eq!(read(&[]).outcome, Outcome::ConnectFailed);
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked";
    let cut = answer(chunked, &format!("{:x}\r\n{TEXT}\r\n", TEXT.len()));
    assert_eq!((cut.outcome, cut.chunks.len(), cut.done), (Outcome::IncompleteBody, 1, Some(11 * MS)));
    // Everything was said, but the framing was not closed.
    let said = format!("{TEXT}{STOP}{DONE}");
    assert_eq!(answer(chunked, &format!("{:x}\r\n{said}\r\n", said.len())).outcome, Outcome::IncompleteBody);
    assert_eq!(answer("HTTP/1.1 200 OK\r\ncontent-length: 99999", TEXT).outcome, Outcome::IncompleteBody);
    assert_eq!(answer(chunked, "zz\r\n").outcome, Outcome::BadResponse);

    let mut reset = Exchange::new(Timeline { sent: Some(0), ..Timeline::default() }, false);
    reset.feed(format!("{HEAD}{TEXT}{DONE}").as_bytes(), MS);
    reset.close(Some(&std::io::Error::from(std::io::ErrorKind::ConnectionReset)), 2 * MS);
    assert_eq!(
        reset.finish(0).outcome,
        Outcome::IncompleteBody,
        "a reset is no end of a body that lasts until the close"
    );
}

#[test]
fn errors_are_the_server_s_words_and_the_first_one_counts() {
    let error = "data: {\"error\":{\"message\":\"EngineCore died\"}}\n\n";
    let timeline = body(&format!("{TEXT}{error}data: nonsense\n\n{TEXT}{DONE}"));
    assert_eq!((timeline.outcome, timeline.error.as_deref()), (Outcome::ServerErrorInStream, Some("EngineCore died")));
    assert_eq!(body("event: error\ndata: {\"message\":\"x\"}\n\n").outcome, Outcome::ServerErrorInStream);
    assert_eq!(body("error: {\"code\":500,\"message\":\"x\"}\n\n").outcome, Outcome::ServerErrorInStream);
    assert_eq!(body(&format!("{TEXT}{}{DONE}", STOP.replace("stop", "abort"))).outcome, Outcome::ServerErrorInStream);
    for text in ["{\"error\":{\"message\":\"overloaded\"}}", "  \n{\"error\":\"overloaded\"}"] {
        // Whatever the content type says.
        for kind in ["application/json", "text/event-stream", "text/plain"] {
            let timeline = answer(&format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}"), text);
            assert_eq!((timeline.outcome, timeline.error.as_deref()), (Outcome::ServerErrorInBody, Some("overloaded")));
        }
    }
}

#[test]
fn a_status_says_more_than_what_follows_it() {
    let limited = answer("HTTP/1.1 429 Too Many\r\ncontent-length: 1000", "{\"error\":{\"message\":\"busy\"}}");
    assert_eq!((limited.outcome, limited.http_status), (Outcome::RateLimited, Some(429)));
    let unavailable = answer("HTTP/1.1 503 Unavailable", "no healthy upstream\n");
    assert_eq!((unavailable.outcome, unavailable.error.as_deref()), (Outcome::HttpError, Some("no healthy upstream")));
    for status in [301, 400, 404, 500] {
        assert_eq!(answer(&format!("HTTP/1.1 {status} x"), DONE).outcome, Outcome::HttpError, "{status}");
    }
    // An error's page without an end does not fill the memory.
    let mut exchange = Exchange::new(Timeline::default(), false);
    exchange.feed(b"HTTP/1.1 500 x\r\n\r\n", 0);
    let page = vec![b'x'; 1 << 20];
    let reads = (0..100).take_while(|_| exchange.feed(&page, 1) == Step::More).count();
    assert!(reads < 20, "{reads} MiB were read");
    assert_eq!(exchange.finish(0).outcome, Outcome::HttpError);
}

#[test]
fn a_whole_answer_instead_of_a_stream_is_one_chunk_at_its_end() {
    let json = r#"{"object":"chat.completion","choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],"usage":{"completion_tokens":5}}"#;
    let timeline = answer("HTTP/1.1 200 OK\r\ncontent-type: application/json", json);
    assert_eq!((timeline.outcome, timeline.text.as_deref(), timeline.chunks.len()), (Outcome::Ok, Some("Hi"), 1));
    assert_eq!((timeline.ttft_ms(), timeline.tpot_ms(), timeline.decode_rate_valid()), (Some(11.0), None, false));
}

#[test]
fn a_line_without_end_is_refused_and_not_kept() {
    let mut exchange = Exchange::new(Timeline::default(), false);
    exchange.feed(HEAD.as_bytes(), 0);
    let line = vec![b'x'; 1 << 20];
    let reads = (0..1000).take_while(|_| exchange.feed(&line, 1) == Step::More).count();
    assert!(reads <= 9, "{reads} MiB were held");
    assert_eq!(exchange.finish(0).outcome, Outcome::BadResponse);
}

#[test]
fn an_end_from_our_side_keeps_what_had_come() {
    let mut exchange = Exchange::new(Timeline { sent: Some(0), ..Timeline::default() }, true);
    exchange.feed(format!("{HEAD}{TEXT}").as_bytes(), 5 * MS);
    exchange.stop(Outcome::Cancelled, "ended by orch", 9 * MS);
    let timeline = exchange.finish(u64::MAX);
    assert_eq!((timeline.outcome, timeline.chunks.len(), timeline.done), (Outcome::Cancelled, 1, Some(9 * MS)));
    assert_eq!(timeline.text.as_deref(), Some("a"));
}

#[test]
fn a_count_that_goes_back_is_no_count() {
    let counted = |counts: &[u64]| {
        let event = |count| {
            format!("data: {{\"choices\":[{{\"text\":\"a\"}}],\"usage\":{{\"completion_tokens\":{count}}}}}\n\n")
        };
        body(&format!("{}{DONE}", counts.iter().map(event).collect::<String>()))
    };
    let rising = counted(&[1, 3, 7]);
    assert_eq!(rising.outcome, Outcome::Ok, "{:?}", rising.error);
    assert_eq!(rising.chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>(), [Some(1), Some(2), Some(4)]);
    assert!(!counted(&[1, 3, 2]).tokens_exact());
}

proptest! {
    /// The same bytes give the same timeline however they are cut, but for the moments.
    #[test]
    fn any_split_gives_the_same_answer(
        events in proptest::collection::vec(prop_oneof![
            4 => "[a-z é中🦀]{1,6}".prop_map(|text| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":{}}}}}]}}\n\n", serde_json::to_string(&text).unwrap())),
            1 => "[a-z\"\\\\\n]{1,6}".prop_map(|text| format!("data: {{\"choices\":[{{\"delta\":{{\"reasoning\":{}}}}}]}}\r\n\r\n", serde_json::to_string(&text).unwrap())),
            1 => Just(": ping\n\n".to_owned()),
            1 => Just("data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n".to_owned()),
            1 => Just("data: {\"error\":\"x\"}\n\n".to_owned()),
            1 => Just(STOP.to_owned()),
            1 => Just(DONE.to_owned()),
        ], 0..12),
        chunk in 1usize..60,
        cuts in proptest::collection::vec(0usize..3000, 0..10),
    ) {
        let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for piece in events.concat().as_bytes().chunks(chunk) {
            bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
            bytes.extend(piece);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n\r\n");
        let without_moments = |timeline: Timeline| {
            let chunks: Vec<_> = timeline.chunks.iter().map(|chunk| (chunk.tokens, chunk.kind)).collect();
            (timeline.outcome, timeline.error, chunks, timeline.text, timeline.reasoning_text, timeline.usage, timeline.finish_reason)
        };
        let whole = without_moments(read(&[(1, &bytes)]));
        let single: Vec<(u64, &[u8])> = bytes.chunks(1).map(|byte| (1, byte)).collect();
        prop_assert_eq!(&without_moments(read(&single)), &whole);
        let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut <= bytes.len()).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<(u64, &[u8])> = cuts.windows(2).map(|pair| (1, &bytes[pair[0]..pair[1]])).collect();
        prop_assert_eq!(&without_moments(read(&pieces)), &whole);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), stream in any::<bool>()) {
        let head: &[u8] = if stream { HEAD.as_bytes() } else { b"" };
        let timeline = read(&[(1, head), (2, &bytes)]);
        prop_assert!(timeline.outcome != Outcome::Ok || !timeline.chunks.is_empty());
    }
}

fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

#[test]
fn a_count_in_the_last_chunk_is_the_answer_s_and_not_the_chunk_s() {
    let last = event(
        r#"{"choices":[{"delta":{"content":"c"},"finish_reason":"stop"}],"usage":{"prompt_tokens":null,"completion_tokens":3,"completion_tokens_details":null}}"#,
    );
    let timeline = body(&format!("{TEXT}{TEXT}{last}{DONE}"));
    assert_eq!((timeline.outcome, timeline.output_tokens().0), (Outcome::Ok, 3));
    assert_eq!(timeline.chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>(), [Some(1); 3]);
    let many = last.replace("\"completion_tokens\":3", "\"completion_tokens\":12");
    let timeline = body(&format!("{TEXT}{TEXT}{many}{DONE}"));
    assert_eq!(timeline.output_tokens().0, 12);
    assert!(timeline.chunks.iter().all(|chunk| chunk.tokens.is_none()), "how many each has is not known");
}

#[test]
fn continuous_counts_tell_the_tokens_of_each_chunk() {
    let chunk = |tokens: u64| {
        event(&format!(
            r#"{{"choices":[{{"delta":{{"content":"a"}}}}],"usage":{{"prompt_tokens":5,"completion_tokens":{tokens}}}}}"#
        ))
    };
    let role = event(r#"{"choices":[{"delta":{"role":"assistant","content":""}}],"usage":{"completion_tokens":0}}"#);
    let timeline = body(&format!("{role}{}{}{}{STOP}{DONE}", chunk(1), chunk(5), chunk(7)));
    assert_eq!(timeline.chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>(), [Some(1), Some(4), Some(2)]);
}

#[test]
fn an_error_after_tokens_is_an_error_in_each_of_its_shapes() {
    for (error, words) in [
        (r#"{"error":{"message":"EngineCore died","code":500}}"#, "EngineCore died"),
        (r#"{"object":"error","message":"too long","code":400}"#, "too long"),
        (r#"{"message":"gone","type":"internal"}"#, "gone"),
        (r#"{"detail":"no"}"#, "no"),
        (r#"{"choices":[{"delta":{},"finish_reason":"abort"}]}"#, "finish reason `abort`"),
        (r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#, "finish reason `error`"),
    ] {
        let timeline = body(&format!("{TEXT}{}{DONE}", event(error)));
        assert_eq!(timeline.outcome, Outcome::ServerErrorInStream, "{error}");
        assert_eq!(timeline.error.as_deref(), Some(words));
    }
    let named = body(&format!("{TEXT}event: error\ndata: {{\"message\":\"overloaded\"}}\n\n{DONE}"));
    assert_eq!(named.outcome, Outcome::ServerErrorInStream);
    assert!(named.error.unwrap().contains("overloaded"));
}

#[test]
fn keep_alives_are_nothing_and_break_no_silence_of_tokens() {
    let timeline = body(&format!(": ping\n\n:\n\n{TEXT}: ping\n\nevent: ping\ndata:\n\n{STOP}{DONE}"));
    assert_eq!((timeline.outcome, timeline.chunks.len()), (Outcome::Ok, 1));
}

#[test]
fn refusals_by_status_keep_their_words_whatever_their_shape() {
    for (head, text, outcome, words) in [
        ("HTTP/1.1 503 Service Unavailable", "no healthy upstream", Outcome::HttpError, "no healthy upstream"),
        ("HTTP/1.1 503 X", r#"{"error":{"message":"Loading model","code":503}}"#, Outcome::HttpError, "Loading model"),
        ("HTTP/1.1 400 X", r#"{"object":"error","message":"too long"}"#, Outcome::HttpError, "too long"),
        ("HTTP/1.1 422 X", r#"{"detail":[{"msg":"field required"}]}"#, Outcome::HttpError, "field required"),
        ("HTTP/1.1 429 X\r\nretry-after: 7", "", Outcome::RateLimited, ""),
        ("HTTP/1.1 302 X\r\nlocation: /login", "", Outcome::HttpError, ""),
    ] {
        let timeline = answer(&format!("{head}\r\ncontent-length: {}", text.len()), text);
        assert_eq!(timeline.outcome, outcome, "{head}");
        assert!(timeline.error.as_deref().unwrap_or_default().contains(words), "{:?}", timeline.error);
    }
}

#[test]
fn how_long_a_server_wants_to_be_left_alone_is_read() {
    for (header, expected) in [
        ("retry-after: 7\r\n", Some(7)),
        ("Retry-After:  0 \r\n", Some(0)),
        ("", None),
        ("retry-after: Wed, 21 Oct 2026 07:28:00 GMT\r\n", None),
        ("retry-after: -1\r\n", None),
    ] {
        let mut exchange = Exchange::new(Timeline { sent: Some(0), ..Timeline::default() }, false);
        exchange.feed(format!("HTTP/1.1 429 X\r\n{header}content-length: 0\r\n\r\n").as_bytes(), MS);
        assert_eq!(exchange.retry_after().map(|span| span.as_secs()), expected, "{header}");
    }
}

#[test]
fn old_and_odd_transfers_are_read_to_their_end() {
    let text = format!("{TEXT}{STOP}{DONE}");
    assert_eq!(answer("HTTP/1.0 200 OK", &text).outcome, Outcome::Ok);
    assert_eq!(answer("HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream", &text).outcome, Outcome::Ok);
    assert_eq!(answer("HTTP/1.1 200 OK\r\ncontent-encoding: gzip", &text).outcome, Outcome::BadResponse);
    let crlf = text.replace('\n', "\r\n");
    let cr = text.replace('\n', "\r");
    for text in [format!("\u{feff}{text}"), crlf, cr] {
        let whole = format!("{HEAD}{text}");
        // Cut at each byte: in the middle of the head, of a line end, of a mark.
        for cut in 0..whole.len() {
            let (one, two) = whole.as_bytes().split_at(cut);
            let timeline = read(&[(10, one), (20, two)]);
            assert_eq!((timeline.outcome, timeline.text.as_deref()), (Outcome::Ok, Some("a")), "cut at {cut}");
        }
    }
}

#[test]
fn an_event_may_have_several_lines_and_be_cut_within_a_character() {
    let text = "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"中🦀\"}}]}\n\n";
    let whole = format!("{HEAD}{text}{STOP}{DONE}");
    for cut in HEAD.len()..whole.len() {
        let (one, two) = whole.as_bytes().split_at(cut);
        let timeline = read(&[(10, one), (20, two)]);
        assert_eq!((timeline.outcome, timeline.text.as_deref()), (Outcome::Ok, Some("中🦀")), "cut at {cut}");
    }
}
