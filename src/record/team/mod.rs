//! A team's store: one PostgreSQL database with the records of all who write there.
//!
//! It is an exchange and no place of its own: what others recorded lands in the results folder, in the shape of what was
//! recorded there, with a mark of who did. So everything that reads records reads those of the team, also while the store is
//! away; and a run is recorded in its folder first, wherever else it goes. Nothing in here is called while something is
//! measured.

mod address;
mod arrive;
mod error;
mod exchange;
mod outgoing;
mod password;
mod remote;
mod sql;
mod state;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use address::{Address, AddressError, VARIABLE};
pub use error::TeamError;
pub use password::PasswordError;

use super::Store;
use exchange::Exchange;

/// Who did not answer is not asked again by this process for so long.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// A team, by its store.
#[derive(Clone, Debug)]
pub struct Team {
    address: Address,
    /// Since when it is away, as far as this process knows, and why.
    away: Arc<Mutex<Option<(Instant, String)>>>,
}

/// What came of an exchange.
#[derive(Debug)]
pub struct Met {
    /// Host and database.
    pub store: String,
    /// Own runs that the store has from now on, or has anew.
    pub sent_runs: u64,
    /// Own lines of baselines that it has from now on.
    pub sent_baselines: u64,
    /// Runs of others that are here from now on, or are here anew.
    pub came_runs: u64,
    /// Lines of others' baselines that are here from now on.
    pub came_baselines: u64,
    /// Own runs that it lacks, where it could not be asked.
    pub waiting_runs: u64,
    /// Own lines of baselines that it lacks, where it could not be asked.
    pub waiting_baselines: u64,
    /// What of it was refused, each with why.
    pub refused: Vec<String>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// What went wrong, if not everything was exchanged.
    pub failed: Option<TeamError>,
}

impl Team {
    /// The team that the environment names in [`VARIABLE`], if it does.
    pub fn of_environment() -> Result<Option<Self>, AddressError> {
        Ok(Address::of_environment()?.map(|address| Team { address, away: Arc::default() }))
    }

    /// Where its store is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Exchanges what is new with its store; with `whole` all that there is.
    pub(super) fn meet(&self, store: &Store, whole: bool) -> Met {
        // A thread of its own: whoever calls may be in the midst of a runtime, which another could not be started in.
        std::thread::scope(|scope| {
            let meeting = scope.spawn(|| self.meet_here(store, whole));
            meeting.join().unwrap_or_else(|_| {
                let why = "the exchange ended unexpectedly".to_owned();
                Met { failed: Some(self.is_away(why)), ..Met::new(&self.address) }
            })
        })
    }

    fn meet_here(&self, store: &Store, whole: bool) -> Met {
        let exchange = Exchange::new(store, self, whole);
        let known = self.away.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, why)) = known.filter(|(since, _)| !whole && since.elapsed() < LEFT_ALONE) {
            return exchange.without(self.is_away(why));
        }
        let met = match crate::host::runtime::on_this_thread() {
            Ok(runtime) => runtime.block_on(exchange.hold()),
            Err(error) => exchange.without(self.is_away(error.to_string())),
        };
        let away = match &met.failed {
            Some(TeamError::Away { why, .. }) => Some((Instant::now(), why.clone())),
            _ => None,
        };
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = away;
        met
    }

    fn is_away(&self, why: String) -> TeamError {
        TeamError::Away { store: self.address.to_string(), why }
    }
}

impl Met {
    fn new(address: &Address) -> Self {
        Met {
            store: address.to_string(),
            sent_runs: 0,
            sent_baselines: 0,
            came_runs: 0,
            came_baselines: 0,
            waiting_runs: 0,
            waiting_baselines: 0,
            refused: Vec::new(),
            notes: Vec::new(),
            failed: None,
        }
    }

    /// What a person should know of it, a line each; nothing where all went as it should.
    pub fn lines(&self) -> Vec<String> {
        let refused = self.refused.iter().map(|why| format!("refused from the team's store {}: {why}", self.store));
        let failed = self.failed.as_ref().map(|error| format!("{error}; {}", self.waiting()));
        self.notes.iter().cloned().chain(refused).chain(failed).collect()
    }

    /// How much waits here, in words.
    fn waiting(&self) -> String {
        let counted = |count: u64, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        };
        let runs = counted(self.waiting_runs, "run", "runs");
        let baselines = counted(self.waiting_baselines, "line of baselines", "lines of baselines");
        let parts: Vec<String> = runs.into_iter().chain(baselines).collect();
        let verb = if self.waiting_runs + self.waiting_baselines == 1 { "waits" } else { "wait" };
        match parts.is_empty() {
            true => "nothing waits here to be sent".to_owned(),
            false => format!("{} {verb} here to be sent", parts.join(" and ")),
        }
    }
}

/// The files of others' baselines in this results folder.
pub(super) fn baselines(results: &Path) -> Vec<PathBuf> {
    state::TeamFolder::of(results).baselines()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_how_much_waits() {
        let address = Address::of("postgres://ann:s3cret@db/orch", &|_| None).unwrap();
        let away = |runs, baselines| {
            let failed = Some(TeamError::Away { store: address.to_string(), why: "connection refused".into() });
            Met { waiting_runs: runs, waiting_baselines: baselines, failed, ..Met::new(&address) }.lines().join("|")
        };
        let said = "the team's store db/orch is away: connection refused; ";
        assert_eq!(away(1, 0), format!("{said}1 run waits here to be sent"));
        assert_eq!(away(2, 1), format!("{said}2 runs and 1 line of baselines wait here to be sent"));
        assert_eq!(away(0, 0), format!("{said}nothing waits here to be sent"));
    }
}
