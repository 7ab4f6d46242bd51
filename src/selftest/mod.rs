//! The client against a server of known behaviour: what it says is held against what the server wrote down.
//!
//! A course is one load on a simulated engine (`orch sim`, a process of its own), as every measurement is made. The
//! server's ledger has the truth; what the client measured beyond it is the client's and the machine's own error.

mod ceiling;
mod ledger;
mod server;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use ceiling::{Ceiling, known_ceiling, remember, timer_error};
pub use ledger::Truth;
pub use verdict::{Drawn, LEAST_STARTS, Rates, rates, residuals};

use crate::clock::Clock;
use crate::load::cores::Cores;
use crate::load::{self, LoadError, Options, Target};
use crate::measure::{self, Client, Distribution, Measured};
use crate::profile::Prompt;
use crate::render::{Api, Arrival, Lengths, Load, Step, Stop, Workload};
use server::SimServer;

/// The answers of a course, and how many of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    /// Requests in flight.
    pub streams: u32,
    /// Requests that are measured; as many as streams go before.
    pub requests: u64,
    /// From a request's start to its first chunk.
    pub ttft: Duration,
    /// Between two chunks.
    pub gap: Duration,
    /// Chunks of an answer,
    pub chunks: u32,
    /// and the tokens of each.
    pub tokens_per_chunk: u32,
}

/// The cores that server and client are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    /// The server's.
    pub server: usize,
    /// The one of the client's load.
    pub client: usize,
}

impl Pins {
    /// A core each, where this process may use two.
    pub fn of_this_machine() -> Option<Self> {
        let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).ok()?;
        let mut cores = (0..nix::sched::CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
        Some(Pins { server: cores.next()?, client: cores.next()? })
    }
}

/// What a course came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests in flight.
    pub streams: u32,
    /// Tokens of a chunk.
    pub tokens_per_chunk: u32,
    /// Requests that were measured and ended well,
    pub ok: u64,
    /// and that did not.
    pub failed: u64,
    /// Whether client and ledger agree on the requests, chunks and tokens to the last one.
    pub counts_agree: bool,
    /// Chunks per second over the measured time.
    pub chunks_per_s: f64,
    /// How the client fared.
    pub client: Client,
    /// Metric by metric.
    pub compared: Vec<Compared>,
}

impl Outcome {
    /// The error of a metric at a percentile, in milliseconds.
    pub fn error_ms(&self, metric: &str, percentile: &str) -> Option<f64> {
        let found = self.compared.iter().find(|one| one.metric == metric && one.percentile == percentile);
        found.map(|one| (one.client_ms - one.server_ms).abs())
    }
}

/// One percentile of one metric, as both sides have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// A metric id.
    pub metric: String,
    /// `p50`, `p99`.
    pub percentile: String,
    /// What the client measured,
    pub client_ms: f64,
    /// and what the ledger says.
    pub server_ms: f64,
}

/// Why the client could not be tested.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum SelfTestError {
    /// The simulated engine did not start.
    #[error("the simulated engine does not serve: {0}")]
    #[diagnostic(code(orch::selftest::server))]
    Server(String),
    /// No load could be sent.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Load(#[from] LoadError),
    /// A file of it.
    #[error("cannot use {}: {source}", path.display())]
    #[diagnostic(code(orch::selftest::file))]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Runs a course. `orch` is this program, which also plays the server; `folder` takes the scenario and the ledger.
pub async fn run(orch: &Path, course: &Course, pins: Option<Pins>, folder: &Path) -> Result<Outcome, SelfTestError> {
    let server = SimServer::start(orch, course, pins.map(|pins| pins.server), folder).await?;
    let target = Target { base_url: server.url(), model: Some("simulated".to_owned()), ..Target::default() };
    let cores = pins.map(|pins| Cores::one(pins.client)).unwrap_or_default();
    let options = Options { cores, ..Options::default() };
    let (clock, never) = (Clock::system(), CancellationToken::new());
    let step = step(course);
    let measured = load::run_step(&target, &step, &clock, &never, &options, &mut |_| ()).await;
    let ledger = server.stop().await?;
    let truth = Truth::read(&ledger, u64::from(course.streams))?;
    Ok(outcome(course, &measured?, &truth))
}

fn step(course: &Course) -> Step {
    let prompts =
        (0..16).map(|n| Prompt { id: n.to_string(), text: format!("Count to {n}."), then: Vec::new() }).collect();
    let stop = Stop::Exact { tokens: u64::from(course.chunks) * u64::from(course.tokens_per_chunk) };
    Step {
        name: "selftest".to_owned(),
        workload: Workload::plain("selftest", Api::Chat, prompts, stop, 0, Lengths::default()),
        load: Load {
            arrival: Arrival::Closed { concurrency: course.streams },
            requests: Some(course.requests),
            duration_s: None,
            warmup: Some(u64::from(course.streams)),
        },
        goodput: Default::default(),
    }
}

fn outcome(course: &Course, measured: &Measured, truth: &Truth) -> Outcome {
    let mine = measure::samples(measured);
    let mut compared = Vec::new();
    for (metric, theirs) in truth.samples() {
        let (mine, theirs) =
            (Distribution::of(mine.get(metric).cloned().unwrap_or_default()), Distribution::of(theirs));
        for (percentile, mine, theirs) in [("p50", mine.p50, theirs.p50), ("p99", mine.p99, theirs.p99)] {
            if let (Some(client_ms), Some(server_ms)) = (mine, theirs) {
                let (metric, percentile) = (metric.to_owned(), percentile.to_owned());
                compared.push(Compared { metric, percentile, client_ms, server_ms });
            }
        }
    }
    let counts = measure::counts(&measured.timelines);
    let chunks: u64 = measured.timelines.iter().map(|timeline| timeline.chunks.len() as u64).sum();
    let tokens: u64 = measured.timelines.iter().map(|timeline| timeline.output_tokens().0).sum();
    let span_s = measured.ended.saturating_sub(measured.began) as f64 / 1e9;
    Outcome {
        streams: course.streams,
        tokens_per_chunk: course.tokens_per_chunk,
        ok: counts.ok,
        failed: counts.failed,
        counts_agree: (counts.ok, chunks, tokens) == truth.counts(),
        chunks_per_s: if span_s > 0.0 { chunks as f64 / span_s } else { 0.0 },
        client: Client::of(measured, None),
        compared,
    }
}
