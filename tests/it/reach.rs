//! How an endpoint is reached: sockets, several addresses, proxies, certificates of one's own, keys that no list of
//! processes shows.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use orch::clock::Clock;
use orch::load::net::{Net, Proxy};
use orch::load::{Measured, Options, Target, run_step};
use orch::measure::Outcome;
use orch::render::{Arrival, Step};
use tokio_util::sync::CancellationToken;

use crate::over_tls;
use crate::server::{Reply, block_on, start, step};
use crate::support::Home;

fn run_at(target: &Target, step: &Step) -> Measured {
    let (clock, never) = (Clock::system(), CancellationToken::new());
    block_on(async { run_step(target, step, &clock, &never, &Options::default(), &mut |_| ()).await.unwrap() })
}

fn all_ok(measured: &Measured) {
    for timeline in &measured.timelines {
        assert_eq!(timeline.outcome, Outcome::Ok, "{:?}", timeline.error);
    }
}

#[test]
fn a_socket_on_this_machine_is_as_good_as_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let reply = Reply::tokens(3, 0).whole();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, reply) = (stream.unwrap(), reply.clone());
            std::thread::spawn(move || {
                let mut buffer = [0; 16 << 10];
                // Each request comes in one read here.
                while let Ok(1..) = stream.read(&mut buffer) {
                    let models = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    let answer = if buffer.starts_with(b"POST") { &reply[..] } else { &models[..] };
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let target = Target { base_url: format!("unix:{}", path.display()), ..Target::default() };
    let measured = run_at(&target, &step("s", 2, Some(8)));
    assert_eq!(measured.timelines.len(), 8);
    all_ok(&measured);
    let gone = Target { base_url: "unix:/nowhere/server.sock".to_owned(), ..Target::default() };
    let measured = run_at(&gone, &step("s", 1, Some(1)));
    assert_eq!(measured.timelines[0].outcome, Outcome::ConnectFailed);
    assert!(measured.timelines[0].error.as_deref().unwrap().contains("/nowhere/server.sock"));
}

#[test]
fn several_addresses_are_asked_in_turn() {
    let (one, two) = (start(vec![Reply::tokens(2, 1)]), start(vec![Reply::tokens(2, 1)]));
    let target = Target { base_url: one.url(), more: vec![two.url()], ..Target::default() };
    let mut closed = step("s", 4, Some(40));
    all_ok(&run_at(&target, &closed));
    let host = |post: &String| post.lines().nth(1).unwrap().to_owned();
    for server in [&one, &two] {
        let (count, hosts) = (server.posts().len(), server.posts().iter().map(host).collect::<BTreeSet<_>>());
        assert!((10..=30).contains(&count), "{count} of 40");
        assert_eq!(hosts.len(), 1, "each is asked under its own name: {hosts:?}");
    }
    let before = one.posts().len();
    closed.load.arrival = Arrival::Open { rate: 200.0, shape: "constant".to_owned(), burstiness: None };
    all_ok(&run_at(&target, &closed));
    let share = one.posts().len() - before;
    assert!((16..=24).contains(&share), "{share} of 40");
}

#[test]
fn a_proxy_is_told_the_whole_address() {
    let proxy = start(vec![Reply::tokens(2, 0)]);
    let at = proxy.url().trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let net = Net { proxy: Some(Proxy::parse(&at).unwrap()), ..Net::default() };
    let target = Target { base_url: "http://gpu-3.invalid:8000/v1".to_owned(), net, ..Target::default() };
    all_ok(&run_at(&target, &step("s", 1, Some(2))));
    let post = &proxy.posts()[0];
    assert!(
        post.starts_with("POST http://gpu-3.invalid:8000/v1/chat/completions HTTP/1.1\r\nhost: gpu-3.invalid:8000\r\n"),
        "{post}"
    );
}

#[test]
fn a_proxy_that_makes_no_tunnel_fails_the_request_and_says_so() {
    let (sender, asked) = mpsc::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap_or(0);
            let _ = sender.send(String::from_utf8_lossy(&buffer[..count]).into_owned());
            let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let net = Net { proxy: Some(Proxy::parse(&at).unwrap()), ..Net::default() };
    let target = Target { base_url: "https://gpu-3.invalid/v1".to_owned(), net, ..Target::default() };
    let measured = run_at(&target, &step("s", 1, Some(1)));
    assert_eq!(measured.timelines[0].outcome, Outcome::ConnectFailed);
    let words = measured.timelines[0].error.as_deref().unwrap();
    assert!(words.contains("the proxy makes no tunnel: HTTP/1.1 403"), "{words}");
    assert!(asked.recv().unwrap().starts_with("CONNECT gpu-3.invalid:443 HTTP/1.1\r\n"));
}

#[test]
fn certificates_of_ones_own_or_any_are_believed_when_that_is_asked_for() {
    let url = format!("https://localhost:{}", over_tls::start());
    let measured =
        |net: Net| run_at(&Target { base_url: url.clone(), net, ..Target::default() }, &step("s", 1, Some(2)));
    all_ok(&measured(Net { ca: Some("tests/data/tls/ca.pem".into()), ..Net::default() }));
    all_ok(&measured(Net { insecure: true, ..Net::default() }));
    assert_eq!(measured(Net::default()).timelines[0].outcome, Outcome::TlsVerify);
}

#[test]
fn a_key_is_sent_and_stands_nowhere() {
    let (home, server) = (Home::new(), start(vec![Reply::tokens(2, 1)]));
    let key = home.write("key", "sesame-4711\n");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let source = format!("file:{}", key.display());
    let url = server.url();
    let common = ["bench", "--url", &url, "--requests", "20", "--concurrency", "2"];
    let words = [&common[..], &["--api-key", &source, "--header", "x-team=env:ORCH_TEST_TEAM"]].concat();
    let output = home.orch(&words).env("ORCH_TEST_TEAM", "blue-0815").output().unwrap();
    // On a busy machine its numbers may not be used; that is not what is asked here.
    let code = output.status.code().unwrap();
    assert!([0, 5].contains(&code), "{code}: {}", String::from_utf8_lossy(&output.stderr));
    let post = &server.posts()[0];
    assert!(post.contains("\r\nauthorization: Bearer sesame-4711\r\n") && post.contains("\r\nx-team: blue-0815\r\n"));
    for file in std::fs::read_dir(home.newest_run()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        for secret in ["sesame-4711", "blue-0815"] {
            assert!(memchr::memmem::find(&bytes, secret.as_bytes()).is_none());
        }
    }
    assert_eq!(home.record()["profile"]["bench"]["bench"]["headers"], serde_json::json!(["authorization", "x-team"]));

    let refused = home.run(&[&common[..], &["--api-key", "sesame"]].concat()).expect(2);
    assert!(refused.stderr.contains("takes no value itself"), "{}", refused.stderr);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = home.run(&[&common[..], &["--api-key", &source]].concat()).expect(2);
    assert!(refused.stderr.contains("chmod 600"), "{}", refused.stderr);
}
