//! Numbers in the sentences of a verdict.

/// A number with as many digits as a reader needs.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

pub(super) fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

pub(super) fn signed_percent(ratio: f64) -> String {
    format!("{:+.1} %", ratio * 100.0)
}
