//! What the gate and the load need of a server, however it was launched: as a supervised process, a unit or a container.

use std::pin::Pin;
use std::time::Instant;

use super::{Exited, PortOwner, Process, Server};
use crate::event::{Emit, EmitError};

/// A server that somebody watches.
pub trait Watched: Send + Sync {
    /// The moment before it was launched: what a start is measured from.
    fn launched(&self) -> Instant;

    /// Waits for the end of its main process.
    fn exited(&self) -> Pin<Box<dyn Future<Output = Exited> + Send + '_>>;

    /// Who answers on a port of this host: this server, or somebody else.
    fn owner_of(&self, port: u16) -> PortOwner;

    /// The processes of this server that may live, as far as they are known here; `None` where nobody can look.
    fn processes(&self) -> Option<Vec<Process>> {
        None
    }

    /// The GPUs that are its own, by UUID.
    fn devices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Emits `process_ended`, once however often it is called.
    fn tell_exit(&self, exited: Exited, emit: &dyn Emit) -> Result<(), EmitError>;
}

impl Watched for Server {
    fn launched(&self) -> Instant {
        Server::launched(self)
    }

    fn exited(&self) -> Pin<Box<dyn Future<Output = Exited> + Send + '_>> {
        Box::pin(Server::exited(self))
    }

    fn owner_of(&self, port: u16) -> PortOwner {
        Server::owner_of(self, port)
    }

    fn processes(&self) -> Option<Vec<Process>> {
        Server::processes(self)
    }

    fn devices(&self) -> Vec<String> {
        Server::devices(self)
    }

    fn tell_exit(&self, exited: Exited, emit: &dyn Emit) -> Result<(), EmitError> {
        Server::tell_exit(self, exited, emit)
    }
}
