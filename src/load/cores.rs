//! Cores: which ones the load is held to, and what somebody else took of them.

use std::collections::BTreeSet;
use std::fmt;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where there are fewer, whoever was kept from some would miss them.
const LEAST: usize = 8;
/// The load's thread, and the one that keeps its schedule.
const NEEDED: usize = 2;

/// A set of cores. None means that the system chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores(BTreeSet<usize>);

impl Cores {
    /// One core.
    pub fn one(core: usize) -> Self {
        Cores([core].into())
    }

    /// Reads a list as the kernel writes them, such as `0-3,8`.
    pub fn parse(list: &str) -> Option<Self> {
        let mut cores = BTreeSet::new();
        for part in list.trim().split(',').filter(|part| !part.is_empty()) {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (from.parse().ok()?, to.parse::<usize>().ok()?);
            // No machine has so many, and a slip must not fill the memory.
            if to >= 1 << 16 {
                return None;
            }
            cores.extend(from..=to);
        }
        Some(Cores(cores))
    }

    /// Those that this thread may use.
    pub fn own() -> Self {
        let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return Cores::default() };
        Cores((0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect())
    }

    /// Whether nothing is chosen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there are enough that some may be left to the server alone.
    pub fn are_many(&self) -> bool {
        self.0.len() >= LEAST
    }

    /// These and the others.
    pub fn extend(&mut self, others: Cores) {
        self.0.extend(others.0);
    }

    /// Of these, the ones that a server with the cores `server` does not use, on `nodes` of memory that it does not use if
    /// there are any. None where that leaves no choice, or there are few.
    #[must_use]
    pub fn apart_from(&self, server: &Cores, nodes: &[Cores]) -> Cores {
        let free: BTreeSet<usize> = self.0.difference(&server.0).copied().collect();
        if !self.are_many() || server.is_empty() || free.len() < NEEDED {
            return Cores::default();
        }
        let elsewhere = nodes.iter().filter(|node| node.0.is_disjoint(&server.0)).flat_map(|node| &node.0);
        let far: BTreeSet<usize> = elsewhere.filter(|core| free.contains(core)).copied().collect();
        Cores(if far.len() >= NEEDED { far } else { free })
    }

    /// Holds this thread, and those that it starts from now on, to them. Whether that could be done.
    pub(super) fn hold(&self) -> bool {
        let mut set = CpuSet::new();
        let chosen = self.0.iter().try_for_each(|core| set.set(*core));
        !self.is_empty() && chosen.and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).is_ok()
    }
}

/// As the kernel writes it.
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for core in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *core => *last = *core,
                _ => runs.push((*core, *core)),
            }
        }
        let words = runs.iter().map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

/// What the cores of this machine have done so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    all: u64,
    /// When they could not run because the machine below ran somebody else.
    stolen: u64,
}

impl Ticks {
    /// Of these cores, or of all.
    pub(super) fn now(cores: &Cores) -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/stat").ok()?, cores)
    }

    fn read(stat: &str, cores: &Cores) -> Option<Self> {
        let mut sum = None::<Ticks>;
        for line in stat.lines().take_while(|line| line.starts_with("cpu")) {
            let mut words = line.split_ascii_whitespace();
            let core = words.next()?.strip_prefix("cpu")?;
            let is_meant = match core.parse() {
                Ok(core) => cores.0.contains(&core),
                Err(_) => cores.is_empty(),
            };
            if is_meant {
                // user nice system idle iowait irq softirq steal; what follows is in the first two already.
                let values: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
                let ticks = sum.get_or_insert_default();
                ticks.all += values.iter().sum::<u64>();
                ticks.stolen += values.get(7)?;
            }
        }
        sum
    }

    /// The share that was stolen since `before`. `None` where no tick has passed.
    pub(super) fn stolen_since(&self, before: &Ticks) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.stolen.saturating_sub(before.stolen) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(list: &str) -> Cores {
        Cores::parse(list).unwrap()
    }

    #[test]
    fn a_list_is_read_and_written_as_the_kernel_does() {
        for list in ["", "0", "0-3,8", "1,3,5-6"] {
            assert_eq!(cores(list).to_string(), list);
        }
        assert_eq!(cores("3,0-2,4\n").to_string(), "0-4");
        assert!(Cores::parse("0-x").is_none() && Cores::parse("0-99999999999").is_none());
        assert!(!Cores::own().is_empty());
    }

    #[test]
    fn the_load_is_kept_from_the_servers_cores_and_its_memory_where_there_is_a_choice() {
        let nodes = [cores("0-15"), cores("16-31")];
        let apart = |own: &str, server: &str| cores(own).apart_from(&cores(server), &nodes).to_string();
        assert_eq!(apart("0-31", "0-7"), "16-31");
        assert_eq!(apart("0-15", "0-7"), "8-15");
        assert_eq!(apart("0-31", "0-7,16-23"), "8-15,24-31");
        for (own, server) in [("0-31", "0-31"), ("0-31", "0-30"), ("0-31", ""), ("0-6", "0"), ("0-15", "0-31")] {
            assert_eq!(apart(own, server), "", "{own} beside {server}");
        }
    }

    #[test]
    fn what_was_stolen_is_a_share_of_the_cores_that_are_meant() {
        let stat = "cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 5 0 5 40 0 0 0 0 5 0\ncpu1 5 0 5 30 0 0 0 10 0 0\nintr 1 2 3\n";
        let later = "cpu  60 0 10 80 0 0 0 50 5 0\ncpu0 55 0 5 40 0 0 0 0 5 0\ncpu1 5 0 5 40 0 0 0 50 0 0\n";
        let share = |list: &str| {
            let of = |text| Ticks::read(text, &cores(list)).unwrap();
            of(later).stolen_since(&of(stat)).unwrap()
        };
        assert_eq!((share(""), share("0"), share("1"), share("0-1")), (0.4, 0.0, 0.8, 0.4));
        let now = Ticks::read(stat, &cores("")).unwrap();
        assert_eq!((now.stolen_since(&now), Ticks::read(stat, &cores("7"))), (None, None));
    }
}
