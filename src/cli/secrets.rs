//! Values of secrets, from the environment or from a file that only its owner can read.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use super::{Exit, Failure};
use crate::profile::Profile;

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
    /// Its value stands in the profile, which is kept with the results and shown.
    #[error("the value of the secret `{name}` stands in the profile, at `{key}`")]
    #[diagnostic(
        code(orch::secret::spelled_out),
        help("take it out there: what `secrets` names is given to the server in its environment, under that name")
    )]
    SpelledOut {
        /// Its name.
        name: String,
        /// Where it stands.
        key: String,
    },
}

/// Values by name, wherever a profile has gone that named them.
pub(crate) fn by_name(names: &[String]) -> Result<BTreeMap<String, String>, SecretError> {
    names.iter().map(|name| Ok((name.clone(), value(name)?))).collect()
}

/// Values of a profile's secrets by name. The environment wins over the file that `NAME_FILE` names. A value that stands
/// in the profile itself would be recorded and be on a command line, whatever key it hides in.
pub(crate) fn of(profile: &Profile) -> Result<BTreeMap<String, String>, Failure> {
    let wrong = |error| Failure::new(Exit::Usage, error);
    let found: Result<BTreeMap<_, _>, _> =
        profile.secrets.iter().map(|name| Ok((name.clone(), value(name)?))).collect();
    let found = found.map_err(wrong)?;
    let words = serde_json::to_value(profile).map_err(Failure::own)?;
    for (name, value) in &found {
        if let Some(key) = place(&words, "", value) {
            return Err(wrong(SecretError::SpelledOut { name: name.clone(), key }));
        }
    }
    Ok(found)
}

/// A shorter value is found in too many words by chance, so it counts only where it is all there is.
const LEAST_BYTES: usize = 6;

/// The first key whose text holds the value.
fn place(words: &Value, key: &str, value: &str) -> Option<String> {
    let below = |name: String| if key.is_empty() { name } else { format!("{key}.{name}") };
    match words {
        Value::Object(map) => map.iter().find_map(|(name, words)| place(words, &below(name.clone()), value)),
        Value::Array(list) => {
            list.iter().enumerate().find_map(|(at, words)| place(words, &format!("{key}[{at}]"), value))
        }
        Value::String(text) => {
            let assigned = || text.split_once('=').is_some_and(|(_, given)| given == value);
            let holds = match value.len() {
                0 => false,
                1..LEAST_BYTES => text == value || assigned(),
                _ => text.contains(value),
            };
            holds.then(|| key.to_owned())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_found_wherever_it_hides() {
        let profile = json!({
            "launch": {"via": {"docker": {"options": ["--shm-size=1g", "--label=token-hush-hush"]}}}, "env": {"A": "abc"}
        });
        let found = place(&profile, "", "hush-hush").unwrap();
        assert_eq!(found, "launch.via.docker.options[1]");
        assert_eq!(place(&profile, "", "abc").unwrap(), "env.A");
        assert_eq!(place(&profile, "", "ab"), None, "a short one is no part of a word");
        assert_eq!(place(&json!(["-e", "X=abc"]), "args", "abc").unwrap(), "args[1]");
        for absent in ["", "hush-hush-hush"] {
            assert_eq!(place(&profile, "", absent), None);
        }
    }
}
