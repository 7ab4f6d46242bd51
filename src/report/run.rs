//! How a run ends on the screen: steps, comparison, verdict, what was left, and what to do next.

use std::collections::BTreeSet;

use super::record::word;
use super::record::{comparisons, steps};
use super::text::{fit, wrap};
use crate::record::model::{Failure, Left, Record, VerdictKind};

/// The last lines of a run.
pub fn ending(record: &Record, short: &str, exit: u8, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for table in [steps(&record.steps), comparisons(&record.comparisons, &record.steps)] {
        if !table.is_empty() {
            lines.extend(table.lines().map(str::to_owned));
            lines.push(String::new());
        }
    }
    match &record.failure {
        Some(failure) => failed(failure, exit, width, &mut lines),
        None => judged(record, exit, width, &mut lines),
    }
    if record.verdict.kind == VerdictKind::NoBaseline {
        lines.push(format!("  `orch baseline set {short}` makes this run the baseline of `{}`", record.series));
    }
    lines.push(match &record.left {
        Some(Left { kept: Some(id), .. }) => {
            format!("its server stays: orch run --attach {short} | orch logs {short} -f | orch stop {short}   ({id})")
        }
        Some(left) if left.processes == 0 => {
            format!("nothing of {short} left: 0 processes{}.   orch show {short}", beside(left))
        }
        Some(left) => format!("{} processes of {short} could not be ended.   orch ps", left.processes),
        None if record.provenance.contains_key("attached") => {
            format!("the server was left as it is.   orch show {short}")
        }
        None => format!("what is left of {short} is not known.   orch ps"),
    });
    lines
}

/// What else was seen to when a server had ended.
fn beside(left: &Left) -> String {
    let memory = left.gpu_mib.map(|mib| format!(", {mib} MiB")).unwrap_or_default();
    let removed = match left.removed.len() {
        0 => String::new(),
        1 => "; 1 leftover file removed".to_owned(),
        count => format!("; {count} leftover files removed"),
    };
    let files = left.files.iter().map(|file| format!("; still there: {file}")).collect::<String>();
    format!("{memory}{removed}{files}")
}

fn judged(record: &Record, exit: u8, width: usize, lines: &mut Vec<String>) {
    lines.push(fit(&word(record.verdict.kind).to_uppercase(), &format!("exit {exit}"), width));
    if let Some(cause) = &record.verdict.cause {
        lines.extend(wrap(&cause.sentence, "  ", width));
    }
    // Several steps may have the same reason.
    let mut said = BTreeSet::new();
    for reason in record.verdict.reasons.iter().filter(|reason| said.insert(&reason.text)) {
        lines.extend(wrap(&reason.text, "  ", width));
    }
}

fn failed(failure: &Failure, exit: u8, width: usize, lines: &mut Vec<String>) {
    let word = match failure.stage.as_str() {
        "gate" => "DID NOT START",
        "server" => "DIED WHILE MEASURED",
        "load" => "COULD NOT MEASURE",
        _ => "COULD NOT LAUNCH",
    };
    lines.push(fit(word, &format!("exit {exit}"), width));
    lines.extend(wrap(&failure.text, "  what  ", width));
    if let Some(line) = &failure.line {
        let place = failure.line_no.map(|number| format!("server.log:{number}  ")).unwrap_or_default();
        lines.extend(wrap(&format!("{place}{line}"), "  line  ", width));
    }
    if let Some(remedy) = &failure.remedy {
        lines.extend(wrap(remedy, "  do    ", width));
    }
    if !failure.last_words.is_empty() {
        lines.push("  its last words:".to_owned());
        lines.extend(failure.last_words.iter().map(|line| fit(&format!("    {line}"), "", width)));
    }
}
