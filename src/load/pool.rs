//! Connections of a step: opened and warmed by a GET before the clock starts, so that a connection's cost is its own
//! figure and never part of a time to first token.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;

use super::LoadError;
use super::batch::Shared;
use super::wire::{Connection, NoConnection};
use crate::clock::Nanos;
use crate::measure::Outcome;

/// A connection, and the GET that warms it, may take this long before the clock starts.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
const WARMING_LIMIT: Duration = Duration::from_secs(2);
/// So many connections are opened at once: more would overflow a server's queue and wait for a second SYN.
const OPENING_AT_ONCE: usize = 64;
/// How long a server may take to close a connection whose first answer has just ended.
pub(super) const CLOSING_PATIENCE: Duration = Duration::from_millis(5);

/// A place for a connection.
pub(super) type Slot = Option<Connection>;

impl Shared {
    /// Opens a connection, and says how long that took.
    pub(super) async fn open(&self) -> Result<(Connection, Nanos), NoConnection> {
        let began = self.clock.nanos();
        let fail = |outcome, words: String| NoConnection { outcome, words };
        let dialer = self.dialer.get();
        let dialer = dialer.ok_or_else(|| fail(Outcome::ConnectFailed, "the host was not looked up".to_owned()))?;
        let opened = tokio::time::timeout(OPENING_LIMIT, dialer.open()).await;
        let too_slow = |_| fail(Outcome::TimedOut, format!("not connected within {} s", OPENING_LIMIT.as_secs()));
        let connection = opened.map_err(too_slow)??;
        Ok((connection, self.clock.nanos() - began))
    }

    /// Opens and warms a connection for each of `count` slots.
    pub(super) async fn open_all(self: &Arc<Self>, gets: &[Bytes], count: u32) -> (Vec<Slot>, Vec<Nanos>) {
        let opening = futures_util::stream::iter(0..count).map(|_| self.open_warm(gets));
        let opened: Vec<_> = opening.buffer_unordered(OPENING_AT_ONCE).collect().await;
        let connects = opened.iter().flatten().map(|(_, took)| *took).collect();
        let mut slots: Vec<Slot> = opened.into_iter().map(|opened| opened.map(|(connection, _)| connection)).collect();
        // A server that closes after each answer without saying so does it in a moment: better seen now than by a request.
        tokio::time::sleep(CLOSING_PATIENCE).await;
        for slot in &mut slots {
            if slot.as_mut().is_some_and(Connection::is_stale) {
                self.closes.store(true, Ordering::Relaxed);
                *slot = None;
            }
        }
        self.reopen(&mut slots).await;
        (slots, connects)
    }

    /// Opens the connections that are missing or that the server has closed since they were used.
    pub(super) async fn reopen(&self, slots: &mut [Slot]) {
        for slot in slots {
            if slot.as_mut().is_some_and(|connection| !connection.is_stale()) {
                continue;
            }
            // What cannot be opened here is tried again, and recorded, by the request that needs it.
            *slot = self.open().await.ok().map(|(connection, _)| connection);
            if slot.is_none() {
                break;
            }
        }
    }

    async fn open_warm(&self, gets: &[Bytes]) -> Option<(Connection, Nanos)> {
        let (mut connection, took) = self.open().await.ok()?;
        let get = gets.get(connection.place)?;
        let warm = tokio::time::timeout(WARMING_LIMIT, connection.warm(get)).await;
        if warm.unwrap_or(false) {
            return Some((connection, took));
        }
        // The answer was odd or ended the connection: a fresh one does as well, only colder.
        self.open().await.ok()
    }
}

/// Raises the soft limit of open files where so many connections need it.
pub fn allow_open_files(connections: u32) -> Result<(), LoadError> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    // Beside the connections: the journal, logs, the runtime.
    let wanted = u64::from(connections) + 256;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= wanted {
        return Ok(());
    }
    if hard < wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_err() {
        return Err(LoadError::OpenFiles { wanted: connections, limit: hard });
    }
    Ok(())
}
