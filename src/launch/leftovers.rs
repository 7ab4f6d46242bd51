//! Files that a server's processes leave behind when they are killed: shared memory, sockets, locks of a compiler that make
//! the next start wait for ever. What is ours of them is removed; what may be is named.
//!
//! A file is ours when one of our processes was seen to have it open or mapped, or when it carries the pid of one in its
//! name and came to be while that process lived. In both cases it is of our user, is no older than the server, and no
//! process uses it any more. A name or a pattern alone never counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::servers::Folder;
use super::{Process, port, process};

/// File systems keep times more coarsely than clocks tell them.
const GRAIN: Duration = Duration::from_secs(2);
/// What a lock may hold.
const LOCK_BYTES: u64 = 64;
/// A shorter number in a name may be anything.
const LEAST_DIGITS: usize = 3;

/// A file that a process of ours was seen to use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Used {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

/// What became of a server's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// Removed.
    pub(crate) removed: Vec<String>,
    /// Still there, each with why.
    pub(crate) files: Vec<String>,
}

/// Where processes share memory, and where they put their sockets.
fn places() -> Vec<PathBuf> {
    let mut places = vec![PathBuf::from("/dev/shm"), std::env::temp_dir(), PathBuf::from("/tmp"), "/var/tmp".into()];
    places.dedup();
    places
}

/// Looks what the processes of a server use just now and notes it in the server's folder. Not done often: reading the
/// maps of a large process holds it up for a moment.
pub(crate) fn note(folder: &Folder, processes: &[Process]) -> io::Result<()> {
    let Some(since) = folder.plan().map(|plan| plan.since) else { return Ok(()) };
    let known: BTreeSet<Used> = noted(folder).into_iter().collect();
    let sockets = sockets();
    let mut found: BTreeSet<Used> = BTreeSet::new();
    for process in processes.iter().filter(|process| process.lives()) {
        let paths = used_by(process.pid, &sockets);
        // Its pid may have passed to a stranger while its files were read.
        if process.lives() {
            found.extend(paths.into_iter().filter_map(|path| ours(path, since)));
        }
    }
    let lines: Vec<String> = found
        .difference(&known)
        .map(|used| serde_json::to_string(used).map(|line| line + "\n"))
        .collect::<Result<_, _>>()?;
    if lines.is_empty() {
        return Ok(());
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(folder.file("files.jsonl"))?;
    file.write_all(lines.concat().as_bytes())
}

fn noted(folder: &Folder) -> Vec<Used> {
    let text = fs::read_to_string(folder.file("files.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Shared memory and locks that a process has open or mapped, and sockets that it has bound in folders for everybody.
/// Other files in such folders are somebody's output, a log say.
fn used_by(pid: u32, sockets: &BTreeMap<u64, PathBuf>) -> Vec<PathBuf> {
    let places = places();
    let mut paths = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok) {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        match socket_inode(&link) {
            Some(inode) => {
                let bound = sockets.get(&inode).filter(|path| places.iter().any(|place| path.starts_with(place)));
                paths.extend(bound.cloned());
            }
            None if link.starts_with("/dev/shm") || is_lock(&link) => paths.push(link),
            None => {}
        }
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    paths.extend(maps.lines().filter_map(|line| line.find("/dev/shm/").map(|at| PathBuf::from(&line[at..]))));
    paths.sort();
    paths.dedup();
    paths
}

fn is_lock(path: &Path) -> bool {
    path.is_absolute()
        && path.file_name().is_some_and(|name| name == "lock" || name.to_string_lossy().ends_with(".lock"))
}

fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Sockets with a name in the file system, by inode.
fn sockets() -> BTreeMap<u64, PathBuf> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let inode = fields.nth(6)?.parse().ok()?;
        let path = PathBuf::from(fields.next()?);
        path.is_absolute().then_some((inode, path))
    };
    table.lines().filter_map(line).collect()
}

/// A file of our user that is no older than the server.
fn ours(path: PathBuf, since: Timestamp) -> Option<Used> {
    let meta = fs::symlink_metadata(&path).ok()?;
    let kind = meta.file_type().is_file() || meta.file_type().is_socket();
    let young = birth(&meta)? + GRAIN >= moment(since);
    let mine = meta.uid() == nix::unistd::geteuid().as_raw();
    (kind && young && mine).then(|| Used { path, dev: meta.dev(), ino: meta.ino() })
}

fn moment(at: Timestamp) -> SystemTime {
    let since = Duration::try_from(at.as_duration()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + since
}

/// When a file came to be, or was last written where that is not known.
fn birth(meta: &Metadata) -> Option<SystemTime> {
    meta.created().or_else(|_| meta.modified()).ok()
}

/// Removes what a server has left, once nothing of it lives any more.
pub(crate) fn clear(folder: &Folder) -> Cleared {
    let mut cleared = Cleared::default();
    if folder.is_of_another_boot() {
        return cleared;
    }
    let mut found: BTreeMap<PathBuf, Option<String>> = BTreeMap::new();
    for used in noted(folder) {
        let same = fs::symlink_metadata(&used.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (used.dev, used.ino));
        if same && is_small(&used.path) {
            found.insert(used.path, None);
        }
    }
    for (path, doubt) in named(&places(), &folder.lives(), folder.plan().map(|plan| plan.since)) {
        found.entry(path).or_insert(doubt);
    }
    if found.is_empty() {
        return cleared;
    }
    let users = users(&found.keys().cloned().collect());
    for (path, doubt) in found {
        let told = path.display().to_string();
        let why = match (users.get(&path), doubt) {
            (Some(pid), _) => format!("{} has it open", port::name(*pid)),
            (None, Some(doubt)) => doubt,
            (None, None) => match fs::remove_file(&path) {
                Ok(()) => {
                    cleared.removed.push(told);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => error.to_string(),
            },
        };
        cleared.files.push(format!("{told}: {why}"));
    }
    cleared
}

/// A lock holds nothing, or who has it. What holds more is a file that only has such a name.
fn is_small(path: &Path) -> bool {
    !is_lock(path)
        || path.starts_with("/dev/shm")
        || fs::symlink_metadata(path).is_ok_and(|meta| meta.len() <= LOCK_BYTES)
}

/// A process of ours, and when it was gone; `None` for one that was only just ended.
pub(crate) type Life = (Process, Option<Timestamp>);

/// Files and sockets directly in these folders that carry the pid of a process of ours in their names, and came to be
/// while it lived. With what speaks against removing one.
fn named(places: &[PathBuf], lives: &[Life], since: Option<Timestamp>) -> Vec<(PathBuf, Option<String>)> {
    let Some(since) = since else { return Vec::new() };
    let mut found = Vec::new();
    for place in places {
        let memory = place.starts_with("/dev/shm");
        for entry in fs::read_dir(place).into_iter().flatten().filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let numbers = || name.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
            let life = |life: &&Life| numbers().any(|number| number == life.0.pid.to_string());
            let Some((process, gone)) = lives.iter().find(life) else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            // In a folder for everything, what is no socket may be anybody's output.
            if !(meta.file_type().is_socket() || (memory && meta.is_file())) {
                continue;
            }
            let in_its_life = birth(&meta).is_some_and(|born| {
                let ended = gone.map_or_else(SystemTime::now, moment);
                born + GRAIN >= moment(since) && born <= ended + GRAIN
            });
            if !in_its_life || meta.uid() != nix::unistd::geteuid().as_raw() {
                continue;
            }
            let pid = process.pid;
            let doubt = if process::stat(pid).is_some_and(|stat| stat.process != *process) {
                Some(format!("it carries the pid {pid}, which is another process by now"))
            } else if pid.to_string().len() < LEAST_DIGITS {
                Some(format!("it carries the number {pid}, which is too short to be surely the pid of ours"))
            } else {
                None
            };
            found.push((entry.path(), doubt));
        }
    }
    found
}

/// Which of these files some process uses, and one that does.
fn users(paths: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, u32> {
    let sockets = sockets();
    let mut users = BTreeMap::new();
    for pid in process::pids().unwrap_or_default() {
        for path in used_by(pid, &sockets) {
            if paths.contains(&path) {
                users.entry(path).or_insert(pid);
            }
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use super::super::WorkFolder;
    use super::*;

    fn life(pid: u32, gone: Option<Timestamp>) -> Life {
        (Process { pid, start_ticks: 1 }, gone)
    }

    #[test]
    fn a_pid_in_a_name_counts_as_a_whole_number_and_in_its_time() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["sgl_shm_4100123_x", "psm_41001234", "psm_100123"] {
            fs::write(path(name), "").unwrap();
        }
        let places = [folder.path().to_owned()];
        let before = Timestamp::now() - jiff::SignedDuration::from_secs(60);
        let of = |lives: &[Life], since| named(&places, lives, Some(since));
        assert_eq!(of(&[life(4_100_123, None)], before), [(path("sgl_shm_4100123_x"), None)]);
        assert_eq!(of(&[life(4_100_123, None)], Timestamp::now() + jiff::SignedDuration::from_secs(60)), []);
        // A process that was gone before the file came had its pid, and somebody else made the file.
        assert_eq!(of(&[life(4_100_123, Some(before))], before), []);
        // This process has its pid now, and is another one.
        let own = std::process::id();
        fs::write(path(&format!("x_{own}")), "").unwrap();
        let reused = of(&[life(own, None)], before);
        assert!(reused.len() == 1 && reused[0].1.is_some(), "{reused:?}");
    }

    #[test]
    fn what_nobody_uses_any_more_is_removed_and_what_somebody_uses_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        let (server, _) = Folder::create(&work, "r1").unwrap();
        let unique = format!("orch-test-{}", std::process::id());
        let (shared, lock) = (PathBuf::from("/dev/shm").join(&unique), folder.path().join("lock"));
        let old = PathBuf::from("/dev/shm").join(format!("{unique}-old"));
        fs::write(&old, "").unwrap();
        let long_ago = fs::File::options().write(true).open(&old).unwrap();
        long_ago.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let uses = || [&shared, &lock].map(|path| fs::File::create(path).unwrap());
        let open = uses();
        let used = used_by(std::process::id(), &sockets());
        assert!(used.contains(&shared) && used.contains(&lock), "{used:?}");
        let used: Vec<Used> =
            [&shared, &lock].iter().filter_map(|path| ours((*path).clone(), Timestamp::now())).collect();
        assert_eq!(used.len(), 2);
        let lines: Vec<String> = used.iter().map(|used| serde_json::to_string(used).unwrap() + "\n").collect();
        fs::write(server.file("files.jsonl"), lines.concat()).unwrap();
        let cleared = clear(&server);
        assert_eq!((cleared.removed.len(), cleared.files.len()), (0, 2), "{cleared:?}");
        assert!(cleared.files[0].contains(&format!("pid {} (", std::process::id())), "{cleared:?}");
        let log = folder.path().join("server.log");
        let _log = fs::File::create(&log).unwrap();
        assert!(!used_by(std::process::id(), &sockets()).contains(&log), "what it writes stays");
        drop(open);
        // Another file in the place of the one that was seen is not ours.
        fs::remove_file(&lock).unwrap();
        fs::write(folder.path().join("keeps-the-inode"), "").unwrap();
        fs::write(&lock, "").unwrap();
        let cleared = clear(&server);
        assert_eq!(cleared.removed, [shared.display().to_string()]);
        assert!(lock.exists() && !shared.exists());
        drop(long_ago);
        fs::remove_file(old).unwrap();
    }
}
