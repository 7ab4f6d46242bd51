//! Signs of life that cannot be faked, and what the silence between them looks like. Pure: every look at the machine is a
//! value with its moment.
//!
//! A thread that waits for another rank keeps a processor and a GPU busy for ever, so that neither is a sign. Heartbeats
//! grow the log and are none either.

pub mod look;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use regex::Regex;

use crate::clock::Nanos;
use crate::event::Sign;
use crate::launch::gpu::Reading;
use crate::units::bytes_text;

/// A storage that gives less than this between two looks is no load of weights.
const LEAST_READ: u64 = 64 << 10;
/// Reads from memory (a page cache, a pipe) count from here on: waiting threads read eight bytes at a time.
const LEAST_READ_IN_MEMORY_PER_S: f64 = 16.0 * 1024.0 * 1024.0;
/// A tree that writes this much in a second, beside its log, stores what it downloads.
const LEAST_DOWNLOAD_PER_S: f64 = 1024.0 * 1024.0;
/// Devices that are this busy,
const BUSY_RATIO: f64 = 0.95;
/// while they draw no more than this share of what they may,
const IDLE_POWER_RATIO: f64 = 0.4;
/// with memory that has not changed for this long, run a kernel that waits.
const MEMORY_CONSTANT: Duration = Duration::from_secs(30);
/// A worker that was there for less was a step of a start, such as the parent that an orphan loses.
const SETTLED: Duration = Duration::from_secs(2);

/// One look at a server from outside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Its living processes; `None` where nobody can look.
    pub processes: Option<Vec<Seen>>,
    /// Its devices; `None` where nothing tells, or nobody asked this time.
    pub devices: Option<Vec<Reading>>,
    /// Caches of compiled kernels; `None` where nobody looked this time.
    pub jit_cache: Option<JitCache>,
    /// How large its log is.
    pub log_bytes: u64,
}

/// A living process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its pid,
    pub pid: u32,
    /// and when it started: together, which process it is.
    pub start_ticks: u64,
    /// The name of its program, as the kernel keeps it.
    pub name: String,
    /// The title that it gave itself, or the beginning of its command line.
    pub title: String,
    /// Bytes that it and those whose end it has seen made a storage read.
    pub read_bytes: Option<u64>,
    /// Bytes that it read from anything.
    pub read_anywhere_bytes: Option<u64>,
    /// Bytes that it wrote to anything.
    pub written_bytes: Option<u64>,
}

/// What is in the caches of compiled kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitCache {
    /// Files and folders,
    pub entries: u64,
    /// and when the newest of them changed, in seconds since 1970.
    pub newest_s: i64,
}

/// A process that does the work of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its pid.
    pub pid: u32,
    /// Its title.
    pub title: String,
    /// Its rank, if its title tells.
    pub rank: Option<u32>,
}

impl std::fmt::Display for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {})", self.title, self.pid)
    }
}

/// What of a server's processes was seen so far.
#[derive(Clone, Debug, Default)]
pub struct Life {
    worker: Option<Regex>,
    began: Nanos,
    last: BTreeMap<Sign, Nanos>,
    io: BTreeMap<(u32, u64), Counts>,
    looked_at: Option<Nanos>,
    log_bytes: u64,
    /// What a storage gave to all of them; `None` until somebody could look.
    read_bytes: Option<u64>,
    downloading: Duration,
    devices: BTreeMap<String, Reading>,
    memory_changed_at: Option<Nanos>,
    jit_cache: Option<JitCache>,
    compiler: Option<String>,
    compiled: bool,
    workers: BTreeMap<(u32, u64), (Worker, Nanos)>,
    /// The ranks whose workers were there at any time.
    ranks: BTreeSet<u32>,
    dead: Vec<Worker>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    read: u64,
    anywhere: u64,
    written: u64,
}

impl Life {
    /// Of a server that was launched at a moment. `worker` finds those of its processes that do the work of a rank.
    pub fn new(launched: Nanos, worker: Option<Regex>) -> Self {
        Life { worker, began: launched, ..Life::default() }
    }

    /// Something was seen at a moment.
    pub fn sign(&mut self, sign: Sign, now: Nanos) {
        self.last.insert(sign, now);
    }

    /// Takes in a look; gives the signs that are in it, each with words for people.
    pub fn look(&mut self, look: &Look, now: Nanos) -> Vec<(Sign, String)> {
        let span = self.looked_at.map(|at| seconds(now.saturating_sub(at)).max(0.001));
        let mut signs = Vec::new();
        if let Some(processes) = &look.processes {
            let log_grew = look.log_bytes.saturating_sub(self.log_bytes);
            signs.extend(self.reads(processes, span, log_grew));
            signs.extend(self.compilers(processes));
            self.workers(processes, now);
            self.looked_at = Some(now);
            self.log_bytes = look.log_bytes;
        }
        if let Some(devices) = &look.devices {
            signs.extend(self.devices(devices, now));
        }
        if let Some(cache) = look.jit_cache {
            let grew = self.jit_cache.is_some_and(|before| {
                cache.entries > before.entries || (cache.entries > 0 && cache.newest_s > before.newest_s)
            });
            self.jit_cache = Some(cache);
            if grew {
                self.compiled = true;
                signs.push((Sign::JitCache, "a cache of compiled kernels grew".to_owned()));
            }
        }
        for (sign, _) in &signs {
            self.sign(*sign, now);
        }
        signs
    }

    fn reads(&mut self, processes: &[Seen], span: Option<f64>, log_grew: u64) -> Option<(Sign, String)> {
        let mut more = Counts::default();
        let mut known = BTreeMap::new();
        for seen in processes {
            let (Some(read), Some(anywhere)) = (seen.read_bytes, seen.read_anywhere_bytes) else { continue };
            let now = Counts { read, anywhere, written: seen.written_bytes.unwrap_or(0) };
            let before = self.io.get(&(seen.pid, seen.start_ticks)).copied().unwrap_or_default();
            more.read += now.read.saturating_sub(before.read);
            more.anywhere += now.anywhere.saturating_sub(before.anywhere);
            more.written += now.written.saturating_sub(before.written);
            known.insert((seen.pid, seen.start_ticks), now);
        }
        if known.is_empty() {
            return None;
        }
        self.io = known;
        *self.read_bytes.get_or_insert(0) += more.read;
        // The first look has no span: what was read before it belongs to no time.
        let span = span?;
        let written = more.written.saturating_sub(log_grew) as f64;
        if written / span >= LEAST_DOWNLOAD_PER_S {
            self.downloading += Duration::from_secs_f64(span);
        }
        if more.read >= LEAST_READ {
            return Some((Sign::Read, format!("{} read from a storage", bytes_text(more.read))));
        }
        (more.anywhere as f64 / span >= LEAST_READ_IN_MEMORY_PER_S)
            .then(|| (Sign::Read, format!("{} read from memory", bytes_text(more.anywhere))))
    }

    fn compilers(&mut self, processes: &[Seen]) -> Option<(Sign, String)> {
        self.compiler = processes.iter().map(|seen| seen.name.as_str()).find(|name| is_compiler(name)).map(Into::into);
        let name = self.compiler.as_ref()?;
        self.compiled = true;
        Some((Sign::Compiler, format!("{name} runs")))
    }

    fn workers(&mut self, processes: &[Seen], now: Nanos) {
        let Some(pattern) = &self.worker else { return };
        let mut living = BTreeMap::new();
        for seen in processes {
            let Some(found) = pattern.captures(&seen.title) else { continue };
            let rank = found.get(1).and_then(|rank| rank.as_str().parse().ok());
            self.ranks.extend(rank);
            let worker = Worker { pid: seen.pid, title: seen.title.clone(), rank };
            let key = (seen.pid, seen.start_ticks);
            let since = self.workers.get(&key).map_or(now, |(_, since)| *since);
            living.insert(key, (worker, since));
        }
        let gone = self
            .workers
            .iter()
            .filter(|(key, (_, since))| !living.contains_key(*key) && now.saturating_sub(*since) >= nanos(SETTLED));
        self.dead.extend(gone.map(|(_, (worker, _))| worker.clone()));
        self.workers = living;
    }

    fn devices(&mut self, readings: &[Reading], now: Nanos) -> Option<(Sign, String)> {
        let used = |reading: &Reading| reading.used_mib;
        let changed = readings.iter().find_map(|reading| {
            let before = self.devices.get(&reading.uuid).and_then(used)?;
            let now = reading.used_mib.filter(|now| *now != before)?;
            Some(now as i64 - before as i64)
        });
        if changed.is_some() || self.memory_changed_at.is_none() {
            self.memory_changed_at = Some(now);
        }
        self.devices = readings.iter().map(|reading| (reading.uuid.clone(), reading.clone())).collect();
        changed.map(|mib| (Sign::DeviceMemory, format!("device memory {mib:+} MiB")))
    }

    /// When there was a sign last; the launch, before the first.
    pub fn last_at(&self) -> Nanos {
        self.last.values().copied().max().unwrap_or(self.began)
    }

    /// When its log last said something.
    pub fn log_at(&self) -> Nanos {
        [Sign::Line, Sign::Bar, Sign::Graph]
            .iter()
            .filter_map(|sign| self.last.get(sign))
            .copied()
            .max()
            .unwrap_or(self.began)
    }

    /// What all of its processes made a storage read; `None` where nobody could look.
    pub fn read_bytes(&self) -> Option<u64> {
        self.read_bytes
    }

    /// Whether something was compiled; `None` where nobody could look.
    pub fn compiled(&self) -> Option<bool> {
        (self.compiled || self.looked_at.is_some()).then_some(self.compiled)
    }

    /// How long it stored what it downloaded.
    pub fn downloading(&self) -> Duration {
        self.downloading
    }

    /// Workers that live.
    pub fn living(&self) -> u32 {
        u32::try_from(self.workers.len()).unwrap_or(u32::MAX)
    }

    /// The ranks whose workers were there at any time.
    pub fn ranks(&self) -> &BTreeSet<u32> {
        &self.ranks
    }

    /// Workers that were there and are gone.
    pub fn dead(&self) -> &[Worker] {
        &self.dead
    }

    /// What is known of a silence at a moment, in words, the most telling first.
    pub fn evidence(&self, now: Nanos) -> Vec<String> {
        let since = |at: Nanos| span_text(Duration::from_nanos(now.saturating_sub(at)));
        let mut words: Vec<String> = self.dead.iter().map(|worker| format!("{worker} is gone")).collect();
        words.push(format!("log silent {}", since(self.log_at())));
        if !self.workers.is_empty() {
            words.push(format!("{}/{} alive", self.workers.len(), self.workers.len() + self.dead.len()));
        }
        if self.looked_at.is_some() {
            words.push(match &self.compiler {
                Some(name) => format!("{name} runs"),
                None => "no compiler".to_owned(),
            });
        }
        words.extend(self.device_words(now));
        words
    }

    fn device_words(&self, now: Nanos) -> Vec<String> {
        if self.devices.is_empty() {
            return Vec::new();
        }
        let least = |of: fn(&Reading) -> Option<f64>| {
            let values: Option<Vec<f64>> = self.devices.values().map(of).collect();
            values.and_then(|values| values.into_iter().reduce(f64::min))
        };
        let most = |of: fn(&Reading) -> Option<f64>| {
            let values: Option<Vec<f64>> = self.devices.values().map(of).collect();
            values.and_then(|values| values.into_iter().reduce(f64::max))
        };
        let mut words = String::from("GPUs");
        if let Some(busy) = least(|reading| reading.busy_ratio) {
            words.push_str(&format!(" {:.0} % busy", busy * 100.0));
        }
        if let Some(power) = most(|reading| reading.power_w) {
            let limit = most(|reading| reading.power_limit_w).map(|limit| format!(" (load: {limit:.0} W)"));
            words.push_str(&format!(" at {power:.0} W{}", limit.unwrap_or_default()));
        }
        let constant = self.memory_changed_at.map(|at| now.saturating_sub(at)).unwrap_or_default();
        if constant >= nanos(MEMORY_CONSTANT) {
            words.push_str(", memory constant");
        }
        let mut all = vec![words];
        if self.is_hang(constant) {
            all.push("looks like ranks waiting for each other (collective hang)".to_owned());
        }
        all
    }

    /// The kind of failure that a silence looks like, in the log vocabulary, where what is seen says it.
    pub fn looks_like(&self, now: Nanos) -> Option<&'static str> {
        let constant = self.memory_changed_at.map(|at| now.saturating_sub(at)).unwrap_or_default();
        match (self.dead.is_empty(), !self.devices.is_empty() && self.is_hang(constant)) {
            (false, _) => Some("rank_missing"),
            (true, true) => Some("hang_collective"),
            (true, false) => None,
        }
    }

    /// Full use at idle power with constant memory: a kernel that waits.
    fn is_hang(&self, constant: Nanos) -> bool {
        let waits = |reading: &Reading| {
            let (Some(busy), Some(power), Some(limit)) = (reading.busy_ratio, reading.power_w, reading.power_limit_w)
            else {
                return false;
            };
            busy >= BUSY_RATIO && power <= IDLE_POWER_RATIO * limit
        };
        constant >= nanos(MEMORY_CONSTANT) && self.devices.values().all(waits)
    }
}

/// Whether a program of this name compiles. The kernel keeps fifteen letters of a name.
fn is_compiler(name: &str) -> bool {
    const NAMES: [&str; 20] = [
        "nvcc",
        "cicc",
        "ptxas",
        "fatbinary",
        "cudafe++",
        "nvlink",
        "ninja",
        "cc1",
        "cc1plus",
        "collect2",
        "hipcc",
        "gcc",
        "g++",
        "c++",
        "clang",
        "clang++",
        "ld",
        "ld.lld",
        "lld",
        "cmake",
    ];
    // `gcc-13`, `clang-18`, `x86_64-linux-gn`.
    let versioned = ["gcc-", "g++-", "clang-", "clang++-"];
    NAMES.contains(&name) || versioned.iter().any(|start| name.starts_with(start)) || name.ends_with("-linux-gn")
}

/// A span of silence, as people say it: `41 s`, `6 min`, `2 h 5 min`.
pub fn span_text(span: Duration) -> String {
    match span.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests;
