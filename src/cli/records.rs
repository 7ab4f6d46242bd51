//! What the verbs that read records share.

use super::{Exit, Failure, Global, out};
use crate::record::team::{Met, Team};
use crate::record::{Store, StoreError};
use crate::report::number;

/// Ends a verb for what is wrong with the results folder.
pub(crate) fn failure(error: StoreError) -> Failure {
    let exit = if error.is_usage() { Exit::Usage } else { Exit::Own };
    Failure::new(exit, error)
}

/// The results folder, as one of a team's where the environment names their store. Nothing is asked of that yet.
pub(crate) fn store(global: &Global) -> Result<Store, Failure> {
    of_team(Store::open(&global.results).map_err(failure)?)
}

/// A results folder that was found otherwise, in the same way.
pub(crate) fn of_team(store: Store) -> Result<Store, Failure> {
    let team = Team::of_environment().map_err(|error| Failure::new(Exit::Usage, error))?;
    Ok(store.of_team(team))
}

/// The same, with what others have recorded meanwhile in it.
pub(crate) fn store_with_others(global: &Global) -> Result<Store, Failure> {
    let store = store(global)?;
    meet(&store);
    Ok(store)
}

/// Exchanges records with the team's store, where there is one, and tells what a person should know of it.
pub(crate) fn meet(store: &Store) {
    if let Some(met) = store.meet() {
        tell(&met);
    }
}

/// Tells what came of an exchange, on standard error.
pub(crate) fn tell(met: &Met) {
    for line in met.lines() {
        out::note(format_args!("note: {}", number::plain(&line)));
    }
}
