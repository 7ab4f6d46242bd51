//! Sends requests at a URL and notes every moment. Has never heard of engines or hosts.
//!
//! [`run_step`] gives a step's load and returns what was lived through. The load has a thread and a runtime of its own,
//! so that a screen or a journal on the caller's side cannot make it read late; finished requests and progress come
//! over once a second.

pub mod answer;
mod closed;
mod error;
pub mod exchange;
pub mod http;
pub mod memo;
pub mod models;
mod requests;
pub mod sse;
pub mod url;
mod wire;

use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use error::LoadError;
pub use requests::path_of;

pub use crate::measure::Measured;

use crate::clock::Clock;
use crate::measure::{Outcome, Timeline};
use crate::render::{Arrival, Step};
use closed::Closed;

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The base address, with or without `/v1` and a slash at its end.
    pub base_url: String,
    /// The model's name as served; `None` leaves it out of the requests.
    pub model: Option<String>,
    /// Further headers, a key above all.
    pub headers: Vec<(String, String)>,
}

/// How a step is run, beside what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Keep the texts of the answers.
    pub keep_text: bool,
    /// The limit on one request, from the moment it was due.
    pub request_limit: Duration,
    /// How long requests in flight may go on after a timed step is over.
    pub grace: Duration,
    /// Ask for token counts at the end of the stream (`stream_options.include_usage`).
    pub ask_usage: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            keep_text: false,
            request_limit: Duration::from_secs(600),
            grace: Duration::from_secs(60),
            ask_usage: true,
        }
    }
}

/// Which part of a step is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Connections are opened and requests sent that are not counted.
    Warmup,
    /// Measured requests.
    Measured,
}

/// How far a step is. Comes when a part begins, once a second, and when it ends.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Which part.
    pub part: Part,
    /// Requests of this part that have ended,
    pub done: u64,
    /// of so many, if counted.
    pub requests: Option<u64>,
    /// Those of them that failed.
    pub failed: u64,
    /// Seconds since the part began,
    pub elapsed_s: f64,
    /// of so many, if timed.
    pub duration_s: Option<f64>,
    /// Generating chunks per second since the last progress: tokens, where a chunk is one.
    pub chunks_per_s: Option<f64>,
    /// Median time to first token of the part so far.
    pub ttft_ms: Option<f64>,
    /// The requests that have ended since the last progress.
    pub finished: &'a [Timeline],
}

/// What the load's thread tells its caller.
#[derive(Debug)]
enum Report {
    Part { part: Part, requests: Option<u64>, duration_s: Option<f64> },
    Second { elapsed_s: f64, chunks_per_s: Option<f64>, finished: Vec<Timeline> },
    Over(Box<Measured>),
}

/// Runs one step. Returns when every request has ended; an interrupt ends those in flight as `cancelled`.
///
/// A server that fails is no error: its requests are timelines with an outcome.
pub async fn run_step(
    target: &Target,
    step: &Step,
    clock: &Clock,
    interrupt: &CancellationToken,
    options: &Options,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<Measured, LoadError> {
    let Arrival::Closed { concurrency } = step.load.arrival else {
        return Err(LoadError::Unsupported { what: "a load at a rate".to_owned() });
    };
    let halt = interrupt.child_token();
    // Whoever stops waiting for the step also stops its load.
    let _halt_on_drop = halt.clone().drop_guard();
    let (sender, receiver) = mpsc::unbounded_channel();
    let closed = Closed::new(target, step, concurrency, clock, interrupt, halt, options, sender)?;
    let thread =
        std::thread::Builder::new().name("load".to_owned()).spawn(move || closed.run()).map_err(LoadError::Thread)?;
    let measured = follow(receiver, progress).await;
    let ended = tokio::task::spawn_blocking(move || thread.join()).await;
    match (ended, measured) {
        (Ok(Ok(Err(error))), _) => Err(error),
        (Ok(Ok(Ok(()))), Some(measured)) => Ok(measured),
        _ => Err(LoadError::Lost),
    }
}

/// Passes progress on and gathers what is finished, until the load is over; `None` if it broke off.
async fn follow(
    mut reports: mpsc::UnboundedReceiver<Report>,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Option<Measured> {
    let mut so_far = SoFar::default();
    let (mut warmup, mut timelines) = (Vec::new(), Vec::new());
    while let Some(report) = reports.recv().await {
        match report {
            Report::Part { part, requests, duration_s } => {
                so_far = SoFar { part: Some(part), requests, duration_s, ..SoFar::default() };
                progress(so_far.progress(0.0, None, &[]));
            }
            Report::Second { elapsed_s, chunks_per_s, finished } => {
                so_far.add(&finished);
                progress(so_far.progress(elapsed_s, chunks_per_s, &finished));
                if so_far.part == Some(Part::Warmup) { &mut warmup } else { &mut timelines }.extend(finished);
            }
            Report::Over(measured) => {
                // Stopped by the first answers: they are all there is, so they are the result.
                if measured.gave_up.is_some() && timelines.is_empty() {
                    std::mem::swap(&mut timelines, &mut warmup);
                    so_far.add(&timelines);
                    progress(so_far.progress(0.0, None, &timelines));
                }
                return Some(Measured { timelines, warmup, ..*measured });
            }
        }
    }
    None
}

/// Sums of the part that is on.
#[derive(Default)]
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
                self.ttft = Histogram::new(2).ok();
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
