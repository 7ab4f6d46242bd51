//! Contradictions within one measurement.

use crate::units::RATES;
use crate::units::parse_count;

use super::super::fault::Fault;
use super::super::source::Place;
use super::super::tree::{Map, Node, Value};
use super::{Rules, count_of};

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
        self.both(
            "concurrency",
            "rate",
            "are two ways to send requests",
            "closed loop: `concurrency`; open loop: `rate`",
        );
        if self.key("concurrency").is_none() && self.key("rate").is_none() {
            self.say(
                "does not say how requests are sent",
                self.place,
                "neither `concurrency` nor `rate`",
                "`concurrency: 8` keeps so many in flight, `rate: 4` sends so many a second",
            );
        }
        if self.key("requests").is_none() && self.key("duration").is_none() {
            self.say("has no end", self.place, "neither `requests` nor `duration`", "`requests: 48` or `duration: 2m`");
        }
        if let Some(place) = self.key("arrival").filter(|_| self.key("rate").is_none()) {
            self.say(
                "has `arrival` without `rate`",
                place,
                "needs a rate",
                "with `concurrency` a request is sent when one ends",
            );
        }
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

    fn rate(&mut self, text: &str, place: Place) {
        if text.parse::<f64>().is_ok_and(|rate| rate > 0.0 && !RATES.contains(&rate)) {
            let help = format!("a rate is from {} to {} requests a second", RATES.start(), RATES.end());
            self.say("has a rate that cannot be kept", place, text, &help);
        }
    }

    fn content(&mut self) {
        if !["use", "prompts", "input_tokens"].iter().any(|key| self.key(key).is_some()) {
            self.say("does not say what is sent", self.place, "no workload", "for example `use: chat-mix`");
        }
        self.both("output", "output_tokens", "both say when an answer ends", "keep one of the two");
        if let Some(place) = self.key("prompts")
            && matches!(self.node("prompts").map(|node| &node.value), Some(Value::List(items)) if items.is_empty())
        {
            self.say("has no prompts", place, "an empty list", "for example `prompts: [builtin/chat]`");
        }
        let is_conversation = self.node("turns").and_then(count_of).is_some_and(|turns| turns > 1);
        let is_plain = self.node("api").and_then(Node::scalar).is_some_and(|scalar| scalar.text == "completions");
        if let Some(place) = self.key("turns").filter(|_| is_conversation && is_plain) {
            self.say("has `turns` and `api: completions`", place, "a conversation", "conversations need `api: chat`");
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
