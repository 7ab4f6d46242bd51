//! The connections to one host: made when they are needed, made anew when they were lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit};

use super::connection::Connection;
use crate::host::HostError;

/// With eight sessions each, that many connections are enough for anything that orch does at once.
const CONNECTIONS: usize = 4;
/// How often a server may refuse a session while others are open.
const REFUSALS: u32 = 60;
/// How long is waited after a refusal, times how many there were.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Pool {
    connections: Mutex<Vec<Arc<Connection>>>,
}

/// A session that is open, and its place.
pub(super) struct Session {
    pub(super) channel: russh::Channel<russh::client::Msg>,
    pub(super) connection: Arc<Connection>,
    pub(super) place: OwnedSemaphorePermit,
}

impl Pool {
    /// A connection, whichever.
    pub(super) async fn any<F>(&self, connect: impl Fn() -> F) -> Result<Arc<Connection>, HostError>
    where
        F: Future<Output = Result<Connection, HostError>>,
    {
        // Whoever comes while the first connection is made waits for it here.
        let mut connections = self.connections.lock().await;
        connections.retain(|connection| !connection.is_closed());
        if let Some(connection) = connections.first() {
            return Ok(connection.clone());
        }
        let connection = Arc::new(connect().await?);
        connections.push(connection.clone());
        Ok(connection)
    }

    /// Leaves a connection aside that turned out to have ended.
    pub(super) async fn forget(&self, connection: &Arc<Connection>) {
        self.connections.lock().await.retain(|other| !Arc::ptr_eq(other, connection));
    }

    /// A place for a session, on a new connection when the others are full.
    async fn place<F>(&self, connect: impl Fn() -> F) -> Result<(Arc<Connection>, OwnedSemaphorePermit), HostError>
    where
        F: Future<Output = Result<Connection, HostError>>,
    {
        loop {
            let mut connections = self.connections.lock().await;
            connections.retain(|connection| !connection.is_closed());
            for connection in connections.iter() {
                if let Ok(place) = connection.sessions.clone().try_acquire_owned() {
                    return Ok((connection.clone(), place));
                }
            }
            if connections.len() < CONNECTIONS {
                connections.push(Arc::new(connect().await?));
                continue;
            }
            // The first place that gets free.
            let places = connections.iter().map(|connection| {
                let connection = connection.clone();
                Box::pin(async move {
                    let place = connection.sessions.clone().acquire_owned().await;
                    (connection, place)
                })
            });
            let free = futures_util::future::select_all(places.collect::<Vec<_>>());
            drop(connections);
            let ((connection, place), ..) = free.await;
            if let Ok(place) = place {
                return Ok((connection, place));
            }
        }
    }

    /// An open session. Nothing has been asked of the host yet, so a connection that turns out to be gone is made anew.
    pub(super) async fn session<F>(&self, connect: impl Fn() -> F) -> Result<Session, HostError>
    where
        F: Future<Output = Result<Connection, HostError>>,
    {
        let (mut refusals, mut dead) = (0, 0);
        loop {
            let (connection, place) = self.place(&connect).await?;
            match connection.session().await {
                Ok(channel) => return Ok(Session { channel, connection, place }),
                Err(russh::Error::ChannelOpenFailure(why)) => {
                    if connection.is_idle() || refusals >= REFUSALS {
                        let said = format!("its SSH server opens no session ({why:?})");
                        return Err(HostError::NoShell { host: connection.host.clone(), said });
                    }
                    // It allows fewer than we thought: this place is none.
                    place.forget();
                    refusals += 1;
                    tokio::time::sleep(PAUSE * refusals).await;
                }
                Err(error) => {
                    dead += 1;
                    if dead > CONNECTIONS {
                        return Err(connection.lost(&error));
                    }
                    // It may not know yet that it has ended.
                    self.forget(&connection).await;
                }
            }
        }
    }
}
