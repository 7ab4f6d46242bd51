//! An act on production, its stop or its start, in a process of its own.
//!
//! Whoever asks for it may be killed in the middle. The act goes on, since half a stop is neither; and who puts production
//! right after that waits for its end, or its start would be undone by a stop that comes later. So `undo/<key>.acting` is
//! locked before the process of the act is there. The process has the file for its standard input, which nothing that it
//! starts inherits: the lock is gone when it is, and a server that it leaves behind keeps nothing.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use miette::Diagnostic;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::deployments::read_json;
use super::error::DeployError;
use super::undo::{self, Undone, What};
use crate::launch::WorkFolder;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is stopped.
    Stop,
    /// It is started, if it is not up.
    Start,
}

impl Act {
    fn word(self) -> &'static str {
        match self {
            Act::Stop => "stop",
            Act::Start => "start",
        }
    }
}

impl std::str::FromStr for Act {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Act::Stop, Act::Start].into_iter().find(|act| act.word() == text).ok_or(format!("`{text}` is no act"))
    }
}

/// What the process of an act says at its end, if something went wrong.
#[derive(Debug, Serialize, Deserialize)]
struct Fault {
    why: String,
    help: Option<String>,
}

/// Has it done and returns when it is. An act that somebody who is gone has begun is waited for first.
pub async fn act(work: &WorkFolder, record: &Undone, act: Act, orch: &Path) -> Result<(), DeployError> {
    let failed = |why: String| DeployError::Act { why, help: None };
    let folder = undo::folder(work)?;
    let path = folder.join(format!("{}.acting", record.key));
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = opened.map_err(DeployError::io("open", &path))?;
    let locking = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await;
    let file = locking.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(DeployError::io("lock", &path))?;
    let running = Command::new(orch)
        .args(["supervise", "act", "--work"])
        .arg(work.root())
        .args(["--key", &record.key, act.word()])
        .stdin(Stdio::from(file))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(format!("cannot run {}: {error}", orch.display())))?;
    let output = running.wait_with_output().await.map_err(|error| failed(error.to_string()))?;
    match serde_json::from_slice::<Option<Fault>>(&output.stdout) {
        Ok(None) => Ok(()),
        Ok(Some(Fault { why, help })) => Err(DeployError::Act { why, help }),
        Err(_) => {
            Err(failed(format!("the process that was to {} it ended without a word: {}", act.word(), output.status)))
        }
    }
}

/// The act itself, in a process of its own. Whoever asked may be gone by its end, and it is done all the same.
pub async fn perform(work: &WorkFolder, key: &str, act: Act) -> Result<(), DeployError> {
    let path = undo::folder(work)?.join(format!("{key}.json"));
    let done = match read_json::<Undone>(&path)?.map(|record| record.what) {
        Some(What::Production(production)) => match act {
            Act::Stop => production.stop().await,
            Act::Start => production.start().await,
        },
        // It was put right before this process came to it.
        _ => Ok(()),
    };
    let fault = done
        .as_ref()
        .err()
        .map(|error| Fault { why: error.to_string(), help: error.help().map(|help| help.to_string()) });
    if let Ok(text) = serde_json::to_string(&fault) {
        let _ = writeln!(io::stdout().lock(), "{text}");
    }
    done
}
