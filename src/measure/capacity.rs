//! What a server can hold at once, and whether a step's load goes beyond it.

use super::counters::Counter;
use super::{Measured, Seen};
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

/// A KV cache of which so much was in use at a moment was full: what is left is no room for one more request.
pub const KV_FULL_RATIO: f64 = 0.97;
/// Requests that wait in more than this share of the samples, with fewer running than may, wait for room. A few wait at
/// any time until their prompt is taken up.
pub const WAITING_RATIO: f64 = 0.5;

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

    /// By the engine's own counts; `None` unless each request that ended `ok` has them. What came from the prefix cache
    /// is held once for all who share it.
    fn measured(measured: &Measured) -> Option<Self> {
        let ok = measured.timelines.iter().filter(|timeline| timeline.is_ok());
        let each = ok.map(|timeline| {
            let own = timeline.input_tokens()?.saturating_sub(timeline.cached_tokens().unwrap_or(0));
            Some(own as f64 + timeline.output_tokens().0 as f64)
        });
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
    pub fn reasons(&self, measured: &Measured, step: &Step, seen: &Seen) -> Vec<Reason> {
        let over = self.over(step, Lengths::measured(measured), false);
        // Requests are not all at their full length at the same time: by their lengths alone it is not known.
        let short = self.short_of_kv(step, seen);
        let over = over.into_iter().filter_map(|(id, text)| match (id, &short) {
            ("over_kv", Some(sign)) => Some(Reason::new(id, format!("{text}; {sign}"))),
            ("over_kv", None) => None,
            _ => Some(Reason::new(id, text)),
        });
        over.collect()
    }

    /// A sign that the KV cache did not hold what ran.
    fn short_of_kv(&self, step: &Step, seen: &Seen) -> Option<String> {
        let counted = seen.counters.as_ref().and_then(|window| window.counted(Counter::Preemptions));
        let logged = seen.log.as_ref().and_then(|log| log.retracted).map(|count| count as f64);
        if let Some(count) = counted.into_iter().chain(logged).reduce(f64::max).filter(|count| *count > 0.0) {
            return Some(format!("the engine took {count:.0} requests back"));
        }
        let gauge = |counter| seen.counters.as_ref()?.gauge(counter).filter(|gauge| gauge.samples > 0);
        if let Some(kv) = gauge(Counter::KvUsageRatio).filter(|kv| kv.max >= KV_FULL_RATIO) {
            return Some(format!("it was {:.0} % full", kv.max * 100.0));
        }
        let (waiting, running) = (gauge(Counter::WaitingRequests)?, gauge(Counter::RunningRequests)?);
        let (_, at_once) = self.at_once(step)?;
        let held_back = waiting.above_zero_ratio > WAITING_RATIO && running.max < at_once as f64;
        held_back.then(|| {
            let (running, waited) = (running.max, waiting.above_zero_ratio * 100.0);
            format!("no more than {running:.0} ran, and others waited in {waited:.0} % of the samples")
        })
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
    use crate::measure::Logged;
    use crate::measure::counters::{Gauge, Window};
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
        step.workload.prompts = vec![Prompt { id: "p".to_owned(), text: "x".repeat(100), then: Vec::new() }];
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
        let full = gauges(&[(Counter::KvUsageRatio, 0.98, 1.0)]);
        let ids = |concurrency| {
            let reasons = tight.reasons(&measured, &load(concurrency), &full).into_iter();
            reasons.map(|reason| (reason.id, reason.text)).collect::<Vec<_>>()
        };
        assert_eq!(ids(8), []);
        assert_eq!(
            ids(9),
            [(
                "over_kv".to_owned(),
                "9 requests of 9 tokens do not fit into the KV cache of 80 tokens: 8 do; it was 98 % full".to_owned()
            )]
        );
        // A count that is not there is not made up.
        let mut unknown = measured.clone();
        unknown.timelines[3].usage = None;
        assert_eq!(tight.reasons(&unknown, &load(9), &full), []);
        // Of seven tokens of each prompt five are shared with the others.
        let mut shared = measured;
        shared.timelines.iter_mut().for_each(|one| one.usage.as_mut().unwrap().cached_tokens = Some(5));
        assert_eq!(tight.reasons(&shared, &load(9), &full), []);
    }

    /// Gauges with their maximum and the share of samples above 0.
    fn gauges(each: &[(Counter, f64, f64)]) -> Seen {
        let gauge = |max, above_zero_ratio| Gauge { samples: 10, mean: max, max, above_zero_ratio };
        let gauges = each.iter().map(|(counter, max, above)| (*counter, gauge(*max, *above)));
        Seen { counters: Some(Window { gauges: gauges.collect(), ..Window::default() }), ..Seen::default() }
    }

    #[test]
    fn lengths_beyond_the_kv_cache_are_a_reason_only_where_the_server_ran_short() {
        let measured = Measured { timelines: vec![ok(0, 10, 20, 2); 20], ..Measured::default() };
        let tight = Capacity { kv_tokens: Some(80), ..Capacity::default() };
        let over = |seen: &Seen| tight.reasons(&measured, &load(16), seen).iter().any(|reason| reason.id == "over_kv");
        assert!(!over(&Seen::default()), "requests that are staggered fit");
        assert!(!over(&gauges(&[(Counter::KvUsageRatio, 0.9, 1.0)])));
        let waiting = |running, waited| {
            gauges(&[(Counter::WaitingRequests, 6.0, waited), (Counter::RunningRequests, running, 1.0)])
        };
        assert!(over(&waiting(10.0, 0.8)));
        assert!(!over(&waiting(10.0, 0.2)), "a prompt that is not taken up at once");
        assert!(!over(&waiting(16.0, 0.8)), "all ran");
        let log = Logged { retracted: Some(1), ..Logged::default() };
        assert!(over(&Seen { log: Some(log), ..Seen::default() }));
        let counted = [(Counter::Preemptions, 2.0)].into_iter().collect();
        assert!(over(&Seen { counters: Some(Window { counted, ..Window::default() }), ..Seen::default() }));
    }

    #[test]
    fn a_load_at_a_rate_is_over_no_cap_since_its_queue_is_what_is_measured() {
        let mut open = load(1);
        open.load.arrival = Arrival::Open { rate: 1000.0, shape: "poisson".to_owned(), burstiness: None };
        assert_eq!(ids(&capacity(), &open), [""; 0]);
    }
}
