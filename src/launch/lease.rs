//! Leases: what only one server of a host may have at a time.
//!
//! A lease is a file that is locked with `flock`. The lock belongs to the open file, and the server inherits it: so the
//! kernel keeps a lease for exactly as long as anything of ours lives, whatever is killed. The file's content only says
//! who has it. Lease files are never deleted, since a lock is on a file and not on its name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::hostwide::{self, Name};
use super::{LaunchError, WorkFolder, dying, port, servers};

/// The ports that `port: auto` chooses from.
pub const AUTO_PORTS: std::ops::RangeInclusive<u16> = 30000..=30999;

/// Something that only one server of a host may have at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lease {
    /// A TCP port: `port:30000`.
    Port(u16),
    /// A GPU by its UUID: `gpu:GPU-…`.
    Gpu(String),
    /// The right to measure on this host undisturbed: `measure`.
    Measure,
}

impl Lease {
    fn file_name(&self) -> String {
        self.to_string().replacen(':', "-", 1)
    }

    /// Its file.
    pub(super) fn path(&self, work: &WorkFolder) -> PathBuf {
        work.leases().join(self.file_name())
    }
}

impl std::fmt::Display for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lease::Port(port) => write!(f, "port:{port}"),
            Lease::Gpu(uuid) => write!(f, "gpu:{uuid}"),
            Lease::Measure => f.write_str("measure"),
        }
    }
}

impl FromStr for Lease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "measure" => Ok(Lease::Measure),
            Some(("port", port)) => port.parse().map(Lease::Port).map_err(|_| format!("`{port}` is not a port")),
            // It becomes a file's name.
            Some(("gpu", uuid)) if !uuid.is_empty() && uuid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
                Ok(Lease::Gpu(uuid.to_owned()))
            }
            _ => Err(format!("`{text}` is not a lease")),
        }
    }
}

impl Serialize for Lease {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a lease's file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    holder: String,
    since: Timestamp,
}

/// A lease in hand. Given back when dropped, unless a server has inherited it.
#[derive(Debug)]
pub struct Held {
    lease: Lease,
    file: File,
    /// The name that the whole machine knows it by; `None` on a machine that has no such names.
    name: Option<Name>,
    /// Where the right to measure is set apart.
    scope: Option<String>,
}

impl Held {
    /// What it is for.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What it is for, in a word; one that was set apart says so.
    pub fn shown(&self) -> String {
        match self.scope.as_deref().filter(|_| self.lease == Lease::Measure) {
            Some(scope) => format!("{}@{scope}", self.lease),
            None => self.lease.to_string(),
        }
    }

    /// What is open for it once more: the lease is given back when the last copy is closed.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let mut copies = vec![OwnedFd::from(self.file.try_clone()?)];
        if let Some(name) = &self.name {
            copies.extend(name.copies()?);
        }
        Ok(copies)
    }

    /// Writes down who has it.
    pub(crate) fn note(&mut self, holder: &str) -> io::Result<()> {
        let note = Note { holder: holder.to_owned(), since: Timestamp::now() };
        if let Some(name) = &mut self.name {
            name.say(&self.lease, self.scope.as_deref(), holder, note.since);
        }
        self.file.set_len(0)?;
        self.file.rewind()?;
        serde_json::to_writer(&self.file, &note)?;
        self.file.write_all(b"\n")
    }
}

impl WorkFolder {
    /// Takes a lease for this process, to be handed to a server by `launch::start`. Taking one twice is taking it once.
    pub fn reserve(&self, lease: &Lease, holder: &str) -> Result<(), LaunchError> {
        patiently(self, std::slice::from_ref(lease), || self.reserve_now(lease, holder))
    }

    /// The same, without waiting for one who has it and was killed.
    fn reserve_now(&self, lease: &Lease, holder: &str) -> Result<(), LaunchError> {
        let mut held = self.held();
        if !held.contains_key(lease) {
            held.insert(lease.clone(), take(self, lease, holder)?);
        }
        Ok(())
    }

    /// Gives back a lease that was reserved and not handed on.
    pub fn unreserve(&self, lease: &Lease) {
        self.held().remove(lease);
    }

    /// Takes the host's `measure` lease for as long as the value lives: of all who measure on this machine, whichever
    /// user and work folder, one does.
    pub fn measure(&self, holder: &str) -> Result<Held, LaunchError> {
        patiently(self, &[Lease::Measure], || take(self, &Lease::Measure, holder))
    }
}

/// How long one who was killed may take to be gone: the kernel frees its memory first, and may be busy.
const DYING: Duration = Duration::from_secs(10);
/// How long a lease may seem to be nobody's: who had it is past the point where it can be seen.
const UNSEEN: Duration = Duration::from_millis(500);

/// Tries once more as long as one of these leases is only kept by processes that were killed: the signal is sent in an
/// instant, and what it ends takes its time.
fn patiently<T>(
    work: &WorkFolder,
    leases: &[Lease],
    attempt: impl Fn() -> Result<T, LaunchError>,
) -> Result<T, LaunchError> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(LaunchError::LeaseTaken { .. } | LaunchError::NoFreeGpus { .. })
                if leases.iter().any(|lease| dying::goes(work, lease, began.elapsed(), DYING, UNSEEN)) =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            ended => return ended,
        }
    }
}

/// Reserves the first port of [`AUTO_PORTS`] that is free and without a lease. Two callers never get the same one: the
/// lease is taken before the port is looked at, and kept.
pub fn choose_port(work: &WorkFolder) -> Result<u16, LaunchError> {
    let holder = format!("a run that is being prepared (pid {})", std::process::id());
    for number in AUTO_PORTS {
        let lease = Lease::Port(number);
        if work.held().contains_key(&lease) {
            continue;
        }
        // The next one will do: one that is kept by the dying is not waited for.
        match work.reserve_now(&lease, &holder) {
            Ok(()) if port::is_free(number) => return Ok(number),
            Ok(()) => work.unreserve(&lease),
            Err(LaunchError::LeaseTaken { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(LaunchError::NoFreePort)
}

/// Reserves a port that was asked for, if nobody listens on it and nothing of ours has it.
pub fn reserve_port(work: &WorkFolder, number: u16) -> Result<(), LaunchError> {
    let lease = Lease::Port(number);
    work.reserve(&lease, &format!("a run that is being prepared (pid {})", std::process::id()))?;
    port::check_free(number).inspect_err(|_| work.unreserve(&lease))
}

/// Reserves GPUs, all or none. With `count`, so many of them, the first that are free; without, each of them. Nobody else
/// of this work folder chooses at the same time, so that two who want the same never end up with half of it each; across
/// work folders they are taken in one order, which has the same end.
pub fn reserve_gpus(
    work: &WorkFolder,
    wanted: &[String],
    count: Option<usize>,
    holder: &str,
) -> Result<Vec<String>, LaunchError> {
    let all: Vec<Lease> = wanted.iter().cloned().map(Lease::Gpu).collect();
    patiently(work, &all, || reserve_gpus_now(work, wanted, count, holder))
}

fn reserve_gpus_now(
    work: &WorkFolder,
    wanted: &[String],
    count: Option<usize>,
    holder: &str,
) -> Result<Vec<String>, LaunchError> {
    let _choosing = choosing(work)?;
    let mut sorted: Vec<Lease> = wanted.iter().cloned().map(Lease::Gpu).collect();
    if count.is_none() {
        sorted.sort();
    }
    let (mut got, mut taken) = (Vec::new(), Vec::new());
    let needed = count.unwrap_or(sorted.len());
    let give_back = |got: &[Lease]| got.iter().for_each(|lease| work.unreserve(lease));
    for lease in sorted {
        if got.len() == needed {
            break;
        }
        match work.reserve_now(&lease, holder) {
            Ok(()) => got.push(lease),
            Err(error @ LaunchError::LeaseTaken { .. }) if count.is_some() => taken.push(error.to_string()),
            Err(error) => {
                give_back(&got);
                return Err(error);
            }
        }
    }
    if got.len() < needed {
        give_back(&got);
        return Err(LaunchError::NoFreeGpus { needed, there: wanted.len(), taken });
    }
    Ok(wanted.iter().filter(|uuid| got.contains(&Lease::Gpu((*uuid).clone()))).cloned().collect())
}

/// Waits for whoever chooses GPUs just now: it takes a moment.
fn choosing(work: &WorkFolder) -> Result<File, LaunchError> {
    let path = work.leases().join("choosing");
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(LaunchError::io("open", &path))?;
    file.lock().map_err(LaunchError::io("lock", &path))?;
    Ok(file)
}

fn take(work: &WorkFolder, lease: &Lease, holder: &str) -> Result<Held, LaunchError> {
    let path = lease.path(work);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(LaunchError::io("open", &path))?;
    let mut tries = 0;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            // `orch ps` looks whether a lock is held by taking it for a moment; that must not read as taken.
            Err(TryLockError::WouldBlock) if tries < 5 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => return Err(taken(lease, read_note(&path))),
            Err(TryLockError::Error(source)) => return Err(LaunchError::io("lock", &path)(source)),
        }
    }
    // The lock is gone when no process has the file open any more. A worker may have closed what it inherited and
    // outlived everything else; it still has the device.
    if let Some(server) = servers::living_with(work, lease)? {
        return Err(LaunchError::LeaseTaken {
            lease: lease.clone(),
            holder: format!("what is left of {}", server.id),
            since: Some(server.since),
        });
    }
    let scope = work.measure_scope();
    let name = match Name::take(lease, scope) {
        Ok(name) => name,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let (holder, since) = hostwide::holder(lease, scope);
            return Err(LaunchError::LeaseTaken { lease: lease.clone(), holder, since });
        }
        Err(source) => return Err(LaunchError::io("take", lease.to_string())(source)),
    };
    let mut held = Held { lease: lease.clone(), file, name, scope: scope.map(str::to_owned) };
    held.note(holder).map_err(LaunchError::io("write", &path))?;
    Ok(held)
}

fn taken(lease: &Lease, note: Option<Note>) -> LaunchError {
    let (holder, since) = match note {
        Some(note) => (note.holder, Some(note.since)),
        None => ("another orch that did not say who it is".to_owned(), None),
    };
    LaunchError::LeaseTaken { lease: lease.clone(), holder, since }
}

/// Who has it. The one who just took it may not have written yet.
fn read_note(path: &Path) -> Option<Note> {
    for _ in 0..20 {
        let mut text = String::new();
        if File::open(path).and_then(|mut file| file.read_to_string(&mut text)).is_ok()
            && let Ok(note) = serde_json::from_str(&text)
        {
            return Some(note);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Who has it by its file, and since when.
pub(super) fn noted(work: &WorkFolder, lease: &Lease) -> (String, Option<Timestamp>) {
    match read_note(&lease.path(work)) {
        Some(note) => (note.holder, Some(note.since)),
        None => ("an orch that did not say who it is".to_owned(), None),
    }
}

/// Whether anybody holds it. Looks without disturbing: see [`take`].
pub(crate) fn is_held(work: &WorkFolder, lease: &Lease) -> bool {
    File::open(lease.path(work)).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> (tempfile::TempDir, WorkFolder) {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        (folder, work)
    }

    #[test]
    fn names_are_read_back() {
        for text in ["port:30000", "gpu:GPU-1a2b-3c", "measure"] {
            assert_eq!(text.parse::<Lease>().unwrap().to_string(), text);
        }
        for text in ["port:", "port:70000", "gpu:", "gpu:../x", "lock"] {
            let error = text.parse::<Lease>().unwrap_err();
            assert!(error.contains(" is not a "), "{text}: {error}");
        }
    }

    #[test]
    fn the_second_one_is_told_who_has_it_and_since_when() {
        let (_folder, work) = work();
        // Another process has its own work folder value; locks are per open file, so this is the same.
        let other = WorkFolder::at(work.root()).unwrap();
        let lease = Lease::Gpu(format!("GPU-7-{}", std::process::id()));
        work.reserve(&lease, "run r1").unwrap();
        work.reserve(&lease, "run r1").unwrap();
        assert!(is_held(&other, &lease));
        let before = Timestamp::now();
        match other.reserve(&lease, "run r2").unwrap_err() {
            LaunchError::LeaseTaken { lease: taken, holder, since } => {
                assert_eq!((taken, holder.as_str()), (lease.clone(), "run r1"));
                assert!(since.unwrap() <= before);
            }
            error => panic!("{error}"),
        }
        work.unreserve(&lease);
        assert!(!is_held(&other, &lease));
        other.reserve(&lease, "run r2").unwrap();
    }

    #[test]
    fn the_measure_lease_lives_as_long_as_its_value() {
        let ((_a, work), (_b, other)) = (self::work(), self::work());
        // Others may measure on this machine just now.
        let scope = format!("lease-test-{}", std::process::id());
        let (work, other) = (work.measuring_apart(&scope), other.measuring_apart(&scope));
        let held = work.measure("run r1").unwrap();
        assert_eq!(held.shown(), format!("measure@{scope}"));
        let error = work.measure("run r2").unwrap_err().to_string();
        assert!(error.starts_with("the right to measure on this host is taken by run r1 since 2"), "{error}");
        let error = other.measure("run r2").unwrap_err().to_string();
        let expected = "the right to measure on this host is taken by run r1, of another work folder since 2";
        assert!(error.starts_with(expected), "{error}");
        drop(held);
        other.measure("run r2").unwrap();
    }

    fn uuids<const N: usize>(names: [&str; N]) -> Vec<String> {
        names.map(|name| format!("GPU-{name}-{}", std::process::id())).to_vec()
    }

    #[test]
    fn of_two_who_want_half_of_it_each_one_has_all_and_the_other_none() {
        let (_folder, work) = work();
        let other = WorkFolder::at(work.root()).unwrap();
        let (first, second) = (uuids(["a", "b"]), uuids(["b", "c"]));
        assert_eq!(reserve_gpus(&work, &first, None, "run r1").unwrap(), first);
        let error = reserve_gpus(&other, &second, None, "run r2").unwrap_err().to_string();
        assert!(error.starts_with(&format!("gpu:{} is taken by run r1 since 2", first[1])), "{error}");
        assert!(!is_held(&work, &Lease::Gpu(second[1].clone())), "what it had got is given back");
        for uuid in &first {
            work.unreserve(&Lease::Gpu(uuid.clone()));
        }
        assert_eq!(reserve_gpus(&other, &second, None, "run r2").unwrap(), second);
    }

    #[test]
    fn so_many_are_the_first_that_are_free() {
        let (_folder, work) = work();
        let other = WorkFolder::at(work.root()).unwrap();
        let all = uuids(["k", "l", "m"]);
        assert_eq!(reserve_gpus(&work, &all, Some(1), "run r1").unwrap(), all[..1]);
        assert_eq!(reserve_gpus(&other, &all, Some(2), "run r2").unwrap(), all[1..]);
        let third = WorkFolder::at(work.root()).unwrap();
        let error = reserve_gpus(&third, &all, Some(1), "run r3").unwrap_err().to_string();
        assert!(error.starts_with("1 GPUs are needed, and 0 of 3 are free: "), "{error}");
        assert!(error.contains("is taken by run r1 since 2") && error.contains("is taken by run r2"), "{error}");
    }

    #[test]
    fn another_work_folder_is_no_other_machine() {
        let ((_a, work), (_b, other)) = (self::work(), self::work());
        let gpu = Lease::Gpu(uuids(["h"])[0].clone());
        work.reserve(&gpu, "run r1").unwrap();
        let error = other.reserve(&gpu, "run r2").unwrap_err().to_string();
        let expected = format!("{gpu} is taken by run r1, of another work folder since 2");
        assert!(error.starts_with(&expected), "{error}");
        let (port, next) = (choose_port(&work).unwrap(), choose_port(&other).unwrap());
        assert_ne!(port, next);
    }

    #[test]
    fn two_that_choose_at_once_never_get_the_same_port() {
        let (_folder, work) = work();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let own = WorkFolder::at(work.root()).unwrap();
                std::thread::spawn(move || (choose_port(&own).unwrap(), own))
            })
            .collect();
        let chosen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let ports: std::collections::BTreeSet<u16> = chosen.iter().map(|(port, _)| *port).collect();
        assert_eq!(ports.len(), 8);
        assert!(ports.iter().all(|port| AUTO_PORTS.contains(port)));
    }
}
