//! A machine on which things are done: words to run, files to put and read, addresses to connect to.
//!
//! Whatever orch does on a host goes through [`Host`], so that the same code serves this machine, one behind SSH, and a
//! container inside either. A command is always a list of [`Words`], never a string: what a value holds can never
//! become a second word.

mod any;
mod entered;
mod error;
mod files;
mod follow;
mod frame;
mod hosts;
mod local;
mod open;
mod openssh;
mod pipe;
mod relay;
pub(crate) mod runtime;
mod ssh;
mod words;

use std::future::Future;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite};

pub use any::AnyHost;
pub use entered::Entered;
pub use error::HostError;
pub use follow::Follow;
pub use hosts::{Clocks, Enter, Entry, Gpus, Hosts, HostsError, LOCAL, Transport};
pub(crate) use hosts::{Commands, ProductionKeys};
pub use local::Local;
pub(crate) use local::write_whole;
pub use open::open;
pub use openssh::OpenSsh;
pub use pipe::Pipe;
pub use ssh::Ssh;
pub use ssh::known::{KeyFault, Place};
pub use words::{Words, quote, quote_all};

/// A path on the host.
pub type HostPath = PathBuf;

/// Bytes of a file, as they arrive.
pub type ByteStream = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, HostError>> + Send>>;

/// Both directions of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection to something on the host.
pub type BoxedIo = Box<dyn Io>;

/// Something on the host that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `host:port` as the host itself would resolve it.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(HostPath),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Permission bits of a file, as for `chmod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Mode {
    /// Only the owner may read and write.
    pub const PRIVATE: Mode = Mode(0o600);
}

/// How a command ended, and what it wrote. The whole of both streams: for commands that say little.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub end: End,
    /// Its standard output.
    pub stdout: Bytes,
    /// Its standard error.
    pub stderr: Bytes,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned this exit code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Output {
    /// Whether it ended with exit code 0.
    pub fn ok(&self) -> bool {
        self.end == End::Code(0)
    }
}

/// A machine on which things are done.
///
/// A connection that was lost is [`HostError::Lost`], never an exit status: after it nobody knows whether the command
/// ran.
pub trait Host: Send + Sync {
    /// Runs a command to its end, with `stdin` on its standard input.
    fn run(&self, words: &Words, stdin: Bytes) -> impl Future<Output = Result<Output, HostError>> + Send;

    /// Writes a file under a temporary name and renames it, so that a reader sees all of it or the old one.
    fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> impl Future<Output = Result<(), HostError>> + Send;

    /// Reads a file from a byte offset to its present end. To follow it, see [`Follow`].
    fn read(&self, path: &HostPath, from: u64) -> impl Future<Output = Result<ByteStream, HostError>> + Send;

    /// Connects to something that listens on the host.
    fn connect(&self, to: &Address) -> impl Future<Output = Result<BoxedIo, HostError>> + Send;
}
