//! Processes as the kernel tells of them in `/proc`, and signals that cannot reach the wrong one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process: the pid, and when it started. A pid is given out again once its process is gone; both together never are
/// within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// What the kernel says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) process: Process,
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: u32,
    pub(crate) session: u32,
    pub(crate) threads: u32,
    /// Processor time that its threads have used, those that have ended among them, in clock ticks.
    pub(crate) cpu_ticks: u64,
    /// Pages of memory that it has resident, shared ones among them.
    pub(crate) resident_pages: u64,
}

impl Stat {
    /// A process that has ended and only waits to be reaped counts as gone: it holds nothing any more. One whose first
    /// thread has ended before the others looks the same but for their number, and holds everything still.
    pub(crate) fn lives(&self) -> bool {
        match self.state {
            'X' | 'x' => false,
            'Z' => self.threads > 1,
            _ => true,
        }
    }
}

impl Process {
    /// The process that has this pid now.
    pub fn of(pid: u32) -> Option<Process> {
        stat(pid).map(|stat| stat.process)
    }

    /// Whether it still runs.
    pub fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.process == *self && stat.lives())
    }

    /// Sends a signal to exactly this process; `false` if it is gone.
    ///
    /// The process is pinned before its start is compared, so that between the look and the signal its pid cannot pass
    /// to a stranger.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        let Some(number) = rustix::process::Signal::from_named_raw(signal as i32) else {
            return Err(io::Error::other(format!("{signal} cannot be sent")));
        };
        let pinned = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pinned) => Some(pinned),
            Err(error) if error == rustix::io::Errno::SRCH => return Ok(false),
            // Sandboxes older than the call refuse it. The pid is looked at right before the signal all the same.
            Err(error) if error == rustix::io::Errno::NOSYS || error == rustix::io::Errno::PERM => None,
            Err(error) => return Err(error.into()),
        };
        if !self.lives() {
            return Ok(false);
        }
        let sent = match pinned {
            Some(pinned) => pidfd_send_signal(pinned, number).map_err(io::Error::from),
            None => {
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.as_raw_pid()), signal).map_err(io::Error::from)
            }
        };
        match sent {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What the kernel says of a process; `None` if it is gone.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name stands in parentheses and may itself hold spaces and parentheses: the last one closes it.
fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(bytes);
    let (head, rest) = text.rsplit_once(')')?;
    let (pid, name) = head.split_once('(')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        process: Process { pid: pid.trim().parse().ok()?, start_ticks: fields.get(19)?.parse().ok()? },
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        cpu_ticks: fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?,
        resident_pages: fields.get(21)?.parse().ok()?,
    })
}

/// A living process, for those who only look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub process: Process,
    /// The pid of its parent.
    pub parent: u32,
}

/// All living processes that can be seen, by pid.
pub fn processes() -> io::Result<BTreeMap<u32, Seen>> {
    let living = all()?.into_values().filter(Stat::lives);
    Ok(living.map(|stat| (stat.process.pid, Seen { process: stat.process, parent: stat.parent })).collect())
}

/// This process, its parent, and so on up.
pub fn own_line(all: &BTreeMap<u32, Seen>) -> BTreeSet<u32> {
    let mut line = BTreeSet::new();
    let mut pid = std::process::id();
    while pid != 0 && line.insert(pid) {
        pid = all.get(&pid).map_or(0, |seen| seen.parent);
    }
    line
}

/// When the process of this pid started, by the wall clock as it is set now; `None` if it is gone.
pub fn began(pid: u32) -> Option<jiff::Timestamp> {
    let started = stat(pid)?.process.start_ticks as f64 / ticks_per_s();
    let ago = jiff::SignedDuration::try_from_secs_f64((up_s()? - started).max(0.0)).ok()?;
    jiff::Timestamp::now().checked_sub(ago).ok()
}

/// Clock ticks in a second, the unit of start times.
pub(crate) fn ticks_per_s() -> f64 {
    let told = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    told.map_or(100.0, |ticks| ticks as f64)
}

/// Bytes in a page of memory.
pub(crate) fn page_bytes() -> f64 {
    let told = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    told.map_or(4096.0, |bytes| bytes as f64)
}

/// All pids there are.
pub(crate) fn pids() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

/// All processes there are, by pid.
pub(crate) fn all() -> io::Result<BTreeMap<u32, Stat>> {
    Ok(pids()?.into_iter().filter_map(stat).map(|stat| (stat.process.pid, stat)).collect())
}

/// Whether the process was started with exactly this entry in its environment. What it has in its arguments, or a
/// longer entry that only begins so, does not count. An environment that we may not read is not ours.
pub(crate) fn environment_has(pid: u32, entry: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|found| found == entry.as_bytes()))
}

/// Whether the process has this open, as far as we may look.
pub(crate) fn has_open(pid: u32, target: &Path) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|open| {
        open.filter_map(Result::ok).any(|open| std::fs::read_link(open.path()).is_ok_and(|link| link == target))
    })
}

/// This process, its parent, and so on up: what must never be stopped from here.
pub(crate) fn self_and_ancestors(all: &BTreeMap<u32, Stat>) -> BTreeSet<u32> {
    let mut line = BTreeSet::new();
    let mut pid = std::process::id();
    while pid != 0 && line.insert(pid) {
        pid = all.get(&pid).map_or(0, |stat| stat.parent);
    }
    line
}

/// A moment on the clock of a boot, which runs on in its own pace whatever the wall clock is set to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BootMoment {
    /// Which boot.
    pub boot_id: String,
    /// Seconds since it began.
    pub s: f64,
}

impl BootMoment {
    /// Now; `None` where the kernel does not tell.
    pub fn now() -> Option<Self> {
        Some(BootMoment { boot_id: boot_id().ok()?, s: up_s()? })
    }

    /// Seconds since then; `None` in another boot.
    pub fn elapsed_s(&self) -> Option<f64> {
        let now = BootMoment::now().filter(|now| now.boot_id == self.boot_id)?;
        Some(now.s - self.s)
    }
}

/// Seconds since the machine was started.
fn up_s() -> Option<f64> {
    std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()
}

/// Which boot of the machine this is; pids and start ticks mean nothing in another one.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The pids that have this file, socket or pipe open, as far as we may look.
pub(crate) fn holders_of(target: &Path) -> io::Result<Vec<u32>> {
    Ok(pids()?.into_iter().filter(|pid| has_open(*pid, target)).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_confuse() {
        let line = b"4242 (a) S 1 (b) c) R 7 4242 99 0 -1 4194560 1 0 0 0 30 12 5 6 20 0 1 0 123456 1000 10 184467\n";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat.process, Process { pid: 4242, start_ticks: 123_456 });
        assert_eq!((stat.name.as_str(), stat.state, stat.parent, stat.session), ("a) S 1 (b) c", 'R', 7, 99));
        // Its own time alone, not that of children it has waited for.
        assert_eq!((stat.cpu_ticks, stat.resident_pages), (42, 10));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_as_long_as_the_others() {
        let line = |threads: u32| format!("7 (python3) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 123456 0 0\n");
        assert!(parse_stat(line(3).as_bytes()).unwrap().lives());
        assert!(!parse_stat(line(1).as_bytes()).unwrap().lives());
    }

    #[test]
    fn this_process_is_found_and_lives() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.lives());
        assert!(!Process { start_ticks: own.start_ticks + 1, ..own }.lives());
    }

    #[test]
    fn a_signal_reaches_only_the_process_that_was_meant() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        let reused = Process { start_ticks: process.start_ticks - 1, ..process };
        assert!(!reused.signal(Signal::SIGKILL).unwrap(), "another process that once had this pid");
        assert!(process.lives());
        assert!(process.signal(Signal::SIGKILL).unwrap());
        child.wait().unwrap();
        assert!(!process.signal(Signal::SIGKILL).unwrap(), "it is gone");
    }

    #[test]
    fn an_ended_process_that_nobody_reaped_is_gone() {
        let mut child = Command::new("true").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        for _ in 0..1000 {
            if !process.lives() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!process.lives());
        child.wait().unwrap();
    }

    #[test]
    fn only_a_whole_entry_of_the_environment_counts() {
        let mut child = Command::new("sleep").args(["60"]).env("ORCH_RUN", "r1").spawn().unwrap();
        let mut word = Command::new("sh")
            .args(["-c", "read x", "ORCH_RUN=r1"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The entry is there once the child has become `sleep`; until then it shows what the parent had.
        for _ in 0..1000 {
            if environment_has(child.id(), "ORCH_RUN=r1") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(environment_has(child.id(), "ORCH_RUN=r1"));
        assert!(!environment_has(child.id(), "ORCH_RUN=r"));
        assert!(!environment_has(word.id(), "ORCH_RUN=r1"));
        for child in [&mut child, &mut word] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
