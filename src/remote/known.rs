//! Which runs were begun from here on other hosts, so that whoever comes back needs to know nothing but a run's name.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::RemoteError;
use crate::host::{self, Mode};

/// How much is kept.
const BYTES: u64 = 256 << 10;

/// A run on another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarRun {
    /// Its id.
    pub run: String,
    /// The host's name.
    pub host: String,
    /// The file of hosts that named it, where one was given.
    pub hosts: Option<PathBuf>,
}

fn file(work: &Path) -> PathBuf {
    work.join("far.jsonl")
}

/// Notes one in the work folder of this machine.
pub fn remember(work: &Path, run: &FarRun) -> Result<(), RemoteError> {
    let path = file(work);
    append(&path, run).map_err(|source| RemoteError::File { what: "write", path, source })
}

fn append(path: &Path, run: &FarRun) -> io::Result<()> {
    let mut line = serde_json::to_vec(run)?;
    line.push(b'\n');
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(&line)?;
    if file.metadata()?.len() > BYTES {
        let all = std::fs::read_to_string(path)?;
        let lines: Vec<&str> = all.lines().collect();
        let newer = lines[lines.len() / 2..].join("\n") + "\n";
        host::write_whole(path, newer.as_bytes(), Mode::PRIVATE)?;
    }
    Ok(())
}

/// Those that were noted, oldest first.
pub fn known_runs(work: &Path) -> Vec<FarRun> {
    let text = std::fs::read_to_string(file(work)).unwrap_or_default();
    // Half a line, of a full disk say, is of a run that is found by its host's name still.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(known_runs(folder.path()), []);
        let run = |run: &str| FarRun { run: run.to_owned(), host: "far".to_owned(), hosts: None };
        remember(folder.path(), &run("r1")).unwrap();
        OpenOptions::new().append(true).open(file(folder.path())).unwrap().write_all(b"{\"run\":\n").unwrap();
        remember(folder.path(), &run("r2")).unwrap();
        assert_eq!(known_runs(folder.path()), [run("r1"), run("r2")]);
    }
}
