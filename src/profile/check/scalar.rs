//! Single values: texts under their rules, words, numbers with their units, flags and expectations.

use serde_json::{Value as Json, json};

use crate::engine;
use crate::units::{self, UnitError};

use super::super::fault::Fault;
use super::super::fields::{Shape, TextRule};
use super::super::kinds;
use super::super::nearest::nearest;
use super::super::source::Place;
use super::super::tree::{Node, Scalar, Value};
use super::Checker;
use super::keys::{list, word_help};
use super::words::{is_env_name, is_name, is_requirement};

impl Checker<'_> {
    /// A value that is of another kind than wanted.
    pub(super) fn wrong_type(&mut self, node: &Node, wanted: &str) -> Option<Json> {
        let found = match &node.value {
            Value::Scalar(scalar) if scalar.text.chars().count() <= 40 => format!("`{}`", scalar.text),
            _ => node.kind().to_owned(),
        };
        let mut fault = Fault::new("wrong_type", format!("`{}` is {found}, not {wanted}", self.path()))
            .at(node.place, format!("not {wanted}"));
        if let Some((key, example)) = self.example {
            fault = fault.help(format!("for example `{key}: {example}`"));
        } else if wanted == "a text" && matches!(node.value, Value::List(_)) {
            fault = fault.help("one value, in the program's own way: several are often written `1,2`");
        }
        self.faults.push(fault);
        None
    }

    pub(super) fn bad_value(&mut self, place: Place, why: &str, help: &str) -> Option<Json> {
        self.faults.push(
            Fault::new("bad_value", format!("`{}` {why}", self.path())).at(place, "this value").help(help.to_owned()),
        );
        None
    }

    pub(super) fn unit_fault(&mut self, place: Place, error: UnitError) -> Option<Json> {
        let path = self.path();
        let fault = match error {
            UnitError::MissingUnit { text, example } => {
                Fault::new("missing_unit", format!("`{path}`: `{text}` has no unit"))
                    .at(place, "a bare number")
                    .help(format!("write {example}"))
            }
            UnitError::UnknownUnit { unit, units } => {
                Fault::new("unknown_unit", format!("`{path}`: `{unit}` is not a unit"))
                    .at(place, "this unit")
                    .help(format!("the units are {units}"))
            }
            UnitError::OutOfRange { text, why } => {
                let fault =
                    Fault::new("out_of_range", format!("`{path}`: `{text}` is {why}")).at(place, "out of range");
                match text.parse::<f64>() {
                    Ok(number) if (2.0..=100.0).contains(&number) && why.starts_with("above 1") => {
                        fault.help(format!("a share lies from 0 to 1; {text} percent is `{}`", number / 100.0))
                    }
                    _ => fault,
                }
            }
            UnitError::Malformed { text, wanted } => {
                // `a whole number, such as ...`: the examples are help.
                let (wanted, examples) = wanted.split_once(", such as ").unwrap_or((wanted, ""));
                let fault = Fault::new("wrong_type", format!("`{path}` is `{text}`, not {wanted}"))
                    .at(place, format!("not {wanted}"));
                if examples.is_empty() { fault } else { fault.help(format!("for example {examples}")) }
            }
        };
        self.faults.push(fault);
        None
    }

    pub(super) fn whole(&mut self, min: u64, max: u64, node: &Node) -> Option<Json> {
        let (text, place) = self.number_text(node, "a whole number")?;
        let count = units::parse_count(&text).map_err(|error| self.unit_fault(place, error)).ok()?;
        if count < min || count > max {
            // A limit that only the type sets says nothing to a person.
            let range = match count > max {
                true => format!("at most {max}"),
                false if max >= u64::from(u32::MAX) => format!("at least {min}"),
                false => format!("from {min} to {max}"),
            };
            return self.out_of_range(place, &count.to_string(), &range);
        }
        Some(json!(count))
    }

    pub(super) fn number(&mut self, zero: bool, node: &Node) -> Option<Json> {
        let (text, place) = self.number_text(node, "a number")?;
        let Some(number) = text.parse::<f64>().ok().filter(|number| number.is_finite()) else {
            return self.wrong_type(node, "a number");
        };
        if number < 0.0 || (number == 0.0 && !zero) {
            return self.out_of_range(place, &text, if zero { "not negative" } else { "above 0" });
        }
        Some(json!(number))
    }

    pub(super) fn share(&mut self, zero: bool, node: &Node) -> Option<Json> {
        let (text, place) = self.number_text(node, "a share, such as `3%` or `0.03`")?;
        let share = units::parse_share(&text).map_err(|error| self.unit_fault(place, error)).ok()?;
        if share == 0.0 && !zero {
            return self.out_of_range(place, "0", "above 0");
        }
        Some(json!(share))
    }

    pub(super) fn duration(&mut self, node: &Node) -> Option<Json> {
        let Some(scalar) = node.scalar() else {
            return self.wrong_type(node, "a span of time");
        };
        let duration = units::parse_duration(&scalar.text).map_err(|error| self.unit_fault(node.place, error)).ok()?;
        Some(json!(units::duration_text(duration)))
    }

    pub(super) fn amount(&mut self, node: &Node) -> Option<Json> {
        let (text, place) = self.number_text(node, "an amount")?;
        let measure = self.measure;
        let amount = units::parse_amount(&text, measure).map_err(|error| self.unit_fault(place, error)).ok()?;
        Some(json!(amount))
    }

    fn out_of_range(&mut self, place: Place, found: &str, range: &str) -> Option<Json> {
        let message = format!("`{}` is {found}, and must be {range}", self.path());
        self.faults.push(Fault::new("out_of_range", message).at(place, "out of range"));
        None
    }

    /// The text of a value that should be a number. A number in quotes is text, unless `${NAME}` needed the quotes.
    pub(super) fn number_text(&mut self, node: &Node, wanted: &str) -> Option<(String, Place)> {
        match &node.value {
            Value::Scalar(scalar) if scalar.plain || scalar.expanded || scalar.text.ends_with('%') => {
                Some((scalar.text.clone(), node.place))
            }
            Value::Scalar(scalar) => {
                self.faults.push(
                    Fault::new("wrong_type", format!("`{}` is a text in quotes, not {wanted}", self.path()))
                        .at(node.place, "in quotes")
                        .help(format!("write `{}` without quotes", scalar.text)),
                );
                None
            }
            _ => {
                self.wrong_type(node, wanted);
                None
            }
        }
    }

    pub(super) fn text(&mut self, rule: TextRule, node: &Node) -> Option<Json> {
        let Some(scalar) = node.scalar() else {
            return self.wrong_type(node, "a text");
        };
        let text = scalar.text.as_str();
        if rule != TextRule::Free && text.trim().is_empty() {
            return self.bad_value(node.place, "is empty", "write a value, or remove the key");
        }
        match rule {
            TextRule::Free | TextRule::Filled | TextRule::Path => {}
            TextRule::Name if is_name(text) => {}
            TextRule::Name => {
                let why = format!("is `{text}`, which cannot be a name");
                return self.bad_value(
                    node.place,
                    &why,
                    "letters, digits, `.`, `-` and `_`, at most 100, not beginning with a sign",
                );
            }
            TextRule::EnvName if is_env_name(text) => {}
            TextRule::EnvName => {
                let why = format!("is `{text}`, which cannot be a name in the environment");
                return self.bad_value(node.place, &why, "letters, digits and `_`, not beginning with a digit");
            }
            TextRule::Pattern => {
                if let Err(error) = regex::Regex::new(text) {
                    let words = error.to_string();
                    let last = words.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                    return self.bad_value(node.place, "is not a regular expression", &last);
                }
            }
            TextRule::HttpPath if text.starts_with('/') && !text.contains(char::is_whitespace) => {}
            TextRule::HttpPath => {
                return self.bad_value(node.place, "is not a path of a URL", "it begins with `/`, such as `/health`");
            }
            TextRule::Sha256
                if text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) => {}
            TextRule::Sha256 => {
                return self.bad_value(
                    node.place,
                    "is not a SHA-256",
                    "64 hex digits in lower case, as `sha256sum` prints them",
                );
            }
            TextRule::Requirement if is_requirement(text) => {}
            TextRule::Requirement => {
                return self.bad_value(
                    node.place,
                    "is not a condition on a version",
                    "such as `>=0.5.9`, `==b10434` or `>=0.5.9, <0.6`",
                );
            }
        }
        Some(json!(text))
    }

    pub(super) fn word(&mut self, words: &[&str], node: &Node) -> Option<Json> {
        let Some(scalar) = node.scalar() else {
            return self.wrong_type(node, &format!("one of {}", list(words)));
        };
        if words.contains(&scalar.text.as_str()) {
            return Some(json!(scalar.text));
        }
        let help = if scalar.text == "docker" && words.contains(&"process") {
            "a container needs an image: `via: {docker: {image: …}}`".to_owned()
        } else {
            word_help(&scalar.text, words)
        };
        self.faults.push(
            Fault::new("unknown_word", format!("unknown word `{}` for `{}`", scalar.text, self.path()))
                .at(node.place, "not one of its words")
                .help(help),
        );
        None
    }

    pub(super) fn kind(&mut self, node: &Node) -> Option<Json> {
        let known = kinds::known(&engine::default_folders());
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let Some(scalar) = node.scalar() else {
            return self.wrong_type(node, &format!("one of {}", list(&known)));
        };
        if known.contains(&scalar.text.as_str()) {
            return Some(json!(scalar.text));
        }
        let near = nearest(&scalar.text, &known).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        self.faults.push(
            Fault::new("unknown_word", format!("unknown word `{}` for `{}`", scalar.text, self.path()))
                .at(node.place, "no engine of that name")
                .help(format!("{near}the engines are {}; a folder under `templates/` adds one", list(&known))),
        );
        None
    }

    pub(super) fn switch(&mut self, node: &Node) -> Option<Json> {
        match node.scalar() {
            Some(Scalar { text, plain, expanded, .. }) if *plain || *expanded => match text.to_lowercase().as_str() {
                "true" | "on" | "yes" => Some(json!(true)),
                "false" | "off" | "no" => Some(json!(false)),
                _ => self.wrong_type(node, "`true` or `false`"),
            },
            _ => self.wrong_type(node, "`true` or `false`"),
        }
    }

    pub(super) fn flag(&mut self, node: &Node) -> Option<Json> {
        match &node.value {
            Value::Scalar(scalar) => Some(match (scalar.plain && !scalar.expanded, scalar.text.as_str()) {
                (true, "true" | "True" | "TRUE") => json!(true),
                (true, "false" | "False" | "FALSE") => json!(false),
                _ => json!(scalar.text),
            }),
            Value::List(items) => self.items(&Shape::Text(TextRule::Free), items),
            _ => {
                self.faults.push(
                    Fault::new("wrong_type", format!("`{}` is a map, and a flag has a value or a list", self.path()))
                        .at(node.place, "a map")
                        .help("a flag that takes JSON has it in quotes: '{\"key\": 1}'"),
                );
                None
            }
        }
    }

    /// `16`, `true`, a word, or a comparison; quantities end up in the unit of their metric.
    pub(super) fn expectation(&mut self, node: &Node) -> Option<Json> {
        let Some(scalar) = node.scalar() else {
            return self.wrong_type(node, "a value or a comparison such as `\">= 2.4\"`");
        };
        let text = scalar.text.trim();
        let operator = ["<=", ">=", "==", "!=", "<", ">"].into_iter().find(|operator| text.starts_with(operator));
        if let Some(operator) = operator {
            let rest = text[operator.len()..].trim();
            let measure = self.measure;
            // `effective.kv_tokens: ">= 128k"`: settings are counts.
            let number = units::parse_amount(rest, measure)
                .or_else(|error| units::parse_count(rest).map(|count| count as f64).map_err(|_| error));
            return match number {
                Ok(number) => Some(json!(format!("{operator} {number}"))),
                Err(error) => self.unit_fault(node.place, error),
            };
        }
        if text.is_empty() {
            return self.bad_value(node.place, "is empty", "write a value or a comparison such as `\">= 2.4\"`");
        }
        if scalar.plain || scalar.expanded {
            if let Ok(number) = units::parse_amount(text, self.measure) {
                return Some(json!(number));
            }
            match text.to_lowercase().as_str() {
                "true" | "on" | "yes" => return Some(json!(true)),
                "false" | "off" | "no" => return Some(json!(false)),
                _ => {}
            }
            if let Ok(count) = units::parse_count(text) {
                return Some(json!(count as f64));
            }
        }
        if self.path.get(1).is_some_and(|key| key.starts_with("effective.")) {
            return Some(json!(text));
        }
        self.wrong_type(node, "a number or a comparison such as `\">= 2.4\"`")
    }
}
