//! Connections: bytes out, bytes in, and the moment right after each read.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

use super::exchange::{Exchange, Step};
use super::http2::Http2;
use super::socket::{BUFFER, Io};
use super::url::Endpoint;
use super::{LoadError, net};
use crate::clock::{Clock, Nanos};
use crate::measure::Outcome;

/// How long a transfer may last after the stream has said that it is done. Its slot waits for it, so that waiting long
/// would make a server that never ends its transfers look slow.
pub(super) const LAST_WORD: Duration = Duration::from_millis(20);

/// The longest head of a proxy's answer.
const TUNNEL_HEAD: usize = 16 << 10;

/// Where connections go, resolved once.
#[derive(Clone)]
pub(super) struct Dialer {
    way: Way,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// What a proxy is asked for a tunnel, where there is one in between.
    tunnel: Option<String>,
    /// Whether HTTP/2 is spoken.
    http2: bool,
}

/// Where bytes go.
#[derive(Clone)]
enum Way {
    /// To one of these, or why there is none.
    Tcp(Result<Arc<[SocketAddr]>, String>),
    /// To a socket on this machine.
    Unix(PathBuf),
}

/// All places of a target, each in its turn.
pub(super) struct Dialers {
    all: Vec<Dialer>,
    turn: AtomicUsize,
}

impl Dialers {
    pub(super) async fn new(endpoints: &[Endpoint]) -> Result<Self, LoadError> {
        let mut all = Vec::new();
        for endpoint in endpoints {
            all.push(Dialer::new(endpoint).await?);
        }
        Ok(Dialers { all, turn: AtomicUsize::new(0) })
    }

    /// How many there are.
    pub(super) fn places(&self) -> usize {
        self.all.len()
    }

    /// Opens a connection to the one whose turn it is.
    pub(super) async fn open(&self) -> Result<Connection, NoConnection> {
        let place = self.turn.fetch_add(1, Ordering::Relaxed) % self.all.len().max(1);
        let none = || NoConnection { outcome: Outcome::ConnectFailed, words: "there is no address".to_owned() };
        let opened = self.all.get(place).ok_or_else(none)?.open().await?;
        Ok(Connection { place, ..opened })
    }
}

/// A connection could not be opened.
#[derive(Clone, Debug)]
pub(super) struct NoConnection {
    pub(super) outcome: Outcome,
    pub(super) words: String,
}

/// An open connection.
pub(super) struct Connection {
    carrier: Carrier,
    /// Which of the target's places it leads to.
    pub(super) place: usize,
    /// How many generating requests it has carried.
    pub(super) served: u64,
    /// Whether it has carried any request, the warming one included.
    pub(super) used: bool,
    /// When its last answer ended.
    pub(super) idle_since: Instant,
}

/// How requests are put.
enum Carrier {
    Http1(Io),
    Http2(Box<Http2>),
}

impl Dialer {
    /// Looks the host up. A name that is not found fails the requests, not the step.
    pub(super) async fn new(endpoint: &Endpoint) -> Result<Self, LoadError> {
        let tls = if endpoint.tls { Some(tls(endpoint)?) } else { None };
        let http2 = endpoint.net.http2;
        if let Some(path) = &endpoint.unix {
            return Ok(Dialer { way: Way::Unix(path.clone()), tls, tunnel: None, http2 });
        }
        let proxy = endpoint.net.proxy.as_ref();
        let (host, port) = proxy.map_or((&endpoint.host, endpoint.port), |proxy| (&proxy.host, proxy.port));
        let addresses = match tokio::net::lookup_host((host.as_str(), port)).await {
            Ok(addresses) => Ok(addresses.collect::<Arc<[_]>>()),
            Err(error) => Err(format!("{host} is not found: {error}")),
        };
        let to = match endpoint.host.contains(':') {
            true => format!("[{}]:{}", endpoint.host, endpoint.port),
            false => format!("{}:{}", endpoint.host, endpoint.port),
        };
        let tunnel = proxy.filter(|_| endpoint.tls).map(|_| format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n\r\n"));
        Ok(Dialer { way: Way::Tcp(addresses), tls, tunnel, http2 })
    }

    /// Opens a connection to the first address that takes it.
    pub(super) async fn open(&self) -> Result<Connection, NoConnection> {
        let refused = |words: String| NoConnection { outcome: Outcome::ConnectFailed, words };
        let addresses = match &self.way {
            Way::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                let stream = stream.map_err(|error| refused(format!("{}: {error}", path.display())))?;
                return self.speak(Io::Unix(stream)).await.map_err(refused);
            }
            Way::Tcp(addresses) => addresses.as_ref().map_err(|words| refused(words.clone()))?,
        };
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
        let mut stream = TcpStream::connect(address).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        if let Some(request) = &self.tunnel {
            tunnel(&mut stream, request).await.map_err(refused)?;
        }
        let io = match &self.tls {
            None => Io::Plain(stream),
            Some((connector, name)) => {
                Io::Tls(Box::new(connector.connect(name.clone(), stream).await.map_err(refused)?))
            }
        };
        let refused = |words| NoConnection { outcome: Outcome::ConnectFailed, words: format!("{address}: {words}") };
        self.speak(io).await.map_err(refused)
    }

    /// What is spoken on it.
    async fn speak(&self, io: Io) -> Result<Connection, String> {
        let carrier = match self.http2 {
            false => Carrier::Http1(io),
            true => Carrier::Http2(Box::new(Http2::begin(io).await?)),
        };
        Ok(Connection { carrier, place: 0, served: 0, used: false, idle_since: Instant::now() })
    }
}

/// Has a proxy make a tunnel.
async fn tunnel(stream: &mut TcpStream, request: &str) -> io::Result<()> {
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what comes after the head is the server's, and not to be read here.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > TUNNEL_HEAD {
            return Err(io::Error::other("the proxy's answer does not end"));
        }
        head.push(stream.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&head);
    let status = line.split_whitespace().nth(1).unwrap_or_default();
    if status.starts_with('2') {
        return Ok(());
    }
    Err(io::Error::other(format!("the proxy makes no tunnel: {}", line.lines().next().unwrap_or_default())))
}

fn tls(endpoint: &Endpoint) -> Result<(TlsConnector, ServerName<'static>), LoadError> {
    let name = ServerName::try_from(endpoint.host.clone())
        .map_err(|error| LoadError::Url { url: endpoint.url(""), why: error.to_string() })?;
    Ok((TlsConnector::from(Arc::new(net::tls(&endpoint.net)?)), name))
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
        let io = match &mut self.carrier {
            Carrier::Http1(io) => io,
            Carrier::Http2(http2) => return http2.run(request, exchange, clock, progress).await,
        };
        // A server may answer before it has read everything, and close: so a failed write is told by what is read.
        let written = io.write_all(request).await;
        let mut end = None;
        loop {
            let before = exchange.chunks();
            let mut now = 0;
            let read = io.read_some(|bytes| {
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
    pub(super) fn is_stale(&mut self) -> bool {
        match &mut self.carrier {
            Carrier::Http1(io) => io.is_stale(),
            Carrier::Http2(http2) => http2.is_stale(),
        }
    }

    /// A GET whose answer does not matter, except that it must end; returns whether the connection is still good.
    pub(super) async fn warm(&mut self, request: &[u8]) -> bool {
        let mut answer = super::http::Decoder::default();
        let mut size = 0;
        if let Some(answered) = self.ask_by_http2(request, BUFFER).await {
            return answered.is_ok();
        }
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
        let Carrier::Http1(io) = &mut self.carrier else { return Err(io::ErrorKind::Unsupported.into()) };
        io.write_all(request).await?;
        loop {
            let step = match io.read_some(|bytes| take(Some(bytes))).await? {
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

    /// Status and body of the answer to a request for something small, where HTTP/2 is spoken; else `None`.
    pub(super) async fn ask_by_http2(&mut self, request: &[u8], most: usize) -> Option<io::Result<(u16, Vec<u8>)>> {
        let Carrier::Http2(http2) = &mut self.carrier else { return None };
        self.used = true;
        Some(http2.ask(request, most).await)
    }
}
