//! A host that orch itself reaches over SSH, as the person's own `ssh` would reach it.
//!
//! A few connections, each with at most eight commands at a time; one that was lost is made anew for the next command. A
//! command that was sent is never sent again: whether it ran is not known, and that is what [`HostError::Lost`] says.

mod auth;
mod channel;
mod checker;
pub(crate) mod config;
mod connection;
pub(crate) mod known;
mod pool;
mod preferred;
mod tunnel;
mod way;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use config::{Settings, Target, settings};
use connection::Connection;
use pool::Pool;
use tokio::sync::OnceCell;
use tunnel::Tunnel;

use super::frame::Frame;
use super::pipe::from_mark;
use super::{Address, BoxedIo, ByteStream, Host, HostError, HostPath, Mode, Output, Pipe, Words, files};

/// A host behind SSH. Clones share its connections, which belong to the runtime in which they were made.
#[derive(Clone, Debug)]
pub struct Ssh {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    target: Target,
    config: Option<PathBuf>,
    settings: OnceCell<Settings>,
    pool: Pool,
    /// Whether it could be reached once.
    reached: AtomicBool,
}

impl Ssh {
    /// The host that `target` means, with `config` in place of the person's own configuration. Nothing is connected yet.
    pub(crate) fn new(target: Target, config: Option<PathBuf>) -> Self {
        Ssh {
            inner: Arc::new(Inner {
                target,
                config,
                settings: OnceCell::new(),
                pool: Pool::default(),
                reached: AtomicBool::new(false),
            }),
        }
    }

    /// What of the configuration is not followed, once it was read.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.inner.settings.get().map(|settings| settings.warnings.clone()).unwrap_or_default()
    }

    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.inner.config.clone()
    }

    /// Connects, unless it is connected.
    pub(super) async fn reach(&self) -> Result<(), HostError> {
        self.inner.pool.any(|| self.connect_to_host()).await.map(drop)
    }

    async fn settings(&self) -> Result<&Settings, HostError> {
        let inner = &*self.inner;
        inner.settings.get_or_try_init(|| settings(&inner.target, inner.config.as_deref())).await
    }

    async fn connect_to_host(&self) -> Result<Connection, HostError> {
        let inner = &*self.inner;
        let connection = way::connect(self.settings().await?, inner.config.as_deref()).await;
        match connection {
            Ok(connection) => {
                inner.reached.store(true, Ordering::Relaxed);
                Ok(connection)
            }
            // It was there: the line is at fault, and may come back.
            Err(HostError::Unreachable { host, why, .. }) if inner.reached.load(Ordering::Relaxed) => {
                Err(HostError::Lost { host, why: format!("it cannot be reached again: {why}") })
            }
            Err(error) => Err(error),
        }
    }

    /// A channel to a command that has been started.
    async fn start(&self, line: &str) -> Result<channel::Started, HostError> {
        let session = self.inner.pool.session(|| self.connect_to_host()).await?;
        channel::start(session, line).await
    }
}

impl Host for Ssh {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        let frame = Frame::new();
        let line = frame.line(words)?;
        self.start(&line).await?.finish(&frame, words, stdin).await
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        files::put(self, path, content, mode).await
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        files::read(self, path, from).await
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        let failed = |source| HostError::CannotConnect { address: to.to_string(), source };
        let mut again = true;
        loop {
            let connection = self.inner.pool.any(|| self.connect_to_host()).await?;
            let channel = match to {
                Address::Tcp(host, port) => connection.to_tcp(host, *port).await,
                Address::Unix(path) => match path.to_str() {
                    Some(path) => connection.to_unix(path).await,
                    None => return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "its path is no text"))),
                },
            };
            return match channel {
                Ok(channel) => Ok(Box::new(Tunnel::new(channel, connection, None))),
                Err(russh::Error::ChannelOpenFailure(russh::ChannelOpenFailure::ConnectFailed)) => {
                    Err(failed(io::Error::new(io::ErrorKind::ConnectionRefused, "nothing takes the connection there")))
                }
                Err(russh::Error::ChannelOpenFailure(why)) => {
                    Err(failed(io::Error::other(format!("the SSH server does not connect: {why:?}"))))
                }
                // The connection had ended and nobody knew it yet.
                Err(_) if again => {
                    again = false;
                    self.inner.pool.forget(&connection).await;
                    continue;
                }
                Err(error) => Err(connection.lost(&error)),
            };
        }
    }
}

impl Pipe for Ssh {
    async fn pipe(&self, words: &Words) -> Result<BoxedIo, HostError> {
        let frame = Frame::new();
        let line = frame.line(words)?;
        let started = self.start(&line).await?;
        let host = started.host().to_owned();
        from_mark(started.into_tunnel(), &frame, &host, words).await
    }
}
