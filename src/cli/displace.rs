//! `--displace`, of `orch run` and `orch up`: what was typed into what is meant.

use std::path::{Path, PathBuf};

use super::{Exit, Failure, Global};
use crate::deploy::{Hosts, LOCAL, Production};
use crate::profile::Profile;
use crate::record::model::AskedDisplace;
use crate::run::Displace;

/// What makes room.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct DisplaceArgs {
    /// Stops the production that hosts.yaml names for this host, if it is idle, and brings it back whatever happens
    #[arg(long)]
    displace: bool,
    /// The same, also when production is in use or nobody can tell
    #[arg(long)]
    force_displace: bool,
    /// `--hosts`, which every verb takes.
    #[arg(skip)]
    hosts: Option<PathBuf>,
}

impl DisplaceArgs {
    /// With the file of hosts that was given to the verb.
    pub(crate) fn with(self, global: &Global) -> Self {
        DisplaceArgs { hosts: global.hosts.clone(), ..self }
    }

    /// Whether production makes room also when it is in use.
    pub(crate) fn forced(&self) -> bool {
        self.force_displace
    }

    /// The production that makes room; `None` without the flag.
    pub(crate) fn production(&self, profile: &Profile, folders: &[PathBuf]) -> Result<Option<Production>, Failure> {
        let wrong = |error| Failure::new(Exit::Usage, error);
        if !self.asked() {
            // A file that was named is read, so that a mistake in it does not wait for the night.
            if let Some(hosts) = &self.hosts {
                Hosts::read(Some(hosts), folders).map_err(wrong)?;
            }
            return Ok(None);
        }
        let hosts = Hosts::read(self.hosts.as_deref().map(Path::new), folders).map_err(wrong)?;
        hosts.production(profile.host.as_deref().unwrap_or(LOCAL)).map(Some).map_err(wrong)
    }

    /// Whether production is to make room.
    pub(crate) fn asked(&self) -> bool {
        self.displace || self.force_displace
    }

    /// What a run remembers of it, for whoever goes on with it from another folder.
    pub(crate) fn remembered(&self) -> Option<AskedDisplace> {
        let hosts = self.hosts.as_ref().map(|hosts| std::path::absolute(hosts).unwrap_or_else(|_| hosts.clone()));
        self.asked().then_some(AskedDisplace { force: self.force_displace, hosts })
    }

    /// With what a run was asked for when it began: what is typed now adds to it.
    pub(crate) fn or(self, began: Option<&AskedDisplace>) -> Self {
        let Some(AskedDisplace { force, hosts }) = began else { return self };
        DisplaceArgs {
            displace: true,
            force_displace: self.force_displace || *force,
            hosts: self.hosts.or_else(|| hosts.clone()),
        }
    }

    /// What a run is told.
    pub(crate) fn of<'a>(&self, production: Option<&'a Production>) -> Option<Displace<'a>> {
        production.map(|production| Displace { production, force: self.force_displace })
    }
}
