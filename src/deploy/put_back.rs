//! Putting the old deployment back in the place of one that failed, or that a killed `orch up` left half-way.

use std::path::Path;
use std::time::Duration;

use super::artefact::Deployed;
use super::deployments::Deployments;
use super::error::DeployError;
use super::launcher::{self, Running, Starting};
use crate::clock::Clock;
use crate::event::Emit;
use crate::gate::log::LogRules;
use crate::gate::{self, Conduct, LogGrammar};
use crate::launch::{self, Which, WorkFolder};

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
    if old.form() == super::As::Process {
        // Whoever had started it again may have been killed before it had proven itself. Then nobody keeps it, and its
        // supervisor would end it in a while: it is no old one that was never stopped.
        launch::stop(work, &Which::Unkept(old.run.clone())).await?;
        if launcher::is_up(&old, work)? {
            return Ok(Some(old));
        }
    }
    // Whoever began to stop it may have been killed in the middle: what is half gone is ended before it is started again.
    launcher::stop(&old, work).await?;
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
    let limit = of.readiness.timeout_s.and_then(|s| Duration::try_from_secs_f64(s).ok());
    let conduct = Conduct { limit_is_auto: limit.is_none(), ..Conduct::default() };
    let conduct = Conduct { limit: limit.unwrap_or(conduct.limit), ..conduct };
    gate::wait(running.watched(), log, &of.readiness, &grammar, &conduct, &Clock::system(), emit).await?;
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
