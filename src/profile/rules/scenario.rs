//! Contradictions within a scenario of the simulated engine.

use super::super::fault::Fault;
use super::super::source::Place;
use super::super::tree::{Map, Node, Value};
use crate::units::{parse_count, parse_duration, parse_share};

/// All contradictions of a scenario.
pub(crate) fn check(root: &Node, faults: &mut Vec<Fault>) {
    acceptance(root, faults);
    output(root, faults);
    let Some(serve) = root.get("serve") else { return };
    if let Some(Value::List(items)) = serve.get("faults").map(|node| &node.value) {
        items.iter().filter_map(Node::as_map).for_each(|fault| one_fault(fault, faults));
    }
    for (key, ways) in [
        ("compile", &["at", "after"][..]),
        ("restart", &["at", "after"][..]),
        ("die", &["at", "after", "mid_stream"][..]),
    ] {
        when(serve, key, ways, faults);
    }
    stall(serve, faults);
}

fn contradiction(message: impl Into<String>, at: Place, label: &str, help: impl Into<String>) -> Fault {
    Fault::new("contradiction", message).at(at, label).help(help)
}

/// A later token of a draft is accepted only with those before it.
fn acceptance(root: &Node, faults: &mut Vec<Fault>) {
    let Some(Value::List(items)) = root.get("acceptance").map(|node| &node.value) else { return };
    let shares: Vec<(f64, Place)> =
        items.iter().filter_map(|item| Some((parse_share(&item.scalar()?.text).ok()?, item.place))).collect();
    for pair in shares.windows(2) {
        if pair[1].0 > pair[0].0 {
            faults.push(
                contradiction(
                    "`acceptance`: a later token cannot be accepted more often than the one before it",
                    pair[1].1,
                    "more often",
                    "each is the share of all drafts in which this token, and so all before it, was accepted",
                )
                .and(pair[0].1, "than this"),
            );
            return;
        }
    }
    let steps = root.text_at(&["speculative", "steps"]).and_then(|text| parse_count(text).ok());
    if let (Some(steps), Some(list)) = (steps, root.get("acceptance"))
        && !items.is_empty()
        && steps != items.len() as u64
    {
        let message = format!("`acceptance` has {} shares, and {steps} tokens are drafted", items.len());
        faults.push(contradiction(message, list.place, "one for each token", "write as many as `speculative.steps`"));
    }
}

/// A length between others must have room there.
fn output(root: &Node, faults: &mut Vec<Fault>) {
    let Some(output) = root.get("output") else { return };
    let number = |key: &str| {
        let text = &output.get(key)?.scalar()?.text;
        parse_count(text).ok().map(|count| count as f64).or_else(|| text.parse::<f64>().ok())
    };
    let help = "write the smaller one first";
    if let (Some(from), Some(to)) = (number("from"), number("to"))
        && from > to
    {
        faults.push(contradiction("`output` is upside down", output.place, "`from` is above `to`", help));
    }
    if let (Some(min), Some(max)) = (number("min"), number("max"))
        && min > max
    {
        faults.push(contradiction("`output` is upside down", output.place, "`min` is above `max`", help));
    }
}

fn one_fault(fault: &Map, faults: &mut Vec<Fault>) {
    let place = |key: &str| fault.entries.get(key).map(|entry| entry.key);
    let kind = fault.entries.get("kind").and_then(|entry| entry.node.scalar()).map(|scalar| scalar.text.as_str());
    let ways: Vec<_> = ["share", "every", "requests"].into_iter().filter_map(|key| Some((key, place(key)?))).collect();
    if let [first, second, ..] = ways.as_slice() {
        let message = format!("`{}` and `{}` both say which requests a fault meets", first.0, second.0);
        faults.push(contradiction(message, second.1, "and this", "keep one of them").and(first.1, "this"));
    }
    for key in ["status", "retry_after"] {
        if let (Some(kind), Some(place)) = (kind.filter(|kind| *kind != "status"), place(key)) {
            let message = format!("`{key}` is for `kind: status`, and the kind is `{kind}`");
            faults.push(contradiction(message, place, "not for this kind", "remove it, or write `kind: status`"));
        }
    }
    let number = |key: &str| {
        let text = &fault.entries.get(key)?.node.scalar()?.text;
        parse_count(text).ok()
    };
    if let (Some(from), Some(to), Some(place)) = (number("from"), number("to"), place("to"))
        && from > to
    {
        let message = format!("a fault from request {from} to request {to} meets none");
        faults.push(contradiction(message, place, "before `from`", "write the smaller number in `from`"));
    }
}

/// What happens once must say when, in one way.
fn when(serve: &Node, key: &str, ways: &[&str], faults: &mut Vec<Fault>) {
    let Some(Value::Map(map)) = serve.get(key).map(|node| &node.value) else { return };
    let Some(at) = serve.as_map().and_then(|map| map.entries.get(key)).map(|entry| entry.key) else { return };
    let found: Vec<_> = ways.iter().filter_map(|way| Some((*way, map.entries.get(*way)?.key))).collect();
    match found.as_slice() {
        [] => {
            let ways = ways.iter().map(|way| format!("`{way}`")).collect::<Vec<_>>().join(" or ");
            let message = format!("`serve.{key}` does not say when");
            faults.push(contradiction(
                message,
                at,
                "when?",
                format!("write {ways}, for example `{key}: {{after: 20}}`"),
            ));
        }
        [_] => {}
        [first, second, ..] => {
            let message = format!("`serve.{key}` says when in two ways");
            faults.push(contradiction(message, second.1, "and this", "keep one of them").and(first.1, "this"));
        }
    }
}

fn stall(serve: &Node, faults: &mut Vec<Fault>) {
    let span = |key: &str| serve.text_at(&["stall", key]).and_then(|text| parse_duration(text).ok());
    let Some(place) = serve.at(&["stall", "every"]).map(|node| node.place) else { return };
    if let (Some(length), Some(every)) = (span("for"), span("every"))
        && every <= length
    {
        let message = "`serve.stall` begins again before it has ended";
        faults.push(contradiction(message, place, "not longer than `for`", "write a longer `every`"));
    }
}
