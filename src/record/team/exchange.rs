//! One meeting with a store: what it lacks is sent, then what is lacking here is fetched.

mod fetch;
mod send;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::error::TeamError;
use super::remote::Remote;
use super::state::{Seen, TeamFolder};
use super::{Met, Team};
use crate::record::index::Index;
use crate::record::store::Store;
use send::new_runs;

/// After so many it is written down how far that is.
const PAGE: usize = 200;

/// How long a meeting takes at most; what is left is for the next one.
const LONGEST: Duration = Duration::from_secs(60);

/// A meeting.
pub(super) struct Exchange<'a> {
    store: &'a Store,
    team: &'a Team,
    /// Whether everything is held against each other, and not only what is new since the last time.
    whole: bool,
    until: Option<Instant>,
    folder: TeamFolder,
    /// This folder's own runs that have ended, with their stamps.
    own: Vec<(String, String)>,
    /// Folders of runs that came and may not be on disk yet.
    fresh: Vec<PathBuf>,
    met: Met,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(store: &'a Store, team: &'a Team, whole: bool) -> Self {
        let until = (!whole).then(|| Instant::now() + LONGEST);
        let folder = TeamFolder::of(store.folder());
        Exchange {
            store,
            team,
            whole,
            until,
            folder,
            own: Vec::new(),
            fresh: Vec::new(),
            met: Met::new(team.address()),
        }
    }

    /// Holds it.
    pub(super) async fn hold(mut self) -> Met {
        if let Err(error) = self.go().await {
            self.met.failed = Some(error);
            self.count();
        }
        self.met
    }

    /// Only counts what waits, where it is known that nobody answers.
    pub(super) fn without(mut self, error: TeamError) -> Met {
        self.met.failed = Some(self.read_own().err().unwrap_or(error));
        self.count();
        self.met
    }

    async fn go(&mut self) -> Result<(), TeamError> {
        self.read_own()?;
        let _alone = self.folder.lock().await?;
        let mut remote = Remote::open(self.team.address()).await?;
        self.folder.remember(self.team.address(), &remote.id)?;
        let mut state = self.folder.state(&remote.id)?;
        let (last_run, last_baseline) = remote.ends().await?;
        // A store that was put back to an earlier state lacks what it had: then all is looked at.
        let went_back = last_run < state.seen.runs || last_baseline < state.seen.baselines;
        let mut lacking = Vec::new();
        if self.whole || went_back {
            let there: HashMap<String, String> = remote.hashes().await?.into_iter().collect();
            state.runs.retain(|id, mark| there.get(id) == Some(&mark.hash));
            state.baselines.clear();
            lacking = there.into_keys().filter(|id| self.lacks(id)).collect();
            lacking.sort();
            // Written down when all that follows from it is done.
            state.seen = Seen { runs: state.seen.runs.min(last_run), baselines: 0 };
        }
        let mut sent = Vec::new();
        // Whoever may only read still does.
        match self.send(&mut remote, &mut state, &mut sent).await {
            Err(error @ TeamError::Refused { .. }) => self.met.notes.push(error.to_string()),
            ended => ended?,
        }
        self.fetch(&remote, &lacking).await?;
        self.fetch_runs(&remote, &mut state, &sent).await?;
        self.fetch_baselines(&remote, &mut state).await
    }

    fn read_own(&mut self) -> Result<(), TeamError> {
        self.own = Index::open(self.store)?.own()?;
        Ok(())
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() > until)
    }

    /// Counts what waits, by what is known here.
    fn count(&mut self) {
        let known = self.folder.known(self.team.address());
        let state = self.folder.state(known.as_deref().unwrap_or("unknown"));
        let Ok(state) = state else { return };
        let new = new_runs(&self.own, &state);
        // What was never sent need not be read to be known to wait.
        let waits = |(id, _): &&(String, String)| match state.runs.get(id) {
            None => true,
            Some(known) => matches!(self.outgoing(id, &state), Ok(Some(run)) if run.hash != known.hash),
        };
        self.met.waiting_runs = new.iter().filter(waits).count() as u64;
        self.met.waiting_baselines = self.new_baselines(&state).map_or(0, |lines| lines.len() as u64);
    }
}
