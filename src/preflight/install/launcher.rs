//! The program of a package that brings none: a Python file of the engine's templates, put into the environment.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::InstallError;
use crate::engine::EngineError;
use crate::profile::InstallVariant;

/// Gives the text of a file of the engine's folder under `templates/`, if it has such a one.
pub type Launchers<'a> = &'a (dyn Fn(&str) -> Result<Option<String>, EngineError> + Sync);

/// A launcher and the program that it becomes. Both are a part of what an environment holds, and so of its name.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct Launcher {
    /// Below `bin/`, or from the environment on.
    program: String,
    text: String,
}

/// The launcher of a variant, if it has one.
pub(super) fn of(variant: &InstallVariant, launchers: Launchers<'_>) -> Result<Option<Launcher>, InstallError> {
    let Some(name) = &variant.launcher else { return Ok(None) };
    let Some(program) = variant.executable.clone().filter(|program| !program.starts_with('/')) else {
        return Err(InstallError::UnnamedLauncher { name: name.clone() });
    };
    let text = launchers(name)?.ok_or_else(|| InstallError::NoLauncher { name: name.clone() })?;
    Ok(Some(Launcher { program, text }))
}

/// A shell's `exec` that is also a Python string, since a `#!` line is cut at 127 bytes and a state folder may be deep.
const HEAD: &str = "#!/bin/sh\n'''exec' \"$(dirname \"$0\")/python\" \"$0\" \"$@\"\n' '''\n";

impl Launcher {
    /// Puts it into an environment.
    pub(super) fn write(&self, environment: &Path) -> Result<(), InstallError> {
        let path = crate::render::in_environment(environment, &self.program);
        let write = || {
            fs::write(&path, format!("{HEAD}{}", self.text))?;
            fs::set_permissions(&path, Permissions::from_mode(0o755))
        };
        write().map_err(InstallError::io("write", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(executable: Option<&str>) -> InstallVariant {
        InstallVariant {
            cpu: Vec::new(),
            packages: Vec::new(),
            executable: executable.map(Into::into),
            launcher: Some("serve.py".into()),
            version: None,
            build_env: [].into(),
        }
    }

    #[test]
    fn it_runs_with_the_python_beside_it_and_its_words_whole() {
        let folder = tempfile::Builder::new().prefix("with space").tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let python = std::process::Command::new("sh").args(["-c", "command -v python3"]).output().unwrap();
        std::os::unix::fs::symlink(String::from_utf8(python.stdout).unwrap().trim(), bin.join("python")).unwrap();
        let text = "\"\"\"A page.\"\"\"\nimport sys\nprint(sys.argv[1:])\n";
        let launcher = of(&variant(Some("server")), &|_| Ok(Some(text.to_owned()))).unwrap().unwrap();
        launcher.write(folder.path()).unwrap();
        let output = std::process::Command::new(bin.join("server")).args(["--alias", "a b", "$HOME"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "['--alias', 'a b', '$HOME']\n");
    }

    #[test]
    fn one_that_is_nowhere_or_has_no_name_is_refused() {
        let error = of(&variant(Some("server")), &|_| Ok(None)).unwrap_err().to_string();
        assert_eq!(error, "`engine.install` names the launcher `serve.py`, which the engine's templates do not have");
        let error = of(&variant(None), &|_| Ok(None)).unwrap_err().to_string();
        assert_eq!(error, "`engine.install` names the launcher `serve.py` and no `executable` that it becomes");
    }
}
