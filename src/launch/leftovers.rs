//! Files that a server's processes leave behind when they are killed: shared memory, sockets, locks of a compiler that make
//! the next start wait for ever. What is ours of them is removed; what may be is named.
//!
//! A file is ours, and is removed, when one of our processes was seen to have that very file (by device and inode) open or
//! mapped, it is of our user, is no older than the server, and no process uses it any more. A file that only carries the
//! pid of one of ours in its name, and came to be while that process lived, may be anybody's: it is named and stays.

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

/// A file that a process was seen to use.
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
    places.sort();
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
        let used = used_by(process.pid, &sockets);
        // Its pid may have passed to a stranger while its files were read.
        if process.lives() {
            found.extend(used.into_iter().filter(|used| is_ours(used, since)));
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
///
/// Each is what the process itself has, not what lies at that path: the name may belong to another file by now, or the
/// process may see other folders than we do.
fn used_by(pid: u32, sockets: &BTreeMap<u64, PathBuf>) -> Vec<Used> {
    let places = places();
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok) {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        match socket_inode(&link) {
            Some(inode) => {
                let bound = sockets.get(&inode).filter(|path| places.iter().any(|place| path.starts_with(place)));
                found.extend(bound.filter(|_| sees_our_folders(pid)).and_then(|path| socket_at(path)));
            }
            None if link.starts_with("/dev/shm") || is_lock(&link) => {
                // Through the link, which leads to the open file and not to its name.
                found.extend(fs::metadata(entry.path()).ok().map(|meta| Used::new(link, &meta)));
            }
            None => {}
        }
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = |line: &str| {
        let path = PathBuf::from(&line[line.find("/dev/shm/")?..]);
        let (dev, ino) = mapped(line)?;
        Some(Used { path, dev, ino })
    };
    found.extend(maps.lines().filter_map(mapped));
    found.sort();
    found.dedup();
    found
}

/// Device and inode in a line of `/proc/PID/maps`: `ADDRESSES PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`.
fn mapped(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (major, minor) = fields.nth(3)?.split_once(':')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let ino = fields.next()?.parse().ok()?;
    Some((nix::sys::stat::makedev(number(major)?, number(minor)?), ino))
}

/// Whether a path means the same to a process as to us.
fn sees_our_folders(pid: u32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    namespace("self").is_some_and(|ours| namespace(&pid.to_string()) == Some(ours))
}

fn socket_at(path: &Path) -> Option<Used> {
    let meta = fs::symlink_metadata(path).ok()?;
    meta.file_type().is_socket().then(|| Used::new(path.to_owned(), &meta))
}

fn is_lock(path: &Path) -> bool {
    path.is_absolute()
        && path.file_name().is_some_and(|name| name == "lock" || name.to_string_lossy().ends_with(".lock"))
}

fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Sockets with a name in the file system, by the inode of the socket, which is not that of its file. A name on which
/// several listen is left out: the file is that of the last one only.
fn sockets() -> BTreeMap<u64, PathBuf> {
    const ACCEPTS: u32 = 0x1_0000;
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let listens = u32::from_str_radix(fields.nth(3)?, 16).ok()? & ACCEPTS != 0;
        let inode: u64 = fields.nth(2)?.parse().ok()?;
        let path = PathBuf::from(fields.next()?);
        path.is_absolute().then_some((inode, path, listens))
    };
    let all: Vec<_> = table.lines().filter_map(line).collect();
    let mut listening: BTreeMap<&Path, u32> = BTreeMap::new();
    for (_, path, _) in all.iter().filter(|(_, _, listens)| *listens) {
        *listening.entry(path).or_default() += 1;
    }
    let several = |path: &Path| listening.get(path).is_some_and(|count| *count > 1);
    all.iter().filter(|(_, path, _)| !several(path)).map(|(inode, path, _)| (*inode, path.clone())).collect()
}

impl Used {
    fn new(path: PathBuf, meta: &Metadata) -> Self {
        Used { path, dev: meta.dev(), ino: meta.ino() }
    }

    /// What lies at the path, as long as it is still this file.
    fn still(&self) -> Option<Metadata> {
        let meta = fs::symlink_metadata(&self.path).ok()?;
        ((meta.dev(), meta.ino()) == (self.dev, self.ino)).then_some(meta)
    }
}

/// A file of our user that is no older than the server.
fn is_ours(used: &Used, since: Timestamp) -> bool {
    used.still().is_some_and(|meta| {
        let kind = meta.file_type().is_file() || meta.file_type().is_socket();
        let young = birth(&meta).is_some_and(|born| born + GRAIN >= moment(since));
        kind && young && meta.uid() == nix::unistd::geteuid().as_raw()
    })
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
    let seen: BTreeMap<PathBuf, Used> = noted(folder)
        .into_iter()
        .filter(|used| used.still().is_some() && is_small(&used.path))
        .map(|used| (used.path.clone(), used))
        .collect();
    for used in seen.values() {
        match remove(used) {
            Ok(true) => cleared.removed.push(used.path.display().to_string()),
            Ok(false) => {}
            Err(why) => cleared.files.push(format!("{}: {why}", used.path.display())),
        }
    }
    for (used, doubt) in named(&places(), &folder.lives(), folder.plan().map(|plan| plan.since)) {
        if !seen.contains_key(&used.path) {
            let why = user_of(&used).map_or(doubt, |who| format!("{who} has it open"));
            cleared.files.push(format!("{}: {why}", used.path.display()));
        }
    }
    cleared
}

/// Removes one file that was seen in use by ours, unless somebody uses it, or another one lies there by now. `Ok(false)`
/// when nothing of it is left.
fn remove(used: &Used) -> Result<bool, String> {
    if let Some(who) = user_of(used) {
        return Err(format!("{who} has it open"));
    }
    // Looked at last, since the look at all processes takes a while.
    if used.still().is_none() {
        return Ok(false);
    }
    match fs::remove_file(&used.path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.to_string()),
    }
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
/// while it lived. With why each of them stays.
fn named(places: &[PathBuf], lives: &[Life], since: Option<Timestamp>) -> Vec<(Used, String)> {
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
                format!("it carries the pid {pid}, which is another process by now")
            } else if pid.to_string().len() < LEAST_DIGITS {
                format!("it carries the number {pid}, which is too short to be surely the pid of ours")
            } else {
                format!("it carries the pid {pid} of ours, which was not seen to use it")
            };
            found.push((Used::new(entry.path(), &meta), doubt));
        }
    }
    found
}

/// Some process that uses this very file under whatever path, in words.
fn user_of(file: &Used) -> Option<String> {
    let is_it = |meta: &Metadata| (meta.dev(), meta.ino()) == (file.dev, file.ino);
    let opens = |pid: u32| {
        fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok).any(|entry| {
            // By the name first: to look at a file of a network that is down would take for ever.
            fs::read_link(entry.path()).is_ok_and(|link| link.file_name() == file.path.file_name())
                && fs::metadata(entry.path()).is_ok_and(|meta| is_it(&meta))
        })
    };
    let maps = |pid: u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().any(|line| mapped(line) == Some((file.dev, file.ino)))
    };
    let bound = sockets_at(&file.path);
    let users = process::pids().unwrap_or_default();
    let user = users
        .into_iter()
        .find(|pid| opens(*pid) || maps(*pid) || bound.iter().any(|socket| process::has_open(*pid, Path::new(socket))));
    // One of another user cannot be looked into, and uses it all the same.
    user.map(port::name).or_else(|| (!bound.is_empty()).then(|| "a process of another user".to_owned()))
}

/// The sockets that are bound to a path, as links to them read.
fn sockets_at(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let inode: u64 = fields.nth(6)?.parse().ok()?;
        (fields.next().map(Path::new) == Some(path)).then(|| format!("socket:[{inode}]"))
    };
    table.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::WorkFolder;
    use super::*;

    fn life(pid: u32, gone: Option<Timestamp>) -> Life {
        (Process { pid, start_ticks: 1 }, gone)
    }

    #[test]
    fn no_place_is_looked_through_twice() {
        let places = places();
        assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
        assert!(places.contains(&PathBuf::from("/dev/shm")));
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
        let found = of(&[life(4_100_123, None)], before);
        assert!(found.len() == 1 && found[0].0.path == path("sgl_shm_4100123_x"), "{found:?}");
        assert!(found[0].1.contains("not seen to use it"), "{found:?}");
        assert_eq!(of(&[life(4_100_123, None)], Timestamp::now() + jiff::SignedDuration::from_secs(60)), []);
        // A process that was gone before the file came had its pid, and somebody else made the file.
        assert_eq!(of(&[life(4_100_123, Some(before))], before), []);
        // This process has its pid now, and is another one.
        let own = std::process::id();
        fs::write(path(&format!("x_{own}")), "").unwrap();
        let reused = of(&[life(own, None)], before);
        assert!(reused.len() == 1 && reused[0].1.contains("another process by now"), "{reused:?}");
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
        let used = || used_by(std::process::id(), &sockets());
        let has = |path: &Path| used().iter().any(|used| used.path == path);
        let now = Timestamp::now();
        let used: Vec<Used> =
            used().into_iter().filter(|used| [&shared, &lock].contains(&&used.path) && is_ours(used, now)).collect();
        assert_eq!(used.len(), 2);
        let of_old = Used::new(old.clone(), &fs::metadata(&old).unwrap());
        // tmpfs tells when a file came to be on newer kernels only.
        assert!(of_old.still().is_some_and(|meta| meta.created().is_ok()) || !is_ours(&of_old, now));
        let lines: Vec<String> = used.iter().map(|used| serde_json::to_string(used).unwrap() + "\n").collect();
        fs::write(server.file("files.jsonl"), lines.concat()).unwrap();
        let cleared = clear(&server);
        assert_eq!((cleared.removed.len(), cleared.files.len()), (0, 2), "{cleared:?}");
        assert!(cleared.files[0].contains(&format!("pid {} (", std::process::id())), "{cleared:?}");
        let log = folder.path().join("server.log");
        let _log = fs::File::create(&log).unwrap();
        assert!(!has(&log), "what it writes stays");
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

    #[test]
    fn what_a_process_has_is_the_file_and_not_its_name() {
        let unique = format!("orch-test-name-{}", std::process::id());
        let path = PathBuf::from("/dev/shm").join(&unique);
        let open = fs::File::create(&path).unwrap();
        let of = |path: &Path| used_by(std::process::id(), &sockets()).into_iter().find(|used| used.path == path);
        let used = of(&path).unwrap();
        assert!(used.still().is_some() && user_of(&used).is_some());
        // A stranger puts another file in its place: what we have open is not that one.
        let other = path.with_extension("new");
        fs::write(&other, "a stranger's").unwrap();
        fs::rename(&other, &path).unwrap();
        let strangers = Used::new(path.clone(), &fs::metadata(&path).unwrap());
        assert!(used.still().is_none() && !is_ours(&used, Timestamp::now()));
        assert_eq!((user_of(&strangers), remove(&used)), (None, Ok(false)), "no one has the stranger's open");
        assert!(path.exists());
        drop(open);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_line_of_the_maps_tells_device_and_inode() {
        let line = "7f1c-7f1d rw-s 00000000 00:1a 4242                       /dev/shm/psm_x";
        assert_eq!(mapped(line), Some((nix::sys::stat::makedev(0, 0x1a), 4242)));
        assert_eq!(mapped("7f1c-7f1d rw-p 00000000 zz 0"), None);
    }

    #[test]
    fn a_bound_socket_is_found_by_its_file_and_one_of_two_that_listen_is_not() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path().join("ipc.sock");
        let first = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let of = || used_by(std::process::id(), &sockets()).into_iter().find(|used| used.path == path);
        let used = of().unwrap();
        assert!(used.still().is_some() && user_of(&used).is_some());
        fs::remove_file(&path).unwrap();
        let second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(of(), None, "whose file it is cannot be told");
        drop((first, second));
        assert_eq!(user_of(&Used::new(path.clone(), &fs::symlink_metadata(&path).unwrap())), None);
    }
}
