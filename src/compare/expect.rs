//! What a profile expects of a result. What is not met makes the result invalid: it is not the one that was asked for.

use serde_json::Value;

use super::metric;
use crate::record::model::{Reason, Record};

/// The expectations of the record's own profile that are not met.
pub fn unmet(record: &Record) -> Vec<Reason> {
    let expected = record.profile.get("expect").and_then(Value::as_object);
    expected.into_iter().flatten().flat_map(|(path, condition)| one(record, path, condition)).collect()
}

fn one(record: &Record, path: &str, condition: &Value) -> Vec<Reason> {
    let found = look(record, path);
    if found.is_empty() {
        let text = format!("{path} was expected to be {}, and has no value", plain(condition));
        return vec![Reason::new("expectation_unmet", text)];
    }
    let reason = |found: Found| {
        let Found { place, value, carried } = found;
        let (id, text) = if !carried {
            let text = format!("{place} was expected to be {}, and too few samples carry it", plain(condition));
            ("expectation_not_carried", text)
        } else if !met(path, &value, condition) {
            let text = format!("{place} is {}, and was expected to be {}", plain(&value), plain(condition));
            ("expectation_unmet", text)
        } else {
            return None;
        };
        Some(Reason { now: value.as_f64(), metric: Some(path.to_owned()), ..Reason::new(id, text) })
    };
    found.into_iter().filter_map(reason).collect()
}

/// A value that a path means.
struct Found {
    /// How to call it.
    place: String,
    value: Value,
    /// Whether the samples carry it. A p99 of twenty requests is their largest, and says nothing of a p99.
    carried: bool,
}

impl Found {
    /// One that is not reckoned from samples.
    fn plain(path: &str, value: Value) -> Self {
        Found { place: path.to_owned(), value, carried: true }
    }
}

/// All values that a path means: a metric without a step is that of every step that has it.
fn look(record: &Record, path: &str) -> Vec<Found> {
    if let Some(key) = path.strip_prefix("effective.") {
        let read = record.effective.iter().find(|each| each.key == key).and_then(|each| each.read.clone());
        return read.map(|value| Found::plain(path, value)).into_iter().collect();
    }
    if path == "startup_s" {
        let ready = record.startup.as_ref().and_then(|startup| startup.ready_s);
        return ready.map(|value| Found::plain(path, value.into())).into_iter().collect();
    }
    if let Some(phase) = path.strip_prefix("startup_").and_then(|rest| rest.strip_suffix("_s")) {
        let phases = record.startup.iter().flat_map(|startup| &startup.phases);
        return phases.filter(|known| known.name == phase).map(|known| Found::plain(path, known.s.into())).collect();
    }
    let mut found = Vec::new();
    for step in record.steps.iter().filter(|step| !step.probe) {
        let own = path.strip_prefix(&step.name).and_then(|rest| rest.strip_prefix('.'));
        let metric = own.unwrap_or(path);
        if let Some(value) = metric::value(step, metric) {
            let carried = metric::is_observed(metric) || metric::carried(step, metric).is_some();
            found.push(Found { place: format!("`{}`: {metric}", step.name), value: value.into(), carried });
        }
    }
    found
}

/// Whether a value of a metric meets a condition such as `< 500`.
pub fn holds(metric: &str, value: f64, condition: &str) -> bool {
    met(metric, &value.into(), &condition.into())
}

fn met(path: &str, value: &Value, condition: &Value) -> bool {
    match (value.as_f64(), condition) {
        (Some(value), Value::Number(wanted)) => wanted.as_f64().is_some_and(|wanted| same(value, wanted)),
        (_, Value::String(text)) => match comparison(path, text) {
            Some((sign, limit)) => value.as_f64().is_some_and(|value| compares(value, sign, limit)),
            None => plain(value) == *text,
        },
        (_, condition) => value == condition,
    }
}

/// Takes `>= 2.4`, `< 500ms`, `> 50 %` apart. A latency in `_ms` may be given in either unit of time.
fn comparison(path: &str, text: &str) -> Option<(&'static str, f64)> {
    let text = text.trim();
    let sign = [">=", "<=", "==", "!=", ">", "<"].into_iter().find(|sign| text.starts_with(sign))?;
    let limit = text[sign.len()..].trim();
    let digits = limit.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
    let number: f64 = digits.trim().replace(',', "").parse().ok()?;
    let name = path.rsplit('.').find(|part| part.ends_with("_ms") || part.ends_with("_s")).unwrap_or_default();
    let scale = match (&limit[digits.len()..], name.ends_with("_ms")) {
        ("", _) | ("ms", true) => 1.0,
        ("s", true) => 1000.0,
        ("s", false) => 1.0,
        ("ms", false) => 0.001,
        ("%", _) => 0.01,
        ("k", _) => 1000.0,
        _ => return None,
    };
    Some((sign, number * scale))
}

fn compares(value: f64, sign: &str, limit: f64) -> bool {
    match sign {
        ">=" => value >= limit,
        "<=" => value <= limit,
        ">" => value > limit,
        "<" => value < limit,
        "==" => same(value, limit),
        _ => !same(value, limit),
    }
}

/// Equal up to what writing a number down and reading it again may cost.
fn same(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // A number that was written `16` is held as 16.0.
        value => match value.as_f64() {
            Some(number) => number.to_string(),
            None => value.to_string(),
        },
    }
}
