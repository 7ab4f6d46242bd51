//! Contradictions within one measurement.

use crate::units::RATES;
use crate::units::parse_count;

use super::super::fault::Fault;
use super::super::source::Place;
use super::super::tree::{Map, Node, Value};
use super::{Rules, count_of, search};

/// The ways in which requests are sent.
const WAYS: [&str; 6] = ["concurrency", "rate", "stages", "bursts", "trace", "search"];

/// Rules of one measurement.
pub(super) struct Bench<'r, 'a> {
    pub(super) name: &'r str,
    pub(super) keys: &'r Map,
    pub(super) place: Place,
    pub(super) rules: &'r mut Rules<'a>,
}

impl Bench<'_, '_> {
    fn key(&self, key: &str) -> Option<Place> {
        self.keys.entries.get(key).map(|entry| entry.key)
    }

    fn node(&self, key: &str) -> Option<&Node> {
        self.keys.entries.get(key).map(|entry| &entry.node)
    }

    fn both(&mut self, first: &str, second: &str, why: &str, help: &str) {
        if let (Some(one), Some(two)) = (self.key(first), self.key(second)) {
            self.rules.faults.push(
                Fault::new("contradiction", format!("`bench.{}`: `{first}` and `{second}` {why}", self.name))
                    .at(two, "and this")
                    .and(one, "this")
                    .help(help),
            );
        }
    }

    fn say(&mut self, what: &str, place: Place, label: &str, help: &str) {
        self.rules.contradiction(format!("`bench.{}` {what}", self.name), place, label, help);
    }

    pub(super) fn check(&mut self) {
        self.load();
        self.content();
        self.lengths();
    }

    fn load(&mut self) {
        self.ways();
        let own_end = ["stages", "trace"].iter().any(|key| self.key(key).is_some());
        if self.key("requests").is_none() && self.key("duration").is_none() && !own_end {
            self.say("has no end", self.place, "neither `requests` nor `duration`", "`requests: 48` or `duration: 2m`");
        }
        self.both("stages", "duration", "both say how long it lasts", "take out `duration`");
        self.gaps();
        self.search();
        for key in ["concurrency", "rate"] {
            let items = match self.node(key).map(|node| &node.value) {
                Some(Value::List(items)) => items.clone(),
                Some(_) if key == "rate" => self.node(key).cloned().into_iter().collect(),
                _ => continue,
            };
            if items.is_empty() {
                let place = self.key(key).unwrap_or(self.place);
                self.say(
                    &format!("has an empty `{key}`"),
                    place,
                    "no load",
                    "name at least one, or remove the measurement",
                );
            }
            let mut seen: Vec<(String, Place)> = Vec::new();
            for item in items {
                let Some(text) = item.scalar().map(|scalar| scalar.text.clone()) else { continue };
                if key == "rate" {
                    self.rate(&text, item.place);
                }
                if let Some((_, before)) = seen.iter().find(|(other, _)| *other == text) {
                    self.rules.faults.push(
                        Fault::new("contradiction", format!("`bench.{}.{key}` holds {text} twice", self.name))
                            .at(item.place, "again here")
                            .and(*before, "first here")
                            .help("each value is a step with a name of its own; for more measurements use `repeat`"),
                    );
                }
                seen.push((text, item.place));
            }
        }
    }

    /// One way to send requests, and no second.
    fn ways(&mut self) {
        let given: Vec<&str> = WAYS.iter().copied().filter(|key| self.key(key).is_some()).collect();
        match given.as_slice() {
            [] => self.say(
                "does not say how requests are sent",
                self.place,
                "neither `concurrency` nor `rate`",
                "`concurrency: 8` keeps so many in flight, `rate: 4` sends so many a second; there are `stages`, `bursts`, `trace` and `search` too",
            ),
            [_] => {}
            [one, two, ..] => self.both(
                one,
                two,
                "are two ways to send requests",
                "closed loop: `concurrency`; open loop: one of `rate`, `stages`, `bursts` and `trace`",
            ),
        }
    }

    /// How gaps are spread, where there are any to spread.
    fn gaps(&mut self) {
        let at_a_rate = ["rate", "stages"].iter().any(|key| self.key(key).is_some())
            || self.node("search").and_then(|search| search.get("rate")).is_some();
        if let Some(place) = self.key("arrival").filter(|_| !at_a_rate) {
            self.say(
                "has `arrival` without `rate`",
                place,
                "needs a rate",
                "with `concurrency` a request is sent when one ends, and `bursts` and `trace` have their own moments",
            );
        }
        let is_gamma = self.node("arrival").and_then(Node::scalar).is_some_and(|scalar| scalar.text == "gamma");
        match (self.key("burstiness"), self.key("arrival")) {
            (Some(place), _) if !is_gamma => self.say(
                "has `burstiness` without `arrival: gamma`",
                place,
                "the shape of gamma gaps",
                "add `arrival: gamma`",
            ),
            (None, Some(place)) if is_gamma => self.say(
                "has `arrival: gamma` without `burstiness`",
                place,
                "of which shape?",
                "for example `burstiness: 0.5`; 1 would be `poisson`",
            ),
            _ => {}
        }
        if let Some(Value::List(stages)) = self.node("stages").map(|node| &node.value).cloned() {
            if stages.is_empty() {
                let place = self.key("stages").unwrap_or(self.place);
                self.say("has no stages", place, "no load", "for example `stages: [{rate: 2, duration: 30s}]`");
            }
            let number = |node: &Node, key: &str| node.get(key).and_then(Node::scalar)?.text.parse::<f64>().ok();
            for rate in stages.iter().filter_map(|stage| stage.get("rate")) {
                let text = rate.scalar().map(|scalar| scalar.text.clone());
                if let Some(text) = text {
                    self.rate(&text, rate.place);
                }
                let (from, to) = (number(rate, "from"), number(rate, "to"));
                if (from, to) == (Some(0.0), Some(0.0)) {
                    self.say("has a ramp from 0 to 0", rate.place, "sends nothing", "one of its ends is above 0");
                }
                for high in [from, to].into_iter().flatten().filter(|rate| rate > RATES.end()) {
                    self.rate(&high.to_string(), rate.place);
                }
            }
        }
    }

    fn search(&mut self) {
        let (Some(place), Some(search)) = (self.key("search"), self.node("search").cloned()) else { return };
        for slip in search::slips(&search, place) {
            self.say(slip.what, slip.place, slip.label, slip.help);
        }
        if self.key("goodput").is_none() {
            self.say(
                "searches without limits",
                place,
                "when is a load too high?",
                "for example `goodput: {ttft_ms: 500ms, tpot_ms: 30ms}`",
            );
        }
    }

    fn rate(&mut self, text: &str, place: Place) {
        if text.parse::<f64>().is_ok_and(|rate| rate > 0.0 && !RATES.contains(&rate)) {
            let help = format!("a rate is from {} to {} requests a second", RATES.start(), RATES.end());
            self.say("has a rate that cannot be kept", place, text, &help);
        }
    }

    fn content(&mut self) {
        if !["use", "prompts", "input_tokens", "trace"].iter().any(|key| self.key(key).is_some()) {
            self.say("does not say what is sent", self.place, "no workload", "for example `use: chat-mix`");
        }
        self.both("output", "output_tokens", "both say when an answer ends", "keep one of the two");
        if let Some(place) = self.key("prompts")
            && matches!(self.node("prompts").map(|node| &node.value), Some(Value::List(items)) if items.is_empty())
        {
            self.say("has no prompts", place, "an empty list", "for example `prompts: [builtin/chat]`");
        }
        let is_conversation = self.node("turns").and_then(count_of).is_some_and(|turns| turns > 1);
        let other = self.node("api").and_then(Node::scalar).map(|scalar| scalar.text.clone());
        let other = other.filter(|api| api != "chat" && api != "responses");
        let Some(place) = self.key("turns").filter(|_| is_conversation) else { return };
        if let Some(api) = other {
            let what = format!("has `turns` and `api: {api}`");
            self.say(&what, place, "a conversation", "conversations need `api: chat` or `api: responses`");
        }
        let open = ["rate", "stages", "bursts", "trace"].into_iter().find(|key| self.key(key).is_some());
        if let Some(key) = open {
            let what = format!("has `turns` and `{key}`");
            self.say(&what, place, "a conversation", "a turn is due when the one before it is answered: `concurrency`");
        }
        if self.key("input_tokens").is_some() {
            self.say("has `turns` and `input_tokens`", place, "grows by each turn", "give `prompts`");
        }
    }

    fn lengths(&mut self) {
        let output = self.node("output_tokens").or_else(|| self.node("output").and_then(|node| node.get("exact")));
        for length in [self.node("input_tokens"), output].into_iter().flatten().cloned().collect::<Vec<_>>() {
            self.length_order(&length);
        }
        let longest = |node: Option<&Node>| node.and_then(longest);
        let input = longest(self.node("input_tokens"));
        let output = longest(self.node("output_tokens"))
            .or_else(|| longest(self.node("output").and_then(|node| node.get("exact"))));
        let context = self.rules.root.get("context_length").and_then(count_of);
        if let (Some(input), Some(context), Some(place)) = (input, context, self.key("input_tokens"))
            && input.saturating_add(output.unwrap_or(0)) > context
        {
            let output = output.map_or_else(String::new, |output| format!(" and {output} out"));
            self.say(
                &format!("asks for {input} tokens in{output}, and `context_length` is {context}"),
                place,
                "does not fit",
                "raise `context_length`, or shorten the requests",
            );
        }
    }

    fn length_order(&mut self, length: &Node) {
        let number = |key: &str| {
            length.get(key).and_then(Node::scalar).and_then(|scalar| {
                parse_count(&scalar.text).ok().map(|count| count as f64).or_else(|| scalar.text.parse::<f64>().ok())
            })
        };
        if let (Some(from), Some(to)) = (number("from"), number("to"))
            && from > to
        {
            self.say(
                "has a length range upside down",
                length.place,
                "`from` is above `to`",
                "write the smaller one first",
            );
        }
        if let (Some(mean), Some(min), Some(max)) = (number("mean"), number("min"), number("max"))
            && !(min <= mean && mean <= max)
        {
            self.say(
                "has lengths that cannot be drawn",
                length.place,
                "`mean` is not between `min` and `max`",
                "`min` <= `mean` <= `max`",
            );
        }
    }
}

/// The longest that a length can be.
fn longest(node: &Node) -> Option<u64> {
    match &node.value {
        Value::Scalar(_) => count_of(node),
        _ => node.get("to").or_else(|| node.get("max")).and_then(count_of),
    }
}
