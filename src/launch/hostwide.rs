//! The part of a lease that holds across users and work folders: a name in the abstract namespace of Unix sockets.
//!
//! A lease's file lies in the work folder of one user. Another user has another one, and so has anybody with another
//! `XDG_STATE_HOME`; to all of them a port, a GPU and the quiet of a measurement are the same. An abstract name belongs to
//! the whole machine (to one network namespace), needs no folder and no permission, and lives exactly as long as a process
//! has the socket open: the supervisor and the server inherit it as they do the file.
//!
//! Who has it and since when stands in a second name beside the first, since anybody may read the table of names and
//! nobody the files of another user.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use jiff::Timestamp;

use super::{Lease, port, process};

/// A longer name the kernel does not take.
const MOST_BYTES: usize = 107;

/// The name of a lease, in hand.
#[derive(Debug)]
pub(super) struct Name {
    taken: UnixListener,
    note: Option<UnixListener>,
}

impl Name {
    /// Takes the name of a lease; `None` where the machine refuses such sockets altogether, and the file has to do.
    ///
    /// `AddrInUse` when somebody has it. `scope` sets the right to measure apart: see [`super::WorkFolder`].
    pub(super) fn take(lease: &Lease, scope: Option<&str>) -> io::Result<Option<Self>> {
        match bind(&name(lease, scope)) {
            Ok(taken) => Ok(Some(Name { taken, note: None })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse || is_short_of_means(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Says who has it, for all who can read. What cannot be said so leaves the lease as it is.
    pub(super) fn say(&mut self, lease: &Lease, scope: Option<&str>, holder: &str, since: Timestamp) {
        let user = nix::unistd::geteuid();
        let mut note = format!("{}{}={user}={holder}", before_note(lease, scope), since.as_second());
        let end = (0..=note.len().min(MOST_BYTES)).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
        note.truncate(end);
        self.note = bind(&note).ok();
    }

    /// Each of its sockets once more.
    pub(super) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let sockets = std::iter::once(&self.taken).chain(&self.note);
        sockets.map(|socket| Ok(socket.try_clone()?.into())).collect()
    }
}

/// What this process lacks is no refusal of the machine: without the name two could have the lease.
fn is_short_of_means(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EMFILE | nix::libc::ENFILE | nix::libc::ENOMEM | nix::libc::ENOBUFS))
}

fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Ports and GPUs are the machine's whoever asks; only the right to measure can be set apart.
fn scope_of<'a>(lease: &Lease, scope: Option<&'a str>) -> &'a str {
    scope.filter(|_| *lease == Lease::Measure).unwrap_or_default()
}

fn name(lease: &Lease, scope: Option<&str>) -> String {
    match scope_of(lease, scope) {
        "" => format!("orch/{lease}"),
        scope => format!("orch/{lease}@{scope}"),
    }
}

fn before_note(lease: &Lease, scope: Option<&str>) -> String {
    match scope_of(lease, scope) {
        "" => format!("orch={lease}="),
        scope => format!("orch={lease}@{scope}="),
    }
}

/// Who has the name, in words, and since when, as far as this user may know.
pub(super) fn holder(lease: &Lease, scope: Option<&str>) -> (String, Option<Timestamp>) {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    if let Some(told) = names(&table).find_map(|(_, found)| note(found, &before_note(lease, scope))) {
        return told;
    }
    let name = name(lease, scope);
    let socket = names(&table).find_map(|(inode, found)| (found == name).then_some(inode));
    let target = socket.map(|inode| format!("socket:[{inode}]"));
    let pids = target.and_then(|target| process::holders_of(Path::new(&target)).ok()).unwrap_or_default();
    match pids.first() {
        Some(pid) => (format!("{}, of another work folder", port::name(*pid)), process::began(*pid)),
        None => ("an orch of another user".to_owned(), None),
    }
}

/// The leases that anybody on this machine holds.
pub(super) fn all(scope: Option<&str>) -> Vec<Lease> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut found = Vec::new();
    for (_, text) in names(&table) {
        let Some(text) = text.strip_prefix("orch/") else { continue };
        let (text, apart) = text.split_once('@').map_or((text, None), |(text, apart)| (text, Some(apart)));
        let Ok(lease) = text.parse::<Lease>() else { continue };
        if apart.unwrap_or_default() == scope_of(&lease, scope) {
            found.push(lease);
        }
    }
    found
}

/// The sockets that have the name of a lease, or say who has it.
pub(super) fn sockets(lease: &Lease, scope: Option<&str>) -> Vec<u64> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let (name, note) = (name(lease, scope), before_note(lease, scope));
    names(&table).filter(|(_, found)| *found == name || found.starts_with(&note)).map(|(inode, _)| inode).collect()
}

/// Lines of `/proc/net/unix`: seven fields, the last of them the inode, then the name, where `@` stands for the NUL byte
/// of an abstract one.
fn names(table: &str) -> impl Iterator<Item = (u64, &str)> {
    table.lines().filter_map(|line| {
        let (fields, name) = line.split_once(" @")?;
        Some((fields.split_ascii_whitespace().nth(6)?.parse().ok()?, name))
    })
}

/// What a note says: seconds since the epoch, the user, who.
fn note(name: &str, begins: &str) -> Option<(String, Option<Timestamp>)> {
    let mut parts = name.strip_prefix(begins)?.splitn(3, '=');
    let since = Timestamp::from_second(parts.next()?.parse().ok()?).ok()?;
    let (user, holder) = (parts.next()?.parse::<u32>().ok()?, parts.next()?);
    // Anybody could have written it, so it steers no terminal.
    let holder: String = holder.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let whose = match user == nix::unistd::geteuid().as_raw() {
        true => "of another work folder".to_owned(),
        false => match nix::unistd::User::from_uid(user.into()) {
            Ok(Some(user)) => format!("of user {}", user.name),
            _ => format!("of user {user}"),
        },
    };
    Some((format!("{holder}, {whose}"), Some(since)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_the_other_learns_who() {
        let lease = Lease::Gpu(format!("GPU-hostwide-{}", std::process::id()));
        let mut held = Name::take(&lease, None).unwrap().unwrap();
        assert_eq!(Name::take(&lease, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let (who, since) = holder(&lease, None);
        assert!(who.starts_with(&format!("pid {} (", std::process::id())), "nothing was said yet: {who}");
        assert!(since.unwrap() <= Timestamp::now());
        let since = Timestamp::now();
        held.say(&lease, None, "run r1", since);
        held.say(&lease, None, "server r1.0001", since);
        let (who, told) = holder(&lease, None);
        assert_eq!(
            (who.as_str(), told.unwrap().as_second()),
            ("server r1.0001, of another work folder", since.as_second())
        );
        drop(held);
        Name::take(&lease, None).unwrap().unwrap();
    }

    #[test]
    fn the_right_to_measure_can_be_set_apart_and_nothing_else() {
        let scope = format!("hostwide-test-{}", std::process::id());
        let held = Name::take(&Lease::Measure, Some(&scope)).unwrap().unwrap();
        assert!(Name::take(&Lease::Measure, Some(&scope)).is_err());
        Name::take(&Lease::Measure, Some(&format!("{scope}-other"))).unwrap().unwrap();
        drop(held);
        let gpu = Lease::Gpu(format!("GPU-scope-{}", std::process::id()));
        let _held = Name::take(&gpu, Some("a")).unwrap().unwrap();
        assert!(Name::take(&gpu, Some("b")).is_err());
    }

    #[test]
    fn a_long_holder_is_cut_and_a_strange_one_steers_nothing() {
        let lease = Lease::Gpu(format!("GPU-long-{}", std::process::id()));
        let mut held = Name::take(&lease, None).unwrap().unwrap();
        held.say(&lease, None, &"run-ü".repeat(50), Timestamp::now());
        assert!(holder(&lease, None).0.starts_with("run-ürun-ü"));
        let (who, _) = note("orch=measure=1764460800=4294967294=a\u{1b}[2Jb", "orch=measure=").unwrap();
        assert_eq!(who, "a\u{fffd}[2Jb, of user 4294967294");
    }
}
