//! HTTP/2. Each connection carries one request at a time, as with HTTP/1.1: requests that shared one would wait for each
//! other's bytes, and that wait would be taken for the server's.
//!
//! A connection and the answer on it are polled together, in one task, so that a chunk's time is the moment at which the
//! bytes of its frame were read. While it is idle nobody reads it, and pings of the server's wait.

use std::io;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};

use ::h2::RecvStream;
use ::h2::client::{self, ResponseFuture, SendRequest};
use ::http::{HeaderMap, Request, header};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::exchange::{Exchange, Step};
use super::http::Head;
use super::socket::{Io, Waiting, peek};
use super::wire::LAST_WORD;
use crate::clock::{Clock, Nanos};
use crate::measure::Outcome;

/// What a server may send ahead. It is released as soon as it was read, so that no server ever waits for room.
const WINDOW: u32 = 16 << 20;
const HEADER_COUNT: usize = 64;

/// An open connection.
pub(super) struct Http2 {
    sender: SendRequest<Bytes>,
    connection: client::Connection<Timed, Bytes>,
    reads: Arc<Reads>,
    /// How the connection ended, once it has. It must not be polled again then.
    ended: Option<Broken>,
    socket: RawFd,
    is_tls: bool,
}

/// When bytes were last read.
#[derive(Debug, Default)]
struct Reads {
    /// The clock of the load; without one nobody wants to know.
    clock: OnceLock<Clock>,
    at: AtomicU64,
}

/// A socket that notes when it was read.
struct Timed {
    io: Io,
    reads: Arc<Reads>,
}

/// Where an answer stands.
enum Answer {
    Head(ResponseFuture),
    Body(RecvStream),
}

/// What came next of it.
enum Event {
    Head(Head),
    Data(Bytes),
    End,
    Broken(Broken),
}

/// Why it will not go on.
#[derive(Clone, Debug)]
struct Broken {
    /// Whether the answer itself is against the rules.
    is_bad: bool,
    words: String,
}

impl Broken {
    fn of(error: &::h2::Error) -> Self {
        let reason = || error.reason().map_or_else(|| error.to_string(), |reason| format!("{reason:?}"));
        if let Some(error) = error.get_io() {
            return Broken { is_bad: false, words: error.to_string() };
        }
        if !error.is_remote() {
            return Broken { is_bad: true, words: format!("the answer breaks the rules of HTTP/2: {}", reason()) };
        }
        let words = match error.is_go_away() {
            true => format!("the server ended the connection (GOAWAY {})", reason()),
            false => format!("the server reset the stream (RST_STREAM {})", reason()),
        };
        Broken { is_bad: false, words }
    }

    fn closed() -> Self {
        Broken { is_bad: false, words: "the server closed the connection".to_owned() }
    }
}

impl Http2 {
    /// Begins to speak it on a socket. The server is not waited for.
    pub(super) async fn begin(io: Io) -> Result<Self, String> {
        if io.is_tls() && io.agreed() != Some(b"h2") {
            return Err("the server does not offer HTTP/2 under TLS (ALPN)".to_owned());
        }
        let (socket, is_tls, reads) = (io.descriptor(), io.is_tls(), Arc::<Reads>::default());
        let mut builder = client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).enable_push(false);
        let begun = builder.handshake(Timed { io, reads: reads.clone() }).await;
        let (sender, connection) = begun.map_err(|error| error.to_string())?;
        Ok(Http2 { sender, connection, reads, ended: None, socket, is_tls })
    }

    /// Sends the request, which is written as HTTP/1.1 would send it, and reads its answer to the end. Returns whether the
    /// connection may be used again.
    pub(super) async fn run(
        &mut self,
        request: &[u8],
        exchange: &mut Exchange,
        clock: &Clock,
        mut progress: impl FnMut(&Exchange, usize, Nanos),
    ) -> bool {
        let _ = self.reads.clock.set(clock.clone());
        let mut answer = match self.send(request).await {
            Ok(answer) => answer,
            Err(broken) => {
                broken.tell(exchange, clock.nanos());
                return false;
            }
        };
        let mut end = None;
        loop {
            let next = self.next(&mut answer);
            let event = match end {
                None => next.await,
                // All has been said: what is missing is the end of the transfer alone.
                Some(end) => match tokio::time::timeout_at(end, next).await {
                    Ok(event) => event,
                    Err(_) => {
                        exchange.leave();
                        return false;
                    }
                },
            };
            let now = self.reads.at.load(Ordering::Relaxed);
            match event {
                Event::Head(head) => {
                    exchange.head(&head, now);
                    progress(exchange, 0, now);
                }
                Event::Data(bytes) => {
                    let before = exchange.chunks();
                    let step = exchange.body(&bytes, now);
                    progress(exchange, exchange.chunks() - before, now);
                    if step == Step::Over {
                        return false;
                    }
                    if end.is_none() && exchange.is_said() {
                        end = Some(Instant::now() + LAST_WORD);
                    }
                }
                Event::End => {
                    exchange.end(now);
                    return self.ended.is_none();
                }
                Event::Broken(broken) => {
                    broken.tell(exchange, clock.nanos());
                    return false;
                }
            }
        }
    }

    /// Status and body of the answer to a request for something small.
    pub(super) async fn ask(&mut self, request: &[u8], most: usize) -> io::Result<(u16, Vec<u8>)> {
        let fail = |broken: Broken| io::Error::other(broken.words);
        let mut answer = self.send(request).await.map_err(fail)?;
        let (mut status, mut body) = (0, Vec::new());
        loop {
            match self.next(&mut answer).await {
                Event::Head(head) => status = head.status,
                Event::Data(bytes) if body.len() + bytes.len() > most => {
                    return Err(io::Error::other(format!("the answer is longer than {most} bytes")));
                }
                Event::Data(bytes) => body.extend_from_slice(&bytes),
                Event::End => return Ok((status, body)),
                Event::Broken(broken) => return Err(fail(broken)),
            }
        }
    }

    /// Whether the server has ended it by now. What came while it was idle is read here.
    pub(super) fn is_stale(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.drive(&mut cx);
        let refuses = matches!(self.sender.poll_ready(&mut cx), Poll::Ready(Err(_)));
        self.ended.is_some() || refuses || peek(self.socket) == Waiting::End
    }

    async fn send(&mut self, request: &[u8]) -> Result<Answer, Broken> {
        let (head, body) = message(request, self.is_tls)?;
        std::future::poll_fn(|cx| {
            self.drive(cx);
            self.sender.poll_ready(cx)
        })
        .await
        .map_err(|error| Broken::of(&error))?;
        let sent = self.sender.send_request(head, body.is_empty());
        let (response, mut stream) = sent.map_err(|error| Broken::of(&error))?;
        if !body.is_empty() {
            // What the server has no room for yet is held, and sent as soon as it has.
            stream.send_data(body, true).map_err(|error| Broken::of(&error))?;
        }
        Ok(Answer::Head(response))
    }

    /// What comes next. What was read already is taken before more is read, so that it has the time of its own read.
    async fn next(&mut self, answer: &mut Answer) -> Event {
        let event = std::future::poll_fn(|cx| {
            if let Poll::Ready(event) = answer.poll(cx) {
                return Poll::Ready(event);
            }
            self.drive(cx);
            match answer.poll(cx) {
                Poll::Pending if self.ended.is_some() => Poll::Ready(Event::Broken(Broken::closed())),
                other => other,
            }
        });
        // A stream knows only that its connection is gone; the connection knows why.
        match (event.await, &self.ended) {
            (Event::Broken(_), Some(why)) => Event::Broken(why.clone()),
            (event, _) => event,
        }
    }

    /// Writes what is to be written and reads what is there.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if self.ended.is_none()
            && let Poll::Ready(ended) = Pin::new(&mut self.connection).poll(cx)
        {
            self.ended = Some(ended.err().map_or_else(Broken::closed, |error| Broken::of(&error)));
        }
    }
}

impl Broken {
    fn tell(&self, exchange: &mut Exchange, now: Nanos) {
        match self.is_bad {
            true => exchange.stop(Outcome::BadResponse, self.words.clone(), now),
            false => exchange.break_off(&self.words, now),
        }
    }
}

impl Answer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        match self {
            Answer::Head(response) => match ready!(Pin::new(response).poll(cx)) {
                Err(error) => Poll::Ready(Event::Broken(Broken::of(&error))),
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    *self = Answer::Body(body);
                    Poll::Ready(match head(parts.status.as_u16(), &parts.headers) {
                        Ok(head) => Event::Head(head),
                        Err(broken) => Event::Broken(broken),
                    })
                }
            },
            Answer::Body(body) => match ready!(body.poll_data(cx)) {
                None => Poll::Ready(Event::End),
                Some(Err(error)) => Poll::Ready(Event::Broken(Broken::of(&error))),
                Some(Ok(bytes)) => {
                    // It only fails for more than was sent.
                    let _ = body.flow_control().release_capacity(bytes.len());
                    Poll::Ready(Event::Data(bytes))
                }
            },
        }
    }
}

fn head(status: u16, headers: &HeaderMap) -> Result<Head, Broken> {
    let word = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(coding) = word(header::CONTENT_ENCODING).filter(|coding| !coding.eq_ignore_ascii_case("identity")) {
        let words = format!("the answer has the content coding `{coding}`, which was not asked for");
        return Err(Broken { is_bad: true, words });
    }
    let kind = word(header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let retry_after_s = word(header::RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
    Ok(Head { status, content_type: kind, retry_after_s })
}

/// A request in the words of HTTP/2, and its body.
fn message(bytes: &[u8], is_tls: bool) -> Result<(Request<()>, Bytes), Broken> {
    let bad = |why: String| Broken { is_bad: false, words: format!("the request cannot be sent by HTTP/2 ({why})") };
    let mut headers = [httparse::EMPTY_HEADER; HEADER_COUNT];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Err(bad("its head does not end".to_owned())),
        Err(error) => return Err(bad(error.to_string())),
    };
    let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let host = parsed.headers.iter().find(is_host).map_or(&b""[..], |header| header.value);
    let (scheme, host) = (if is_tls { "https" } else { "http" }, String::from_utf8_lossy(host));
    let uri = format!("{scheme}://{host}{}", parsed.path.unwrap_or("/"));
    let mut request = Request::builder().method(parsed.method.unwrap_or("GET")).uri(uri);
    for header in parsed.headers.iter().filter(|header| !is_host(header)) {
        request = request.header(header.name, header.value);
    }
    let request = request.body(()).map_err(|error| bad(error.to_string()))?;
    Ok((request, Bytes::copy_from_slice(&bytes[length..])))
}

impl AsyncRead for Timed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.io.poll_read(cx, buffer);
        if let (Poll::Ready(_), Some(clock)) = (&read, self.reads.clock.get()) {
            self.reads.at.store(clock.nanos(), Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Timed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io.with(|io| io.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.with(|io| io.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.with(|io| io.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_said_in_other_words() {
        let bytes = b"POST /x/v1/chat/completions HTTP/1.1\r\nhost: h:8000\r\nauthorization: Bearer k\r\n\
            content-length: 2\r\n\r\n{}";
        let Ok((request, body)) = message(bytes, true) else { panic!("it is one") };
        assert_eq!(request.uri(), "https://h:8000/x/v1/chat/completions");
        assert_eq!((request.method().as_str(), &body[..]), ("POST", &b"{}"[..]));
        let names: Vec<&str> = request.headers().keys().map(header::HeaderName::as_str).collect();
        assert_eq!(names, ["authorization", "content-length"]);
        assert!(message(b"nonsense", false).is_err());
    }
}
