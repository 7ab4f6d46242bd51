//! Starting and stopping a deployment in whichever form it has.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::artefact::{Artefact, Deployed};
use super::deployments::Deployments;
use super::error::DeployError;
use crate::event::{Emit, Event, Scope};
use crate::host::{self, Mode};
use crate::launch::docker::{self, Mark, RUN_LABEL};
use crate::launch::managed::{Keeper, Managed};
use crate::launch::{self, LaunchError, Lease, Process, Server, Start, State, Watched, Which, WorkFolder};
use crate::render::Rank;

/// What the container of a deployment is called while its successor has to prove itself.
const ASIDE: &str = "-before";
/// How long a process may live between its start and the word that it is to stay.
const ABANDON: Duration = Duration::from_secs(2 * 60 * 60);

/// A deployment that was just started.
#[derive(Debug)]
pub enum Running {
    /// Under orch's supervisor.
    Process(Server),
    /// Under somebody else's.
    Managed(Managed),
}

impl Running {
    /// What a gate watches.
    pub fn watched(&self) -> &dyn Watched {
        match self {
            Running::Process(server) => server,
            Running::Managed(managed) => managed,
        }
    }

    /// Lets it outlive this run.
    pub fn keep(self) -> Result<(), LaunchError> {
        match self {
            Running::Process(server) => server.keep().map(drop),
            Running::Managed(_) => Ok(()),
        }
    }
}

/// With what it is started.
#[derive(Clone, Copy)]
pub struct Starting<'a> {
    /// The work folder.
    pub work: &'a WorkFolder,
    /// The program to run as a supervisor.
    pub orch: &'a Path,
    /// Where its output goes.
    pub log: &'a Path,
    /// Values of its secrets.
    pub secrets: &'a BTreeMap<String, String>,
    /// Who is told.
    pub emit: &'a dyn Emit,
}

/// Starts it and returns when its program runs. What it replaces must be stopped.
pub async fn start(deployed: &Deployed, with: Starting<'_>) -> Result<Running, DeployError> {
    Deployments::of(with.work).place(&deployed.name).lay_out(deployed, with.secrets)?;
    match &deployed.artefact {
        Artefact::Process { argv, env, .. } => process(deployed, argv, env, with).await,
        Artefact::Unit { manager, unit, text } => {
            let path = manager.folder().join(unit);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(DeployError::io("make", folder))?;
            }
            launching(unit, &["systemctl".to_owned(), "start".to_owned(), unit.clone()], with.emit)?;
            // A reader sees the old unit or the new one, whenever this is killed.
            host::write_whole(&path, text.as_bytes(), Mode(0o644)).map_err(DeployError::io("write", &path))?;
            let keeper = Keeper::Systemd(*manager, unit.clone());
            let (manager, name) = (*manager, unit.clone());
            managed(keeper, with, move || {
                manager.reload()?;
                manager.start(&name)?;
                manager.enable(&name, true)
            })
            .await
        }
        Artefact::Docker { container, words } => {
            launching(container, words, with.emit)?;
            let began = (Instant::now(), Timestamp::now());
            let (name, words, mark) = (container.clone(), words.clone(), mark(deployed));
            let id = blocking(move || start_container(&name, &words, &mark)).await?;
            watch(Keeper::Docker(id), began, with)
        }
    }
}

async fn process(
    deployed: &Deployed,
    argv: &[String],
    env: &BTreeMap<String, String>,
    with: Starting<'_>,
) -> Result<Running, DeployError> {
    let rank = Rank {
        node: "local".to_owned(),
        argv: argv.to_vec(),
        env: env.clone(),
        secrets: deployed.secrets.clone(),
        files: Vec::new(),
        head: true,
    };
    let start = Start {
        run: &deployed.run,
        rank: &rank,
        stop: &deployed.stop,
        abandon: ABANDON,
        leases: std::iter::once(Lease::Port(deployed.port))
            .chain(deployed.devices.iter().cloned().map(Lease::Gpu))
            .collect(),
        log: with.log,
        secrets: with.secrets.clone(),
        orch: with.orch,
    };
    Ok(Running::Process(launch::start(start, with.work, with.emit).await?))
}

fn launching(server: &str, command: &[String], emit: &dyn Emit) -> Result<(), DeployError> {
    Ok(emit.emit(Scope::Run, Event::Launching { server: server.to_owned(), command: command.to_vec() })?)
}

async fn managed(
    keeper: Keeper,
    with: Starting<'_>,
    start: impl FnOnce() -> Result<(), LaunchError> + Send + 'static,
) -> Result<Running, DeployError> {
    let began = (Instant::now(), Timestamp::now());
    blocking(start).await?;
    watch(keeper, began, with)
}

fn watch(keeper: Keeper, (launched, at): (Instant, Timestamp), with: Starting<'_>) -> Result<Running, DeployError> {
    let managed = Managed::watch(keeper, launched, at, with.log)?;
    if let Some(process) = managed.pid().and_then(Process::of) {
        let Process { pid, start_ticks } = process;
        with.emit.emit(Scope::Run, Event::ProcessBegan { pid, start_ticks, supervisor_pid: None })?;
    }
    Ok(Running::Managed(managed))
}

/// The container that was set aside is started again; else a new one is made.
fn start_container(name: &str, words: &[String], mark: &Mark) -> Result<String, LaunchError> {
    if let Some(known) = docker::find(mark)?.into_iter().next() {
        if known.name != name {
            done(&["rename", &known.id, name])?;
        }
        done(&["start", &known.id])?;
        return Ok(known.id);
    }
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    let label = format!("{RUN_LABEL}={}", mark.value);
    // `docker run`, then the label, then all the rest.
    words.splice(0..2, ["run", "--label", &label]);
    done(&words)?;
    let made = docker::find(mark)?.into_iter().next();
    made.map(|container| container.id).ok_or_else(|| LaunchError::Docker {
        what: "run".to_owned(),
        why: "the container is gone as soon as it was made".to_owned(),
    })
}

fn done(words: &[&str]) -> Result<(), LaunchError> {
    let output = docker::docker(words)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let why = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
    Err(LaunchError::Docker { what: words.first().map_or_else(String::new, |word| (*word).to_owned()), why })
}

/// The mark of the container that a run deployed.
fn mark(deployed: &Deployed) -> Mark {
    Mark { label: RUN_LABEL.to_owned(), value: deployed.run.clone() }
}

/// Stops it and leaves everything that starting it again takes. What is not up is left as it is.
pub async fn stop(deployed: &Deployed, work: &WorkFolder) -> Result<(), DeployError> {
    match &deployed.artefact {
        Artefact::Process { .. } => match launch::stop(work, &Which::One(deployed.run.clone())).await {
            Err(LaunchError::NoSuchServer { .. }) => Ok(()),
            stopped => {
                let left = stopped?.into_iter().flat_map(|one| one.left).collect::<Vec<_>>();
                match left.is_empty() {
                    true => Ok(()),
                    false => Err(LaunchError::Supervisor { why: format!("could not end {}", left.join(", ")) }.into()),
                }
            }
        },
        Artefact::Unit { manager, unit, .. } => {
            let (manager, unit) = (*manager, unit.clone());
            Ok(blocking(move || if manager.show(&unit)?.is_up() { manager.stop(&unit) } else { Ok(()) }).await?)
        }
        Artefact::Docker { .. } => {
            let mark = mark(deployed);
            Ok(blocking(move || docker::find(&mark)?.iter().try_for_each(docker::stop)).await?)
        }
    }
}

/// Makes room for a successor of the same name, after [`stop`].
pub async fn set_aside(deployed: &Deployed) -> Result<(), DeployError> {
    let Artefact::Docker { container, .. } = &deployed.artefact else { return Ok(()) };
    let (mark, aside) = (mark(deployed), format!("{container}{ASIDE}"));
    Ok(blocking(move || {
        docker::find(&mark)?
            .iter()
            .filter(|one| one.name != aside)
            .try_for_each(|one| done(&["rename", &one.id, &aside]))
    })
    .await?)
}

/// Takes it away: stopped, and nothing of it left but what the deployment's folder holds. `replaced` says that something
/// else has its unit's name by now.
pub async fn remove(deployed: &Deployed, work: &WorkFolder, replaced: bool) -> Result<(), DeployError> {
    match &deployed.artefact {
        Artefact::Process { .. } => stop(deployed, work).await,
        Artefact::Unit { .. } if replaced => Ok(()),
        Artefact::Unit { manager, unit, .. } => {
            stop(deployed, work).await?;
            let (manager, unit) = (*manager, unit.clone());
            blocking(move || {
                let path = manager.folder().join(&unit);
                // A unit that was never enabled cannot be disabled, and is as it should be.
                let _ = manager.enable(&unit, false);
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(LaunchError::io("remove", path)(error))
                    }
                    _ => manager.reload(),
                }
            })
            .await?;
            Ok(())
        }
        Artefact::Docker { .. } => {
            let mark = mark(deployed);
            Ok(blocking(move || docker::end(&mark)).await?)
        }
    }
}

/// Whether it is up, as far as its keeper tells.
pub fn is_up(deployed: &Deployed, work: &WorkFolder) -> Result<bool, DeployError> {
    Ok(match &deployed.artefact {
        // One that is being stopped still runs, and will not be there in a moment.
        Artefact::Process { .. } => launch::list(work)?
            .iter()
            .any(|listed| listed.run == deployed.run && listed.pid.is_some() && listed.state != State::Stopping),
        Artefact::Unit { manager, unit, .. } => manager.show(unit)?.is_up(),
        Artefact::Docker { .. } => docker::find(&mark(deployed))?.iter().any(|one| one.running),
    })
}

/// What waits for another program is kept off the threads that serve the rest.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LaunchError> + Send + 'static,
) -> Result<T, LaunchError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(LaunchError::Supervisor { why: panic.to_string() }))
}
