//! The figures of a step on both sides of a comparison, and what the throughput is a product of.

use super::super::metric;
use super::Kind;
use crate::measure::MetricValue;
use crate::record::model::StepResult;

/// The results of a step, of all runs of either side.
pub(super) struct Figures<'a> {
    pub(super) now: Vec<&'a StepResult>,
    pub(super) was: Vec<&'a StepResult>,
}

/// A value before and now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Both {
    pub(super) was: f64,
    pub(super) now: f64,
}

impl Both {
    /// What it takes from a throughput that it is a factor of: positive is a loss, in logarithms.
    pub(super) fn loss(self) -> f64 {
        (self.was / self.now).ln()
    }

    pub(super) fn change(self) -> f64 {
        self.now / self.was - 1.0
    }
}

impl Figures<'_> {
    /// A number of the step, as the mean of each side's runs; `None` unless both sides have it.
    pub(super) fn both(&self, id: &str) -> Option<Both> {
        self.mean_of(|step| metric::value(step, id))
    }

    /// The same of a distribution's mean.
    pub(super) fn mean_ms(&self, id: &str) -> Option<Both> {
        let of = |step: &StepResult| match step.metrics.get(id) {
            Some(MetricValue::Distribution(all)) => all.mean.or(all.p50),
            _ => None,
        };
        self.mean_of(of)
    }

    /// The mean of all counters whose name holds `part`, such as the clocks of several devices.
    pub(super) fn counters(&self, part: &str) -> Option<Both> {
        let of = |step: &StepResult| {
            let fitting = step.counters.iter().filter(|(name, _)| name.contains(part) && name.ends_with(".mean"));
            mean(fitting.map(|(_, value)| *value))
        };
        self.mean_of(of)
    }

    /// The share of verify steps that accepted the first draft.
    pub(super) fn first_accepted(&self) -> Option<Both> {
        self.mean_of(|step| step.acceptance_by_position.first().copied())
    }

    fn mean_of(&self, of: impl Fn(&StepResult) -> Option<f64>) -> Option<Both> {
        let side = |steps: &[&StepResult]| mean(steps.iter().filter_map(|step| of(step)));
        let both = Both { was: side(&self.was)?, now: side(&self.now)? };
        (both.was.is_finite() && both.now.is_finite()).then_some(both)
    }

    /// How much of what a request takes longer it spends before its first token, from 0 to 1.
    pub(super) fn first_token_share(&self) -> Option<f64> {
        let (first, whole) = (self.mean_ms("ttft_ms")?, self.mean_ms("e2e_ms")?);
        let longer = whole.now - whole.was;
        (longer > 0.0).then(|| ((first.now - first.was) / longer).clamp(0.0, 1.0))
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// A factor of the throughput, and what it takes from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) both: Both,
    /// In logarithms; positive is a loss.
    pub(super) loss: f64,
}

/// The factors of the throughput: model steps a second x requests a step x tokens that a step gives a request. Where the
/// engine does not count its steps, those that one request sees: its own steps a second, and tokens of each. Where it
/// `speculates` and does not tell what was accepted, these two cannot be told apart, and neither is named.
pub(super) fn parts(figures: &Figures<'_>, speculates: bool) -> Vec<Part> {
    let positive = |id: &str| figures.both(id).filter(|both| both.was > 0.0 && both.now > 0.0);
    let part = |kind, name, both: Both| Part { kind, name, both, loss: both.loss() };
    let counted = (positive("steps_per_s"), positive("requests_per_step"), positive("tokens_per_request_step"));
    if let (Some(steps), Some(batch), Some(tokens)) = counted {
        return vec![
            part(Kind::Acceptance, "tokens per request and step", tokens),
            part(Kind::StepTime, "steps/s", steps),
            part(Kind::Batch, "requests per step", batch),
        ];
    }
    let mut parts = Vec::new();
    let accepted = positive("acceptance_length");
    parts.extend(accepted.map(|both| part(Kind::Acceptance, "accepted tokens per step", both)));
    let decode = positive("decode_tokens_per_s_per_user").filter(|_| accepted.is_some() || !speculates);
    if let Some(decode) = decode {
        let one = Both { was: 1.0, now: 1.0 };
        let length = accepted.unwrap_or(one);
        let steps = Both { was: decode.was / length.was, now: decode.now / length.now };
        parts.push(part(Kind::StepTime, "steps/s of a request", steps));
        if let Some(output) = positive("output_tokens_per_s") {
            let rest = Both { was: output.was / decode.was, now: output.now / decode.now };
            parts.push(part(Kind::Prefill, "requests that decode", rest));
        }
    }
    parts
}
