//! The GPUs of this machine: which there are, and how much of their memory is in use.
//!
//! NVIDIA's own `nvidia-smi` tells, and where that is not there the driver's folder in `/proc`, which tells no memory.
//! For tests and demonstrations GPUs can be made: `ORCH_MADE_GPUS` names a folder in which each file stands for one. They
//! are named as made wherever they show.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::command;
use crate::render::Gpu;

/// The variable that names a folder of made GPUs.
pub const MADE: &str = "ORCH_MADE_GPUS";
/// Where NVIDIA's driver tells of its GPUs: one folder each.
const DRIVER: &str = "/proc/driver/nvidia/gpus";
/// `nvidia-smi` takes seconds on a machine without its persistence daemon, and hangs for ever on one with a broken GPU.
const PATIENCE: Duration = Duration::from_secs(20);
/// A device whose memory is back to within so much of its idle level counts as returned: the driver's own share breathes.
const SLACK_MIB: u64 = 64;
/// How long a driver may take to give memory back. Large machines were seen to need half a minute.
const RETURN: Duration = Duration::from_secs(60);
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(500);

/// How a GPU is used at one moment. What a device does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// Which.
    pub uuid: String,
    /// Memory in use.
    pub used_mib: Option<u64>,
    /// Share of the time in which something ran on it, 0 to 1. A kernel that waits for another rank counts as running.
    pub busy_ratio: Option<f64>,
    /// What it draws.
    pub power_w: Option<f64>,
    /// What it may draw.
    pub power_limit_w: Option<f64>,
}

/// What tells of GPUs.
pub trait Gpus: Send + Sync {
    /// All there are, in PCI bus order.
    fn list(&self) -> Vec<Gpu>;

    /// Memory in use by UUID, in MiB; `None` where nothing tells.
    fn used_mib(&self) -> Option<BTreeMap<String, u64>>;

    /// How they are used now; `None` where nothing tells.
    fn readings(&self) -> Option<Vec<Reading>> {
        None
    }

    /// Whether they only stand for GPUs.
    fn are_made(&self) -> bool {
        false
    }
}

/// Those of this machine, or those that were made in their place.
pub fn here() -> Box<dyn Gpus> {
    match std::env::var_os(MADE).filter(|folder| !folder.is_empty()) {
        Some(folder) => Box::new(Made { folder: folder.into() }),
        None => Box::new(Nvidia),
    }
}

/// NVIDIA's.
struct Nvidia;

impl Gpus for Nvidia {
    fn list(&self) -> Vec<Gpu> {
        // A machine without the driver's devices has nothing to ask.
        if !Path::new("/dev/nvidiactl").exists() && !Path::new(DRIVER).exists() {
            return Vec::new();
        }
        match query("index,uuid,name,memory.total") {
            Some(text) => text.lines().filter_map(parse_gpu).collect(),
            None => from_driver(Path::new(DRIVER), &|minor| Path::new(&format!("/dev/nvidia{minor}")).exists()),
        }
    }

    fn used_mib(&self) -> Option<BTreeMap<String, u64>> {
        let text = query("uuid,memory.used")?;
        let line = |line: &str| {
            let (uuid, used) = line.split_once(',')?;
            Some((uuid.trim().to_owned(), used.trim().parse().ok()?))
        };
        Some(text.lines().filter_map(line).collect())
    }

    fn readings(&self) -> Option<Vec<Reading>> {
        let text = query("uuid,memory.used,utilization.gpu,power.draw,power.limit")?;
        Some(text.lines().filter_map(parse_reading).collect())
    }
}

/// `GPU-…, 44120, 100, 131.52, 600.00`; a field may be `[N/A]`.
fn parse_reading(line: &str) -> Option<Reading> {
    let mut fields = line.split(',').map(str::trim);
    let uuid = fields.next().filter(|uuid| uuid.starts_with("GPU-") || uuid.starts_with("MIG-"))?.to_owned();
    let used_mib = fields.next()?.parse().ok();
    let mut number = || fields.next()?.parse::<f64>().ok();
    Some(Reading {
        uuid,
        used_mib,
        busy_ratio: number().map(|percent| percent / 100.0),
        power_w: number(),
        power_limit_w: number(),
    })
}

/// Asks `nvidia-smi`; `None` where it is not there, fails, or does not come back.
fn query(fields: &str) -> Option<String> {
    let mut ask = Command::new("nvidia-smi");
    ask.args([&format!("--query-gpu={fields}"), "--format=csv,noheader,nounits"]);
    let told = command::output(&mut ask, PATIENCE).ok()?;
    told.status.success().then(|| String::from_utf8_lossy(&told.stdout).into_owned())
}

/// `0, GPU-…, NVIDIA RTX A6000, 49140`; the memory is `[N/A]` on machines that share it with the processor.
fn parse_gpu(line: &str) -> Option<Gpu> {
    let mut fields = line.split(',').map(str::trim);
    Some(Gpu {
        index: fields.next()?.parse().ok()?,
        uuid: fields.next()?.to_owned(),
        name: fields.next()?.to_owned(),
        memory_mib: fields.next()?.parse().ok(),
    })
}

/// The driver lists the GPUs of the machine, a container has some of them: those with a device file.
fn from_driver(folder: &Path, has_device: &dyn Fn(&str) -> bool) -> Vec<Gpu> {
    let mut slots: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    slots.sort();
    let mut found = Vec::new();
    for slot in slots {
        let text = std::fs::read_to_string(slot.join("information")).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
            line.map(|value| value.trim().to_owned())
        };
        let (Some(uuid), Some(minor)) = (field("GPU UUID"), field("Device Minor")) else { continue };
        if has_device(&minor) {
            let name = field("Model").unwrap_or_else(|| "GPU of unknown model".to_owned());
            found.push(Gpu { index: found.len() as u32, uuid, name, memory_mib: None });
        }
    }
    found
}

/// GPUs that are files. A file may hold `{"name": …, "memory_mib": …, "used_mib": …}`, and what else a [`Reading`] has.
struct Made {
    folder: PathBuf,
}

#[derive(Default, Deserialize)]
struct MadeGpu {
    name: Option<String>,
    memory_mib: Option<u64>,
    #[serde(flatten)]
    now: Reading,
}

impl Made {
    fn all(&self) -> Vec<(String, MadeGpu)> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.sort();
        let made = |path: &PathBuf| {
            let uuid = path.file_name()?.to_str()?.to_owned();
            let text = std::fs::read_to_string(path).ok()?;
            Some((uuid, serde_json::from_str(&text).unwrap_or_default()))
        };
        files.iter().filter_map(made).collect()
    }
}

impl Gpus for Made {
    fn list(&self) -> Vec<Gpu> {
        let gpu = |(index, (uuid, made)): (usize, (String, MadeGpu))| Gpu {
            index: index as u32,
            uuid,
            name: format!("{} (made, no device)", made.name.as_deref().unwrap_or("GPU")),
            memory_mib: made.memory_mib,
        };
        self.all().into_iter().enumerate().map(gpu).collect()
    }

    fn used_mib(&self) -> Option<BTreeMap<String, u64>> {
        let used: BTreeMap<String, u64> =
            self.all().into_iter().filter_map(|(uuid, made)| Some((uuid, made.now.used_mib?))).collect();
        (!used.is_empty()).then_some(used)
    }

    fn readings(&self) -> Option<Vec<Reading>> {
        Some(self.all().into_iter().map(|(uuid, made)| Reading { uuid, ..made.now }).collect())
    }

    fn are_made(&self) -> bool {
        true
    }
}

/// What is in use of these devices; `None` where that is not known of all of them.
pub(crate) fn used(gpus: &dyn Gpus, devices: &[String]) -> Option<BTreeMap<String, u64>> {
    if devices.is_empty() {
        return None;
    }
    let mut used = gpus.used_mib()?;
    used.retain(|uuid, _| devices.contains(uuid));
    (used.len() == devices.len()).then_some(used)
}

/// How the memory of devices came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Returned {
    /// What is still in use above the idle level, in MiB, over all devices.
    pub(crate) above_mib: u64,
    /// How long it took, or was waited.
    pub(crate) after: Duration,
}

/// Waits until the devices are back at their idle level, within bounds. `None` where the level is not known, or nothing
/// tells any more.
pub(crate) async fn returned(idle: &BTreeMap<String, u64>) -> Option<Returned> {
    let began = Instant::now();
    let devices: Vec<String> = idle.keys().cloned().collect();
    loop {
        let asked = devices.clone();
        // It runs a program: off the threads that serve the rest.
        let now = tokio::task::spawn_blocking(move || used(here().as_ref(), &asked)).await.ok()??;
        let above_mib = above(idle, &now);
        if above_mib == 0 || began.elapsed() >= limit() {
            return Some(Returned { above_mib, after: began.elapsed() });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Made devices give their memory back when a test says so; nobody waits long for that.
fn limit() -> Duration {
    if std::env::var_os(MADE).is_some() { Duration::from_secs(5) } else { RETURN }
}

fn above(idle: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> u64 {
    let of = |(uuid, idle): (&String, &u64)| {
        let above = now.get(uuid).copied().unwrap_or(0).saturating_sub(*idle);
        if above > SLACK_MIB { above } else { 0 }
    };
    idle.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nvidia_smi_says_is_read() {
        let gpu = parse_gpu("1, GPU-5a7b, NVIDIA RTX A6000, 49140").unwrap();
        assert_eq!((gpu.index, gpu.uuid.as_str(), gpu.memory_mib), (1, "GPU-5a7b", Some(49140)));
        assert_eq!(parse_gpu("0, GPU-1, NVIDIA GB10, [N/A]").unwrap().memory_mib, None);
        assert_eq!(parse_gpu("No devices were found"), None);
    }

    #[test]
    fn how_a_gpu_is_used_is_read_and_what_it_does_not_tell_is_absent() {
        let reading = parse_reading("GPU-5a7b, 44120, 100, 131.52, 600.00").unwrap();
        assert_eq!((reading.uuid.as_str(), reading.used_mib, reading.busy_ratio), ("GPU-5a7b", Some(44120), Some(1.0)));
        assert_eq!((reading.power_w, reading.power_limit_w), (Some(131.52), Some(600.0)));
        let reading = parse_reading("GPU-1, [N/A], 3, [N/A], [N/A]").unwrap();
        assert_eq!(reading, Reading { uuid: "GPU-1".into(), busy_ratio: Some(0.03), ..Reading::default() });
        assert_eq!(parse_reading("Unable to determine the device handle"), None);
    }

    #[test]
    fn the_driver_tells_of_those_that_are_here() {
        let folder = tempfile::tempdir().unwrap();
        for (slot, minor) in [("0000:41:00.0", 1), ("0000:01:00.0", 0), ("0000:81:00.0", 2)] {
            let gpu = folder.path().join(slot);
            std::fs::create_dir(&gpu).unwrap();
            let text = format!("Model: \t\t NVIDIA RTX A6000\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n");
            std::fs::write(gpu.join("information"), text).unwrap();
        }
        let found = from_driver(folder.path(), &|minor| minor != "0");
        let told: Vec<_> = found.iter().map(|gpu| (gpu.index, gpu.uuid.as_str(), gpu.memory_mib)).collect();
        assert_eq!(told, [(0, "GPU-1", None), (1, "GPU-2", None)]);
    }

    #[test]
    fn made_ones_say_that_they_are() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("GPU-b"), "").unwrap();
        std::fs::write(folder.path().join("GPU-a"), r#"{"name": "H200", "memory_mib": 100, "used_mib": 3}"#).unwrap();
        let made = Made { folder: folder.path().to_owned() };
        let told: Vec<_> = made.list().into_iter().map(|gpu| (gpu.index, gpu.uuid, gpu.name)).collect();
        let expected = [(0, "GPU-a", "H200 (made, no device)"), (1, "GPU-b", "GPU (made, no device)")];
        assert_eq!(told, expected.map(|(index, uuid, name)| (index, uuid.to_owned(), name.to_owned())));
        assert_eq!(used(&made, &["GPU-a".to_owned()]), Some(BTreeMap::from([("GPU-a".to_owned(), 3)])));
        assert_eq!(used(&made, &["GPU-a".to_owned(), "GPU-b".to_owned()]), None, "one of them does not tell");
        assert_eq!(used(&made, &[]), None, "without devices there is nothing to know");
    }

    #[test]
    fn a_little_above_the_idle_level_is_no_memory_of_ours() {
        let level = |mib| BTreeMap::from([("GPU-a".to_owned(), mib), ("GPU-b".to_owned(), 500)]);
        assert_eq!(above(&level(3), &level(3 + SLACK_MIB)), 0);
        assert_eq!(above(&level(3), &level(4003)), 4000);
        assert_eq!(above(&level(4003), &level(3)), 0, "somebody else's may have gone in between");
    }
}
