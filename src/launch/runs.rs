//! Where the runs of this machine keep their records: a line each, so that one is found whatever `--results` says.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{LaunchError, WorkFolder};
use crate::host::{self, Mode};

/// How much is kept.
const BYTES: u64 = 256 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    run: String,
    folder: PathBuf,
}

impl WorkFolder {
    fn runs_path(&self) -> PathBuf {
        self.root().join("runs.jsonl")
    }

    /// Notes where the folder of a run is.
    pub fn remember_run(&self, run: &str, folder: &Path) -> Result<(), LaunchError> {
        let path = self.runs_path();
        self.append(run, folder).map_err(LaunchError::io("write", path))
    }

    fn append(&self, run: &str, folder: &Path) -> io::Result<()> {
        let path = self.runs_path();
        let line = Line { run: run.to_owned(), folder: std::path::absolute(folder)? };
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        if file.metadata()?.len() > BYTES {
            let all = std::fs::read_to_string(&path)?;
            let lines: Vec<&str> = all.lines().collect();
            let newer = lines[lines.len() / 2..].join("\n") + "\n";
            host::write_whole(&path, newer.as_bytes(), Mode::PRIVATE)?;
        }
        Ok(())
    }

    /// The runs that were begun on this machine with the folders of their records, oldest first.
    pub fn remembered_runs(&self) -> Vec<(String, PathBuf)> {
        let text = std::fs::read_to_string(self.runs_path()).unwrap_or_default();
        // Half a line, of a full disk say, is of a run that did not begin.
        let line = |line: &str| serde_json::from_str(line).ok().map(|Line { run, folder }| (run, folder));
        text.lines().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_again_and_the_oldest_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        assert_eq!(work.remembered_runs(), []);
        work.remember_run("r1", Path::new("/results/runs/r1")).unwrap();
        std::fs::write(work.runs_path(), std::fs::read_to_string(work.runs_path()).unwrap() + "{\"run\":\"torn")
            .unwrap();
        assert_eq!(work.remembered_runs(), [("r1".to_owned(), PathBuf::from("/results/runs/r1"))]);
        std::fs::remove_file(work.runs_path()).unwrap();
        for at in 0..6000 {
            work.remember_run(&format!("r{at}"), Path::new("/results/runs/some-run-of-a-usual-length")).unwrap();
        }
        let runs = work.remembered_runs();
        assert!(runs.len() < 6000 && runs.last().unwrap().0 == "r5999", "{}", runs.len());
        assert!(work.runs_path().metadata().unwrap().len() <= BYTES);
    }
}
