//! Finding a run wherever its records are kept: first in the results folder, then where this machine's work folder says
//! that the run was begun. So `orch stop`, `logs`, `attach` and `run --resume` work whatever `--results` says.

use super::{Failure, Global, records};
use crate::launch::WorkFolder;
use crate::record::{RunId, Store, StoreError, Which};

/// A run in its results folder.
pub(crate) struct Located {
    pub(crate) store: Store,
    pub(crate) id: RunId,
}

/// The run that a person means by `text`: a run's id or short name, `latest`, or the id of a server.
pub(crate) fn run(text: &str, work: &WorkFolder, global: &Global) -> Result<Located, Failure> {
    let store = Store::open(&global.results).map_err(records::failure)?;
    // A server's id is that of its run and a random part.
    let run = text.rsplit_once('.').map(|(run, _)| run).filter(|run| run.parse::<RunId>().is_ok()).unwrap_or(text);
    let error = match store.find(run) {
        Ok(id) => return Ok(Located { store, id }),
        Err(error @ (StoreError::NoSuchRun { .. } | StoreError::NoRuns { .. })) => error,
        Err(error) => return Err(records::failure(error)),
    };
    let mut found = elsewhere(run, work);
    match (found.pop(), found.is_empty()) {
        (Some(located), true) => Ok(located),
        (Some(located), false) => {
            found.push(located);
            let ids = found.into_iter().map(|located| located.id).collect();
            Err(records::failure(StoreError::Ambiguous { text: text.to_owned(), ids }))
        }
        (None, _) => Err(records::failure(error)),
    }
}

/// Runs that fit, in other results folders.
fn elsewhere(text: &str, work: &WorkFolder) -> Vec<Located> {
    let Ok(which) = text.parse::<Which>() else { return Vec::new() };
    let known = work.remembered_runs().into_iter().rev();
    let mut found: Vec<Located> = known
        .filter_map(|(id, path)| {
            let id: RunId = id.parse().ok()?;
            // `runs/` of the results folder.
            let store = Store::open(path.parent()?.parent()?).ok()?;
            (path.is_dir() && (which == Which::Latest || which.fits(&id))).then_some(Located { store, id })
        })
        .collect();
    if which == Which::Latest {
        found.truncate(1);
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found.dedup_by(|a, b| a.id == b.id);
    found
}
