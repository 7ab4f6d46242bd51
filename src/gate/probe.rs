//! Asking a server over HTTP, with bounds on everything.

use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;

/// How long a connection may take: it is to this host.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a page may take. An engine whose health page generates a token needs seconds, and up to 20 when it is stuck;
/// nothing waits for this but the next probe.
const PAGE: Duration = Duration::from_secs(30);
/// How long a stream may be silent. The first request may compile kernels for minutes: the gate's own limit is what ends
/// it, and this is only for a connection that died without a word.
const SILENCE: Duration = Duration::from_secs(30 * 60);
/// A page may not be longer than this.
const PAGE_BYTES: usize = 4 << 20;

/// The clients of one gate.
#[derive(Clone, Debug)]
pub(crate) struct Probes {
    base_url: String,
    page: reqwest::Client,
    stream: reqwest::Client,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A status and a body.
    Page(u16, Vec<u8>),
    /// None: `refused`, `timeout`, or what else it was.
    None(String),
}

impl Answer {
    /// In a word, for people.
    pub(crate) fn text(&self) -> String {
        match self {
            Answer::Page(status, _) => status.to_string(),
            Answer::None(why) => why.clone(),
        }
    }
}

impl Probes {
    pub(crate) fn new(base_url: &str) -> Result<Self, reqwest::Error> {
        let client = || {
            // A proxy from the environment must not stand between us and a server on this host.
            let client = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT);
            let client = client.redirect(reqwest::redirect::Policy::none());
            match base_url.starts_with("http://") {
                // Reading the system's certificates takes a while, and without TLS none is ever looked at.
                true => client.tls_certs_only([]),
                false => client,
            }
        };
        Ok(Probes {
            base_url: base_url.trim_end_matches('/').to_owned(),
            page: client().timeout(PAGE).build()?,
            stream: client().read_timeout(SILENCE).build()?,
        })
    }

    /// Gets a page, at most so much of it as a page should have.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        let response = match self.page.get(self.url(path)).send().await {
            Ok(response) => response,
            Err(error) => return Answer::None(why(&error)),
        };
        let status = response.status().as_u16();
        match whole(response).await {
            Ok(body) => Answer::Page(status, body),
            Err(why) => Answer::None(why),
        }
    }

    /// Posts a body and gives the answer before its body.
    pub(crate) async fn post(&self, path: &str, body: &serde_json::Value) -> Result<reqwest::Response, String> {
        self.stream.post(self.url(path)).json(body).send().await.map_err(|error| why(&error))
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{}", self.base_url, path.trim_start_matches('/'))
    }
}

/// The body, if it is not too long.
pub(crate) async fn whole(response: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = BytesMut::new();
    let mut blocks = response.bytes_stream();
    while let Some(block) = blocks.next().await {
        body.extend_from_slice(&block.map_err(|error| why(&error))?);
        if body.len() > PAGE_BYTES {
            return Err(format!("more than {} MiB", PAGE_BYTES >> 20));
        }
    }
    Ok(body.to_vec())
}

/// A fault of the connection in few words: the kind where it is a usual one, else the innermost cause.
pub(crate) fn why(error: &reqwest::Error) -> String {
    use std::error::Error;
    use std::io::{self, ErrorKind};

    if error.is_timeout() {
        return "timeout".to_owned();
    }
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
        match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(ErrorKind::ConnectionRefused) => return "refused".to_owned(),
            Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof) => {
                return "connection lost".to_owned();
            }
            _ => {}
        }
    }
    cause.to_string()
}
