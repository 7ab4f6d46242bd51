//! The part of a lease that holds across users and work folders: a name in the abstract namespace of Unix sockets.
//!
//! A lease's file lies in the work folder of one user. Another user has another one, and so has anybody with another
//! `XDG_STATE_HOME`; to all of them a port or a GPU is the same. An abstract name belongs to the whole machine (to one
//! network namespace), needs no folder and no permission, and lives exactly as long as a process has the socket open: the
//! supervisor and the server inherit it as they do the file.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use jiff::Timestamp;

use super::{Lease, port, process};

/// Takes the name of a lease; `None` for one that is the work folder's own.
///
/// `AddrInUse` when somebody has it. A machine that refuses such sockets altogether leaves the lease to its file.
pub(super) fn take(lease: &Lease) -> io::Result<Option<UnixListener>> {
    let name = match lease {
        Lease::Port(_) | Lease::Gpu(_) => name(lease),
        Lease::Measure => return Ok(None),
    };
    match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        Err(_) => Ok(None),
    }
}

fn name(lease: &Lease) -> String {
    format!("orch/{lease}")
}

/// Who has the name, in words, and since when, as far as this user may know.
pub(super) fn holder(lease: &Lease) -> (String, Option<Timestamp>) {
    let socket = inode(&std::fs::read_to_string("/proc/net/unix").unwrap_or_default(), &name(lease));
    let target = socket.map(|inode| format!("socket:[{inode}]"));
    let pids = target.and_then(|target| process::holders_of(Path::new(&target)).ok()).unwrap_or_default();
    match pids.first() {
        Some(pid) => (format!("{}, of another work folder", port::name(*pid)), process::began(*pid)),
        None => ("an orch of another user".to_owned(), None),
    }
}

/// Lines of `/proc/net/unix`: seven fields, the last of them the inode, then the name, where `@` stands for the NUL byte
/// of an abstract one.
fn inode(table: &str, name: &str) -> Option<u64> {
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let inode = fields.nth(6)?;
        (fields.next()?.strip_prefix('@')? == name).then(|| inode.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_the_other_learns_who() {
        let lease = Lease::Gpu(format!("GPU-hostwide-{}", std::process::id()));
        let held = take(&lease).unwrap().unwrap();
        assert_eq!(take(&lease).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let (who, since) = holder(&lease);
        assert!(who.starts_with(&format!("pid {} (", std::process::id())), "{who}");
        assert!(since.unwrap() <= Timestamp::now());
        drop(held);
        take(&lease).unwrap().unwrap();
        assert!(take(&Lease::Measure).unwrap().is_none());
    }
}
