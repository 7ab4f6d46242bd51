//! A container engine, driven through its own command `docker` (or what answers to that name).
//!
//! A container is ours by its label and never by its name. What is stopped or removed is named by the id that was read
//! together with the label.

use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::servers::Folder;
use super::{LaunchError, command};
use crate::render::docker::Image;

/// The label that says which run a container is of.
pub const RUN_LABEL: &str = "orch.run";
/// The label that says which deployment a container is.
pub const DEPLOYMENT_LABEL: &str = "orch.deployment";

/// The mark of a container: a label and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// [`RUN_LABEL`] or [`DEPLOYMENT_LABEL`].
    pub label: String,
    /// The run's id, or the deployment's.
    pub value: String,
}

/// The file of a server's folder that says which container it is.
pub const MARK_FILE: &str = "container.json";

/// A container as its engine tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its name, without the slash.
    pub name: String,
    /// Whether it runs.
    pub running: bool,
    /// How its main process ended, once it did.
    pub exit_code: Option<i32>,
    /// Whether the kernel killed it for its memory.
    pub oom_killed: bool,
    /// What the engine says went wrong.
    pub error: String,
    /// How often the engine has started it again.
    pub restarts: u64,
    /// The host's pid of its main process.
    pub pid: Option<u32>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Runs `docker` with these words, to its end.
pub fn docker(words: &[&str]) -> Result<Output, LaunchError> {
    let failed = |error: io::Error| LaunchError::Docker { what: words.join(" "), why: error.to_string() };
    // Ending and removing a container waits for its server, which the engine itself bounds.
    let limit = match words.first() {
        Some(&("stop" | "rm" | "run" | "start")) => command::ACT,
        _ => command::ASK,
    };
    command::output(Command::new("docker").args(words), limit).map_err(failed)
}

/// Runs it and takes what it printed; else what it said went wrong.
fn said(words: &[&str]) -> Result<String, LaunchError> {
    let output = docker(words)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(refused(words, &output)),
    }
}

fn refused(words: &[&str], output: &Output) -> LaunchError {
    let text = String::from_utf8_lossy(&output.stderr);
    let why = text.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("See ")).unwrap_or("");
    LaunchError::Docker { what: words.join(" "), why: why.trim().to_owned() }
}

/// The engine's version, which says that one answers.
pub fn engine() -> Result<String, LaunchError> {
    said(&["version", "--format", "{{.Server.Version}}"])
}

/// Whether the engine gives GPUs by the container device interface and not by `--gpus`.
pub fn gives_by_cdi() -> bool {
    let info: Value = said(&["info", "--format", "{{json .}}"])
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let runtime = info["Runtimes"].as_object().is_some_and(|runtimes| runtimes.contains_key("nvidia"));
    let devices = info["DiscoveredDevices"].as_array().into_iter().flatten();
    let named = devices.filter_map(|device| device["ID"].as_str()).any(|id| id.starts_with("nvidia.com/gpu="));
    named && !runtime
}

/// An image that is here; `None` when it is not.
pub fn image(asked: &str) -> Result<Option<Image>, LaunchError> {
    let words = ["image", "inspect", asked];
    let output = docker(&words)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).to_lowercase();
        return match text.contains("no such image") || text.contains("image not known") {
            true => Ok(None),
            false => Err(refused(&words, &output)),
        };
    }
    let read: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| LaunchError::Docker { what: words.join(" "), why: error.to_string() })?;
    let found = &read[0];
    let words = |value: &Value| match value {
        Value::Array(words) => words.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect(),
        Value::String(word) => vec![word.clone()],
        _ => Vec::new(),
    };
    let repository = repository(asked);
    let digests = found["RepoDigests"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let digest = digests.map(str::to_owned).find(|digest| same_repository(digest, repository));
    let id = found["Id"].as_str().unwrap_or(asked).to_owned();
    Ok(Some(Image {
        asked: asked.to_owned(),
        resolved: digest.unwrap_or(id),
        entrypoint: Some(words(&found["Config"]["Entrypoint"])),
        labels: serde_json::from_value(found["Config"]["Labels"].clone()).unwrap_or_default(),
    }))
}

/// `repository` of `repository:tag`, `repository@digest` or `host:port/repository:tag`.
fn repository(asked: &str) -> &str {
    let name = asked.split('@').next().unwrap_or(asked);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

fn same_repository(digest: &str, repository: &str) -> bool {
    let named = digest.split('@').next().unwrap_or_default();
    let plain = |name: &str| name.trim_start_matches("docker.io/").trim_start_matches("library/").to_owned();
    plain(named) == plain(repository)
}

/// Fetches an image. Cancelled with its future.
pub async fn pull(asked: &str) -> Result<(), LaunchError> {
    let words = ["pull", asked];
    let failed = |why: String| LaunchError::Docker { what: words.join(" "), why };
    let output = tokio::process::Command::new("docker")
        .args(words)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(refused(&words, &output)) }
}

/// The container of this id or name; `None` when there is none.
pub fn inspect(which: &str) -> Result<Option<Container>, LaunchError> {
    let words = ["inspect", "--type", "container", which];
    let output = docker(&words)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).to_lowercase();
        return match text.contains("no such") {
            true => Ok(None),
            false => Err(refused(&words, &output)),
        };
    }
    let read: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| LaunchError::Docker { what: words.join(" "), why: error.to_string() })?;
    let (found, state) = (&read[0], &read[0]["State"]);
    let running = state["Running"].as_bool().unwrap_or(false);
    let code = state["ExitCode"].as_i64().and_then(|code| i32::try_from(code).ok());
    Ok(Some(Container {
        id: found["Id"].as_str().unwrap_or(which).to_owned(),
        name: found["Name"].as_str().unwrap_or_default().trim_start_matches('/').to_owned(),
        running,
        exit_code: code.filter(|_| !running && state["Status"] != "created"),
        oom_killed: state["OOMKilled"].as_bool().unwrap_or(false),
        error: state["Error"].as_str().unwrap_or_default().to_owned(),
        restarts: found["RestartCount"].as_u64().unwrap_or(0),
        pid: state["Pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0),
        labels: serde_json::from_value(found["Config"]["Labels"].clone()).unwrap_or_default(),
    }))
}

/// Every container with this mark, running or not.
pub fn find(mark: &Mark) -> Result<Vec<Container>, LaunchError> {
    let filter = format!("label={}={}", mark.label, mark.value);
    let ids = said(&["ps", "--all", "--no-trunc", "--quiet", "--filter", &filter])?;
    let mut found = Vec::new();
    for id in ids.lines().map(str::trim).filter(|id| !id.is_empty()) {
        // Looked at again, since what is found here may be stopped and removed.
        if let Some(container) = inspect(id)?
            && container.labels.get(&mark.label) == Some(&mark.value)
        {
            found.push(container);
        }
    }
    Ok(found)
}

/// Stops every container with this mark and removes it. Its own stop signal and time apply; then the engine kills it.
pub fn end(mark: &Mark) -> Result<(), LaunchError> {
    for container in find(mark)? {
        stop(&container)?;
        remove(&container)?;
    }
    Ok(())
}

/// Stops a container; it stays, so that it can be looked at or started again.
pub fn stop(container: &Container) -> Result<(), LaunchError> {
    if container.running {
        said(&["stop", &container.id])?;
    }
    Ok(())
}

/// Removes a container, running or not.
pub fn remove(container: &Container) -> Result<(), LaunchError> {
    match said(&["rm", "--force", &container.id]) {
        Err(LaunchError::Docker { why, .. }) if why.to_lowercase().contains("no such container") => Ok(()),
        removed => removed.map(drop),
    }
}

/// The mark of the container that a server of ours is, if it is one.
pub(crate) fn mark_of(folder: &Folder) -> Option<Mark> {
    folder.read(&format!("files/{MARK_FILE}"))
}

/// Whether the container of a server runs. Where its engine cannot be asked, nobody knows, and it may.
pub(crate) fn lives(folder: &Folder) -> bool {
    mark_of(folder).is_some_and(|mark| find(&mark).map_or(true, |found| found.iter().any(|one| one.running)))
}

/// Ends what is left of a server's container; its client may be gone and the container not.
pub(crate) async fn end_of(folder: &Folder) -> Result<(), LaunchError> {
    let Some(mark) = mark_of(folder) else { return Ok(()) };
    let ended = tokio::task::spawn_blocking(move || end(&mark)).await;
    ended.unwrap_or_else(|panic| Err(LaunchError::Docker { what: "stop".to_owned(), why: panic.to_string() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_told_from_a_port_and_a_digest_from_both() {
        for (asked, expected) in [
            ("vllm/vllm-openai:v0.11.0", "vllm/vllm-openai"),
            ("registry:5000/vllm", "registry:5000/vllm"),
            ("registry:5000/vllm:v1", "registry:5000/vllm"),
            ("vllm@sha256:01", "vllm"),
        ] {
            assert_eq!(repository(asked), expected);
        }
        assert!(same_repository("docker.io/library/ubuntu@sha256:01", "ubuntu"));
        assert!(!same_repository("other/vllm@sha256:01", "vllm"));
    }
}
