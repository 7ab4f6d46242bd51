//! The parts of a page: of each run the verdict first, then why, then everything that it rests on.

use std::fmt::Write;

use super::chart::{COLOURS, Drawn};
use super::escape::html;
use super::{Run, charts};
use crate::measure::Percentile;
use crate::record::model::{Failure, Record, StepResult, VerdictKind};
use crate::report::number;
use crate::report::record::{label, word};
use crate::report::text::seconds;

/// All runs of a report beside each other.
pub(super) fn overview(runs: &[Run]) -> String {
    let mut rows = String::new();
    for run in runs {
        for step in &run.record.steps {
            let metric = |id: &str| number::metric(step.metrics.get(id));
            let _ = write!(
                rows,
                "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td>{2}</td><td class=\"n\">{3}</td><td class=\"n\">{4}</td><td class=\"n\">{5}</td><td>{6}</td></tr>",
                html(&run.short),
                html(&run.record.series),
                html(&step.name),
                metric("output_tokens_per_s"),
                metric("decode_tokens_per_s_per_user"),
                percentile(step, "ttft_ms", Percentile::P50),
                word(run.record.verdict.kind)
            );
        }
    }
    let head = ["run", "series", "step", "output tok/s", "decode tok/s a user", "TTFT p50, ms", "verdict"];
    format!("<section><h1>{} runs</h1>{}</section>\n", runs.len(), table(&head, &rows))
}

/// One run.
pub(super) fn of_run(run: &Run) -> String {
    let record = &run.record;
    let mut page = format!("<section class=\"run\" id=\"{}\">\n{}{}", html(&run.short), head(run), verdict(run));
    if let Some(failure) = &record.failure {
        page.push_str(&failed(run, failure));
    }
    page += &figure("Against the baseline", charts::comparisons(&record.comparisons));
    page.push_str(&compared(record));
    page.push_str(&measured(record));
    page += &figure("Throughput against load", charts::ladder(&record.steps));
    for (title, drawn) in charts::distributions(&run.samples) {
        page += &figure(title, Some(drawn));
    }
    page += &figure("The load over time", charts::over_time(run));
    page += &figure("Power", charts::power(run));
    if let Some(startup) = &record.startup {
        let ready = startup.ready_s.map(|s| format!("Start-up, ready after {}", seconds(s)));
        page += &figure(ready.as_deref().unwrap_or("Start-up"), charts::startup(startup));
        page += &figure("Memory left", charts::memory(startup));
    }
    page.push_str(&rest(record));
    page.push_str("</section>\n");
    page
}

/// A chart with its title and keys; nothing where there is none.
fn figure(title: &str, drawn: Option<Drawn>) -> String {
    let figure = |drawn: Drawn| {
        format!(
            "<figure><h3>{}</h3>{}<div class=\"chart\">{}</div></figure>\n",
            html(title),
            keys(&drawn.names),
            drawn.svg
        )
    };
    drawn.map(figure).unwrap_or_default()
}

fn head(run: &Run) -> String {
    let record = &run.record;
    let engine = record.engine.as_ref().map_or_else(String::new, |engine| {
        let simulated = if engine.simulated { ", <strong>simulated</strong>" } else { "" };
        format!(" · {} {}{simulated}", html(&engine.kind), html(&engine.version))
    });
    format!(
        "<h1>{} <small>{}</small></h1>\n<p class=\"about\">{} · {}{engine} · {} · orch {}</p>\n",
        html(record.profile.get("name").and_then(|name| name.as_str()).unwrap_or(&record.series)),
        html(&run.short),
        html(&record.host.name),
        html(&record.host.hardware),
        record.started_at.strftime("%Y-%m-%d %H:%M UTC"),
        html(&record.orch.version)
    )
}

/// Verdict, cause and reasons: what a reader wants first.
fn verdict(run: &Run) -> String {
    let verdict = &run.record.verdict;
    if run.running {
        return "<div class=\"verdict open\"><strong>RUNNING</strong><p>Its record is not complete yet.</p></div>\n"
            .to_owned();
    }
    let class = match verdict.kind {
        VerdictKind::Ok | VerdictKind::Improved => "good",
        VerdictKind::Regressed | VerdictKind::Failed | VerdictKind::Invalid => "bad",
        _ => "open",
    };
    let mut text = format!("<div class=\"verdict {class}\"><strong>{}</strong>", word(verdict.kind).to_uppercase());
    let is_a_reason = |sentence: &str| verdict.reasons.iter().any(|reason| reason.text == sentence);
    if let Some(cause) = verdict.cause.as_ref().filter(|cause| !is_a_reason(&cause.sentence)) {
        let _ = write!(text, "<p class=\"cause\">{}</p>", html(&cause.sentence));
    }
    if !verdict.reasons.is_empty() {
        text.push_str("<ul>");
        for text_of_reason in super::reasons(&verdict.reasons) {
            let _ = write!(text, "<li>{}</li>", html(text_of_reason));
        }
        text.push_str("</ul>");
    }
    text.push_str("</div>\n");
    text
}

/// A failure: what, where, the line that is the cause in its surroundings, and what to do.
fn failed(run: &Run, failure: &Failure) -> String {
    let mut text = String::from("<dl class=\"failure\">");
    let mut row = |term: &str, words: String| text.push_str(&format!("<dt>{term}</dt><dd>{words}</dd>"));
    row("what", html(&failure.text));
    if let Some(start) = &failure.start {
        let rank = start.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
        row("at", html(format!("{} after launch, phase {}{rank}", seconds(start.after_s), start.phase)));
    }
    if let Some(line) = &failure.line {
        let place = failure.line_no.map(|number| format!("server.log:{number} ")).unwrap_or_default();
        row("line", format!("<code>{}</code>", html(place + line)));
    }
    if let Some(remedy) = &failure.remedy {
        row("do", html(remedy));
    }
    text.push_str("</dl>\n");
    if !run.log.is_empty() {
        text.push_str("<pre class=\"log\">");
        for (number, line) in &run.log {
            let root = if Some(*number) == failure.line_no { " class=\"root\"" } else { "" };
            let _ = writeln!(text, "<span{root}>{number:>6}  {}</span>", html(line));
        }
        text.push_str("</pre>\n");
    }
    text
}

fn compared(record: &Record) -> String {
    if record.comparisons.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for each in &record.comparisons {
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            html(&each.step),
            html(label(&each.metric)),
            number::optional(each.now),
            number::optional(each.was),
            number::change(each.change_ratio),
            number::share(each.can_see_ratio),
            word(each.verdict)
        );
    }
    let head = ["step", "metric", "now", "before", "change", "can see", "verdict"];
    table(&head, &rows)
}

fn percentile(step: &StepResult, id: &str, which: Percentile) -> String {
    number::percentile(step.metrics.get(id), which)
}

fn measured(record: &Record) -> String {
    let mut rows = String::new();
    for step in &record.steps {
        let metric = |id: &str| number::metric(step.metrics.get(id));
        let _ = write!(
            rows,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            html(&step.name),
            step.counts.ok,
            step.counts.failed,
            metric("output_tokens_per_s"),
            metric("decode_tokens_per_s_per_user"),
            percentile(step, "ttft_ms", Percentile::P50),
            percentile(step, "ttft_ms", Percentile::P99),
            percentile(step, "tpot_ms", Percentile::P50),
            metric("acceptance_length"),
            if step.valid {
                "valid".to_owned()
            } else {
                html(step.reasons.iter().map(|reason| reason.text.as_str()).collect::<Vec<_>>().join("; "))
            }
        );
    }
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "step",
        "ok",
        "failed",
        "output tok/s",
        "decode tok/s a user",
        "TTFT p50, ms",
        "TTFT p99, ms",
        "TPOT p50, ms",
        "acceptance",
        "",
    ];
    format!(
        "<h2>Measured</h2>\n{}<p class=\"about\">~ marks a percentile that the samples do not carry: shown, not judged.</p>\n",
        table(&head, &rows)
    )
}

/// What the rest rests on: settings as asked and as read back, warnings, the command.
fn rest(record: &Record) -> String {
    let mut text = String::new();
    if !record.effective.is_empty() {
        let mut rows = String::new();
        let shown = |value: &Option<serde_json::Value>| match value {
            None => number::ABSENT.to_owned(),
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        for each in &record.effective {
            let _ = write!(
                rows,
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                html(&each.key),
                html(shown(&each.asked)),
                html(shown(&each.read))
            );
        }
        let _ = writeln!(
            text,
            "<details><summary>Asked and effective</summary>{}</details>",
            table(&["setting", "asked", "read back"], &rows)
        );
    }
    if !record.warnings.is_empty() {
        let all: String = record.warnings.iter().map(|warning| format!("<li>{}</li>", html(&warning.text))).collect();
        let _ = writeln!(text, "<details><summary>Notes ({})</summary><ul>{all}</ul></details>", record.warnings.len());
    }
    if !record.command.is_empty() {
        let _ = writeln!(
            text,
            "<details><summary>Command</summary><pre>{}</pre></details>",
            html(shell_words::join(&record.command))
        );
    }
    text
}

fn table(head: &[&str], rows: &str) -> String {
    let head: String = head.iter().map(|title| format!("<th scope=\"col\">{title}</th>")).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"sortable\"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n"
    )
}

/// Names and colours of the series; each can be put away.
fn keys(names: &[String]) -> String {
    if names.len() < 2 {
        return String::new();
    }
    let key = |(index, name): (usize, &String)| {
        let class = index % COLOURS;
        format!(
            "<button type=\"button\" class=\"key s{class}\" data-series=\"{index}\" aria-pressed=\"true\">{}</button>",
            html(name)
        )
    };
    format!("<div class=\"keys\">{}</div>", names.iter().enumerate().map(key).collect::<String>())
}
