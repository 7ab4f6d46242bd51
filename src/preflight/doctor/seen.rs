//! What was seen the last time, in the work folder: what is the same as then is no news.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use crate::host::{self, Mode};
use crate::launch::BootMoment;

/// It.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastTime {
    /// The least memory that was ever in use of a GPU, by UUID: its idle level.
    pub idle_mib: BTreeMap<String, u64>,
    /// Errors of a GPU's memory ever, by UUID.
    pub ecc_ever: BTreeMap<String, u64>,
    /// How far the kernel's log was read, and of which boot.
    pub log: Option<BootMoment>,
}

const FILE: &str = "doctor.json";

impl LastTime {
    /// What is kept in the work folder; nothing where nothing reads.
    pub fn read(work: &Path) -> Self {
        std::fs::read(work.join(FILE)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// With what is seen now.
    #[must_use]
    pub fn with(mut self, facts: &Facts) -> Self {
        for gpu in facts.nvidia.gpus() {
            if let Some(used) = gpu.used_mib {
                let idle = self.idle_mib.entry(gpu.uuid.clone()).or_insert(used);
                *idle = used.min(*idle);
            }
            if let Some(ever) = gpu.ecc_ever {
                self.ecc_ever.insert(gpu.uuid.clone(), ever);
            }
        }
        if facts.xids.is_some() {
            self.log = BootMoment::now();
        }
        self
    }

    /// Keeps it.
    pub fn write(&self, work: &Path) -> io::Result<()> {
        host::write_whole(&work.join(FILE), &serde_json::to_vec_pretty(self)?, Mode::PRIVATE)
    }
}
