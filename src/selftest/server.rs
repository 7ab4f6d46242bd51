//! The simulated engine as a process of its own, for as long as a course lasts.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{Course, SelfTestError};

/// How long it may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running one. Dropping it kills it.
pub(super) struct SimServer {
    child: Child,
    url: String,
    ledger: PathBuf,
}

impl SimServer {
    pub(super) async fn start(
        orch: &Path,
        course: &Course,
        core: Option<usize>,
        folder: &Path,
    ) -> Result<Self, SelfTestError> {
        let (scenario, ledger) = (folder.join("scenario.yaml"), folder.join("ledger.jsonl"));
        std::fs::write(&scenario, yaml(course))
            .map_err(|source| SelfTestError::File { path: scenario.clone(), source })?;
        let mut command = Command::new(orch);
        command.arg("sim").arg("--scenario").arg(&scenario).args(["--port", "0"]).arg("--ledger").arg(&ledger);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| SelfTestError::Server(error.to_string()))?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        if let (Some(core), Some(id)) = (core, id) {
            // A core that cannot be had makes it less exact, not wrong.
            let mut set = nix::sched::CpuSet::new();
            let _ = set.set(core).and_then(|()| nix::sched::sched_setaffinity(Pid::from_raw(id), &set));
        }
        let stderr = child.stderr.take().ok_or_else(|| SelfTestError::Server("it cannot be heard".to_owned()))?;
        let mut lines = BufReader::new(stderr).lines();
        let url = tokio::time::timeout(PATIENCE, async {
            let mut said = String::new();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((_, rest)) = line.split_once("listening at ") {
                    return Ok(rest.split(',').next().unwrap_or(rest).to_owned());
                }
                said.push_str(&line);
                said.push('\n');
            }
            Err(SelfTestError::Server(said.trim().to_owned()))
        });
        let late = |_| SelfTestError::Server(format!("it does not listen after {} s", PATIENCE.as_secs()));
        let url = url.await.map_err(late)??;
        // Nobody reads on, but a pipe that is full would stop it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(SimServer { child, url, ledger })
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    /// Ends it, and gives its ledger.
    pub(super) async fn stop(mut self) -> Result<PathBuf, SelfTestError> {
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(_)) => Ok(self.ledger),
            Ok(Err(error)) => Err(SelfTestError::Server(error.to_string())),
            Err(_) => Err(SelfTestError::Server(format!("it does not end after {} s", PATIENCE.as_secs()))),
        }
    }
}

fn yaml(course: &Course) -> String {
    let Course { ttft, gap, tokens_per_chunk, .. } = course;
    let (ttft, gap) = (ttft.as_millis(), gap.as_millis());
    format!(
        "as: vllm\nseed: 1\nserved_name: simulated\nstop: {{drain: none}}\n\
         speed: {{ttft: {ttft}ms, step: {gap}ms, tokens_per_step: {tokens_per_chunk}, first_tokens: {tokens_per_chunk}}}\n"
    )
}
