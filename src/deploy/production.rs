//! Production: the server of somebody else that `--displace` stops and brings back, by its own manager.

use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::error::DeployError;
use super::launcher::blocking;
use crate::gate;
use crate::host;
use crate::launch::systemd::Manager;
use crate::launch::{LaunchError, docker};
use crate::units;

/// So many generated tokens are believed.
const PROOF_TOKENS: u32 = 8;
/// How long production may take to serve again, unless `hosts.yaml` says otherwise.
const READY: Duration = Duration::from_secs(20 * 60);
/// How long a command that only asks may take.
const STATUS: Duration = Duration::from_secs(30);
/// How long a command that stops it may take.
const STOP: Duration = Duration::from_secs(10 * 60);

/// What `hosts.yaml` says of a host's production.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Production {
    /// What it is.
    #[serde(flatten)]
    pub what: What,
    /// Where it answers, without a path: asked whether it is idle, and whether it serves again.
    pub url: String,
    /// The model that it is asked for; the only one unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For how long it must not have served a request; `None` is `unchecked`.
    #[serde(
        default,
        serialize_with = "units::write_optional_duration",
        deserialize_with = "units::read_optional_duration"
    )]
    pub idle: Option<Duration>,
    /// How long it may take to serve again.
    #[serde(
        default,
        serialize_with = "units::write_optional_duration",
        deserialize_with = "units::read_optional_duration"
    )]
    pub ready: Option<Duration>,
}

/// What keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A unit.
    Unit {
        /// Its name.
        name: String,
        /// Who has it.
        manager: Manager,
    },
    /// A container.
    Container {
        /// Its name, or the id that it had when it was stopped.
        name: String,
    },
    /// Something that has commands of its own.
    Command {
        /// Starts it; does nothing when it is up.
        start: Vec<String>,
        /// Stops it.
        stop: Vec<String>,
        /// Ends with 0 when it is up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<Vec<String>>,
    },
}

impl Production {
    /// What a person calls it.
    pub fn shown(&self) -> String {
        match &self.what {
            What::Unit { name, .. } => name.clone(),
            What::Container { name } => format!("container {name}"),
            What::Command { start, .. } => format!("production of `{}`", host::quote_all(start)),
        }
    }

    /// Whether it is up. A command without `status` is asked at its address.
    pub async fn is_up(&self) -> Result<bool, DeployError> {
        match self.what.clone() {
            What::Unit { name, manager } => {
                let shown = name.clone();
                let state = blocking(move || manager.show(&name)).await?;
                if !state.is_known() {
                    let why = format!("{manager} knows no unit `{shown}`");
                    return Err(LaunchError::Systemd { what: format!("show {shown}"), why }.into());
                }
                Ok(state.is_up())
            }
            What::Container { name } => {
                let shown = name.clone();
                match blocking(move || docker::inspect(&name)).await? {
                    Some(container) => Ok(container.running),
                    None => Err(LaunchError::Docker {
                        what: format!("inspect {shown}"),
                        why: "no such container".to_owned(),
                    }
                    .into()),
                }
            }
            What::Command { status: Some(words), .. } => match run(&words, STATUS).await {
                Ok(()) => Ok(true),
                Err(Ran::Status(_)) => Ok(false),
                // Not known is not down: a run would believe that there is nothing to stop.
                Err(Ran::Not(why)) => {
                    let words = host::quote_all(&words);
                    Err(DeployError::Command { words, what: "says whether production is up", why })
                }
            },
            What::Command { status: None, .. } => {
                let asked = gate::answers(&self.url, self.model.as_deref(), PROOF_TOKENS, Duration::from_secs(5)).await;
                Ok(asked.is_ok())
            }
        }
    }

    /// Stops it by its own manager.
    pub async fn stop(&self) -> Result<(), DeployError> {
        match self.what.clone() {
            What::Unit { name, manager } => Ok(blocking(move || manager.stop(&name)).await?),
            What::Container { name } => Ok(blocking(move || match docker::inspect(&name)? {
                Some(container) => docker::stop(&container),
                None => Ok(()),
            })
            .await?),
            What::Command { stop, .. } => command(stop, "stops production", STOP).await,
        }
    }

    /// Starts it, if it is not up. Doing so twice changes nothing.
    pub async fn start(&self) -> Result<(), DeployError> {
        match self.what.clone() {
            What::Unit { name, manager } => Ok(blocking(move || manager.start(&name)).await?),
            What::Container { name } => {
                let words = move || {
                    let output = docker::docker(&["start", &name])?;
                    match output.status.success() {
                        true => Ok(()),
                        false => Err(LaunchError::Docker {
                            what: format!("start {name}"),
                            why: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                        }),
                    }
                };
                Ok(blocking(words).await?)
            }
            What::Command { start, .. } => command(start, "starts production", self.ready.unwrap_or(READY)).await,
        }
    }

    /// Waits until it generates tokens.
    pub async fn gate(&self) -> Result<(), DeployError> {
        let limit = self.ready.unwrap_or(READY);
        let asked = gate::answers(&self.url, self.model.as_deref(), PROOF_TOKENS, limit).await;
        asked.map(drop).map_err(|why| DeployError::NotBack { what: self.shown(), url: self.url.clone(), why })
    }
}

async fn command(words: Vec<String>, what: &'static str, limit: Duration) -> Result<(), DeployError> {
    run(&words, limit).await.map_err(|ran| {
        let (Ran::Status(why) | Ran::Not(why)) = ran;
        DeployError::Command { words: host::quote_all(&words), what, why }
    })
}

/// How a command did not succeed.
#[derive(Debug)]
enum Ran {
    /// It ended, and not with 0.
    Status(String),
    /// It could not be run, or did not end.
    Not(String),
}

/// Runs a command to its end, or for `limit`: then it is killed, it alone. It may leave a server behind, which must not
/// keep this waiting: nothing is read from it.
async fn run(words: &[String], limit: Duration) -> Result<(), Ran> {
    let (program, arguments) = words.split_first().ok_or_else(|| Ran::Not("there is no program".to_owned()))?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Ran::Not(error.to_string()))?;
    match tokio::time::timeout(limit, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(Ran::Status(status.to_string())),
        Ok(Err(error)) => Err(Ran::Not(error.to_string())),
        Err(_) => {
            let killed = match child.kill().await {
                Ok(()) => "it was killed".to_owned(),
                Err(error) => format!("it could not be killed: {error}"),
            };
            Err(Ran::Not(format!("it did not end within {} s; {killed}", limit.as_secs_f64())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_that_does_not_end_is_killed_and_told() {
        let words = |text: &str| ["sh", "-c", text].map(str::to_owned);
        let limit = Duration::from_millis(300);
        let ran = run(&words("exec sleep 600"), limit).await.unwrap_err();
        assert!(matches!(&ran, Ran::Not(why) if why == "it did not end within 0.3 s; it was killed"), "{ran:?}");
        let minute = Duration::from_secs(60);
        run(&words("sleep 600 & echo $! > /dev/null; kill $!"), minute).await.unwrap();
        assert!(matches!(run(&words("exit 3"), minute).await, Err(Ran::Status(why)) if why.contains('3')));
        assert!(matches!(run(&["/no/such/program".to_owned()], minute).await, Err(Ran::Not(_))));
    }
}
