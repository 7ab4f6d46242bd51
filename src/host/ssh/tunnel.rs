//! A channel as a connection that holds up no other, even if nobody reads it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::connection::Connection;

/// So much may wait for a reader. The messages of one channel that are not taken stop all the others, so they are taken,
/// and a reader that falls behind by more is cut off.
const MOST_WAITING: usize = 64 << 20;

/// A channel as a connection.
pub(super) struct Tunnel {
    arriving: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
    current: Bytes,
    ended: bool,
    write: Pin<Box<dyn AsyncWrite + Send>>,
    _connection: Arc<Connection>,
}

impl Tunnel {
    pub(super) fn new(channel: Channel<Msg>, connection: Arc<Connection>, place: Option<OwnedSemaphorePermit>) -> Self {
        let (read, write) = channel.split();
        Tunnel::of_halves(read, write, connection, place)
    }

    pub(super) fn of_halves(
        read: ChannelReadHalf,
        write: ChannelWriteHalf<Msg>,
        connection: Arc<Connection>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let (pass, arriving) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let writer = Box::pin(write.make_writer());
        tokio::spawn(pump(read, write, pass, waiting.clone(), place));
        Tunnel { arriving, waiting, current: Bytes::new(), ended: false, write: writer, _connection: connection }
    }
}

/// Takes what arrives, until its end, or until nobody wants it any more.
async fn pump(
    mut read: ChannelReadHalf,
    write: ChannelWriteHalf<Msg>,
    pass: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    place: Option<OwnedSemaphorePermit>,
) {
    let mut ended = false;
    loop {
        let message = tokio::select! {
            message = read.wait() => message,
            () = pass.closed() => break,
        };
        match message {
            Some(ChannelMsg::Data { data }) => {
                let bytes = data;
                let before = waiting.fetch_add(bytes.len(), Ordering::Relaxed);
                if before > MOST_WAITING || pass.send(bytes).is_err() {
                    break;
                }
            }
            // The other direction may go on, until the connection is dropped here.
            Some(ChannelMsg::Eof | ChannelMsg::Failure) if !ended => {
                ended = true;
                let _ = pass.send(Bytes::new());
            }
            Some(ChannelMsg::Close) | None => break,
            Some(_) => {}
        }
    }
    drop(pass);
    let _ = write.close().await;
    while read.wait().await.is_some() {}
    drop(place);
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.current.is_empty() {
                let count = self.current.len().min(buf.remaining());
                buf.put_slice(&self.current[..count]);
                self.current.advance(count);
                self.waiting.fetch_sub(count, Ordering::Relaxed);
                return Poll::Ready(Ok(()));
            }
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            match self.arriving.poll_recv(cx) {
                Poll::Ready(Some(bytes)) if !bytes.is_empty() => self.current = bytes,
                // Nothing at all is the end, also of a channel that is still open for writing.
                Poll::Ready(_) => {
                    self.ended = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.as_mut().poll_shutdown(cx)
    }
}
