//! What was seen of a machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::seen::LastTime;
use super::topology::Topology;
use crate::launch::{Holding, Listed};

/// All of it. What could not be looked at is absent, and stands against nothing.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// How its clock differs from that of whoever asks; on another host only.
    pub skew: Option<Skew>,
    /// Where things are written.
    pub disks: Vec<Disk>,
    /// Memory in all, and what can be had of it.
    pub memory_bytes: Option<(u64, u64)>,
    /// `/dev/shm`.
    pub shm: Option<Disk>,
    /// What a process may have.
    pub limits: Limits,
    /// The GPUs.
    pub nvidia: Nvidia,
    /// What runs on them.
    pub processes: Vec<GpuProcess>,
    /// How they are linked.
    pub topology: Option<Topology>,
    /// Errors of GPUs in the kernel's log, oldest first; `None` where that may not be read.
    pub xids: Option<Vec<Xid>>,
    /// What was seen the last time.
    pub last: LastTime,
    /// What a profile wants of the GPUs.
    pub wanted: Wanted,
    /// Ports that a profile names.
    pub ports: Vec<PortFact>,
    /// Leases that are held.
    pub leases: Vec<Holding>,
    /// Our servers.
    pub servers: Vec<Listed>,
    /// Locks of compilers.
    pub jit_locks: Vec<JitLock>,
    /// Variables that an engine goes by as a login has them, and as this process has them.
    pub login: Option<BTreeMap<String, String>>,
    /// The same of this process.
    pub own: BTreeMap<String, String>,
    /// The engine of a profile.
    pub engine: Option<EngineFact>,
    /// The model of a profile.
    pub model: Option<ModelFact>,
}

/// How another clock differs: what it said, less the middle of the time in which it was asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Skew {
    /// It is ahead by so much.
    pub ahead_ms: i64,
    /// How long the asking took: so much is not known.
    pub rtt_ms: i64,
}

/// A file system, for what is written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `results`, `work`, `weights`.
    pub role: &'static str,
    /// The path.
    pub path: PathBuf,
    /// Free for this user.
    pub free_bytes: u64,
    /// In all.
    pub total_bytes: u64,
}

/// Soft limits; `None` is without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Open files.
    pub files: Option<u64>,
    /// And how far that may be raised.
    pub files_hard: Option<u64>,
    /// Locked memory.
    pub locked_bytes: Option<u64>,
}

/// What NVIDIA's own program tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Nvidia {
    /// There is none.
    #[default]
    Absent,
    /// It did not come back.
    Hung {
        /// What it was asked.
        query: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It refused.
    Failed {
        /// What it said.
        said: String,
    },
    /// It told.
    Told(Vec<GpuFact>),
}

impl Nvidia {
    /// Those that it told of.
    pub fn gpus(&self) -> &[GpuFact] {
        match self {
            Nvidia::Told(gpus) => gpus,
            _ => &[],
        }
    }
}

/// A GPU. What it does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuFact {
    /// Its number by the bus.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub name: String,
    /// Its slot, `00000000:41:00.0`.
    pub bus: String,
    /// The driver's version.
    pub driver: String,
    /// Memory.
    pub memory_mib: Option<u64>,
    /// Memory in use.
    pub used_mib: Option<u64>,
    /// Share of the time in which something ran.
    pub busy_percent: Option<u64>,
    /// Lanes in use, and what there could be.
    pub lanes: Option<(u32, u32)>,
    /// Errors of its memory that could not be mended, since the driver was loaded.
    pub ecc_volatile: Option<u64>,
    /// And ever.
    pub ecc_ever: Option<u64>,
    /// Why its clocks are lower than they could be, as the driver's bits.
    pub throttle: Option<u64>,
    /// Its temperature.
    pub celsius: Option<u32>,
}

/// A process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// The GPU's UUID.
    pub uuid: String,
    /// The process, as the driver numbers it: in a container it may be a number of the host's.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// What it uses.
    pub used_mib: Option<u64>,
    /// Whether it is one of our servers.
    pub ours: bool,
}

/// A line of the driver's in the kernel's log.
#[derive(Clone, Debug, PartialEq)]
pub struct Xid {
    /// Seconds after the kernel began, where the line says so.
    pub at_s: Option<f64>,
    /// The slot.
    pub bus: String,
    /// The number of the error.
    pub code: u32,
    /// The line.
    pub line: String,
}

/// What a profile wants of the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// There is no profile.
    #[default]
    Unknown,
    /// None.
    None,
    /// So many of these, or all of these.
    Some {
        /// UUIDs.
        of: Vec<String>,
        /// So many; `None` is all.
        count: Option<usize>,
    },
    /// It cannot be had whatever is free.
    Impossible(String),
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFact {
    /// Its number.
    pub port: u16,
    /// Who listens on it.
    pub holder: Option<String>,
}

/// A lock file of a compiler that waits for it to go away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitLock {
    /// Where.
    pub path: PathBuf,
    /// For how long it has been there.
    pub age: Duration,
}

/// The engine of a profile, as far as it could be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineFact {
    /// It is there, and says this version.
    There {
        /// The program.
        program: String,
        /// What it says.
        version: String,
    },
    /// It cannot be used, and why.
    Not {
        /// What is wrong.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// The profile installs it.
    Installed,
}

/// The model of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFact {
    /// It is here, with so many bytes.
    There(u64),
    /// It is not, or not whole.
    Not {
        /// What is wrong.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// A name of the hub that is in none of the caches here: the engine fetches it.
    Fetched {
        /// The name.
        name: String,
        /// Where it would lie.
        cache: PathBuf,
    },
}
