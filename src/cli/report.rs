//! `orch report`: runs as one file to send to somebody.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::event::{Event, Scope};
use crate::measure;
use crate::record::{Record, RunId, Store, journal};
use crate::report::page::{self, LoadPoint, Run, Samples};

/// Writes runs as one file: verdict and cause first, then charts and tables
///
/// The HTML page holds everything itself and opens without a network. Markdown and SVG go to standard output unless `-o`
/// names a file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch report                                 the newest run, as report-r0420.html
  orch report r0420 r0421 -o both.html        two runs on one page
  orch report r0420 --format markdown         for a pull request
  orch report r0420 --format svg -o loss.svg  the chart that says most")]
pub(crate) struct ReportArgs {
    /// The runs: `r` and 4 hex digits, whole ids, or `latest`
    #[arg(default_value = "latest")]
    ids: Vec<String>,
    /// What it is written as
    #[arg(long, value_enum, default_value = "html")]
    format: Format,
    /// The file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One page that opens offline
    Html,
    /// For a pull request or a chat
    Markdown,
    /// One chart: what changed, else latencies, else the start-up
    Svg,
}

/// So many lines of the server's log stand before and after the one that is the cause.
const AROUND: u64 = 12;

pub(crate) fn run(args: ReportArgs, global: &Global) -> Outcome {
    let ReportArgs { ids, format, output } = args;
    let store = records::store_with_others(global)?;
    let mut runs = Vec::new();
    for id in &ids {
        let id = store.find(id).map_err(records::failure)?;
        runs.push(gather(&store, &id)?);
    }
    let text = match (format, runs.as_slice()) {
        (Format::Html, runs) => page::html(runs),
        (Format::Markdown, runs) => page::markdown(runs),
        (Format::Svg, [run]) => page::svg(run).ok_or_else(|| {
            let help = "a chart needs a comparison, a measured step or a start; `--format html` shows what there is";
            Failure::new(Exit::Usage, miette::miette!(help = help, "{} has nothing that could be drawn", run.short))
        })?,
        (Format::Svg, _) => {
            return Err(Failure::new(Exit::Usage, miette::miette!("an SVG is one chart of one run: name one")));
        }
    };
    let named = match (format, runs.as_slice()) {
        (Format::Html, [run]) => Some(PathBuf::from(format!("report-{}.html", run.short))),
        (Format::Html, _) => Some(PathBuf::from("report.html")),
        _ => None,
    };
    match output.or(named).filter(|path| path != Path::new("-")) {
        None => out::text(text),
        Some(path) => {
            let failed = |error: std::io::Error| {
                Failure::new(Exit::Usage, miette::miette!("cannot write {}: {error}", path.display()))
            };
            std::fs::write(&path, text).map_err(failed)?;
            out::note(format_args!("written: {}", path.display()));
        }
    }
    Ok(Exit::Done)
}

/// A run with what lies beside its record. What is not there, or cannot be read, is left out of the report with a note.
fn gather(store: &Store, id: &RunId) -> Result<Run, Failure> {
    let record = store.record(id).map_err(records::failure)?;
    let folder = store.run_path(id);
    let running = !record.complete && store.is_running(id);
    let mut run = Run { running, ..Run::of(record, id.short()) };
    let left_out = |what: &str, why: String| out::note(format_args!("{what} of {} is left out: {why}", id.short()));
    match samples(&folder, &run.record) {
        Ok(samples) => run.samples = samples,
        Err(error) => left_out("each request", error.to_string()),
    }
    match journal::read(&folder.join("journal.jsonl")) {
        Ok(reading) => (run.load, run.power_w) = moments(reading.entries()),
        Err(error) => left_out("the course", error.to_string()),
    }
    if let Some(line_no) = run.record.failure.as_ref().and_then(|failure| failure.line_no) {
        match around(&folder.join("server.log"), line_no) {
            Ok(log) => run.log = log,
            Err(error) => left_out("the server's log", error.to_string()),
        }
    }
    Ok(run)
}

fn samples(folder: &Path, record: &Record) -> Result<Vec<Samples>, measure::FileError> {
    let path = folder.join("requests.jsonl.zst");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut by_step: BTreeMap<String, Samples> = BTreeMap::new();
    measure::each_row(&path, |row| {
        if row.outcome != measure::Outcome::Ok {
            return;
        }
        let step = by_step.entry(row.step).or_default();
        step.ttft_ms.extend(row.first_any_ms);
        step.tpot_ms.extend(row.tpot_ms);
        step.e2e_ms.extend(row.last_ms);
    })?;
    let of = |name: &String| Some(Samples { step: name.clone(), ..by_step.remove(name)? });
    Ok(record.steps.iter().map(|step| &step.name).filter_map(of).collect())
}

/// The load and the power over the time of the newest start of the run: after a resume a clock begins anew.
fn moments(entries: impl Iterator<Item = crate::event::Entry>) -> (Vec<LoadPoint>, Vec<(f64, f64)>) {
    let (mut load, mut power) = (Vec::new(), Vec::new());
    for entry in entries {
        let at_s = entry.since_start_ns as f64 / 1e9;
        match (&entry.scope, &entry.event) {
            (_, Event::RunBegan { .. }) => {
                load.clear();
                power.clear();
            }
            (Scope::Step(step), Event::LoadProgress { chunks_per_s: Some(chunks_per_s), .. }) => {
                load.push(LoadPoint { step: step.clone(), at_s, chunks_per_s: *chunks_per_s });
            }
            (_, Event::Telemetry { values }) => {
                let watts = values.iter().filter(|(key, _)| key.starts_with("gpu") && key.ends_with("_power_w"));
                power
                    .extend(watts.map(|(_, watts)| *watts).reduce(|one, other| one + other).map(|watts| (at_s, watts)));
            }
            _ => {}
        }
    }
    (load, power)
}

/// The lines around one, read up to there and no further.
fn around(path: &Path, line_no: u64) -> std::io::Result<Vec<(u64, String)>> {
    let mut reader = BufReader::new(std::fs::File::open(path)?);
    let (mut kept, mut line, mut number) = (Vec::new(), Vec::new(), 0_u64);
    while number < line_no + AROUND {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        number += 1;
        if number + AROUND >= line_no {
            kept.push((number, String::from_utf8_lossy(&line).trim_end().to_owned()));
        }
    }
    Ok(kept)
}
