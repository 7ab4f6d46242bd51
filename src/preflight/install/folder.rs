//! The folder of an environment, and when it counts as complete.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::InstallError;
use super::patch::{self, Patched};
use crate::host::{self, Mode};
use crate::profile::InstallVariant;

/// The folder of an environment.
pub(super) struct Folder {
    path: PathBuf,
    lock: PathBuf,
}

/// What `.complete` says.
#[derive(Serialize, Deserialize)]
struct Complete {
    variant: InstallVariant,
    made_at: Timestamp,
    python: Python,
    /// The files that patches changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    patched: Vec<Patched>,
}

/// The Python that an environment stands on. It cannot do with another one: its packages lie under the version's name,
/// and its programs name the interpreter.
#[derive(PartialEq, Serialize, Deserialize)]
struct Python {
    version: String,
    /// The interpreter itself, links followed.
    program: PathBuf,
}

impl Folder {
    pub(super) fn new(envs: &Path, key: &str) -> Self {
        Folder { path: envs.join(key), lock: envs.join(format!("{key}.lock")) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file to lock while it is made. It lies beside it, since the folder is cleared.
    pub(super) fn lock(&self) -> &Path {
        &self.lock
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join("install.log")
    }

    pub(super) fn python(&self) -> PathBuf {
        self.path.join("bin/python")
    }

    fn complete(&self) -> PathBuf {
        self.path.join(".complete")
    }

    /// Whether it was made to the end, and the Python that it stands on is still there. Runs nothing. That a patched
    /// file is another one by now is an error: somebody meant something by it.
    pub(super) fn is_complete(&self) -> Result<bool, InstallError> {
        let path = self.complete();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(InstallError::io("read", path)(error)),
        };
        let Ok(complete) = serde_json::from_slice::<Complete>(&text) else { return Ok(false) };
        let program = fs::canonicalize(self.python()).ok();
        let packages = self.path.join("site-packages");
        let is_whole = program.is_some_and(|program| program == complete.python.program) && packages.is_dir();
        if is_whole {
            patch::verify(&complete.patched, &packages)?;
        }
        Ok(is_whole)
    }

    /// Makes it new and empty, for its owner alone.
    pub(super) fn clear(&self) -> Result<(), InstallError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(InstallError::io("clear", &self.path)(error));
            }
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&self.path).map_err(InstallError::io("make", &self.path))
    }

    /// Says that it is complete, after all that is in it is on disk.
    pub(super) fn finish(&self, variant: &InstallVariant, patched: Vec<Patched>) -> Result<(), InstallError> {
        let packages = self.packages()?;
        let link = self.path.join("site-packages");
        symlink(packages, &link).map_err(InstallError::io("make the link", &link))?;
        let complete =
            Complete { variant: variant.clone(), made_at: Timestamp::now(), python: self.made_with()?, patched };
        let text = serde_json::to_vec_pretty(&complete)
            .map_err(|error| InstallError::io("write", self.complete())(error.into()))?;
        let folder = File::open(&self.path).map_err(InstallError::io("open", &self.path))?;
        // Else a loss of power right after could leave a whole `.complete` over packages that were never written.
        nix::unistd::syncfs(&folder).map_err(|error| InstallError::io("sync", &self.path)(error.into()))?;
        host::write_whole(&self.complete(), &text, Mode::PRIVATE)
            .map_err(InstallError::io("write", self.complete()))?;
        folder.sync_all().map_err(InstallError::io("sync", &self.path))
    }

    /// `lib/python3.12/site-packages`, whatever the version.
    pub(super) fn packages(&self) -> Result<PathBuf, InstallError> {
        let lib = self.path.join("lib");
        let entries = fs::read_dir(&lib).map_err(InstallError::io("read", &lib))?;
        for entry in entries {
            let entry = entry.map_err(InstallError::io("read", &lib))?;
            if entry.path().join("site-packages").is_dir() {
                return Ok(Path::new("lib").join(entry.file_name()).join("site-packages"));
            }
        }
        Err(InstallError::Incomplete { path: self.path.clone(), what: "site-packages" })
    }

    /// venv notes `version = 3.12.1`, uv `version_info = 3.12.1`.
    fn made_with(&self) -> Result<Python, InstallError> {
        let path = self.path.join("pyvenv.cfg");
        let text = fs::read_to_string(&path).map_err(InstallError::io("read", &path))?;
        let version = text.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            matches!(key.trim(), "version" | "version_info").then(|| value.trim().to_owned())
        });
        let version =
            version.ok_or(InstallError::Incomplete { path: self.path.clone(), what: "version in pyvenv.cfg" })?;
        let program = fs::canonicalize(self.python()).map_err(InstallError::io("find", self.python()))?;
        Ok(Python { version, program })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment as venv and pip leave it, standing on an interpreter `python3.1` in the same place.
    fn made(envs: &Path) -> Folder {
        let folder = Folder::new(envs, "k");
        folder.clear().unwrap();
        fs::create_dir_all(folder.path.join("lib/python3.1/site-packages/server")).unwrap();
        fs::create_dir(folder.path.join("bin")).unwrap();
        fs::write(envs.join("python3.1"), "").unwrap();
        symlink(envs.join("python3.1"), folder.python()).unwrap();
        fs::write(folder.path.join("pyvenv.cfg"), "home = /usr/bin\nversion = 3.1.4\n").unwrap();
        folder
    }

    fn variant() -> InstallVariant {
        InstallVariant {
            cpu: vec![],
            packages: vec![],
            executable: None,
            launcher: None,
            version: None,
            build_env: [].into(),
        }
    }

    #[test]
    fn it_counts_only_when_it_was_finished() {
        let envs = tempfile::tempdir().unwrap();
        let folder = made(envs.path());
        assert!(!folder.is_complete().unwrap());
        folder.finish(&variant(), Vec::new()).unwrap();
        assert!(folder.is_complete().unwrap());
        assert!(folder.path.join("site-packages/server").is_dir());
        let complete: Complete = serde_json::from_slice(&fs::read(folder.complete()).unwrap()).unwrap();
        assert_eq!(complete.python.version, "3.1.4");
        fs::write(folder.complete(), "{\"variant\"").unwrap();
        assert!(!folder.is_complete().unwrap());
    }

    #[test]
    fn another_python_in_the_same_place_makes_it_worthless() {
        let envs = tempfile::tempdir().unwrap();
        let folder = made(envs.path());
        folder.finish(&variant(), Vec::new()).unwrap();
        fs::write(envs.path().join("python3.2"), "").unwrap();
        fs::remove_file(envs.path().join("python3.1")).unwrap();
        assert!(!folder.is_complete().unwrap());
        symlink("python3.2", envs.path().join("python3.1")).unwrap();
        assert!(!folder.is_complete().unwrap());
    }

    #[test]
    fn an_installer_that_did_nothing_is_not_believed() {
        let envs = tempfile::tempdir().unwrap();
        let folder = Folder::new(envs.path(), "k");
        folder.clear().unwrap();
        fs::create_dir(folder.path.join("lib")).unwrap();
        let error = folder.finish(&variant(), Vec::new()).unwrap_err().to_string();
        assert!(error.ends_with("/k was installed and has no site-packages"), "{error}");
        assert!(!folder.is_complete().unwrap());
    }
}
