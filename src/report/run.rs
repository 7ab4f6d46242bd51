//! How a run ends on the screen: steps, comparison, verdict, what was left, and what to do next.

use std::collections::BTreeSet;

use super::failed;
use super::record::word;
use super::record::{comparisons, steps};
use super::text::{fit, wrap};
use crate::record::model::{Left, Record, VerdictKind};

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
        Some(failure) => lines.extend(failed::lines(record, failure, exit, width)),
        None => judged(record, exit, width, &mut lines),
    }
    if record.verdict.kind == VerdictKind::NoBaseline {
        lines.push(format!("  `orch baseline set {short}` makes this run the baseline of `{}`", record.series));
    }
    lines.push(match &record.left {
        Some(Left { kept: Some(id), .. }) => {
            format!("its server stays: orch run --attach {short} | orch logs {short} -f | orch stop {short}   ({id})")
        }
        Some(left) if left.processes == 0 && has_log(record) => {
            let line = record.failure.as_ref().and_then(|failure| failure.line_no);
            let at = line.map(|line| format!(" --at {line}")).unwrap_or_default();
            let left = beside(left);
            format!("nothing of {short} left: 0 processes{left}.   orch logs {short}{at} | orch bundle {short}")
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

/// Whether its failure is one that its server's log tells of.
fn has_log(record: &Record) -> bool {
    record.failure.as_ref().is_some_and(|failure| failure.start.is_some() || failure.stage == "server")
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
