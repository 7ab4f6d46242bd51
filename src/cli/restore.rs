//! `orch restore`: puts right what was taken down and is not back.

use std::path::Path;

use super::{Exit, Failure, Global, Outcome, out};
use crate::deploy::{self, DeployError, Restored, Undone};
use crate::launch::WorkFolder;

/// Brings back production and deployments that a killed run or a reboot left down, and waits until they serve
///
/// `orch run`, `orch up` and `orch ps` have the same done in the background. As a unit at boot (docs/deploy.md) it needs
/// nobody to remember.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch restore

Exit codes: 0 all is back, or nothing was down; 1 something is not back, or in the hands of a run that goes on")]
pub(crate) struct RestoreArgs {}

pub(crate) fn run(_args: RestoreArgs, _global: &Global) -> Outcome {
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let orch = std::env::current_exe().map_err(Failure::own)?;
    let own = |error: DeployError| Failure::new(Exit::Own, error);
    let (mut nothing, mut all_back) = (true, true);
    for (record, held) in deploy::undone(&work).map_err(own)? {
        nothing = false;
        if held {
            out::line(format_args!(
                "{} is in the hands of run {}, which brings it back",
                record.what.shown(),
                record.run
            ));
            // It is down now, and whoever asks by the exit code is to know.
            all_back = false;
            continue;
        }
        out::line(format_args!(
            "bringing back {}, down since {:.0} for run {}",
            record.what.shown(),
            record.since,
            record.run
        ));
        let runtime = crate::host::runtime::on_threads(1);
        let runtime = runtime.map_err(Failure::own)?;
        if let Err(error) = runtime.block_on(deploy::restorer_here(&work, &record.key, &orch)) {
            out::complain(&miette::Report::new(error));
        }
        // Somebody else may have taken it in hand in between.
        all_back &= !deploy::undone(&work).map_err(own)?.iter().any(|(left, _)| left.key == record.key);
    }
    nothing &= !say_restored(&work)?;
    if nothing {
        out::note("nothing that orch took down is missing");
    }
    Ok(if all_back { Exit::Done } else { Exit::Own })
}

/// Says what restorers have put right since anybody asked; whether there was anything.
pub(crate) fn say_restored(work: &WorkFolder) -> Result<bool, Failure> {
    let told = deploy::tell(work).map_err(|error| Failure::new(Exit::Own, error))?;
    for Restored { what, run, outage_s, at } in &told {
        out::note(format_args!(
            "{what} serves again since {at:.0}; outage {outage_s:.1} s, for run {run}, which did not come to its end"
        ));
    }
    Ok(!told.is_empty())
}

/// Has what nobody has in hand put right, in the background, and says so.
pub(crate) fn catch_up(work: &WorkFolder, orch: &Path) -> Result<(), Failure> {
    say_restored(work)?;
    let begun = deploy::catch_up(work, orch).map_err(|error| Failure::new(Exit::NotLaunched, error))?;
    for Undone { what, run, since, failed, .. } in begun {
        let before = failed.map(|why| format!("; the last try failed: {why}")).unwrap_or_default();
        let what = what.shown();
        out::note(format_args!(
            "{what} is down since {since:.0} for run {run}, which is gone: it is being brought back{before}"
        ));
    }
    Ok(())
}
