//! Who has what on this machine: the leases that are held, by whomever, and the processes of our own servers.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::marks::Marks;
use super::servers::Folder;
use super::{LaunchError, Lease, WorkFolder, hostwide, lease};

/// A lease that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What is held.
    pub lease: Lease,
    /// By whom, in words.
    pub holder: String,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// All leases that are held: those of this work folder, and those that others hold on this machine.
pub fn holdings(work: &WorkFolder) -> Result<Vec<Holding>, LaunchError> {
    let mut found = BTreeMap::new();
    let entries = std::fs::read_dir(work.leases()).map_err(LaunchError::io("read", work.leases()))?;
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().replacen('-', ":", 1);
        let Ok(lease) = name.parse::<Lease>() else { continue };
        if lease::is_held(work, &lease) {
            let (holder, since) = lease::noted(work, &lease);
            found.insert(lease.clone(), Holding { lease, holder, since });
        }
    }
    for lease in hostwide::all(work.measure_scope()) {
        if !found.contains_key(&lease) {
            let (holder, since) = hostwide::holder(&lease, work.measure_scope());
            found.insert(lease.clone(), Holding { lease, holder, since });
        }
    }
    Ok(found.into_values().collect())
}

/// The living processes of all servers of this work folder.
pub fn our_processes(work: &WorkFolder) -> Result<BTreeSet<u32>, LaunchError> {
    let mut ours = BTreeSet::new();
    for folder in Folder::all(work)?.iter().filter(|folder| !folder.is_of_another_boot()) {
        let living = Marks::of(folder).living().map_err(LaunchError::io("read", "/proc"))?;
        ours.extend(living.iter().map(|stat| stat.process.pid));
    }
    Ok(ours)
}

/// Who listens on a port, in words; `None` where nobody does.
pub fn port_holder(port: u16) -> Option<String> {
    let is_taken = super::port::listeners(port).is_ok_and(|listeners| !listeners.is_empty());
    is_taken.then(|| super::port::holder(port))
}

/// The name of a process, and whether it was started by an orch; `None` where it cannot be looked at.
pub fn process_name(pid: u32) -> Option<String> {
    super::process::stat(pid).map(|stat| stat.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let (work, other) = (folder.path().join("a/orch"), folder.path().join("b/orch"));
        let (work, other) = (WorkFolder::at(work).unwrap(), WorkFolder::at(other).unwrap());
        let (own, foreign) = (format!("GPU-own-{}", std::process::id()), format!("GPU-other-{}", std::process::id()));
        work.reserve(&Lease::Gpu(own.clone()), "run r1").unwrap();
        other.reserve(&Lease::Gpu(foreign.clone()), "run r2").unwrap();
        let told = holdings(&work).unwrap();
        let holder = |uuid: &String| {
            told.iter().find(|held| held.lease == Lease::Gpu(uuid.clone())).map(|held| held.holder.clone())
        };
        assert_eq!(holder(&own).unwrap(), "run r1");
        assert_eq!(holder(&foreign).unwrap(), "run r2, of another work folder");
        work.unreserve(&Lease::Gpu(own.clone()));
        assert!(holdings(&work).unwrap().iter().all(|held| held.lease != Lease::Gpu(own.clone())));
        assert_eq!(our_processes(&work).unwrap(), BTreeSet::new());
    }
}
