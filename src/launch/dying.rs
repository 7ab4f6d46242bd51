//! Processes that were killed and are not gone yet: a signal is sent in an instant, and what it ends takes its time. The
//! kernel frees the memory of a large server before its files, and a busy machine lets nothing run for a while.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::{Lease, WorkFolder, hostwide, process, servers};

/// The kernel's flag of a thread that is ending.
const EXITING: u64 = 0x4;
/// SIGKILL in the kernel's sets of pending signals.
const KILLED: u64 = 1 << (nix::libc::SIGKILL - 1);

/// Who has a lease that somebody else was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    /// Somebody who lives, or may.
    By,
    /// Only processes that are dying.
    Dying,
    /// Nobody who can be seen any more.
    Unseen,
}

/// Whether a lease that was refused is about to be free, so that trying again is worth it. The dying are waited for as
/// long as `dying`, and what nobody seems to have as long as `unseen`.
pub(super) fn goes(work: &WorkFolder, lease: &Lease, waited: Duration, dying: Duration, unseen: Duration) -> bool {
    match had(work, lease) {
        Had::By => false,
        Had::Dying => waited < dying,
        Had::Unseen => waited < unseen,
    }
}

fn had(work: &WorkFolder, lease: &Lease) -> Had {
    let mut pids: BTreeSet<u32> = BTreeSet::new();
    // As `/proc` names it.
    let path = lease.path(work).canonicalize().unwrap_or_else(|_| lease.path(work));
    pids.extend(process::holders_of(&path).unwrap_or_default());
    for socket in hostwide::sockets(lease, work.measure_scope()) {
        pids.extend(process::holders_of(Path::new(&format!("socket:[{socket}]"))).unwrap_or_default());
    }
    match servers::holding(work, lease) {
        Some(marked) => pids.extend(marked),
        None => return Had::By,
    }
    match (pids.is_empty(), pids.iter().all(|pid| is_dying(*pid))) {
        (true, _) => Had::Unseen,
        (false, true) => Had::Dying,
        (false, false) => Had::By,
    }
}

/// Whether all threads of a process are ending or were killed; also when it is gone by now.
fn is_dying(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    tasks.flatten().all(|task| {
        let text = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (stat, status) = (text("stat"), text("status"));
        stat.is_empty() || is_ending(&stat) || was_killed(&status)
    })
}

fn is_ending(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let gone = fields.first().is_some_and(|state| matches!(*state, "Z" | "X" | "x"));
    gone || fields.get(6).and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0)
}

fn was_killed(status: &str) -> bool {
    let sets = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & KILLED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_of_an_end_is_read() {
        let stat = |state: &str, flags: u64| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0 0 0\n");
        assert!(is_ending(&stat("R", 0x40_0004)) && is_ending(&stat("Z", 0)));
        assert!(!is_ending(&stat("S", 0x40_0000)));
        assert!(was_killed("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"));
        assert!(!was_killed("SigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\n"));
    }
}
