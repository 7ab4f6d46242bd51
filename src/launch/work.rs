//! The folder that orch keeps on a host.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::lease::Held;
use super::{LaunchError, Lease};

/// The folder that orch keeps on a host: `envs/`, `leases/`, `servers/`. Its owner's alone, since the commands in it are
/// executed. Clones are the same folder, with the same leases in hand.
#[derive(Clone, Debug)]
pub struct WorkFolder {
    root: PathBuf,
    held: Arc<Mutex<BTreeMap<Lease, Held>>>,
    measure_scope: Option<String>,
}

/// The variable that sets the right to measure apart: whoever measures under the same word excludes each other, and nobody
/// else. For tests whose numbers do not matter; the journal names it.
pub const MEASURE_SCOPE: &str = "ORCH_MEASURE_SCOPE";

/// The variable that names the work folder, where it is not the usual one: `work:` of a host in `hosts.yaml`.
pub const WORK: &str = "ORCH_WORK";

impl WorkFolder {
    /// The user's own, at [`WorkFolder::place`]. Made if it is not there.
    pub fn find() -> Result<Self, LaunchError> {
        Self::at(Self::place()?)
    }

    /// Where the user's own is, whether or not it is there: `$ORCH_WORK`, `$XDG_STATE_HOME/orch`, else
    /// `~/.local/state/orch`.
    pub fn place() -> Result<PathBuf, LaunchError> {
        if let Some(work) = std::env::var_os(WORK).filter(|value| !value.is_empty()) {
            return Ok(PathBuf::from(work));
        }
        let state = match std::env::var_os("XDG_STATE_HOME").filter(|value| !value.is_empty()) {
            Some(state) => PathBuf::from(state),
            None => home()?.join(".local/state"),
        };
        Ok(state.join("orch"))
    }

    /// A given folder. Made if it is not there; refused if somebody else owns it or could write to it.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self, LaunchError> {
        let root = root.into();
        let refuse = |why: String| LaunchError::WorkFolder { path: root.clone(), why };
        if !root.is_absolute() {
            return Err(refuse("the path is not absolute".to_owned()));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(|error| refuse(error.to_string()))?;
        let meta = std::fs::metadata(&root).map_err(|error| refuse(error.to_string()))?;
        let own = nix::unistd::geteuid().as_raw();
        if meta.uid() != own {
            return Err(refuse(format!("it belongs to user {}, and this is user {own}", meta.uid())));
        }
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(refuse(format!("others may write to it (mode {mode:o})")));
        }
        if mode != 0o700 {
            // Readable by others only: ours to mend, and plans hold environments.
            std::fs::set_permissions(&root, Permissions::from_mode(0o700))
                .map_err(|error| refuse(error.to_string()))?;
        }
        for name in ["envs", "leases", "servers"] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(root.join(name))
                .map_err(|error| refuse(format!("cannot make {name}/: {error}")))?;
        }
        let measure_scope = std::env::var(MEASURE_SCOPE).ok().filter(|scope| !scope.is_empty());
        Ok(WorkFolder { root, held: Arc::default(), measure_scope })
    }

    /// The same, with the right to measure set apart under a word.
    #[must_use]
    pub fn measuring_apart(self, scope: &str) -> Self {
        WorkFolder { measure_scope: Some(scope.to_owned()), ..self }
    }

    /// Where the right to measure is set apart; `None` for that of the whole machine.
    pub(crate) fn measure_scope(&self) -> Option<&str> {
        self.measure_scope.as_deref()
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Environments that `engine.install` made.
    pub fn envs(&self) -> PathBuf {
        self.root.join("envs")
    }

    /// What is taken, one file each.
    pub fn leases(&self) -> PathBuf {
        self.root.join("leases")
    }

    /// Servers, one folder each.
    pub fn servers(&self) -> PathBuf {
        self.root.join("servers")
    }

    /// The leases that this process holds and has not handed to a server.
    pub(crate) fn held(&self) -> MutexGuard<'_, BTreeMap<Lease, Held>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn home() -> Result<PathBuf, LaunchError> {
    if let Some(home) = std::env::var_os("HOME").filter(|value| !value.is_empty()) {
        return Ok(PathBuf::from(home));
    }
    match nix::unistd::User::from_uid(nix::unistd::getuid()) {
        Ok(Some(user)) => Ok(user.dir),
        _ => Err(LaunchError::WorkFolder {
            path: PathBuf::from("~/.local/state/orch"),
            why: "this user has no home directory".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn it_is_made_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("state/orch")).unwrap();
        for path in [work.root().to_owned(), work.envs(), work.leases(), work.servers()] {
            assert_eq!(mode(&path), 0o700, "{}", path.display());
        }
        WorkFolder::at(work.root()).unwrap();
    }

    #[test]
    fn one_that_others_can_read_is_closed_and_one_that_they_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        WorkFolder::at(folder.path()).unwrap();
        assert_eq!(mode(folder.path()), 0o700);
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o770)).unwrap();
        let error = WorkFolder::at(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("others may write to it (mode 770)"), "{error}");
    }

    #[test]
    fn somebody_elses_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        // Root can give a folder away; anybody else finds one that is root's.
        let foreign = if nix::unistd::geteuid().is_root() {
            nix::unistd::chown(folder.path(), Some(12345.into()), None).unwrap();
            folder.path().to_owned()
        } else {
            PathBuf::from("/usr")
        };
        let error = WorkFolder::at(foreign).unwrap_err().to_string();
        assert!(error.contains("it belongs to user "), "{error}");
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orch");
        std::fs::write(&path, "").unwrap();
        let error = WorkFolder::at(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot use the work folder {}: ", path.display())), "{error}");
    }
}
