//! A model of the hub, fetched by the client that the engine itself has.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

use super::super::PreflightError;
use super::super::look::Teller;
use super::Staged;
use crate::event::{Event, Scope};
use crate::profile::Profile;
use crate::units;

const SCRIPT: &str = include_str!("hub.py");

/// What is to be fetched.
pub(super) struct Repository<'a> {
    pub(super) key: &'static str,
    pub(super) name: &'a str,
    pub(super) revision: Option<&'a str>,
}

/// Why it was not.
pub(super) enum Failed {
    /// There is nothing to fetch it with.
    NoClient,
    /// It cannot be had.
    Error(PreflightError),
}

/// A line of the script.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Said {
    Resolved { commit: String, files: u64, bytes: u64 },
    Progress { bytes: u64, total: u64 },
    Done { path: PathBuf, commit: String, files: u64, bytes: u64, fetched: bool, checked: bool },
    Failed { kind: String, why: String },
}

/// The Python of an engine's environment: that of `engine.install`, else the program itself if it is one, else the one
/// beside the program.
pub(super) fn python(executable: Option<&str>, environment: Option<&Path>) -> Option<PathBuf> {
    let of_environment = environment.map(|environment| environment.join("bin/python"));
    let program = executable.map(Path::new);
    let itself =
        program.filter(|program| program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python")));
    let beside = program.and_then(Path::parent).map(|folder| folder.join("python3"));
    [of_environment, itself.map(Path::to_owned), beside].into_iter().flatten().find(|python| python.is_file())
}

/// Fetches it, and says each second how far it is.
pub(super) async fn fetch(
    python: &Path,
    repository: &Repository<'_>,
    profile: &Profile,
    teller: &Teller<'_>,
) -> Result<Staged, Failed> {
    let Repository { key, name, revision } = *repository;
    let missing = |why: String, help: &str| {
        Failed::Error(PreflightError::ModelMissing { key, model: name.to_owned(), why, help: help.to_owned() })
    };
    let cannot = |error: std::io::Error| {
        missing(format!("the hub client cannot be run: {error}"), "look at the engine's environment")
    };
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT, name, revision.unwrap_or("")]);
    // Where the engine will look for it. Values of secrets come from orch's own environment, as for the engine.
    command.envs(
        profile.env.iter().filter(|(name, _)| {
            name.starts_with("HF_") || name.starts_with("HUGGINGFACE_") || *name == "XDG_CACHE_HOME"
        }),
    );
    command.env("HF_HUB_DISABLE_PROGRESS_BARS", "1").env("PYTHONWARNINGS", "ignore");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(cannot)?;
    let (Some(output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(missing("the hub client says nothing".to_owned(), "look at the engine's environment"));
    };
    let words = tokio::spawn(async move {
        let mut text = Vec::new();
        let _ = (&mut errors).take(1 << 16).read_to_end(&mut text).await;
        // What is beyond that is read as well, or the client would wait for it.
        let _ = tokio::io::copy(&mut errors, &mut tokio::io::sink()).await;
        String::from_utf8_lossy(&text).into_owned()
    });
    let began = Instant::now();
    let tell = |what: String| {
        let what = format!("{what}, {} s", began.elapsed().as_secs());
        teller.0.emit(Scope::Run, Event::installing(what)).map_err(|error| Failed::Error(error.into()))
    };
    tell(format!("asking the hub for {name}"))?;
    let mut lines = BufReader::new(output).lines();
    let mut end = None;
    while let Some(line) = lines.next_line().await.map_err(cannot)? {
        match serde_json::from_str::<Said>(&line) {
            Ok(Said::Resolved { commit, files, bytes }) => {
                let commit = commit.get(..12).unwrap_or(&commit).to_owned();
                tell(format!("fetching {name} at {commit}: {files} files of {}", units::bytes_text(bytes)))?;
            }
            Ok(Said::Progress { bytes, total }) => {
                tell(format!("fetching {name}: {} of {}", units::bytes_text(bytes), units::bytes_text(total)))?;
            }
            Ok(said) => end = Some(said),
            // A library that prints.
            Err(_) => {}
        }
    }
    let _ = child.wait().await;
    match end {
        Some(Said::Done { path, commit, files, bytes, fetched, checked }) => {
            let asked = name.to_owned();
            Ok(Staged { key, asked, path, commit: Some(commit), files, bytes, fetched, checked })
        }
        Some(Said::Failed { kind, .. }) if kind == "no_client" => Err(Failed::NoClient),
        Some(Said::Failed { kind, why }) => Err(missing(why, help(&kind))),
        _ => {
            let words = words.await.unwrap_or_default();
            let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
            Err(missing(format!("the hub client ended early: {last}"), "look at the engine's environment"))
        }
    }
}

fn help(kind: &str) -> &'static str {
    match kind {
        "not_found" => "mend the name or the revision; a private one needs HF_TOKEN",
        "denied" => "accept the licence of the model on the hub, and set HF_TOKEN where orch runs",
        "size" => "a file of the hub's cache is damaged: remove it there and fetch again",
        "moved" => "set `model.revision` to a commit",
        _ => "fetch it once with a network (`orch fetch PROFILE`), or name a local folder",
    }
}
