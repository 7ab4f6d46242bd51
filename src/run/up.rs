//! The story of `orch up`: render, show the difference, replace, gate, read back, check against the baseline, and put
//! the old one back when the new one fails or is worse.

use std::time::Instant;

use super::bench::{Files, measure_step};
use super::displace::Hold;
use super::error::{RunError, Stop};
use super::measuring::{self, Measuring};
use super::serving::ServerLog;
use super::source::conduct;
use super::up_plan::{self, Planned};
use super::{Context, Job, effective, judge, quality, until};
use crate::deploy::{self, As, DeployError, Deployed, Deployments, Running, Silent, Starting, Undo, What, unified};
use crate::event::{Emit, Event, Scope};
use crate::gate::{self, LogGrammar};
use crate::launch::systemd::Manager;
use crate::measure::Capacity;
use crate::record::model::{AnswersWhen, Reason, Record, Verdict, VerdictKind};
use crate::render::{Readiness, Warning};

/// What is to be deployed, beside the job.
pub struct Deploy<'a> {
    /// In which form.
    pub form: As,
    /// Which manager has a unit; `None` for the other forms.
    pub manager: Option<Manager>,
    /// Its name.
    pub name: &'a str,
    /// The step that is held against the baseline; `None` for none.
    pub check: Option<&'a str>,
    /// Starts it anew although nothing differs.
    pub again: bool,
    /// Shows what would be done and does nothing.
    pub dry: bool,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// Nothing differed, and it serves.
    Unchanged,
    /// Nothing was done: a dry run.
    Shown,
    /// The new one serves.
    Serves,
    /// The new one is worse than the baseline and serves, since nothing was there before.
    ServesWorse,
    /// The old one serves again.
    PutBack,
    /// The new one was taken away, and nothing was there before.
    TakenAway,
    /// The old one is not back; why.
    NotBack(String),
    /// Nothing was touched.
    Untouched,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The record.
    pub record: Record,
    /// How it ended.
    pub ended: Ended,
    /// What a person calls the deployment, once it is known.
    pub shown: Option<String>,
    /// Where it answers.
    pub base_url: Option<String>,
    /// How long nothing served, in seconds; `None` where nothing served before or nothing was stopped.
    pub outage_s: Option<f64>,
}

/// How long nothing served.
#[derive(Debug, Default)]
struct Outage {
    down: Option<Instant>,
    sum_s: Option<f64>,
}

impl Outage {
    fn down(&mut self) {
        self.down.get_or_insert_with(Instant::now);
    }

    fn up(&mut self) {
        if let Some(since) = self.down.take() {
            *self.sum_s.get_or_insert(0.0) += since.elapsed().as_secs_f64();
        }
    }
}

/// What is known while it goes on.
struct Going {
    ended: Ended,
    planned: Option<Planned>,
    outage: Outage,
    undo: Option<Undo>,
    running: Option<Running>,
}

/// Deploys. The record is written whatever happens.
pub async fn up(job: &Job<'_>, deploy: &Deploy<'_>, cx: &Context<'_>) -> Result<Outcome, RunError> {
    let log = &cx.folder.journal;
    let mut going =
        Going { ended: Ended::Untouched, planned: None, outage: Outage::default(), undo: None, running: None };
    let mut hold = Hold::default();
    let ended = stages(job, deploy, cx, &mut going, &mut hold).await;
    let failed = ended.is_err();
    let failure = match ended {
        Ok(()) | Err(Stop::Interrupted) => None,
        Err(Stop::Failed(failure)) => Some(*failure),
        Err(Stop::Error(error)) => {
            finish(job, cx, &mut going, false).await;
            return Err(error);
        }
    };
    let complete = match unmeasured(deploy) {
        Some(reason) if !failed => {
            // Its start alone is not held against the baseline: nobody asked for that.
            let verdict = Verdict { kind: VerdictKind::NoBaseline, reasons: vec![reason], cause: None };
            log.emit(Scope::Run, Event::Judged { verdict, comparisons: Vec::new(), failure: None })?;
            true
        }
        // Interrupted: there is nothing to judge, and its end says so.
        Some(_) if failure.is_none() => false,
        _ => judge(failure, job.against, cx.store, cx.folder)? && !failed,
    };
    let verdict = log.state();
    let good = match verdict.judged_kind() {
        Some(kind) => kind > VerdictKind::Regressed,
        None => !failed,
    };
    finish(job, cx, &mut going, good && !failed).await;
    hold.let_go(job, cx).await?;
    log.emit(Scope::Run, Event::RunEnded { complete, left: None })?;
    cx.folder.save()?;
    let planned = going.planned.as_ref();
    Ok(Outcome {
        record: cx.folder.record(),
        ended: going.ended,
        shown: planned.map(|planned| planned.next.shown()),
        base_url: planned.map(|planned| planned.next.readiness.base_url.clone()),
        outage_s: going.outage.sum_s,
    })
}

/// Why nothing is measured, and so nothing compared; `None` where something is.
fn unmeasured(deploy: &Deploy<'_>) -> Option<Reason> {
    match (deploy.dry, deploy.check) {
        (true, _) => Some(Reason::new("dry_run", "nothing was changed and nothing measured (`--dry-run`)")),
        (false, None) => Some(Reason::new("not_checked", "it serves, and nothing was measured (`--no-check`)")),
        (false, Some(_)) => None,
    }
}

/// Everything up to the verdict.
async fn stages(
    job: &Job<'_>,
    deploy: &Deploy<'_>,
    cx: &Context<'_>,
    going: &mut Going,
    hold: &mut Hold,
) -> Result<(), Stop> {
    let log = &cx.folder.journal;
    let planned = up_plan::look(job, deploy, cx).await?;
    let place = Deployments::of(cx.work).place(deploy.name);
    let (next, plan) = (planned.next.clone(), planned.plan.clone());
    let old = planned.old.clone();
    going.planned = Some(planned);
    let diff = match &old {
        Some(old) => unified(&old.text(), &next.text(), "installed", "new"),
        None => unified("", &next.text(), "installed", "new"),
    };
    log.emit(Scope::Run, Event::Change { what: next.shown(), diff: diff.clone() })?;
    let secrets_changed = old.is_some() && place.secrets().map_err(refused)? != *job.secrets;
    if secrets_changed {
        let text = "the value of a secret has changed, which no difference shows";
        log.emit(Scope::Run, Event::Warning(Warning::new("secret_changed", text)))?;
    }
    if deploy.dry {
        going.ended = Ended::Shown;
        return Ok(());
    }
    let grammar = measuring::grammar(job, cx)?;
    if deploy.check.is_some() {
        hold.measure(job, cx)?;
    }
    let was_up = match &old {
        Some(old) => deploy::is_up(old, cx.work).map_err(refused)?,
        None => false,
    };
    let unchanged = diff.is_empty() && !secrets_changed && was_up && !deploy.again;
    if unchanged {
        going.ended = Ended::Unchanged;
    } else {
        hold.make_room(job, cx).await?;
        replace(&next, old.as_ref(), was_up, job, cx, going).await?;
    }
    let Going { running, outage, .. } = going;
    let running = running.as_ref();
    let proving = async {
        let (ready, server_log) = match running {
            // The log of what serves unchanged is that of the run that deployed it.
            None => (prove_again(old.as_ref().unwrap_or(&next), job, cx).await?, None),
            Some(running) => {
                let ready = gate_new(running, job, &plan.readiness, &grammar, cx).await?;
                outage.up();
                (ready, Some(ServerLog { path: cx.server_log, grammar: &grammar }))
            }
        };
        look_at(&ready, server_log, &plan.steps, job, deploy, cx).await
    };
    watched(running, cx, proving).await
}

/// Does it with what the supervisor and the processes of the new server do told beside it, where they are ours.
async fn watched(
    running: Option<&Running>,
    cx: &Context<'_>,
    work: impl Future<Output = Result<(), Stop>>,
) -> Result<(), Stop> {
    let Some(Running::Process(server)) = running else { return work.await };
    let log: &dyn Emit = &cx.folder.journal;
    cx.machine.of_gpus(server.devices().len());
    tokio::select! {
        biased;
        worked = work => worked,
        Err(error) = server.watch_supervisor(log) => Err(error.into()),
        Err(error) = server.watch_telemetry(cx.machine) => Err(error.into()),
    }
}

/// What serves says what it runs with, and is held against the baseline.
async fn look_at(
    ready: &gate::Ready,
    server_log: Option<ServerLog<'_>>,
    steps: &[crate::render::Step],
    job: &Job<'_>,
    deploy: &Deploy<'_>,
    cx: &Context<'_>,
) -> Result<(), Stop> {
    let log = &cx.folder.journal;
    let asked = cx.folder.record().profile;
    let beside = gate::Beside { asked: &asked, facts: &ready.facts, log: None };
    let reading = effective::read(&ready.base_url, &job.definition.readback, &beside, log);
    let capacity = until(cx.interrupt, reading).await??;
    let Some(step) = steps.iter().find(|step| Some(step.name.as_str()) == deploy.check) else { return Ok(()) };
    check(ready, &capacity, step, server_log, job, cx).await
}

/// Stops what serves, if anything does, and starts the new one in its place. From the stop on a restorer waits for the
/// end of this process.
async fn replace(
    next: &Deployed,
    old: Option<&Deployed>,
    was_up: bool,
    job: &Job<'_>,
    cx: &Context<'_>,
    going: &mut Going,
) -> Result<(), Stop> {
    let log = &cx.folder.journal;
    let undo = Undo::begin(cx.work, &next.run, What::Deployment(Box::new(next.clone())), job.orch).map_err(refused)?;
    going.undo = Some(undo);
    if let Some(old) = old {
        if was_up {
            log.emit(Scope::Run, Event::Displaced { what: old.shown() })?;
            going.outage.down();
        }
        deploy::stop(old, cx.work).await.map_err(refused)?;
        deploy::set_aside(old).await.map_err(refused)?;
    }
    up_plan::take_port(next, cx)?;
    let starting = Starting { work: cx.work, orch: job.orch, log: cx.server_log, secrets: job.secrets, emit: log };
    going.running = Some(deploy::start(next, starting).await.map_err(refused)?);
    Ok(())
}

async fn gate_new(
    running: &Running,
    job: &Job<'_>,
    readiness: &Readiness,
    grammar: &LogGrammar,
    cx: &Context<'_>,
) -> Result<gate::Ready, Stop> {
    let conduct = conduct(job, cx);
    let log = &cx.folder.journal;
    let waiting = gate::wait(running.watched(), cx.server_log, readiness, grammar, &conduct, cx.clock, log);
    Ok(until(cx.interrupt, waiting).await??)
}

/// What serves unchanged has to prove itself too.
async fn prove_again(serving: &Deployed, job: &Job<'_>, cx: &Context<'_>) -> Result<gate::Ready, Stop> {
    let readiness = &serving.readiness;
    let limit = conduct(job, cx).limit;
    let asking = gate::answers(&readiness.base_url, readiness.model.as_deref(), readiness.tokens, limit);
    let model = until(cx.interrupt, asking).await?.map_err(|why| {
        let error = DeployError::NotBack { what: serving.shown(), url: readiness.base_url.clone(), why };
        Stop::gate("not_ready_in_time", &error)
    })?;
    Ok(gate::Ready {
        base_url: readiness.base_url.clone(),
        model: readiness.model.clone().or(model).unwrap_or_default(),
        after: std::time::Duration::ZERO,
        tokens: readiness.tokens.into(),
        phases: Vec::new(),
        facts: Default::default(),
        log_lines: 0,
    })
}

/// One step as the baseline has it.
async fn check(
    ready: &gate::Ready,
    capacity: &Capacity,
    step: &crate::render::Step,
    server_log: Option<ServerLog<'_>>,
    job: &Job<'_>,
    cx: &Context<'_>,
) -> Result<(), Stop> {
    let measuring = Measuring::on(ready, job, cx);
    let bench = measuring.bench(job, cx, cx.interrupt, server_log, capacity);
    let questions = job.questions;
    let before = match questions {
        [] => None,
        questions => Some(quality::ask(&bench, questions, AnswersWhen::Before, None).await?),
    };
    let mut files = Files::in_folder(cx.folder.path(), cx.clock, &[]).map_err(RunError::from)?;
    measure_step(&bench, step, &mut files).await?;
    if let Some(before) = before {
        quality::ask(&bench, questions, AnswersWhen::After, Some(&before)).await?;
    }
    Ok(())
}

/// Keeps the new one, or puts the old one back. Nothing here is cut short by an interrupt, and what cannot be done is in
/// the record; its restorer then tries again.
async fn finish(job: &Job<'_>, cx: &Context<'_>, going: &mut Going, good: bool) {
    let log = &cx.folder.journal;
    let (Some(undo), Some(planned)) = (going.undo.take(), going.planned.as_ref()) else { return };
    let running = going.running.take();
    let next = &planned.next;
    let worse_without_another =
        !good && planned.old.is_none() && log.state().judged_kind() == Some(VerdictKind::Regressed);
    if good || worse_without_another {
        match keep(next, planned.old.as_ref(), running, job, cx).await {
            Ok(()) => {
                going.ended = if good { Ended::Serves } else { Ended::ServesWorse };
                if let Some(outage_s) = going.outage.sum_s {
                    tell(log, Event::Restored { what: next.shown(), outage_s });
                }
                settle(undo, log);
            }
            Err(error) => not_back(going, undo, &error, log),
        }
        return;
    }
    tell(log, Event::Stopping { why: "failed or worse than the baseline".to_owned() });
    if planned.was_up {
        going.outage.down();
    }
    drop_running(running, log).await;
    // The start of the old one is no part of what this run says of the new one.
    let old_log = cx.folder.path().join("put-back.log");
    match deploy::put_back(next, cx.work, job.orch, &old_log, &Silent).await {
        Ok(Some(old)) => {
            going.outage.up();
            going.ended = Ended::PutBack;
            let outage_s = going.outage.sum_s.unwrap_or_default();
            tell(log, Event::Restored { what: old.shown(), outage_s });
            settle(undo, log);
        }
        Ok(None) => {
            going.ended = Ended::TakenAway;
            settle(undo, log);
        }
        Err(error) => not_back(going, undo, &error, log),
    }
}

async fn keep(
    next: &Deployed,
    old: Option<&Deployed>,
    running: Option<Running>,
    job: &Job<'_>,
    cx: &Context<'_>,
) -> Result<(), DeployError> {
    if let Some(running) = running {
        running.keep()?;
    }
    // From here on the new one is what a restorer would bring back.
    Deployments::of(cx.work).place(&next.name).succeed(next, job.secrets)?;
    if let Some(old) = old.filter(|old| old.run != next.run) {
        let replaced = matches!(
            (&old.artefact, &next.artefact),
            (deploy::Artefact::Unit { unit: a, manager: m, .. }, deploy::Artefact::Unit { unit: b, manager: n, .. })
                if a == b && m == n
        );
        deploy::remove(old, cx.work, replaced).await?;
    }
    Ok(())
}

/// A process of ours is released in order; what others keep is stopped by `put_back`.
async fn drop_running(running: Option<Running>, log: &dyn Emit) {
    if let Some(Running::Process(server)) = running
        && let Err(error) = server.release(log, "failed or worse than the baseline").await
    {
        tell(log, Event::Warning(Warning::new("release_failed", error.to_string())));
    }
}

fn not_back(going: &mut Going, undo: Undo, error: &DeployError, log: &dyn Emit) {
    going.ended = Ended::NotBack(error.to_string());
    tell(log, Event::Warning(Warning::new("production_not_back", error.to_string())));
    // Its restorer goes on from here.
    drop(undo);
}

fn settle(undo: Undo, log: &dyn Emit) {
    if let Err(error) = undo.settled() {
        tell(log, Event::Warning(Warning::new("undo_not_removed", error.to_string())));
    }
}

/// What serves matters more here than what can be written down about it.
fn tell(log: &dyn Emit, event: Event) {
    let _ = log.emit(Scope::Run, event);
}

fn refused(error: DeployError) -> Stop {
    let kind = match &error {
        DeployError::Busy { .. } => "gpu_busy",
        _ => "unknown",
    };
    Stop::launch(kind, &error)
}
