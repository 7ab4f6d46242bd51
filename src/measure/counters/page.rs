//! Prometheus's text format, read for its samples. What is no sample is passed by: nonsense is absent, never an error.

use std::collections::BTreeMap;

/// More samples than this are not kept: no engine has so many, and a page may be anything.
const MAX_SAMPLES: usize = 100_000;

/// The samples of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// In the order of the page.
    pub samples: Vec<Sample>,
}

/// One line of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its name, as on the page: with `_total`, `_count`, `_sum` or `_bucket`, where it has one.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value, which may be infinite or no number.
    pub value: f64,
}

impl Page {
    /// Reads a page. Lines that are no samples (comments, HELP, TYPE, an HTML page) leave nothing.
    pub fn read(text: &str) -> Self {
        let samples = text.lines().filter_map(|line| sample(line.trim())).take(MAX_SAMPLES).collect();
        Page { samples }
    }

    /// The samples of a name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }
}

/// `name{label="value",…} 12.5 [timestamp]`.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(|letter: char| !is_name(letter)).filter(|end| *end > 0)?;
    let (name, rest) = line.split_at(end);
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let rest = rest.trim_start();
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (BTreeMap::new(), rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value = number(words.next()?)?;
    // After the value only a timestamp may come, or an exemplar of OpenMetrics.
    match words.next() {
        Some(word) if word != "#" && word.parse::<f64>().is_err() => None,
        _ => Some(Sample { name: name.to_owned(), labels, value }),
    }
}

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'
}

/// The labels up to the closing brace, and what comes after it.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([' ', '\t', ',']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once('=')?;
        let (value, rest) = quoted(rest.trim_start().strip_prefix('"')?)?;
        labels.insert(name.trim().to_owned(), value);
        text = rest;
    }
}

/// A label's value up to its closing quote, with `\\`, `\"` and `\n` undone, and what comes after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// Numbers as Go writes them: `1.5e+09`, `+Inf`, `NaN`.
fn number(word: &str) -> Option<f64> {
    match word {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" | "Nan" | "nan" => Some(f64::NAN),
        word if word.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => word.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Line = (String, Vec<(String, String)>, f64);

    fn one(line: &str) -> Option<Line> {
        let page = Page::read(line);
        let sample = page.samples.into_iter().next()?;
        Some((sample.name, sample.labels.into_iter().collect(), sample.value))
    }

    fn plain(name: &str, value: f64) -> Option<Line> {
        Some((name.to_owned(), vec![], value))
    }

    #[test]
    fn samples_are_read_with_or_without_labels_times_and_exponents() {
        assert_eq!(one("llamacpp:n_decode_total 1501"), plain("llamacpp:n_decode_total", 1501.0));
        assert_eq!(one("a 4.730994688e+09"), plain("a", 4_730_994_688.0));
        assert_eq!(one("a{} 5 1395066363000"), plain("a", 5.0));
        assert_eq!(one("  a  \t -Inf"), plain("a", f64::NEG_INFINITY));
        assert_eq!(one("a_total 7 # {trace_id=\"x\"} 1"), plain("a_total", 7.0));
        assert!(one("a NaN").unwrap().2.is_nan());
        let labels = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let line = r#"vllm:x_total{engine="0", model_name="a \"b\" \\ c\nd}",le="+Inf",} 3.0"#;
        let expected = labels(&[("engine", "0"), ("le", "+Inf"), ("model_name", "a \"b\" \\ c\nd}")]);
        assert_eq!(one(line), Some(("vllm:x_total".to_owned(), expected, 3.0)));
    }

    #[test]
    fn what_is_no_sample_leaves_nothing() {
        let lines = [
            "# HELP a b",
            "# TYPE a counter",
            "",
            "<html>",
            "404 Not Found",
            "{\"a\": 1}",
            "a",
            "a b",
            "a{b} 1",
            "a{b=\"c 1",
            "a{b=\"c\"",
            "not found",
            "a 1 b",
            "a 0x10",
            "é 1",
            "Not Found 404 page",
        ];
        for line in lines {
            assert_eq!(one(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC*", bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            Page::read(&text);
            Page::read(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn nothing_that_looks_like_a_page_makes_it_panic(text in "([a-z:_]{0,5}[{}\"\\\\=, #\n0-9+.eENa-]{0,12}){0,20}") {
            Page::read(&text);
        }

        #[test]
        fn what_was_written_is_read(value in any::<f64>(), label in "\\PC{0,10}") {
            let escaped = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let page = Page::read(&format!("a:b_total{{l=\"{escaped}\"}} {value:e}"));
            if value.is_finite() {
                prop_assert_eq!(page.samples.len(), 1);
                prop_assert_eq!(&page.samples[0].labels["l"], &label);
                prop_assert_eq!(page.samples[0].value, value);
            }
        }
    }
}
