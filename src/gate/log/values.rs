//! Numbers in records: what a bar counts, and the values of facts.

use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};
use serde_json::Value;

use super::Observation;

/// How far a bar is.
pub(super) struct Position {
    pub(super) done: f64,
    pub(super) total: Option<f64>,
    pub(super) is_share: bool,
}

/// By its groups `done` and `total`, else by `n/m`, else by `p%`.
pub(super) fn position(record: &str, groups: &Captures<'_>) -> Option<Position> {
    // No word boundary at the end: another writer's line may be glued to the number.
    static COUNT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(?-u)(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)").ok());
    static SHARE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(?-u)(\d+(?:\.\d+)?)\s?%").ok());
    let group = |name: &str| groups.name(name).and_then(|found| number(&String::from_utf8_lossy(found.as_bytes())));
    if let Some(done) = group("done") {
        return Some(Position { done, total: group("total"), is_share: false });
    }
    // After the bar's own words: a path before them may hold a `/` between digits.
    let rest = groups.get(0).and_then(|found| record.get(found.start()..)).unwrap_or(record);
    let text =
        |groups: &Captures<'_>, number_of: usize| number(&String::from_utf8_lossy(groups.get(number_of)?.as_bytes()));
    let pair = |captures: Captures<'_>| Some((text(&captures, 1)?, text(&captures, 2)?));
    if let Some((done, total)) = COUNT.as_ref().and_then(|count| count.captures(rest.as_bytes())).and_then(pair) {
        return Some(Position { done, total: Some(total), is_share: false });
    }
    let share = SHARE.as_ref()?.captures(rest.as_bytes())?;
    Some(Position { done: text(&share, 1)?, total: Some(100.0), is_share: true })
}

/// The named groups of a match. A group `KEY_2` is added to `KEY`; one `KEY_milli` counts thousandths of `KEY`.
pub(super) fn facts(regex: &Regex, groups: &Captures<'_>, seen: &mut Vec<Observation>) {
    for key in regex.capture_names().flatten() {
        let Some(found) = groups.name(key) else { continue };
        let value = value(&String::from_utf8_lossy(found.as_bytes()));
        if let Some(key) = key.strip_suffix("_milli") {
            if let Some(number) = value.as_f64() {
                seen.push(Observation::Fact { key: key.to_owned(), value: whole(number / 1000.0) });
            }
        } else if let Some(key) = key.strip_suffix("_2") {
            let first = seen.iter_mut().rev().find_map(|what| match what {
                Observation::Fact { key: known, value } if known == key => Some(value),
                _ => None,
            });
            if let (Some(first), Some(more)) = (first, value.as_f64())
                && let Some(number) = first.as_f64()
            {
                *first = whole(number + more);
            }
        } else {
            seen.push(Observation::Fact { key: key.to_owned(), value });
        }
    }
}

/// A sum or a quotient, without the digits that binary fractions add.
fn whole(number: f64) -> Value {
    let rounded = (number * 1e6).round() / 1e6;
    if rounded.fract() == 0.0 { serde_json::json!(rounded as i64) } else { serde_json::json!(rounded) }
}

/// A number where it is one: thousands separators are dropped, a percentage becomes a share.
pub(super) fn value(text: &str) -> Value {
    let text = text.trim();
    if let Some(share) = text.strip_suffix('%').and_then(|text| number(text.trim_end())) {
        return serde_json::json!(share / 100.0);
    }
    match number(text) {
        Some(whole) if whole.fract() == 0.0 && whole.abs() < 9e15 && !text.contains('.') => {
            serde_json::json!(whole as i64)
        }
        Some(number) => serde_json::json!(number),
        None => Value::String(text.to_owned()),
    }
}

fn number(text: &str) -> Option<f64> {
    let digits = text.replace(',', "");
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
    // `inf`, `nan` and `1e5` are words here.
    if !digits.chars().all(plain) || !digits.chars().any(|c| c.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}
