//! What `orch up` would deploy: the facts of the place, the plan, and the artefact rendered from both.

use std::path::Path;

use super::container::{self, Around};
use super::error::Stop;
use super::up::Deploy;
use super::{Context, Job, head, tell_planned, until};
use crate::deploy::{Artefact, As, DeployError, Deployed, Deployments};
use crate::engine;
use crate::event::{Emit, Event, Scope};
use crate::launch::docker::DEPLOYMENT_LABEL;
use crate::launch::systemd::{self, Manager};
use crate::launch::{self, LaunchError, docker};
use crate::preflight::{self, Found};
use crate::profile::Port;
use crate::render::docker::{Image, Secrets, replaced, words};
use crate::render::unit::{Unit, unit, unit_name};
use crate::render::{self, Facts, Plan, Rank, Warning};

/// What was planned.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) next: Deployed,
    /// What is deployed under the name.
    pub(super) old: Option<Deployed>,
    /// Whether that is up.
    pub(super) was_up: bool,
}

/// Names from the caller's own environment that a unit would otherwise not have, and engines need: where programs and
/// libraries are found, and where caches lie.
const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
];

/// Looks at the place and renders. Nothing is changed.
pub(super) async fn look(job: &Job<'_>, deploy: &Deploy<'_>, cx: &Context<'_>) -> Result<Planned, Stop> {
    let log = &cx.folder.journal;
    let old = Deployments::of(cx.work).place(deploy.name).current().map_err(refused)?;
    let envs = cx.work.envs();
    let looking = preflight::look_without_port(job.profile, &job.definition.facts, &envs, log);
    let found = until(cx.interrupt, looking).await??;
    let (image, model, program) = (found.image.clone(), found.model.clone(), found.executable.clone());
    let facts = facts(found, job, old.as_ref(), cx)?;
    let mut plan = render::plan(job.profile, job.definition, &facts).map_err(Stop::faults)?;
    plan.steps.retain(|step| Some(step.name.as_str()) == deploy.check);
    let head = head(&plan)?.clone();
    let form = Form { job, deploy, facts: &facts, image: image.as_ref(), model: model.as_deref(), program };
    let artefact = form.artefact(&mut plan, &head, cx)?;
    foreign(&artefact, old.as_ref())?;
    let command = match &artefact {
        Artefact::Docker { words, .. } => words.clone(),
        _ => head.argv.clone(),
    };
    cx.folder.write_command(&command)?;
    let provenance = image.as_ref().map(container::provenance).unwrap_or_default();
    tell_planned(&plan, command, head.env.clone(), provenance, log)?;
    let was_up = old.as_ref().is_some_and(|old| crate::deploy::is_up(old, cx.work).unwrap_or(true));
    let next = Deployed {
        v: 1,
        name: deploy.name.to_owned(),
        profile: job.profile.name.clone(),
        series: job.profile.series.clone(),
        run: cx.folder.id().to_string(),
        since: cx.clock.now(),
        port: facts.port,
        devices: facts.devices.clone(),
        readiness: plan.readiness.clone(),
        stop: plan.stop.clone(),
        secrets: head.secrets.clone(),
        artefact,
    };
    Ok(Planned { plan, next, old, was_up })
}

/// The port stays what it was, unless the profile names another one; a new one must be free before anything is stopped.
fn facts(found: Found, job: &Job<'_>, old: Option<&Deployed>, cx: &Context<'_>) -> Result<Facts, Stop> {
    let log = &cx.folder.journal;
    let kept = match (job.profile.port, old) {
        (Port::Auto, Some(old)) => Some(old.port),
        (Port::Fixed(port), Some(old)) if port == old.port => Some(port),
        _ => None,
    };
    let Some(port) = kept else { return Ok(preflight::choose_port(found, job.profile, cx.work, log)?) };
    let text = format!("{port}, as before");
    log.emit(Scope::Run, Event::Preflight { check: "port".to_owned(), ok: true, text })?;
    // Its GPUs stay what they were, too: it is the old one that has them until it is stopped.
    Ok(found.at(port, old.map(|old| old.devices.clone()).unwrap_or_default()))
}

/// After the old one is gone the port must be free: a stranger that was quicker is told, and left alone.
pub(super) fn take_port(next: &Deployed, cx: &Context<'_>) -> Result<(), Stop> {
    launch::reserve_port(cx.work, next.port)?;
    if !matches!(next.artefact, Artefact::Process { .. }) {
        // A unit and a container hold no lease of ours: who listens is what counts.
        cx.work.unreserve(&launch::Lease::Port(next.port));
    }
    Ok(())
}

/// What the artefact is rendered from.
struct Form<'a> {
    job: &'a Job<'a>,
    deploy: &'a Deploy<'a>,
    facts: &'a Facts,
    image: Option<&'a Image>,
    model: Option<&'a Path>,
    program: Option<String>,
}

impl Form<'_> {
    fn artefact(&self, plan: &mut Plan, head: &Rank, cx: &Context<'_>) -> Result<Artefact, Stop> {
        let folder = std::env::current_dir().map_err(|error| {
            refused(LaunchError::Io { what: "find", path: "the current folder".into(), source: error }.into())
        })?;
        match self.deploy.form {
            As::Process => Ok(Artefact::Process { argv: head.argv.clone(), env: head.env.clone(), folder }),
            As::Unit => self.unit(plan, head, &folder, cx),
            As::Docker => self.container(plan, head, cx),
        }
    }

    fn unit(&self, plan: &Plan, head: &Rank, folder: &Path, cx: &Context<'_>) -> Result<Artefact, Stop> {
        let Some(manager) = self.deploy.manager else { return Err(refused(DeployError::NoManager)) };
        let template = engine::unit_template(&engine::default_folders()).map_err(|error| refused(error.into()))?;
        let inherited = INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        let secrets = Deployments::of(cx.work).place(self.deploy.name).secrets_file();
        let spec = Unit {
            name: self.deploy.name,
            profile: &self.job.profile.name,
            series: &self.job.profile.series,
            folder,
            env: inherited.chain([("PYTHONUNBUFFERED".to_owned(), "1".to_owned())]).collect(),
            secrets: (!head.secrets.is_empty()).then_some(secrets),
            stop: &plan.stop,
            of_user: manager == Manager::User,
        };
        let mut rank = head.clone();
        // A manager looks for programs in folders of its own.
        if let (Some(first), Some(program)) = (rank.argv.first_mut(), &self.program)
            && !first.contains('/')
        {
            first.clone_from(program);
        }
        let text = unit(&template, &rank, &spec).map_err(|error| refused(error.into()))?;
        let name = unit_name(self.deploy.name);
        match systemd::verify(&name, &text) {
            Some(Err(said)) => Err(refused(DeployError::BadUnit { said })),
            Some(Ok(())) | None => Ok(Artefact::Unit { manager, unit: name, text }),
        }
    }

    fn container(&self, plan: &mut Plan, head: &Rank, cx: &Context<'_>) -> Result<Artefact, Stop> {
        let Some(image) = self.image else {
            let fault = render::Fault::new("no_image", "launch.via", "a container needs an image")
                .help("set `launch: {via: {docker: {image: …}}}`");
            return Err(Stop::faults(vec![fault]));
        };
        if let Some(text) = replaced(&head.argv, image) {
            plan.warnings.push(Warning::new("entrypoint_replaced", text));
        }
        let around = Around { profile: self.job.profile, facts: self.facts, image, model: self.model };
        let mut container = around.container(plan);
        container.name = format!("orch-{}", self.deploy.name);
        container.labels.insert(DEPLOYMENT_LABEL.to_owned(), self.deploy.name.to_owned());
        container.stays = true;
        container.secrets = Secrets::File(Deployments::of(cx.work).place(self.deploy.name).secrets_file());
        Ok(Artefact::Docker { words: words(head, &container), container: container.name })
    }
}

/// A unit or container of the same name that orch did not make is left alone, and told before anything is stopped.
fn foreign(next: &Artefact, old: Option<&Deployed>) -> Result<(), Stop> {
    match next {
        Artefact::Process { .. } => Ok(()),
        Artefact::Unit { manager, unit, .. } => {
            let path = manager.folder().join(unit);
            let ours = match std::fs::read_to_string(&path) {
                Ok(text) => text.lines().any(|line| line.trim() == "[X-Orch]"),
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            if ours { Ok(()) } else { Err(refused(DeployError::Foreign { what: path.display().to_string() })) }
        }
        Artefact::Docker { container, .. } => {
            let known = docker::inspect(container).map_err(|error| refused(error.into()))?;
            let run = old.map(|old| old.run.as_str());
            match known {
                Some(known) if known.labels.get(docker::RUN_LABEL).map(String::as_str) != run || run.is_none() => {
                    Err(refused(DeployError::Foreign { what: format!("a container named `{container}`") }))
                }
                _ => Ok(()),
            }
        }
    }
}

fn refused(error: DeployError) -> Stop {
    let kind = match &error {
        DeployError::BadUnit { .. } | DeployError::Foreign { .. } => "bad_config",
        _ => "unknown",
    };
    Stop::preflight(kind, &error)
}
