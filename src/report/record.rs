//! A record in words and tables: what a person wants to know of a run, the verdict first.

use std::fmt::Write;

use super::failed;
use super::number::{self, ABSENT};
pub use super::steps::steps;
use super::table::{Align, Table};
use crate::record::model::{Comparison, Failure, Reason, Record, Startup, StepResult, Verdict, VerdictKind};
use crate::render::Warning;

/// The word of a verdict for people.
pub fn word(kind: VerdictKind) -> &'static str {
    match kind {
        VerdictKind::Failed => "failed",
        VerdictKind::Invalid => "invalid",
        VerdictKind::Regressed => "regressed",
        VerdictKind::HostChanged => "host changed",
        VerdictKind::Inconclusive => "inconclusive",
        VerdictKind::Improved => "improved",
        VerdictKind::Ok => "ok",
        VerdictKind::NoBaseline => "no baseline",
    }
}

/// What is likely to be so in every step of a run, since it lies in the server: told once, with the steps' names.
pub(super) const OF_THE_SERVER: [&str; 3] = ["chunk_tokens_unknown", "connections_not_kept", "tokens_estimated"];

/// The texts of warnings; of those that lie in the server, one for all steps.
fn once(warnings: &[Warning]) -> Vec<String> {
    let mut texts: Vec<(&str, String, Vec<&str>)> = Vec::new();
    for warning in warnings {
        let told = warning.text.strip_prefix('`').and_then(|text| text.split_once("`: "));
        let before = texts.iter_mut().find(|(id, ..)| *id == warning.id && OF_THE_SERVER.contains(id));
        match (before, told) {
            (Some((_, _, steps)), Some((step, _))) => steps.push(step),
            _ => texts.push((&warning.id, warning.text.clone(), Vec::new())),
        }
    }
    texts.into_iter().map(|(_, text, steps)| also_in(text, &steps)).collect()
}

/// A step's text, and the names of the others that it is true of.
pub(super) fn also_in(text: String, steps: &[impl AsRef<str>]) -> String {
    let names: Vec<String> = steps.iter().map(|step| format!("`{}`", step.as_ref())).collect();
    if names.is_empty() { text } else { format!("{text} (the like in {})", names.join(", ")) }
}

/// The verdict: its word, then each reason on a line of its own.
pub fn verdict(verdict: &Verdict) -> String {
    let mut text = format!("{}\n", word(verdict.kind).to_uppercase());
    // A failure is its own cause: it is told once.
    let is_a_reason = |sentence: &str| verdict.reasons.iter().any(|reason| reason.text == sentence);
    if let Some(cause) = verdict.cause.as_ref().filter(|cause| !is_a_reason(&cause.sentence)) {
        let _ = writeln!(text, "  {}", number::plain(&cause.sentence));
    }
    let (differs, reasons): (Vec<&Reason>, Vec<&Reason>) =
        verdict.reasons.iter().partition(|reason| reason.id == "differs");
    for reason in reasons {
        let _ = writeln!(text, "  {}", number::plain(&reason.text));
    }
    if !differs.is_empty() {
        text.push_str("differs from the baseline, which need not be the cause:\n");
    }
    for reason in differs {
        let _ = writeln!(text, "  {}", number::plain(&reason.text));
    }
    text
}

/// How a metric is called in tables, with its unit.
pub fn label(id: &str) -> String {
    let known = match id {
        "output_tokens_per_s" => "total tok/s",
        "decode_tokens_per_s_per_user" => "decode tok/s/u",
        "startup_s" => "ready s",
        "acceptance_length" => "accepted per step",
        "acceptance_ratio" => "accepted of drafted",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_owned();
    }
    let (name, part) = id.split_once('.').unwrap_or((id, ""));
    match name.strip_suffix("_ms") {
        Some(short @ ("ttft" | "tpot" | "itl" | "e2e")) => {
            format!("{} {part} ms", short.to_uppercase()).replace("  ", " ")
        }
        _ => id.to_owned(),
    }
}

/// Metric by metric, what it was compared with; empty without comparisons. An acceptance is named with the workload of its
/// step, since it is of that text alone.
pub fn comparisons(all: &[Comparison], steps: &[StepResult]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let right = Align::Right;
    let mut table = Table::new(&[
        ("step", Align::Left),
        ("metric", Align::Left),
        ("now", right),
        ("before", right),
        ("change", right),
        ("can see", right),
        ("", Align::Left),
    ]);
    for each in all {
        table.row([
            each.step.clone(),
            with_workload(each, steps),
            number::optional(each.now),
            number::optional(each.was),
            number::change(each.change_ratio),
            number::share(each.can_see_ratio),
            match each.verdict {
                VerdictKind::NoBaseline => "not judged".to_owned(),
                kind => word(kind).to_owned(),
            },
        ]);
    }
    let mut text = table.to_string();
    if all.iter().any(|each| each.verdict == VerdictKind::NoBaseline) {
        text.push_str("not judged: the caches were not alike, or it is not known whether they were\n");
    }
    text
}

fn with_workload(each: &Comparison, steps: &[StepResult]) -> String {
    let step = steps.iter().find(|step| step.name == each.step).filter(|_| each.metric.starts_with("acceptance_"));
    let workload = step.map(|step| format!(" on {}", number::plain(&step.workload_name)));
    label(&each.metric) + &workload.unwrap_or_default()
}

/// A run as a whole. `running`: an orch is at it now.
pub fn whole(record: &Record, short: &str, running: bool) -> String {
    let mut text = head(record, short);
    text.push('\n');
    if running {
        text.push_str("RUNNING\n  its record is not complete yet\n");
    } else {
        text.push_str(&verdict(&record.verdict));
    }
    if let Some(failure) = &record.failure {
        let _ = writeln!(text, "\nfailure    {} in {}: {}", failure.kind, failure.stage, number::plain(&failure.text));
        text.push_str(&failed(record, failure));
    }
    let warnings = once(&record.warnings).iter().map(|text| format!("  {}\n", number::plain(text))).collect();
    let sections = [
        ("", steps(&record.steps)),
        ("against the baseline", comparisons(&record.comparisons, &record.steps)),
        ("start-up", record.startup.as_ref().map(startup).unwrap_or_default()),
        ("asked and effective", effective(record)),
        ("warnings", warnings),
        ("command", command(&record.command)),
        ("left on the host", left(record)),
    ];
    for (title, section) in sections {
        if !section.is_empty() {
            let title = if title.is_empty() { String::new() } else { format!("{title}\n") };
            let _ = write!(text, "\n{title}{section}");
        }
    }
    text
}

/// How it failed: when and where, the line that is the cause and the one that is not, and what to do.
pub fn failed(record: &Record, failure: &Failure) -> String {
    let rows = failed::rows(record, failure);
    rows.iter().map(|(word, told)| format!("  {word:<8} {}\n", number::plain(told))).collect()
}

fn head(record: &Record, short: &str) -> String {
    let name = record.profile.get("name").and_then(|name| name.as_str()).unwrap_or(&record.series);
    let engine = match &record.engine {
        Some(engine) if engine.simulated => format!(", {} {} (simulated)", engine.kind, engine.version),
        Some(engine) => format!(", {} {}", engine.kind, engine.version),
        None => String::new(),
    };
    let began = record.started_at.strftime("%Y-%m-%d %H:%M:%S UTC");
    let took = record.ended_at.map(|end| {
        let seconds = end.duration_since(record.started_at).as_secs_f64().max(0.0);
        format!(", took {}", crate::units::duration_text(std::time::Duration::from_secs(seconds.round() as u64)))
    });
    let lines = [
        format!("{short}  {name} on {} ({}){engine}", record.host.name, record.host.hardware),
        record.id.clone(),
        format!("began {began}{}, series {}, orch {}", took.unwrap_or_default(), record.series, record.orch.version),
    ];
    let by = record.writer.as_ref().map(|writer| format!("recorded by {writer}"));
    lines.into_iter().chain(by).map(|line| number::plain(&line) + "\n").collect()
}

fn startup(startup: &Startup) -> String {
    let mut table = Table::new(&[("phase", Align::Left), ("s", Align::Right), ("free GB by rank", Align::Left)]);
    let free = |phase: &str| {
        let points = startup.memory.iter().filter(|point| point.phase == phase);
        points.map(|point| format!("{}: {}", point.rank, number::amount(point.free_gb))).collect::<Vec<_>>().join("  ")
    };
    for phase in &startup.phases {
        table.row([phase.name.clone(), number::amount(phase.s), free(&phase.name)]);
    }
    let caches: Vec<String> = [("weights", &startup.weights_cache), ("jit", &startup.jit_cache)]
        .into_iter()
        .filter_map(|(name, state)| state.as_ref().map(|state| format!("{name} cache {state}")))
        .collect();
    table.row(["ready".to_owned(), number::optional(startup.ready_s), caches.join(", ")]);
    table.to_string()
}

fn effective(record: &Record) -> String {
    if record.effective.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("", Align::Left),
        ("setting", Align::Left),
        ("asked", Align::Right),
        ("effective", Align::Right),
    ]);
    for each in &record.effective {
        let text = |value: &Option<serde_json::Value>| match value {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(value) => match value.as_u64() {
                Some(value) => number::count(value),
                None => value.to_string(),
            },
            None => ABSENT.to_owned(),
        };
        let differs = each.asked.is_some() && each.read.is_some() && each.asked != each.read;
        table.row([if differs { "!" } else { "" }.to_owned(), each.key.clone(), text(&each.asked), text(&each.read)]);
    }
    table.to_string()
}

/// One flag a line, so that it can be read; `command.txt` has it in one piece.
fn command(words: &[String]) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        let quoted = number::plain(&shell_words::quote(word));
        if index == 0 {
            let _ = write!(text, "  {quoted}");
        } else if word.starts_with('-') {
            let _ = write!(text, " \\\n    {quoted}");
        } else {
            let _ = write!(text, " {quoted}");
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn left(record: &Record) -> String {
    record.left.as_ref().map_or_else(String::new, |left| {
        let gpu = left.gpu_mib.map(|mib| format!(", {} MiB of device memory", number::count(mib)));
        let processes = if left.processes == 1 { "process" } else { "processes" };
        format!("  {} {processes}{}\n", number::count(left.processes), gpu.unwrap_or_default())
    })
}
