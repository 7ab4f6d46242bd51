//! A command on a channel of its own: started, fed, read to its end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::connection::Connection;
use super::pool::Session;
use super::tunnel::Tunnel;
use crate::host::frame::{self, Frame, Framed};
use crate::host::{End, HostError, Output, Words};

/// How long the end of a command is waited for that nobody waits for any more.
const ENDING: Duration = Duration::from_secs(10);

/// A command that the server has taken.
pub(super) struct Started {
    read: ChannelReadHalf,
    write: ChannelWriteHalf<Msg>,
    connection: Arc<Connection>,
    place: OwnedSemaphorePermit,
}

/// Starts a command. From here on nobody knows whether it ran if the connection is lost.
pub(super) async fn start(session: Session, line: &str) -> Result<Started, HostError> {
    let Session { channel, connection, place } = session;
    let (read, write) = channel.split();
    write.exec(true, line).await.map_err(|error| connection.lost(&error))?;
    Ok(Started { read, write, connection, place })
}

/// All that came of a command.
struct All {
    out: Framed,
    err: Framed,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: Option<End>,
    refused: bool,
}

impl Started {
    pub(super) fn host(&self) -> &str {
        &self.connection.host
    }

    /// Its standard streams as a connection.
    pub(super) fn into_tunnel(self) -> Tunnel {
        Tunnel::of_halves(self.read, self.write, self.connection, Some(self.place))
    }

    /// Gives it its input and waits for its end. When nobody waits any more, the command is killed, as it would be here.
    pub(super) async fn finish(self, frame: &Frame, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        let Started { read, write, connection, place } = self;
        let (tell, mut told) = oneshot::channel();
        let all = All {
            out: frame.reader(),
            err: frame.reader(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            end: None,
            refused: false,
        };
        // A channel that nobody reads holds up all the others of its connection, so a task reads whatever happens.
        tokio::spawn(drain(read, all, tell, connection.clone(), place));
        let feed = async {
            // A command need not read what it is given, and may have ended.
            if !stdin.is_empty() {
                let _ = write.data_bytes(stdin).await;
            }
            let _ = write.eof().await;
        };
        let all = tokio::select! {
            biased;
            all = &mut told => all,
            () = feed => told.await,
        };
        let Ok(all) = all else { return Err(connection.lost(&"the runtime ends")) };
        if all.refused {
            return Err(HostError::NoShell {
                host: connection.host.clone(),
                said: "its SSH server runs no commands".into(),
            });
        }
        if all.out.number() == Some(0) {
            return Err(frame::not_there(words));
        }
        let Some(end) = all.end else { return Err(connection.lost(&"it ended while a command ran")) };
        if !all.out.began() {
            return Err(frame::no_shell(&connection.host, &all.out, &all.err));
        }
        Ok(Output { end, stdout: all.stdout.into(), stderr: all.stderr.into() })
    }
}

/// Reads a channel to its end. The status comes before the last output of a command that left something running, and after
/// it otherwise, so only the end of the channel is the end.
async fn drain(
    mut read: ChannelReadHalf,
    mut all: All,
    mut tell: oneshot::Sender<All>,
    connection: Arc<Connection>,
    place: OwnedSemaphorePermit,
) {
    let (mut abandoned, mut killed) = (false, false);
    loop {
        let message = tokio::select! {
            message = read.wait() => message,
            () = tell.closed(), if !abandoned => {
                abandoned = true;
                kill_if_known(&all, &mut killed, &connection);
                continue;
            }
            () = tokio::time::sleep(ENDING), if killed => None,
        };
        let Some(message) = message else { break };
        match message {
            ChannelMsg::Data { data } => {
                let bytes = all.out.feed(data);
                if !abandoned {
                    all.stdout.extend_from_slice(&bytes);
                }
            }
            ChannelMsg::ExtendedData { data, .. } => {
                let bytes = all.err.feed(data);
                if !abandoned {
                    all.stderr.extend_from_slice(&bytes);
                }
            }
            ChannelMsg::ExitStatus { exit_status } => all.end = Some(End::Code(exit_status as i32)),
            ChannelMsg::ExitSignal { signal_name, .. } => all.end = Some(End::Signal(number(&signal_name))),
            ChannelMsg::Failure => all.refused = true,
            _ => {}
        }
        if abandoned {
            kill_if_known(&all, &mut killed, &connection);
        }
    }
    drop(place);
    // Nobody may be waiting.
    let _ = tell.send(all);
}

/// Kills an abandoned command as soon as its pid is known.
fn kill_if_known(all: &All, killed: &mut bool, connection: &Arc<Connection>) {
    let Some(pid) = all.out.number().filter(|pid| *pid > 0 && !*killed && all.end.is_none()) else { return };
    *killed = true;
    let connection = connection.clone();
    tokio::spawn(async move {
        // Signals of the protocol are not heeded by every server, so another command does it.
        let kill = async {
            let channel = connection.session().await.ok()?;
            let (mut read, write) = channel.split();
            write.exec(false, format!("kill -KILL {pid}")).await.ok()?;
            while read.wait().await.is_some() {}
            Some(())
        };
        let _ = tokio::time::timeout(ENDING, kill).await;
    });
}

/// The number that Linux gives a signal of the protocol.
fn number(signal: &Sig) -> i32 {
    match signal {
        Sig::ABRT => 6,
        Sig::ALRM => 14,
        Sig::FPE => 8,
        Sig::HUP => 1,
        Sig::ILL => 4,
        Sig::INT => 2,
        Sig::KILL => 9,
        Sig::PIPE => 13,
        Sig::QUIT => 3,
        Sig::SEGV => 11,
        Sig::TERM => 15,
        Sig::USR1 => 10,
        Sig::Custom(name) => match name.trim_end_matches("@openssh.com") {
            "USR2" => 12,
            "BUS" => 7,
            "TRAP" => 5,
            "XCPU" => 24,
            "XFSZ" => 25,
            "SYS" => 31,
            _ => 0,
        },
    }
}
