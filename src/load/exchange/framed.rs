//! An answer whose framing was taken off before: HTTP/2 says itself where heads, bodies and answers end.

use std::ops::ControlFlow;

use super::{Exchange, Step};
use crate::clock::Nanos;
use crate::load::http::Head;
use crate::measure::Outcome;

impl Exchange {
    /// Takes the head.
    pub fn head(&mut self, head: &Head, now: Nanos) {
        // A head alone breaks nothing off.
        let _ = self.reading.take_head(head, now);
    }

    /// Takes bytes of the body that were read at `now`.
    pub fn body(&mut self, bytes: &[u8], now: Nanos) -> Step {
        match self.reading.take_body(bytes, now) {
            ControlFlow::Continue(()) => Step::More,
            ControlFlow::Break(()) => {
                self.ended = Some(now);
                Step::Over
            }
        }
    }

    /// The answer is complete.
    pub fn end(&mut self, now: Nanos) {
        self.ended = Some(now);
    }

    /// It broke off.
    pub fn break_off(&mut self, words: &str, now: Nanos) {
        match self.reading.timeline.headers {
            None => self.stop(Outcome::ConnectFailed, format!("{words}, before the head of an answer"), now),
            Some(_) => self.stop(Outcome::IncompleteBody, format!("{words}, in the middle of the answer"), now),
        }
    }
}
