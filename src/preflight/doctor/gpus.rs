//! What stands against a run on the GPUs.

use super::Finding;
use super::facts::{Facts, GpuFact, Nvidia, Wanted, Xid};
use crate::launch::{BootMoment, Lease};

/// Memory in use above the idle level that is still the driver's own breathing.
const SLACK_MIB: u64 = 256;
/// An idle level that was never seen is taken to be at most so much.
const USUAL_IDLE_MIB: u64 = 1024;

pub(super) fn examine(facts: &Facts, findings: &mut Vec<Finding>) {
    match &facts.nvidia {
        Nvidia::Absent => {}
        Nvidia::Hung { query, limit } => findings.push(
            Finding::new(
                "gpu_query_hung",
                format!("`nvidia-smi {query}` did not come back within {} s", limit.as_secs_f64()),
                "a GPU or its driver hangs: an engine that asks the driver would hang as well, and cannot be stopped",
                "look for `Xid` in the kernel's log; mostly only a reset of the GPU or of the machine helps",
            )
            .blocking(true),
        ),
        Nvidia::Failed { said } => findings.push(
            Finding::new(
                "gpu_query_failed",
                format!("`nvidia-smi` failed: {said}"),
                "the driver does not work as it is installed, so no engine can use a GPU",
                "`nvidia-smi` by hand says the same; a driver that was updated needs its module loaded again",
            )
            .blocking(true),
        ),
        Nvidia::Told(gpus) => {
            gpus.iter().for_each(|gpu| of_one(gpu, facts, findings));
            drivers(gpus, findings);
            wanted(gpus, facts, findings);
        }
    }
    xids(facts, findings);
}

/// What to call it.
fn called(gpu: &GpuFact) -> String {
    format!("GPU {} ({}, {})", gpu.index, gpu.name, gpu.uuid)
}

fn of_one(gpu: &GpuFact, facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some(finding) = in_use(gpu, facts) {
        findings.push(finding);
    }
    if let Some((now, most)) = gpu.lanes.filter(|(now, most)| now < most) {
        findings.push(Finding::new(
            "pcie_narrow",
            format!("{} runs PCIe x{now}, and could run x{most}", called(gpu)),
            "weights load slower, and ranks that talk over PCIe are slower than on a machine where it is whole",
            "a card that sits badly, a riser or a slot of fewer lanes; results here are their own series",
        ));
    }
    let slow = gpu.throttle.map(slow_reasons).unwrap_or_default();
    if !slow.is_empty() {
        let hot = gpu.celsius.map(|celsius| format!(" at {celsius} °C")).unwrap_or_default();
        findings.push(
            Finding::new(
                "gpu_slowed",
                format!("{} is slowed down{hot}: {}", called(gpu), slow.join(", ")),
                "what is measured now is the cooling or the power supply, and not the engine",
                "look after the cooling and the power cables; measure when `nvidia-smi -q -d PERFORMANCE` shows no such reason",
            )
            .blocking(true),
        );
    }
    if let Some(errors) = gpu.ecc_volatile.filter(|errors| *errors > 0) {
        findings.push(
            Finding::new(
                "gpu_memory_errors",
                format!("{} had {errors} errors of its memory that could not be mended", called(gpu)),
                "what it computes may be wrong, and the driver ends processes that touch such memory",
                "reset it (`nvidia-smi -r`) so that the rows are replaced; if they come back the card is to be replaced",
            )
            .blocking(true),
        );
    } else if let (Some(now), Some(then)) = (gpu.ecc_ever, facts.last.ecc_ever.get(&gpu.uuid))
        && now > *then
    {
        findings.push(Finding::new(
            "gpu_memory_errors_new",
            format!("{} has had {} errors of its memory since the last look", called(gpu), now - then),
            "they were mended by a reset; more of them mean that the card is failing",
            "keep an eye on it: `nvidia-smi -q -d ECC,ROW_REMAPPER`",
        ));
    }
}

/// Reasons that make a measurement one of something else. A power cap is how these cards are run, and idle clocks are no
/// reason at all.
fn slow_reasons(bits: u64) -> Vec<&'static str> {
    let reasons = [
        (0x08, "the hardware slows it down"),
        (0x20, "the driver, for its temperature"),
        (0x40, "the hardware, for its temperature"),
        (0x80, "the power supply asks for it"),
    ];
    reasons.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, text)| text).collect()
}

/// Whether somebody uses it who is not ours.
fn in_use(gpu: &GpuFact, facts: &Facts) -> Option<Finding> {
    let strangers = strangers(gpu, facts);
    let leased = is_leased(gpu, facts);
    let idle = facts.last.idle_mib.get(&gpu.uuid).map_or(USUAL_IDLE_MIB, |idle| idle + SLACK_MIB);
    let used = gpu.used_mib.filter(|used| *used > idle && !leased);
    if strangers.is_empty() && used.is_none() {
        return None;
    }
    let memory = gpu.used_mib.map(|used| format!(", {used} MiB of its memory in use")).unwrap_or_default();
    let who = match strangers.as_slice() {
        [] => "somebody who cannot be seen from here".to_owned(),
        some => some.join(", "),
    };
    Some(Finding::new(
        "gpu_in_use",
        format!("{} is used by {who}{memory}", called(gpu)),
        "a server beside it has less memory and fewer cycles: its start may fail, and its numbers are not its own",
        "wait for them, or choose others: CUDA_VISIBLE_DEVICES with the UUIDs of those that are free; production that may \
         be stopped makes room by `--displace`",
    ))
}

fn strangers(gpu: &GpuFact, facts: &Facts) -> Vec<String> {
    let on_it = facts.processes.iter().filter(|process| process.uuid == gpu.uuid && !process.ours);
    on_it
        .map(|process| {
            let memory = process.used_mib.map(|mib| format!(" {mib} MiB")).unwrap_or_default();
            format!("pid {} ({}{memory})", process.pid, process.name)
        })
        .collect()
}

fn is_leased(gpu: &GpuFact, facts: &Facts) -> bool {
    facts.leases.iter().any(|held| held.lease == Lease::Gpu(gpu.uuid.clone()))
}

fn is_free(gpu: &GpuFact, facts: &Facts) -> bool {
    !is_leased(gpu, facts) && in_use(gpu, facts).is_none()
}

fn drivers(gpus: &[GpuFact], findings: &mut Vec<Finding>) {
    let alike = gpus.windows(2).all(|two| two[0].name == two[1].name);
    if !alike {
        let names: Vec<String> = gpus.iter().map(|gpu| format!("{} {}", gpu.index, gpu.name)).collect();
        findings.push(Finding::new(
            "gpus_differ",
            format!("the GPUs differ: {}", names.join(", ")),
            "a server over several of them is as slow as the slowest, and CUDA numbers the fastest first",
            "name those that are alike by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        ));
    }
}

/// Whether what a profile wants can be had, and how well it is linked.
fn wanted(gpus: &[GpuFact], facts: &Facts, findings: &mut Vec<Finding>) {
    let free: Vec<&GpuFact> = gpus.iter().filter(|gpu| is_free(gpu, facts)).collect();
    let (of, count) = match &facts.wanted {
        Wanted::None => return,
        Wanted::Unknown if free.is_empty() && !gpus.is_empty() => {
            findings.push(not_enough("none of the GPUs here is free".to_owned()));
            return;
        }
        Wanted::Unknown => return,
        Wanted::Impossible(why) => {
            findings.push(not_enough(why.clone()));
            return;
        }
        Wanted::Some { of, count } => (of, count.unwrap_or(of.len())),
    };
    let can_have: Vec<&GpuFact> = free.into_iter().filter(|gpu| of.contains(&gpu.uuid)).collect();
    if can_have.len() < count {
        findings.push(not_enough(format!("the profile needs {count} GPUs, and {} are free", can_have.len())));
        return;
    }
    let Some(topology) = &facts.topology else { return };
    let numbers: Vec<u32> = can_have.iter().map(|gpu| gpu.index).collect();
    let first = &numbers[..count];
    let (Some(own), Some(closest)) = (topology.worst(first), topology.closest(&numbers, count)) else { return };
    let Some(best) = topology.worst(&closest).filter(|best| *best < own) else { return };
    let uuids: Vec<&str> =
        can_have.iter().filter(|gpu| closest.contains(&gpu.index)).map(|gpu| gpu.uuid.as_str()).collect();
    findings.push(Finding::new(
        "gpus_far_apart",
        format!(
            "GPUs {} would be taken, linked by {own}; {} are free too, linked by {best}",
            list(first),
            list(&closest)
        ),
        "ranks exchange data with every token: over the longer way decoding is slower",
        format!("`--set env.CUDA_VISIBLE_DEVICES={}`", uuids.join(",")),
    ));
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ")
}

fn not_enough(what: String) -> Finding {
    Finding::new(
        "no_gpu_free",
        what,
        "the run would be refused before its launch",
        "`orch ps` shows what of ours runs; `--displace` makes production give way; or lower `parallel`",
    )
    .blocking(true)
}

/// Errors that are the hardware's own. The others a program makes, by what it does.
const HARDWARE: [u32; 10] = [48, 61, 62, 63, 64, 74, 79, 92, 94, 95];

fn xids(facts: &Facts, findings: &mut Vec<Finding>) {
    let boot = BootMoment::now();
    let known = facts.last.log.as_ref().filter(|last| boot.as_ref().is_some_and(|now| now.boot_id == last.boot_id));
    let is_new = |xid: &&Xid| known.is_none_or(|last| xid.at_s.is_none_or(|at| at > last.s));
    let mut told: Vec<(&str, u32)> = Vec::new();
    for xid in facts.xids.iter().flatten().filter(is_new) {
        if told.contains(&(xid.bus.as_str(), xid.code)) {
            continue;
        }
        told.push((&xid.bus, xid.code));
        let gpu = facts.nvidia.gpus().iter().find(|gpu| gpu.bus.to_lowercase().contains(&xid.bus.to_lowercase()));
        let gpu = gpu.map_or_else(|| format!("the GPU at {}", xid.bus), called);
        let hardware = HARDWARE.contains(&xid.code);
        let (why, remedy) = match (xid.code, hardware) {
            (79, _) => (
                "it has fallen off the bus: nothing on it works any more",
                "start the machine again; if it comes back look after power, cooling and seating",
            ),
            (_, true) => (
                "the hardware or its driver failed: what ran then is lost, and it may happen again",
                "reset the GPU (`nvidia-smi -r`) or the machine, and look for the number in NVIDIA's list of Xid errors",
            ),
            _ => (
                "a program made it: mostly a crash of an engine",
                "nothing has to be done to the machine; `orch diagnose` of that run's log tells more",
            ),
        };
        let what = format!("{gpu} reported Xid {}: {}", xid.code, xid.line);
        findings.push(Finding::new("xid", what, why, remedy).blocking(hardware));
    }
}
