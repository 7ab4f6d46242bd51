//! `orch list`: the runs that are kept.

use clap::builder::PossibleValuesParser;

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::record::Store;
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
    /// At most so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// A JSON array on standard output.
    #[arg(long)]
    json: bool,
}

const VERDICTS: [&str; 8] =
    ["failed", "invalid", "regressed", "host_changed", "inconclusive", "improved", "ok", "no_baseline"];

pub(crate) fn run(args: ListArgs, global: &Global) -> Outcome {
    let ListArgs { series, verdict, host, engine, limit, json } = args;
    // clap let only the words of the enum through.
    let verdict = verdict.and_then(|word| serde_json::from_value::<VerdictKind>(word.into()).ok());
    let filter = Filter { series, name: None, verdict, host, engine, complete: false, limit };
    let store = Store::open(&global.results).map_err(records::failure)?;
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
    Ok(Exit::Done)
}

fn table(listing: &Listing) -> String {
    let mut table = Table::new(&[
        ("run", Align::Left),
        ("began (UTC)", Align::Left),
        ("name", Align::Left),
        ("host", Align::Left),
        ("verdict", Align::Left),
        ("tok/s", Align::Right),
    ]);
    let mut below = String::new();
    for row in &listing.rows {
        table.row(cells(row));
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
