//! Finds the engine's program.

use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::PreflightError;
use super::install::Environment;
use crate::profile::{EngineKind, Profile};

/// The program that is wanted: that of the installed variant, else the profile's, else a command's first word, else the
/// engine's usual one. `None` for an engine that is no program of its own.
pub(super) fn wanted(profile: &Profile, environment: Option<&Environment>, usual: Option<&str>) -> Option<String> {
    let of_variant = environment.and_then(|environment| {
        let program = environment.executable.as_ref()?;
        // A variant's path is one within its environment.
        let within = program.contains('/') && !program.starts_with('/');
        Some(if within { environment.path.join(program).display().to_string() } else { program.clone() })
    });
    let of_command = match profile.engine.kind {
        EngineKind::Command => profile.engine.command.first().cloned(),
        // It is this very program.
        EngineKind::Sim => std::env::current_exe().ok().map(|path| path.display().to_string()),
        _ => None,
    };
    of_variant.or_else(|| profile.engine.executable.clone()).or(of_command).or_else(|| usual.map(str::to_owned))
}

/// The program's absolute path: a name with a `/` is a path, another one is looked for in the environment, then on the
/// PATH.
pub(super) fn find(program: &str, environment: Option<&Path>) -> Result<String, PreflightError> {
    let mut places = Vec::new();
    if program.contains('/') {
        places.push(expand(program));
    } else {
        places.extend(environment.map(|environment| environment.join("bin").join(program)));
    }
    let mut looked = Vec::new();
    for place in &places {
        match runnable(place) {
            Ok(()) => return absolute(place),
            Err(why) => looked.push(format!("{} {why}", place.display())),
        }
    }
    if !program.contains('/') {
        match on_path(program) {
            Some(path) => return absolute(&path),
            None => looked.push(format!("it is not on the PATH ({})", path_text())),
        }
    }
    Err(PreflightError::ExecutableMissing { program: program.to_owned(), looked })
}

/// A program on the PATH. No process is started.
pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| runnable(program).is_ok())
}

/// `~/` is the user's home.
pub(super) fn expand(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

fn runnable(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err("is not there".to_owned()),
        Err(error) => Err(format!("cannot be looked at: {error}")),
        Ok(meta) if !meta.is_file() => Err("is no file".to_owned()),
        Ok(_) if access(path, AccessFlags::X_OK).is_err() => Err("may not be executed".to_owned()),
        Ok(_) => Ok(()),
    }
}

fn absolute(path: &Path) -> Result<String, PreflightError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.into_os_string().into_string().map_err(|path| PreflightError::NotUtf8 { path: path.into() })
}

fn path_text() -> String {
    match std::env::var_os("PATH") {
        Some(path) if !path.is_empty() => path.display().to_string(),
        _ => "which is empty".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_environment_comes_before_the_path() {
        let environment = tempfile::tempdir().unwrap();
        let own = environment.path().join("bin/sh");
        assert!(find("sh", Some(environment.path())).unwrap().ends_with("/bin/sh"));
        assert_ne!(find("sh", Some(environment.path())).unwrap(), own.to_str().unwrap());
        program(&own, 0o755);
        assert_eq!(find("sh", Some(environment.path())).unwrap(), own.to_str().unwrap());
    }

    #[test]
    fn a_missing_one_says_where_it_was_looked_for() {
        let environment = tempfile::tempdir().unwrap();
        let error = find("no-such-server", Some(environment.path())).unwrap_err().to_string();
        let inside = environment.path().join("bin/no-such-server");
        let expected = format!(
            "cannot find the program `no-such-server`: {} is not there; it is not on the PATH (",
            inside.display()
        );
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn a_path_is_taken_as_it_is_and_what_is_wrong_with_it_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let text = path.to_str().unwrap();
        program(&path, 0o644);
        let error = find(text, None).unwrap_err().to_string();
        assert_eq!(error, format!("cannot find the program `{text}`: {text} may not be executed"));
        program(&path, 0o755);
        assert_eq!(find(text, None).unwrap(), text);
        let folder = folder.path().to_str().unwrap();
        let error = find(folder, None).unwrap_err().to_string();
        assert!(error.ends_with(&format!("{folder} is no file")), "{error}");
    }
}
