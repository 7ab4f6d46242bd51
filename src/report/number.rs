//! Numbers as people read them. Columns and labels carry the unit; what is not known is `-`, never 0.

use crate::measure::{Distribution, MetricValue, Percentile};

/// What stands for a value that is not known.
pub const ABSENT: &str = "-";

/// Stands before a percentile that the samples do not carry.
pub const NOT_CARRIED: char = '~';

/// The footnote that [`NOT_CARRIED`] needs.
pub const NOT_CARRIED_NOTE: &str = "~ too few samples for this percentile: shown, not judged";

/// `196,608`.
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// Three or four digits: `4,030`, `361`, `70.2`, `2.69`, `0.0123`.
pub fn amount(value: f64) -> String {
    let text = match value.abs() {
        size if !size.is_finite() => return ABSENT.to_owned(),
        size if size >= 99.95 || size == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => return format!("{value:.4}"),
    };
    grouped(&text)
}

/// The same, if there is a value.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), amount)
}

/// A change as a share: `-1.0 %`, `+47 %`.
pub fn change(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) if ratio.abs() < 0.0005 => "0.0 %".to_owned(),
        Some(ratio) if ratio.abs() >= 0.0995 => format!("{:+.0} %", ratio * 100.0),
        Some(ratio) => format!("{:+.1} %", ratio * 100.0),
        None => ABSENT.to_owned(),
    }
}

/// A share: `2.1 %`, `38 %`.
pub fn share(ratio: Option<f64>) -> String {
    change(ratio).trim_start_matches('+').to_owned()
}

/// A number of a record, which is `-` when it is absent or a distribution.
pub fn metric(value: Option<&MetricValue>) -> String {
    match value {
        Some(MetricValue::Number(value)) => amount(*value),
        Some(MetricValue::Distribution(_) | MetricValue::Absent(())) | None => ABSENT.to_owned(),
    }
}

/// A percentile of a record, marked when the samples do not carry it.
pub fn percentile(value: Option<&MetricValue>, which: Percentile) -> String {
    let Some(MetricValue::Distribution(all)) = value else { return ABSENT.to_owned() };
    match at(all, which) {
        Some(value) if all.enough >= Some(which) => amount(value),
        Some(value) => format!("{NOT_CARRIED}{}", amount(value)),
        None => ABSENT.to_owned(),
    }
}

fn at(all: &Distribution, which: Percentile) -> Option<f64> {
    match which {
        Percentile::P50 => all.p50,
        Percentile::P90 => all.p90,
        Percentile::P95 => all.p95,
        Percentile::P99 => all.p99,
    }
}

/// Puts a comma before every third digit of the whole part.
fn grouped(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, part) =
        digits.split_once('.').map_or((digits, String::new()), |(whole, part)| (whole, format!(".{part}")));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{sign}{text}{part}")
}

/// Text from elsewhere (a log line, an answer) without what could move the cursor, change a terminal, or show a line in
/// another order than it has.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            c if c.is_control() => ' ',
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// The same of a text of several lines.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_a_reader_needs() {
        let shown: Vec<String> =
            [0.0, 0.01234, 0.5, 2.691, 9.999, 70.24, 99.96, 361.4, 4030.0, 1234567.8, -4030.0].map(amount).into();
        let expected = ["0", "0.0123", "0.50", "2.69", "10.0", "70.2", "100", "361", "4,030", "1,234,568", "-4,030"];
        assert_eq!(shown, expected);
        assert_eq!((count(196_608), count(12)), ("196,608".to_owned(), "12".to_owned()));
        assert_eq!((amount(f64::NAN), optional(None)), ("-".to_owned(), "-".to_owned()));
        let changes = [Some(-0.0104), Some(0.466), Some(-0.0), None].map(change);
        assert_eq!(changes, ["-1.0 %", "+47 %", "0.0 %", "-"]);
        assert_eq!(share(Some(0.021)), "2.1 %");
    }

    #[test]
    fn a_percentile_that_the_samples_do_not_carry_is_marked() {
        let all = Distribution {
            samples: 12,
            mean: Some(80.0),
            p50: Some(79.0),
            p90: Some(90.0),
            p95: None,
            p99: Some(140.2),
            max: Some(140.2),
            enough: Some(Percentile::P50),
        };
        let value = MetricValue::Distribution(all);
        let shown = |which| percentile(Some(&value), which);
        assert_eq!([shown(Percentile::P50), shown(Percentile::P90), shown(Percentile::P95)], ["79.0", "~90.0", "-"]);
        assert_eq!(percentile(None, Percentile::P50), "-");
    }

    #[test]
    fn text_from_elsewhere_cannot_steer_a_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\rc\u{202e}d"), "a [2Jb c\u{fffd}d");
    }
}
