//! Conditions in `engine.yaml`: `speculative.method == ngram`, `speculative.draft_tokens == speculative.steps + 1`.
//!
//! A condition is comparisons joined by `and`. A side is a number, a word, a setting's key, or a sum of products of
//! these. A key that stands alone holds when the profile sets it. A comparison with an unset key does not hold, whatever
//! its sign. `flags.NAME` and `env.NAME` are keys too: what the profile gives in the engine's own words.

use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::settings;

/// A condition, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Set(String),
    Unset(String),
    Compare(Sum, Sign, Sum),
}

/// Products that are added up.
type Sum = Vec<Product>;

#[derive(Clone, Debug, PartialEq)]
struct Product {
    /// Taken away instead of added.
    negative: bool,
    factors: Vec<Operand>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sign {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
    Above,
    Below,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Number(f64),
    /// A key of the settings if there is such a one, else the word itself.
    Word(String),
}

/// A text that is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a condition, such as `speculative.method == ngram` or `not speculative.model and graphs.enabled == true`"
)]
pub struct ConditionError(String);

impl std::str::FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let terms = text.split(" and ").map(|term| term.trim().parse_term()).collect::<Option<Vec<_>>>();
        match terms {
            Some(terms) => Ok(Condition { text: text.to_owned(), terms }),
            None => Err(ConditionError(text.to_owned())),
        }
    }
}

trait ParseTerm {
    fn parse_term(&self) -> Option<Term>;
}

impl ParseTerm for str {
    fn parse_term(&self) -> Option<Term> {
        let words: Vec<&str> = self.split_whitespace().collect();
        match words.as_slice() {
            [key] if is_word(key) => return Some(Term::Set((*key).to_owned())),
            ["not", key] if is_word(key) => return Some(Term::Unset((*key).to_owned())),
            _ => {}
        }
        let at = words.iter().position(|word| sign(word).is_some())?;
        Some(Term::Compare(sum(&words[..at])?, sign(words[at])?, sum(&words[at + 1..])?))
    }
}

fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')) && !text.is_empty()
}

fn sign(word: &str) -> Option<Sign> {
    Some(match word {
        "==" => Sign::Equal,
        "!=" => Sign::NotEqual,
        ">=" => Sign::AtLeast,
        "<=" => Sign::AtMost,
        ">" => Sign::Above,
        "<" => Sign::Below,
        _ => return None,
    })
}

fn sum(words: &[&str]) -> Option<Sum> {
    let mut sum: Sum = Vec::new();
    let mut before = "+";
    for (place, word) in words.iter().enumerate() {
        if place % 2 == 1 {
            before = word;
            continue;
        }
        let operand = operand(word)?;
        match (before, sum.last_mut()) {
            ("*", Some(product)) => product.factors.push(operand),
            ("+" | "-", _) => sum.push(Product { negative: before == "-", factors: vec![operand] }),
            _ => return None,
        }
    }
    (words.len() % 2 == 1).then_some(sum)
}

fn operand(word: &str) -> Option<Operand> {
    if !is_word(word) {
        return None;
    }
    Some(match word.parse::<f64>() {
        Ok(number) if number.is_finite() => Operand::Number(number),
        _ => Operand::Word(word.to_owned()),
    })
}

impl Condition {
    /// Whether it holds for these settings.
    pub fn holds(&self, settings: &IndexMap<String, Value>) -> bool {
        self.terms.iter().all(|term| match term {
            Term::Set(key) => settings.contains_key(key),
            Term::Unset(key) => !settings.contains_key(key),
            Term::Compare(left, sign, right) => {
                matches!((total(left, settings), total(right, settings)), (Some(left), Some(right)) if compare(&left, *sign, &right))
            }
        })
    }

    /// The settings' keys that it names, among words that are none.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().flat_map(|term| match term {
            Term::Set(key) | Term::Unset(key) => vec![key.as_str()],
            Term::Compare(left, _, right) => left
                .iter()
                .chain(right)
                .flat_map(|product| &product.factors)
                .filter_map(|operand| match operand {
                    Operand::Word(word) => Some(word.as_str()),
                    Operand::Number(_) => None,
                })
                .collect(),
        })
    }

    /// The setting that a person should look at: the first that it names and the profile sets, else the first it names.
    pub fn key<'c>(&'c self, settings: &IndexMap<String, Value>) -> Option<&'c str> {
        let mut keys = self.words().filter(|word| settings::is_key(word) || settings::is_own_word(word)).peekable();
        let first = keys.peek().copied();
        keys.find(|key| settings.contains_key(*key)).or(first)
    }
}

/// A key without a value is unset; any other word stands for itself.
fn value(operand: &Operand, settings: &IndexMap<String, Value>) -> Option<Value> {
    match operand {
        Operand::Number(number) => Some(Value::from(*number)),
        Operand::Word(word) => match (settings.get(word), word.as_str()) {
            (Some(value), _) => Some(value.clone()),
            (None, "true") => Some(Value::Bool(true)),
            (None, "false") => Some(Value::Bool(false)),
            (None, word) if settings::is_key(word) || settings::is_own_word(word) => None,
            (None, word) => Some(Value::from(word)),
        },
    }
}

/// A single operand is itself, a word too; anything longer is a number.
fn total(sum: &[Product], settings: &IndexMap<String, Value>) -> Option<Value> {
    if let [Product { negative: false, factors }] = sum
        && let [one] = factors.as_slice()
    {
        return value(one, settings);
    }
    let mut total = 0.0;
    for product in sum {
        let factors = product.factors.iter().map(|factor| value(factor, settings)?.as_f64());
        let size: f64 = factors.product::<Option<f64>>()?;
        total += if product.negative { -size } else { size };
    }
    Some(Value::from(total))
}

fn compare(left: &Value, sign: Sign, right: &Value) -> bool {
    let order = match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left.partial_cmp(&right),
        _ => None,
    };
    match (sign, order) {
        (Sign::Equal, Some(order)) => order.is_eq(),
        (Sign::NotEqual, Some(order)) => order.is_ne(),
        (Sign::AtLeast, Some(order)) => order.is_ge(),
        (Sign::AtMost, Some(order)) => order.is_le(),
        (Sign::Above, Some(order)) => order.is_gt(),
        (Sign::Below, Some(order)) => order.is_lt(),
        (Sign::Equal, None) => left == right,
        (Sign::NotEqual, None) => left != right,
        (_, None) => false,
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(condition: &str) -> bool {
        let settings = IndexMap::from([
            ("speculative.method".to_owned(), Value::from("mtp")),
            ("speculative.steps".to_owned(), Value::from(3)),
            ("speculative.draft_tokens".to_owned(), Value::from(4)),
            ("graphs.enabled".to_owned(), Value::from(false)),
            ("flags.page-size".to_owned(), Value::from(64)),
        ]);
        condition.parse::<Condition>().unwrap().holds(&settings)
    }

    #[test]
    fn conditions_are_held_against_settings() {
        assert!(holds("speculative.method == mtp"));
        assert!(holds("speculative.method != ngram and speculative.steps >= 3"));
        assert!(holds("speculative.draft_tokens == speculative.steps + 1"));
        assert!(holds("graphs.enabled == false and not speculative.model"));
        assert!(holds("speculative.steps"));
        assert!(!holds("speculative.steps > 3") && !holds("speculative.model"));
        assert!(holds("flags.page-size > 1") && !holds("flags.page-size == 1") && !holds("env.SGLANG_X"));
    }

    #[test]
    fn sides_are_sums_of_products() {
        assert!(holds("speculative.draft_tokens <= 1 + speculative.steps * 4 - 2 * 2"));
        assert!(holds("speculative.draft_tokens * 2 == speculative.steps * speculative.steps - 1"));
        assert!(!holds("speculative.draft_tokens < 1 + speculative.topk * 2"), "one of them is not set");
    }

    #[test]
    fn a_comparison_with_an_unset_key_never_holds() {
        assert!(!holds("speculative.topk == 1") && !holds("speculative.topk != 1") && !holds("speculative.topk < 1"));
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        for bad in ["", "a ==", "== a", "a b", "a = b", "a == b or c", "a == b +", "a == b * * c", "a == * b", "a; b"] {
            assert!(bad.parse::<Condition>().is_err(), "{bad}");
        }
    }
}
