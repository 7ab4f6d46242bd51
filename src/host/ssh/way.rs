//! The way to a host: straight, through other hosts, or through a program; then the handshake and the login.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use russh::client;
use tokio::net::TcpStream;

use super::auth;
use super::checker::{CheckError, Checker};
use super::config::{Settings, Target, settings};
use super::connection::{Connection, Ending};
use super::known::{Known, Names};
use super::tunnel::Tunnel;
use crate::host::pipe::Piped;
use crate::host::{BoxedIo, HostError, quote};

/// Hosts that lead through each other in a circle have no end.
const LONGEST_WAY: usize = 16;
/// How long a login may take beyond the connection itself: an agent may ask somebody.
const LOGIN: Duration = Duration::from_secs(60);

/// Connects and logs in.
pub(super) async fn connect(to: &Settings, config: Option<&Path>) -> Result<Connection, HostError> {
    let mut through = None;
    for hop in hops(to, config).await? {
        through = Some(Arc::new(dial(&hop, through, config).await?));
    }
    dial(to, through, config).await
}

/// The hosts on the way, nearest first. Only the nearest may have a way of its own; those behind it are reached from there.
async fn hops(to: &Settings, config: Option<&Path>) -> Result<VecDeque<Settings>, HostError> {
    let mut hops: VecDeque<Settings> = VecDeque::new();
    let mut jump: Vec<Target> = to.jump.clone();
    while !jump.is_empty() {
        for target in jump.iter().rev() {
            if hops.len() == LONGEST_WAY {
                return Err(HostError::Config {
                    host: to.name.clone(),
                    why: format!("its ProxyJump leads through more than {LONGEST_WAY} hosts"),
                    help: "`ssh -G HOST` shows through which; do they lead through each other?".to_owned(),
                });
            }
            hops.push_front(settings(target, config).await?);
        }
        jump = hops.front().map(|nearest| nearest.jump.clone()).unwrap_or_default();
    }
    Ok(hops)
}

/// Connects to one host, from here or from another.
async fn dial(to: &Settings, through: Option<Arc<Connection>>, config: Option<&Path>) -> Result<Connection, HostError> {
    let names = Names::new(&to.hostname, to.port, to.key_alias.as_deref());
    let known =
        Known::read(&to.known_hosts).map_err(|(path, source)| HostError::File { what: "read", path, source })?;
    let options = Arc::new(client::Config {
        nodelay: true,
        keepalive_interval: Some(to.alive.0),
        keepalive_max: to.alive.1,
        preferred: super::preferred::preferred(to, &known, &names),
        ..client::Config::default()
    });
    let ending = Ending::default();
    let checker = Checker {
        known,
        names,
        principals: vec![to.key_alias.clone().unwrap_or_else(|| to.hostname.clone())],
        ending: ending.clone(),
    };
    let limit = to.connect_timeout;
    let in_time = async {
        let stream = stream(to, through.as_ref()).await?;
        client::connect_stream(options, stream, checker).await.map_err(|error| no_connection(to, error, config))
    };
    let mut handle = match tokio::time::timeout(limit, in_time).await {
        Ok(handle) => handle?,
        Err(_) => return Err(silent(to, limit)),
    };
    match tokio::time::timeout(limit + LOGIN, auth::log_in(&mut handle, to)).await {
        Ok(result) => result?,
        Err(_) => return Err(silent(to, limit + LOGIN)),
    }
    Ok(Connection::new(to.name.clone(), handle, ending, through))
}

/// The bare stream to the port of its SSH server.
async fn stream(to: &Settings, through: Option<&Arc<Connection>>) -> Result<BoxedIo, HostError> {
    let place = format!("{}:{}", to.hostname, to.port);
    if let Some(outer) = through {
        return match outer.to_tcp(&to.hostname, to.port).await {
            Ok(channel) => Ok(Box::new(Tunnel::new(channel, outer.clone(), None))),
            Err(error) => Err(unreachable(to, format!("{} does not connect to {place}: {error}", outer.host))),
        };
    }
    if let Some(line) = &to.proxy_command {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
        let mut command = tokio::process::Command::new(shell);
        command.arg("-c").arg(format!("exec {line}")).stderr(Stdio::null());
        let piped = Piped::spawn(command);
        return match piped {
            Ok(piped) => Ok(Box::new(piped)),
            Err(error) => Err(unreachable(to, format!("cannot run its ProxyCommand: {error}"))),
        };
    }
    let stream = TcpStream::connect((to.hostname.as_str(), to.port)).await;
    match stream {
        Ok(stream) => {
            // Each command and answer is small, and waiting for more would cost 40 ms each.
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream))
        }
        Err(error) => Err(unreachable(to, format!("{place}: {error}"))),
    }
}

fn unreachable(to: &Settings, why: String) -> HostError {
    let help = format!("`ssh -v {}` shows where it stops", quote(&to.name));
    HostError::Unreachable { host: to.name.clone(), why, help }
}

fn silent(to: &Settings, limit: Duration) -> HostError {
    let place = format!("{}:{}", to.hostname, to.port);
    let why = format!("{place} does not answer as an SSH server within {} s", limit.as_secs());
    let help = "is it the right port? `ConnectTimeout` in ssh's configuration gives it longer".to_owned();
    HostError::Unreachable { host: to.name.clone(), why, help }
}

/// What ended the handshake.
fn no_connection(to: &Settings, error: CheckError, config: Option<&Path>) -> HostError {
    match error {
        CheckError::Key(fault) => {
            HostError::Key { host: to.name.clone(), fault: Box::new(fault.accepted_by(accept(to, config))) }
        }
        CheckError::Russh(russh::Error::NoCommonAlgo { kind, ours, theirs }) => unreachable(
            to,
            format!("no common algorithm ({kind:?}): here {}, there {}", ours.join(" "), theirs.join(" ")),
        ),
        CheckError::Russh(error) => unreachable(to, format!("the handshake fails: {error}")),
    }
}

/// The command with which a person looks at an unknown key and accepts it.
fn accept(to: &Settings, config: Option<&Path>) -> String {
    let mut words = vec!["ssh".to_owned()];
    if let Some(config) = config {
        words.extend(["-F".to_owned(), quote(&config.to_string_lossy())]);
    }
    if let Ok(target) = Target::read(&to.name) {
        if let Some(port) = target.port {
            words.extend(["-p".to_owned(), port.to_string()]);
        }
        let name = match target.user {
            Some(user) => format!("{user}@{}", target.name),
            None => target.name,
        };
        words.push(quote(&name));
    }
    words.push("true".to_owned());
    words.join(" ")
}
