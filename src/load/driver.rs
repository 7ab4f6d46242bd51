//! The load's own thread: opens connections, warms up, waits for its caller, measures, and tells how it goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Shared};
use super::closed::slot;
use super::cores::{Cores, Ticks};
use super::open::{Idle, arrivals, re_panic};
use super::pool::{Slot, allow_open_files};
use super::requests::{self, Requests};
use super::running::Report;
use super::schedule::{Schedule, Shape, Timing};
use super::settle::{Settling, TIME_AT_MOST};
use super::url::Endpoint;
use super::wire::Dialers;
use super::{LoadError, Measured, Options, Part, Target};
use crate::clock::{Clock, Nanos};
use crate::measure::WarmUp;
use crate::render::{Arrival, Stage, Step};

/// How often this thread looks how late it is.
const LAG_EVERY: Duration = Duration::from_millis(20);
/// Connections that an open loop opens before its clock starts: as many as its requests would need if each took so long,
const OPEN_SECONDS: f64 = 2.0;
/// within these limits. Further ones are opened as they are needed.
const OPEN_LEAST: u32 = 8;
const OPEN_MOST: u32 = 512;

/// A step, ready to be run on its own thread.
pub(super) struct Driver {
    shared: Shared,
    gets: Vec<Bytes>,
    endpoints: Vec<Endpoint>,
    arrival: Arriving,
    warmup: Option<u64>,
    requests: Option<u64>,
    duration: Option<Duration>,
    seed: u64,
    interrupt: CancellationToken,
    reports: UnboundedSender<Report>,
    may_go: oneshot::Receiver<()>,
}

/// When requests are sent.
#[derive(Clone)]
enum Arriving {
    Closed { concurrency: u32 },
    Scheduled(Timing),
}

impl Arriving {
    fn of(step: &Step, refuse: impl Fn(&'static str) -> LoadError) -> Result<Self, LoadError> {
        let scheduled = |timing| Ok(Arriving::Scheduled(timing));
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        match &step.load.arrival {
            Arrival::Closed { concurrency: 0 } => Err(refuse("its concurrency is 0")),
            Arrival::Closed { concurrency } => Ok(Arriving::Closed { concurrency: *concurrency }),
            Arrival::Open { rate, .. } if !is_rate(*rate) => Err(refuse("its rate is not above 0")),
            Arrival::Open { rate, shape, burstiness } => {
                scheduled(Timing::Even { rate: *rate, shape: Shape::parse(shape, *burstiness)? })
            }
            Arrival::Stages { stages, shape, burstiness } => {
                let lasts = |stage: &Stage| is_rate(stage.duration_s) && stage.from >= 0.0 && stage.to >= 0.0;
                if !stages.iter().all(lasts) || !stages.iter().any(|stage| is_rate(stage.from + stage.to)) {
                    return Err(refuse("its stages have no rate or no duration"));
                }
                let shape = Shape::parse(shape, *burstiness)?;
                scheduled(Timing::Stages { stages: stages.as_slice().into(), shape })
            }
            Arrival::Bursts { requests: 0, .. } => Err(refuse("its bursts are of no request")),
            Arrival::Bursts { every_s, .. } if !is_rate(*every_s) => Err(refuse("its bursts come all at once")),
            Arrival::Bursts { requests, every_s } => {
                scheduled(Timing::Bursts { requests: *requests, every_s: *every_s })
            }
            Arrival::Trace { speed } => {
                let rows = step.workload.special.trace.iter().flat_map(|trace| &trace.rows);
                let moment = |at_ms: f64| Duration::try_from_secs_f64(at_ms / 1e3 / speed);
                let moments: Result<Vec<_>, _> = rows.map(|row| moment(row.at_ms)).collect();
                let moments = moments.map_err(|_| refuse("its trace holds what is no moment"))?;
                if moments.is_empty() {
                    return Err(refuse("its trace holds no requests"));
                }
                scheduled(Timing::Moments(moments.into()))
            }
            Arrival::Search(_) => Err(refuse("a search is made of steps, and is none itself")),
        }
    }

    /// Connections that are opened before the clock starts.
    fn connections(&self, requests: Option<u64>) -> u32 {
        match self {
            Arriving::Closed { concurrency } => *concurrency,
            Arriving::Scheduled(timing) => {
                let most = requests.and_then(|requests| u32::try_from(requests).ok()).unwrap_or(u32::MAX).max(1);
                let at_once = u32::try_from(timing.at_once()).unwrap_or(u32::MAX);
                let usual = ((OPEN_SECONDS / timing.gap_s()).ceil() as u32).clamp(OPEN_LEAST, OPEN_MOST);
                usual.max(at_once.min(OPEN_MOST)).min(most)
            }
        }
    }

    /// Requests that are on their way together, as far as that is known before.
    fn at_once(&self) -> u64 {
        match self {
            Arriving::Closed { concurrency } => u64::from(*concurrency),
            Arriving::Scheduled(timing) => timing.at_once(),
        }
    }
}

impl Driver {
    #[expect(clippy::too_many_arguments, reason = "the one place where a step is taken apart")]
    pub(super) fn new(
        target: &Target,
        step: &Step,
        clock: &Clock,
        interrupt: &CancellationToken,
        halt: CancellationToken,
        options: &Options,
        reports: UnboundedSender<Report>,
        may_go: oneshot::Receiver<()>,
    ) -> Result<Self, LoadError> {
        let refuse = |why| LoadError::Step { step: step.name.clone(), why };
        let arrival = Arriving::of(step, refuse)?;
        let duration = step.load.duration_s.map(Duration::try_from_secs_f64).transpose();
        let duration = duration.map_err(|_| refuse("its duration is no span of time"))?;
        if step.load.requests.is_none() && duration.is_none() {
            return Err(refuse("it has neither a number of requests nor a duration"));
        }
        if step.load.requests == Some(0) || duration.is_some_and(|duration| duration.is_zero()) {
            return Err(refuse("it would measure nothing"));
        }
        let endpoints = target.endpoints()?;
        let requests = Requests::build(target, &endpoints, &step.workload, &step.name, options)?;
        let get = |endpoint: &Endpoint| requests::get(&endpoint.path("/v1/models"), endpoint, &target.headers);
        let gets = endpoints.iter().map(get).collect::<Result<_, _>>()?;
        Ok(Driver {
            shared: Shared::new(clock.clone(), requests, halt, options.clone()),
            gets,
            endpoints,
            arrival,
            warmup: step.load.warmup,
            requests: step.load.requests,
            duration,
            seed: step.workload.seed,
            interrupt: interrupt.clone(),
            reports,
            may_go,
        })
    }

    /// Runs the step on this thread.
    pub(super) fn run(self) -> Result<(), LoadError> {
        allow_open_files(self.arrival.connections(self.requests))?;
        // Cores that cannot be had make it less exact, not wrong.
        let held = Some(self.shared.options.cores.clone()).filter(Cores::hold).unwrap_or_default();
        let runtime = crate::host::runtime::on_this_thread().map_err(LoadError::Thread)?;
        runtime.block_on(self.drive(held))
    }

    async fn drive(self, held: Cores) -> Result<(), LoadError> {
        let Driver { shared, gets, endpoints, arrival, warmup, requests, duration, seed, .. } = self;
        let Driver { interrupt, reports, may_go, .. } = self;
        let shared = Arc::new(shared);
        let opened = shared.clock.nanos();
        let _ = shared.dialer.set(Dialers::new(&endpoints).await?);
        let connections = arrival.connections(requests);
        let mut work = Work { shared: shared.clone(), interrupt, reports, arrival, seed, lags: Vec::new() };
        // With nobody listening any more there is nobody to tell, and `halt` ends the step.
        work.tell(Report::Part { part: Part::Warmup, requests: warmup, duration_s: None });
        let (slots, connects) = tokio::select! {
            biased;
            () = shared.halt.cancelled() => Default::default(),
            opened = shared.open_all(&gets, connections) => opened,
        };
        let batch = work.warmup(warmup);
        let slots = if warmup == Some(0) { slots } else { work.run(batch.clone(), slots).await.0 };
        let s = (shared.clock.nanos() - opened) as f64 / 1e9;
        let ended = shared.ended.load(Ordering::Relaxed);
        work.tell(Report::WarmedUp(WarmUp { requests: ended, s, settled: batch.settled() }));
        // A caller that is gone says nothing more, and has cancelled `halt`.
        let _ = may_go.await;

        let mut slots = slots;
        let survived = !work.is_interrupted() && shared.gave_up.get().is_none();
        if survived {
            // What the server has closed while the caller took its time.
            shared.reopen(&mut slots).await;
        }
        if survived || shared.gave_up.get().is_some() {
            let duration_s = duration.map(|duration| duration.as_secs_f64());
            work.tell(Report::Part { part: Part::Measured, requests, duration_s });
        }
        work.lags.clear();
        let ticks = Ticks::now(&held);
        let (began, cpu) = (shared.clock.nanos(), thread_cpu());
        let mut late = Vec::new();
        if survived {
            let end = duration.map(|duration| Instant::now() + duration);
            late = work.run(Arc::new(Batch::new(Part::Measured, requests, end)), slots).await.1;
        }
        let ended = shared.clock.nanos();
        let stolen = ticks.and_then(|before| Ticks::now(&held)?.stolen_since(&before));
        let measured = Measured {
            opened,
            connects,
            began,
            ended,
            interrupted: work.is_interrupted(),
            outlived_grace: shared.outlived_grace.load(Ordering::Relaxed),
            gave_up: shared.gave_up.get().cloned(),
            scheduled: matches!(work.arrival, Arriving::Scheduled(_)),
            late,
            lags: std::mem::take(&mut work.lags),
            cpu: thread_cpu().zip(cpu).map(|(now, before)| now.saturating_sub(before)),
            cores: held.to_string(),
            stolen,
            ..Measured::default()
        };
        work.tell(Report::Over(Box::new(measured)));
        Ok(())
    }
}

/// Starts batches and watches over them.
struct Work {
    shared: Arc<Shared>,
    interrupt: CancellationToken,
    reports: UnboundedSender<Report>,
    arrival: Arriving,
    seed: u64,
    /// How late this thread was each time it looked.
    lags: Vec<Nanos>,
}

impl Work {
    fn tell(&mut self, report: Report) {
        if self.reports.send(report).is_err() {
            self.shared.halt.cancel();
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_cancelled() || self.shared.halt.is_cancelled()
    }

    /// The warm-up: so many requests, or as many as it takes.
    fn warmup(&self, requests: Option<u64>) -> Arc<Batch> {
        if requests.is_some() {
            return Arc::new(Batch::new(Part::Warmup, requests, None));
        }
        let Shared { requests, options, .. } = &*self.shared;
        let at_once = self.arrival.at_once() * requests.turns().unwrap_or(1);
        let settling = Settling::new(at_once, requests.max_tokens, options.compiling.clone());
        Arc::new(Batch::until_settled(settling, Instant::now() + TIME_AT_MOST))
    }

    /// Runs a batch to its end and gives the connections back, and how late scheduled requests were taken up.
    async fn run(&mut self, batch: Arc<Batch>, slots: Vec<Slot>) -> (Vec<Slot>, Vec<Nanos>) {
        let cut = self.shared.halt.child_token();
        let (shared, arrival, seed) = (self.shared.clone(), self.arrival.clone(), self.seed);
        let work = carry_out(shared, batch.clone(), cut.clone(), slots, arrival, seed);
        self.attend(&batch, &cut, work).await
    }

    /// Waits for the work, tells how it goes, and cuts what outlives the grace.
    async fn attend<T>(&mut self, batch: &Batch, cut: &CancellationToken, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let last = batch.end.map(|end| end + self.shared.options.grace);
        let mut seconds = interval_at(began + Duration::from_secs(1), Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = interval_at(began + LAG_EVERY, LAG_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = (began, self.shared.chunks.load(Ordering::Relaxed));
        tokio::pin!(work);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                now = seconds.tick() => self.report(began, now, &mut told),
                due = looks.tick() => self.lags.push(u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX)),
                () = sleep_until(last), if !cut.is_cancelled() => cut.cancel(),
            }
        };
        self.report(began, Instant::now(), &mut told);
        done
    }

    fn report(&mut self, began: Instant, now: Instant, told: &mut (Instant, u64)) {
        let chunks = self.shared.chunks.load(Ordering::Relaxed);
        let span = now.saturating_duration_since(told.0).as_secs_f64();
        // A rate over a sliver of a second is noise.
        let chunks_per_s = (span >= 0.1).then(|| (chunks - told.1) as f64 / span);
        *told = (now, chunks);
        let finished = self.shared.take_finished();
        let elapsed_s = now.saturating_duration_since(began).as_secs_f64();
        self.tell(Report::Second { elapsed_s, chunks_per_s, finished });
    }
}

/// Sends the batch's requests and waits for their ends.
async fn carry_out(
    shared: Arc<Shared>,
    batch: Arc<Batch>,
    cut: CancellationToken,
    slots: Vec<Slot>,
    arrival: Arriving,
    seed: u64,
) -> (Vec<Slot>, Vec<Nanos>) {
    let Arriving::Scheduled(timing) = arrival else {
        let mut tasks = JoinSet::new();
        for free in slots {
            tasks.spawn(slot(shared.clone(), batch.clone(), cut.clone(), free));
        }
        let mut kept = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            kept.extend(re_panic(ended));
        }
        return (kept, Vec::new());
    };
    let mut tasks = JoinSet::new();
    let idle = Arc::new(Idle::of(slots, shared.dialer.get().map_or(1, Dialers::places)));
    let is_measured = batch.part == Part::Measured;
    let timing = if is_measured { timing } else { timing.warm() };
    let schedule = Schedule::new(timing, seed, u64::from(is_measured));
    let late = match batch.requests_a_round() {
        // The same moments in each round, so that rounds differ by the server alone.
        Some(count) => arrivals(&shared, &batch, &cut, &idle, schedule.in_rounds_of(count), &mut tasks).await,
        None => arrivals(&shared, &batch, &cut, &idle, schedule, &mut tasks).await,
    };
    while let Some(ended) = tasks.join_next().await {
        re_panic(ended);
    }
    (Arc::into_inner(idle).map(Idle::into_slots).unwrap_or_default(), late)
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Processor time that this thread has used so far.
fn thread_cpu() -> Option<Nanos> {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).ok()?;
    u64::try_from(Duration::from(time).as_nanos()).ok()
}
