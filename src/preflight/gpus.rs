//! Which GPUs a server is for. They are leased before anything is started, all or none.
//!
//! A profile names them (`CUDA_VISIBLE_DEVICES` in `env`, an engine's own flag), or says how many it needs by `parallel`;
//! then the first that are free are taken. An engine that takes what it sees, llama.cpp or a command of the user's own,
//! gets all that there are.

use super::PreflightError;
use crate::launch::gpu::{self, Gpus};
use crate::launch::{WorkFolder, reserve_gpus};
use crate::profile::{EngineKind, Flag, Profile};
use crate::render::{Gpu, Warning};

/// The GPUs of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    /// All of the machine.
    pub(super) all: Vec<Gpu>,
    /// Those that are reserved, by UUID.
    pub(super) devices: Vec<String>,
    /// What a person should know of the choice.
    pub(super) doubt: Option<Warning>,
}

impl std::fmt::Display for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let chosen: Vec<&Gpu> = self.all.iter().filter(|gpu| self.devices.contains(&gpu.uuid)).collect();
        let numbers: Vec<String> = chosen.iter().map(|gpu| gpu.index.to_string()).collect();
        match chosen.first() {
            None => write!(f, "none of {}", self.all.len()),
            Some(first) => write!(f, "{} of {}: {}, {}", chosen.len(), self.all.len(), numbers.join(" "), first.name),
        }
    }
}

/// What a profile says of the GPUs it needs.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    None,
    All,
    Count(usize),
    /// Positions among those that are visible.
    At(Vec<usize>),
    /// As `CUDA_VISIBLE_DEVICES` has it.
    Named(String),
}

/// Chooses them and reserves them.
pub(super) fn choose(profile: &Profile, work: &WorkFolder) -> Result<Chosen, PreflightError> {
    let gpus = gpu::here();
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    choose_of(gpus.as_ref(), visible.as_deref(), profile, work)
}

fn choose_of(
    gpus: &dyn Gpus,
    visible: Option<&str>,
    profile: &Profile,
    work: &WorkFolder,
) -> Result<Chosen, PreflightError> {
    let wish = wish(profile, gpus.are_made());
    if wish == Wish::None {
        return Ok(Chosen::default());
    }
    let all = gpus.list();
    if all.is_empty() {
        // Whether it can do without, the engine knows best.
        return Ok(Chosen::default());
    }
    let holder = format!("a run that is being prepared (pid {})", std::process::id());
    let (wanted, count) = of_wish(&wish, visible, &all)?;
    let doubt = order_doubt(&wish, visible, profile, &all);
    let devices = reserve_gpus(work, &wanted, count, &holder)?;
    Ok(Chosen { all, devices, doubt })
}

/// GPUs by UUID, and how many of them are needed; without a number all.
pub(super) type Choice = (Vec<String>, Option<usize>);

/// The GPUs of those that there are which a profile may be given, and how many of them, or all; `None` where it needs
/// none. Nothing is reserved.
pub(super) fn wanted(profile: &Profile, all: &[Gpu], visible: Option<&str>) -> Result<Option<Choice>, PreflightError> {
    match wish(profile, false) {
        Wish::None => Ok(None),
        wish => of_wish(&wish, visible, all).map(Some),
    }
}

fn of_wish(wish: &Wish, visible: Option<&str>, all: &[Gpu]) -> Result<Choice, PreflightError> {
    let seen = match visible {
        // What the server inherits narrows the choice; what the profile says stands instead of it.
        Some(visible) if !matches!(wish, Wish::Named(_)) => named(visible, all)?,
        _ => all.iter().map(|gpu| gpu.uuid.clone()).collect(),
    };
    Ok(match wish {
        Wish::Named(text) => (named(text, all)?, None),
        Wish::At(places) => (at(places, &seen)?, None),
        Wish::Count(count) if *count > seen.len() => return Err(too_few(*count, seen.len())),
        Wish::Count(count) => (seen, Some(*count)),
        Wish::All | Wish::None => (seen, None),
    })
}

fn wish(profile: &Profile, made: bool) -> Wish {
    if let Some(text) = profile.env.get("CUDA_VISIBLE_DEVICES") {
        return Wish::Named(text.clone());
    }
    let parallel = &profile.parallel;
    let parts = [parallel.tensor, parallel.pipeline, parallel.data];
    let attention = matches!(profile.flags.get("enable-dp-attention"), Some(Flag::Switch(true)));
    // Data parallelism of the attention alone is inside the tensor parallel group.
    let parts = parts.into_iter().take(if attention { 2 } else { 3 }).flatten();
    let count = parts.map(|part| part as usize).product::<usize>() / parallel.nodes.unwrap_or(1).max(1) as usize;
    match profile.engine.kind {
        // A simulated engine touches no device; made ones are there to be leased.
        EngineKind::Sim if !made || parallel.tensor.is_none() => Wish::None,
        EngineKind::Llamacpp if profile.memory.gpu_layers == Some(0) => Wish::None,
        EngineKind::Llamacpp if count > 1 && !names_devices(profile) => Wish::Count(count),
        EngineKind::Llamacpp => devices_of_llamacpp(profile),
        EngineKind::Command => Wish::All,
        // Of an engine that only a folder describes it is not known what it takes when it is not told.
        EngineKind::Other(_) if profile.parallel.is_default() => Wish::All,
        EngineKind::Sglang => match number(profile, "base-gpu-id") {
            Some(first) => {
                let step = number(profile, "gpu-id-step").unwrap_or(1).max(1);
                Wish::At((0..count.max(1)).map(|at| first + at * step).collect())
            }
            None => Wish::Count(count.max(1)),
        },
        EngineKind::Sim | EngineKind::Vllm | EngineKind::Trtllm | EngineKind::Other(_) => Wish::Count(count.max(1)),
    }
}

fn names_devices(profile: &Profile) -> bool {
    ["device", "dev"].iter().any(|flag| profile.flags.contains_key(*flag))
}

/// `--device CUDA0,CUDA2`; without it, it spreads over all that it sees.
fn devices_of_llamacpp(profile: &Profile) -> Wish {
    let text = ["device", "dev"].iter().find_map(|flag| profile.flags.get(*flag)).map(word);
    let Some(text) = text else { return Wish::All };
    if text == "none" {
        return Wish::None;
    }
    let places: Option<Vec<usize>> =
        text.split(',').map(|name| name.trim().strip_prefix("CUDA").and_then(|number| number.parse().ok())).collect();
    places.map_or(Wish::All, Wish::At)
}

fn number(profile: &Profile, flag: &str) -> Option<usize> {
    profile.flags.get(flag).and_then(|value| word(value).parse().ok())
}

fn word(flag: &Flag) -> String {
    match serde_json::to_value(flag) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Array(values)) => {
            values.iter().map(|value| value.as_str().unwrap_or_default()).collect::<Vec<_>>().join(",")
        }
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// As CUDA reads it: numbers, or UUIDs and beginnings of them; the list ends at the first that is not there.
fn named(text: &str, all: &[Gpu]) -> Result<Vec<String>, PreflightError> {
    let mut found = Vec::new();
    for word in text.split(',').map(str::trim) {
        if word.is_empty() || word == "-1" || word == "NoDevFiles" {
            break;
        }
        let gpu = match word.parse::<u32>() {
            Ok(number) => all.iter().find(|gpu| gpu.index == number),
            Err(_) => all.iter().find(|gpu| gpu.uuid.starts_with(word)),
        };
        let Some(gpu) = gpu else {
            return Err(PreflightError::Gpus {
                asked: format!("GPU `{word}`"),
                there: there(all.len()),
                help: "`CUDA_VISIBLE_DEVICES` names GPUs by number or UUID, as `nvidia-smi -L` lists them",
            });
        };
        if !found.contains(&gpu.uuid) {
            found.push(gpu.uuid.clone());
        }
    }
    Ok(found)
}

fn at(places: &[usize], seen: &[String]) -> Result<Vec<String>, PreflightError> {
    let found: Option<Vec<String>> = places.iter().map(|place| seen.get(*place).cloned()).collect();
    found.ok_or_else(|| PreflightError::Gpus {
        asked: format!("GPU {}", places.iter().max().copied().unwrap_or_default()),
        there: there(seen.len()),
        help: "lower the flag that names the first GPU, or `parallel.tensor`",
    })
}

fn too_few(count: usize, seen: usize) -> PreflightError {
    PreflightError::Gpus {
        asked: format!("{count} GPUs"),
        there: there(seen),
        help: "lower `parallel.tensor`, `parallel.pipeline` or `parallel.data`",
    }
}

fn there(count: usize) -> String {
    match count {
        1 => "there is 1".to_owned(),
        count => format!("there are {count}"),
    }
}

/// Numbers mean the fastest first to CUDA, unless it is told otherwise; the lease goes by the order of the bus.
fn order_doubt(wish: &Wish, visible: Option<&str>, profile: &Profile, all: &[Gpu]) -> Option<Warning> {
    let by_number = match wish {
        Wish::Named(text) => text.contains(|c: char| c.is_ascii_digit()) && !text.contains("GPU-"),
        Wish::At(_) => true,
        _ => visible.is_some(),
    };
    let alike = all.windows(2).all(|two| two[0].name == two[1].name);
    let inherited = std::env::var("CUDA_DEVICE_ORDER").ok();
    let order = profile.env.get("CUDA_DEVICE_ORDER").or(inherited.as_ref());
    let text = "the GPUs differ and are named by number: CUDA counts the fastest first, and their leases go by the bus; \
                set `env.CUDA_DEVICE_ORDER: PCI_BUS_ID`, or name them by UUID";
    (by_number && !alike && order.is_none_or(|order| order != "PCI_BUS_ID"))
        .then(|| Warning::new("gpu_order_unclear", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{self, Request};

    struct Four;

    impl Gpus for Four {
        fn list(&self) -> Vec<Gpu> {
            let gpu = |index| Gpu {
                index,
                uuid: format!("GPU-{index}-{}-{:?}", std::process::id(), std::thread::current().id())
                    .replace(['(', ')'], ""),
                name: "A6000".to_owned(),
                memory_mib: None,
            };
            (0..4).map(gpu).collect()
        }

        fn used_mib(&self) -> Option<std::collections::BTreeMap<String, u64>> {
            None
        }

        fn are_made(&self) -> bool {
            true
        }
    }

    /// What a profile with these keys gets, by number.
    fn chosen(kind: &str, set: &[&str], visible: Option<&str>, work: &WorkFolder) -> Result<Vec<u32>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("p.yaml");
        std::fs::write(&file, format!("engine: {kind}\nmodel: m\n")).unwrap();
        let set: Vec<String> = set.iter().map(|word| (*word).to_owned()).collect();
        let request = Request { profile: file.to_str().unwrap(), set: &set, folders: &[], env: &|_| None };
        let profile = profile::load(&request).unwrap().profile;
        let chosen = choose_of(&Four, visible, &profile, work).map_err(|error| error.to_string())?;
        Ok(chosen.all.iter().filter(|gpu| chosen.devices.contains(&gpu.uuid)).map(|gpu| gpu.index).collect())
    }

    fn alone(kind: &str, set: &[&str], visible: Option<&str>) -> Result<Vec<u32>, String> {
        let folder = tempfile::tempdir().unwrap();
        chosen(kind, set, visible, &WorkFolder::at(folder.path().join("orch")).unwrap())
    }

    #[test]
    fn a_profile_gets_what_it_names_or_as_many_as_it_needs() {
        for (kind, set, visible, expected) in [
            ("sglang", &[][..], None, &[0][..]),
            ("sglang", &["parallel.tensor=2"], None, &[0, 1]),
            ("sglang", &["parallel.tensor=2"], Some("3,1"), &[1, 3]),
            ("sglang", &["parallel.tensor=2", "flags.base-gpu-id=2"], None, &[2, 3]),
            ("sglang", &["parallel={tensor: 2, data: 2}", "flags.enable-dp-attention=true"], None, &[0, 1]),
            ("vllm", &["parallel={tensor: 2, data: 2}"], None, &[0, 1, 2, 3]),
            ("vllm", &["env.CUDA_VISIBLE_DEVICES='1,2'"], Some("0"), &[1, 2]),
            ("vllm", &["env.CUDA_VISIBLE_DEVICES=''"], None, &[]),
            ("llamacpp", &[], None, &[0, 1, 2, 3]),
            ("llamacpp", &["memory.gpu_layers=0"], None, &[]),
            ("llamacpp", &["flags.device='CUDA1,CUDA3'"], None, &[1, 3]),
        ] {
            assert_eq!(alone(kind, set, visible), Ok(expected.to_vec()), "{kind} {set:?} {visible:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = alone("vllm", &["parallel.tensor=8"], None).unwrap_err();
        assert_eq!(error, "the profile asks for 8 GPUs, and there are 4");
        let error = alone("vllm", &["env.CUDA_VISIBLE_DEVICES='7'"], None).unwrap_err();
        assert_eq!(error, "the profile asks for GPU `7`, and there are 4");
        let error = alone("sglang", &["flags.base-gpu-id=4"], None).unwrap_err();
        assert_eq!(error, "the profile asks for GPU 4, and there are 4");
    }

    #[test]
    fn the_free_ones_are_taken_first() {
        let folder = tempfile::tempdir().unwrap();
        let place = || WorkFolder::at(folder.path().join("orch")).unwrap();
        let (first, second, third) = (place(), place(), place());
        assert_eq!(chosen("vllm", &["env.CUDA_VISIBLE_DEVICES='0,2'"], None, &first), Ok(vec![0, 2]));
        assert_eq!(chosen("vllm", &["parallel.tensor=2"], None, &second), Ok(vec![1, 3]));
        let error = chosen("vllm", &[], None, &third).unwrap_err();
        assert!(error.starts_with("1 GPUs are needed, and 0 of 4 are free: gpu:GPU-0"), "{error}");
    }
}
