//! `orch attach`: watches a run that goes on elsewhere, on this machine or another, by its journal.

use std::path::Path;

use tokio::signal::unix::{SignalKind, signal};

use super::far::{self, There};
use super::far_run::{self, Watching};
use super::locate::{self, Located};
use super::run::Tell;
use super::screen::{LIVE_INTERVAL, Screen, Stream};
use super::shown::Shown;
use super::viewer::Watched;
use super::wishes::Wishes;
use super::{Exit, Failure, Global, Outcome, out, records};
use crate::launch::{self, WorkFolder};
use crate::record::history::PastStarts;
use crate::record::{Store, Which, journal};
use crate::remote::{self, FarRun, Line};
use crate::report::live::{Usual, View};
use crate::report::run as report;

/// Watches a run that goes on, or shows how far one came
///
/// Shows what `orch run` shows, from its beginning. Ctrl-C only ends the watching; the run goes on. Of a run on another host
/// Ctrl-C asks, Ctrl-D ends the watching, and at its end its record is brought here.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch attach r0421
  orch attach latest --events | jq .event
  orch attach r0421 -H ct129      one that was begun on another host, from here or from elsewhere

Ends as the run does, with its exit code; 0 after Ctrl-C or Ctrl-D")]
pub(crate) struct AttachArgs {
    /// A run's short name or id, a server's id, or `latest`
    #[arg(value_name = "ID", default_value = "latest")]
    id: String,
    /// Prints the journal's lines as JSON on standard output, and all else on standard error
    #[arg(long)]
    events: bool,
}

pub(crate) fn run(args: AttachArgs, global: &Global) -> Outcome {
    let AttachArgs { id, events } = args;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    if let Some(host) = far::asked(global) {
        return far(host, &id, events, global);
    }
    let located = match (locate::run(&id, &work, global), begun_from_here(&id, &work)) {
        (Ok(located), _) => located,
        (Err(_), Some(FarRun { run, host, hosts })) => {
            let global = Global { hosts: global.hosts.clone().or(hosts), ..global.clone() };
            return far(&host, &run, events, &global);
        }
        (Err(failure), None) => return Err(failure),
    };
    let runtime = crate::host::runtime::on_this_thread().map_err(Failure::own)?;
    runtime.block_on(watch(&located, &work, events, global.verbose > 0))
}

async fn watch(located: &Located, work: &WorkFolder, events: bool, detail: bool) -> Outcome {
    let Located { store, id } = located;
    let screen = Screen::new(if events { Stream::Err } else { Stream::Out });
    let path = store.run_path(id).join("journal.jsonl");
    let mut shown = Shown::new(View::new(screen.width(), Usual::default(), detail), events);
    let mut tick = tokio::time::interval(LIVE_INTERVAL);
    // Before the first line is shown: whoever sees one may already want to leave.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::start)?;
    loop {
        // Before the reading: what it wrote last is read yet.
        let goes_on = store.is_running(id);
        let ended = more(&mut shown, &path, &screen)?;
        if ended || !goes_on {
            break;
        }
        tokio::select! {
            _ = interrupt.recv() => {
                screen.end();
                out::note(format!("the run goes on: orch attach {}", id.short()));
                return Ok(Exit::Done);
            }
            _ = tick.tick() => screen.live(shown.live()),
        }
    }
    screen.end();
    ending(store, located, work, &screen)
}

/// What there is to say of a run that has ended, one way or another.
fn ending(store: &Store, located: &Located, work: &WorkFolder, screen: &Screen) -> Outcome {
    let id = &located.id;
    let record = store.record(id).map_err(records::failure)?;
    let exit = Exit::of(&record.verdict, record.failure.as_ref(), false);
    for line in report::ending(&record, &id.short(), exit as u8, screen.width()) {
        screen.line(&line);
    }
    if !record.complete && record.ended_at.is_none() {
        let server = launch::list(work).ok().and_then(|all| all.into_iter().find(|one| one.run == id.as_str()));
        let server = match server {
            Some(server) if server.rebooted => "the machine was started again since, and nothing of it lives",
            Some(server) if server.lives() => "its server still runs",
            _ => "no server of it runs",
        };
        screen.line(&format!("its orch is gone; {server}.   orch run --resume {}", id.short()));
    }
    Ok(exit)
}

/// A run that was begun from here on another host.
fn begun_from_here(text: &str, work: &WorkFolder) -> Option<FarRun> {
    let which: Which = text.parse().ok()?;
    let known = remote::known_runs(work.root()).into_iter().rev();
    known.into_iter().find(|far| which == Which::Latest || far.run.parse().is_ok_and(|id| which.fits(&id)))
}

/// Watches one on another host.
fn far(host: &str, id: &str, events: bool, global: &Global) -> Outcome {
    let there = There::of(host, global)?;
    let store = records::store(global)?;
    let runtime = crate::host::runtime::on_threads(2).map_err(Failure::start)?;
    let tell = Tell::watching(events, global.verbose > 0);
    runtime.block_on(async {
        let wishes = Wishes::listen().map_err(Failure::start)?;
        let line = Line::open(there.door.clone()).await.map_err(far::failure)?;
        let look = far_run::look_at(&there, &line.host(), id).await?;
        // By its whole id from here on: what a word means may change.
        let watched = Watched::Run(look.run.map_or_else(|| id.to_owned(), |run| run.id));
        let past = PastStarts::default();
        let watching = Watching { there: &there, watched, past, store: &store, tell: &tell, global };
        watching.until_the_end(line, wishes).await
    })
}

/// Shows what was added; true when the run has ended.
fn more(shown: &mut Shown, path: &Path, screen: &Screen) -> Result<bool, Failure> {
    let reading = journal::read(path).map_err(|error| Failure::new(Exit::Own, error))?;
    for entry in reading.entries() {
        shown.see(&entry, screen);
    }
    Ok(shown.ended())
}
