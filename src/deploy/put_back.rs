//! Putting the old deployment back in the place of one that failed, or that a killed `orch up` left half-way.

use std::path::Path;

use super::artefact::Deployed;
use super::deployments::Deployments;
use super::error::DeployError;
use super::launcher::{self, Running, Starting};
use crate::clock::Clock;
use crate::event::Emit;
use crate::gate::log::LogRules;
use crate::gate::{self, LogGrammar};
use crate::launch::WorkFolder;

/// Takes `next` away, starts what served before and waits until it has proven itself. Without anything before, `next` is
/// only taken away. What is put back twice is the same.
pub async fn put_back(
    next: &Deployed,
    work: &WorkFolder,
    orch: &Path,
    log: &Path,
    emit: &dyn Emit,
) -> Result<Option<Deployed>, DeployError> {
    let place = Deployments::of(work).place(&next.name);
    let Some(old) = place.current()? else {
        launcher::remove(next, work, false).await?;
        return Ok(None);
    };
    if old.run == next.run {
        // It was already what serves when its run was killed, which may have left what it replaced.
        if let Some(replaced) = place.previous()?.filter(|replaced| replaced.run != next.run) {
            launcher::remove(&replaced, work, same_unit(&replaced, next)).await?;
        }
        return Ok(Some(old));
    }
    launcher::stop(next, work).await?;
    launcher::remove(next, work, same_unit(&old, next)).await?;
    if old.form() == super::As::Process && launcher::is_up(&old, work)? {
        // It was never stopped.
        return Ok(Some(old));
    }
    let secrets = place.secrets()?;
    let running = launcher::start(&old, Starting { work, orch, log, secrets: &secrets, emit }).await?;
    proven(&running, &old, log, emit).await?;
    running.keep()?;
    Ok(Some(old))
}

/// Waits until a deployment has generated tokens.
pub(super) async fn proven(running: &Running, of: &Deployed, log: &Path, emit: &dyn Emit) -> Result<(), DeployError> {
    let grammar =
        LogGrammar::new(&LogRules::default()).map_err(|error| DeployError::Restorer { why: error.to_string() })?;
    gate::wait(running.watched(), log, &of.readiness, &grammar, &Clock::system(), emit).await?;
    Ok(())
}

/// Whether both are the same unit of the same manager: then taking one away would take the other.
fn same_unit(a: &Deployed, b: &Deployed) -> bool {
    use super::Artefact::Unit;
    match (&a.artefact, &b.artefact) {
        (Unit { manager, unit, .. }, Unit { manager: other, unit: name, .. }) => manager == other && unit == name,
        _ => false,
    }
}
