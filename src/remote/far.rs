//! Commands of orch itself on a host: the placed program with the same words, in one round trip.

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::place::{self, FIND_WORK, place};
use super::{Program, RemoteError, Settings};
use crate::host::{End, Host, Output, Words};

/// Becomes the program, with the words after the first six. The environment says what the machine is called by whoever
/// asks ([`crate::preflight::HOST_NAME`]), where its records are, and how wide their screen is.
const BECOME: &str = r#"
n=$1; c=$2; shift 2
if [ ! -x "$p" ]; then echo "orch is not placed" >&2; exit 97; fi
ORCH_WORK=$w; ORCH_RESULTS=$w/results; ORCH_HOST_NAME=$n
export ORCH_WORK ORCH_RESULTS ORCH_HOST_NAME
if [ -n "$c" ]; then COLUMNS=$c; export COLUMNS; fi
cd "$w" || exit 96
exec "$p" "$@"
"#;
/// What [`BECOME`] ends with when there is no program, and what it says then.
const NOT_PLACED: (i32, &[u8]) = (97, b"orch is not placed\n");

/// orch on a host.
#[derive(Clone, Debug)]
pub struct Far {
    name: String,
    settings: Settings,
    program: Program,
    columns: Option<u16>,
}

/// What a command there wrote, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Standard output.
    pub stdout: Bytes,
    /// Standard error.
    pub stderr: Bytes,
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
}

impl Far {
    /// This program on the host of that name.
    pub fn new(name: &str, settings: Settings, program: Program) -> Self {
        Far { name: name.to_owned(), settings, program, columns: None }
    }

    /// The same, for a screen so wide.
    #[must_use]
    pub fn for_columns(self, columns: Option<u16>) -> Self {
        Far { columns, ..self }
    }

    /// The host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the host's entry says.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs the placed program with these words, and puts it there first where it is not.
    pub async fn orch<H: Host>(&self, host: &H, words: &[String], stdin: Bytes) -> Result<Said, RemoteError> {
        self.run(host, words, stdin, None).await
    }

    /// The same, after what the host's entry says sets up the engine's environment.
    pub async fn orch_activated<H: Host>(&self, host: &H, words: &[String], stdin: Bytes) -> Result<Said, RemoteError> {
        self.run(host, words, stdin, self.settings.activate.as_deref()).await
    }

    async fn run<H: Host>(
        &self,
        host: &H,
        words: &[String],
        stdin: Bytes,
        activate: Option<&str>,
    ) -> Result<Said, RemoteError> {
        let command = self.command(words, activate)?;
        let output = host.run(&command, stdin.clone()).await?;
        if !is_not_placed(&output) {
            return Ok(said(output));
        }
        place(host, &self.name, self.settings.work.as_deref(), &self.program).await?;
        let output = host.run(&command, stdin).await?;
        if is_not_placed(&output) {
            return Err(place::failed(&self.name, "find its own program", &output));
        }
        Ok(said(output))
    }

    fn command(&self, words: &[String], activate: Option<&str>) -> Result<Words, RemoteError> {
        // What a person wrote for their own shell stands before ours, and cannot reach into it.
        let script = format!("{}\n{FIND_WORK}{BECOME}", activate.unwrap_or_default());
        let file_name = self.program.file_name();
        let columns = self.columns.map(|columns| columns.to_string()).unwrap_or_default();
        let work = self.settings.work.as_deref().unwrap_or_default();
        let first = ["sh", "-c", &script, "orch", work, &file_name, &self.name, &columns];
        Ok(Words::new(first.into_iter().chain(words.iter().map(String::as_str)))?)
    }

    /// Runs one of orch's own commands there ([`super::beside`]) and reads what it answers.
    pub async fn ask<H: Host, T: DeserializeOwned>(
        &self,
        host: &H,
        what: &str,
        words: &[&str],
        stdin: Bytes,
    ) -> Result<T, RemoteError> {
        let words: Vec<String> = ["beside"].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let said = self.orch(host, &words, stdin).await?;
        self.read(what, &said)
    }

    /// Reads what one of orch's own commands answered.
    pub fn read<T: DeserializeOwned>(&self, what: &str, said: &Said) -> Result<T, RemoteError> {
        let failed = |said: String| RemoteError::Beside { host: self.name.clone(), what: what.to_owned(), said };
        if said.code != Some(0) {
            return Err(failed(String::from_utf8_lossy(&said.stderr).trim().to_owned()));
        }
        serde_json::from_slice(&said.stdout).map_err(|error| failed(format!("its answer does not read: {error}")))
    }
}

/// Banners may come before what we said.
fn is_not_placed(output: &Output) -> bool {
    output.end == End::Code(NOT_PLACED.0) && output.stderr.ends_with(NOT_PLACED.1)
}

fn said(output: Output) -> Said {
    let code = match output.end {
        End::Code(code) => Some(code),
        End::Signal(_) => None,
    };
    Said { stdout: output.stdout, stderr: output.stderr, code }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::host::Local;

    fn far(folder: &Path, text: &str) -> Far {
        let path = folder.join("program");
        std::fs::write(&path, format!("#!/bin/sh\n[ \"$1\" = --version ] && {{ echo orch 1; exit; }}\n{text}\n"))
            .unwrap();
        let program = Program::runner(&path, "orch 1").unwrap().passing_for(std::env::consts::ARCH);
        let work = folder.join("a b'$x").display().to_string();
        Far::new("far", Settings { work: Some(work), ..Settings::default() }, program)
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[tokio::test]
    async fn the_words_arrive_as_they_are_and_the_code_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let far = far(folder.path(), "printf '%s|' \"$@\" \"$ORCH_HOST_NAME\" \"$COLUMNS\"; cat; echo no >&2; exit 6");
        let far = far.for_columns(Some(99));
        for _ in 0..2 {
            let said = far.orch(&Local, &words(&["ps", "$(x) 'y'", ""]), "in".into()).await.unwrap();
            assert_eq!(&said.stdout[..], b"ps|$(x) 'y'||far|99|in");
            assert_eq!((&said.stderr[..], said.code), (&b"no\n"[..], Some(6)));
        }
    }

    #[tokio::test]
    async fn a_shell_sets_up_the_engine_before_a_run_and_for_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut far = far(folder.path(), "echo \"$TOOL\"; test \"$1\" = signal && kill -9 $$");
        far.settings.activate = Some("TOOL=there; export TOOL".to_owned());
        let said = far.orch_activated(&Local, &words(&["run"]), Bytes::new()).await.unwrap();
        assert_eq!(&said.stdout[..], b"there\n");
        let said = far.orch(&Local, &words(&["signal"]), Bytes::new()).await.unwrap();
        assert_eq!((&said.stdout[..], said.code), (&b"\n"[..], None), "a signal is no exit code");
    }

    #[tokio::test]
    async fn an_answer_that_does_not_read_is_told_with_what_was_asked() {
        let folder = tempfile::tempdir().unwrap();
        let far = far(folder.path(), "echo '{\"a\": 1}'; test \"$2\" = look || { echo broken >&2; exit 1; }");
        let answer: serde_json::Value = far.ask(&Local, "look", &["look"], Bytes::new()).await.unwrap();
        assert_eq!(answer["a"], 1);
        let error = far.ask::<_, u32>(&Local, "look", &["look"], Bytes::new()).await.unwrap_err().to_string();
        assert!(error.starts_with("orch on far could not look: its answer does not read: "), "{error}");
        let error = far.ask::<_, u32>(&Local, "pack", &["pack"], Bytes::new()).await.unwrap_err().to_string();
        assert_eq!(error, "orch on far could not pack: broken");
    }
}
