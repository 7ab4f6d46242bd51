//! Files of a host that has nothing but a shell: written and read by commands, through whatever leads there.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use sha2::{Digest, Sha256};

use super::{ByteStream, End, Host, HostError, HostPath, Mode, Output, Words};

/// How much of a file is read by one command.
const BLOCK_BYTES: usize = 8 << 20;
/// How long a lost connection is tried again for what may be done twice.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pauses between tries begin here and double up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Exit codes of the scripts below, which no tool in them uses.
const NOT_THERE: i32 = 90;
const WRONG_SIZE: i32 = 91;
const WRONG_SUM: i32 = 92;
const NO_SUM: i32 = 93;

/// `path temporary bytes sha256 mode`. Nothing is left behind unless all of it is right. `set -C` makes the shell refuse a
/// name that is taken, also by a link that somebody else put there.
const PUT: &str = r#"LC_ALL=C; export LC_ALL; umask 077; set -C
trap 'rm -f -- "$2"' EXIT; trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM
: > "$2" || { trap - EXIT; exit 1; }
set +C; cat > "$2" || exit
[ "$(($(wc -c < "$2")))" -eq "$3" ] || exit 91
if command -v sha256sum >/dev/null 2>&1; then s=$(sha256sum < "$2"); elif command -v shasum >/dev/null 2>&1; then s=$(shasum -a 256 < "$2"); else exit 93; fi
[ "${s%% *}" = "$4" ] || exit 92
chmod "$5" "$2" || exit; sync "$2" 2>/dev/null
if [ -d "$1" ]; then echo "Is a directory" >&2; exit 1; fi
mv -f -- "$2" "$1" || exit
trap - EXIT"#;

/// `path first-byte bytes`, the first byte counted from 1 as `tail` does.
const READ: &str = r#"LC_ALL=C; export LC_ALL
[ -e "$1" ] || { d=$(dirname -- "$1"); if [ -d "$d" ] && ! [ -x "$d" ]; then echo "Permission denied" >&2; exit 1; fi; exit 90; }
if [ -d "$1" ]; then echo "Is a directory" >&2; exit 1; fi
[ -r "$1" ] || { echo "Permission denied" >&2; exit 1; }
tail -c "+$2" -- "$1" | head -c "$3""#;

/// Writes a file through `Host::run`.
pub(super) async fn put<H: Host>(host: &H, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
    let failed = |source| HostError::File { what: "write", path: path.clone(), source };
    let target = text(path).map_err(failed)?;
    let sum: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let size = content.len().to_string();
    let mode = format!("{:o}", mode.0);
    let output = patiently(async || {
        // Each try has a name of its own: one that was cut off may still be going on there.
        let temporary = text(&beside(path)).map_err(failed)?.to_owned();
        let words = Words::new(["sh", "-c", PUT, "sh", target, &temporary, &size, &sum, &mode])?;
        host.run(&words, content.clone()).await
    })
    .await?;
    match output.end {
        End::Code(0) => Ok(()),
        End::Code(WRONG_SIZE) => Err(failed(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "what arrived there is shorter than what was sent",
        ))),
        End::Code(WRONG_SUM) => {
            Err(failed(io::Error::new(io::ErrorKind::InvalidData, "what arrived there is not what was sent")))
        }
        End::Code(NO_SUM) => Err(failed(io::Error::new(
            io::ErrorKind::Unsupported,
            "there is neither `sha256sum` nor `shasum` there to check what arrived",
        ))),
        _ => Err(failed(told(&output))),
    }
}

/// Reads a file through `Host::run`, a block with each command.
pub(super) async fn read<H: Host + Clone + 'static>(
    host: &H,
    path: &HostPath,
    from: u64,
) -> Result<ByteStream, HostError> {
    let first = block(host, path, from).await?;
    let next = from + first.len() as u64;
    let more = first.len() == BLOCK_BYTES;
    let host = host.clone();
    let path = path.clone();
    let rest = stream::try_unfold((host, path, next, more), |(host, path, from, more)| async move {
        if !more {
            return Ok(None);
        }
        let bytes = block(&host, &path, from).await?;
        let (next, more) = (from + bytes.len() as u64, bytes.len() == BLOCK_BYTES);
        Ok(Some((bytes, (host, path, next, more))))
    });
    let blocks = futures_util::StreamExt::chain(stream::iter([Ok(first)]), rest);
    Ok(Box::pin(futures_util::StreamExt::filter(blocks, |block| {
        let keep = !matches!(block, Ok(bytes) if bytes.is_empty());
        std::future::ready(keep)
    })))
}

async fn block<H: Host>(host: &H, path: &HostPath, from: u64) -> Result<Bytes, HostError> {
    let failed = |source| HostError::File { what: "read", path: path.clone(), source };
    let (first, count) = ((from + 1).to_string(), BLOCK_BYTES.to_string());
    let words = Words::new(["sh", "-c", READ, "sh", text(path).map_err(failed)?, &first, &count])?;
    let output = patiently(|| host.run(&words, Bytes::new())).await?;
    match output.end {
        End::Code(0) => Ok(output.stdout),
        End::Code(NOT_THERE) => {
            Err(failed(io::Error::new(io::ErrorKind::NotFound, "No such file or directory on the host")))
        }
        _ => Err(failed(told(&output))),
    }
}

/// Does what may be done twice again when the connection was lost, with growing pauses, as long as patience lasts.
async fn patiently<F>(mut act: impl FnMut() -> F) -> Result<Output, HostError>
where
    F: Future<Output = Result<Output, HostError>>,
{
    let since = tokio::time::Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match act().await {
            Err(error) if error.is_lost() && since.elapsed() < PATIENCE => {}
            result => return result,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A name beside a file that nobody has.
fn beside(path: &Path) -> HostPath {
    path.with_file_name(format!(".orch-{:016x}", rand::random::<u64>()))
}

/// A path as a word.
fn text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "its name is no text"))
}

/// What a shell and its tools said, as an error of the system.
fn told(output: &Output) -> io::Error {
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = [
        ("No space left on device", io::ErrorKind::StorageFull),
        ("Disk quota exceeded", io::ErrorKind::QuotaExceeded),
        ("Read-only file system", io::ErrorKind::ReadOnlyFilesystem),
        ("Permission denied", io::ErrorKind::PermissionDenied),
        ("Is a directory", io::ErrorKind::IsADirectory),
        ("Not a directory", io::ErrorKind::NotADirectory),
        ("No such file or directory", io::ErrorKind::NotFound),
        // dash says this of a folder that is not there.
        ("Directory nonexistent", io::ErrorKind::NotFound),
    ];
    let kind = kind.iter().find(|(words, _)| said.contains(words)).map_or(io::ErrorKind::Other, |(_, kind)| *kind);
    let line = said.lines().rfind(|line| !line.trim().is_empty());
    let text = line.map_or_else(|| format!("it ended with {:?} there", output.end), str::to_owned);
    io::Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use futures_util::TryStreamExt;

    use super::*;
    use crate::host::Local;

    async fn read_all(path: &Path, from: u64) -> Result<Vec<u8>, HostError> {
        let blocks: Vec<Bytes> = read(&Local, &path.to_owned(), from).await?.try_collect().await?;
        Ok(blocks.concat())
    }

    #[tokio::test]
    async fn a_file_goes_through_the_shell_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's a $file\n");
        let content: Vec<u8> = (0..BLOCK_BYTES + 1000).map(|i| (i % 251) as u8).collect();
        put(&Local, &path, content.clone().into(), Mode(0o750)).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
        assert!(read_all(&path, 0).await.unwrap() == content);
        assert!(read_all(&path, 12_345).await.unwrap() == content[12_345..]);
        assert_eq!(read_all(&path, content.len() as u64 + 7).await.unwrap(), b"");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[tokio::test]
    async fn what_is_wrong_has_its_kind_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |result: Result<_, HostError>| match result {
            Err(HostError::File { source, .. }) => source.kind(),
            other => panic!("{other:?}"),
        };
        let missing = folder.path().join("no/file");
        assert_eq!(kind(read_all(&missing, 0).await), io::ErrorKind::NotFound);
        assert_eq!(kind(read_all(folder.path(), 0).await), io::ErrorKind::IsADirectory);
        let put = |path: &Path| put_of(path.to_owned());
        assert_eq!(kind(put(&missing).await), io::ErrorKind::NotFound);
        std::fs::create_dir(folder.path().join("taken")).unwrap();
        assert_eq!(kind(put(&folder.path().join("taken")).await), io::ErrorKind::IsADirectory);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    async fn put_of(path: HostPath) -> Result<Vec<u8>, HostError> {
        put(&Local, &path, "x".into(), Mode::PRIVATE).await.map(|()| Vec::new())
    }

    #[tokio::test]
    async fn what_arrives_cut_off_is_not_put() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "old").unwrap();
        let temporary = folder.path().join(".orch-t");
        let words = ["sh", "-c", PUT, "sh", path.to_str().unwrap(), temporary.to_str().unwrap(), "10", "00", "600"];
        let output = Local.run(&Words::new(words).unwrap(), "short".into()).await.unwrap();
        assert_eq!(output.end, End::Code(WRONG_SIZE));
        let words = ["sh", "-c", PUT, "sh", path.to_str().unwrap(), temporary.to_str().unwrap(), "5", "00", "600"];
        let output = Local.run(&Words::new(words).unwrap(), "short".into()).await.unwrap();
        assert_eq!(output.end, End::Code(WRONG_SUM));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
