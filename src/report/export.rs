//! A comparison in the words of other tools: Markdown for a job's summary, JUnit, annotations of a CI, Bencher.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::number;
use super::record::{label, word};
use crate::compare::Judgement;
use crate::record::Record;
use crate::record::model::{Comparison, VerdictKind};

/// What a comparison can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table and the reasons, for a pull request or a job's summary.
    Markdown,
    /// A test case a metric: regressed fails, and what is not judged is skipped.
    Junit,
    /// Lines that a CI shows beside its log.
    Annotations,
    /// Bencher's metric format, JSON.
    Bencher,
}

/// Writes a comparison of `record`, which people call `short`.
pub fn written(format: Format, record: &Record, short: &str, judgement: &Judgement) -> String {
    match format {
        Format::Markdown => markdown(record, short, judgement),
        Format::Junit => junit(record, short, judgement),
        Format::Annotations => annotations(record, short, judgement),
        Format::Bencher => bencher(record, judgement),
    }
}

fn markdown(record: &Record, short: &str, judgement: &Judgement) -> String {
    let verdict = &judgement.verdict;
    let mut text = format!("### {} {short}: {}\n\n", cell(&record.series), word(verdict.kind).to_uppercase());
    if let Some(cause) = &verdict.cause {
        let _ = writeln!(text, "{}\n", line(&cause.sentence));
    }
    if !judgement.comparisons.is_empty() {
        text.push_str("| step | metric | now | before | change | can see | |\n|---|---|--:|--:|--:|--:|---|\n");
        for each in &judgement.comparisons {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                cell(&each.step),
                cell(&label(&each.metric)),
                number::optional(each.now),
                number::optional(each.was),
                number::change(each.change_ratio),
                number::share(each.can_see_ratio),
                judged(each)
            );
        }
        text.push('\n');
    }
    for reason in &verdict.reasons {
        let _ = writeln!(text, "- {}", line(&reason.text));
    }
    text
}

fn judged(each: &Comparison) -> &'static str {
    if each.verdict == VerdictKind::NoBaseline { "not judged" } else { word(each.verdict) }
}

/// Text from elsewhere on one line.
fn line(text: &str) -> String {
    number::plain(text)
}

/// The same in a cell of a table.
fn cell(text: &str) -> String {
    line(text).replace('|', "\\|")
}

fn junit(record: &Record, short: &str, judgement: &Judgement) -> String {
    let all = &judgement.comparisons;
    let count = |wanted: fn(VerdictKind) -> bool| all.iter().filter(|each| wanted(each.verdict)).count();
    let fails = |kind| kind == VerdictKind::Regressed;
    let skips = |kind| matches!(kind, VerdictKind::NoBaseline | VerdictKind::Inconclusive | VerdictKind::HostChanged);
    // What cannot be judged at all is one case that is in error.
    let broken = matches!(judgement.verdict.kind, VerdictKind::Failed | VerdictKind::Invalid);
    let reasons: Vec<&str> = judgement.verdict.reasons.iter().map(|reason| reason.text.as_str()).collect();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" \
         errors=\"{}\" skipped=\"{}\" timestamp=\"{}\">\n",
        xml(&format!("{} {short}", record.series)),
        all.len() + usize::from(broken),
        count(fails),
        usize::from(broken),
        count(skips),
        record.started_at
    );
    if broken {
        let kind = word(judgement.verdict.kind);
        let _ = writeln!(
            text,
            "  <testcase classname=\"run\" name=\"{kind}\"><error message=\"{}\"/></testcase>",
            xml(&reasons.join("; "))
        );
    }
    for each in all {
        let told = judgement.verdict.reasons.iter().find(|reason| {
            reason.metric.as_deref() == Some(&each.metric) && reason.text.starts_with(&format!("`{}`", each.step))
        });
        let told = told.map_or_else(|| judged(each).to_owned(), |reason| reason.text.clone());
        let (class, name) = (xml(&each.step), xml(&each.metric));
        let inside = match each.verdict {
            kind if fails(kind) => format!("<failure message=\"{}\"/>", xml(&told)),
            kind if skips(kind) => format!("<skipped message=\"{}\"/>", xml(&told)),
            _ => String::new(),
        };
        let _ = writeln!(text, "  <testcase classname=\"{class}\" name=\"{name}\">{inside}</testcase>");
    }
    text.push_str("</testsuite>\n");
    text
}

fn xml(text: &str) -> String {
    line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn annotations(record: &Record, short: &str, judgement: &Judgement) -> String {
    let verdict = &judgement.verdict;
    let level = match verdict.kind {
        VerdictKind::Failed | VerdictKind::Invalid | VerdictKind::Regressed => "error",
        VerdictKind::HostChanged | VerdictKind::Inconclusive | VerdictKind::NoBaseline => "warning",
        VerdictKind::Improved | VerdictKind::Ok => "notice",
    };
    let title = escaped(&format!("{} {short}: {}", record.series, word(verdict.kind))).replace([',', ':'], " ");
    let cause = verdict.cause.iter().map(|cause| cause.sentence.as_str());
    let mut lines: Vec<&str> = cause.chain(verdict.reasons.iter().map(|reason| reason.text.as_str())).collect();
    if lines.is_empty() {
        lines.push(word(verdict.kind));
    }
    lines.iter().map(|text| format!("::{level} title={title}::{}\n", escaped(text))).collect()
}

/// As a command of a workflow wants its text.
fn escaped(text: &str) -> String {
    line(text).replace('%', "%25")
}

fn bencher(record: &Record, judgement: &Judgement) -> String {
    let mut all: Map<String, Value> = Map::new();
    for each in &judgement.comparisons {
        if let Some(now) = each.now {
            let name = format!("{}/{}", record.series, each.step);
            let measures = all.entry(name).or_insert_with(|| json!({}));
            measures[&each.metric] = json!({"value": now});
        }
    }
    format!("{:#}\n", Value::Object(all))
}
