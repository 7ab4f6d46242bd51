//! How a counter follows from the series of a page: a name, or a small sum of names, as an engine's definition writes it.
//!
//! ```text
//! vllm:generation_tokens_total
//! vllm:inter_token_latency_seconds_count + vllm:time_to_first_token_seconds_count
//! sglang:cuda_graph_passes_total{mode="decode_cuda_graph|decode_full"}
//! llamacpp:n_busy_slots_per_decode * llamacpp:n_decode_total
//! sglang:spec_verify_calls_total * (max(sglang:spec_num_draft_tokens) - 1)
//! vllm:spec_decode_num_accepted_tokens_per_pos_total by position
//! ```
//!
//! A name is the sum of its samples over ranks, engines and whatever other labels there are; `max(…)` and `mean(…)` take
//! the largest and the mean instead. `by` keeps one label apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::{Page, Sample};

/// A formula.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    text: String,
    sum: Expression,
    by: Option<String>,
}

/// A formula cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{formula}` is no formula of series: {why} at `{at}`")]
pub struct FormulaError {
    /// The formula.
    pub formula: String,
    /// What is wrong.
    pub why: &'static str,
    /// The rest of it from there.
    pub at: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Expression {
    Number(f64),
    Series { over: Over, name: String, labels: Vec<(String, Vec<String>)> },
    Two(Box<Expression>, Sign, Box<Expression>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Sum,
    Max,
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Plus,
    Minus,
    Times,
    Over,
}

/// What a formula is worked out from.
#[derive(Clone, Copy, Debug)]
pub(super) struct On<'a> {
    pub(super) page: &'a Page,
    /// Labels of ranks that count the same work: of samples that differ in these alone, the largest is taken.
    pub(super) alike: &'a [String],
    /// A series without samples is 0: a counter of Prometheus is not on the page before it first counts.
    pub(super) absent_is_zero: bool,
}

impl Formula {
    /// Its value on a page; `None` where a series of it is not there.
    pub(super) fn value(&self, on: On<'_>) -> Option<f64> {
        evaluate(&self.sum, on).filter(|value| value.is_finite())
    }

    /// How far that value may be off for the digits that were printed, in either direction.
    pub(super) fn off(&self, on: On<'_>) -> f64 {
        off(&self.sum, on)
    }

    /// Its value for each value of the label after `by`, in the order of the label, numbers as numbers. Empty where the
    /// series is not there or the formula has no `by`.
    pub(super) fn values_by(&self, on: On<'_>) -> Vec<(String, f64)> {
        let (Some(by), Expression::Series { name, labels, .. }) = (&self.by, &self.sum) else { return Vec::new() };
        let samples = chosen(on.page, name, labels);
        let keys: BTreeSet<&String> = samples.iter().filter_map(|sample| sample.labels.get(by)).collect();
        let of = |key: &String| {
            let of_key: Vec<_> = samples.iter().copied().filter(|sample| sample.labels.get(by) == Some(key)).collect();
            Some((key.clone(), together(&of_key, on.alike, Over::Sum)?))
        };
        let mut values: Vec<_> = keys.into_iter().filter_map(of).collect();
        values.sort_by_key(|(key, _)| (key.parse::<u64>().unwrap_or(u64::MAX), key.clone()));
        values
    }

    /// Whether it is one series as it stands, which only counts up.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.sum, Expression::Series { .. })
    }

    /// Whether one of its series is on a page.
    pub(super) fn is_on(&self, page: &Page) -> bool {
        let mut found = false;
        self.sum.each_name(&mut |name| found = found || page.named(name).next().is_some());
        found
    }
}

fn evaluate(expression: &Expression, on: On<'_>) -> Option<f64> {
    match expression {
        Expression::Number(number) => Some(*number),
        Expression::Series { over, name, labels } => {
            let absent = on.absent_is_zero.then_some(0.0);
            together(&chosen(on.page, name, labels), on.alike, *over).or(absent)
        }
        Expression::Two(left, sign, right) => {
            let (left, right) = (evaluate(left, on)?, evaluate(right, on)?);
            Some(match sign {
                Sign::Plus => left + right,
                Sign::Minus => left - right,
                Sign::Times => left * right,
                Sign::Over => left / right,
            })
        }
    }
}

/// How far a value may be off, for the digits of its series.
fn off(expression: &Expression, on: On<'_>) -> f64 {
    match expression {
        Expression::Number(_) => 0.0,
        Expression::Series { name, labels, .. } => {
            chosen(on.page, name, labels).iter().map(|sample| off_by_digits(sample.value)).sum()
        }
        Expression::Two(left, sign, right) => {
            let (left_off, right_off) = (off(left, on), off(right, on));
            let value = |side| evaluate(side, on).unwrap_or(0.0).abs();
            match sign {
                Sign::Plus | Sign::Minus => left_off + right_off,
                Sign::Times => value(left) * right_off + value(right) * left_off,
                Sign::Over => (left_off + right_off * value(left) / value(right)) / value(right),
            }
        }
    }
}

/// Digits that a stream of C++ prints of a number, where nobody asked for more: from a million on they are no longer all.
const DIGITS: i32 = 6;

/// Half of the last digit that a value has, if it may be one that was cut to [`DIGITS`]: more digits prove that it was
/// not, and a whole number of so few is exact.
fn off_by_digits(value: f64) -> f64 {
    let is_exact = value.fract() == 0.0 && value.abs() < 10f64.powi(DIGITS);
    if is_exact || !value.is_finite() {
        return 0.0;
    }
    let last = 10f64.powi(value.abs().log10().floor() as i32 + 1 - DIGITS);
    let digits = value / last;
    if (digits - digits.round()).abs() < 1e-6 { last / 2.0 } else { 0.0 }
}

fn chosen<'a>(page: &'a Page, name: &'a str, labels: &[(String, Vec<String>)]) -> Vec<&'a Sample> {
    let fits = |sample: &&Sample| {
        labels.iter().all(|(label, wanted)| sample.labels.get(label).is_some_and(|value| wanted.contains(value)))
    };
    page.named(name).filter(|sample| sample.value.is_finite()).filter(fits).collect()
}

/// Samples of one series in one number.
fn together(samples: &[&Sample], alike: &[String], over: Over) -> Option<f64> {
    let mut groups: BTreeMap<Vec<(&String, &String)>, f64> = BTreeMap::new();
    for sample in samples {
        let key = sample.labels.iter().filter(|(label, _)| !alike.contains(label)).collect();
        let largest = groups.entry(key).or_insert(sample.value);
        *largest = largest.max(sample.value);
    }
    let count = groups.len();
    let values = groups.into_values();
    match over {
        _ if count == 0 => None,
        Over::Sum => Some(values.sum()),
        Over::Max => values.reduce(f64::max),
        Over::Mean => Some(values.sum::<f64>() / count as f64),
    }
}

impl Expression {
    fn each_name(&self, take: &mut impl FnMut(&str)) {
        match self {
            Expression::Number(_) => {}
            Expression::Series { name, .. } => take(name),
            Expression::Two(left, _, right) => {
                left.each_name(take);
                right.each_name(take);
            }
        }
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Formula {
    type Err = FormulaError;

    fn from_str(text: &str) -> Result<Self, FormulaError> {
        let mut reader = Reader { rest: text };
        let parsed = reader.formula();
        parsed.map(|(sum, by)| Formula { text: text.to_owned(), sum, by }).map_err(|why| FormulaError {
            formula: text.to_owned(),
            why,
            at: reader.rest.to_owned(),
        })
    }
}

/// Brackets within brackets, at most: a formula of a file must not use up the stack.
const DEEPEST: usize = 16;

struct Reader<'a> {
    rest: &'a str,
}

type Read<T> = Result<T, &'static str>;

impl<'a> Reader<'a> {
    fn formula(&mut self) -> Read<(Expression, Option<String>)> {
        let sum = self.sum(0)?;
        let by = self.takes("by ").then(|| self.name()).transpose()?;
        self.skip();
        if !self.rest.is_empty() {
            return Err("something that is not understood");
        }
        if by.is_some() && !matches!(sum, Expression::Series { over: Over::Sum, .. }) {
            return Err("`by` stands after a name alone");
        }
        Ok((sum, by.map(str::to_owned)))
    }

    fn sum(&mut self, depth: usize) -> Read<Expression> {
        let mut left = self.product(depth)?;
        loop {
            let sign = match () {
                () if self.takes("+") => Sign::Plus,
                () if self.takes("-") => Sign::Minus,
                () => return Ok(left),
            };
            left = Expression::Two(Box::new(left), sign, Box::new(self.product(depth)?));
        }
    }

    fn product(&mut self, depth: usize) -> Read<Expression> {
        let mut left = self.factor(depth)?;
        loop {
            let sign = match () {
                () if self.takes("*") => Sign::Times,
                () if self.takes("/") => Sign::Over,
                () => return Ok(left),
            };
            left = Expression::Two(Box::new(left), sign, Box::new(self.factor(depth)?));
        }
    }

    fn factor(&mut self, depth: usize) -> Read<Expression> {
        if depth > DEEPEST {
            return Err("too many brackets");
        }
        if self.takes("(") {
            let inside = self.sum(depth + 1)?;
            return self.closes(inside);
        }
        for (word, over) in [("max(", Over::Max), ("mean(", Over::Mean)] {
            if self.takes(word) {
                let series = self.series(over)?;
                return self.closes(series);
            }
        }
        if self.rest.starts_with(|first: char| first.is_ascii_digit()) {
            let end = self.rest.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
            let (number, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
            let number = number.parse().map_err(|_| "a number that is none")?;
            self.rest = rest;
            return Ok(Expression::Number(number));
        }
        self.series(Over::Sum)
    }

    fn series(&mut self, over: Over) -> Read<Expression> {
        let name = self.name()?.to_owned();
        let mut labels = Vec::new();
        if self.rest.starts_with('{') {
            self.takes("{");
            while !self.takes("}") {
                let label = self.name()?.to_owned();
                if !self.takes("=") || !self.takes("\"") {
                    return Err("a label is written `label=\"value\"`, several values with `|` between them");
                }
                let (values, rest) = self.rest.split_once('"').ok_or("a quote that is not closed")?;
                labels.push((label, values.split('|').map(str::to_owned).collect()));
                self.rest = rest;
                self.takes(",");
            }
        }
        Ok(Expression::Series { over, name, labels })
    }

    fn name(&mut self) -> Read<&'a str> {
        self.skip();
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
        let end = self.rest.find(|letter| !is_name(letter)).unwrap_or(self.rest.len());
        if end == 0 {
            return Err("the name of a series is missing");
        }
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(name)
    }

    fn closes(&mut self, inside: Expression) -> Read<Expression> {
        if self.takes(")") { Ok(inside) } else { Err("a bracket that is not closed") }
    }

    /// Takes a word, and the blanks before and after it, if it is next.
    fn takes(&mut self, word: &str) -> bool {
        self.skip();
        let Some(rest) = self.rest.strip_prefix(word) else { return false };
        self.rest = rest;
        self.skip();
        true
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = "\
        steps{rank=\"0\",tp=\"0\"} 10\nsteps{rank=\"0\",tp=\"1\"} 10\nsteps{rank=\"1\",tp=\"2\"} 7\n\
        mean 2.5\nodd NaN\nodd{rank=\"1\"} 4\n\
        mode{m=\"a\"} 1\nmode{m=\"b\"} 2\nmode{m=\"c\"} 4\n\
        pos{position=\"0\",e=\"0\"} 5\npos{position=\"10\",e=\"0\"} 1\npos{position=\"2\",e=\"0\"} 3\npos{position=\"0\",e=\"1\"} 6\n";

    #[test]
    fn a_value_of_six_digits_may_be_off_by_half_of_the_last() {
        for (value, expected) in [
            (123_456.0, 0.0),
            (1_234_570.0, 5.0),
            (12_345_600.0, 50.0),
            (1_234_567.0, 0.0),
            (0.0, 0.0),
            (f64::INFINITY, 0.0),
        ] {
            assert_eq!(off_by_digits(value), expected, "{value}");
        }
        assert!((off_by_digits(1.23457) - 5e-6).abs() < 1e-12);
        let page = Page::read("a 2.00001\nb 1.00002e+06\n");
        let formula: Formula = "a * b".parse().unwrap();
        let on = On { page: &page, alike: &[], absent_is_zero: false };
        assert!((formula.off(on) - (5e-6 * 1.00002e6 + 2.00001 * 5.0)).abs() < 1e-6);
    }

    fn on(page: &Page) -> On<'_> {
        On { page, alike: &[], absent_is_zero: false }
    }

    fn value(formula: &str) -> Option<f64> {
        formula.parse::<Formula>().unwrap().value(on(&Page::read(PAGE)))
    }

    #[test]
    fn names_are_summed_over_their_labels() {
        assert_eq!(value("steps"), Some(27.0));
        assert_eq!(value("steps * mean"), Some(67.5));
        assert_eq!(value("steps - mean * 2 + 1"), Some(23.0));
        assert_eq!(value("(steps - 7) / (max(steps) - 5)"), Some(4.0));
        assert_eq!(value("mean(steps)"), Some(9.0));
        assert_eq!(value("mean"), Some(2.5), "a series may be called like that");
        assert_eq!(value("mode{m=\"a|c\"}"), Some(5.0));
        assert_eq!(value("odd"), Some(4.0), "what is no number is left aside");
    }

    #[test]
    fn what_is_not_there_makes_the_whole_absent() {
        assert_eq!(value("nothing"), None);
        assert_eq!(value("steps + nothing"), None);
        assert_eq!(value("mode{m=\"z\"}"), None);
        assert_eq!(value("steps / (mean - mean)"), None);
        let page = Page::read(PAGE);
        let formula: Formula = "steps + nothing".parse().unwrap();
        assert_eq!(formula.value(On { absent_is_zero: true, ..on(&page) }), Some(27.0));
    }

    #[test]
    fn ranks_that_count_the_same_work_count_once() {
        let page = Page::read(PAGE);
        let alike = ["tp".to_owned()];
        let formula: Formula = "steps".parse().unwrap();
        assert_eq!(formula.value(On { alike: &alike, ..on(&page) }), Some(17.0));
    }

    #[test]
    fn positions_stay_apart_and_in_order() {
        let formula: Formula = "pos by position".parse().unwrap();
        let page = Page::read(PAGE);
        let expected = [("0", 11.0), ("2", 3.0), ("10", 1.0)].map(|(key, value)| (key.to_owned(), value));
        assert_eq!(formula.values_by(on(&page)), expected);
    }

    #[test]
    fn a_formula_that_is_none_says_where() {
        let wrong = |text: &str| text.parse::<Formula>().unwrap_err().to_string();
        insta::assert_snapshot!(wrong("a + "), @"`a + ` is no formula of series: the name of a series is missing at ``");
        insta::assert_snapshot!(wrong("a b"), @"`a b` is no formula of series: something that is not understood at `b`");
        insta::assert_snapshot!(wrong("(a"), @"`(a` is no formula of series: a bracket that is not closed at ``");
        insta::assert_snapshot!(wrong("a + b by c"), @"`a + b by c` is no formula of series: `by` stands after a name alone at ``");
        assert!("".parse::<Formula>().is_err() && "a{b}".parse::<Formula>().is_err());
        assert!("(".repeat(100_000).parse::<Formula>().is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "[a-c(){}\"=|+*/ -0-9by]{0,40}") {
            let _ = text.parse::<Formula>();
        }
    }
}
