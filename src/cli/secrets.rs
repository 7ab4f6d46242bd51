//! Values of secrets, from the environment or from a file that only its owner can read.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A secret that cannot be had.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub(crate) enum SecretError {
    /// It is nowhere.
    #[error("the secret `{name}` is not set")]
    #[diagnostic(
        code(orch::secret::missing),
        help("set {name} in the environment, or {name}_FILE to a file that only you can read (mode 0600)")
    )]
    Missing {
        /// Its name.
        name: String,
    },
    /// Others can read its file.
    #[error("others can read the file of the secret `{name}`: {} has mode {mode:04o}", path.display())]
    #[diagnostic(code(orch::secret::open), help("chmod 600 {}", path.display()))]
    Open {
        /// Its name.
        name: String,
        /// Its file.
        path: PathBuf,
        /// The file's mode.
        mode: u32,
    },
    /// Its file cannot be read.
    #[error("cannot read the file of the secret `{name}`, {}: {source}", path.display())]
    #[diagnostic(code(orch::secret::file))]
    File {
        /// Its name.
        name: String,
        /// Its file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Values by name. The environment wins over the file that `NAME_FILE` names.
pub(crate) fn find(names: &[String]) -> Result<BTreeMap<String, String>, SecretError> {
    names.iter().map(|name| Ok((name.clone(), value(name)?))).collect()
}

fn value(name: &str) -> Result<String, SecretError> {
    if let Ok(value) = std::env::var(name) {
        return Ok(value);
    }
    let Some(path) = std::env::var_os(format!("{name}_FILE")).map(PathBuf::from) else {
        return Err(SecretError::Missing { name: name.to_owned() });
    };
    let cannot = |source| SecretError::File { name: name.to_owned(), path: path.clone(), source };
    let mode = std::fs::metadata(&path).map_err(cannot)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretError::Open { name: name.to_owned(), path, mode });
    }
    let text = std::fs::read_to_string(&path).map_err(cannot)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
