//! One request: sent, and sent again where that was asked for, within its limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Shared};
use super::exchange::Exchange;
use super::pool::Slot;
use super::requests::Request;
use super::wire::Connection;
use crate::clock::{Clock, Nanos};
use crate::measure::text::Tail;
use crate::measure::{Outcome, Timeline};

/// The wait before a request is sent again: this long, doubled each time, unless the server says how long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that asks for more patience than this does not get it.
const LONGEST_WISH: Duration = Duration::from_secs(30);

/// How a request ended, for whoever sends the next one.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Whether there was no server to send it to.
    pub(super) refused: bool,
    /// What was answered, where it was to be heard.
    pub(super) answer: Option<String>,
}

/// When a request was due, and what for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) number: u64,
    pub(super) due: Nanos,
    /// Whether its answer is heard: the next turn of its conversation needs it.
    pub(super) heard: bool,
}

/// Sends request `number`, which was due at `due`, and notes how it went.
pub(super) async fn request(
    shared: &Shared,
    batch: &Batch,
    cut: &CancellationToken,
    slot: &mut Slot,
    number: u64,
    due: Nanos,
) -> Ended {
    let made = batch.request(number, &shared.requests);
    send(shared, batch, cut, slot, made, Turn { number, due, heard: false }).await
}

/// Sends a request and notes how it went.
///
/// The moments of a request that was sent again count from its first sending: that is what its user waited.
pub(super) async fn send(
    shared: &Shared,
    batch: &Batch,
    cut: &CancellationToken,
    slot: &mut Slot,
    request: Request,
    turn: Turn,
) -> Ended {
    let Request { bytes, wanted_tokens, wanted_input_tokens } = request;
    let Turn { number, due, heard } = turn;
    let limit = tokio::time::sleep(shared.options.request_limit);
    tokio::pin!(limit);
    let fresh = || Timeline { id: number, due, wanted_tokens, wanted_input_tokens, ..Timeline::default() };
    let mut timeline = Timeline { attempts: 1, ..fresh() };
    let mut timeline = loop {
        let mut exchange = Exchange::new(timeline, shared.options.keep_text || heard)
            .at_most(shared.requests.max_tokens)
            .speaking(shared.requests.api);
        let pulse = Pulse::default();
        let stopped = tokio::select! {
            biased;
            () = carry(shared, slot, &bytes, &mut exchange, &pulse) => None,
            () = cut.cancelled() => Some((Outcome::Cancelled, shared.why_cut(batch).to_owned())),
            () = &mut limit => {
                let limit = shared.options.request_limit.as_secs_f64();
                Some((Outcome::TimedOut, format!("not done within {limit} s")))
            }
            () = pulse.silent_for(shared.options.idle_limit, &shared.clock) => {
                let limit = shared.options.idle_limit.as_secs_f64();
                Some((Outcome::TimedOut, format!("the stream was silent for {limit} s in the middle of the answer")))
            }
        };
        let ours = stopped.is_some();
        if let Some((outcome, words)) = stopped {
            exchange.stop(outcome, words, shared.clock.nanos());
        }
        let wish = exchange.retry_after();
        let ended = exchange.finish(shared.clock.nanos());
        if ours || ended.attempts > shared.options.retries || !may_be_sent_again(&ended) {
            break ended;
        }
        let pause = wish.unwrap_or(FIRST_PAUSE.saturating_mul(1 << ended.attempts.min(16).saturating_sub(1)));
        let pause = pause.min(if wish.is_some() { LONGEST_WISH } else { LONGEST_PAUSE });
        let goes_on = tokio::select! {
            biased;
            () = cut.cancelled() => false,
            () = &mut limit => false,
            () = tokio::time::sleep(pause) => true,
        };
        if !goes_on {
            break ended;
        }
        timeline = Timeline { attempts: ended.attempts + 1, sent: ended.sent, connect: ended.connect, ..fresh() };
    };
    let refused = timeline.sent.is_none() || timeline.outcome == Outcome::ConnectFailed;
    let answer = timeline.text.clone().filter(|_| heard && timeline.is_ok());
    if heard && !shared.options.keep_text {
        // As it would have been had nobody listened.
        let mut tail = Tail::default();
        for text in [timeline.reasoning_text.take(), timeline.text.take()].into_iter().flatten() {
            tail.push(&text);
        }
        timeline.tail = Some(tail);
    }
    shared.note(batch, timeline);
    Ended { refused, answer }
}

/// Whether another attempt may go better. What the client ended itself, and what the server will not like a second time
/// either, is left as it is.
fn may_be_sent_again(timeline: &Timeline) -> bool {
    match timeline.outcome {
        Outcome::Ok | Outcome::Cancelled | Outcome::TimedOut | Outcome::TlsVerify => false,
        Outcome::HttpError => timeline.http_status.is_none_or(|status| status == 408 || status >= 500),
        _ => true,
    }
}

/// Takes the slot's connection, or opens one, and has it carry the request. A connection that is not at a clean end
/// does not go back to its slot.
async fn carry(shared: &Shared, slot: &mut Slot, bytes: &[u8], exchange: &mut Exchange, pulse: &Pulse) {
    let mut kept = slot.take();
    let stale = kept.as_mut().is_some_and(Connection::is_stale);
    let mut connection = match kept {
        Some(connection) if !stale => connection,
        other => {
            // Closed right after its answer, and not for having been idle: the next one will be, too.
            if other.is_some_and(|connection| connection.idle_since.elapsed() < SOON) {
                shared.closes.store(true, Ordering::Relaxed);
            }
            match shared.open().await {
                Ok((connection, took)) => {
                    let connect = &mut exchange.timeline().connect;
                    *connect = Some(connect.unwrap_or(0) + took);
                    connection
                }
                Err(error) => return exchange.stop(error.outcome, error.words, shared.clock.nanos()),
            }
        }
    };
    let read = |exchange: &Exchange, chunks: usize, now: Nanos| {
        shared.chunks.fetch_add(chunks as u64, Ordering::Relaxed);
        if exchange.has_body() {
            pulse.0.store(now, Ordering::Relaxed);
        }
    };
    let bytes = shared.requests.at(bytes, connection.place);
    let reusable = connection.run(&bytes, exchange, &shared.clock, read).await;
    connection.served += 1;
    connection.idle_since = tokio::time::Instant::now();
    if reusable && !shared.closes.load(Ordering::Relaxed) {
        *slot = Some(connection);
    }
}

/// A server that closes a connection within this time of its last answer does not keep connections.
const SOON: Duration = Duration::from_secs(1);

/// When bytes of the body last came; 0 before the first.
#[derive(Default)]
struct Pulse(AtomicU64);

impl Pulse {
    /// Waits until a stream that has begun was silent for `limit`. Looks once in a limit, not at each read.
    async fn silent_for(&self, limit: Duration, clock: &Clock) {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let last = self.0.load(Ordering::Relaxed);
            let silence = if last == 0 { 0 } else { clock.nanos().saturating_sub(last) };
            if silence >= limit_ns {
                return;
            }
            tokio::time::sleep(Duration::from_nanos(limit_ns - silence)).await;
        }
    }
}
