//! `orch index`: the index of the results folder, made anew.

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::record::team::Met;
use crate::report::number;

/// Makes the index of the results folder anew from its runs.
///
/// The index follows the folder by itself. This is for what it cannot see: a record of a run that ended long ago and was
/// changed by hand. Where `ORCH_STORE` names a team's store, all that is here and there is held against each other too, and
/// sent or fetched where it is lacking.
#[derive(Debug, clap::Args)]
pub(crate) struct IndexArgs {}

pub(crate) fn run(args: IndexArgs, global: &Global) -> Outcome {
    let IndexArgs {} = args;
    let store = records::store(global)?;
    let met = store.meet_whole();
    let (count, notes) = store.rebuild_index().map_err(records::failure)?;
    for note in notes {
        out::note(format_args!("note: {note}"));
    }
    out::line(format_args!("{} in the index of {}", runs(count), global.results.display()));
    match met {
        Some(met) => exchanged(met),
        None => Ok(Exit::Done),
    }
}

fn exchanged(mut met: Met) -> Outcome {
    let failed = met.failed.take();
    records::tell(&met);
    if let Some(error) = failed {
        return Err(Failure::new(Exit::Own, error));
    }
    out::line(format_args!(
        "{} and {} sent to the team's store {}; {} and {} came from there",
        runs(met.sent_runs),
        baselines(met.sent_baselines),
        met.store,
        runs(met.came_runs),
        baselines(met.came_baselines)
    ));
    Ok(Exit::Done)
}

fn runs(count: u64) -> String {
    format!("{} {}", number::count(count), if count == 1 { "run" } else { "runs" })
}

fn baselines(count: u64) -> String {
    format!("{} {}", number::count(count), if count == 1 { "line of baselines" } else { "lines of baselines" })
}
