//! The flags of the very build: what its own help names. Asked once for each version of a program, and kept in the work
//! folder, since some engines take half a minute to say it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::engine::{FlagList, Version};

/// How long a program may take to name its flags: an interpreter that imports an engine from a cold disk. vLLM 0.32.0, just
/// installed, took more than 90 s on two busy cores.
const PATIENCE: Duration = Duration::from_secs(240);

/// A program that can be asked for its flags.
pub(super) struct Asked<'a> {
    /// The program, and the words that make it say them.
    pub(super) command: Vec<String>,
    /// What the answer depends on, beside the words: the file of the program, or the image that it is in.
    pub(super) program: &'a str,
    pub(super) version: &'a Version,
}

impl Asked<'_> {
    /// The flags, as they were kept or are said now; else why they are not known.
    pub(super) async fn flags(&self, folder: &Path) -> Result<FlagList, String> {
        let place = self.place(folder);
        if let Ok(text) = std::fs::read_to_string(&place) {
            let list = FlagList::kept(&text);
            if !list.is_empty() {
                return Ok(list);
            }
        }
        let list = FlagList::of_help(&self.help().await?);
        if list.is_empty() {
            return Err(format!("`{}` names no flags", self.command.join(" ")));
        }
        // Who cannot write it asks again the next time.
        let _unkept = keep(&place, &format!("# {} {}\n{}", self.command.join(" "), self.version, list.text()));
        Ok(list)
    }

    /// Whether an answer is kept.
    pub(super) fn is_kept(&self, folder: &Path) -> bool {
        self.place(folder).exists()
    }

    /// One file for each version of a program: another file at the same path is another program.
    fn place(&self, folder: &Path) -> PathBuf {
        let mut digest = Sha256::new();
        for part in self.command.iter().map(String::as_str).chain([self.program, &self.version.0]) {
            digest.update(part.as_bytes());
            digest.update([0]);
        }
        if let Ok(meta) = std::fs::metadata(self.program) {
            digest.update(meta.len().to_le_bytes());
            let changed =
                meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            digest.update(changed.as_nanos().to_le_bytes());
        }
        let name: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        folder.join(format!("{name}.txt"))
    }

    async fn help(&self) -> Result<String, String> {
        let shown = self.command.join(" ");
        let Some((program, words)) = self.command.split_first() else { return Err("there is no program".to_owned()) };
        let output = Command::new(program)
            .args(words)
            // A narrow terminal would break its lines.
            .env("COLUMNS", "400")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(PATIENCE, output).await {
            Err(_) => Err(format!("`{shown}` said nothing in {} s", PATIENCE.as_secs())),
            Ok(Err(error)) => Err(format!("`{shown}` cannot be run: {error}")),
            Ok(Ok(output)) if !output.status.success() => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = said.trim().lines().last().unwrap_or_default().to_owned();
                Err(format!("`{shown}` ended with {}: {last}", output.status))
            }
            // Help may go to either.
            Ok(Ok(output)) => Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
        }
    }
}

fn keep(place: &Path, text: &str) -> std::io::Result<()> {
    let folder = place.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    // Under a name of this process's own first: nobody ever reads half of it.
    let new = folder.join(format!("new-{}", std::process::id()));
    std::fs::write(&new, text)?;
    std::fs::rename(new, place)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(folder: &Path, script: &str) -> String {
        let path = folder.join("server");
        std::fs::write(&path, format!("#!/bin/sh\necho asked >> {}/asked\n{script}\n", folder.display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn times(folder: &Path) -> usize {
        std::fs::read_to_string(folder.join("asked")).unwrap_or_default().lines().count()
    }

    async fn ask(program: &str, version: &str, folder: &Path) -> Result<FlagList, String> {
        let version = Version::from(version);
        let command = vec![program.to_owned(), "--help".to_owned()];
        Asked { command, program, version: &version }.flags(&folder.join("flags")).await
    }

    #[tokio::test]
    async fn a_program_is_asked_once_for_each_of_its_versions() {
        let folder = tempfile::tempdir().unwrap();
        let path =
            program(folder.path(), "echo '-t,    --threads N      number'; echo '--old-flag              x' >&2");
        for _ in 0..2 {
            let list = ask(&path, "1", folder.path()).await.unwrap();
            assert!(list.find("--threads").is_some() && list.find("--old-flag").is_some());
        }
        assert_eq!(times(folder.path()), 1);
        ask(&path, "2", folder.path()).await.unwrap();
        assert_eq!(times(folder.path()), 2);
        // Another program took its place.
        program(folder.path(), "echo '--other  y'; exit 0");
        assert!(ask(&path, "2", folder.path()).await.unwrap().find("--threads").is_none());
    }

    #[tokio::test]
    async fn a_program_that_does_not_say_is_told_and_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(folder.path(), "echo nothing");
        assert_eq!(ask(&path, "1", folder.path()).await, Err(format!("`{path} --help` names no flags")));
        program(folder.path(), "echo broken >&2; exit 3");
        let error = ask(&path, "1", folder.path()).await.unwrap_err();
        assert!(error.ends_with("ended with exit status: 3: broken"), "{error}");
        program(folder.path(), "echo '--x  y'");
        assert!(ask(&path, "1", folder.path()).await.is_ok());
    }
}
