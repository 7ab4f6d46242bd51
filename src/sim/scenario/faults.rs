//! What goes wrong with requests.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::maybe_duration;

/// What goes wrong with some requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestFault {
    /// What.
    pub kind: FaultKind,
    /// The share of requests that it meets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// It meets every so manieth request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// It meets these requests, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<u64>>,
    /// It meets none before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// It meets none after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Tokens before it, in the middle of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_tokens: Option<u64>,
    /// The status of `kind: status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What `retry-after` says.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_duration")]
    pub retry_after: Option<Duration>,
    /// The words of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl RequestFault {
    /// A fault that meets every request.
    pub(in crate::sim) fn always(kind: FaultKind) -> Self {
        RequestFault {
            kind,
            share: None,
            every: None,
            requests: None,
            from: None,
            to: None,
            after_tokens: None,
            status: None,
            retry_after: None,
            message: None,
        }
    }
}

/// The kinds of [`RequestFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// An answer with an error status.
    Status,
    /// An error object in a stream whose status is 200.
    ErrorInStream,
    /// An error object as the whole body of an answer whose status is 200.
    ErrorInBody,
    /// The connection closes before the framing says that the answer is over.
    CutBody,
    /// A well-framed stream that ends without a finish reason and `[DONE]`.
    NoEnd,
    /// A complete answer without a token.
    NoTokens,
    /// A finish reason that is an error.
    FinishError,
    /// Nothing more comes, and the connection stays open.
    Hang,
    /// After `[DONE]` the connection stays open and the transfer is never ended.
    HangAfterDone,
    /// The connection closes before an answer begins.
    NoAnswer,
    /// The connection is reset in the middle.
    Reset,
    /// An event that is no JSON.
    BadJson,
    /// Fewer tokens than exactly asked for.
    ShortOutput,
    /// More tokens than asked for.
    LongOutput,
    /// `usage` says half of the tokens,
    WrongUsage,
    /// twice as many as there are,
    DoubleUsage,
    /// or as many as there are chunks.
    ChunkUsage,
    /// A known answer is wrong; the text is well formed.
    WrongAnswer,
    /// Text without sense: symbols and fragments.
    Garbage,
    /// The same few words again and again.
    Repetition,
    /// Bytes that are no UTF-8.
    InvalidUtf8,
    /// U+FFFD in place of text.
    ReplacementCharacters,
}
