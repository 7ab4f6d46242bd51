//! `orch attach`: watches a run that goes on elsewhere on this machine, by its journal.

use std::path::Path;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::locate::{self, Located};
use super::screen::{LIVE_INTERVAL, Screen, Stream};
use super::{Exit, Failure, Global, Outcome, out, records};
use crate::event::{Entry, Event};
use crate::launch::{self, WorkFolder};
use crate::record::{Store, journal};
use crate::report::live::{Usual, View};
use crate::report::run as report;

/// Watches a run that goes on, or shows how far one came
///
/// Shows what `orch run` shows, from its beginning. Ctrl-C only ends the watching; the run goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch attach r0421
  orch attach latest --events | jq .event

Ends as the run does, with its exit code; 0 after Ctrl-C")]
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
    let located = locate::run(&id, &work, global)?;
    let runtime = crate::host::runtime::on_this_thread().map_err(Failure::own)?;
    runtime.block_on(watch(&located, &work, events, global.verbose > 0))
}

async fn watch(located: &Located, work: &WorkFolder, events: bool, detail: bool) -> Outcome {
    let Located { store, id } = located;
    let screen = Screen::new(if events { Stream::Err } else { Stream::Out });
    let path = store.run_path(id).join("journal.jsonl");
    let mut shown = Shown { view: View::new(screen.width(), Usual::default(), detail), next: 0, events, last: None };
    let mut tick = tokio::time::interval(LIVE_INTERVAL);
    // Before the first line is shown: whoever sees one may already want to leave.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::start)?;
    loop {
        // Before the reading: what it wrote last is read yet.
        let goes_on = store.is_running(id);
        let ended = shown.more(&path, &screen)?;
        if ended || !goes_on {
            break;
        }
        tokio::select! {
            _ = interrupt.recv() => {
                screen.end();
                out::note(format!("the run goes on: orch attach {}", id.short()));
                return Ok(Exit::Done);
            }
            _ = tick.tick() => screen.live(shown.view.live(shown.now_ns())),
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

/// What was shown of a journal.
struct Shown {
    view: View,
    next: u64,
    events: bool,
    /// The moment of the last line on the run's own clock, and when it was read.
    last: Option<(u64, std::time::Instant)>,
}

impl Shown {
    /// Shows what was added; true when the run has ended.
    fn more(&mut self, path: &Path, screen: &Screen) -> Result<bool, Failure> {
        let reading = journal::read(path).map_err(|error| Failure::new(Exit::Own, error))?;
        let mut ended = false;
        for entry in reading.entries() {
            // A run that was resumed has ended before, and goes on.
            ended = matches!(entry.event, Event::RunEnded { .. });
            if entry.seq >= self.next {
                self.show(&entry, screen);
            }
        }
        Ok(ended)
    }

    fn show(&mut self, entry: &Entry, screen: &Screen) {
        self.next = entry.seq + 1;
        self.last = Some((entry.since_start_ns, std::time::Instant::now()));
        if self.events
            && let Ok(line) = serde_json::to_string(entry)
        {
            out::line(line);
        }
        for line in self.view.see(entry) {
            screen.line(&line);
        }
    }

    /// The run's clock, as far as it can be known from here.
    fn now_ns(&self) -> u64 {
        let Some((at, read)) = self.last else { return 0 };
        at.saturating_add(u64::try_from(Duration::as_nanos(&read.elapsed())).unwrap_or(u64::MAX))
    }
}
