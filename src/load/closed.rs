//! The closed loop: so many requests at a time, the next one goes when one ends. Each slot has a connection of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::attempt::request;
use super::batch::{Batch, Shared};
use super::pool::{CLOSING_PATIENCE, Slot};
use super::wire::Connection;

/// A slot that got no connection waits so long before its next request, or a dead server would be asked without end.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// A slot: one request after the other until the batch is over.
pub(super) async fn slot(shared: Arc<Shared>, batch: Arc<Batch>, cut: CancellationToken, mut slot: Slot) -> Slot {
    let mut free = shared.clock.nanos();
    while !shared.is_over(&batch)
        && let Some(number) = batch.take()
    {
        let refused = request(&shared, &batch, &cut, &mut slot, number, free).await;
        // Our own waiting below is part of how long the next request was queued.
        free = shared.clock.nanos();
        let patience = match &slot {
            Some(connection) if connection.served == 1 => CLOSING_PATIENCE,
            None if refused => PAUSE_AFTER_REFUSAL,
            _ => continue,
        };
        tokio::select! {
            () = cut.cancelled() => {}
            () = tokio::time::sleep(patience) => {}
        }
        if slot.as_ref().is_some_and(Connection::is_stale) {
            shared.closes.store(true, Ordering::Relaxed);
            slot = None;
        }
    }
    slot
}
