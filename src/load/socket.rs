//! A socket of one of the kinds that there are, and the buffer that all of a thread's are read into.
//!
//! One read buffer serves all connections of a thread: it is filled and emptied within one poll, so that a thousand
//! open streams hold no thousand buffers.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use nix::sys::socket::{MsgFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

pub(super) const BUFFER: usize = 256 << 10;

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// An open socket.
pub(super) enum Io {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// Reads what is there and gives it to `take`, in the same poll; `None` at the end.
    pub(super) async fn read_some<T>(&mut self, mut take: impl FnMut(&[u8]) -> T) -> io::Result<Option<T>> {
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

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        }
    }

    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        async fn all(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
            stream.write_all(bytes).await?;
            stream.flush().await
        }
        match self {
            Io::Plain(stream) => all(stream, bytes).await,
            Io::Unix(stream) => all(stream, bytes).await,
            Io::Tls(stream) => all(stream.as_mut(), bytes).await,
        }
    }

    /// Does something with whichever it is.
    pub(super) fn with<T>(&mut self, act: impl FnOnce(Pin<&mut (dyn AsyncWrite + Unpin)>) -> T) -> T {
        match self {
            Io::Plain(stream) => act(Pin::new(stream)),
            Io::Unix(stream) => act(Pin::new(stream)),
            Io::Tls(stream) => act(Pin::new(stream.as_mut())),
        }
    }

    /// Whether TLS is spoken on it.
    pub(super) fn is_tls(&self) -> bool {
        matches!(self, Io::Tls(_))
    }

    /// The protocol that was agreed on under TLS.
    pub(super) fn agreed(&self) -> Option<&[u8]> {
        match self {
            Io::Tls(stream) => stream.get_ref().1.alpn_protocol(),
            Io::Plain(_) | Io::Unix(_) => None,
        }
    }

    /// Its descriptor, which is its own as long as it lives.
    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Io::Plain(stream) => stream.as_raw_fd(),
            Io::Unix(stream) => stream.as_raw_fd(),
            Io::Tls(stream) => stream.get_ref().0.as_raw_fd(),
        }
    }

    /// Whether the server has closed it by now, or sent what nobody asked for.
    pub(super) fn is_stale(&self) -> bool {
        match peek(self.descriptor()) {
            Waiting::End => true,
            // Under TLS there may be a session ticket.
            Waiting::Bytes => !self.is_tls(),
            Waiting::Nothing => false,
        }
    }
}

/// What a socket holds that was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    Nothing,
    Bytes,
    /// It was closed, or is broken.
    End,
}

/// Looks at what a socket holds.
///
/// The socket itself is asked: the runtime would only say what it had heard at its last look around.
pub(super) fn peek(socket: RawFd) -> Waiting {
    match recv(socket, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
        Ok(0) => Waiting::End,
        Ok(_) => Waiting::Bytes,
        Err(nix::errno::Errno::EAGAIN) => Waiting::Nothing,
        Err(_) => Waiting::End,
    }
}
