//! This machine.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{Address, BoxedIo, ByteStream, End, Host, HostError, HostPath, Mode, Output, Words};

/// How much of a file is read at a time.
const BLOCK_BYTES: usize = 64 << 10;

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

impl Host for Local {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        let cannot = |source| HostError::CannotRun { program: words.program().to_owned(), source };
        let mut child = tokio::process::Command::new(words.program())
            .args(words.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(cannot)?;
        let pipe = child.stdin.take();
        let write = async {
            // A program that does not read what it is given may be right not to: `head`, `true`.
            if let Some(mut pipe) = pipe {
                match pipe.write_all(&stdin).await {
                    Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                    _ => drop(pipe),
                }
            }
            Ok(())
        };
        let (written, output) = tokio::join!(write, child.wait_with_output());
        written.map_err(cannot)?;
        let output = output.map_err(cannot)?;
        let end = match (output.status.code(), output.status.signal()) {
            (Some(code), _) => End::Code(code),
            (None, Some(signal)) => End::Signal(signal),
            (None, None) => return Err(cannot(io::Error::other("it ended with neither a code nor a signal"))),
        };
        Ok(Output { end, stdout: output.stdout.into(), stderr: output.stderr.into() })
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        let path = path.clone();
        let target = path.clone();
        tokio::task::spawn_blocking(move || write_whole(&path, &content, mode))
            .await
            .unwrap_or_else(|panic| Err(io::Error::other(panic)))
            .map_err(|source| HostError::File { what: "write", path: target, source })
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        let failed = |path: &Path, source| HostError::File { what: "read", path: path.to_owned(), source };
        let mut file = tokio::fs::File::open(path).await.map_err(|error| failed(path, error))?;
        file.seek(io::SeekFrom::Start(from)).await.map_err(|error| failed(path, error))?;
        let blocks = stream::try_unfold((file, path.clone()), move |(mut file, path)| async move {
            let mut block = BytesMut::with_capacity(BLOCK_BYTES);
            match file.read_buf(&mut block).await {
                Ok(0) => Ok(None),
                Ok(_) => Ok(Some((block.freeze(), (file, path)))),
                Err(source) => Err(failed(&path, source)),
            }
        });
        Ok(Box::pin(blocks))
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        let failed = |source| HostError::CannotConnect { address: to.to_string(), source };
        match to {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Ok(Box::new(stream))
            }
            Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?)),
        }
    }
}

/// Writes a file under a temporary name beside its own, on disk before it is renamed.
pub(crate) fn write_whole(path: &Path, content: &[u8], mode: Mode) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new().prefix(".orch-").tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode.0))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use futures_util::TryStreamExt;

    use super::*;

    fn words(words: &[&str]) -> Words {
        Words::new(words.iter().copied()).unwrap()
    }

    #[tokio::test]
    async fn a_command_gets_its_words_and_its_input_as_they_are() {
        let output = Local.run(&words(&["sh", "-c", "cat; printf %s \"$1\" >&2", "sh", "a b'$x"]), "in".into()).await;
        let output = output.unwrap();
        assert!(output.ok());
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"in"[..], &b"a b'$x"[..]));
    }

    #[tokio::test]
    async fn a_code_and_a_signal_are_told_apart() {
        let code = Local.run(&words(&["sh", "-c", "exit 137"]), Bytes::new()).await.unwrap();
        let signal = Local.run(&words(&["sh", "-c", "kill -9 $$"]), Bytes::new()).await.unwrap();
        assert_eq!((code.end, signal.end), (End::Code(137), End::Signal(9)));
    }

    #[tokio::test]
    async fn input_that_nobody_reads_is_no_fault() {
        let big = Bytes::from(vec![b'x'; 1 << 20]);
        assert!(Local.run(&words(&["true"]), big).await.unwrap().ok());
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let error = Local.run(&words(&["no-such-program-here"]), Bytes::new()).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot run `no-such-program-here`: "), "{error}");
    }

    #[tokio::test]
    async fn a_file_is_put_whole_with_its_mode_and_read_from_an_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "an older and longer text").unwrap();
        Local.put(&path, "0123456789".into(), Mode(0o640)).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let rest: Vec<Bytes> = Local.read(&path, 4).await.unwrap().try_collect().await.unwrap();
        assert_eq!(rest.concat(), b"456789");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[tokio::test]
    async fn both_kinds_of_address_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _unix = tokio::net::UnixListener::bind(&path).unwrap();
        Local.connect(&Address::Unix(path)).await.unwrap();
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        Local.connect(&Address::Tcp("127.0.0.1".into(), port)).await.unwrap();
        drop(tcp);
        let Err(error) = Local.connect(&Address::Tcp("127.0.0.1".into(), port)).await else {
            panic!("nothing listens there any more")
        };
        assert!(error.to_string().starts_with(&format!("cannot connect to 127.0.0.1:{port}: ")), "{error}");
    }
}
