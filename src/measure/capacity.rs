//! What a server can hold at once, and whether a step's load goes beyond it.

use super::Measured;
use crate::record::model::Reason;
use crate::render::{Arrival, Step, Stop, Warning};

/// What a server says it can hold. `None`: it does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Requests that run at once; more wait.
    pub running_requests: Option<u64>,
    /// Tokens that the KV cache holds.
    pub kv_tokens: Option<u64>,
    /// The largest batch for which a graph was captured; a larger one runs without.
    pub graph_batch: Option<u64>,
    /// Tokens of a request, prompt and answer together.
    pub context_tokens: Option<u64>,
    /// Whether drafting is on, where speculation was asked for.
    pub draft_active: Option<bool>,
}

/// Tokens in a prompt are estimated as one for so many bytes of its text, where they are not known.
const BYTES_PER_TOKEN: u64 = 4;

/// How long a step's requests are, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Lengths {
    mean: f64,
    longest: f64,
}

impl Lengths {
    /// By its prompts and its limit: an estimate of the former, and what the answers may come to.
    fn planned(step: &Step) -> Option<Self> {
        let most = match step.workload.stop {
            Stop::Natural { max_tokens } => max_tokens,
            Stop::Exact { tokens } => tokens,
        } as f64;
        let prompts = step.workload.prompts.iter().map(|prompt| (prompt.text.len() as u64).div_ceil(BYTES_PER_TOKEN));
        let prompts: Vec<f64> = prompts.map(|tokens| tokens as f64).collect();
        let longest = prompts.iter().copied().reduce(f64::max)?;
        Some(Lengths { mean: prompts.iter().sum::<f64>() / prompts.len() as f64 + most, longest: longest + most })
    }

    /// By the engine's own counts; `None` unless each request that ended `ok` has them.
    fn measured(measured: &Measured) -> Option<Self> {
        let ok = measured.timelines.iter().filter(|timeline| timeline.is_ok());
        let each = ok.map(|timeline| Some((timeline.input_tokens()? + timeline.output_tokens().0) as f64));
        let each: Vec<f64> = each.collect::<Option<_>>()?;
        let longest = each.iter().copied().reduce(f64::max)?;
        Some(Lengths { mean: each.iter().sum::<f64>() / each.len() as f64, longest })
    }
}

impl Capacity {
    /// How many requests of this step the KV cache holds at once, by what is known of them before they are sent.
    pub fn fits(&self, step: &Step) -> Option<u64> {
        let lengths = Lengths::planned(step)?;
        Some((self.kv_tokens? as f64 / lengths.mean.max(1.0)) as u64)
    }

    /// How many requests of this step run at once, at most; `None` where it sends at a rate.
    fn at_once(&self, step: &Step) -> Option<(u64, u64)> {
        let Arrival::Closed { concurrency } = step.load.arrival else { return None };
        let asked = u64::from(concurrency);
        Some((asked, self.running_requests.map_or(asked, |cap| asked.min(cap))))
    }

    /// What a person should know before the step is loaded.
    pub fn warnings(&self, step: &Step) -> Vec<Warning> {
        let mut warnings: Vec<Warning> = self
            .over(step, Lengths::planned(step), true)
            .into_iter()
            .map(|(id, text)| Warning::new(id, text))
            .collect();
        if let (Some(context), Some(lengths)) = (self.context_tokens, Lengths::planned(step))
            && lengths.longest > context as f64
        {
            let text = format!(
                "the longest request may come to about {:.0} tokens, and the server takes {context}: `context_length`",
                lengths.longest
            );
            warnings.push(Warning::new("over_context", text));
        }
        if self.draft_active == Some(false) {
            let text = "speculation was asked for, and the server runs without a draft";
            warnings.push(Warning::new("draft_inactive", text));
        }
        warnings
    }

    /// Why the step is no measurement of the load that was asked for.
    pub fn reasons(&self, measured: &Measured, step: &Step) -> Vec<Reason> {
        let over = self.over(step, Lengths::measured(measured), false);
        over.into_iter().map(|(id, text)| Reason::new(id, text)).collect()
    }

    fn over(&self, step: &Step, lengths: Option<Lengths>, is_estimate: bool) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let Some((asked, at_once)) = self.at_once(step) else { return found };
        if let Some(cap) = self.running_requests.filter(|cap| asked > *cap) {
            let text = format!(
                "{asked} requests at once are asked for, and the server runs {cap}: {} wait in its queue (`max_running_requests`)",
                asked - cap
            );
            found.push(("over_running_cap", text));
        }
        if let (Some(kv), Some(lengths)) = (self.kv_tokens, lengths)
            && lengths.mean * at_once as f64 > kv as f64
        {
            let about = if is_estimate { "about " } else { "" };
            let text = format!(
                "{at_once} requests of {about}{:.0} tokens do not fit into the KV cache of {kv} tokens: {:.0} do",
                lengths.mean,
                (kv as f64 / lengths.mean).floor()
            );
            found.push(("over_kv", text));
        }
        if let Some(largest) = self.graph_batch.filter(|largest| at_once > *largest) {
            let text = format!(
                "a batch of {at_once} has no captured graph, the largest is {largest}: its steps run without (`graphs.max_batch`)"
            );
            found.push(("over_graphs", text));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::{closed, ok, step};
    use crate::profile::Prompt;

    fn capacity() -> Capacity {
        Capacity {
            running_requests: Some(10),
            kv_tokens: Some(1000),
            graph_batch: Some(8),
            context_tokens: Some(100),
            draft_active: None,
        }
    }

    /// A prompt of 100 bytes, so about 25 tokens, and at most 8 tokens of an answer.
    fn load(concurrency: u32) -> Step {
        let mut step = step(closed(concurrency));
        step.workload.prompts = vec![Prompt { id: "p".to_owned(), text: "x".repeat(100) }];
        step
    }

    fn ids(capacity: &Capacity, step: &Step) -> Vec<String> {
        capacity.warnings(step).into_iter().map(|warning| warning.id).collect()
    }

    #[test]
    fn each_limit_is_found_before_the_load_and_what_is_not_said_is_none() {
        assert_eq!(ids(&capacity(), &load(8)), [""; 0]);
        assert_eq!(ids(&capacity(), &load(9)), ["over_graphs"]);
        assert_eq!(ids(&capacity(), &load(16)), ["over_running_cap", "over_graphs"]);
        assert_eq!(capacity().fits(&load(1)), Some(30));
        // Of 40, ten run: those fit. Without the cap, 40 of 33 tokens do not.
        let uncapped = Capacity { running_requests: None, graph_batch: None, ..capacity() };
        assert_eq!(ids(&uncapped, &load(40)), ["over_kv"]);
        assert_eq!(ids(&uncapped, &load(30)), [""; 0]);
        let short = Capacity { context_tokens: Some(32), draft_active: Some(false), ..Capacity::default() };
        assert_eq!(ids(&short, &load(400)), ["over_context", "draft_inactive"]);
        assert_eq!(ids(&Capacity::default(), &load(400)), [""; 0]);
        let texts = capacity().warnings(&load(16));
        assert_eq!(
            texts[0].text,
            "16 requests at once are asked for, and the server runs 10: 6 wait in its queue (`max_running_requests`)"
        );
    }

    #[test]
    fn afterwards_the_requests_own_lengths_count() {
        // Seven tokens of prompt and two of an answer each.
        let measured = Measured { timelines: vec![ok(0, 10, 20, 2); 20], ..Measured::default() };
        let tight = Capacity { kv_tokens: Some(80), ..Capacity::default() };
        let ids = |concurrency| {
            let reasons = tight.reasons(&measured, &load(concurrency)).into_iter();
            reasons.map(|reason| (reason.id, reason.text)).collect::<Vec<_>>()
        };
        assert_eq!(ids(8), []);
        assert_eq!(
            ids(9),
            [(
                "over_kv".to_owned(),
                "9 requests of 9 tokens do not fit into the KV cache of 80 tokens: 8 do".to_owned()
            )]
        );
        // A count that is not there is not made up.
        let mut unknown = measured.clone();
        unknown.timelines[3].usage = None;
        assert_eq!(tight.reasons(&unknown, &load(9)), []);
    }

    #[test]
    fn a_load_at_a_rate_is_over_no_cap_since_its_queue_is_what_is_measured() {
        let mut open = load(1);
        open.load.arrival = Arrival::Open { rate: 1000.0, shape: "poisson".to_owned() };
        assert_eq!(ids(&capacity(), &open), [""; 0]);
    }
}
