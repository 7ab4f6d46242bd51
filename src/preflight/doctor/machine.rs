//! What stands against a run on the machine itself.

use super::Finding;
use super::facts::{Disk, Facts};
use crate::units;

const GIB: u64 = 1 << 30;

pub(super) fn examine(facts: &Facts, findings: &mut Vec<Finding>) {
    skew(facts, findings);
    facts.disks.iter().for_each(|disk| findings.extend(room(disk)));
    memory(facts, findings);
    limits(facts, findings);
    environment(facts, findings);
}

/// A clock that differs by more than so much is wrong, and not late.
const SKEW_MS: i64 = 2_000;

fn skew(facts: &Facts, findings: &mut Vec<Finding>) {
    // The answer may have been made at any moment of the time that the asking took.
    let Some(skew) = facts.skew.filter(|skew| skew.ahead_ms.abs() > SKEW_MS + skew.rtt_ms / 2) else { return };
    let side = if skew.ahead_ms > 0 { "ahead of" } else { "behind" };
    let seconds = skew.ahead_ms.abs() as f64 / 1000.0;
    findings.push(Finding::new(
        "clock_skew",
        format!("its clock is {seconds:.1} s {side} the one here"),
        "times of its records do not fit those of others, and certificates may seem to be of another time",
        "have the clock set by the network there: `timedatectl set-ntp true`",
    ));
}

/// What must be free for what is written there: below the first, no run should begin.
fn room(disk: &Disk) -> Option<Finding> {
    let (least, comfort, why) = match disk.role {
        "weights" => (GIB, 20 * GIB, "a model that has to be fetched does not fit, and half of it helps nobody"),
        "shm" => return None,
        _ => (
            GIB / 4,
            2 * GIB,
            "journals and logs are written there while something is measured: a full disk ends a run",
        ),
    };
    (disk.free_bytes < comfort).then(|| {
        let what = format!(
            "{} has {} free of {}, where {} lie",
            disk.path.display(),
            units::bytes_text(disk.free_bytes),
            units::bytes_text(disk.total_bytes),
            disk.role
        );
        let remedy = match disk.role {
            "weights" => "make room, or set HF_HOME to a larger disk",
            "results" => "make room, or name another folder with `--results`",
            _ => "make room, or set `work:` of the host in hosts.yaml",
        };
        Finding::new("disk_full", what, why, remedy).blocking(disk.free_bytes < least)
    })
}

fn memory(facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some((total, available)) = facts.memory_bytes
        && available < (4 * GIB).min(total / 8)
    {
        findings.push(Finding::new(
            "memory_short",
            format!("{} of {} memory can be had", units::bytes_text(available), units::bytes_text(total)),
            "weights pass through memory on their way; the kernel ends what asks for more than there is",
            "see who uses it: `ps aux --sort=-rss | head`",
        ));
    }
    let Some(shm) = &facts.shm else { return };
    let ranks = facts.nvidia.gpus().len();
    if ranks > 1 && shm.total_bytes < GIB {
        findings.push(Finding::new(
            "shm_small",
            format!("/dev/shm holds {}", units::bytes_text(shm.total_bytes)),
            "ranks of one server exchange data through it; where it is too small they end with a bus error",
            "a container needs `--shm-size=16g` or `--ipc=host`; else `mount -o remount,size=16g /dev/shm`",
        ));
    }
}

fn limits(facts: &Facts, findings: &mut Vec<Finding>) {
    let limits = facts.limits;
    if let Some(files) = limits.files.filter(|files| *files < 4096) {
        let hard = limits.files_hard.map_or_else(|| "without limit".to_owned(), |hard| format!("to {hard}"));
        findings.push(Finding::new(
            "few_files",
            format!("a process may open {files} files (may be raised {hard})"),
            "each connection and each file of weights is one: under load connections are refused",
            "`ulimit -n 65536` before orch, or LimitNOFILE= of the service",
        ));
    }
    if let Some(locked) = limits.locked_bytes.filter(|bytes| *bytes < GIB / 16)
        && facts.nvidia.gpus().len() > 1
    {
        findings.push(Finding::new(
            "little_locked_memory",
            format!("a process may lock {} of memory", units::bytes_text(locked)),
            "transfers between ranks and over InfiniBand need locked memory, and fall back to something slower or fail",
            "`ulimit -l unlimited` before orch, or LimitMEMLOCK=infinity of the service",
        ));
    }
}

/// What a login has that this process lacks is what an engine that was tried by hand had.
fn environment(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(login) = &facts.login else { return };
    let mut differ: Vec<String> = Vec::new();
    for (name, value) in login {
        let own = facts.own.get(name).map(String::as_str);
        if name == "PATH" {
            // The order is left alone: what is not looked through at all is what is missed.
            let has = |folder: &&str| own.unwrap_or_default().split(':').any(|known| known == *folder);
            let missed: Vec<&str> = value.split(':').filter(|folder| !folder.is_empty() && !has(folder)).collect();
            if !missed.is_empty() {
                differ.push(format!("the PATH of a login has {}, which is not looked through here", missed.join(":")));
            }
        } else if own != Some(value) {
            let own = own.map_or_else(|| "not set".to_owned(), |own| format!("`{own}`"));
            differ.push(format!("{name} is `{value}` in a login, and {own} here"));
        }
    }
    if !differ.is_empty() {
        findings.push(Finding::new(
            "environment_differs",
            differ.join("; "),
            "an engine that works from a login may find other programs, libraries or models when orch starts it",
            "set what matters in the profile's `env`, or in `activate:` of the host in hosts.yaml",
        ));
    }
}
