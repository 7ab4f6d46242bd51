//! The closed loop: so many requests at a time, the next one goes when one ends. Each slot has a connection of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::attempt::{Turn, request, send};
use super::batch::{Batch, Shared};
use super::pool::{CLOSING_PATIENCE, Slot};
use super::requests::Request;
use super::talk::Talk;
use super::wire::Connection;

/// A slot that got no connection waits so long before its next request, or a dead server would be asked without end.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// A slot: one request after the other until the batch is over.
pub(super) async fn slot(shared: Arc<Shared>, batch: Arc<Batch>, cut: CancellationToken, mut slot: Slot) -> Slot {
    let mut free = shared.clock.nanos();
    let mut talk = None;
    while !shared.is_over(&batch)
        && let Some(number) = batch.take()
    {
        let ended = match shared.requests.turns() {
            None => request(&shared, &batch, &cut, &mut slot, number, free).await,
            Some(_) => {
                let Some(made) = next_turn(&shared, &batch, &mut talk) else { break };
                let turn = Turn { number, due: free, heard: true };
                send(&shared, &batch, &cut, &mut slot, made, turn).await
            }
        };
        let refused = ended.refused;
        // A conversation whose answer did not come is over.
        talk = talk.zip(ended.answer).map(|(mut talk, answer): (Talk, String)| {
            talk.hear(&answer);
            talk
        });
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
        if slot.as_mut().is_some_and(Connection::is_stale) {
            shared.closes.store(true, Ordering::Relaxed);
            slot = None;
        }
    }
    slot
}

/// The next turn of the conversation, or the first of a new one. `None` only where there is nothing to say at all.
fn next_turn(shared: &Shared, batch: &Batch, talk: &mut Option<Talk>) -> Option<Request> {
    let goes_on = talk.as_mut().and_then(|talk| shared.requests.turn(talk, batch.part));
    goes_on.or_else(|| {
        let mut new = Talk::new(batch.conversation(shared.requests.turns().unwrap_or(1)));
        let request = shared.requests.turn(&mut new, batch.part);
        *talk = Some(new);
        request
    })
}
