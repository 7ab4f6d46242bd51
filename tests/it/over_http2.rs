//! Load over HTTP/2: known before on a plain socket, agreed on under TLS; what a server breaks off is a failure of its kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use orch::clock::Clock;
use orch::load::net::Net;
use orch::load::{Measured, Options, Target, run_step};
use orch::measure::Outcome;
use orch::render::Step;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::server::{Reply, block_on, start, step};
use crate::support::Home;

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// So many tokens, each so many milliseconds after the one before.
    Tokens(usize, u64),
    /// As many tokens, each with so many bytes around it.
    Wide(usize, usize),
    /// The stream is reset before its head,
    ResetAtOnce,
    /// or after a token.
    ResetLater,
    /// The connection ends after a token.
    GoAway,
    /// Answered, and the connection takes no more.
    LastOfItsConnection,
}

/// A server that answers so, under TLS with these protocols or without; its port, and how many connections it took.
fn serve(how: How, alpn: Option<&[&[u8]]>) -> (u16, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let acceptor = alpn.map(|protocols| {
        let certificate = CertificateDer::from_pem_file("tests/data/tls/server.pem").unwrap();
        let key = PrivateKeyDer::from_pem_file("tests/data/tls/server.key").unwrap();
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        let mut config = config.unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    });
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    std::thread::spawn(move || {
        block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                stream.set_nodelay(true).unwrap();
                match acceptor.clone() {
                    None => drop(tokio::spawn(connection(stream, how))),
                    Some(acceptor) => drop(tokio::spawn(async move {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            connection(stream, how).await;
                        }
                    })),
                }
            }
        });
    });
    (port, taken)
}

async fn connection(io: impl AsyncRead + AsyncWrite + Unpin, how: How) {
    let Ok(mut connection) = h2::server::handshake(io).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let is_post = request.method() == "POST";
        let told = how != How::LastOfItsConnection || !is_post;
        if !told {
            connection.graceful_shutdown();
        }
        let (sender, ends) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut body = request.into_body();
            let mut size = 0;
            while let Some(Ok(bytes)) = body.data().await {
                size += bytes.len();
                let _ = body.flow_control().release_capacity(bytes.len());
            }
            assert_eq!(is_post, size > 0);
            if let Err(body) = answer(respond, is_post, how).await {
                let _ = sender.send(());
                // Let go, it would be reset before its connection ends.
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(body);
            }
        });
        if is_post && how == How::GoAway {
            // Its token goes out, and then the whole connection ends.
            tokio::select! {
                _ = std::future::poll_fn(|cx| connection.poll_closed(cx)) => return,
                _ = ends => connection.abrupt_shutdown(Reason::INTERNAL_ERROR),
            }
        }
    }
}

/// Answers a request. An error: the connection is to end, in the middle of this answer.
async fn answer(mut respond: SendResponse<Bytes>, is_post: bool, how: How) -> Result<(), SendStream<Bytes>> {
    let head = |kind: &str| http::Response::builder().header("content-type", kind).body(()).unwrap();
    if !is_post {
        let mut body = respond.send_response(head("application/json"), false).unwrap();
        let models = r#"{"object":"list","data":[{"id":"the-model"}]}"#;
        let _ = body.send_data(Bytes::from_static(models.as_bytes()), true);
        return Ok(());
    }
    if how == How::ResetAtOnce {
        respond.send_reset(Reason::REFUSED_STREAM);
        return Ok(());
    }
    let mut body = respond.send_response(head("text/event-stream"), false).unwrap();
    let (tokens, gap, width) = match how {
        How::Tokens(tokens, gap) => (tokens, gap, 0),
        How::Wide(tokens, width) => (tokens, 0, width),
        _ => (2, 5, 0),
    };
    let padding = "x".repeat(width);
    for n in 0..tokens {
        tokio::time::sleep(Duration::from_millis(gap)).await;
        let event = format!(r#"{{"padding":"{padding}","choices":[{{"index":0,"delta":{{"content":" w{n}"}}}}]}}"#);
        if !send(&mut body, format!("data: {event}\n\n")).await {
            return Ok(());
        }
        if n == 0 && how == How::ResetLater {
            tokio::time::sleep(Duration::from_millis(30)).await;
            body.send_reset(Reason::INTERNAL_ERROR);
            return Ok(());
        }
        if n == 0 && how == How::GoAway {
            tokio::time::sleep(Duration::from_millis(30)).await;
            return Err(body);
        }
    }
    let usage =
        format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"stop"}}],"usage":{{"completion_tokens":{tokens}}}}}"#);
    send(&mut body, format!("data: {usage}\n\ndata: [DONE]\n\n")).await;
    let _ = body.send_data(Bytes::new(), true);
    Ok(())
}

async fn send(body: &mut SendStream<Bytes>, text: String) -> bool {
    body.send_data(Bytes::from(text), false).is_ok()
}

fn run_at(url: &str, net: Net, step: &Step) -> Measured {
    let target = Target { base_url: url.to_owned(), model: Some("the-model".to_owned()), net, ..Target::default() };
    let (clock, never) = (Clock::system(), CancellationToken::new());
    block_on(async { run_step(&target, step, &clock, &never, &Options::default(), &mut |_| ()).await.unwrap() })
}

fn known_before(port: u16, step: &Step) -> Measured {
    run_at(&format!("http://127.0.0.1:{port}/v1"), Net { http2: true, ..Net::default() }, step)
}

fn outcomes(measured: &Measured) -> Vec<(Outcome, String)> {
    measured.timelines.iter().map(|one| (one.outcome, one.error.clone().unwrap_or_default())).collect()
}

#[test]
fn every_chunk_has_its_own_moment_and_connections_are_kept() {
    let (port, taken) = serve(How::Tokens(5, 20), None);
    let measured = known_before(port, &step("s", 3, Some(9)));
    for timeline in &measured.timelines {
        assert_eq!(timeline.outcome, Outcome::Ok, "{:?}", timeline.error);
        assert_eq!((timeline.chunks.len(), timeline.output_tokens().0), (5, 5));
        let moments: Vec<u64> = timeline.chunks.iter().map(|chunk| chunk.at).collect();
        assert!(moments.windows(2).all(|pair| pair[1] - pair[0] > 5_000_000), "{moments:?}");
        assert!(timeline.ttft_ms().unwrap() > 15.0);
        assert!(timeline.sent < timeline.headers && timeline.headers < Some(moments[0]));
    }
    assert_eq!((measured.timelines.len(), taken.load(Ordering::Relaxed)), (9, 3));
}

#[test]
fn an_answer_of_any_size_is_never_held_up() {
    // Two megabytes an answer: far more than a window has by default.
    let (port, _) = serve(How::Wide(32, 64 << 10), None);
    let mut wide = step("s", 2, Some(4));
    for prompt in &mut wide.workload.prompts {
        prompt.text = "many words ".repeat(20_000);
    }
    let measured = known_before(port, &wide);
    for timeline in &measured.timelines {
        assert_eq!((timeline.outcome, timeline.chunks.len()), (Outcome::Ok, 32), "{:?}", timeline.error);
    }
}

#[test]
fn what_a_server_breaks_off_is_a_failure_of_its_kind() {
    for (how, outcome, words) in [
        (How::ResetAtOnce, Outcome::ConnectFailed, "RST_STREAM REFUSED_STREAM"),
        (How::ResetLater, Outcome::IncompleteBody, "RST_STREAM INTERNAL_ERROR"),
        (How::GoAway, Outcome::IncompleteBody, "GOAWAY INTERNAL_ERROR"),
    ] {
        let (port, _) = serve(how, None);
        let told = outcomes(&known_before(port, &step("s", 1, Some(2))));
        assert!(told.iter().all(|(found, said)| *found == outcome && said.contains(words)), "{how:?}: {told:?}");
    }
}

#[test]
fn a_connection_that_takes_no_more_is_replaced() {
    let (port, taken) = serve(How::LastOfItsConnection, None);
    let told = outcomes(&known_before(port, &step("s", 1, Some(4))));
    assert!(told.iter().all(|(outcome, _)| *outcome == Outcome::Ok), "{told:?}");
    assert!(taken.load(Ordering::Relaxed) >= 4);
}

#[test]
fn under_tls_it_is_agreed_on_or_told() {
    let trusted = || Net { ca: Some("tests/data/tls/ca.pem".into()), http2: true, ..Net::default() };
    let (port, _) = serve(How::Tokens(2, 1), Some(&[b"h2", b"http/1.1"]));
    let url = format!("https://localhost:{port}");
    let told = outcomes(&run_at(&url, trusted(), &step("s", 2, Some(6))));
    assert!(told.iter().all(|(outcome, _)| *outcome == Outcome::Ok), "{told:?}");
    let (port, _) = serve(How::Tokens(2, 1), Some(&[]));
    let url = format!("https://localhost:{port}");
    let told = outcomes(&run_at(&url, trusted(), &step("s", 1, Some(1))));
    assert!(told[0].0 == Outcome::ConnectFailed && told[0].1.contains("does not offer HTTP/2"), "{told:?}");
    let untrusted = Net { http2: true, ..Net::default() };
    assert_eq!(outcomes(&run_at(&url, untrusted, &step("s", 1, Some(1))))[0].0, Outcome::TlsVerify);
}

#[test]
fn a_server_of_http_1_is_told_as_what_it_is() {
    let server = start(vec![Reply::tokens(2, 0)]);
    let net = Net { http2: true, ..Net::default() };
    let told = outcomes(&run_at(&server.url(), net, &step("s", 1, Some(1))));
    assert_ne!(told[0].0, Outcome::Ok, "{told:?}");
}

#[test]
fn an_endpoint_is_measured_by_it_and_the_record_says_so() {
    let (home, (port, _)) = (Home::new(), serve(How::Tokens(4, 2), None));
    let url = format!("http://127.0.0.1:{port}");
    let ran = home.run(&["bench", "--http2", "--url", &url, "--requests", "24", "--concurrency", "2"]);
    // On a busy machine its numbers may not be used.
    assert!([0, 5].contains(&ran.code), "{}", ran.stderr);
    let record = home.record();
    assert_eq!(record["steps"][0]["counts"]["ok"], 24, "{record}");
    assert_eq!(
        (&record["profile"]["bench"]["bench"]["http2"], &record["profile"]["model"]),
        (&true.into(), &"the-model".into())
    );
    let words = ["bench", "--http2", "--url", "http://gpu-3.invalid", "--proxy", "http://p:1", "--requests", "1"];
    let refused = home.run(&[&words[..], &["--concurrency", "1"]].concat()).expect(2);
    assert!(refused.stderr.contains("does not go through a proxy"), "{}", refused.stderr);
}
