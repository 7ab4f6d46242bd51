//! What all requests of a step see, and one part of a step: the warm-up, or what is measured.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::requests::{Request, Requests};
use super::settle::{Need, Settling};
use super::wire::Dialers;
use super::{Options, Part};
use crate::clock::Clock;
use crate::measure::{Settled, Timeline};

/// What all requests of a step see.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) requests: Requests,
    pub(super) dialer: OnceLock<Dialers>,
    /// Ends everything in flight and lets nothing new begin.
    pub(super) halt: CancellationToken,
    pub(super) options: Options,
    /// Whether the server was seen to close connections between requests without saying so.
    pub(super) closes: AtomicBool,
    /// Generating chunks so far.
    pub(super) chunks: AtomicU64,
    /// How many requests of the step have ended.
    pub(super) ended: AtomicU64,
    /// Measured requests that were cut off after the grace.
    pub(super) outlived_grace: AtomicU64,
    pub(super) gave_up: OnceLock<String>,
    finished: Mutex<Vec<Timeline>>,
}

/// One part of a step.
pub(super) struct Batch {
    pub(super) part: Part,
    next: AtomicU64,
    conversations: AtomicU64,
    pub(super) requests: Option<u64>,
    pub(super) end: Option<Instant>,
    /// A warm-up that lasts until the server is warm.
    settling: Option<Mutex<Settling>>,
    /// Whether it is.
    settled: AtomicBool,
}

impl Shared {
    pub(super) fn new(clock: Clock, requests: Requests, halt: CancellationToken, options: Options) -> Self {
        Shared {
            clock,
            requests,
            dialer: OnceLock::new(),
            halt,
            options,
            closes: false.into(),
            chunks: 0.into(),
            ended: 0.into(),
            outlived_grace: 0.into(),
            gave_up: OnceLock::new(),
            finished: Mutex::new(Vec::new()),
        }
    }

    fn finished(&self) -> MutexGuard<'_, Vec<Timeline>> {
        self.finished.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The requests that have ended since the last call.
    pub(super) fn take_finished(&self) -> Vec<Timeline> {
        std::mem::take(&mut *self.finished())
    }

    /// Notes a request that has ended. The first one of a step may already say that none will be answered.
    pub(super) fn note(&self, batch: &Batch, timeline: Timeline) {
        let first = self.ended.fetch_add(1, Ordering::Relaxed) == 0;
        // No such path, not allowed: the next request would be answered in the same way.
        if let Some(status @ (401 | 403 | 404 | 405 | 501)) = timeline.http_status
            && first
        {
            let words = timeline.error.as_deref().unwrap_or_default();
            let _ = self.gave_up.set(format!("{} answered {status}: {words}", self.requests.url));
        }
        batch.ended(&timeline);
        self.finished().push(timeline);
    }

    /// Why a request is being cut off; one that outlived the grace is counted.
    pub(super) fn why_cut(&self, batch: &Batch) -> &'static str {
        // The grace ends the requests of its batch alone, everything else halts the step.
        if self.halt.is_cancelled() {
            return "ended by an interrupt";
        }
        if batch.part == Part::Measured {
            self.outlived_grace.fetch_add(1, Ordering::Relaxed);
        }
        "still running when the grace after the step's end was over"
    }

    /// Whether no further request of the batch may begin.
    pub(super) fn is_over(&self, batch: &Batch) -> bool {
        self.halt.is_cancelled()
            || self.gave_up.get().is_some()
            || batch.settled.load(Ordering::Relaxed)
            || batch.end.is_some_and(|end| Instant::now() >= end)
    }
}

impl Batch {
    pub(super) fn new(part: Part, requests: Option<u64>, end: Option<Instant>) -> Self {
        Batch { part, next: 0.into(), conversations: 0.into(), requests, end, settling: None, settled: false.into() }
    }

    /// A warm-up that goes on until the server is warm, at most until `end`.
    pub(super) fn until_settled(settling: Settling, end: Instant) -> Self {
        Batch { settling: Some(Mutex::new(settling)), ..Batch::new(Part::Warmup, None, Some(end)) }
    }

    /// The number of the next request, if there is one.
    pub(super) fn take(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.requests.is_none_or(|requests| number < requests).then_some(number)
    }

    /// The number of the next conversation, each of so many turns. Rounds of a warm-up have the same ones.
    pub(super) fn conversation(&self, turns: u64) -> u64 {
        let number = self.conversations.fetch_add(1, Ordering::Relaxed);
        match self.requests_a_round() {
            Some(requests) => number % (requests / turns.max(1)).max(1),
            None => number,
        }
    }

    /// Request `number`.
    pub(super) fn request(&self, number: u64, requests: &Requests) -> Request {
        match (self.part, &self.settling) {
            (Part::Measured, _) => requests.measured(number),
            (Part::Warmup, None) => requests.warmup(number),
            (Part::Warmup, Some(settling)) => requests.warmup(lock(settling).place(number)),
        }
    }

    /// Requests of a round of a warm-up by convergence.
    pub(super) fn requests_a_round(&self) -> Option<u64> {
        self.settling.as_ref().map(|settling| lock(settling).requests_a_round())
    }

    /// How a warm-up by convergence stands.
    pub(super) fn settled(&self) -> Option<Settled> {
        self.settling.as_ref().map(|settling| lock(settling).settled())
    }

    fn ended(&self, timeline: &Timeline) {
        if let Some(settling) = &self.settling
            && lock(settling).ended(timeline) == Need::NoMore
        {
            self.settled.store(true, Ordering::Relaxed);
        }
    }
}

fn lock(settling: &Mutex<Settling>) -> MutexGuard<'_, Settling> {
    settling.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
