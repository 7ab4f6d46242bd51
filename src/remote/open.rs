//! A host by its name, and what orch on it goes by.

use std::path::PathBuf;

use serde_json::Value;

use super::{Door, RemoteError};
use crate::host::{self, AnyHost, Hosts};

/// What of a host's entry orch beside the server goes by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The work folder there, where it is not the usual one.
    pub work: Option<String>,
    /// What a shell does before a run: it sets up the engine's environment.
    pub activate: Option<String>,
    /// What `--displace` stops there.
    pub production: Option<Value>,
}

/// A host by its name.
#[derive(Clone, Debug)]
pub struct Named {
    name: String,
    hosts: Hosts,
    ssh_config: Option<PathBuf>,
}

impl Named {
    /// The host of that name: an entry of a file, else an alias of the `ssh` configuration or `user@address:port`.
    pub fn new(name: &str, hosts: Hosts, ssh_config: Option<PathBuf>) -> Self {
        Named { name: name.to_owned(), hosts, ssh_config }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its entry says.
    pub fn settings(&self) -> Result<Settings, RemoteError> {
        let Some(entry) = self.hosts.entry(&self.name) else { return Ok(Settings::default()) };
        if entry.slurm.is_some() {
            return Err(RemoteError::Host {
                name: self.name.clone(),
                why: "it is a cluster (`slurm:`), whose nodes its scheduler gives out".to_owned(),
                help: "run orch in a job of the cluster".to_owned(),
            });
        }
        Ok(Settings {
            work: entry.work.as_ref().map(|work| work.display().to_string()),
            activate: entry.activate.clone(),
            production: self.hosts.production_keys(&self.name),
        })
    }
}

impl Door for Named {
    type Host = AnyHost;

    async fn open(&self) -> Result<AnyHost, RemoteError> {
        let host = host::open(&self.name, &self.hosts, self.ssh_config.as_deref())?;
        host.reach().await?;
        Ok(host)
    }
}
