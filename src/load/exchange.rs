//! One request and its answer as bytes at moments: HTTP, then the stream of events, then the timeline. No I/O and no
//! clock, so the hot path, the corpus and the fuzzer all drive this same code.

use std::ops::ControlFlow;
use std::time::Duration;

use super::answer::{self, Said};
use super::http::{self, Ending, Piece};
use super::memo::Memo;
use super::native::Native;
use super::{responses, sse};
use crate::clock::Nanos;
use crate::measure::text::Tail;
use crate::measure::{Chunk, ChunkKind, Outcome, Timeline};
use crate::render::Api;

/// What of an answer that is no stream is held: a document, or the words of an error.
const DOCUMENT_LIMIT: usize = 16 << 20;
/// What is read of one answer in all.
const BODY_LIMIT: u64 = 256 << 20;
/// What is kept of an answer's text and reasoning, in bytes each.
const TEXT_LIMIT: usize = 16 << 20;
/// So many generating chunks are taken of any answer. Above that, [`CHUNKS_A_TOKEN`] decides.
const CHUNK_LIMIT: usize = 1 << 16;
/// A token comes in one chunk, or in a few where its bytes are held back and sent apart. A server that sends more does
/// not know when to stop, and each of its chunks would be remembered here.
const CHUNKS_A_TOKEN: usize = 4;

/// Whether more is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The answer goes on.
    More,
    /// The answer is complete, or broken beyond reading.
    Over,
}

/// What the body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// Not known before its first byte that is no space.
    Unknown,
    /// Server-sent events.
    Stream,
    /// JSON or the text of an error, held whole.
    Document,
}

/// A request in the middle of its answer.
#[derive(Debug)]
pub struct Exchange {
    http: http::Decoder,
    reading: Reading,
    /// When the answer ended, once it has.
    ended: Option<Nanos>,
}

#[derive(Debug)]
struct Reading {
    timeline: Timeline,
    keep_text: bool,
    chunk_limit: usize,
    /// Whether it was longer than what is taken of an answer, so that no more of it is read.
    overflowed: bool,
    body: Body,
    is_html: bool,
    size: u64,
    document: Vec<u8>,
    events: sse::Decoder,
    memo: Memo,
    api: Api,
    native: Native,
    retry_after_s: Option<u64>,
    /// The first thing that made it a failure.
    fault: Option<(Outcome, String)>,
    marked_done: bool,
    /// When the stream said so.
    said_at: Option<Nanos>,
    /// Whether each generating event so far came with a count.
    counted: bool,
    last_count: u64,
    text: String,
    reasoning: String,
    /// The end of both, where they are not kept.
    tail: Tail,
}

impl Exchange {
    /// An exchange whose request is about to be sent. `timeline` says which; its moments are filled in.
    pub fn new(timeline: Timeline, keep_text: bool) -> Self {
        let reading = Reading {
            timeline,
            keep_text,
            chunk_limit: CHUNK_LIMIT,
            overflowed: false,
            body: Body::Unknown,
            is_html: false,
            size: 0,
            document: Vec::new(),
            events: sse::Decoder::default(),
            memo: Memo::default(),
            api: Api::Chat,
            native: Native::default(),
            retry_after_s: None,
            fault: None,
            marked_done: false,
            said_at: None,
            counted: true,
            last_count: 0,
            text: String::new(),
            reasoning: String::new(),
            tail: Tail::default(),
        };
        Exchange { http: http::Decoder::default(), reading, ended: None }
    }

    /// Takes as many chunks as an answer of `max_tokens` tokens may have, where that is more than is taken anyway.
    #[must_use]
    pub fn at_most(mut self, max_tokens: u64) -> Self {
        let tokens = usize::try_from(max_tokens).unwrap_or(usize::MAX);
        self.reading.chunk_limit = CHUNK_LIMIT.max(tokens.saturating_mul(CHUNKS_A_TOKEN));
        self
    }

    /// The answer is one of this endpoint.
    #[must_use]
    pub fn speaking(mut self, api: Api) -> Self {
        self.reading.api = api;
        self
    }

    /// How long the server wants to be left alone before the request is sent again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.reading.retry_after_s.map(Duration::from_secs)
    }

    /// Whether bytes of a body have come.
    pub fn has_body(&self) -> bool {
        self.reading.size > 0
    }

    /// Whether the stream has said that it is done, so that nothing is missing but the end of its transfer.
    pub fn is_said(&self) -> bool {
        self.reading.marked_done
    }

    /// Leaves a transfer that does not end although the stream is done: the answer is complete as of then.
    pub fn leave(&mut self) {
        self.ended = self.reading.said_at;
        self.reading.timeline.transfer_unended = true;
    }

    /// The request as it stands.
    pub fn timeline(&mut self) -> &mut Timeline {
        &mut self.reading.timeline
    }

    /// How many generating chunks have come.
    pub fn chunks(&self) -> usize {
        self.reading.timeline.chunks.len()
    }

    /// Takes bytes that were read at `now`.
    pub fn feed(&mut self, bytes: &[u8], now: Nanos) -> Step {
        let reading = &mut self.reading;
        let result = self.http.feed(bytes, |piece| match piece {
            Piece::Head(head) => reading.take_head(&head, now),
            Piece::Body(bytes) => reading.take_body(bytes, now),
        });
        match result {
            Ok(ControlFlow::Continue(())) if !self.http.is_done() => return Step::More,
            Ok(_) => {}
            Err(fault) => reading.fail(Outcome::BadResponse, fault.to_string()),
        }
        self.ended = Some(now);
        Step::Over
    }

    /// Whether the answer has ended.
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether the connection may carry another request.
    pub fn reusable(&self) -> bool {
        self.http.reusable()
    }

    /// The connection ended at `now`, orderly or with `error`.
    pub fn close(&mut self, error: Option<&std::io::Error>, now: Nanos) {
        self.ended = Some(now);
        let words = error.map_or_else(|| "the server closed the connection".to_owned(), ToString::to_string);
        // A reset is no orderly end, not even of an answer that lasts until the connection closes.
        match (self.http.end(), error) {
            (Ending::Complete, None) => {}
            (Ending::BeforeHead, _) => {
                self.reading.fail(Outcome::ConnectFailed, format!("{words}, before the head of an answer"));
            }
            (Ending::InBody | Ending::Complete, _) => {
                self.reading.fail(Outcome::IncompleteBody, format!("{words}, in the middle of the answer"));
            }
        }
    }

    /// Ends it from our side, or for want of a connection.
    pub fn stop(&mut self, outcome: Outcome, words: impl Into<String>, now: Nanos) {
        self.ended = Some(now);
        self.reading.fail(outcome, words.into());
    }

    /// The timeline of a request whose answer has ended; `now` stands in for the end of one that nobody ended.
    pub fn finish(self, now: Nanos) -> Timeline {
        self.reading.finish(self.ended.unwrap_or(now))
    }
}

impl Reading {
    /// The first fault is the cause; what comes after it is its result.
    fn fail(&mut self, outcome: Outcome, words: String) {
        if self.fault.is_none() {
            self.fault = Some((outcome, answer::cut(&words)));
        }
    }

    fn take_head(&mut self, head: &http::Head, now: Nanos) -> ControlFlow<()> {
        self.timeline.headers = Some(now);
        self.timeline.http_status = Some(head.status);
        if !self.succeeded() {
            self.body = Body::Document;
        }
        self.is_html = head.content_type == "text/html";
        self.retry_after_s = head.retry_after_s;
        ControlFlow::Continue(())
    }

    fn succeeded(&self) -> bool {
        self.timeline.http_status.is_some_and(|status| (200..300).contains(&status))
    }

    fn take_body(&mut self, bytes: &[u8], now: Nanos) -> ControlFlow<()> {
        self.size += bytes.len() as u64;
        if self.size > BODY_LIMIT {
            self.fail(Outcome::BadResponse, format!("the answer is longer than {BODY_LIMIT} bytes"));
            return ControlFlow::Break(());
        }
        if self.body == Body::Unknown {
            // Neither is the content type always right nor always there. A stream of events never begins with a brace.
            match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(b'{' | b'[') => self.body = Body::Document,
                Some(_) if self.is_html => self.body = Body::Document,
                Some(_) => self.body = Body::Stream,
                None => {}
            }
        }
        if self.body == Body::Document {
            return self.take_document(bytes);
        }
        let mut events = std::mem::take(&mut self.events);
        let result = events.feed(bytes, |event| self.take_event(event, now));
        self.events = events;
        if let Err(error) = result {
            self.fail(Outcome::BadResponse, error.to_string());
            return ControlFlow::Break(());
        }
        if self.overflowed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn take_document(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        if self.document.len() + bytes.len() > DOCUMENT_LIMIT {
            // Of an error's page the beginning is enough; the status has already said what it is.
            if self.succeeded() {
                self.fail(Outcome::BadResponse, format!("a document of more than {DOCUMENT_LIMIT} bytes"));
            }
            return ControlFlow::Break(());
        }
        self.document.extend_from_slice(bytes);
        ControlFlow::Continue(())
    }

    fn take_event(&mut self, event: sse::Event<'_>, now: Nanos) {
        let data = event.data.trim_ascii();
        if self.marked_done || self.overflowed || data.is_empty() {
            return;
        }
        if data == b"[DONE]" {
            self.mark_done(now);
            return;
        }
        self.timeline.first_chunk.get_or_insert(now);
        if event.name != b"error"
            && let Some((kind, text)) = self.memo.text(data)
        {
            // A remembered event carries no count.
            self.counted = false;
            // The memo's text is lent by `self.memo`, so it is kept before `self` is used as a whole.
            if self.keep_text {
                match kind {
                    ChunkKind::Content => self.text.push_str(text),
                    ChunkKind::Reasoning => self.reasoning.push_str(text),
                    ChunkKind::Other => {}
                }
            } else {
                self.tail.push(text);
            }
            self.push(Chunk { at: now, tokens: None, kind });
            return;
        }
        if event.name == b"error" {
            self.fail(Outcome::ServerErrorInStream, answer::error_words(data));
            return;
        }
        let said = match self.api {
            Api::Chat | Api::Completions => answer::read(data).inspect(|said| self.memo.learn(data, said)),
            Api::Responses => responses::read(data),
            Api::Generate | Api::Completion => self.native.read(self.api, data),
        };
        match said {
            Ok(said) => {
                // These endpoints send no `[DONE]`: their last event is the one that says why it stopped.
                let over = matches!(self.api, Api::Completion | Api::Responses) && said.finish_reason.is_some();
                self.take_said(said, now);
                if over {
                    self.mark_done(now);
                }
            }
            Err(error) => self.fail(Outcome::BadResponse, format!("an event of the stream is {error}")),
        }
    }

    fn mark_done(&mut self, now: Nanos) {
        self.marked_done = true;
        self.said_at = Some(now);
    }

    fn take_said(&mut self, said: Said<'_>, now: Nanos) {
        if let Some(words) = &said.error {
            self.fail(Outcome::ServerErrorInStream, words.clone());
        } else if said.finished_badly() {
            let reason = said.finish_reason.as_deref().unwrap_or_default();
            self.fail(Outcome::ServerErrorInStream, format!("finish reason `{reason}`"));
        }
        let generates = said.generates();
        if generates {
            let tokens = self.count(said.usage.and_then(|usage| usage.completion_tokens));
            if self.keep_text {
                self.text.push_str(said.content.as_deref().unwrap_or_default());
                self.reasoning.push_str(said.reasoning.as_deref().unwrap_or_default());
            } else {
                for text in [&said.reasoning, &said.content].into_iter().flatten() {
                    self.tail.push(text);
                }
            }
            self.push(Chunk { at: now, tokens, kind: kind(&said) });
        }
        if let Some(reason) = said.finish_reason {
            self.timeline.finish_reason = Some(reason.into_owned());
        }
        self.timeline.usage = said.usage.or(self.timeline.usage);
        self.timeline.engine = said.timings.or(self.timeline.engine);
    }

    /// Takes a chunk, and notices an answer that has no end.
    fn push(&mut self, chunk: Chunk) {
        self.timeline.chunks.push(chunk);
        let words = if self.timeline.chunks.len() > self.chunk_limit {
            format!("the answer has more than {} chunks", self.chunk_limit)
        } else if self.text.len().max(self.reasoning.len()) > TEXT_LIMIT {
            format!("the answer has more than {TEXT_LIMIT} bytes of text")
        } else {
            return;
        };
        self.overflowed = true;
        self.fail(Outcome::BadResponse, words);
    }

    /// The tokens of a generating event, by the difference of the counts that events carry.
    fn count(&mut self, count: Option<u64>) -> Option<u32> {
        let tokens = count.and_then(|count| count.checked_sub(self.last_count)).and_then(|n| u32::try_from(n).ok());
        self.last_count = count.unwrap_or(self.last_count);
        self.counted &= tokens.is_some();
        tokens
    }

    fn finish(mut self, now: Nanos) -> Timeline {
        self.timeline.done = Some(now);
        if self.succeeded() && self.body == Body::Document && self.fault.is_none() {
            self.read_document(now);
        }
        self.settle_counts();
        let (outcome, words) = self.judge();
        self.timeline.outcome = outcome;
        self.timeline.error = words;
        if self.keep_text {
            self.timeline.text = Some(self.text);
            self.timeline.reasoning_text = Some(self.reasoning).filter(|text| !text.is_empty());
        } else {
            self.timeline.tail = Some(self.tail);
        }
        self.timeline
    }

    /// A whole answer instead of a stream is one chunk at its end; an error object is an error.
    fn read_document(&mut self, now: Nanos) {
        let document = std::mem::take(&mut self.document);
        let said = match self.api {
            Api::Chat | Api::Completions => answer::read_leniently(&document),
            Api::Responses => responses::read(&document),
            Api::Generate | Api::Completion => self.native.read(self.api, &document),
        };
        match said {
            Ok(Said { error: Some(words), .. }) => self.fail(Outcome::ServerErrorInBody, words),
            Ok(said) if said.generates() || said.finish_reason.is_some() => {
                self.timeline.first_chunk = Some(now);
                self.take_said(said, now);
                self.marked_done = true;
            }
            Ok(_) => {
                let words = answer::error_words(&document);
                self.fail(Outcome::BadResponse, format!("neither a stream nor an answer: {words}"));
            }
            Err(error) => self.fail(Outcome::BadResponse, format!("the body is {error}")),
        }
    }

    /// Tokens of chunks are known when each came with a count, or when the count at the end is that of the chunks.
    fn settle_counts(&mut self) {
        let timeline = &mut self.timeline;
        let total = timeline.usage.and_then(|usage| usage.completion_tokens);
        let total = total.or(timeline.engine.and_then(|engine| engine.predicted_n));
        if self.counted && self.last_count > 0 {
            return;
        }
        let one_each = total == Some(timeline.chunks.len() as u64);
        for chunk in &mut timeline.chunks {
            chunk.tokens = one_each.then_some(1);
        }
    }

    fn judge(&mut self) -> (Outcome, Option<String>) {
        if let Some(status) = self.timeline.http_status.filter(|_| !self.succeeded()) {
            let outcome = if status == 429 { Outcome::RateLimited } else { Outcome::HttpError };
            return (outcome, Some(answer::error_words(&self.document)));
        }
        if let Some((outcome, words)) = self.fault.take() {
            return (outcome, Some(words));
        }
        if !self.marked_done && self.timeline.finish_reason.is_none() {
            return (Outcome::StreamEndedEarly, Some("neither a finish reason nor `[DONE]` came".to_owned()));
        }
        if self.timeline.chunks.is_empty() {
            return (Outcome::NoTokens, Some("not one token was generated".to_owned()));
        }
        (Outcome::Ok, None)
    }
}

fn kind(said: &Said<'_>) -> ChunkKind {
    let there = |text: &Option<std::borrow::Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
    if there(&said.content) {
        ChunkKind::Content
    } else if there(&said.reasoning) {
        ChunkKind::Reasoning
    } else {
        ChunkKind::Other
    }
}

mod framed;

#[cfg(test)]
mod tests;
