//! Listeners of a journal. One that is too slow for its channel is told how much it missed; it holds nobody up.

use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::event::Entry;

/// What a listener hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// A line.
    Entry(Arc<Entry>),
    /// So many lines went by unheard: the listener was too slow. They are in the file.
    Missed(u64),
}

/// The listening end of a journal.
#[derive(Debug)]
pub struct Listener(Receiver<Arc<Entry>>);

impl Listener {
    pub(super) fn new(receiver: Receiver<Arc<Entry>>) -> Self {
        Listener(receiver)
    }

    /// Waits for the next line; `None` when there will be none.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.0.recv().await {
            Ok(entry) => Some(Heard::Entry(entry)),
            Err(RecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next line if it is there already.
    pub fn try_next(&mut self) -> Option<Heard> {
        match self.0.try_recv() {
            Ok(entry) => Some(Heard::Entry(entry)),
            Err(TryRecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }
}
