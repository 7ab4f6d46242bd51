//! `--displace`: production makes room for a run, and comes back whatever happens to it.

use super::error::Stop;
use super::{Context, Job};
use crate::deploy::{self, DeployError, Idle, Production, Undo, What};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::launch::Held;
use crate::render::Warning;

/// What makes room for a run.
#[derive(Clone, Copy, Debug)]
pub struct Displace<'a> {
    /// The production of this host.
    pub production: &'a Production,
    /// Also when it may be in use.
    pub force: bool,
}

/// What a run has in its hands beside its server.
#[derive(Debug, Default)]
pub(super) struct Hold {
    alone: Option<Held>,
    room: Option<Undo>,
}

impl Hold {
    /// Takes the right to measure on this host, unless the profile shares it.
    pub(super) fn measure(&mut self, job: &Job<'_>, cx: &Context<'_>) -> Result<(), Stop> {
        if self.alone.is_none() && !job.profile.share {
            let held = cx.work.measure(&format!("run {} (pid {})", cx.folder.id(), std::process::id()))?;
            let lease = held.shown();
            self.alone = Some(held);
            cx.folder.journal.emit(Scope::Run, Event::LeaseTaken { lease })?;
        }
        Ok(())
    }

    /// Has production make room. Not before the right to measure is there: nothing is stopped for a run that waits.
    pub(super) async fn make_room(&mut self, job: &Job<'_>, cx: &Context<'_>) -> Result<(), Stop> {
        if job.displace.is_some() {
            self.measure(job, cx)?;
            self.room = make_room(job, cx).await?;
        }
        Ok(())
    }

    /// Gives it all back.
    pub(super) async fn let_go(self, job: &Job<'_>, cx: &Context<'_>) -> Result<(), EmitError> {
        let back = match self.room {
            Some(room) => hand_back(room, job, cx).await,
            None => Ok(()),
        };
        let Some(held) = self.alone else { return back };
        let lease = held.shown();
        drop(held);
        back.and(cx.folder.journal.emit(Scope::Run, Event::LeaseLeft { lease }))
    }
}

/// That nobody has in hand what shall make room: what another run has stopped is down for it, and not for this one.
pub(super) fn check_free(job: &Job<'_>, cx: &Context<'_>) -> Result<(), Stop> {
    let Some(Displace { production, .. }) = job.displace else { return Ok(()) };
    Undo::check_free(cx.work, &What::Production(production.clone())).map_err(refused)
}

/// Stops production, if the run asks for it, production is up and nobody has used it for a while. From here on its
/// restorer waits for the end of this process.
async fn make_room(job: &Job<'_>, cx: &Context<'_>) -> Result<Option<Undo>, Stop> {
    let Some(Displace { production, force }) = job.displace else { return Ok(None) };
    let log = &cx.folder.journal;
    let shown = production.shown();
    let told =
        |ok: bool, text: String| log.emit(Scope::Run, Event::Preflight { check: "displace".to_owned(), ok, text });
    check_free(job, cx)?;
    if !production.is_up().await.map_err(refused)? {
        // What is down before is none of ours to start.
        told(true, format!("{shown} is not up: there is nothing to stop"))?;
        return Ok(None);
    }
    let why = match idle(production, cx).await.map_err(refused)? {
        Ok(why) => why,
        Err(error) if force => format!("by --force-displace, although {error}"),
        Err(error) => {
            told(false, error.to_string())?;
            return Err(refused(error));
        }
    };
    told(true, format!("will stop {shown} and start it again afterwards; {why}"))?;
    let undo = Undo::begin(cx.work, cx.folder.id().as_str(), What::Production(production.clone()), job.orch);
    let undo = undo.map_err(refused)?;
    log.emit(Scope::Run, Event::Displaced { what: shown })?;
    match deploy::act(cx.work, undo.record(), deploy::Act::Stop, job.orch).await {
        Ok(()) => Ok(Some(undo)),
        Err(error) => {
            // It may be down all the same.
            hand_back(undo, job, cx).await?;
            Err(refused(error))
        }
    }
}

/// Whether it may be stopped, and what shows that; else the error that says why not.
async fn idle(production: &Production, cx: &Context<'_>) -> Result<Result<String, DeployError>, DeployError> {
    let Some(window) = production.idle else {
        return Ok(Ok("whether it is idle is not checked (`idle: unchecked`)".to_owned()));
    };
    let what = production.shown();
    let look = deploy::look(production, window, cx.work).await?;
    Ok(match look.judge(window) {
        Idle::Yes(why) => Ok(why),
        Idle::No(why) => Err(DeployError::InUse {
            what,
            why,
            help: "wait until nobody uses it, or cut them off on purpose: `--force-displace`".to_owned(),
        }),
        Idle::Unknown(why) => Err(DeployError::InUse {
            what,
            why: format!("nobody can tell whether it is in use: {why}"),
            help: "`--force-displace` stops it all the same, `idle: unchecked` in hosts.yaml always".to_owned(),
        }),
    })
}

/// Brings production back and waits until it has proven itself. Where that fails its restorer tries once more, and
/// `orch ps` says so.
async fn hand_back(undo: Undo, job: &Job<'_>, cx: &Context<'_>) -> Result<(), EmitError> {
    let log = &cx.folder.journal;
    let restored = deploy::restore(cx.work, undo.record(), job.orch, log).await;
    match restored {
        Ok(restored) => {
            let event = Event::Restored { what: restored.what, outage_s: restored.outage_s };
            let told = log.emit(Scope::Run, event);
            if let Err(error) = undo.settled() {
                warn(log, "undo_not_removed", &error)?;
            }
            told
        }
        Err(error) => {
            let told = warn(log, "production_not_back", &error);
            // Its restorer goes on from here.
            drop(undo);
            told
        }
    }
}

fn warn(log: &dyn Emit, id: &str, error: &DeployError) -> Result<(), EmitError> {
    log.emit(Scope::Run, Event::Warning(Warning::new(id, error.to_string())))
}

fn refused(error: DeployError) -> Stop {
    let kind = match &error {
        DeployError::InUse { .. } | DeployError::Busy { .. } => "gpu_busy",
        _ => "unknown",
    };
    Stop::preflight(kind, &error)
}
