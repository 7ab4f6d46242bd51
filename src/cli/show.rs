//! `orch show`: what there is to know of a run.

use super::{Exit, Failure, Global, Outcome, out, records, sweep};
use crate::report::{number, record};
use crate::sweep::SweepFolder;

/// Shows a run: the verdict and its reasons, steps, start-up, settings, command, warnings.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  orch show latest\n  orch show r0420\n  orch show r0420 --json | jq .steps")]
pub(crate) struct ShowArgs {
    /// The run: `r` and its 4 hex digits, its whole id, or `latest`, the newest of all series; or a sweep, by its id or `s`
    /// and its 4 hex digits.
    #[arg(default_value = "latest")]
    id: String,
    /// The record as JSON on standard output.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: ShowArgs, global: &Global) -> Outcome {
    let ShowArgs { id, json } = args;
    let store = records::store_with_others(global)?;
    // A sweep is named like a run; what is a run's name stays one.
    if id != "latest"
        && store.find(&id).is_err()
        && let Ok(folder) = SweepFolder::open(&global.results, &id, "sweep.yaml")
    {
        sweep::show::tell(&folder, &store, &sweep::show::Asked::plain(json))?;
        return Ok(Exit::Done);
    }
    let id = store.find(&id).map_err(records::failure)?;
    let record = store.record(&id).map_err(records::failure)?;
    if json {
        out::line(serde_json::to_string_pretty(&record).map_err(Failure::own)?);
    } else {
        let running = !record.complete && store.is_running(&id);
        out::text(number::plain_lines(&record::whole(&record, &id.short(), running)));
        out::line(format_args!("\nfolder {}", store.run_path(&id).display()));
    }
    Ok(Exit::Done)
}
