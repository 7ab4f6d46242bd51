//! What `orch ps` shows beside servers: deployments that a manager or a container engine keeps, and what is displaced.

use comfy_table::{Table, presets};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::ps::short_run;
use super::{Exit, Failure};
use crate::deploy::{self, As, DeployError, Deployments, What};
use crate::launch::WorkFolder;

/// One of them.
pub(crate) struct Standing {
    id: String,
    what: &'static str,
    state: &'static str,
    port: Option<u16>,
    run: String,
    since: Timestamp,
    shown: String,
}

/// All of them. A deployment that is a process of orch's own is among the servers already.
pub(crate) fn of(work: &WorkFolder) -> Result<Vec<Standing>, Failure> {
    let own = |error: DeployError| Failure::new(Exit::Own, error);
    let mut all = Vec::new();
    for (record, held) in deploy::undone(work).map_err(own)? {
        let (what, state) = match (&record.what, held) {
            (What::Production(_), true) => ("production", "displaced"),
            (What::Deployment(_), true) => ("deployment", "replaced"),
            (What::Production(_), false) => ("production", "down"),
            (What::Deployment(_), false) => ("deployment", "down"),
        };
        let shown = record.what.shown();
        all.push(Standing { id: record.key, what, state, port: None, run: record.run, since: record.since, shown });
    }
    for deployed in Deployments::of(work).all().map_err(own)? {
        if deployed.form() == As::Process {
            continue;
        }
        let state = match deploy::is_up(&deployed, work) {
            Ok(true) => "running",
            Ok(false) => "stopped",
            Err(_) => "unknown",
        };
        all.push(Standing {
            id: deployed.name.clone(),
            what: deployed.form().word(),
            state,
            port: Some(deployed.port),
            run: deployed.run.clone(),
            since: deployed.since,
            shown: deployed.shown(),
        });
    }
    Ok(all)
}

impl Standing {
    /// For programs, with the keys that a server has where they mean the same.
    pub(crate) fn json(&self) -> Value {
        json!({"id": self.id, "kind": self.what, "state": self.state, "port": self.port, "run": self.run, "since": self.since, "what": self.shown})
    }
}

/// For people.
pub(crate) fn table(all: &[Standing]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["KIND", "STATE", "PORT", "SINCE", "RUN", "WHAT"]);
    for one in all {
        table.add_row([
            one.what.to_owned(),
            one.state.to_owned(),
            one.port.map_or_else(|| "-".to_owned(), |port| port.to_string()),
            one.since.strftime("%Y-%m-%d %H:%M").to_string(),
            short_run(&one.run).unwrap_or_else(|| one.run.clone()),
            one.shown.clone(),
        ]);
    }
    table
}
