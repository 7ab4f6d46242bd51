//! Programs whose standard streams are a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::frame::{self, Frame};
use super::{BoxedIo, Host, HostError, Local, Words};

/// A host that can start a program and hand over its standard streams as a connection.
///
/// What the program says on standard error is dropped. It ends when the connection is dropped, at the latest when it reads
/// the end of its input.
pub trait Pipe: Host {
    /// Starts the program.
    fn pipe(&self, words: &Words) -> impl Future<Output = Result<BoxedIo, HostError>> + Send;
}

impl Pipe for Local {
    async fn pipe(&self, words: &Words) -> Result<BoxedIo, HostError> {
        let mut command = tokio::process::Command::new(words.program());
        command.args(words.arguments());
        let source = |source| HostError::CannotRun { program: words.program().to_owned(), source };
        Ok(Box::new(Piped::spawn(command).map_err(source)?))
    }
}

/// A process of this machine as a connection. It is killed when the connection is dropped.
#[derive(Debug)]
pub(super) struct Piped {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
}

impl Piped {
    /// Starts it, with its standard error left aside.
    pub(super) fn spawn(mut command: tokio::process::Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("it has no standard output"))?;
        Ok(Piped { child, stdin, stdout })
    }
}

impl AsyncRead for Piped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stdout).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) && buf.filled().len() == before {
            // At its end, so that no zombie stays for as long as the connection is kept.
            let _ = self.child.try_wait();
        }
        read
    }
}

impl AsyncWrite for Piped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stdin {
            Some(stdin) => Pin::new(stdin).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stdin.as_mut().map_or(Poll::Ready(Ok(())), |stdin| Pin::new(stdin).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.stdin.as_mut().map_or(Poll::Ready(Ok(())), |stdin| Pin::new(stdin).poll_shutdown(cx));
        if shut.is_ready() {
            // Only when it is dropped does the program read the end.
            self.stdin = None;
        }
        shut
    }
}

/// A connection of which some bytes were read already.
pub(super) struct Begun<T> {
    left: Bytes,
    io: T,
}

impl<T> Begun<T> {
    pub(super) fn new(left: Bytes, io: T) -> Self {
        Begun { left, io }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Begun<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.left.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let count = self.left.len().min(buf.remaining());
        buf.put_slice(&self.left[..count]);
        self.left.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Begun<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// The connection to a program behind a login shell, from the program's first byte on.
pub(super) async fn from_mark<T>(mut io: T, frame: &Frame, host: &str, words: &Words) -> Result<BoxedIo, HostError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut out, err) = (frame.reader(), frame.reader());
    let mut block = [0; 4096];
    loop {
        let count = io.read(&mut block).await.map_err(|error| lost(host, &error))?;
        if count == 0 {
            return Err(frame::no_shell(host, &out, &err));
        }
        let left = out.feed(Bytes::copy_from_slice(&block[..count]));
        match out.number() {
            Some(0) => return Err(frame::not_there(words)),
            _ if out.began() => return Ok(Box::new(Begun::new(left, io))),
            _ => {}
        }
    }
}

/// The error for a connection that ended by itself.
pub(super) fn lost(host: &str, why: &dyn std::fmt::Display) -> HostError {
    HostError::Lost { host: host.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_program_reads_the_end_of_what_it_is_given() {
        let mut io = Local.pipe(&Words::new(["sh", "-c", "cat; echo end"]).unwrap()).await.unwrap();
        io.write_all(b"one ").await.unwrap();
        io.shutdown().await.unwrap();
        let mut said = String::new();
        io.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "one end\n");
    }
}
