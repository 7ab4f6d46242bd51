//! A request as it was lived through: the moments of it, and what came. The one thing that `measure` reads.

use serde::{Deserialize, Serialize};

use super::TextFault;
use super::text::Tail;
use crate::clock::Nanos;

/// One request, from the moment it was due to the end of its answer. Moments are on the load's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Number of the request within its step, from 0, in order of sending.
    pub id: u64,
    /// When the schedule wanted it sent; in a closed loop the moment its slot was free.
    pub due: Nanos,
    /// The moment before its bytes were handed to the transport on an open connection. `None`: it was never sent.
    pub sent: Option<Nanos>,
    /// How long opening its connection took, when it had to be opened for it.
    pub connect: Option<Nanos>,
    /// Whether the connection had carried a request before.
    pub connection_reused: bool,
    /// When the head of the answer was complete.
    pub headers: Option<Nanos>,
    /// When the first event of the stream was complete, generating or not.
    pub first_chunk: Option<Nanos>,
    /// The generating chunks, in order.
    pub chunks: Vec<Chunk>,
    /// When the response ended, well or not.
    pub done: Option<Nanos>,
    /// `ok`, or what went wrong.
    pub outcome: Outcome,
    /// Status of the answer, if one came.
    pub http_status: Option<u16>,
    /// How often it was sent; 1 with retries off.
    pub attempts: u32,
    /// Why the engine stopped, in its words.
    pub finish_reason: Option<String>,
    /// The engine's own token counts, if it gave any.
    pub usage: Option<Usage>,
    /// The engine's own times for the request (llama.cpp `timings`), in milliseconds.
    pub engine: Option<EngineTimings>,
    /// How many output tokens were asked for, when the length was to be exact.
    pub wanted_tokens: Option<u64>,
    /// How many tokens the prompt was made to have, when its length was to be exact.
    pub wanted_input_tokens: Option<u64>,
    /// Whether the answer was complete and its transfer did not end: the connection was then dropped.
    pub transfer_unended: bool,
    /// The words of the failure: the server's message, or the transport's. Cut to a kilobyte.
    pub error: Option<String>,
    /// Answer text, when kept.
    pub text: Option<String>,
    /// Reasoning text, when kept.
    pub reasoning_text: Option<String>,
    /// Its text, or the end of a long one, until that is looked at, where the text is not kept.
    pub tail: Option<Tail>,
    /// All text that it generated, in the order in which it came, until the tokens of it are counted again. `None` where
    /// they will not be.
    pub whole_text: Option<String>,
    /// The tokens of its text by the server's own tokenizer, where they were counted again.
    pub retokenized: Option<u64>,
    /// What is wrong with its text, once that was looked at.
    pub text_fault: Option<TextFault>,
}

impl Timeline {
    /// From the sending to the first generating chunk.
    pub fn ttft(&self) -> Option<Nanos> {
        self.chunks.first()?.at.checked_sub(self.sent?)
    }
}

/// An event that carried generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// When the event was complete.
    pub at: Nanos,
    /// Its tokens, when they are known.
    pub tokens: Option<u32>,
    /// What it carried.
    pub kind: ChunkKind,
}

/// What a generating chunk carried. An event with both content and reasoning counts as content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// Text of the answer.
    Content,
    /// Text of the reasoning before it.
    Reasoning,
    /// A refusal or the arguments of a tool call.
    Other,
}

/// Token counts as the engine reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens, reasoning included.
    pub completion_tokens: Option<u64>,
    /// Those of the generated tokens that were reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Those of the prompt's tokens that came from the prefix cache.
    pub cached_tokens: Option<u64>,
}

/// llama.cpp's `timings` of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineTimings {
    /// Prompt tokens it evaluated (cached ones are not among them).
    pub prompt_n: Option<u64>,
    /// Milliseconds for them.
    pub prompt_ms: Option<f64>,
    /// Tokens it generated.
    pub predicted_n: Option<u64>,
    /// Milliseconds for them.
    pub predicted_ms: Option<f64>,
    /// Prompt tokens it took from the cache.
    pub cache_n: Option<u64>,
    /// Tokens drafted.
    pub draft_n: Option<u64>,
    /// Drafted tokens accepted.
    pub draft_n_accepted: Option<u64>,
    /// Verify steps of its drafts, where the engine says (SGLang's details of speculation).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_n: Option<u64>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Complete, with at least one generated token.
    Ok,
    /// A 200 stream carried an error object or an error finish reason.
    ServerErrorInStream,
    /// A 200 body was an error object, not a stream.
    ServerErrorInBody,
    /// The transfer ended before its framing said so.
    IncompleteBody,
    /// Framing was complete, but neither a finish reason nor `[DONE]` came.
    StreamEndedEarly,
    /// The request ended without one generated token.
    NoTokens,
    /// Status 429.
    RateLimited,
    /// Any other status outside 2xx.
    HttpError,
    /// Certificate verification failed.
    TlsVerify,
    /// No connection, or lost before the headers.
    ConnectFailed,
    /// A time limit of the client passed.
    TimedOut,
    /// Ended by the client itself.
    #[default]
    Cancelled,
    /// The answer breaks its protocol.
    BadResponse,
}

impl Outcome {
    /// Its name, as in files.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ServerErrorInStream => "server_error_in_stream",
            Outcome::ServerErrorInBody => "server_error_in_body",
            Outcome::IncompleteBody => "incomplete_body",
            Outcome::StreamEndedEarly => "stream_ended_early",
            Outcome::NoTokens => "no_tokens",
            Outcome::RateLimited => "rate_limited",
            Outcome::HttpError => "http_error",
            Outcome::TlsVerify => "tls_verify",
            Outcome::ConnectFailed => "connect_failed",
            Outcome::TimedOut => "timed_out",
            Outcome::Cancelled => "cancelled",
            Outcome::BadResponse => "bad_response",
        }
    }
}

/// Where a token count comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// The engine's `usage`.
    Usage,
    /// The engine's own counters or timings.
    Engine,
    /// A tokenizer run over the text.
    Tokenizer,
    /// The number of generating chunks, taken as one token each: an estimate.
    Chunks,
}
