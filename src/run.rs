//! The story of a run, from a profile to a judged record.
//!
//! Each stage gives a plain value to the next. Whatever ends a stage early, a server that was started is stopped by the
//! one way out, and the record says how far the run came.

mod bench;
mod container;
mod cores;
mod counters;
mod displace;
mod effective;
mod endpoint;
mod error;
mod honoured;
mod imported;
mod machine;
mod measuring;
mod quality;
mod recount;
mod search;
mod serving;
mod source;
mod up;
mod up_plan;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::compare;
use crate::engine::Definition;
use crate::event::{Emit, Event, PlannedStep, Scope};
use crate::gate::{Beside, LogGrammar};
use crate::launch::{self, Exited, Lease, WorkFolder};
use crate::profile::{EngineKind, Profile, Question};
use crate::record::history::PastStarts;
use crate::record::model::{AnswersWhen, Failure, Left, Reason, Record, StepResult, Verdict, VerdictKind};
use crate::record::{Baseline, RunFolder, Store};
use crate::render::{self, Facts, Plan, Rank, Warning};

pub use bench::{Bench, Files};
use container::Around;
pub use container::container_of;
pub use counters::Sources;
pub use displace::Displace;
use displace::Hold;
pub use endpoint::bench;
pub use error::RunError;
use error::Stop;
pub use honoured::not_yet;
pub use imported::imported;
pub use machine::Readings;
use measuring::Measuring;
pub use serving::ServerLog;
pub use source::{After, Source};
pub use up::{Deploy, Ended, Outcome, up};

/// What is to be run.
pub struct Job<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// Its engine's definition.
    pub definition: &'a Definition,
    /// Values of the profile's secrets.
    pub secrets: &'a BTreeMap<String, String>,
    /// The program that is started as the server's supervisor: orch itself.
    pub orch: &'a Path,
    /// How starts of this profile on this host went before.
    pub past: &'a PastStarts,
    /// Whether a line that looks fatal ends the start before the engine confirms it.
    pub fail_fast: bool,
    /// Judged against this run instead of the baseline.
    pub against: Option<&'a Record>,
    /// Where its server comes from.
    pub source: Source,
    /// What becomes of the server.
    pub after: After,
    /// What makes room for it.
    pub displace: Option<Displace<'a>>,
    /// Known questions that are asked before the first step and after the last.
    pub questions: &'a [Question],
}

/// Where it runs, and what may end it.
pub struct Context<'a> {
    /// What of ours runs on this machine.
    pub work: &'a WorkFolder,
    /// Where records are kept.
    pub store: &'a Store,
    /// This run's own folder, with its journal.
    pub folder: &'a RunFolder,
    /// Time.
    pub clock: &'a Clock,
    /// Where the readings of the machine go.
    pub machine: &'a Readings,
    /// Cancelled when the run shall end now, in order.
    pub interrupt: &'a CancellationToken,
    /// Where the server's output goes.
    pub server_log: &'a Path,
    /// Told of the server as soon as there is one, so that a second interrupt can cut its stop short.
    pub on_server: &'a (dyn Fn(launch::Hurry) + Sync),
}

/// How a run ended.
#[derive(Debug)]
pub struct Told {
    /// Its record, with everything that is known.
    pub record: Record,
    /// Why not all of that could be written down. The run was ended for it.
    pub unwritten: Option<RunError>,
}

/// Runs it. The record is written whatever happens, and says what happened; where it cannot be written, what is known is
/// returned all the same.
pub async fn run(job: &Job<'_>, cx: &Context<'_>) -> Told {
    // Until a server is started nothing can be left of it.
    let mut left = Some(Left::default());
    let mut hold = Hold::default();
    let ended = stages(job, cx, &mut left, &mut hold).await;
    let let_go = hold.let_go(job, cx).await;
    let failure = match ended {
        Ok(()) | Err(Stop::Interrupted) => None,
        Err(Stop::Failed(failure)) => Some(*failure),
        Err(Stop::Error(error)) => return unwritten(error, job, cx, left),
    };
    if let Err(error) = let_go {
        return unwritten(error.into(), job, cx, left);
    }
    let log = &cx.folder.journal;
    let written = judge(failure, job.against, cx.store, cx.folder)
        .and_then(|complete| Ok(log.emit(Scope::Run, Event::RunEnded { complete, left: left.clone() })?))
        .and_then(|()| Ok(cx.folder.save()?));
    match written {
        Ok(()) => Told { record: cx.folder.record(), unwritten: None },
        Err(error) => unwritten(error, job, cx, left),
    }
}

/// What is known of a run that could not be written down to its end. What was measured is told, though nothing keeps it.
fn unwritten(error: RunError, job: &Job<'_>, cx: &Context<'_>, left: Option<Left>) -> Told {
    let state = cx.folder.journal.known();
    let mut record = Record { left, ..state.to_judge() };
    if record.comparisons.is_empty() {
        let baseline = match job.against {
            Some(run) => Baseline::of(vec![run.clone()]),
            None => cx.store.baseline_for(&record).map(|(baseline, _)| baseline).unwrap_or_default(),
        };
        record.comparisons = compare::judge(&record, Some(&baseline), &compare::tolerances(&record)).comparisons;
    }
    let reason =
        Reason::new("not_written", "what happened could not all be written down, so it counts as no measurement");
    record.verdict = Verdict { kind: VerdictKind::Failed, reasons: vec![reason], cause: None };
    record.complete = false;
    // Should there be room again by now, the record says at least this.
    let _ = cx.folder.save();
    Told { record, unwritten: Some(error) }
}

/// Everything between the beginning of a run and its verdict.
async fn stages(job: &Job<'_>, cx: &Context<'_>, left: &mut Option<Left>, hold: &mut Hold) -> Result<(), Stop> {
    let log = &cx.folder.journal;
    let mut prepared = source::prepare(job, cx, hold).await?;
    // Nobody else measures on this host from here to the end: also a start under load would make it slower.
    hold.measure(job, cx)?;
    let grammar = measuring::grammar(job, cx)?;
    *left = None;
    // Not cut short by an interrupt: it takes a moment, and half a start would have to be found again to be undone.
    let obtained = match source::obtain(job, &mut prepared, cx).await {
        Ok(obtained) => obtained,
        Err(stop) => {
            // A start that fails takes back what it began, or says what it could not end.
            *left = nothing_runs(cx).then(Left::default);
            return Err(stop);
        }
    };
    (cx.on_server)(obtained.server.hurry());
    cx.machine.of_gpus(obtained.server.devices().len());
    let mut worked = tokio::select! {
        biased;
        worked = serve(&obtained, &prepared, job, &grammar, cx) => worked,
        Err(error) = obtained.server.watch_supervisor(log) => Err(error.into()),
        Err(error) = obtained.server.watch_telemetry(cx.machine) => Err(error.into()),
    };
    if let Err(Stop::Failed(failure)) = &mut worked
        && let Some(start) = &mut failure.start
    {
        start.known_good = job.past.known_good(job.profile.memory.fraction, &failure.kind);
    }
    if let (Some(_), Err(Stop::Failed(failure))) = (&prepared.image, &mut worked) {
        container::look_why(failure, cx.folder.id().as_str()).await;
    }
    // By here the run's own requests are gone: their connections closed when the work ended.
    match source::release(obtained.server, &worked, job, cx).await {
        Ok(found) => *left = found,
        Err(stop) => {
            *left = nothing_runs(cx).then(Left::default);
            log.emit(Scope::Run, Event::Warning(Warning::new("release_failed", stop.to_string())))?;
            // Why the work ended early matters more than that the end was hard.
            return worked.and(Err(stop));
        }
    }
    worked
}

/// Whether nothing of this run is listed.
fn nothing_runs(cx: &Context<'_>) -> bool {
    let run = cx.folder.id().as_str();
    launch::list(cx.work).is_ok_and(|all| all.iter().all(|listed| listed.run != run || !listed.lives()))
}

/// What is done on a server that runs.
async fn serve(
    obtained: &source::Obtained,
    prepared: &source::Prepared,
    job: &Job<'_>,
    grammar: &LogGrammar,
    cx: &Context<'_>,
) -> Result<(), Stop> {
    let log = &cx.folder.journal;
    let (server, plan) = (&obtained.server, &prepared.plan);
    let ready = until(cx.interrupt, source::ready(obtained, prepared, &plan.readiness, grammar, job, cx)).await??;
    let asked = cx.folder.record().profile;
    let beside = Beside { asked: &asked, facts: &ready.facts, log: Some(&prepared.log) };
    let reading = effective::read(&ready.base_url, &job.definition.readback, &beside, log);
    let capacity = until(cx.interrupt, reading).await??;
    let ready_lines = ready.log_lines;
    let halt = cx.interrupt.child_token();
    let measuring = Measuring::on(&ready, job, cx);
    let server_log = Some(ServerLog { path: &prepared.log, grammar });
    let bench = measuring.bench(job, cx, &halt, server_log, &capacity);
    let results = cx.folder.record().steps;
    let done: Vec<String> = results.iter().map(|step| step.name.clone()).collect();
    let mut files = Files::in_folder(cx.folder.path(), cx.clock, &done).map_err(RunError::from)?;
    let before = match job.questions {
        [] => None,
        questions => Some(quality::ask(&bench, questions, AnswersWhen::Before, None).await?),
    };
    for step in plan.steps.iter().filter(|step| !done.contains(&step.name)) {
        let exited = {
            let measuring = search::measure(&bench, step, &mut files, &results);
            tokio::pin!(measuring);
            tokio::select! {
                // The server's end comes first: it explains the failures of the requests that it cut off.
                biased;
                exited = server.exited() => {
                    halt.cancel();
                    // The rows of what was measured until then are kept.
                    if let Err(Stop::Error(error)) = measuring.await {
                        return Err(error.into());
                    }
                    Some(exited)
                }
                result = &mut measuring => gone_with_failures(server, &result?).await,
            }
        };
        if let Some(exited) = exited {
            server.tell_exit(exited, log)?;
            return Err(error::died_under_load(&step.name, &exited, &prepared.log, ready_lines, grammar));
        }
    }
    if let Some(before) = before {
        quality::ask(&bench, job.questions, AnswersWhen::After, Some(&before)).await?;
    }
    Ok(())
}

/// Requests that fail because their server is ending may all be over before its end is noticed.
async fn gone_with_failures(server: &launch::Server, result: &StepResult) -> Option<Exited> {
    if result.counts.failed == 0 {
        return server.has_exited();
    }
    tokio::time::timeout(LAST_BREATH, server.exited()).await.ok()
}

/// How long a server that failed requests may take to be gone.
const LAST_BREATH: Duration = Duration::from_millis(500);

/// Plans with what was found, and writes the plan down. `say` adds what there is to say of a server that is there already.
fn plan(
    job: &Job<'_>,
    facts: &Facts,
    around: Option<Around<'_>>,
    cx: &Context<'_>,
    say: impl FnOnce(&mut source::Said) -> Result<(), Stop>,
) -> Result<Plan, Stop> {
    let log = &cx.folder.journal;
    let mut plan = render::plan(job.profile, job.definition, facts).map_err(Stop::faults)?;
    if let Some(around) = &around {
        container::wrap(&mut plan, around, cx.folder.id().as_str());
    }
    same_steps(&plan, &cx.folder.record())?;
    let mut said = source::Said::default();
    say(&mut said)?;
    let head = head(&plan)?;
    let (command, env) = match said.attached {
        None => (head.argv.clone(), head.env.clone()),
        Some(_) => (said.command.clone(), BTreeMap::new()),
    };
    cx.folder.write_command(&command)?;
    let provenance = around.map(|around| container::provenance(around.image)).unwrap_or(source::provenance(&said));
    tell_planned(&plan, command, env, provenance, log)?;
    Ok(plan)
}

/// Writes down what will be done, and what a person should know of it.
fn tell_planned(
    plan: &Plan,
    command: Vec<String>,
    env: BTreeMap<String, String>,
    provenance: BTreeMap<String, Value>,
    log: &dyn Emit,
) -> Result<(), Stop> {
    let steps =
        plan.steps.iter().map(|step| PlannedStep { name: step.name.clone(), workload: step.workload.hash.clone() });
    log.emit(
        Scope::Run,
        Event::Planned {
            engine: plan.engine.clone(),
            simulated: plan.engine.kind == EngineKind::Sim,
            command,
            env,
            steps: steps.collect(),
            provenance,
        },
    )?;
    for warning in &plan.warnings {
        log.emit(Scope::Run, Event::Warning(warning.clone()))?;
    }
    Ok(())
}

/// Whether what was measured before an interruption is still part of the plan.
fn same_steps(plan: &Plan, record: &Record) -> Result<(), Stop> {
    let same = |done: &&StepResult| {
        let named = |step: &render::Step| step.name == done.name || search::tries(step, &done.name);
        plan.steps.iter().any(|step| named(step) && step.workload.hash == done.workload)
    };
    match record.steps.iter().find(|done| !same(done)) {
        None => Ok(()),
        Some(done) => {
            let text = format!("step `{}` was measured with a workload that has changed since", done.name);
            let remedy = "the run cannot go on; start it again with `orch run`";
            Err(Stop::failed("render", "bad_config", text, Some(remedy.to_owned())))
        }
    }
}

/// The rank that answers requests.
fn head(plan: &Plan) -> Result<&Rank, Stop> {
    plan.ranks.iter().find(|rank| rank.head).ok_or_else(|| Stop::faults(Vec::new()))
}

fn start<'a>(
    job: &'a Job<'_>,
    plan: &'a Plan,
    head: &'a Rank,
    facts: &Facts,
    cx: &'a Context<'_>,
) -> launch::Start<'a> {
    let gpus = facts.devices.iter().cloned().map(Lease::Gpu);
    launch::Start {
        run: cx.folder.id().as_str(),
        rank: head,
        stop: &plan.stop,
        abandon: job.profile.launch.abandon,
        leases: std::iter::once(Lease::Port(facts.port)).chain(gpus).collect(),
        log: cx.server_log,
        secrets: job.secrets.clone(),
        orch: job.orch,
    }
}

/// The verdict, from the record as it is and the baseline that holds.
///
/// Returns whether the run is complete.
fn judge(
    failure: Option<Failure>,
    against: Option<&Record>,
    store: &Store,
    folder: &RunFolder,
) -> Result<bool, RunError> {
    let log = &folder.journal;
    let mut record = log.state().to_judge();
    record.failure = failure.clone();
    let complete = record.complete && failure.is_none();
    let baseline = match against {
        Some(run) => Baseline::of(vec![run.clone()]),
        None => {
            // What others have set as the baseline meanwhile. How that went is told when this run is sent to them.
            if !record.steps.is_empty() {
                let _ = store.meet();
            }
            // What was measured is not lost for a baseline that cannot be read.
            let (baseline, warnings) = store.baseline_for(&record).unwrap_or_else(|error| {
                (Baseline::default(), vec![Warning::new("baseline_unreadable", error.to_string())])
            });
            for warning in warnings {
                log.emit(Scope::Run, Event::Warning(warning))?;
            }
            baseline
        }
    };
    let judgement = compare::judge(&record, Some(&baseline), &compare::tolerances(&record));
    log.emit(
        Scope::Run,
        Event::Judged {
            verdict: judgement.verdict,
            comparisons: judgement.comparisons,
            failure: failure.map(Box::new),
        },
    )?;
    Ok(complete)
}

/// Waits for `work`, or for the interrupt.
async fn until<T>(interrupt: &CancellationToken, work: impl Future<Output = T>) -> Result<T, Stop> {
    tokio::select! {
        biased;
        () = interrupt.cancelled() => Err(Stop::Interrupted),
        done = work => Ok(done),
    }
}
