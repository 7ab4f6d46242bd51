//! Sends requests at a URL and notes every moment. Has never heard of engines or hosts.
//!
//! [`Running`] is a step under way: its connections are opened and its warm-up sent, then it waits for its caller, then
//! it is measured. The load has a thread and a runtime of its own, so that a screen or a journal on the caller's side
//! cannot make it read late; finished requests and progress come over once a second.

pub mod answer;
mod attempt;
mod batch;
mod body;
mod closed;
pub mod cores;
mod draw;
mod driver;
mod error;
pub mod exchange;
pub mod http;
mod http2;
pub mod lengths;
pub mod memo;
pub mod models;
mod native;
pub mod net;
mod open;
mod pool;
mod requests;
mod responses;
mod running;
mod salt;
pub mod schedule;
pub mod settle;
mod socket;
pub mod sse;
mod talk;
pub mod tokenize;
pub mod url;
mod wire;

use std::time::Duration;

pub use error::LoadError;
pub use pool::allow_open_files;
pub use requests::path_of;
pub use running::{Listener, Running, run_step};

pub use crate::measure::Measured;

use crate::measure::Timeline;

/// Who is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The base address, with or without `/v1` and a slash at its end.
    pub base_url: String,
    /// The model's name as served; `None` leaves it out of the requests.
    pub model: Option<String>,
    /// Further headers, a key above all.
    pub headers: Vec<(String, String)>,
    /// Further addresses of servers that answer alike: connections are opened to each in turn.
    pub more: Vec<String>,
    /// How they are reached.
    pub net: net::Net,
}

impl Target {
    /// Where it is.
    pub fn endpoint(&self) -> Result<url::Endpoint, LoadError> {
        Ok(url::Endpoint::parse(&self.base_url)?.through(&self.net))
    }

    /// All places where it is.
    fn endpoints(&self) -> Result<Vec<url::Endpoint>, LoadError> {
        let all = std::iter::once(&self.base_url).chain(&self.more);
        all.map(|url| Ok(url::Endpoint::parse(url)?.through(&self.net))).collect()
    }
}

/// How a step is run, beside what it is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keep the texts of the answers.
    pub keep_text: bool,
    /// The limit on one request, all its attempts together.
    pub request_limit: Duration,
    /// How long a stream that has begun may be silent before the request is given up. Comments break the silence.
    pub idle_limit: Duration,
    /// How often a request that failed is sent again. Its moments count from the first sending.
    pub retries: u32,
    /// How long requests in flight may go on after a timed step is over.
    pub grace: Duration,
    /// Ask for token counts at the end of the stream (`stream_options.include_usage`).
    pub ask_usage: bool,
    /// Set by whoever sees that the server compiles: a warm-up by convergence then goes on.
    pub compiling: settle::Compiling,
    /// The cores that the load's threads are held to; none lets the system choose.
    pub cores: cores::Cores,
    /// How the server counts, by [`lengths::calibrate`], where prompts are made to a length.
    pub vocabulary: Option<lengths::Vocabulary>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            keep_text: false,
            request_limit: Duration::from_secs(600),
            idle_limit: Duration::from_secs(120),
            retries: 0,
            grace: Duration::from_secs(60),
            ask_usage: true,
            compiling: settle::Compiling::default(),
            cores: cores::Cores::default(),
            vocabulary: None,
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
