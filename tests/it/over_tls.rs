//! Load over TLS: a certificate that is not trusted is a failure of its own kind, and one that is makes no difference.

use std::sync::Arc;

use orch::load::Options;
use orch::measure::Outcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::server;

/// A TLS server that answers each request with one token; returns its port.
pub(crate) fn start() -> u16 {
    let certificate = CertificateDer::from_pem_file("tests/data/tls/server.pem").unwrap();
    let key = PrivateKeyDer::from_pem_file("tests/data/tls/server.key").unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        server::block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate goes away here.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut buffer = [0; 16 << 10];
                    while let Ok(1..) = stream.read(&mut buffer).await {
                        if stream.write_all(&answer(buffer.starts_with(b"POST"))).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
    });
    port
}

fn answer(to_post: bool) -> Vec<u8> {
    let event = r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}"#;
    let body = match to_post {
        true => format!("data: {event}\n\ndata: [DONE]\n\n"),
        false => r#"{"object":"list","data":[{"id":"the-model"}]}"#.to_owned(),
    };
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_refused() {
    let url = format!("https://localhost:{}", start());
    let measured = server::run_with(&url, &server::step("s", 1, Some(2)), &Options::default());
    let outcomes: Vec<_> = measured.timelines.iter().map(|timeline| timeline.outcome).collect();
    assert_eq!(outcomes, [Outcome::TlsVerify; 2]);
    assert!(measured.timelines[0].error.as_deref().unwrap().contains("certificate"));
}
