//! A step under way, as its caller holds it: warmed up, then held until the caller says so, then measured.

use std::thread::JoinHandle;

use hdrhistogram::Histogram;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::driver::Driver;
use super::{LoadError, Measured, Options, Part, Progress, Target};
use crate::clock::Clock;
use crate::measure::recount::Chooser;
use crate::measure::{Outcome, Timeline, WarmUp};
use crate::render::Step;

/// What the load's thread tells its caller.
#[derive(Debug)]
pub(super) enum Report {
    /// A part begins.
    Part { part: Part, requests: Option<u64>, duration_s: Option<f64> },
    /// What has happened since the last one.
    Second { elapsed_s: f64, chunks_per_s: Option<f64>, finished: Vec<Timeline> },
    /// The warm-up's last request has ended; nothing is sent before the caller says so.
    WarmedUp(WarmUp),
    /// The last request has ended.
    Over(Box<Measured>),
}

/// A step under way.
///
/// Between [`Running::warm_up`] and [`Running::measure`] no request is in flight and none is sent, however long the
/// caller takes: what an engine counts from there to the return of `measure` is the work of the measured requests alone.
/// Dropping it ends the load.
#[derive(Debug)]
pub struct Running {
    reports: mpsc::UnboundedReceiver<Report>,
    go: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), LoadError>>>,
    /// Whoever stops waiting for the step also stops its load.
    _halt_on_drop: DropGuard,
    so_far: SoFar,
    warmup: Vec<Timeline>,
    timelines: Vec<Timeline>,
    /// Whose tokens will be counted again.
    chooser: Chooser,
}

/// Who is told how far a step is.
pub type Listener<'a> = &'a mut (dyn FnMut(Progress<'_>) + Send);

/// Runs one step from its first connection to its last answer. Returns when every request has ended; an interrupt ends
/// those in flight as `cancelled`.
///
/// A server that fails is no error: its requests are timelines with an outcome.
pub async fn run_step(
    target: &Target,
    step: &Step,
    clock: &Clock,
    interrupt: &CancellationToken,
    options: &Options,
    progress: Listener<'_>,
) -> Result<Measured, LoadError> {
    let mut running = Running::start(target, step, clock, interrupt, options)?;
    running.warm_up(progress).await?;
    running.measure(progress).await
}

impl Running {
    /// Starts the load's thread, which opens and warms the connections and begins to warm the server up.
    pub fn start(
        target: &Target,
        step: &Step,
        clock: &Clock,
        interrupt: &CancellationToken,
        options: &Options,
    ) -> Result<Self, LoadError> {
        let halt = interrupt.child_token();
        let halt_on_drop = halt.clone().drop_guard();
        let (sender, reports) = mpsc::unbounded_channel();
        let (go, may_go) = oneshot::channel();
        let driver = Driver::new(target, step, clock, interrupt, halt, options, sender, may_go)?;
        let thread = std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || driver.run())
            .map_err(LoadError::Thread)?;
        let (so_far, warmup, timelines) = (SoFar::default(), Vec::new(), Vec::new());
        let (go, thread) = (Some(go), Some(thread));
        let chooser = Chooser::default();
        Ok(Running { reports, go, thread, _halt_on_drop: halt_on_drop, so_far, warmup, timelines, chooser })
    }

    /// Waits for the end of the warm-up. When this returns its last request has ended, and the first measured one is not
    /// sent before [`Running::measure`]. After an interrupt or a server that refuses it returns too, and `measure` has
    /// nothing left to send.
    pub async fn warm_up(&mut self, progress: Listener<'_>) -> Result<WarmUp, LoadError> {
        while let Some(report) = self.reports.recv().await {
            match report {
                Report::Part { part, requests, duration_s } => self.begin(part, requests, duration_s, progress),
                Report::Second { elapsed_s, chunks_per_s, finished } => {
                    self.second(elapsed_s, chunks_per_s, finished, progress);
                }
                Report::WarmedUp(warmed_up) => return Ok(warmed_up),
                Report::Over(_) => break,
            }
        }
        Err(self.why_broken().await)
    }

    /// Sends the measured requests, and returns as soon as the last of them has ended.
    pub async fn measure(mut self, progress: Listener<'_>) -> Result<Measured, LoadError> {
        // A thread that is gone hears nothing, and says below why it went.
        let _ = self.go.take().map(|go| go.send(()));
        let mut measured = None;
        while let Some(report) = self.reports.recv().await {
            match report {
                Report::Part { part, requests, duration_s } => self.begin(part, requests, duration_s, progress),
                Report::Second { elapsed_s, chunks_per_s, finished } => {
                    self.second(elapsed_s, chunks_per_s, finished, progress);
                }
                Report::WarmedUp(_) => {}
                Report::Over(over) => {
                    measured = Some(self.gather(*over, progress));
                    break;
                }
            }
        }
        match measured {
            // The thread has only its connections to close: nobody has to wait for that.
            Some(measured) => Ok(measured),
            None => Err(self.why_broken().await),
        }
    }

    /// What a thread that has broken off says.
    async fn why_broken(&mut self) -> LoadError {
        let Some(thread) = self.thread.take() else { return LoadError::Lost };
        match tokio::task::spawn_blocking(move || thread.join()).await {
            Ok(Ok(Err(error))) => error,
            _ => LoadError::Lost,
        }
    }

    fn begin(&mut self, part: Part, requests: Option<u64>, duration_s: Option<f64>, progress: Listener<'_>) {
        self.so_far = SoFar { part: Some(part), requests, duration_s, ..SoFar::default() };
        progress(self.so_far.progress(0.0, None, &[]));
    }

    fn second(
        &mut self,
        elapsed_s: f64,
        chunks_per_s: Option<f64>,
        mut finished: Vec<Timeline>,
        progress: Listener<'_>,
    ) {
        // Here and not in the load's own thread, which would read other answers late meanwhile.
        finished.iter_mut().for_each(Timeline::look_at_text);
        match self.so_far.part {
            Some(Part::Warmup) => finished.iter_mut().for_each(|timeline| timeline.whole_text = None),
            _ => finished.iter_mut().for_each(|timeline| self.chooser.choose(timeline)),
        }
        self.so_far.add(&finished);
        progress(self.so_far.progress(elapsed_s, chunks_per_s, &finished));
        let kept = if self.so_far.part == Some(Part::Warmup) { &mut self.warmup } else { &mut self.timelines };
        kept.extend(finished);
    }

    fn gather(&mut self, over: Measured, progress: Listener<'_>) -> Measured {
        let (mut warmup, mut timelines) = (std::mem::take(&mut self.warmup), std::mem::take(&mut self.timelines));
        // Stopped by the first answers: they are all there is, so they are the result.
        if over.gave_up.is_some() && timelines.is_empty() {
            std::mem::swap(&mut timelines, &mut warmup);
            self.so_far.add(&timelines);
            progress(self.so_far.progress(0.0, None, &timelines));
        }
        self.chooser.settle(&mut timelines);
        Measured { timelines, warmup, ..over }
    }
}

/// An hour in microseconds: what takes longer is shown as this.
const HOUR_US: u64 = 3_600_000_000;

/// Sums of the part that is on.
#[derive(Debug, Default)]
struct SoFar {
    part: Option<Part>,
    requests: Option<u64>,
    duration_s: Option<f64>,
    done: u64,
    failed: u64,
    /// Microseconds; two digits are enough for a screen.
    ttft: Option<Histogram<u32>>,
}

impl SoFar {
    fn add(&mut self, finished: &[Timeline]) {
        for timeline in finished {
            self.done += 1;
            self.failed += u64::from(timeline.outcome != Outcome::Ok);
            let Some(ttft) = timeline.ttft().filter(|_| timeline.outcome == Outcome::Ok) else { continue };
            if self.ttft.is_none() {
                self.ttft = Histogram::new_with_max(HOUR_US, 2).ok();
            }
            if let Some(histogram) = &mut self.ttft {
                histogram.saturating_record((ttft / 1000).max(1));
            }
        }
    }

    fn progress<'a>(&self, elapsed_s: f64, chunks_per_s: Option<f64>, finished: &'a [Timeline]) -> Progress<'a> {
        Progress {
            part: self.part.unwrap_or(Part::Measured),
            done: self.done,
            requests: self.requests,
            failed: self.failed,
            elapsed_s,
            duration_s: self.duration_s,
            chunks_per_s,
            ttft_ms: self.ttft.as_ref().map(|histogram| histogram.value_at_quantile(0.5) as f64 / 1000.0),
            finished,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::ok;

    #[test]
    fn the_time_to_first_token_so_far_is_that_of_the_requests() {
        let mut so_far = SoFar::default();
        so_far.add(&[ok(0, 40, 100, 3), ok(0, 7_000, 9_000, 3), ok(0, 50, 100, 3)]);
        let ttft = so_far.progress(1.0, None, &[]).ttft_ms.unwrap();
        assert!((49.5..50.5).contains(&ttft), "{ttft}");
    }
}
