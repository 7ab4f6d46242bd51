//! One connection to a host, logged in.

use std::sync::{Arc, Mutex};

use russh::client::{Handle, Msg};
use russh::{Channel, Error};
use tokio::sync::Semaphore;

use super::checker::Checker;
use crate::host::HostError;
use crate::host::pipe::lost;

/// `sshd` allows ten sessions on one connection unless it is told otherwise, and the place of one is free only when its
/// last process has closed its output. Two places stay for ending commands that nobody waits for.
const SESSIONS: usize = 8;

/// What ended a connection, as far as anybody said.
pub(super) type Ending = Arc<Mutex<Option<String>>>;

/// A connection.
pub(super) struct Connection {
    /// The name of the host, as it was asked for.
    pub(super) host: String,
    handle: Handle<Checker>,
    ending: Ending,
    pub(super) sessions: Arc<Semaphore>,
    /// The connection that this one goes through, which must not end before it.
    _through: Option<Arc<Connection>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("host", &self.host).field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(host: String, handle: Handle<Checker>, ending: Ending, through: Option<Arc<Connection>>) -> Self {
        Connection { host, handle, ending, sessions: Arc::new(Semaphore::new(SESSIONS)), _through: through }
    }

    /// Whether it has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Whether no session is open.
    pub(super) fn is_idle(&self) -> bool {
        self.sessions.available_permits() + 1 >= SESSIONS
    }

    pub(super) async fn session(&self) -> Result<Channel<Msg>, Error> {
        self.handle.channel_open_session().await
    }

    pub(super) async fn to_tcp(&self, host: &str, port: u16) -> Result<Channel<Msg>, Error> {
        self.handle.channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0).await
    }

    pub(super) async fn to_unix(&self, path: &str) -> Result<Channel<Msg>, Error> {
        self.handle.channel_open_direct_streamlocal(path).await
    }

    /// The error for the end of this connection: what was said of it is better than where it was noticed.
    pub(super) fn lost(&self, noticed: &dyn std::fmt::Display) -> HostError {
        let said = self.ending.lock().ok().and_then(|ending| ending.clone());
        lost(&self.host, &said.unwrap_or_else(|| noticed.to_string()))
    }
}
