//! `orch list`: the runs that are kept.

use clap::builder::PossibleValuesParser;

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::record::index::{Filter, Listing, Row};
use crate::record::model::VerdictKind;
use crate::report::{Align, Table, number, record};

/// Lists runs, newest first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  orch list\n  orch list --verdict regressed --limit 5\n  orch list --json | jq '.[0].id'"
)]
pub(crate) struct ListArgs {
    /// Only runs of this series.
    #[arg(long)]
    series: Option<String>,
    /// Only runs with this verdict.
    #[arg(long, value_parser = PossibleValuesParser::new(VERDICTS))]
    verdict: Option<String>,
    /// Only runs on this host.
    #[arg(long)]
    host: Option<String>,
    /// Only runs of this kind of engine.
    #[arg(long)]
    engine: Option<String>,
    /// At most so many; 100 unless told
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// All of them, however many
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// A JSON array on standard output.
    #[arg(long)]
    json: bool,
}

/// How many are shown unless told.
const SHOWN: u32 = 100;

const VERDICTS: [&str; 8] =
    ["failed", "invalid", "regressed", "host_changed", "inconclusive", "improved", "ok", "no_baseline"];

pub(crate) fn run(args: ListArgs, global: &Global) -> Outcome {
    let ListArgs { series, verdict, host, engine, limit, all, json } = args;
    // clap let only the words of the enum through.
    let verdict = verdict.and_then(|word| serde_json::from_value::<VerdictKind>(word.into()).ok());
    let filter = Filter {
        series,
        name: None,
        verdict,
        host,
        engine,
        complete: false,
        own: false,
        limit: (!all).then(|| limit.unwrap_or(SHOWN)),
    };
    let store = records::store_with_others(global)?;
    let listing = store.list(&filter).map_err(records::failure)?;
    for note in &listing.notes {
        out::note(format_args!("note: {note}"));
    }
    if json {
        out::line(serde_json::to_string_pretty(&listing.rows).map_err(Failure::own)?);
    } else if listing.rows.is_empty() {
        out::note(format_args!("no such runs in {}", global.results.display()));
    } else {
        out::text(table(&listing));
    }
    if limit.is_none() && !all && listing.rows.len() as u64 >= u64::from(SHOWN) {
        out::note(format_args!("note: the newest {SHOWN} runs; `--limit N` or `--all` shows more"));
    }
    Ok(Exit::Done)
}

fn table(listing: &Listing) -> String {
    let mut columns = vec![
        ("run", Align::Left),
        ("began (UTC)", Align::Left),
        ("name", Align::Left),
        ("host", Align::Left),
        ("verdict", Align::Left),
        ("tok/s", Align::Right),
    ];
    // Only where there are others.
    let by = listing.rows.iter().any(|row| row.writer.is_some());
    if by {
        columns.push(("by", Align::Left));
    }
    let mut table = Table::new(&columns);
    let mut below = String::new();
    for row in &listing.rows {
        let writer = by.then(|| row.writer.clone().unwrap_or_default());
        table.row(cells(row).into_iter().chain(writer));
        if let Some(problem) = &row.problem {
            below.push_str(&format!("{}: {}\n", row.short, number::plain(problem)));
        }
    }
    format!("{table}{below}")
}

fn cells(row: &Row) -> [String; 6] {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| number::ABSENT.to_owned());
    let verdict = match (row.running, row.verdict) {
        (true, _) => "running",
        (false, Some(kind)) => record::word(kind),
        (false, None) => "unreadable",
    };
    [
        row.short.clone(),
        row.started_at.map_or_else(|| number::ABSENT.to_owned(), |at| at.strftime("%Y-%m-%d %H:%M").to_string()),
        text(&row.name),
        text(&row.host),
        verdict.to_owned(),
        number::optional(row.output_tokens_per_s),
    ]
}
