//! The closed loop: so many requests at a time, the next one goes when one ends.
//!
//! Each slot has a connection of its own, opened and warmed by a GET before the clock starts, so that a connection's
//! cost is its own figure and never part of a time to first token.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exchange::Exchange;
use super::requests::{self, Requests};
use super::running::{Report, WarmedUp};
use super::url::Endpoint;
use super::wire::{Connection, Dialer, NoConnection};
use super::{LoadError, Measured, Options, Part, Target};
use crate::clock::{Clock, Nanos};
use crate::measure::{Outcome, Timeline};
use crate::render::Step;

/// A connection, and the GET that warms it, may take this long before the clock starts.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
const WARMING_LIMIT: Duration = Duration::from_secs(2);
/// So many connections are opened at once: more would overflow a server's queue and wait for a second SYN.
const OPENING_AT_ONCE: usize = 64;
/// How long a server may take to close a connection whose first answer has just ended.
const CLOSING_PATIENCE: Duration = Duration::from_millis(5);
/// A slot that got no connection waits so long before its next request, or a dead server would be asked without end.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// A step, ready to be run on its own thread.
pub(super) struct Closed {
    shared: Shared,
    get: Bytes,
    endpoint: Endpoint,
    concurrency: u32,
    warmup: u64,
    requests: Option<u64>,
    duration: Option<Duration>,
    grace: Duration,
    interrupt: CancellationToken,
    reports: UnboundedSender<Report>,
    /// The caller's word that the measured requests may be sent.
    may_go: oneshot::Receiver<()>,
}

/// What all slots see.
struct Shared {
    clock: Clock,
    requests: Requests,
    dialer: OnceLock<Dialer>,
    /// Ends everything in flight and lets nothing new begin.
    halt: CancellationToken,
    request_limit: Duration,
    keep_text: bool,
    /// Whether the server was seen to close connections between requests without saying so.
    closes: AtomicBool,
    chunks: AtomicU64,
    /// How many requests of the step have ended.
    ended: AtomicU64,
    /// Measured requests that were cut off after the grace.
    outlived_grace: AtomicU64,
    gave_up: OnceLock<String>,
    finished: Mutex<Vec<Timeline>>,
}

/// One part of the step: the warm-up, or what is measured.
struct Batch {
    part: Part,
    next: AtomicU64,
    requests: Option<u64>,
    end: Option<Instant>,
}

type Slots = Vec<Option<Connection>>;

impl Closed {
    #[expect(clippy::too_many_arguments, reason = "the one place where a step is taken apart")]
    pub(super) fn new(
        target: &Target,
        step: &Step,
        concurrency: u32,
        clock: &Clock,
        interrupt: &CancellationToken,
        halt: CancellationToken,
        options: &Options,
        reports: UnboundedSender<Report>,
        may_go: oneshot::Receiver<()>,
    ) -> Result<Self, LoadError> {
        let refuse = |why| LoadError::Step { step: step.name.clone(), why };
        if concurrency == 0 {
            return Err(refuse("its concurrency is 0"));
        }
        let duration = step.load.duration_s.map(Duration::try_from_secs_f64).transpose();
        let duration = duration.map_err(|_| refuse("its duration is no span of time"))?;
        if step.load.requests.is_none() && duration.is_none() {
            return Err(refuse("it has neither a number of requests nor a duration"));
        }
        if step.load.requests == Some(0) || duration.is_some_and(|duration| duration.is_zero()) {
            return Err(refuse("it would measure nothing"));
        }
        let endpoint = Endpoint::parse(&target.base_url)?;
        let requests = Requests::build(target, &endpoint, &step.workload, &step.name, options.ask_usage)?;
        let get = requests::get(&endpoint.path("/v1/models"), &endpoint, &target.headers)?;
        Ok(Closed {
            shared: Shared {
                clock: clock.clone(),
                requests,
                dialer: OnceLock::new(),
                halt,
                request_limit: options.request_limit,
                keep_text: options.keep_text,
                closes: false.into(),
                chunks: 0.into(),
                ended: 0.into(),
                outlived_grace: 0.into(),
                gave_up: OnceLock::new(),
                finished: Mutex::new(Vec::new()),
            },
            get,
            endpoint,
            concurrency,
            warmup: step.load.warmup.unwrap_or(u64::from(concurrency).max(2)),
            requests: step.load.requests,
            duration,
            grace: options.grace,
            interrupt: interrupt.clone(),
            reports,
            may_go,
        })
    }

    /// Runs the step on this thread.
    pub(super) fn run(self) -> Result<(), LoadError> {
        allow_open_files(self.concurrency)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadError::Thread)?;
        runtime.block_on(self.drive())
    }

    async fn drive(self) -> Result<(), LoadError> {
        let Closed { shared, get, endpoint, concurrency, warmup, requests, duration, grace, .. } = self;
        let Closed { interrupt, reports, may_go, .. } = self;
        let shared = Arc::new(shared);
        let opened = shared.clock.nanos();
        let dialer = Dialer::new(&endpoint).await?;
        let _ = shared.dialer.set(dialer);
        let mut driver = Driver { shared: shared.clone(), interrupt, reports, grace };
        // With nobody listening any more there is nobody to tell, and `halt` ends the step.
        driver.tell(Report::Part { part: Part::Warmup, requests: Some(warmup), duration_s: None });
        let (slots, connects) = tokio::select! {
            biased;
            () = shared.halt.cancelled() => Default::default(),
            opened = open_all(&shared, &get, concurrency) => opened,
        };
        let batch = Batch { part: Part::Warmup, next: 0.into(), requests: Some(warmup), end: None };
        let slots = if warmup > 0 { driver.run(batch, slots).await } else { slots };
        let s = (shared.clock.nanos() - opened) as f64 / 1e9;
        driver.tell(Report::WarmedUp(WarmedUp { requests: shared.ended.load(Ordering::Relaxed), s }));
        // A caller that is gone says nothing more, and has cancelled `halt`.
        let _ = may_go.await;

        let survived = !driver.is_interrupted() && shared.gave_up.get().is_none();
        if survived || shared.gave_up.get().is_some() {
            let duration_s = duration.map(|duration| duration.as_secs_f64());
            driver.tell(Report::Part { part: Part::Measured, requests, duration_s });
        }
        let began = shared.clock.nanos();
        if survived {
            let end = duration.map(|duration| Instant::now() + duration);
            driver.run(Batch { part: Part::Measured, next: 0.into(), requests, end }, slots).await;
        }
        let measured = Measured {
            opened,
            connects,
            began,
            ended: shared.clock.nanos(),
            interrupted: driver.is_interrupted(),
            outlived_grace: shared.outlived_grace.load(Ordering::Relaxed),
            gave_up: shared.gave_up.get().cloned(),
            ..Measured::default()
        };
        driver.tell(Report::Over(Box::new(measured)));
        Ok(())
    }
}

/// Starts batches and watches over them.
struct Driver {
    shared: Arc<Shared>,
    interrupt: CancellationToken,
    reports: UnboundedSender<Report>,
    grace: Duration,
}

impl Driver {
    fn tell(&mut self, report: Report) {
        if self.reports.send(report).is_err() {
            self.shared.halt.cancel();
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_cancelled() || self.shared.halt.is_cancelled()
    }

    /// Runs a batch to its end and gives the connections back. In-flight requests that outlive the grace are cut.
    async fn run(&mut self, batch: Batch, slots: Slots) -> Slots {
        let began = Instant::now();
        let batch = Arc::new(batch);
        let cut = self.shared.halt.child_token();
        let last = batch.end.map(|end| end + self.grace);
        let mut tasks = JoinSet::new();
        for connection in slots {
            tasks.spawn(slot(self.shared.clone(), batch.clone(), cut.clone(), connection));
        }
        let mut kept = Slots::new();
        let mut seconds = tokio::time::interval_at(began + Duration::from_secs(1), Duration::from_secs(1));
        seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut told = (began, self.shared.chunks.load(Ordering::Relaxed));
        loop {
            tokio::select! {
                ended = tasks.join_next() => match ended {
                    None => break,
                    Some(Ok(connection)) => kept.push(connection),
                    // A fault of ours: it ends the thread, and the step with an error.
                    Some(Err(error)) => {
                        if let Ok(panic) = error.try_into_panic() {
                            std::panic::resume_unwind(panic);
                        }
                    }
                },
                now = seconds.tick() => self.report(began, now, &mut told),
                () = sleep_until(last), if !cut.is_cancelled() => cut.cancel(),
            }
        }
        self.report(began, Instant::now(), &mut told);
        kept
    }

    fn report(&mut self, began: Instant, now: Instant, told: &mut (Instant, u64)) {
        let chunks = self.shared.chunks.load(Ordering::Relaxed);
        let span = now.saturating_duration_since(told.0).as_secs_f64();
        // A rate over a sliver of a second is noise.
        let chunks_per_s = (span >= 0.1).then(|| (chunks - told.1) as f64 / span);
        *told = (now, chunks);
        let finished = std::mem::take(&mut *self.shared.finished());
        let elapsed_s = now.saturating_duration_since(began).as_secs_f64();
        self.tell(Report::Second { elapsed_s, chunks_per_s, finished });
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

impl Shared {
    fn finished(&self) -> MutexGuard<'_, Vec<Timeline>> {
        self.finished.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notes a request that has ended. The first one of a step may already say that none will be answered.
    fn note(&self, timeline: Timeline) {
        let first = self.ended.fetch_add(1, Ordering::Relaxed) == 0;
        // No such path, not allowed: the next request would be answered in the same way.
        if let Some(status @ (401 | 403 | 404 | 405 | 501)) = timeline.http_status
            && first
        {
            let words = timeline.error.as_deref().unwrap_or_default();
            let _ = self.gave_up.set(format!("{} answered {status}: {words}", self.requests.url));
        }
        self.finished().push(timeline);
    }

    /// Why a request is being cut off; one that outlived the grace is counted.
    fn why_cut(&self, batch: &Batch) -> &'static str {
        // The grace ends the requests of its batch alone, everything else halts the step.
        if self.halt.is_cancelled() {
            return "ended by an interrupt";
        }
        if batch.part == Part::Measured {
            self.outlived_grace.fetch_add(1, Ordering::Relaxed);
        }
        "still running when the grace after the step's end was over"
    }

    fn is_over(&self, batch: &Batch) -> bool {
        self.halt.is_cancelled() || self.gave_up.get().is_some() || batch.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Opens a connection, and says how long that took.
    async fn open(&self) -> Result<(Connection, Nanos), NoConnection> {
        let began = self.clock.nanos();
        let fail = |outcome, words: String| NoConnection { outcome, words };
        let dialer = self.dialer.get();
        let dialer = dialer.ok_or_else(|| fail(Outcome::ConnectFailed, "the host was not looked up".to_owned()))?;
        let opened = tokio::time::timeout(OPENING_LIMIT, dialer.open()).await;
        let too_slow = |_| fail(Outcome::TimedOut, format!("not connected within {} s", OPENING_LIMIT.as_secs()));
        let connection = opened.map_err(too_slow)??;
        Ok((connection, self.clock.nanos() - began))
    }
}

impl Batch {
    /// The number of the next request, if there is one.
    fn take(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.requests.is_none_or(|requests| number < requests).then_some(number)
    }
}

/// Opens and warms a connection for each slot.
async fn open_all(shared: &Arc<Shared>, get: &Bytes, concurrency: u32) -> (Slots, Vec<Nanos>) {
    let opening = futures_util::stream::iter(0..concurrency).map(|_| open_warm(shared, get));
    let opened: Vec<_> = opening.buffer_unordered(OPENING_AT_ONCE).collect().await;
    let connects = opened.iter().flatten().map(|(_, took)| *took).collect();
    let mut slots: Slots = opened.into_iter().map(|opened| opened.map(|(connection, _)| connection)).collect();
    // A server that closes after each answer without saying so does it in a moment: better seen now than by a request.
    tokio::time::sleep(CLOSING_PATIENCE).await;
    for slot in &mut slots {
        if slot.as_ref().is_some_and(Connection::is_stale) {
            shared.closes.store(true, Ordering::Relaxed);
            *slot = None;
        }
    }
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        // What cannot be opened here is tried again, and recorded, by the request that needs it.
        *slot = shared.open().await.ok().map(|(connection, _)| connection);
        if slot.is_none() {
            break;
        }
    }
    (slots, connects)
}

async fn open_warm(shared: &Shared, get: &Bytes) -> Option<(Connection, Nanos)> {
    let (mut connection, took) = shared.open().await.ok()?;
    let warm = tokio::time::timeout(WARMING_LIMIT, connection.warm(get)).await;
    if warm.unwrap_or(false) {
        return Some((connection, took));
    }
    // The answer was odd or ended the connection: a fresh one does as well, only colder.
    shared.open().await.ok()
}

/// A slot: one request after the other until the batch is over.
async fn slot(
    shared: Arc<Shared>,
    batch: Arc<Batch>,
    cut: CancellationToken,
    mut connection: Option<Connection>,
) -> Option<Connection> {
    let mut free = shared.clock.nanos();
    while !shared.is_over(&batch)
        && let Some(number) = batch.take()
    {
        let refused = request(&shared, &batch, &cut, &mut connection, number, free).await;
        // Our own waiting below is part of how long the next request was queued.
        free = shared.clock.nanos();
        let patience = match &connection {
            Some(connection) if connection.served == 1 => CLOSING_PATIENCE,
            None if refused => PAUSE_AFTER_REFUSAL,
            _ => continue,
        };
        tokio::select! {
            () = cut.cancelled() => {}
            () = tokio::time::sleep(patience) => {}
        }
        if connection.as_ref().is_some_and(Connection::is_stale) {
            shared.closes.store(true, Ordering::Relaxed);
            connection = None;
        }
    }
    connection
}

/// Sends the request that was due when its slot became free, and notes how it went; returns whether there was no server
/// to send it to.
async fn request(
    shared: &Shared,
    batch: &Batch,
    cut: &CancellationToken,
    connection: &mut Option<Connection>,
    number: u64,
    due: Nanos,
) -> bool {
    let (bytes, wanted) = match batch.part {
        Part::Warmup => (shared.requests.warmup(number), shared.requests.wanted_tokens),
        Part::Measured => (shared.requests.measured(number), shared.requests.wanted_tokens),
    };
    let timeline = Timeline { id: number, due, attempts: 1, wanted_tokens: wanted, ..Timeline::default() };
    let mut exchange = Exchange::new(timeline, shared.keep_text).at_most(shared.requests.max_tokens);
    let stopped = tokio::select! {
        biased;
        () = carry(shared, connection, &bytes, &mut exchange) => None,
        () = cut.cancelled() => Some((Outcome::Cancelled, shared.why_cut(batch).to_owned())),
        () = tokio::time::sleep(shared.request_limit) => {
            Some((Outcome::TimedOut, format!("not done within {} s", shared.request_limit.as_secs_f64())))
        }
    };
    if let Some((outcome, words)) = stopped {
        exchange.stop(outcome, words, shared.clock.nanos());
    }
    let timeline = exchange.finish(shared.clock.nanos());
    let refused = timeline.sent.is_none() || timeline.outcome == Outcome::ConnectFailed;
    shared.note(timeline);
    refused
}

/// Takes the slot's connection, or opens one, and has it carry the request. A connection that is not at a clean end
/// does not go back to its slot.
async fn carry(shared: &Shared, slot: &mut Option<Connection>, bytes: &[u8], exchange: &mut Exchange) {
    let mut connection = match slot.take() {
        Some(connection) if !connection.is_stale() => connection,
        other => {
            if other.is_some() {
                shared.closes.store(true, Ordering::Relaxed);
            }
            match shared.open().await {
                Ok((connection, took)) => {
                    exchange.timeline().connect = Some(took);
                    connection
                }
                Err(error) => return exchange.stop(error.outcome, error.words, shared.clock.nanos()),
            }
        }
    };
    let count = |chunks: usize| {
        shared.chunks.fetch_add(chunks as u64, Ordering::Relaxed);
    };
    let reusable = connection.run(bytes, exchange, &shared.clock, count).await;
    connection.served += 1;
    if reusable && !shared.closes.load(Ordering::Relaxed) {
        *slot = Some(connection);
    }
}

/// Raises the soft limit of open files where so many connections need it.
fn allow_open_files(concurrency: u32) -> Result<(), LoadError> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    // Beside the connections: the journal, logs, the runtime.
    let wanted = u64::from(concurrency) + 256;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= wanted {
        return Ok(());
    }
    if hard < wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_err() {
        return Err(LoadError::OpenFiles { wanted: concurrency, limit: hard });
    }
    Ok(())
}
