//! One archive of a run for somebody who was not there: what was run, with what, what it said around the line that is the
//! cause, and what its processes did. Everything in it went through the mask.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::mask::Mask;
use super::model::Record;
use super::{excerpt, journal};
use crate::event::Event;

/// A file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name within.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What an archive of this run holds. What the run does not have is not in it.
pub fn entries(record: &Record, folder: &Path, mask: &Mask) -> io::Result<Vec<Entry>> {
    let mut entries = vec![("README.md".to_owned(), readme(record))];
    let read = |name: &str| fs::read(folder.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    for name in ["command.txt", "profile.yaml"] {
        if let Some(text) = there(read(name))? {
            entries.push((name.to_owned(), text));
        }
    }
    if let Some(journal) = there(read("journal.jsonl"))? {
        entries.push(("environment.txt".to_owned(), environment(record, folder, mask)));
        entries.push(("journal.jsonl".to_owned(), journal));
    }
    entries.push(("record.json".to_owned(), serde_json::to_string_pretty(record).map_err(io::Error::other)?));
    let line = record.failure.as_ref().and_then(|failure| failure.line_no);
    let log = fs::File::open(folder.join("server.log")).and_then(|log| excerpt::around(log, line));
    if let Some(log) = there(log)? {
        entries.push(("server.log".to_owned(), log));
    }
    let evidence = fs::read_dir(folder.join("evidence")).into_iter().flatten().flatten();
    let mut names: Vec<String> = evidence.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    for name in names.into_iter().map(|name| format!("evidence/{name}")) {
        if let Some(text) = there(read(&name))? {
            entries.push((name, text));
        }
    }
    Ok(entries.into_iter().map(|(name, text)| Entry { name, text: mask.text(&text) }).collect())
}

fn there(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the archive. All files lie in one folder of this name.
pub fn write(entries: &[Entry], root: &str, into: impl Write) -> io::Result<()> {
    let mut packed = zstd::Encoder::new(into, 9)?;
    let mut archive = tar::Builder::new(&mut packed);
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(entry.text.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append_data(&mut header, format!("{root}/{}", entry.name), entry.text.as_bytes())?;
    }
    archive.into_inner()?;
    packed.finish()?.flush()
}

/// What whoever opens it reads first.
fn readme(record: &Record) -> String {
    let mut text = String::new();
    let engine = record.engine.as_ref();
    let name = engine.map_or("an engine", |engine| engine.kind.as_str());
    let version = engine.map_or("", |engine| engine.version.as_str());
    // A `String` takes whatever is written to it.
    let _ = writeln!(text, "# {name} {version}: {}\n", headline(record));
    if engine.is_some_and(|engine| engine.simulated) {
        let _ = writeln!(text, "**Simulated**: no real engine ran.\n");
    }
    if let Some(failure) = &record.failure {
        if let Some(line) = &failure.line {
            let at = failure.line_no.map(|number| format!(" (line {number} of the whole log)")).unwrap_or_default();
            let _ = writeln!(text, "The line that looks like the cause{at}:\n\n    {line}\n");
        }
        if let Some(start) = &failure.start {
            let rank = start.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
            let _ = writeln!(text, "Phase `{}`{rank}, {:.1} s after the launch.\n", start.phase, start.after_s);
        }
    }
    let _ = writeln!(text, "Hardware: {}\n", record.host.hardware);
    let _ = writeln!(text, "## To reproduce\n\n    {}\n", shell_words::join(&record.command));
    let _ = writeln!(
        text,
        "`environment.txt` has the variables that were set and the versions, `server.log` the log around the cause, \
         `journal.jsonl` what happened and when, `evidence/` what the processes did before they were ended.\n\n\
         Values of secrets are written as `${{NAME}}` or `***`; the home folder and the host's name are masked."
    );
    text
}

fn headline(record: &Record) -> String {
    let reason = record.verdict.reasons.first().map(|reason| reason.text.clone());
    record.failure.as_ref().map(|failure| failure.text.clone()).or(reason).unwrap_or_else(|| "a run".to_owned())
}

/// Versions, and the variables that the run added to the server's environment.
fn environment(record: &Record, folder: &Path, mask: &Mask) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "orch {}", record.orch.version);
    if let Some(engine) = &record.engine {
        let _ = writeln!(text, "{} {}", engine.kind, engine.version);
    }
    for (key, value) in &record.provenance {
        let _ = writeln!(text, "{key} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let _ = writeln!(text, "kernel {}\n", kernel.trim());
    let Ok(reading) = journal::read(&folder.join("journal.jsonl")) else { return text };
    let planned = reading.entries().filter_map(|entry| match entry.event {
        Event::Planned { env, .. } => Some(env),
        _ => None,
    });
    for (name, value) in planned.last().unwrap_or_default() {
        let _ = writeln!(text, "{name}={}", mask.variable(&name, &value));
    }
    text
}
