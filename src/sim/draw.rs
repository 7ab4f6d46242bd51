//! What becomes of a request, settled before its first token: pure, and the same for the same seed and prompt.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use super::asked::{Asked, Route};
use super::scenario::{FaultKind, RequestFault, Scenario};
use super::words::Text;
use crate::profile::Length;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// Tokens of the answer in each step.
    pub(super) steps: Vec<Step>,
    /// Tokens in all.
    pub(super) tokens: u64,
    /// Those of them that are reasoning; they come first.
    pub(super) reasoning: u64,
    /// Whether the limit ended it.
    pub(super) by_limit: bool,
    /// A factor on all its times.
    pub(super) factor: f64,
    /// What goes wrong.
    pub(super) fault: Option<RequestFault>,
    /// What it says.
    pub(super) text: Text,
}

/// One step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Tokens that it gives.
    pub(super) tokens: u32,
    /// How many drafted ones are among them, when it verified a draft.
    pub(super) accepted: Option<u32>,
}

impl Plan {
    /// Draws what becomes of request `n` (from 1). `seed` is the scenario's, settled.
    pub(super) fn draw(scenario: &Scenario, seed: u64, n: u64, asked: &Asked) -> Plan {
        let fault = fault_of(scenario, seed, n);
        let kind = fault.as_ref().map(|fault| fault.kind);
        let mut random = generator(seed, asked);
        let text = Text::new(random.random(), &asked.question, &scenario.serve.answers, kind);
        let natural = length(&scenario.output.0, &mut random);
        let reasoning = match &scenario.serve.reasoning {
            Some(reasoning) if asked.route == Route::Chat => u64::from(reasoning.tokens),
            _ => 0,
        };
        let room = scenario.context().saturating_sub(asked.prompt.len() as u64).max(1);
        let limit = asked.max_tokens.unwrap_or(room).min(room);
        let wanted = reasoning + text.known_tokens().unwrap_or(natural).max(asked.min_tokens);
        let mut tokens = if asked.ignore_eos { limit } else { wanted.min(limit) };
        let mut by_limit = asked.ignore_eos || wanted >= limit;
        match kind {
            Some(FaultKind::NoTokens) => (tokens, by_limit) = (0, false),
            Some(FaultKind::ShortOutput) => (tokens, by_limit) = ((tokens / 2).max(1), false),
            Some(FaultKind::LongOutput) => tokens = limit + (limit / 2).max(1),
            _ => {}
        }
        let steps = steps(scenario, tokens, &mut random);
        let factor = noise(scenario.speed.noise.request, &mut by_number(seed, n, 2));
        Plan { steps, tokens, reasoning: reasoning.min(tokens), by_limit, factor, fault, text }
    }
}

/// The factor on all times of a start.
pub(super) fn start_factor(scenario: &Scenario, seed: u64) -> f64 {
    let noise_of = &scenario.speed.noise;
    let mut random = by_number(seed, 0, 3);
    let mode = match noise_of.modes.as_slice() {
        [] => 1.0,
        modes => modes[random.random_range(0..modes.len())],
    };
    mode * noise(noise_of.start, &mut random)
}

/// A generator for a number; `purpose` keeps draws for different things apart.
fn by_number(seed: u64, n: u64, purpose: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ n.rotate_left(17));
    random.set_stream(purpose);
    random
}

/// A generator that depends on the prompt alone, so that it does not matter which request comes first.
fn generator(seed: u64, asked: &Asked) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(asked.seed.unwrap_or(0).to_le_bytes());
    for id in &asked.prompt {
        hash.update(id.to_le_bytes());
    }
    ChaCha8Rng::from_seed(hash.finalize().into())
}

/// A factor around 1, normal, cut off where it would turn time around.
fn noise(deviation: f64, random: &mut ChaCha8Rng) -> f64 {
    if deviation == 0.0 { 1.0 } else { (1.0 + deviation * normal(random)).max(0.1) }
}

/// A normal variate (Box and Muller).
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (random.random(), random.random());
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn length(of: &Length, random: &mut ChaCha8Rng) -> u64 {
    match *of {
        Length::Exact(tokens) => tokens,
        Length::Range { from, to } => random.random_range(from..=to.max(from)),
        Length::Normal { mean, stdev, min, max } => {
            let drawn = (mean + stdev * normal(random)).round().max(1.0) as u64;
            drawn.clamp(min, max.max(min))
        }
    }
}

fn steps(scenario: &Scenario, tokens: u64, random: &mut ChaCha8Rng) -> Vec<Step> {
    let shares = scenario.accepted_shares();
    let mut steps = Vec::new();
    let mut left = tokens;
    while left > 0 {
        let most = u32::try_from(left).unwrap_or(u32::MAX);
        let step = if steps.is_empty() {
            Step { tokens: scenario.speed.first_tokens.clamp(1, most), accepted: None }
        } else if shares.is_empty() {
            Step { tokens: scenario.speed.tokens_per_step.clamp(1, most), accepted: None }
        } else {
            let drawn: f64 = random.random();
            let accepted = shares.iter().take_while(|share| drawn < **share).count();
            // What would go past the end is thrown away, and no part of the answer.
            let tokens = u32::try_from(accepted + 1).unwrap_or(u32::MAX).min(most);
            Step { tokens, accepted: Some(tokens - 1) }
        };
        left -= u64::from(step.tokens);
        steps.push(step);
    }
    steps
}

/// The first fault that meets a request.
fn fault_of(scenario: &Scenario, seed: u64, n: u64) -> Option<RequestFault> {
    let found = scenario.serve.faults.iter().enumerate().find(|(index, fault)| {
        let within = fault.from.is_none_or(|from| n >= from) && fault.to.is_none_or(|to| n <= to);
        let by_share = |share: f64| by_number(seed, n, 16 + *index as u64).random::<f64>() < share;
        within
            && fault.share.is_none_or(by_share)
            && fault.every.is_none_or(|every| n.is_multiple_of(every))
            && fault.requests.as_ref().is_none_or(|numbers| numbers.contains(&n))
    });
    found.map(|(_, fault)| fault.clone()).or_else(|| {
        let garbage = by_number(seed, n, 4).random::<f64>() < scenario.serve.garbage;
        garbage.then(|| RequestFault::always(FaultKind::Garbage))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(prompt: &str, more: &str) -> Asked {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{prompt}"}}]{more}}}"#);
        Asked::read(Route::Chat, body.as_bytes()).unwrap()
    }

    fn plan(scenario: &str, n: u64, prompt: &str, more: &str) -> Plan {
        Plan::draw(&Scenario::parse("s", scenario).unwrap(), 1, n, &asked(prompt, more))
    }

    #[test]
    fn the_prompt_settles_the_answer_whenever_it_comes() {
        let first = plan("{}", 1, "one", "");
        assert_eq!(first, plan("{}", 9, "one", ""));
        assert_ne!(first.tokens, 0);
        assert!((0..8).any(|n| plan("{}", 1, &format!("other {n}"), "").tokens != first.tokens));
        assert!(!first.by_limit);
    }

    #[test]
    fn exact_lengths_are_exact_and_limits_hold() {
        let exact = plan("{}", 1, "one", r#","max_tokens":33,"ignore_eos":true"#);
        assert_eq!((exact.tokens, exact.by_limit), (33, true));
        let cut = plan("output: 50", 1, "one", r#","max_tokens":20"#);
        assert_eq!((cut.tokens, cut.by_limit), (20, true));
        assert_eq!(plan("output: 50", 1, "one", r#","min_tokens":70"#).tokens, 70);
        assert_eq!(plan("{context_length: 40, output: 50}", 1, "one", "").tokens, 36, "4 tokens are the prompt");
        assert_eq!(plan("{output: 50, serve: {reasoning: {tokens: 9}}}", 1, "one", "").tokens, 59);
        assert_eq!(plan("{}", 1, "two plus two", "").tokens, 1);
    }

    #[test]
    fn drafts_are_accepted_as_often_as_told() {
        let plan = plan("{acceptance: [0.8, 0.6, 0.4], output: 20000}", 1, "one", r#","max_tokens":20000"#);
        let verified: Vec<u32> = plan.steps.iter().filter_map(|step| step.accepted).collect();
        let share = |position| verified.iter().filter(|accepted| **accepted > position).count() as f64;
        for (position, wanted) in [0.8, 0.6, 0.4].into_iter().enumerate() {
            let found = share(u32::try_from(position).unwrap()) / verified.len() as f64;
            assert!((found - wanted).abs() < 0.02, "{position}: {found}");
        }
        assert_eq!(plan.steps.iter().map(|step| u64::from(step.tokens)).sum::<u64>(), 20_000);
        assert_eq!(plan.steps[0], Step { tokens: 1, accepted: None });
    }

    #[test]
    fn a_fault_meets_the_requests_that_it_is_told() {
        let met = |scenario: &str| -> Vec<u64> {
            (1..=20).filter(|n| plan(scenario, *n, "one", "").fault.is_some()).collect()
        };
        assert_eq!(met("serve: {faults: [{kind: hang, every: 7}]}"), [7, 14]);
        assert_eq!(met("serve: {faults: [{kind: hang, requests: [3, 4]}]}"), [3, 4]);
        assert_eq!(met("serve: {faults: [{kind: hang, from: 18}]}"), [18, 19, 20]);
        assert_eq!(met("serve: {faults: [{kind: hang, every: 5, to: 12}]}"), [5, 10]);
        let some = met("serve: {faults: [{kind: hang, share: 30%}]}");
        assert!((1..15).contains(&some.len()), "{some:?}");
        assert_eq!(some, met("serve: {faults: [{kind: hang, share: 30%}]}"));
        assert_eq!(met("serve: {garbage: 1}").len(), 20);
    }

    #[test]
    fn lengths_go_wrong_as_told() {
        let of = |kind: &str| {
            let scenario = format!("serve: {{faults: [{{kind: {kind}}}]}}");
            plan(&scenario, 1, "one", r#","max_tokens":10,"ignore_eos":true"#).tokens
        };
        assert_eq!([of("no_tokens"), of("short_output"), of("long_output"), of("hang")], [0, 5, 15, 10]);
    }

    #[test]
    fn a_start_draws_its_mode_and_its_noise() {
        let scenario = Scenario::parse("s", "speed: {noise: {start: 1%, modes: [1, 2]}}").unwrap();
        let factors: Vec<f64> = (0..40).map(|seed| start_factor(&scenario, seed)).collect();
        let slow = factors.iter().filter(|factor| **factor > 1.5).count();
        assert!((5..35).contains(&slow), "{slow}");
        assert_eq!(start_factor(&Scenario::default(), 3), 1.0);
    }
}
