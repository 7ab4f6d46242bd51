//! What a profile asks for against what is there: a unit, a process, what a server says of itself. Pure: both sides come
//! as drafts, made by the same reading of the same rows, so that two spellings of one thing are no difference.

mod compare;
mod readback;

use serde::Serialize;
use serde_json::Value;

pub use compare::{Asked, compare};
pub use readback::{compare_told, compare_values};

/// One key that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The key of the profile, as in `--set`.
    pub key: String,
    /// What the profile asks for; `null`: it leaves it open.
    pub asked: Value,
    /// What is there; `null`: nothing.
    pub has: Value,
}

/// What was compared, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The differences, in the profile's order.
    pub differences: Vec<Difference>,
    /// How many keys were the same.
    pub same: usize,
    /// What was not compared, and why: nothing is taken to be equal that was not seen.
    pub not_compared: Vec<String>,
}

impl Comparison {
    pub(crate) fn hold(&mut self, key: &str, asked: Option<Value>, has: Option<Value>) {
        if same(asked.as_ref(), has.as_ref()) {
            self.same += usize::from(asked.is_some());
            return;
        }
        let or_null = |value: Option<Value>| value.unwrap_or(Value::Null);
        self.differences.push(Difference { key: key.to_owned(), asked: or_null(asked), has: or_null(has) });
    }

    pub(crate) fn apart(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.not_compared.contains(&text) {
            self.not_compared.push(text);
        }
    }
}

/// Numbers are the same by their value, however they are written; a number and its text are too.
fn same(one: Option<&Value>, other: Option<&Value>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none() && other.is_none() };
    let number = |value: &Value| value.as_f64().or_else(|| value.as_str()?.parse().ok());
    match (number(one), number(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}
