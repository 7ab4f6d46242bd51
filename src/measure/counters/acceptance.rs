//! How many drafted tokens were accepted, from the best source there is.

use super::{Counter, Source};
use crate::measure::{Measured, Seen};

/// What speculation came to. Each figure is absent where its source does not have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Acceptance {
    /// Drafted tokens accepted.
    pub(crate) accepted: Option<f64>,
    /// Verify steps, for each request.
    pub(crate) verify_steps: Option<f64>,
    /// Tokens drafted.
    pub(crate) drafted: Option<f64>,
    /// Tokens a verify step gives, its own included, and where that is from.
    pub(crate) length: Option<(f64, Source)>,
    /// Accepted of drafted tokens, and where that is from.
    pub(crate) ratio: Option<(f64, Source)>,
    /// For each place in the draft, the share of verify steps that accepted it.
    pub(crate) by_position: Vec<f64>,
}

impl Acceptance {
    /// From the first source that knows of drafts: the counters, the answers, the log, the gauges. Without drafts there
    /// is no acceptance, whatever a gauge shows.
    pub(crate) fn of(measured: &Measured, seen: &Seen) -> Self {
        let sources = [from_counters(seen), from_requests(measured), from_log(seen), from_gauges(seen)];
        let known: Vec<Acceptance> = sources.into_iter().filter(Acceptance::is_known).collect();
        let mut found = known.first().cloned().unwrap_or_default();
        // A source may know the ratio and not the length, or the other way round.
        found.length = found.length.or_else(|| known.iter().find_map(|other| other.length));
        found.ratio = found.ratio.or_else(|| known.iter().find_map(|other| other.ratio));
        found
    }

    /// Whether there was speculation.
    pub(crate) fn is_known(&self) -> bool {
        self.length.is_some() || self.ratio.is_some()
    }

    fn counted(accepted: f64, verify_steps: Option<f64>, drafted: Option<f64>, source: Source) -> Self {
        let verify_steps = verify_steps.filter(|count| *count > 0.0);
        let drafted = drafted.filter(|count| *count > 0.0);
        Acceptance {
            accepted: Some(accepted),
            verify_steps,
            drafted,
            length: verify_steps.map(|steps| (1.0 + accepted / steps, source)),
            ratio: drafted.map(|drafted| (accepted / drafted, source)),
            by_position: Vec::new(),
        }
    }
}

fn from_counters(seen: &Seen) -> Acceptance {
    let Some(window) = &seen.counters else { return Acceptance::default() };
    let Some(accepted) = window.counted(Counter::AcceptedTokens) else { return Acceptance::default() };
    let steps = window.counted(Counter::VerifySteps);
    let mut found = Acceptance::counted(accepted, steps, window.counted(Counter::DraftTokens), Source::Counters);
    if let Some(steps) = found.verify_steps {
        found.by_position = window.by_position.iter().map(|accepted| accepted / steps).collect();
    }
    found
}

/// The engine's words with each answer: llama.cpp's `timings`, SGLang's details of speculation.
fn from_requests(measured: &Measured) -> Acceptance {
    let mut sums = (0, 0, 0, 0);
    let mut all_verify = true;
    for timeline in measured.timelines.iter().filter(|timeline| timeline.is_ok()) {
        let Some(engine) = timeline.engine else { continue };
        // The first token is the prompt's. Each step after it gave its own token and the drafts that it accepted.
        let after_first = engine.predicted_n.unwrap_or(timeline.output_tokens().0).saturating_sub(1);
        let told = engine.draft_n_accepted.or_else(|| after_first.checked_sub(engine.verify_n?));
        let Some(accepted) = told else { continue };
        let drafted = engine.draft_n.unwrap_or(0);
        let stepped = after_first.saturating_sub(accepted);
        all_verify &= engine.verify_n.is_some();
        sums.0 += drafted;
        sums.1 += accepted;
        sums.2 += engine.verify_n.unwrap_or(stepped);
        sums.3 += 1;
    }
    let (drafted, accepted, steps, requests) = sums;
    if requests == 0 || (drafted == 0 && !all_verify) {
        return Acceptance::default();
    }
    let mut found = Acceptance::counted(accepted as f64, Some(steps as f64), Some(drafted as f64), Source::Requests);
    if !all_verify {
        // Steps without a draft are among them, where the engine does not say how many drafts it verified.
        found.verify_steps = None;
        found.length = found.length.map(|(length, _)| (length, Source::Estimate));
    }
    found
}

fn from_log(seen: &Seen) -> Acceptance {
    let Some(lines) = &seen.acceptance_lines else { return Acceptance::default() };
    lines.acceptance()
}

fn from_gauges(seen: &Seen) -> Acceptance {
    let Some(window) = &seen.counters else { return Acceptance::default() };
    let of = |counter, source| {
        window.gauge(counter).filter(|gauge| gauge.samples > 0 && gauge.mean > 0.0).map(|gauge| (gauge.mean, source))
    };
    let length = of(Counter::IntervalAcceptanceLength, Source::Sampled)
        .or_else(|| of(Counter::AverageAcceptanceLength, Source::Average));
    Acceptance { length, ..Acceptance::default() }
}
