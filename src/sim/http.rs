//! HTTP/1.1 on a plain socket, near enough to the bytes that every rule can be broken on purpose.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use super::arrival;
use super::pace::now;
use crate::clock::Nanos;

/// The largest head of a request,
const HEAD_LIMIT: usize = 64 << 10;
/// and the largest body.
const BODY_LIMIT: usize = 64 << 20;

/// A request as it came.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: Vec<u8>,
    pub(super) id: Option<String>,
    /// Whether the connection stays after the answer.
    pub(super) keep: bool,
    /// When its last bytes were there to be read.
    pub(super) arrived: Nanos,
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// What was read and not used yet.
    read: Vec<u8>,
    /// When the last of it was there.
    arrived: Nanos,
}

/// Why there is no request.
#[derive(Debug)]
pub(super) enum NoRequest {
    /// The client has gone.
    Gone,
    /// What came is no request; the status says how not.
    Bad(u16, &'static str),
}

struct Head {
    request: Request,
    length: usize,
    body: usize,
    continues: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        // A token waits for no other one.
        let _ = stream.set_nodelay(true);
        arrival::ask_for(&stream);
        Connection { stream, read: Vec::new(), arrived: 0 }
    }

    /// The next request.
    pub(super) async fn request(&mut self) -> Result<Request, NoRequest> {
        let mut head = loop {
            match parse(&self.read)? {
                Some(head) => break head,
                None if self.read.len() > HEAD_LIMIT => return Err(NoRequest::Bad(431, "the head is too long")),
                None => self.fill().await?,
            }
        };
        if head.body > BODY_LIMIT {
            return Err(NoRequest::Bad(413, "the body is too long"));
        }
        let end = head.length + head.body;
        if head.continues && self.read.len() < end {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await.map_err(|_| NoRequest::Gone)?;
        }
        while self.read.len() < end {
            self.fill().await?;
        }
        head.request.arrived = self.arrived;
        head.request.body = self.read[head.length..end].to_vec();
        self.read.drain(..end);
        Ok(head.request)
    }

    async fn fill(&mut self) -> Result<(), NoRequest> {
        match arrival::read(&self.stream, &mut self.read).await {
            Ok((0, _)) | Err(_) => Err(NoRequest::Gone),
            Ok((_, arrived)) => {
                self.arrived = arrived;
                Ok(())
            }
        }
    }

    /// Writes all of it. The result is the moment before the first of it was handed to the socket.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> io::Result<Nanos> {
        let mut at = now();
        let mut begun = false;
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    begun = true;
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.writable().await?;
                    if !begun {
                        at = now();
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(at)
    }

    /// Returns when the client has gone, and not before.
    pub(super) async fn gone(&self) {
        let mut byte = [0];
        loop {
            match self.stream.peek(&mut byte).await {
                Ok(0) | Err(_) => return,
                // It has sent its next request already; that it goes shows at the next write.
                Ok(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }

    /// Ends the connection with a reset instead of an orderly end.
    pub(super) fn reset(self) {
        let _ = self.stream.set_zero_linger();
    }
}

/// The head of a request, once it is complete.
fn parse(bytes: &[u8]) -> Result<Option<Head>, NoRequest> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(NoRequest::Bad(400, "this is no request of HTTP")),
    };
    let target = parsed.path.unwrap_or("/");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: parsed.method.unwrap_or("GET").to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        body: Vec::new(),
        id: None,
        keep: parsed.version == Some(1),
        arrived: 0,
    };
    let (mut body, mut continues) = (0, false);
    for header in parsed.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        let value = value.trim();
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                body = value.parse().map_err(|_| NoRequest::Bad(400, "`content-length` is no number"))?;
            }
            "transfer-encoding" => return Err(NoRequest::Bad(411, "a body needs its length")),
            "connection" => request.keep = !value.eq_ignore_ascii_case("close"),
            "expect" => continues = value.eq_ignore_ascii_case("100-continue"),
            "x-request-id" => request.id = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(Some(Head { request, length, body, continues }))
}

/// The words for a status.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

/// A whole answer. Every answer says who really gives it.
pub(super) fn answer(status: u16, kind: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status} {}\r\nserver: orch-sim\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n{more}\r\n",
        reason(status),
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The head of a stream of events.
pub(super) const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: orch-sim\r\n\
content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

/// The end of a chunked transfer.
pub(super) const STREAM_END: &[u8] = b"0\r\n\r\n";

/// Puts what `fill` adds into a chunk of a transfer.
pub(super) fn chunk(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    // The length stands before the data and is known after it: room is kept, and filled in with leading zeros.
    let start = out.len();
    out.extend_from_slice(b"00000000\r\n");
    let data = out.len();
    fill(out);
    let length = format!("{:08x}", out.len() - data);
    out[start..start + 8].copy_from_slice(length.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_taken_apart() {
        let text = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: r1\r\nContent-Length: 2\r\n\r\n{}";
        let head = parse(text).unwrap().unwrap();
        assert_eq!((head.request.path.as_str(), head.request.query.as_str()), ("/v1/completions", "x=1"));
        assert_eq!((head.length + head.body, head.request.keep), (text.len(), true));
        assert_eq!(head.request.id.as_deref(), Some("r1"));
        assert!(parse(&text[..30]).unwrap().is_none());
        assert!(matches!(parse(b"\x00\x01\r\n\r\n"), Err(NoRequest::Bad(400, _))));
        let close = parse(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap().unwrap();
        assert!(!close.request.keep);
    }

    #[test]
    fn a_chunk_knows_its_length() {
        let mut out = Vec::new();
        chunk(&mut out, |out| out.extend_from_slice(b"0123456789abcdef!"));
        assert_eq!(out, b"00000011\r\n0123456789abcdef!\r\n");
    }
}
