//! Where the server of a run comes from: it is started, taken over from an earlier orch that was killed under the same
//! run, one that another run kept, or one at an address. And what becomes of it in the end.

use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::{Value, json};

use super::container::Around;
use super::displace::Hold;
use super::error::Stop;
use super::{Context, Job, head, plan, start, until};
use crate::event::{Emit, Event, Scope};
use crate::gate::{self, Conduct, LogGrammar, Patience, Ready};
use crate::launch::{self, Server, TakenOver};
use crate::preflight;
use crate::profile::Profile;
use crate::record::model::Left;
use crate::record::{fold, journal};
use crate::render::docker::Image;
use crate::render::{self, Facts, Plan, Readiness, Warning};

/// Where the server of a run comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// It is started. A run that is resumed takes over the server that it left, if that still lives.
    #[default]
    Start,
    /// A server of this machine that another run kept, by what a person calls it. It is not stopped.
    Kept(String),
    /// A server at this address, of which nothing else is known: `http://host:port`. It is not stopped.
    Url(String),
}

/// What becomes of a server when its run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum After {
    /// It is stopped.
    #[default]
    Stop,
    /// It stays, if the run came to its end.
    Keep,
}

/// A place that was looked at.
pub(super) struct Prepared {
    pub(super) facts: Facts,
    pub(super) plan: Plan,
    /// The image, where it is started in a container.
    pub(super) image: Option<Image>,
    taken: Option<TakenOver>,
    /// What the server prints.
    pub(super) log: PathBuf,
    /// Where the model is, where it is a file or folder of this machine.
    model: Option<PathBuf>,
}

/// A server that is there, or is being started.
pub(super) struct Obtained {
    pub(super) server: Server,
    /// Whether it had proven itself before this orch came.
    up: bool,
}

/// Looks at what a server needs, or at the server that is there already, and plans.
pub(super) async fn prepare(job: &Job<'_>, cx: &Context<'_>, hold: &mut Hold) -> Result<Prepared, Stop> {
    let log = &cx.folder.journal;
    match &job.source {
        Source::Start => {
            // What a restorer still has in hand it ends first: a server that is taken over now would be gone soon.
            super::displace::check_free(job, cx)?;
            let taken = launch::adopt(cx.work, cx.folder.id().as_str()).await?;
            let place = taken.as_ref().and_then(|taken| Some((taken.port?, taken.devices.clone())));
            let envs = cx.work.envs();
            let looking = preflight::look_without_port(job.profile, &job.definition.facts, &envs, log);
            let found = until(cx.interrupt, looking).await??;
            if taken.is_none() {
                hold.make_room(job, cx).await?;
            }
            let (image, model) = (found.image.clone(), found.model.clone());
            let facts = match place {
                Some((port, devices)) => found.at(port, devices),
                None => preflight::choose_port(found, job.profile, cx.work, log)?,
            };
            let around = |image| Around { profile: job.profile, facts: &facts, image, model: model.as_deref() };
            let plan = plan(job, &facts, image.as_ref().map(around), cx, |_| Ok(()))?;
            Ok(Prepared { facts, plan, taken, image, log: cx.server_log.to_owned(), model })
        }
        Source::Kept(text) => {
            let taken = launch::attach(cx.work, text)?;
            let mut facts = assumed(job)?;
            facts.port = taken.port.unwrap_or(facts.port);
            facts.devices = taken.devices.clone();
            if let Some(folder) = &taken.run_folder {
                same_settings(folder, &cx.folder.record().profile, &mut facts)?;
            }
            let plan = plan(job, &facts, None, cx, |plan| {
                let id = taken.server.id();
                plan.attached = Some(id.to_owned());
                plan.command = taken.command.clone();
                warn(log, &format!("measured on {id}, which was up before: its start is not part of this run"))
            })?;
            Ok(Prepared { facts, plan, log: taken.log.clone(), image: None, taken: Some(taken), model: None })
        }
        Source::Url(url) => {
            let facts = assumed(job)?;
            let mut plan = plan(job, &facts, None, cx, |plan| {
                plan.attached = Some(url.clone());
                warn(log, &format!("measured on {url}, which orch did not start: what it runs with is not known"))
            })?;
            plan.readiness.base_url = url.trim_end_matches('/').to_owned();
            Ok(Prepared { facts, plan, taken: None, image: None, log: cx.server_log.to_owned(), model: None })
        }
    }
}

/// What is said of a plan whose server is there already.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The server's id, or its address.
    pub(super) attached: Option<String>,
    /// Its own command, where that is known.
    pub(super) command: Vec<String>,
}

fn warn(log: &dyn Emit, text: &str) -> Result<(), Stop> {
    Ok(log.emit(Scope::Run, Event::Warning(Warning::new("attached", text)))?)
}

/// Facts of a place that nobody looks at: the server is there, so nothing is to be found or installed.
fn assumed(job: &Job<'_>) -> Result<Facts, Stop> {
    let nowhere = |_: &_| Some(PathBuf::from("ENVIRONMENT"));
    let facts = render::assume(job.profile, job.definition, None, nowhere)
        .or_else(|fault| match job.definition.verified.first() {
            Some(version) => render::assume(job.profile, job.definition, Some(version), nowhere),
            None => Err(fault),
        })
        .map_err(|fault| Stop::faults(vec![fault]))?;
    Ok(facts.facts)
}

/// Keys that say nothing of how a server is started.
const NOT_THE_SERVERS: [&str; 15] = [
    "name",
    "series",
    "host",
    "hosts",
    "port",
    "launch",
    "gate",
    "bench",
    "quality",
    "expect",
    "tolerance",
    "repeat",
    "suspect",
    "share",
    "hooks",
];

/// Refuses a profile that would start another server than the one that is there: its results would be told as those of
/// settings that never were. Takes over the version that was found then.
fn same_settings(folder: &Path, profile: &Value, facts: &mut Facts) -> Result<(), Stop> {
    let Ok(reading) = journal::read(&folder.join("journal.jsonl")) else { return Ok(()) };
    let record = fold(reading.entries()).record;
    if let Some(engine) = &record.engine {
        facts.version = engine.version.as_str().into();
        facts.assumed = false;
    }
    let differs: Vec<String> = keys(&record.profile)
        .union(&keys(profile))
        .filter(|key| !NOT_THE_SERVERS.contains(&key.as_str()) && record.profile.get(key) != profile.get(key))
        .map(|key| format!("`{key}`"))
        .collect();
    if differs.is_empty() {
        return Ok(());
    }
    let text = format!("the server was started with other settings than this profile's: {}", differs.join(", "));
    let remedy = "leave the profile out to measure with the server's own, or start one with `orch run`";
    Err(Stop::failed("launch", "bad_config", text, Some(remedy.to_owned())))
}

fn keys(profile: &Value) -> std::collections::BTreeSet<String> {
    profile.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// Starts the server, or takes the one that is there.
pub(super) async fn obtain(job: &Job<'_>, prepared: &mut Prepared, cx: &Context<'_>) -> Result<Obtained, Stop> {
    let log = &cx.folder.journal;
    if let Some(taken) = prepared.taken.take() {
        let server = taken.server;
        let before = log.state().server.filter(|state| state.id == server.id());
        let up = !server.is_ours() || before.is_some_and(|state| state.base_url.is_some());
        if let Some(process) = server.process().filter(|_| server.is_ours()) {
            let supervisor_pid = server.supervisor().map(|supervisor| supervisor.pid);
            let (pid, start_ticks) = (process.pid, process.start_ticks);
            log.emit(Scope::Run, Event::ProcessBegan { pid, start_ticks, supervisor_pid })?;
        }
        return Ok(Obtained { server, up });
    }
    if let Source::Url(_) = job.source {
        return Ok(Obtained { server: Server::elsewhere(), up: true });
    }
    let start = start(job, &prepared.plan, head(&prepared.plan)?, &prepared.facts, cx);
    Ok(Obtained { server: launch::start(start, cx.work, log).await?, up: false })
}

/// Waits until it has proven itself.
pub(super) async fn ready(
    obtained: &Obtained,
    prepared: &Prepared,
    readiness: &Readiness,
    grammar: &LogGrammar,
    job: &Job<'_>,
    cx: &Context<'_>,
) -> Result<Ready, Stop> {
    let (server, log, emit) = (&obtained.server, &prepared.log, &cx.folder.journal);
    let ready = match obtained.up {
        true => gate::prove(server, log, readiness, cx.clock, emit).await?,
        false => {
            let model = prepared.model.as_deref();
            let conduct =
                Conduct { weights_bytes: model.and_then(gate::life::look::weights_bytes), ..conduct(job, cx) };
            gate::wait(server, log, readiness, grammar, &conduct, cx.clock, emit).await?
        }
    };
    if job.after == After::Keep && server.is_ours() {
        // From here on it stays also if this process is killed.
        server.set_keep()?;
    }
    Ok(ready)
}

/// By what a start of this job is judged.
pub(super) fn conduct(job: &Job<'_>, cx: &Context<'_>) -> Conduct {
    let asked = job.profile.gate.timeout;
    Conduct {
        limit: asked.unwrap_or_else(|| gate::auto_limit(job.past.slowest_usual_s())),
        limit_is_auto: asked.is_none(),
        patience: Patience::new(&job.profile.gate.patience, job.past.clone(), &job.definition.log),
        fail_fast: job.fail_fast,
        // Where it does not read, the definition was refused before.
        worker: job.definition.log.worker.as_deref().and_then(|pattern| Regex::new(pattern).ok()),
        ranks: ranks_here(job.profile),
        weights_bytes: None,
        evidence: Some(cx.folder.path().join("evidence")),
    }
}

/// How many workers tell a rank of their own: those that share a layer, where all of them are here and a stage is the whole
/// model. Copies of the model (`parallel.data`) have the same ranks each.
fn ranks_here(profile: &Profile) -> Option<u32> {
    let parallel = &profile.parallel;
    let is_one = |count: Option<u32>| count.is_none_or(|count| count == 1);
    (is_one(parallel.nodes) && is_one(parallel.pipeline)).then_some(parallel.tensor?)
}

/// The one way out: the server is stopped, or stays as was asked. Returns what is left of it on this machine, as far as
/// it was this run's.
pub(super) async fn release(
    server: Server,
    worked: &Result<(), Stop>,
    job: &Job<'_>,
    cx: &Context<'_>,
) -> Result<Option<Left>, Stop> {
    if !server.is_ours() {
        return Ok(None);
    }
    if job.after == After::Keep && worked.is_ok() && server.has_exited().is_none() {
        return Ok(Some(server.keep()?));
    }
    let why = match worked {
        Ok(()) => "done",
        Err(Stop::Interrupted) => "interrupted",
        Err(Stop::Failed(_) | Stop::Error(_)) => "failed",
    };
    Ok(Some(server.release(&cx.folder.journal, why).await?))
}

/// Where a server that is there already is noted in the record.
pub(super) fn provenance(said: &Said) -> std::collections::BTreeMap<String, Value> {
    said.attached.iter().map(|to| ("attached".to_owned(), json!(to))).collect()
}
