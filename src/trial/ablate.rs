//! Which of the differences between two settings makes the difference: each alone onto the good one, and each taken back
//! from the bad one.

use serde::Serialize;
use serde_json::Value;

use crate::compare::Difference;

/// A difference as `--set` arguments: onto the good one, and back from the bad one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The path of the setting.
    pub path: String,
    /// In words.
    pub text: String,
    /// What puts it onto the good one.
    pub onto: String,
    /// What takes it back from the bad one.
    pub back: String,
}

/// The settings among `differences`, cheapest first: what needs other weights, another engine or another spread of the
/// model takes the longest to start.
pub fn parts(differences: &[Difference]) -> Vec<Part> {
    let settings = differences.iter().filter(|each| is_setting(&each.path));
    let mut parts: Vec<Part> = settings
        .map(|each| Part {
            path: each.path.clone(),
            text: each.to_string(),
            onto: argument(&each.path, each.now.as_ref()),
            back: argument(&each.path, each.was.as_ref()),
        })
        .collect();
    parts.sort_by_key(|part| start_cost(&part.path));
    parts
}

/// What a profile asks, and not what came of it.
fn is_setting(path: &str) -> bool {
    let found = ["effective.", "provenance.", "engine.version that ran"];
    !found.iter().any(|beginning| path.starts_with(beginning)) && !matches!(path, "host" | "orch")
}

/// How long a start takes longer when a setting has changed since the last one: the larger, the longer.
pub fn start_cost(path: &str) -> u8 {
    match path.split('.').next().unwrap_or(path) {
        "engine" => 3,
        "model" | "parallel" => 2,
        "graphs" | "memory" | "speculative" => 1,
        _ => 0,
    }
}

/// JSON is YAML, so a value can be written as it is held.
fn argument(path: &str, value: Option<&Value>) -> String {
    format!("{path}={}", value.cloned().unwrap_or(Value::Null))
}

/// What a difference costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The difference.
    pub part: Part,
    /// The change of the headline metric by it alone, onto the good one; `null` where that was not measured.
    pub alone: Option<f64>,
    /// The change by taking it back from the bad one.
    pub taken_back: Option<f64>,
    /// The smallest change that either could see.
    pub can_see: Option<f64>,
}

/// The effects of all parts: `value` gives the headline metric of an arm, `sees` what a comparison with it can see.
pub fn effects(
    parts: Vec<Part>,
    value: impl Fn(&str) -> Option<f64>,
    sees: impl Fn(&str, &str) -> Option<f64>,
) -> Vec<Effect> {
    let change = |from: &str, to: &str| Some(value(to)? / value(from)? - 1.0);
    let of = |(place, part): (usize, Part)| {
        let (onto, back) = (format!("onto-{}", place + 1), format!("back-{}", place + 1));
        let can_see = sees("good", &onto).into_iter().chain(sees("bad", &back)).reduce(f64::max);
        Effect { part, alone: change("good", &onto), taken_back: change("bad", &back), can_see }
    };
    parts.into_iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_alone_are_parts_and_the_cheapest_come_first() {
        let difference =
            |path: &str, was: Option<Value>, now: Option<Value>| Difference { path: path.into(), was, now };
        let all = [
            difference("engine.version", Some(json!("0.5.21")), Some(json!("0.5.23"))),
            difference("speculative.steps", Some(json!(3)), Some(json!(1))),
            difference("effective.max_running_requests", Some(json!(16)), Some(json!(10))),
            difference("flags.chunked-prefill-size", None, Some(json!("4096"))),
        ];
        let parts = parts(&all);
        let told: Vec<_> = parts.iter().map(|part| (part.onto.as_str(), part.back.as_str())).collect();
        assert_eq!(
            told,
            [
                ("flags.chunked-prefill-size=\"4096\"", "flags.chunked-prefill-size=null"),
                ("speculative.steps=1", "speculative.steps=3"),
                ("engine.version=\"0.5.23\"", "engine.version=\"0.5.21\""),
            ]
        );
        let value = |arm: &str| match arm {
            "good" | "onto-1" => Some(70.0),
            "bad" | "back-1" => Some(35.0),
            "onto-2" => Some(36.0),
            "back-2" => Some(69.0),
            _ => None,
        };
        let effects = effects(parts, value, |_, _| Some(0.02));
        assert_eq!((effects[0].alone, effects[0].taken_back), (Some(0.0), Some(0.0)));
        assert!((effects[1].alone.unwrap() + 0.4857).abs() < 1e-3);
        assert_eq!(effects[2].alone, None);
    }
}
