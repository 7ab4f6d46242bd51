//! Quantities as people write them in profiles and on command lines, and how they are written back.
//!
//! A bare number where a unit is needed is an error: `20` may mean seconds to one reader and minutes to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Why a text is not the quantity it should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum UnitError {
    #[error("`{text}` has no unit; write {example}")]
    MissingUnit { text: String, example: String },
    #[error("`{unit}` is not a unit here; the units are {units}")]
    UnknownUnit { unit: String, units: &'static str },
    #[error("`{text}` is not {wanted}")]
    Malformed { text: String, wanted: &'static str },
    #[error("`{text}` is {why}")]
    OutOfRange { text: String, why: &'static str },
}

/// Requests a second that a load may be sent at: one in a quarter of an hour, and more than any machine sends.
pub const RATES: std::ops::RangeInclusive<f64> = 0.001..=100_000.0;

/// A number and the letters after it. `None` when there is no number at the beginning.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let number = &text[..digits];
    // `1.` and `.5` are slips more often than meant.
    if number.is_empty() || number.starts_with('.') || number.ends_with('.') {
        return None;
    }
    Some((number.parse().ok()?, &text[digits..]))
}

/// The same, where numbers written by a machine are read too, such as `1e-5`.
fn any_number_and_unit(text: &str) -> Option<(f64, &str)> {
    let bare =
        text.parse::<f64>().ok().filter(|number| number.is_finite() && text.starts_with(|c: char| c.is_ascii_digit()));
    bare.map(|number| (number, "")).or_else(|| number_and_unit(text))
}

const DURATION_UNITS: &str = "ms, s, m, h and d";
/// Ten years: what is longer is a slip, and sums of it would overflow.
const MAX_DURATION_MS: f64 = 10.0 * 366.0 * 86_400_000.0;

/// A span of time with its units: `250ms`, `20m`, `4h`, `1h30m`, `1.5s`, `2d`. To the millisecond.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let malformed =
        || UnitError::Malformed { text: text.to_owned(), wanted: "a span of time, such as `20m` or `1h30m`" };
    let mut rest = text;
    let mut total_ms = 0.0;
    while !rest.is_empty() {
        let (number, after) = number_and_unit(rest).ok_or_else(malformed)?;
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, next) = after.split_at(letters);
        total_ms += number
            * match unit {
                "ms" => 1.0,
                "s" => 1_000.0,
                "m" => 60_000.0,
                "h" => 3_600_000.0,
                "d" => 86_400_000.0,
                "" if next.is_empty() && rest == text => {
                    let example = format!("`{text}s` for seconds or `{text}m` for minutes");
                    return Err(UnitError::MissingUnit { text: text.to_owned(), example });
                }
                "" => return Err(malformed()),
                unit => return Err(UnitError::UnknownUnit { unit: unit.to_owned(), units: DURATION_UNITS }),
            };
        rest = next;
    }
    if text.is_empty() {
        return Err(malformed());
    }
    if total_ms > MAX_DURATION_MS {
        return Err(UnitError::OutOfRange { text: text.to_owned(), why: "longer than ten years" });
    }
    let (total_us, whole_us) = (total_ms * 1e3, (total_ms * 1e3).round());
    if (total_us - whole_us).abs() > 1e-3 {
        return Err(UnitError::OutOfRange { text: text.to_owned(), why: "finer than a microsecond" });
    }
    Ok(Duration::from_micros(whole_us as u64))
}

/// A share from 0 to 1, as `3%` or `0.03`.
pub fn parse_share(text: &str) -> Result<f64, UnitError> {
    let malformed = || UnitError::Malformed { text: text.to_owned(), wanted: "a share, such as `3%` or `0.03`" };
    let (number, unit) = any_number_and_unit(text).ok_or_else(malformed)?;
    let share = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(malformed()),
    };
    if share > 1.0 {
        return Err(UnitError::OutOfRange { text: text.to_owned(), why: "above 1, that is above 100%" });
    }
    Ok(share)
}

/// An amount of memory in bytes, as `2GiB` (1024 each step) or `2GB` (1000 each step).
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let malformed = || UnitError::Malformed { text: text.to_owned(), wanted: "a size, such as `2GiB`" };
    let (number, unit) = number_and_unit(text).ok_or_else(malformed)?;
    let size = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "" => {
            let example = format!("`{text}MiB` or `{text}GiB`");
            return Err(UnitError::MissingUnit { text: text.to_owned(), example });
        }
        unit => {
            let units = "B, KiB, MiB, GiB, TiB, kB, MB, GB and TB";
            return Err(UnitError::UnknownUnit { unit: unit.to_owned(), units });
        }
    };
    let bytes = number * size;
    if bytes > MAX_EXACT {
        return Err(UnitError::OutOfRange { text: text.to_owned(), why: "more than 8 PiB" });
    }
    Ok(bytes.round() as u64)
}

/// Up to here every whole number has a double of its own.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A number of things: `131072`, or `128k` and `1M` in steps of 1024, as engines and model cards mean context lengths.
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    let malformed = || UnitError::Malformed { text: text.to_owned(), wanted: "a whole number, such as `16` or `128k`" };
    let (number, unit) = number_and_unit(text).ok_or_else(malformed)?;
    let count = number
        * match unit {
            "" => 1.0,
            "k" | "K" => 1024.0,
            "M" => 1024.0 * 1024.0,
            _ => return Err(malformed()),
        };
    if count > MAX_EXACT {
        return Err(UnitError::OutOfRange { text: text.to_owned(), why: "more than can be counted exactly" });
    }
    if count.fract() != 0.0 || (unit.is_empty() && text.contains('.')) {
        return Err(malformed());
    }
    Ok(count as u64)
}

/// In what a metric is counted, so that an amount of it may be written with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share from 0 to 1.
    Share,
    /// A plain number.
    Number,
}

/// An amount of something whose name says its unit (`ttft_ms`): a bare number is in that unit, and another one is
/// turned into it, so that `0.5s` of a `_ms` metric is 500.
pub fn parse_amount(text: &str, measure: Measure) -> Result<f64, UnitError> {
    let wanted = match measure {
        Measure::Milliseconds | Measure::Seconds => "an amount of time, such as `20ms`",
        Measure::Bytes => "a size, such as `2GiB`",
        Measure::Share => "a share, such as `3%` or `0.03`",
        Measure::Number => "a number",
    };
    let malformed = || UnitError::Malformed { text: text.to_owned(), wanted };
    let (number, unit) = any_number_and_unit(text).ok_or_else(malformed)?;
    if unit.is_empty() {
        return Ok(number);
    }
    let milliseconds = |unit| match unit {
        "us" => Some(0.001),
        "ms" => Some(1.0),
        "s" => Some(1_000.0),
        "m" => Some(60_000.0),
        "h" => Some(3_600_000.0),
        _ => None,
    };
    match measure {
        Measure::Milliseconds => Ok(number * milliseconds(unit).ok_or_else(malformed)?),
        Measure::Seconds => Ok(number * milliseconds(unit).ok_or_else(malformed)? / 1_000.0),
        Measure::Bytes => Ok(parse_bytes(text)? as f64),
        Measure::Share => parse_share(text),
        Measure::Number => Err(malformed()),
    }
}

/// A loss that is not worth a verdict: whichever of the two is larger.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// As a share of the baseline's value, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative: Option<f64>,
    /// In the metric's own unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute: Option<f64>,
}

/// `1h30m`, `20m`, `1s500ms`, `250ms`, `0.5ms`: whole units, largest first, and below a millisecond its decimals.
pub fn duration_text(duration: Duration) -> String {
    let mut rest = duration.as_micros();
    let mut text = String::new();
    for (unit, size) in [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)] {
        if rest >= size {
            text.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if rest > 0 {
        let decimals = format!(".{:03}", rest % 1_000);
        text.push_str(&format!("{}{}ms", rest / 1_000, decimals.trim_end_matches('0').trim_end_matches('.')));
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// `1 MiB`, `1.5 GiB`, `17 B`: for reading.
pub fn bytes_text(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size {
            let tenths = bytes * 10 / size;
            let rest = if tenths.is_multiple_of(10) { String::new() } else { format!(".{}", tenths % 10) };
            return format!("{}{rest} {unit}", tenths / 10);
        }
    }
    format!("{bytes} B")
}

/// Serialises a duration as people write it.
pub fn write_duration<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&duration_text(*duration))
}

/// Serialises a duration that may be automatic.
pub fn write_optional_duration<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => write_duration(duration, serializer),
        None => serializer.serialize_str("auto"),
    }
}

/// Serialises durations by key.
pub fn write_durations<S: Serializer>(
    durations: &BTreeMap<String, Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(durations.len()))?;
    for (key, duration) in durations {
        map.serialize_entry(key, &duration_text(*duration))?;
    }
    map.end()
}

/// Reads what [`write_duration`] writes.
pub fn read_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Reads what [`write_optional_duration`] writes.
pub fn read_optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "auto" { Ok(None) } else { parse_duration(&text).map(Some).map_err(serde::de::Error::custom) }
}

/// Reads what [`write_durations`] writes.
pub fn read_durations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Duration>, D::Error> {
    BTreeMap::<String, String>::deserialize(deserializer)?
        .into_iter()
        .map(|(key, text)| Ok((key, parse_duration(&text).map_err(serde::de::Error::custom)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_need_units() {
        for (text, ms) in [
            ("250ms", 250),
            ("20m", 1_200_000),
            ("4h", 14_400_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("2d", 172_800_000),
        ] {
            assert_eq!(parse_duration(text).unwrap().as_millis(), ms, "{text}");
        }
        for (text, us, written) in
            [("0.5ms", 500, "0.5ms"), ("1.025ms", 1_025, "1.025ms"), ("1.0005s", 1_000_500, "1s0.5ms")]
        {
            let span = parse_duration(text).unwrap();
            assert_eq!((span.as_micros(), duration_text(span).as_str()), (us, written));
            assert_eq!(parse_duration(written), Ok(span));
        }
        assert_eq!(
            parse_duration("20").unwrap_err().to_string(),
            "`20` has no unit; write `20s` for seconds or `20m` for minutes"
        );
        assert_eq!(
            parse_duration("20min").unwrap_err().to_string(),
            "`min` is not a unit here; the units are ms, s, m, h and d"
        );
        for text in ["", "m", "-5s", "1h30", "1 h", "5s ", ".5s", "1e3s", "NaNs", "0.0001ms", "99999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_percent_or_fraction() {
        assert_eq!(parse_share("3%").unwrap(), 0.03);
        assert_eq!(parse_share("0.03").unwrap(), 0.03);
        assert_eq!(parse_share("100%").unwrap(), 1.0);
        assert!(parse_share("3").unwrap_err().to_string().contains("above 1"));
        for text in ["", "%", "3 %", "-1%", "1.2", "x"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_need_units() {
        assert_eq!(parse_bytes("2GiB").unwrap(), 2 << 30);
        assert_eq!(parse_bytes("1.5kB").unwrap(), 1500);
        assert_eq!(parse_bytes("50GB").unwrap(), 50_000_000_000);
        assert_eq!(parse_bytes("2").unwrap_err().to_string(), "`2` has no unit; write `2MiB` or `2GiB`");
        assert!(parse_bytes("2gb").unwrap_err().to_string().contains("KiB, MiB, GiB"));
    }

    #[test]
    fn counts_go_in_steps_of_1024() {
        assert_eq!(parse_count("128k").unwrap(), 131_072);
        assert_eq!(parse_count("1M").unwrap(), 1_048_576);
        assert_eq!(parse_count("1.5k").unwrap(), 1536);
        assert_eq!(parse_count("16").unwrap(), 16);
        for text in ["", "1.0", "1.3", "-1", "16x", "1e3", "0.0001k", "99999999999999999"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_amount_is_turned_into_the_unit_of_its_metric() {
        assert_eq!(parse_amount("0.5s", Measure::Milliseconds).unwrap(), 500.0);
        assert_eq!(parse_amount("20", Measure::Milliseconds).unwrap(), 20.0);
        assert_eq!(parse_amount("2m", Measure::Seconds).unwrap(), 120.0);
        assert_eq!(parse_amount("1KiB", Measure::Bytes).unwrap(), 1024.0);
        assert!(parse_amount("5ms", Measure::Number).is_err());
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(bytes_text(17), "17 B");
        assert_eq!(bytes_text(1 << 20), "1 MiB");
        assert_eq!(bytes_text(1536 << 20), "1.5 GiB");
    }

    proptest! {
        #[test]
        fn a_duration_reads_back_as_it_was_written(ms in 0_u64..300_000_000_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&duration_text(duration)).unwrap(), duration);
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,12}") {
            let _ = (parse_duration(&text), parse_share(&text), parse_bytes(&text), parse_count(&text));
        }
    }
}
