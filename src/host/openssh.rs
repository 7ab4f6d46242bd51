//! A host that the system's own `ssh` reaches: for keys and logins that only it can do.
//!
//! One `ssh` of ours holds the connection (its control master, with its socket in a folder that only we may enter), and each
//! command is another `ssh` that uses it. `ssh` tells its own failures, a signal and exit code 255 all as 255, so the exit
//! code comes behind a mark on standard error. A signal then is what a shell makes of it, 128 and its number.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, OnceCell, Semaphore};

use super::frame::{self, Frame};
use super::pipe::{Begun, Piped, from_mark, lost};
use super::ssh::config::{Settings, Target, settings};
use super::{Address, BoxedIo, ByteStream, End, Host, HostError, HostPath, Mode, Output, Pipe, Words, files};

/// `sshd` allows ten sessions on one connection unless it is told otherwise.
const SESSIONS: usize = 8;
/// What the configuration forwards is no affair of ours.
const CLEAR: &[&str] = &["-o", "ClearAllForwardings=yes"];
/// The exit code of `ssh` for whatever goes wrong in itself.
const OWN_FAILURE: i32 = 255;
/// How long a login may take beyond the connection itself: somebody may have to touch a key.
const LOGIN: Duration = Duration::from_secs(60);
/// How long a forwarded connection is watched for being refused, which `ssh` only tells by ending it.
const REFUSED_WITHIN: Duration = Duration::from_millis(250);

/// A host behind the system's `ssh`.
#[derive(Clone, Debug)]
pub struct OpenSsh {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    target: Target,
    name: String,
    settings: OnceCell<Settings>,
    config: Option<PathBuf>,
    /// The sockets, for nobody else to enter. It goes when the host is dropped.
    folder: tempfile::TempDir,
    master: Mutex<Option<Child>>,
    sessions: Semaphore,
    /// Whether it could be reached once.
    reached: AtomicBool,
    forwards: Mutex<BTreeMap<String, PathBuf>>,
}

impl OpenSsh {
    pub(crate) fn new(target: Target, config: Option<PathBuf>) -> Result<Self, HostError> {
        // The path of a socket is short.
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let place =
            runtime.filter(|path| path.is_dir() && path.as_os_str().len() < 50).unwrap_or_else(|| "/tmp".into());
        let folder = tempfile::Builder::new().prefix("orch-ssh-").tempdir_in(&place);
        let folder = folder.map_err(|source| HostError::File { what: "make a folder in", path: place, source })?;
        Ok(OpenSsh {
            inner: Arc::new(Inner {
                name: target.to_string(),
                target,
                settings: OnceCell::new(),
                config,
                folder,
                master: Mutex::new(None),
                sessions: Semaphore::new(SESSIONS),
                reached: AtomicBool::new(false),
                forwards: Mutex::new(BTreeMap::new()),
            }),
        })
    }

    /// Connects, unless it is connected.
    pub(super) async fn reach(&self) -> Result<(), HostError> {
        self.inner.ready().await.map(drop)
    }

    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.inner.config.clone()
    }
}

impl Inner {
    /// What the person's configuration says, of which the time limits are needed here.
    async fn settings(&self) -> Result<&Settings, HostError> {
        self.settings.get_or_try_init(|| settings(&self.target, self.config.as_deref())).await
    }

    /// `ssh` with all that every use of it needs, and these options before the name of the host.
    fn ssh(&self, settings: &Settings, options: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        if let Some(file) = &self.config {
            command.arg("-F").arg(file);
        }
        let (interval, count) = settings.alive;
        command.arg("-o").arg(format!("ControlPath={}", self.socket().display()));
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "LogLevel=ERROR",
            "RemoteCommand=none",
            "RequestTTY=no",
            &format!("ServerAliveInterval={}", interval.as_secs().max(1)),
            &format!("ServerAliveCountMax={count}"),
            &format!("ConnectTimeout={}", settings.connect_timeout.as_secs().max(1)),
        ] {
            command.args(["-o", option]);
        }
        if let Some(user) = &self.target.user {
            command.args(["-l", user]);
        }
        if let Some(port) = self.target.port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(options).arg("--").arg(&self.target.name);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("m")
    }

    /// Makes the connection, or makes it anew when it has ended.
    async fn ready(&self) -> Result<&Settings, HostError> {
        let settings = self.settings().await?;
        let mut master = self.master.lock().await;
        if let Some(child) = master.as_mut() {
            if matches!(child.try_wait(), Ok(None)) {
                return Ok(settings);
            }
            *master = None;
        }
        self.forwards.lock().await.clear();
        let _ = std::fs::remove_file(self.socket());
        let log = self.folder.path().join("log");
        let cannot = |source| HostError::CannotRun { program: "ssh".to_owned(), source };
        let mut command =
            self.ssh(settings, &[CLEAR, &["-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-N", "-T"]].concat());
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).map_err(cannot)?);
        let mut child = command.spawn().map_err(cannot)?;
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let until = tokio::time::Instant::now() + settings.connect_timeout + LOGIN;
        while !self.socket().exists() {
            if child.try_wait().map_err(cannot)?.is_some() {
                return Err(self.no_connection(&said()));
            }
            if tokio::time::Instant::now() > until {
                return Err(self.no_connection("it does not get in, and does not say why"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        *master = Some(child);
        self.reached.store(true, Ordering::Relaxed);
        Ok(settings)
    }

    /// What `ssh` said when it could not connect.
    fn no_connection(&self, said: &str) -> HostError {
        let host = self.name.clone();
        let lines: Vec<&str> =
            said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('@')).collect();
        let why = if lines.is_empty() { "ssh says nothing".to_owned() } else { lines.join(" / ") };
        if said.contains("Permission denied") {
            let help = "`ssh HOST true` must work without a question; orch asks none".to_owned();
            return HostError::Refused {
                host,
                user: self.settings.get().map_or_else(String::new, |settings| settings.user.clone()),
                tried: why,
                help,
            };
        }
        if said.contains("Host key verification failed") || said.contains("host key is known") {
            return HostError::Key { host, fault: Box::new(super::KeyFault::Told { why }) };
        }
        if self.reached.load(Ordering::Relaxed) {
            return HostError::Lost { host, why: format!("it cannot be reached again: {why}") };
        }
        HostError::Unreachable { host, why, help: "`ssh HOST true` shows whether it can be reached at all".to_owned() }
    }

    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        let frame = Frame::new();
        let line = frame.telling_line(words)?;
        let settings = self.ready().await?;
        let _session = self.sessions.acquire().await.map_err(|error| lost(&self.name, &error))?;
        let cannot = |source| HostError::CannotRun { program: "ssh".to_owned(), source };
        let mut command = self.ssh(settings, &[CLEAR, &["-o", "ControlMaster=no", "-T"]].concat());
        command.arg(line).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(cannot)?;
        let pipe = child.stdin.take();
        let write = async {
            if let Some(mut pipe) = pipe {
                // A command need not read what it is given.
                let _ = pipe.write_all(&stdin).await;
            }
        };
        let ((), output) = tokio::join!(write, child.wait_with_output());
        let output = output.map_err(cannot)?;
        let (mut out, mut err) = (frame.reader(), frame.reader());
        let stdout = out.feed(output.stdout.into());
        let mut stderr = err.feed(output.stderr.into()).to_vec();
        if out.number() == Some(0) {
            return Err(frame::not_there(words));
        }
        match (frame.take_code(&mut stderr), output.status.code()) {
            (Some(code), _) => Ok(Output { end: End::Code(code), stdout, stderr: stderr.into() }),
            (None, Some(code)) if code != OWN_FAILURE && !out.began() => Err(frame::no_shell(&self.name, &out, &err)),
            _ => {
                let said =
                    if err.began() { String::from_utf8_lossy(&stderr) } else { String::from_utf8_lossy(err.instead()) };
                let last =
                    said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("ssh ended and did not say why");
                Err(lost(&self.name, &last.trim()))
            }
        }
    }

    /// A socket here that leads to an address there.
    async fn forward(&self, to: &Address) -> Result<PathBuf, HostError> {
        let failed = |source| HostError::CannotConnect { address: to.to_string(), source };
        self.ready().await?;
        let mut forwards = self.forwards.lock().await;
        let far = match to {
            Address::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp(host, port) => format!("{host}:{port}"),
            Address::Unix(path) => match path.to_str().filter(|path| path.starts_with('/') && !path.contains(':')) {
                Some(path) => path.to_owned(),
                None => return Err(failed(io::Error::other("ssh forwards to whole paths without a colon only"))),
            },
        };
        if let Some(socket) = forwards.get(&far) {
            return Ok(socket.clone());
        }
        let near = self.folder.path().join(format!("f{}", forwards.len()));
        let _ = std::fs::remove_file(&near);
        let rule = format!("{}:{far}", near.display());
        // Without the person's configuration, whose own forwards would come along.
        let mut command = Command::new("ssh");
        command.args(["-F", "/dev/null", "-o"]).arg(format!("ControlPath={}", self.socket().display()));
        command.args(["-O", "forward", "-L", &rule, "--", &self.target.name]).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failed(io::Error::other(said)));
        }
        forwards.insert(far, near.clone());
        Ok(near)
    }
}

impl Host for OpenSsh {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        self.inner.run(words, stdin).await
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        files::put(self, path, content, mode).await
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        files::read(self, path, from).await
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        let failed = |source| HostError::CannotConnect { address: to.to_string(), source };
        let socket = self.inner.forward(to).await?;
        let mut stream = UnixStream::connect(&socket).await.map_err(failed)?;
        let mut block = vec![0; 4096];
        match tokio::time::timeout(REFUSED_WITHIN, stream.read(&mut block)).await {
            Err(_) => Ok(Box::new(stream)),
            Ok(Ok(0)) => {
                Err(failed(io::Error::new(io::ErrorKind::ConnectionRefused, "nothing takes the connection there")))
            }
            Ok(Ok(count)) => {
                block.truncate(count);
                Ok(Box::new(Begun::new(block.into(), stream)))
            }
            Ok(Err(source)) => Err(failed(source)),
        }
    }
}

impl Pipe for OpenSsh {
    async fn pipe(&self, words: &Words) -> Result<BoxedIo, HostError> {
        let frame = Frame::new();
        let line = frame.line(words)?;
        let settings = self.inner.ready().await?;
        let mut command = self.inner.ssh(settings, &[CLEAR, &["-o", "ControlMaster=no", "-T"]].concat());
        command.arg(line);
        let cannot = |source| HostError::CannotRun { program: "ssh".to_owned(), source };
        let io = Piped::spawn(command).map_err(cannot)?;
        from_mark(io, &frame, &self.inner.name, words).await
    }
}
