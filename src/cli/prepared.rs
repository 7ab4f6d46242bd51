//! What `orch run` and `orch up` find out alike before anything begins.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::displace::DisplaceArgs;
use super::run::past;
use super::{Failure, planned, records, restore, secrets};
use crate::deploy::Production;
use crate::engine::Definition;
use crate::launch::WorkFolder;
use crate::profile::{self, Loaded, Question};
use crate::record::Store;
use crate::record::history::PastStarts;
use crate::record::model::Record;
use crate::report::live::Usual;
use crate::run::{After, Job, Source};

/// It.
pub(crate) struct Prepared {
    definition: Definition,
    secrets: BTreeMap<String, String>,
    questions: Vec<Question>,
    against: Option<Record>,
    production: Option<Production>,
    orch: PathBuf,
    past: PastStarts,
}

impl Prepared {
    /// Finds it out, and has put right what an earlier orch left down. Before anything is started: a verdict that could not
    /// be given is no use after an hour of measuring.
    pub(crate) fn find(
        loaded: &Loaded,
        definition: Definition,
        against: Option<&str>,
        displace: &DisplaceArgs,
        store: &Store,
        work: &WorkFolder,
    ) -> Result<Self, Failure> {
        let secrets = secrets::of(&loaded.profile)?;
        let questions = planned::questions(loaded.profile.quality.as_ref().map(|quality| quality.file.as_path()))?;
        store.baselines().map_err(records::failure)?;
        let against = against.map(|run| store.record(&store.find(run)?)).transpose().map_err(records::failure)?;
        let production = displace.production(&loaded.profile, &profile::default_folders())?;
        let orch = std::env::current_exe().map_err(Failure::own)?;
        restore::catch_up(work, &orch)?;
        let past = past(store, &loaded.profile);
        Ok(Prepared { definition, secrets, questions, against, production, orch, past })
    }

    /// What is usual here, for the screen.
    pub(crate) fn usual(&self) -> Usual {
        Usual::of(self.past.clone())
    }

    /// What is to be done.
    pub(crate) fn job<'a>(
        &'a self,
        loaded: &'a Loaded,
        source: Source,
        after: After,
        displace: &DisplaceArgs,
        fail_fast: bool,
    ) -> Job<'a> {
        Job {
            profile: &loaded.profile,
            definition: &self.definition,
            secrets: &self.secrets,
            orch: &self.orch,
            past: &self.past,
            fail_fast,
            against: self.against.as_ref(),
            source,
            after,
            displace: displace.of(self.production.as_ref()),
            questions: &self.questions,
        }
    }
}
