//! What comes from a store.

use std::fs;
use std::pin::pin;

use jiff::Timestamp;

use super::super::arrive::{self, Arrived, NotTaken};
use super::super::error::TeamError;
use super::super::remote::{Incoming, Remote};
use super::super::state::{Seen, State, failed};
use super::{Exchange, PAGE};
use crate::record::baselines;
use crate::record::id::RunId;
use crate::record::store::StoreError;

impl Exchange<'_> {
    /// Whether there is no record of this run here; what is no id is told when it comes.
    pub(super) fn lacks(&self, id: &str) -> bool {
        id.parse::<RunId>().map_or(true, |id| !self.store.run_path(&id).join("run.json").is_file())
    }

    /// Fetches these runs.
    pub(super) async fn fetch(&mut self, remote: &Remote, ids: &[String]) -> Result<(), TeamError> {
        for page in ids.chunks(PAGE) {
            let rows = remote.runs_by_id(page).await?;
            let mut rows = pin!(rows);
            while let Some(run) = remote.next_run(&mut rows).await? {
                self.take(&run)?;
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Fetches the runs that are new since the last time.
    pub(super) async fn fetch_runs(
        &mut self,
        remote: &Remote,
        state: &mut State,
        sent: &[String],
    ) -> Result<(), TeamError> {
        let mut seen = state.seen;
        let rows = remote.runs_after(seen.runs, sent).await?;
        let mut rows = pin!(rows);
        let mut since = 0;
        while let Some(run) = remote.next_run(&mut rows).await? {
            self.take(&run)?;
            seen.runs = seen.runs.max(run.seq);
            since += 1;
            if since == PAGE {
                since = 0;
                self.settle()?;
                state.saw(seen)?;
                if self.is_late() {
                    self.met.notes.push(
                        "more is in the team's store than was fetched in one go: the rest comes the next time"
                            .to_owned(),
                    );
                    break;
                }
            }
        }
        self.settle()?;
        state.saw(seen)
    }

    /// Has what came on disk, before it is written down that it came.
    fn settle(&mut self) -> Result<(), TeamError> {
        let runs = self.store.runs();
        arrive::settle(&std::mem::take(&mut self.fresh), &runs).map_err(failed("write", &runs))
    }

    fn take(&mut self, run: &Incoming) -> Result<(), TeamError> {
        match arrive::run(self.store, run) {
            Ok(Arrived::Taken(folder)) => {
                self.met.came_runs += 1;
                self.fresh.push(folder);
            }
            Ok(Arrived::There) => {}
            Err(NotTaken::Refused(why)) => self.met.refused.push(why),
            Err(NotTaken::Io(source)) => return Err(failed("write", &self.store.runs())(source)),
        }
        Ok(())
    }

    /// Fetches the lines of baselines that are new since the last time.
    pub(super) async fn fetch_baselines(&mut self, remote: &Remote, state: &mut State) -> Result<(), TeamError> {
        let rows = remote.baselines_after(state.seen.baselines).await?;
        let Some(&(_, last, _)) = rows.last() else { return Ok(()) };
        let known = self.store.baselines().map_err(TeamError::from)?;
        let mut new = Vec::new();
        for (id, _, text) in rows {
            if known.lines.iter().any(|line| line.id == id) {
                continue;
            }
            match arrive::baseline(&id, text.as_deref(), Timestamp::now()) {
                Ok(line) => new.push(line),
                Err(why) => self.met.refused.push(why),
            }
        }
        if !new.is_empty() {
            let path = state.baselines_path();
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(failed("make", folder))?;
            }
            baselines::append(&path, &new).map_err(StoreError::from)?;
            self.met.came_baselines += new.len() as u64;
        }
        state.saw(Seen { baselines: last, ..state.seen })
    }
}
