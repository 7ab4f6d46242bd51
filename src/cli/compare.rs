//! `orch compare`: judges a run that is kept, against its baseline or another run.

use serde::Serialize;

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::compare::{self, Judgement};
use crate::record::index::Filter;
use crate::record::model::VerdictKind;
use crate::record::{Baseline, Record, RunId, Store, StoreError};
use crate::render::Warning;
use crate::report::export::{self, Format};
use crate::report::{number, record};

/// Compares a run with its baseline, or with another run.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  orch compare latest\n  orch compare r0420 r0412\n  orch compare r0420 --against smollm2 --json\n  orch compare latest --format markdown >> \"$GITHUB_STEP_SUMMARY\"\n\n\
                  Ends with 6 if the run has regressed; docs/verdicts.md has the rule and all codes."
)]
pub(crate) struct CompareArgs {
    /// The run to judge: `r` and its 4 hex digits, its whole id, or `latest`, the newest of all series.
    run: String,
    /// The run to compare it with; without one, the baseline.
    #[arg(conflicts_with = "against")]
    with: Option<String>,
    /// `baseline`, a run, or the name of a profile, whose newest complete run is taken.
    #[arg(long, value_name = "baseline|RUN|PROFILE", default_value = "baseline")]
    against: String,
    /// Ends with 7 when there is no baseline or the noise does not allow a word.
    #[arg(long)]
    strict: bool,
    /// The comparison as JSON on standard output.
    #[arg(long)]
    json: bool,
    /// How it is written: `markdown` for a job's summary, `junit`, `annotations` of a CI, `bencher`.
    #[arg(long, value_enum, default_value = "table", conflicts_with = "json")]
    format: As,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum As {
    Table,
    Json,
    Markdown,
    Junit,
    Annotations,
    Bencher,
}

impl As {
    fn export(self) -> Option<Format> {
        match self {
            As::Table | As::Json => None,
            As::Markdown => Some(Format::Markdown),
            As::Junit => Some(Format::Junit),
            As::Annotations => Some(Format::Annotations),
            As::Bencher => Some(Format::Bencher),
        }
    }
}

pub(crate) fn run(args: CompareArgs, global: &Global) -> Outcome {
    let CompareArgs { run, with, against, strict, json, format } = args;
    let store = records::store_with_others(global)?;
    let id = store.find(&run).map_err(records::failure)?;
    let record = store.record(&id).map_err(records::failure)?;
    if !record.complete && store.is_running(&id) {
        return Err(running(&id));
    }
    let against = with.unwrap_or(against);
    let (baseline, warnings) = chosen(&store, &record, &against).map_err(records::failure)?;
    let judgement = compare::judge(&record, Some(&baseline), &compare::tolerances(&record));
    if let Some(format) = format.export() {
        out::text(export::written(format, &record, &id.short(), &judgement));
    } else if json || format == As::Json {
        let ids = baseline.runs.iter().map(|run| run.id.as_str()).collect();
        let failure = record.failure.as_ref();
        let report = Compared { run: id.as_str(), against: ids, judgement: &judgement, failure, warnings: &warnings };
        out::line(serde_json::to_string_pretty(&report).map_err(Failure::own)?);
    } else {
        out::text(number::plain_lines(&text(&id, &record, &baseline, &judgement, &warnings)));
        if judgement.verdict.kind == VerdictKind::NoBaseline && baseline.runs.is_empty() {
            suggest(&store, &record)?;
        }
    }
    Ok(match judgement.verdict.kind {
        // How far it came, its own run has told. Here it is a run without a valid measurement.
        VerdictKind::Failed => Exit::NoMeasurement,
        _ => Exit::of(&judgement.verdict, None, strict),
    })
}

/// A run that goes on has no verdict yet: what its record says until then is what a kill would leave.
fn running(id: &RunId) -> Failure {
    let short = id.short();
    let help = format!("`orch show {short}` shows how far it is");
    let report = miette::miette!(
        code = "orch::compare::running",
        help = help,
        "{short} is still running: there is nothing to compare yet"
    );
    Failure::new(Exit::NoMeasurement, report)
}

#[derive(Serialize)]
struct Compared<'a> {
    run: &'a str,
    against: Vec<&'a str>,
    #[serde(flatten)]
    judgement: &'a Judgement,
    /// How the run failed; not there where it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a crate::record::model::Failure>,
    warnings: &'a [Warning],
}

fn chosen(store: &Store, record: &Record, against: &str) -> Result<(Baseline, Vec<Warning>), StoreError> {
    if against == "baseline" {
        return store.baseline_for(record);
    }
    let id = match store.find(against) {
        Ok(id) => id,
        Err(error @ (StoreError::BadName(_) | StoreError::NoSuchRun { .. })) => {
            newest_of(store, against, &record.id)?.ok_or(error)?
        }
        Err(error) => return Err(error),
    };
    Ok((Baseline::of(vec![store.record(&id)?]), Vec::new()))
}

/// The newest complete run of the profile `name`, other than the one that is judged.
fn newest_of(store: &Store, name: &str, but: &str) -> Result<Option<RunId>, StoreError> {
    let filter = Filter { name: Some(name.to_owned()), complete: true, limit: Some(2), ..Filter::default() };
    let rows = store.list(&filter)?.rows;
    Ok(rows.iter().filter(|row| row.id != but).find_map(|row| row.id.parse().ok()))
}

fn text(id: &RunId, record: &Record, baseline: &Baseline, judgement: &Judgement, warnings: &[Warning]) -> String {
    let short = |run: &Record| run.id.parse::<RunId>().map_or_else(|_| run.id.clone(), |id| id.short());
    let against = match baseline.runs.as_slice() {
        [] => "no baseline".to_owned(),
        runs => runs
            .iter()
            .map(|run| format!("{} ({})", short(run), run.started_at.strftime("%-d %b %Y")))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let mut text = format!("{} ({}) against {against}\n\n", id.short(), record.started_at.strftime("%-d %b %Y"));
    text.push_str(&record::verdict(&judgement.verdict));
    if let Some(failure) = &record.failure {
        text.push_str(&record::failed(record, failure));
    }
    let table = record::comparisons(&judgement.comparisons, &record.steps);
    if !table.is_empty() {
        text.push_str(&format!("\n{table}"));
    }
    // What is worth a verdict has its differences among the reasons already.
    let told = judgement.verdict.reasons.iter().any(|reason| reason.id == "differs");
    if !told && !judgement.comparisons.is_empty() {
        text.push_str(match judgement.differences.is_empty() {
            true => "\nno setting, version or host differs\n",
            false => "\ndiffers:\n",
        });
        for difference in &judgement.differences {
            text.push_str(&format!("  {}\n", number::plain(&difference.to_string())));
        }
    }
    for warning in warnings {
        text.push_str(&format!("warning: {}\n", number::plain(&warning.text)));
    }
    text
}

fn suggest(store: &Store, record: &Record) -> Result<(), Failure> {
    if let Some(newest) = store.candidates(record).map_err(records::failure)?.first() {
        let newest = newest.short();
        out::line(format_args!("\n{newest} measured the same: `orch baseline set {newest}` makes it the baseline"));
    }
    Ok(())
}
