//! The same in Markdown, for a pull request or a chat: verdict and cause, then the tables.

use std::fmt::Write;

use super::Run;
use super::escape::markdown as text;
use crate::measure::Percentile;
use crate::report::number;
use crate::report::record::{label, word};

/// All runs, one after the other.
pub fn markdown(runs: &[Run]) -> String {
    runs.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(run: &Run) -> String {
    let record = &run.record;
    let verdict = if run.running { "RUNNING".to_owned() } else { word(record.verdict.kind).to_uppercase() };
    let mut page = format!("## {} {}: {verdict}\n\n", text(&record.series), text(&run.short));
    let simulated = record.engine.as_ref().is_some_and(|engine| engine.simulated);
    let engine = record.engine.as_ref().map(|engine| format!(", {} {}", text(&engine.kind), text(&engine.version)));
    let _ = writeln!(
        page,
        "{} ({}){}{}\n",
        text(&record.host.name),
        text(&record.host.hardware),
        engine.unwrap_or_default(),
        if simulated { ", **simulated**" } else { "" }
    );
    if let Some(cause) = &record.verdict.cause {
        let _ = writeln!(page, "**{}**\n", text(&cause.sentence));
    }
    for reason in super::reasons(&record.verdict.reasons) {
        let _ = writeln!(page, "- {}", text(reason));
    }
    if let Some(failure) = &record.failure {
        if let Some(line) = &failure.line {
            let place = failure.line_no.map(|number| format!("server.log:{number} ")).unwrap_or_default();
            let _ = writeln!(page, "- line: {}{}", place, text(line));
        }
        if let Some(remedy) = &failure.remedy {
            let _ = writeln!(page, "- do: {}", text(remedy));
        }
    }
    page.push_str(&steps(run));
    page.push_str(&comparisons(run));
    page
}

fn steps(run: &Run) -> String {
    if run.record.steps.is_empty() {
        return String::new();
    }
    let mut table = String::from(
        "\n| step | ok | failed | output tok/s | decode tok/s a user | TTFT p50, ms | TPOT p50, ms | valid |\n|---|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for step in &run.record.steps {
        let metric = |id: &str| number::metric(step.metrics.get(id));
        let half = |id: &str| number::percentile(step.metrics.get(id), Percentile::P50).replace('~', "\\~");
        let reasons: Vec<String> = step.reasons.iter().map(|reason| text(&reason.text)).collect();
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            text(&step.name),
            step.counts.ok,
            step.counts.failed,
            metric("output_tokens_per_s"),
            metric("decode_tokens_per_s_per_user"),
            half("ttft_ms"),
            half("tpot_ms"),
            if step.valid { "yes".to_owned() } else { reasons.join("; ") }
        );
    }
    table
}

fn comparisons(run: &Run) -> String {
    if run.record.comparisons.is_empty() {
        return String::new();
    }
    let mut table =
        String::from("\n| step | metric | now | before | change | can see | |\n|---|---|--:|--:|--:|--:|---|\n");
    for each in &run.record.comparisons {
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} |",
            text(&each.step),
            text(label(&each.metric)),
            number::optional(each.now),
            number::optional(each.was),
            number::change(each.change_ratio),
            number::share(each.can_see_ratio),
            word(each.verdict)
        );
    }
    table
}
