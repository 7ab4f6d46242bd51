//! Connections: bytes out, bytes in, and the moment right after each read.
//!
//! One read buffer serves all connections of a thread: it is filled and emptied within one poll, so that a thousand
//! open streams hold no thousand buffers.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv};
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use super::LoadError;
use super::exchange::{Exchange, Step};
use super::url::Endpoint;
use crate::clock::{Clock, Nanos};
use crate::measure::Outcome;

const BUFFER: usize = 256 << 10;
/// How long a transfer may last after the stream has said that it is done. Its slot waits for it, so that waiting long
/// would make a server that never ends its transfers look slow.
const LAST_WORD: Duration = Duration::from_millis(20);

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Where connections go, resolved once.
#[derive(Clone)]
pub(super) struct Dialer {
    addresses: Result<Arc<[SocketAddr]>, String>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection could not be opened.
#[derive(Clone, Debug)]
pub(super) struct NoConnection {
    pub(super) outcome: Outcome,
    pub(super) words: String,
}

/// An open connection.
pub(super) struct Connection {
    io: Io,
    /// How many generating requests it has carried.
    pub(super) served: u64,
    /// Whether it has carried any request, the warming one included.
    pub(super) used: bool,
    /// When its last answer ended.
    pub(super) idle_since: Instant,
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Dialer {
    /// Looks the host up. A name that is not found fails the requests, not the step.
    pub(super) async fn new(endpoint: &Endpoint) -> Result<Self, LoadError> {
        let found = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await;
        let addresses = match found {
            Ok(addresses) => Ok(addresses.collect::<Arc<[_]>>()),
            Err(error) => Err(format!("{} is not found: {error}", endpoint.host)),
        };
        let tls = if endpoint.tls { Some(tls(endpoint)?) } else { None };
        Ok(Dialer { addresses, tls })
    }

    /// Opens a connection to the first address that takes it.
    pub(super) async fn open(&self) -> Result<Connection, NoConnection> {
        let refused = |words: String| NoConnection { outcome: Outcome::ConnectFailed, words };
        let addresses = self.addresses.as_ref().map_err(|words| refused(words.clone()))?;
        let mut last = refused("the host has no address".to_owned());
        for address in addresses.iter() {
            match self.open_at(*address).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn open_at(&self, address: SocketAddr) -> Result<Connection, NoConnection> {
        let refused = |error: io::Error| NoConnection {
            outcome: if is_certificate(&error) { Outcome::TlsVerify } else { Outcome::ConnectFailed },
            words: format!("{address}: {error}"),
        };
        let stream = TcpStream::connect(address).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let io = match &self.tls {
            None => Io::Plain(stream),
            Some((connector, name)) => {
                Io::Tls(Box::new(connector.connect(name.clone(), stream).await.map_err(refused)?))
            }
        };
        Ok(Connection { io, served: 0, used: false, idle_since: Instant::now() })
    }
}

fn tls(endpoint: &Endpoint) -> Result<(TlsConnector, ServerName<'static>), LoadError> {
    let name = ServerName::try_from(endpoint.host.clone())
        .map_err(|error| LoadError::Url { url: endpoint.url(""), why: error.to_string() })?;
    let mut config = ClientConfig::with_platform_verifier().map_err(|error| LoadError::Tls(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn is_certificate(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

impl Connection {
    /// Sends the request and reads its answer to the end. The exchange holds what came, also when this is dropped.
    /// Returns whether the connection may be used again. `progress` is told after each read how many generating chunks
    /// came in it, and when.
    pub(super) async fn run(
        &mut self,
        request: &[u8],
        exchange: &mut Exchange,
        clock: &Clock,
        mut progress: impl FnMut(&Exchange, usize, Nanos),
    ) -> bool {
        exchange.timeline().connection_reused = std::mem::replace(&mut self.used, true);
        exchange.timeline().sent.get_or_insert(clock.nanos());
        // A server may answer before it has read everything, and close: so a failed write is told by what is read.
        let written = self.io.write_all(request).await;
        let mut end = None;
        loop {
            let before = exchange.chunks();
            let mut now = 0;
            let read = self.io.read_some(|bytes| {
                now = clock.nanos();
                exchange.feed(bytes, now)
            });
            let step = match end {
                None => read.await,
                // All has been said: what is missing is the end of the transfer alone.
                Some(end) => match tokio::time::timeout_at(end, read).await {
                    Ok(step) => step,
                    Err(_) => {
                        exchange.leave();
                        return false;
                    }
                },
            };
            if now > 0 {
                progress(exchange, exchange.chunks() - before, now);
            }
            match step {
                Ok(Some(Step::More)) => {
                    if end.is_none() && exchange.is_said() {
                        end = Some(Instant::now() + LAST_WORD);
                    }
                }
                Ok(Some(Step::Over)) => return exchange.reusable() && written.is_ok(),
                Ok(None) => {
                    exchange.close(written.as_ref().err(), clock.nanos());
                    return false;
                }
                Err(error) => {
                    exchange.close(Some(&error), clock.nanos());
                    return false;
                }
            }
        }
    }

    /// Whether the server has closed it by now, or sent what nobody asked for.
    ///
    /// The socket itself is asked: the runtime would only say what it had heard at its last look around.
    pub(super) fn is_stale(&self) -> bool {
        let (stream, plain) = match &self.io {
            Io::Plain(stream) => (stream, true),
            Io::Tls(stream) => (stream.get_ref().0, false),
        };
        let mut byte = [0];
        match recv(stream.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Ok(0) => true,
            // Under TLS there may be a session ticket.
            Ok(_) => plain,
            Err(error) => error != nix::errno::Errno::EAGAIN,
        }
    }

    /// A GET whose answer does not matter, except that it must end; returns whether the connection is still good.
    pub(super) async fn warm(&mut self, request: &[u8]) -> bool {
        let mut answer = super::http::Decoder::default();
        let mut size = 0;
        let asked = self
            .ask(request, |bytes| {
                let bytes = bytes.unwrap_or_default();
                size += bytes.len();
                let fine = answer.feed(bytes, |_| ControlFlow::Continue(())).is_ok();
                let more = fine && !bytes.is_empty() && !answer.is_done() && size < BUFFER;
                if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .await;
        asked.is_ok() && answer.reusable()
    }

    /// Sends a request and gives what comes back to `take` until it breaks off; `None` is the end of the connection.
    pub(super) async fn ask(
        &mut self,
        request: &[u8],
        mut take: impl FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.used = true;
        self.io.write_all(request).await?;
        loop {
            let step = match self.io.read_some(|bytes| take(Some(bytes))).await? {
                Some(step) => step,
                None => {
                    let _ = take(None);
                    ControlFlow::Break(())
                }
            };
            if step.is_break() {
                return Ok(());
            }
        }
    }
}

impl Io {
    /// Reads what is there and gives it to `take`, in the same poll; `None` at the end.
    async fn read_some<T>(&mut self, mut take: impl FnMut(&[u8]) -> T) -> io::Result<Option<T>> {
        std::future::poll_fn(|cx| {
            READ_BUFFER.with_borrow_mut(|buffer| {
                let mut read = ReadBuf::new(buffer);
                std::task::ready!(self.poll_read(cx, &mut read))?;
                let bytes = read.filled();
                Poll::Ready(Ok(if bytes.is_empty() { None } else { Some(take(bytes)) }))
            })
        })
        .await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        }
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        async fn all(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
            stream.write_all(bytes).await?;
            stream.flush().await
        }
        match self {
            Io::Plain(stream) => all(stream, bytes).await,
            Io::Tls(stream) => all(stream.as_mut(), bytes).await,
        }
    }
}
