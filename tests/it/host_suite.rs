//! What must hold for every kind of host: one list of facts, and each kind is held against it.

use std::io;
use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use futures_util::TryStreamExt;
use orch::host::{Address, AnyHost, End, Follow, Host, HostError, Mode, Output, Words};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

/// What a kind of host cannot help.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// A signal is told apart from the exit code that a shell makes of it.
    pub(crate) tells_signals: bool,
}

/// Every fact.
pub(crate) async fn holds(host: &AnyHost, kind: Kind) {
    words_arrive_as_they_are(host).await;
    input_arrives_whole(host).await;
    ends_are_told(host, kind).await;
    output_arrives_whole(host).await;
    files_go_there_and_back(host).await;
    a_growing_file_is_followed(host).await;
    missing_files_are_named(host).await;
    both_kinds_of_address_connect(host).await;
    many_at_once(host).await;
}

pub(crate) fn words(words: &[&str]) -> Words {
    Words::new(words.iter().copied()).unwrap()
}

pub(crate) async fn run(host: &AnyHost, list: &[&str]) -> Output {
    host.run(&words(list), Bytes::new()).await.unwrap()
}

/// Bytes of every value, with no short period.
pub(crate) fn binary(count: usize) -> Vec<u8> {
    (0..count as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

const HOSTILE: [&str; 16] = [
    "",
    " ",
    "a b",
    "'",
    "\"",
    "it's \"so\"",
    "$(touch /tmp/orch-was-here)",
    "`id`;&&||>x<y",
    "$HOME ${HOME} ~ ~root *",
    "a=b",
    "-n",
    "--",
    "\\ \\n \\\\",
    "line\nline\r\ttab",
    "é ü 漢字 🦀",
    "!! #x {a,b} [c] %s \u{1}\u{7f}",
];

async fn words_arrive_as_they_are(host: &AnyHost) {
    let list: Vec<&str> = ["printf", r"%s\0"].into_iter().chain(HOSTILE).collect();
    let output = run(host, &list).await;
    let seen = String::from_utf8(output.stdout.to_vec()).unwrap();
    assert_eq!(seen.split_terminator('\0').collect::<Vec<_>>(), HOSTILE);
    assert_eq!((output.end, &output.stderr[..]), (End::Code(0), &b""[..]));
}

async fn input_arrives_whole(host: &AnyHost) {
    let content = Bytes::from(binary(1 << 20));
    let output = host.run(&words(&["cat"]), content.clone()).await.unwrap();
    assert!(output.ok() && output.stdout == content, "1 MiB comes back as it went");
    // Nobody has to read it.
    let output = host.run(&words(&["true"]), content).await.unwrap();
    assert!(output.ok());
}

async fn ends_are_told(host: &AnyHost, kind: Kind) {
    for code in [0, 1, 3, 126, 127, 128, 137, 255] {
        assert_eq!(run(host, &["sh", "-c", &format!("exit {code}")]).await.end, End::Code(code));
    }
    for signal in [9, 15, 11] {
        let expected = if kind.tells_signals { End::Signal(signal) } else { End::Code(128 + signal) };
        assert_eq!(run(host, &["sh", "-c", &format!("kill -{signal} $$")]).await.end, expected);
    }
    let missing = host.run(&words(&["no-such-program-here", "x"]), Bytes::new()).await;
    let is_missing = |error: &HostError| match error {
        HostError::CannotRun { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    };
    match missing {
        Err(error) => assert!(is_missing(&error), "{error}"),
        // What leads inside another host says it in its own way.
        Ok(output) => assert_eq!(output.end, End::Code(127), "{output:?}"),
    }
}

async fn output_arrives_whole(host: &AnyHost) {
    let script = "head -c 8388608 /dev/zero; head -c 1048576 /dev/zero >&2; printf end; exit 5";
    let output = run(host, &["sh", "-c", script]).await;
    assert_eq!((output.end, output.stdout.len(), output.stderr.len()), (End::Code(5), (8 << 20) + 3, 1 << 20));
    assert!(output.stdout.ends_with(b"\0end"));
    // The command has ended, and something that it left has not.
    let output = run(host, &["sh", "-c", "(sleep 0.3; echo late) & echo first; exit 4"]).await;
    assert_eq!((output.end, &output.stdout[..]), (End::Code(4), &b"first\nlate\n"[..]));
}

async fn files_go_there_and_back(host: &AnyHost) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it's $a file\n");
    std::fs::write(&path, "an old and shorter text").unwrap();
    let content = binary(3 << 20);
    host.put(&path, content.clone().into(), Mode(0o750)).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
    assert!(std::fs::read(&path).unwrap() == content);
    for from in [0, 1, 1_000_000, content.len(), content.len() + 5] {
        let blocks: Vec<Bytes> = host.read(&path, from as u64).await.unwrap().try_collect().await.unwrap();
        assert!(blocks.concat() == content[from.min(content.len())..], "from byte {from}");
    }
    host.put(&path, Bytes::new(), Mode::PRIVATE).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

async fn a_growing_file_is_followed(host: &AnyHost) {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut follow = Follow::new(host.clone(), path.clone(), 0);
    let mut seen = Vec::new();
    assert_eq!(follow.more(|block| seen.extend_from_slice(block)).await.unwrap(), 0, "it is not there yet");
    let mut file = std::fs::File::create(&path).unwrap();
    let mut written = Vec::new();
    for size in [10, 100_000, 0, 1] {
        let more = binary(size);
        file.write_all(&more).unwrap();
        written.extend_from_slice(&more);
        follow.more(|block| seen.extend_from_slice(block)).await.unwrap();
        assert!(seen == written);
    }
    assert_eq!(follow.offset(), written.len() as u64);
}

async fn missing_files_are_named(host: &AnyHost) {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no folder/file");
    let kind = |error: HostError| match error {
        HostError::File { source, path, .. } => {
            assert_eq!(path, missing);
            source.kind()
        }
        error => panic!("{error}"),
    };
    let Err(error) = host.read(&missing, 0).await else { panic!("there is no such file") };
    assert_eq!(kind(error), io::ErrorKind::NotFound);
    assert_eq!(kind(host.put(&missing, "x".into(), Mode::PRIVATE).await.unwrap_err()), io::ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

async fn both_kinds_of_address_connect(host: &AnyHost) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = unix.accept().await.unwrap();
        echo(&mut stream).await;
    });
    asks(host, &Address::Unix(path)).await;
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = tcp.local_addr().unwrap().port();
    tokio::spawn(async move {
        // What looks whether it listens comes first with some transports.
        while let Ok((mut stream, _)) = tcp.accept().await {
            tokio::spawn(async move { echo(&mut stream).await });
        }
    });
    asks(host, &Address::Tcp("127.0.0.1".into(), port)).await;
    asks(host, &Address::Tcp("127.0.0.1".into(), port)).await;
    let closed = crate::support::free_port();
    let Err(error) = host.connect(&Address::Tcp("127.0.0.1".into(), closed)).await else {
        panic!("nothing listens there")
    };
    assert!(matches!(error, HostError::CannotConnect { .. }), "{error}");
    assert!(run(host, &["true"]).await.ok(), "the connection to the host lives on");
}

/// Sends back what it gets, until the end of it.
async fn echo<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(stream: &mut S) {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    let _ = stream.write_all(&all).await;
    let _ = stream.shutdown().await;
}

async fn asks(host: &AnyHost, to: &Address) {
    let mut io = host.connect(to).await.unwrap();
    let said = binary(300_000);
    io.write_all(&said).await.unwrap();
    io.shutdown().await.unwrap();
    let mut heard = Vec::new();
    io.read_to_end(&mut heard).await.unwrap();
    assert!(heard == said, "{} bytes of {} come back from {to}", heard.len(), said.len());
}

async fn many_at_once(host: &AnyHost) {
    let all = (0..20).map(|i| {
        let host = host.clone();
        async move {
            let output = run(&host, &["sh", "-c", &format!("sleep 0.2; echo {i}; exit {i}")]).await;
            assert_eq!((output.end, &output.stdout[..]), (End::Code(i), format!("{i}\n").as_bytes()));
        }
    });
    futures_util::future::join_all(all).await;
}
