//! What goes to a store.

use super::super::error::TeamError;
use super::super::outgoing;
use super::super::remote::{Outgoing, Remote, Taken};
use super::super::state::{Mark, State};
use super::{Exchange, PAGE};
use crate::record::baselines::Baselines;
use crate::record::id::RunId;
use crate::record::model::Writer;
use crate::record::store::StoreError;

/// So many runs, or so many bytes of them, are sent in one transaction.
const BATCH: usize = 50;
const BATCH_BYTES: usize = 8 << 20;

impl Exchange<'_> {
    /// Sends own runs and lines of baselines that the store lacks. Puts the hashes of what it has of them into `sent`.
    pub(super) async fn send(
        &mut self,
        remote: &mut Remote,
        state: &mut State,
        sent: &mut Vec<String>,
    ) -> Result<(), TeamError> {
        let writer = Writer::here();
        let mut new = new_runs(&self.own, state).into_iter().peekable();
        while new.peek().is_some() {
            if self.is_late() {
                self.met
                    .notes
                    .push(format!("{} runs are left to be sent to the team's store the next time", new.len()));
                break;
            }
            let (batch, same) = self.batch(&mut new, state);
            state.sent(same)?;
            let marks: Vec<(String, Mark)> = batch.iter().map(|(run, mark)| (run.id.clone(), mark.clone())).collect();
            let runs: Vec<Outgoing> = batch.into_iter().map(|(run, _)| run).collect();
            if runs.is_empty() {
                continue;
            }
            state.sending(&marks)?;
            let taken = remote.add_runs(&runs, &writer).await?;
            let mut there = Vec::new();
            for (taken, (id, mark)) in taken.into_iter().zip(marks) {
                match taken {
                    Taken::Now | Taken::There => {
                        self.met.sent_runs += u64::from(taken == Taken::Now);
                        sent.push(mark.hash.clone());
                        there.push((id, mark));
                    }
                    Taken::Other(by) => self.met.notes.push(format!(
                        "{id} here is not the one that the store has under this id, by {by}: both stay as they are, and the store does not have this one"
                    )),
                }
            }
            state.sent(there)?;
        }
        if new.peek().is_none() {
            state.arrived()?;
        }
        self.send_baselines(remote, state, &writer).await
    }

    /// The next runs to send, and those that are found to be there as they are. What cannot be sent is told.
    #[expect(clippy::type_complexity, reason = "two lists, named by the function")]
    fn batch(
        &mut self,
        new: &mut impl Iterator<Item = (String, String)>,
        state: &State,
    ) -> (Vec<(Outgoing, Mark)>, Vec<(String, Mark)>) {
        let (mut batch, mut same, mut bytes) = (Vec::new(), Vec::new(), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Some((id, stamp)) = new.next() else { break };
            match self.outgoing(&id, state) {
                Ok(Some(run)) => {
                    let mark = Mark { hash: run.hash.clone(), stamp };
                    if state.runs.get(&id).is_some_and(|known| known.hash == run.hash) {
                        same.push((id, mark));
                    } else {
                        bytes += run.record.len();
                        batch.push((run, mark));
                    }
                }
                Ok(None) => {}
                Err(why) => self.met.notes.push(format!("{id} is not sent: {why}")),
            }
        }
        (batch, same)
    }

    pub(super) fn outgoing(&self, id: &str, state: &State) -> Result<Option<Outgoing>, String> {
        let Ok(parsed) = id.parse::<RunId>() else { return Ok(None) };
        outgoing::read(&self.store.run_path(&parsed).join("run.json"), id, state.before(id))
    }

    async fn send_baselines(
        &mut self,
        remote: &mut Remote,
        state: &mut State,
        writer: &Writer,
    ) -> Result<(), TeamError> {
        for lines in self.new_baselines(state)?.chunks(PAGE) {
            self.met.sent_baselines += remote.add_baselines(lines, writer).await?;
            state.sent_baselines(lines.iter().map(|(id, _)| id.clone()).collect())?;
        }
        Ok(())
    }

    /// Own lines of baselines that the store lacks.
    pub(super) fn new_baselines(&self, state: &State) -> Result<Vec<(String, String)>, TeamError> {
        let own = Baselines::read(&self.store.baselines_path()).map_err(StoreError::from)?;
        let new = own.lines.iter().filter(|line| !state.baselines.contains(&line.id));
        Ok(new.filter_map(|line| Some((line.id.clone(), serde_json::to_string(line).ok()?))).collect())
    }
}

/// Own runs whose files have changed since they were sent, or that never were.
pub(super) fn new_runs(own: &[(String, String)], state: &State) -> Vec<(String, String)> {
    let new = own.iter().filter(|(id, stamp)| state.runs.get(id).is_none_or(|known| known.stamp != *stamp));
    new.cloned().collect()
}
