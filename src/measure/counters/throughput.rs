//! total tok/s = steps/s × requests per step × tokens per request-step: the three, and whether they close.

use super::acceptance::Acceptance;
use super::{Counter, Source, Window};
use crate::measure::{Measured, Timeline, TokenSource};
use crate::render::Warning;

/// The three factors may miss the client's tok/s by this share.
pub(crate) const CLOSURE_LIMIT: f64 = 0.02;

/// The factors of the throughput, each with where it is from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Throughput {
    /// Model steps a second.
    pub(crate) steps_per_s: Option<(f64, Source)>,
    /// Requests that a step gives a token to, on the mean.
    pub(crate) requests_per_step: Option<(f64, Source)>,
    /// Tokens that a step gives such a request, on the mean.
    pub(crate) tokens_per_request_step: Option<(f64, Source)>,
    /// The product of the three over the client's tok/s.
    pub(crate) closure: Option<f64>,
    /// What to say of it.
    pub(crate) warning: Option<Warning>,
}

impl Throughput {
    pub(crate) fn of(measured: &Measured, window: &Window, acceptance: &Acceptance) -> Self {
        let (Some(seconds), tokens) = (busy_s(measured), client_tokens(measured)) else { return Throughput::default() };
        let counted = |counter| window.counted(counter).filter(|count| *count > 0.0);
        let steps = counted(Counter::Steps);
        let request_steps = counted(Counter::RequestSteps);
        let mut found = Throughput {
            steps_per_s: steps.map(|steps| (steps / seconds, Source::Counters)),
            requests_per_step: steps.zip(request_steps).map(|(steps, all)| (all / steps, Source::Counters)),
            tokens_per_request_step: tokens_per_request_step(measured, window, request_steps, acceptance),
            ..Throughput::default()
        };
        if found.requests_per_step.is_none() && steps.is_some() {
            let running = window.gauge(Counter::RunningRequests).filter(|running| running.mean > 0.0);
            found.requests_per_step = running.map(|running| (running.mean, Source::Sampled));
        }
        found.close(measured, window, seconds, tokens);
        found
    }

    fn close(&mut self, measured: &Measured, window: &Window, seconds: f64, tokens: f64) {
        let (Some(steps), Some(requests), Some(each)) =
            (self.steps_per_s, self.requests_per_step, self.tokens_per_request_step)
        else {
            return;
        };
        let product = steps.0 * requests.0 * each.0;
        let client = tokens / seconds;
        if client <= 0.0 {
            return;
        }
        let closure = product / client;
        self.closure = Some(closure);
        if (closure - 1.0).abs() <= CLOSURE_LIMIT + slack(window, tokens) {
            return;
        }
        let mut text = format!(
            "{:.2} steps/s x {:.3} requests a step x {:.3} tokens = {product:.1} tok/s, {:.1} % off the client's {client:.1} tok/s",
            steps.0,
            requests.0,
            each.0,
            (closure - 1.0).abs() * 100.0
        );
        text.push_str(&why(measured, window, seconds, client, [steps.1, requests.1, each.1]));
        self.warning = Some(Warning::new("closure", text));
    }
}

/// How far the product may be off for digits that the engine did not print, as a share.
fn slack(window: &Window, tokens: f64) -> f64 {
    let of_tokens = [Counter::RequestSteps, Counter::AcceptedTokens, Counter::OutputTokens].map(|one| window.off(one));
    // Where the steps of requests are counted, the steps themselves cancel out.
    let steps = window.counted(Counter::Steps).filter(|steps| *steps > 0.0);
    let of_steps = steps.filter(|_| window.counted(Counter::RequestSteps).is_none());
    of_tokens.iter().sum::<f64>() / tokens + of_steps.map_or(0.0, |steps| window.off(Counter::Steps) / steps)
}

/// Where a factor is off, as far as the engine's own count of tokens tells.
fn why(measured: &Measured, window: &Window, seconds: f64, client: f64, sources: [Source; 3]) -> String {
    if sources.iter().any(|source| *source > Source::Requests) {
        return "; one of the factors is an estimate".to_owned();
    }
    let counts_by = |source| {
        measured.timelines.iter().any(|timeline| timeline.is_ok() && timeline.output_tokens().1 == Some(source))
    };
    if counts_by(TokenSource::Chunks) {
        return "; the client had to count chunks".to_owned();
    }
    if counts_by(TokenSource::Tokenizer) {
        return "; the client had to count tokens by the texts".to_owned();
    }
    let Some(engine) = window.counted(Counter::OutputTokens).map(|tokens| tokens / seconds) else {
        return String::new();
    };
    if (engine / client - 1.0).abs() <= CLOSURE_LIMIT {
        "; the engine's own count of tokens agrees with the client's, so some of its steps or accepted drafts gave no answer a token (such as drafts that were accepted and cut off where an answer ended)".to_owned()
    } else if engine > client {
        format!(
            "; the engine's own count is {engine:.1} tok/s: it worked for somebody else as well, or made tokens that reached no answer"
        )
    } else {
        format!("; the engine's own count is {engine:.1} tok/s")
    }
}

/// With speculation that is counted: each request-step gives its own token and the drafts that it accepted. Else what the
/// engine's own count of tokens says.
///
/// vLLM counts an accepted draft also where the limit of tokens cuts it off, and it reaches nobody: up to a draft for
/// each request. As far as that, its own count of tokens is what the steps gave.
fn tokens_per_request_step(
    measured: &Measured,
    window: &Window,
    request_steps: Option<f64>,
    acceptance: &Acceptance,
) -> Option<(f64, Source)> {
    let speculates = window.counted(Counter::VerifySteps).is_some_and(|steps| steps > 0.0);
    let accepted = window.counted(Counter::AcceptedTokens).filter(|_| speculates);
    match (request_steps, accepted, window.counted(Counter::OutputTokens)) {
        (Some(steps), Some(accepted), output) => {
            let made = steps + accepted;
            let cut_off = cut_off_at_most(measured, window);
            let given = output.filter(|given| *given < made && made - given <= cut_off).unwrap_or(made);
            Some((given / steps, Source::Counters))
        }
        (Some(steps), None, Some(tokens)) => Some((tokens / steps, Source::Counters)),
        // Each step of a request is taken as a verify step, which a prompt's own is not.
        _ if acceptance.is_known() => acceptance.length,
        _ => (!window.counted.is_empty()).then_some((1.0, Source::Estimate)),
    }
}

/// The accepted drafts that ends of answers may have cut off: none is longer than what a verify step drafts.
fn cut_off_at_most(measured: &Measured, window: &Window) -> f64 {
    let counted = |counter| window.counted(counter).filter(|count| *count > 0.0);
    let draft =
        counted(Counter::DraftTokens).zip(counted(Counter::VerifySteps)).map(|(drafted, steps)| drafted / steps);
    draft.map_or(0.0, f64::ceil) * measured.timelines.len() as f64
}

/// The seconds in which the engine worked for the measured requests: from the first sending to the last generated token,
/// or to the end of a request that failed after it. Nothing else is in flight between the two readings, so that the
/// engine's work lies within.
fn busy_s(measured: &Measured) -> Option<f64> {
    let first = measured.timelines.iter().filter_map(|timeline| timeline.sent).min()?;
    let end = |timeline: &Timeline| match timeline.is_ok() {
        true => timeline.chunks.last().map(|chunk| chunk.at),
        false => timeline.done.filter(|_| timeline.sent.is_some()),
    };
    let last = measured.timelines.iter().filter_map(end).max()?;
    last.checked_sub(first).filter(|span| *span > 0).map(|span| span as f64 / 1e9)
}

/// Tokens of all measured requests. Of those that failed, the tokens of each chunk where they are known, else as many a
/// chunk as the others have on the mean: the engine made them all the same.
fn client_tokens(measured: &Measured) -> f64 {
    let (mut tokens, mut chunks) = (0.0, 0);
    for timeline in measured.timelines.iter().filter(|timeline| timeline.is_ok()) {
        tokens += timeline.output_tokens().0 as f64;
        chunks += timeline.chunks.len();
    }
    let each = if chunks > 0 { tokens / chunks as f64 } else { 1.0 };
    let failed = measured.timelines.iter().filter(|timeline| !timeline.is_ok()).flat_map(|timeline| &timeline.chunks);
    tokens + failed.map(|chunk| chunk.tokens.map_or(each, f64::from)).sum::<f64>()
}
