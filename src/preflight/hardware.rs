//! What a result depends on, in a line.

use std::collections::BTreeMap;
use std::path::Path;

use crate::record::model::HostInfo;

/// Where NVIDIA's driver tells of its GPUs: one folder each. Reading it needs no library and no query that could hang.
const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";

/// The variable that says what this machine is called in the `hosts.yaml` of whoever asked for a run on it.
pub const HOST_NAME: &str = "ORCH_HOST_NAME";

/// This machine: its name, its GPUs, its processor, and the cores that this process may use.
pub fn hardware() -> std::io::Result<HostInfo> {
    let name = match std::env::var(HOST_NAME).ok().filter(|name| !name.is_empty()) {
        Some(name) => name,
        None => nix::unistd::gethostname()?.display().to_string(),
    };
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
    // Affinity and the limits of a container count: it is what a server started from here gets.
    let cores = std::thread::available_parallelism()?.get();
    let processor = describe(&cpuinfo, std::env::consts::ARCH, cores);
    let gpus = match std::env::var_os(crate::launch::gpu::MADE) {
        None => gpus(Path::new(NVIDIA_GPUS)),
        Some(_) => made(&crate::launch::gpu::here().list()),
    };
    let parts: Vec<String> = gpus.into_iter().chain([processor]).collect();
    Ok(HostInfo { name, hardware: parts.join("; ") })
}

/// `2x NVIDIA RTX A6000`, by model; empty without the driver.
fn gpus(folder: &Path) -> Vec<String> {
    let mut models: BTreeMap<String, u32> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let information = std::fs::read_to_string(entry.path().join("information")).unwrap_or_default();
        let model = information.lines().find_map(|line| line.strip_prefix("Model:")).map(str::trim);
        *models.entry(model.unwrap_or("GPU of unknown model").to_owned()).or_default() += 1;
    }
    models.into_iter().map(|(model, count)| format!("{count}x {model}")).collect()
}

/// GPUs that only stand for some, so that no record of theirs is ever taken for one of real ones.
fn made(gpus: &[crate::render::Gpu]) -> Vec<String> {
    let mut names: BTreeMap<&str, u32> = BTreeMap::new();
    for gpu in gpus {
        *names.entry(&gpu.name).or_default() += 1;
    }
    names.into_iter().map(|(name, count)| format!("{count}x {name}")).collect()
}

fn describe(cpuinfo: &str, machine: &str, cores: usize) -> String {
    let model = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key.trim(), "model name" | "Model").then(|| value.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    let model = model.filter(|model| !model.is_empty()).unwrap_or_else(|| format!("{machine} processor"));
    format!("{model}, {cores} {}", if cores == 1 { "core" } else { "cores" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named_as_the_kernel_names_it() {
        let x86 = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC  9654 96-Core Processor\nflags : fpu\n";
        assert_eq!(describe(x86, "x86_64", 2), "AMD EPYC 9654 96-Core Processor, 2 cores");
        assert_eq!(describe("processor\t: 0\nFeatures\t: fp\n", "aarch64", 1), "aarch64 processor, 1 core");
    }

    #[test]
    fn gpus_are_counted_by_model() {
        let folder = tempfile::tempdir().unwrap();
        for (slot, text) in
            [("1", "Model: \t\t NVIDIA RTX A6000\nIRQ: 1\n"), ("2", "Model: NVIDIA RTX A6000\n"), ("3", "")]
        {
            let gpu = folder.path().join(format!("0000:0{slot}:00.0"));
            std::fs::create_dir(&gpu).unwrap();
            std::fs::write(gpu.join("information"), text).unwrap();
        }
        assert_eq!(gpus(folder.path()), ["1x GPU of unknown model", "2x NVIDIA RTX A6000"]);
        assert_eq!(gpus(&folder.path().join("none")), [""; 0]);
    }

    #[test]
    fn this_machine_has_a_name_and_cores() {
        let host = hardware().unwrap();
        assert!(!host.name.is_empty());
        assert!(host.hardware.ends_with(" cores") || host.hardware.ends_with(" core"), "{}", host.hardware);
    }
}
