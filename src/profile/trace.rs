//! A trace: when requests came, as somebody recorded them, and perhaps how long they were and which prefixes they shared.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::fault::Fault;
use super::read;

/// The largest trace that is read.
const MAX_TRACE_BYTES: u64 = 256 << 20;
/// Moments lie within so many milliseconds of the first: ten years, beyond which something is wrong with the unit.
const LONGEST_MS: f64 = 3.2e11;

/// A trace, ready to be replayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The requests, the first of them at 0.
    pub rows: Vec<TraceRow>,
    /// How many tokens a block of a prompt has.
    pub block_tokens: u64,
}

/// A request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceRow {
    /// When it came, in milliseconds after the first.
    pub at_ms: f64,
    /// Tokens of its prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// Tokens of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// Blocks of its prompt, in order: those that begin alike begin with the same text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<u64>,
}

impl TraceRow {
    /// Whether nothing but its moment was recorded.
    pub fn is_moment(&self) -> bool {
        self.input.is_none() && self.output.is_none()
    }
}

/// Reads a file of lines of JSON: `timestamp` in milliseconds (as Mooncake's traces have it) or `at_s` in seconds, and
/// perhaps `input_length`, `output_length` and `hash_ids`. Rows are put in the order of their moments.
pub(super) fn read_file(path: &Path) -> Result<Vec<TraceRow>, Fault> {
    let text = read::text(path, MAX_TRACE_BYTES)?;
    of_text(&text).map_err(|why| {
        Fault::new("bad_trace", format!("`{}`: {why}", path.display())).help(
            "each line is an object such as {\"timestamp\": 1250, \"input_length\": 512, \"output_length\": 64, \"hash_ids\": [0, 1]}: milliseconds, tokens, blocks of the prompt",
        )
    })
}

fn of_text(text: &str) -> Result<Vec<TraceRow>, String> {
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if !line.is_empty() {
            rows.push(row(line).map_err(|why| format!("line {number} {why}"))?);
        }
    }
    if rows.is_empty() {
        return Err("it holds no requests".to_owned());
    }
    for (key, has) in [("input_length", has_input as fn(&TraceRow) -> bool), ("output_length", has_output)] {
        let count = rows.iter().filter(|row| has(row)).count();
        if count != 0 && count != rows.len() {
            return Err(format!("{count} of its {} lines have `{key}`: all of them must, or none", rows.len()));
        }
    }
    rows.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
    let first = rows[0].at_ms;
    rows.iter_mut().for_each(|row| row.at_ms -= first);
    if rows.last().is_some_and(|row| row.at_ms > LONGEST_MS) {
        return Err("it lasts longer than ten years: `timestamp` is in milliseconds, `at_s` in seconds".to_owned());
    }
    Ok(rows)
}

fn has_input(row: &TraceRow) -> bool {
    row.input.is_some()
}

fn has_output(row: &TraceRow) -> bool {
    row.output.is_some()
}

fn row(line: &str) -> Result<TraceRow, String> {
    let value: Json = serde_json::from_str(line).map_err(|error| {
        let words = error.to_string();
        format!("is not JSON: {}", words.split(" at line ").next().unwrap_or(&words))
    })?;
    let number = |key: &str| value.get(key).and_then(Json::as_f64);
    let at_ms = number("timestamp").or_else(|| number("at_s").map(|s| s * 1e3));
    let at_ms = at_ms.ok_or("has neither `timestamp` (milliseconds) nor `at_s` (seconds)")?;
    let length = |key: &str| match value.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(found) => match found.as_u64() {
            Some(tokens @ 1..) => Ok(Some(tokens)),
            _ => Err(format!("has a `{key}` that is no number of tokens")),
        },
    };
    let blocks = match value.get("hash_ids") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(ids)) => {
            let ids: Option<Vec<u64>> = ids.iter().map(Json::as_u64).collect();
            ids.ok_or("has `hash_ids` that are no whole numbers")?
        }
        Some(_) => return Err("has `hash_ids` that are no list".to_owned()),
    };
    let row = TraceRow { at_ms, input: length("input_length")?, output: length("output_length")?, blocks };
    if !row.blocks.is_empty() && row.input.is_none() {
        return Err("has `hash_ids` and no `input_length`".to_owned());
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_in_the_order_of_its_moments() {
        let text = "{\"timestamp\": 3000, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n\n\
            {\"timestamp\": 1000, \"input_length\": 500, \"output_length\": 7, \"hash_ids\": [1]}\n";
        let rows = of_text(text).unwrap();
        assert_eq!(rows[0], TraceRow { at_ms: 0.0, input: Some(500), output: Some(7), blocks: vec![1] });
        assert_eq!((rows[1].at_ms, rows[1].blocks.as_slice()), (2000.0, &[1, 2][..]));
        assert_eq!(of_text("{\"at_s\": 1.5}\n{\"at_s\": 1.75}").unwrap()[1].at_ms, 250.0);
    }

    #[test]
    fn what_is_no_trace_says_where_and_why() {
        for (text, why) in [
            ("", "it holds no requests"),
            ("{}", "line 1 has neither `timestamp` (milliseconds) nor `at_s` (seconds)"),
            ("{\"timestamp\": 1}\n[", "line 2 is not JSON: EOF while parsing a list"),
            ("{\"timestamp\": 1, \"input_length\": 0}", "line 1 has a `input_length` that is no number of tokens"),
            ("{\"timestamp\": 1, \"hash_ids\": [1]}", "line 1 has `hash_ids` and no `input_length`"),
            (
                "{\"timestamp\": 1, \"output_length\": 3}\n{\"timestamp\": 2}",
                "1 of its 2 lines have `output_length`: all of them must, or none",
            ),
            (
                "{\"timestamp\": 0}\n{\"timestamp\": 1e15}",
                "it lasts longer than ten years: `timestamp` is in milliseconds, `at_s` in seconds",
            ),
        ] {
            assert_eq!(of_text(text).unwrap_err(), why, "{text}");
        }
    }
}
