//! `orch history`: how a series went over time, and where it moved.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::compare::{Difference, differences};
use crate::history::{self, Moved, SHOWN, Trend};
use crate::record::index::PastFilter;
use crate::record::{RunId, Store};
use crate::report::{Align, Table, number, record};

/// Shows how the metrics of a series went over time, and the runs at which they moved for good.
///
/// Each start of a server is one value. A change counts when fewer than one in a hundred random orders of the same values
/// would show one as large; the last 200 starts are looked at. docs/verdicts.md has the method.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  orch history qwen36-27b\n  orch history qwen36-27b --step single --metric ttft_ms.p99\n  \
                        orch history qwen36-27b --format json\n  orch history qwen36-27b --format otava > series.csv"
)]
pub(crate) struct HistoryArgs {
    /// The series
    series: String,
    /// Only this step; `start` is the start-up
    #[arg(long)]
    step: Option<String>,
    /// Only on this host
    #[arg(long)]
    host: Option<String>,
    /// Only this metric, with `.p50` and the like for distributions; may be given several times
    #[arg(long, value_name = "ID")]
    metric: Vec<String>,
    /// Only the newest so many runs
    #[arg(long, value_name = "N", default_value = "500", value_parser = clap::value_parser!(u32).range(1..))]
    last: u32,
    /// How it is printed: a table, JSON, or CSV as apache-otava reads it
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Table,
    Json,
    Otava,
}

/// A change with what differed there.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    trend: &'a Trend,
    differs: Vec<Vec<Difference>>,
}

pub(crate) fn run(args: HistoryArgs, global: &Global) -> Outcome {
    let HistoryArgs { series, step, host, metric, last, format } = args;
    let metrics: Vec<String> = match metric.is_empty() {
        true => SHOWN.map(str::to_owned).into(),
        false => metric.into_iter().map(known).collect::<Result<_, _>>()?,
    };
    let store = records::store_with_others(global)?;
    let filter = PastFilter { series: series.clone(), step, host, limit: Some(last) };
    let past = store.past(&filter).map_err(records::failure)?;
    let trends = history::trends(&past, &metrics);
    if trends.is_empty() {
        let report = miette::miette!(
            code = "orch::history::nothing",
            help = "`orch list` shows the runs and `orch list --json` their series; runs that failed or are invalid are no history",
            "no complete, valid run of the series `{series}` has such a step and metric in {}",
            global.results.display()
        );
        return Err(Failure::new(Exit::Usage, report));
    }
    let told: Vec<Told<'_>> = trends
        .iter()
        .map(|trend| Told { trend, differs: trend.moved.iter().map(|moved| differs(&store, moved)).collect() })
        .collect();
    let runs: BTreeSet<&str> = past.iter().map(|each| each.run.as_str()).collect();
    if runs.len() >= last as usize {
        out::note(format_args!("note: the newest {last} runs; `--last N` shows more"));
    }
    match format {
        Format::Json => out::line(serde_json::to_string_pretty(&told).map_err(Failure::own)?),
        Format::Otava => out::text(csv(&trends)),
        Format::Table => out::text(number::plain_lines(&text(&series, &told))),
    }
    Ok(Exit::Done)
}

fn known(metric: String) -> Result<String, Failure> {
    match crate::measure::metric(&metric) {
        Some(_) => Ok(metric),
        None => {
            let report = miette::miette!(
                help = "docs/metrics.md has all ids; a distribution needs its part, as in `ttft_ms.p50`",
                "`{metric}` is not the id of a metric"
            );
            Err(Failure::new(Exit::Usage, report))
        }
    }
}

/// What differs between the runs on both sides of a change; nothing where they cannot be read.
fn differs(store: &Store, moved: &Moved) -> Vec<Difference> {
    let record = |id: &str| store.record(&id.parse::<RunId>().ok()?).ok();
    record(&moved.from).zip(record(&moved.run)).map(|(was, now)| differences(&was, &now)).unwrap_or_default()
}

fn text(series: &str, told: &[Told<'_>]) -> String {
    let mut text = String::new();
    let places: BTreeSet<(&str, &str)> =
        told.iter().map(|each| (each.trend.host.as_str(), each.trend.hardware.as_str())).collect();
    for (host, hardware) in &places {
        text.push_str(&format!("{series} on {host} ({hardware})\n\n"));
        let here = || told.iter().filter(|each| each.trend.host == *host && each.trend.hardware == *hardware);
        text.push_str(&table(here()));
        for each in here() {
            for (moved, differs) in each.trend.moved.iter().zip(&each.differs) {
                text.push_str(&format!("\n{}\n", sentence(each.trend, moved)));
                match differs.is_empty() {
                    true => text.push_str("  no setting, version or host differs there\n"),
                    false => differs
                        .iter()
                        .for_each(|each| text.push_str(&format!("  {}\n", number::plain(&each.to_string())))),
                }
            }
        }
        text.push('\n');
    }
    text
}

fn table<'a>(told: impl Iterator<Item = &'a Told<'a>>) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("step", Align::Left),
        ("metric", Align::Left),
        ("starts", right),
        ("median", right),
        ("newest", right),
        ("moved", Align::Left),
    ]);
    for each in told {
        let Trend { step, metric, points, moved, .. } = each.trend;
        let values: Vec<f64> = points.iter().map(|point| point.value).collect();
        let newest = values.last().copied();
        let median = crate::record::history::median(values.iter().copied());
        let moved = moved.iter().map(|moved| {
            let word = if moved.worse == Some(true) { " worse" } else { "" };
            format!("{}{word} at {}", number::change(Some(moved.change_ratio)), short(&moved.run))
        });
        table.row([
            step.clone(),
            record::label(metric),
            number::count(points.len() as u64),
            number::optional(median),
            number::optional(newest),
            moved.collect::<Vec<_>>().join(", "),
        ]);
    }
    table.to_string()
}

fn sentence(trend: &Trend, moved: &Moved) -> String {
    let word = match moved.worse {
        Some(true) => "became worse",
        Some(false) => "became better",
        None => "moved",
    };
    format!(
        "`{}`: {} {word} at {} ({}): {} since, {} before ({})",
        trend.step,
        record::label(&trend.metric),
        short(&moved.run),
        moved.at.strftime("%-d %b %Y"),
        number::amount(moved.after),
        number::amount(moved.before),
        number::change(Some(moved.change_ratio)),
    )
}

fn short(run: &str) -> String {
    run.parse::<RunId>().map_or_else(|_| run.to_owned(), |id| id.short())
}

/// A row a run, a column a metric of a step, as apache-otava's CSV importer wants it.
fn csv(trends: &[Trend]) -> String {
    let columns: Vec<String> = trends.iter().map(|trend| format!("{}.{}", trend.step, trend.metric)).collect();
    let mut text = format!("time,run,{}\n", columns.join(","));
    let points = trends.iter().flat_map(|trend| &trend.points);
    let rows: BTreeSet<(jiff::Timestamp, &str)> = points.map(|point| (point.at, point.run.as_str())).collect();
    for (at, run) in rows {
        let cells = trends.iter().map(|trend| {
            let point = trend.points.iter().find(|point| point.run == run);
            point.map_or_else(String::new, |point| point.value.to_string())
        });
        text.push_str(&format!("{at},{run},{}\n", cells.collect::<Vec<_>>().join(",")));
    }
    text
}
