//! Looks at this machine. Nothing is changed, installed or reserved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;

use super::facts::{Disk, EngineFact, Facts, JitLock, Limits, ModelFact, Nvidia, PortFact, Skew, Wanted};
use super::nvidia;
use super::seen::LastTime;
use crate::engine::Definition;
use crate::gate;
use crate::launch::{self, LaunchError, WorkFolder, command};
use crate::preflight::stage::local;
use crate::preflight::{PreflightError, executable, gpus, model, version};
use crate::profile::{EngineKind, Port, Profile};
use crate::render::Gpu;

/// How long a login's shell, or an engine that says its version, may take.
const LOGIN: Duration = Duration::from_secs(5);
/// So many entries of a compiler's cache are looked at.
const ENTRIES: usize = 20_000;

/// What is looked at beside the machine.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Where records are kept.
    pub results: &'a Path,
    /// A profile that is to run, and its engine's definition.
    pub profile: Option<(&'a Profile, &'a Definition)>,
    /// What whoever asks knows of the clocks.
    pub skew: Option<Skew>,
}

/// Looks at all of it.
pub async fn collect(work: &WorkFolder, asked: &Asked<'_>) -> Result<Facts, LaunchError> {
    let ours = launch::our_processes(work)?;
    let nvidia = nvidia::gpus();
    // Each further question would hang as long.
    let answers = matches!(&nvidia, Nvidia::Told(gpus) if !gpus.is_empty());
    let mut facts = Facts {
        skew: asked.skew,
        disks: disks(work.root(), asked.results),
        memory_bytes: memory(),
        shm: disk("shm", Path::new("/dev/shm")),
        limits: limits(),
        processes: if answers { nvidia::processes(&|pid| ours.contains(&pid)) } else { Vec::new() },
        topology: if answers { nvidia::topology() } else { None },
        xids: if nvidia == Nvidia::Absent { None } else { nvidia::xids() },
        nvidia,
        last: LastTime::read(work.root()),
        leases: launch::holdings(work)?,
        servers: launch::list(work)?,
        jit_locks: jit_locks(&gate::life::look::caches(&|name| {
            std::env::var(name).ok().filter(|value| !value.is_empty())
        })),
        login: login(),
        own: own(),
        ..Facts::default()
    };
    if let Some((profile, definition)) = asked.profile {
        facts.wanted = wanted(profile, &facts);
        if let Port::Fixed(port) = profile.port {
            facts.ports.push(PortFact { port, holder: launch::port_holder(port) });
        }
        facts.engine = engine(profile, definition).await;
        facts.model = model_of(profile, definition);
    }
    Ok(facts)
}

fn disks(work: &Path, results: &Path) -> Vec<Disk> {
    let results = std::path::absolute(results).unwrap_or_else(|_| results.to_owned());
    let weights = hub();
    let all = [("results", Some(results)), ("work", Some(work.to_owned())), ("weights", weights)];
    all.into_iter().filter_map(|(role, path)| disk(role, &path?)).collect()
}

/// The file system of a path, or of what is there of it.
fn disk(role: &'static str, path: &Path) -> Option<Disk> {
    let there = path.ancestors().find(|path| path.exists())?;
    let told = statvfs(there).ok()?;
    let block = told.fragment_size();
    Some(Disk {
        role,
        path: path.to_owned(),
        free_bytes: told.blocks_available() * block,
        total_bytes: told.blocks() * block,
    })
}

/// Where models of the hub are kept.
fn hub() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    set("HF_HUB_CACHE").or_else(|| {
        let home = set("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))?;
        Some(home.join("hub"))
    })
}

fn memory() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    };
    Some((bytes("MemTotal:")?, bytes("MemAvailable:")?))
}

fn limits() -> Limits {
    let finite = |value: u64| (value != nix::libc::RLIM_INFINITY).then_some(value);
    let of = |which| getrlimit(which).ok();
    let files = of(Resource::RLIMIT_NOFILE);
    Limits {
        files: files.and_then(|(soft, _)| finite(soft)),
        files_hard: files.and_then(|(_, hard)| finite(hard)),
        locked_bytes: of(Resource::RLIMIT_MEMLOCK).and_then(|(soft, _)| finite(soft)),
    }
}

/// What an engine and its libraries go by.
fn matters(name: &str) -> bool {
    let names =
        ["PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "HF_HOME", "HF_HUB_CACHE", "TORCH_EXTENSIONS_DIR"];
    names.contains(&name) || name.starts_with("NCCL_")
}

fn own() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| matters(name))
        .collect()
}

/// The environment of a login; `None` where its shell does not tell, or takes too long.
fn login() -> Option<BTreeMap<String, String>> {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??;
    let output = command::output(Command::new(&user.shell).args(["-l", "-c", "env"]), LOGIN).ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pairs = text.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| matters(name));
    Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Locks that stand for as long as their file does. Others are the kernel's, and go with who had them.
fn jit_locks(caches: &[PathBuf]) -> Vec<JitLock> {
    caches.iter().flat_map(|cache| locks_below(cache)).collect()
}

fn locks_below(cache: &Path) -> Vec<JitLock> {
    let (mut found, mut looked) = (Vec::new(), 0);
    let mut open = vec![(cache.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            looked += 1;
            if looked > ENTRIES {
                return found;
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < 4 {
                open.push((entry.path(), depth + 1));
            } else if entry.file_name() == "lock" {
                let modified = entry.metadata().and_then(|meta| meta.modified());
                let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
                found.push(JitLock { path: entry.path(), age });
            }
        }
    }
    found
}

fn wanted(profile: &Profile, facts: &Facts) -> Wanted {
    let gpus = facts.nvidia.gpus().iter();
    let all: Vec<Gpu> = gpus
        .map(|gpu| Gpu { index: gpu.index, uuid: gpu.uuid.clone(), name: gpu.name.clone(), memory_mib: gpu.memory_mib })
        .collect();
    if all.is_empty() {
        return Wanted::None;
    }
    match gpus::wanted(profile, &all, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref()) {
        Ok(None) => Wanted::None,
        Ok(Some((of, count))) => Wanted::Some { of, count },
        Err(error) => Wanted::Impossible(error.to_string()),
    }
}

async fn engine(profile: &Profile, definition: &Definition) -> Option<EngineFact> {
    if profile.engine.kind == EngineKind::Sim {
        return None;
    }
    if crate::render::installable(profile).is_some() {
        return Some(EngineFact::Installed);
    }
    let not = |error: PreflightError| {
        use miette::Diagnostic;
        let remedy = error.help().map(|help| help.to_string());
        Some(EngineFact::Not { why: error.to_string(), remedy: remedy.unwrap_or_else(|| "see the message".to_owned()) })
    };
    let facts = &definition.facts;
    let wanted = executable::wanted(profile, None, facts.executable.as_deref())?;
    let program = match executable::find(&wanted, None) {
        Ok(program) => program,
        Err(error) => return not(error),
    };
    let asked = version::find(profile, None, Some(&program), facts.version.as_ref(), version::PATIENCE).await;
    match asked {
        Ok((version, _)) => Some(EngineFact::There { program, version: version.to_string() }),
        Err(error) => not(error),
    }
}

fn model_of(profile: &Profile, definition: &Definition) -> Option<ModelFact> {
    if profile.engine.kind == EngineKind::Sim || profile.model.path.starts_with("package:") {
        return None;
    }
    let not = |error: PreflightError| {
        use miette::Diagnostic;
        let remedy = error.help().map(|help| help.to_string());
        Some(ModelFact::Not { why: error.to_string(), remedy: remedy.unwrap_or_else(|| "see the message".to_owned()) })
    };
    let path = match model::find(profile, None, definition.facts.model) {
        Ok(Some(path)) => path,
        Ok(None) => match cached(profile)? {
            Ok(path) => path,
            Err(fetched) => return Some(fetched),
        },
        Err(error) => return not(error),
    };
    match local::look("model", &profile.model.path, &path) {
        Ok(staged) => Some(ModelFact::There(staged.bytes)),
        Err(error) => not(error),
    }
}

/// The snapshot of a name of the hub; `Err` where there is none; `None` for what is no such name.
fn cached(profile: &Profile) -> Option<Result<PathBuf, ModelFact>> {
    let name = &profile.model.path;
    let (owner, repository) = name.split_once('/')?;
    let cache = hub()?;
    let folder = cache.join(format!("models--{owner}--{repository}"));
    let revision = profile.model.revision.as_deref().unwrap_or("main");
    let commit = std::fs::read_to_string(folder.join("refs").join(revision));
    let commit = commit.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
    let snapshots = folder.join("snapshots");
    let entries = std::fs::read_dir(&snapshots).into_iter().flatten().filter_map(Result::ok);
    // A revision may be the beginning of a commit.
    let found = entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&commit)));
    Some(found.ok_or(ModelFact::Fetched { name: name.clone(), cache }))
}
