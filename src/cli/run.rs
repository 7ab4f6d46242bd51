//! `orch run`: from a profile to a verdict.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use super::follow::Follower;
use super::screen::{Screen, Stream};
use super::signals::Interrupt;
use super::{Exit, Failure, Global, Outcome, out, planned, records, secrets};
use crate::clock::Clock;
use crate::launch::{Hurry, WorkFolder};
use crate::preflight;
use crate::profile::{self, Loaded, Profile, Request};
use crate::record::index::Filter;
use crate::record::model::{OrchInfo, Record, RunKind};
use crate::record::{NewRun, RunFolder, Store};
use crate::report::live::{Usual, View};
use crate::report::run as report;
use crate::run::{self, Context, Job};

/// Starts the server of a profile, waits until it is ready, measures it, stops it, and judges the result
///
/// The record is kept under the results folder, whatever happens. Ctrl-C once stops load and server in order; twice at
/// once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch run profiles/smollm2.yaml
  orch run smollm2 --set bench.single.requests=64
  orch run smollm2 --against r0420 --strict
  orch run smollm2 --json > record.json

Exit codes: 0 ok, improved (and, unless --strict, no baseline or inconclusive); 2 usage or profile; 3 could not launch;
4 never ready; 5 no valid measurement; 6 regressed; 7 --strict; 130, 143 interrupted")]
pub(crate) struct RunArgs {
    /// Name of a profile, or the path of its file
    profile: String,
    /// Sets a key above all files; the value is YAML, and `null` removes the key
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Judges against this run instead of the baseline
    #[arg(long, value_name = "RUN")]
    against: Option<String>,
    /// Ends with 7 where there is no baseline, or the noise does not allow a word
    #[arg(long)]
    strict: bool,
    /// Prints the record as JSON on standard output, and all else on standard error
    #[arg(long, conflicts_with = "events")]
    json: bool,
    /// Prints the journal's lines as JSON on standard output while they come, and all else on standard error
    #[arg(long)]
    events: bool,
}

pub(crate) fn run(args: RunArgs, global: &Global) -> Outcome {
    let RunArgs { profile: asked, set, against, strict, json, events } = args;
    let folders = profile::default_folders();
    let request = Request { profile: &asked, set: &set, folders: &folders, env: &profile::process_env };
    let loaded = profile::load(&request).map_err(|error| Failure::new(Exit::Usage, error))?;
    let definition = planned::definition(&loaded.profile)?;
    planned::run_check(&loaded, &definition)?;
    let secrets = secrets::find(&loaded.profile.secrets).map_err(|error| Failure::new(Exit::Usage, error))?;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::NotLaunched, error))?;
    let store = Store::open(&global.results).map_err(records::failure)?;
    // Before anything is started: a verdict that could not be given is no use after an hour of measuring.
    store.baselines().map_err(records::failure)?;
    let against = against.map(|run| store.record(&store.find(&run)?)).transpose().map_err(records::failure)?;
    let orch = std::env::current_exe().map_err(Failure::own)?;
    let clock = Clock::system();
    let usual = usual(&store, &loaded.profile);
    let folder = begin(&store, &loaded, &clock)?;
    let screen = Screen::new(if json || events { Stream::Err } else { Stream::Out });
    let job = Job {
        profile: &loaded.profile,
        definition: &definition,
        secrets: &secrets,
        orch: &orch,
        usual_ready_s: usual.ready_s,
        against: against.as_ref(),
    };
    let view = View::new(screen.width(), usual, global.verbose > 0);
    let follower = Follower::new(folder.journal.path(), folder.journal.subscribe(), clock.clone(), events, view);
    let (record, interrupted) = go(&job, &work, &store, &folder, &clock, follower, &screen)?;
    let exit = interrupted
        .filter(|_| !record.complete)
        .unwrap_or_else(|| Exit::of(&record.verdict, record.failure.as_ref(), strict));
    for line in report::ending(&record, &folder.id().short(), exit as u8, screen.width()) {
        screen.line(&line);
    }
    if json {
        out::line(serde_json::to_string_pretty(&record).map_err(Failure::own)?);
    }
    Ok(exit)
}

fn begin(store: &Store, loaded: &Loaded, clock: &Clock) -> Result<RunFolder, Failure> {
    let new = NewRun {
        name: loaded.profile.name.clone(),
        series: loaded.profile.series.clone(),
        profile: serde_json::to_value(&loaded.profile).map_err(Failure::own)?,
        yaml: loaded.yaml.clone(),
        orch: this_build(),
        host: preflight::hardware().map_err(Failure::own)?,
        kind: RunKind::Run,
        group: None,
    };
    store.create(&new, clock).map_err(|error| Failure::new(Exit::NotLaunched, error))
}

/// Which build of orch this is.
pub(crate) fn this_build() -> OrchInfo {
    OrchInfo { version: env!("CARGO_PKG_VERSION").to_owned(), commit: option_env!("ORCH_COMMIT").map(str::to_owned) }
}

/// What runs of this series usually do here. Only for the screen: without it, nothing is missing but the brackets.
fn usual(store: &Store, profile: &Profile) -> Usual {
    let filter = Filter { series: Some(profile.series.clone()), complete: true, limit: Some(1), ..Filter::default() };
    let newest = store.list(&filter).ok().and_then(|listing| listing.rows.into_iter().next());
    let record = newest.and_then(|row| store.find(&row.id).ok()).and_then(|id| store.record(&id).ok());
    record.as_ref().map(Usual::of).unwrap_or_default()
}

/// The run itself, on a runtime, with somebody who watches.
fn go(
    job: &Job<'_>,
    work: &WorkFolder,
    store: &Store,
    folder: &RunFolder,
    clock: &Clock,
    follower: Follower,
    screen: &Screen,
) -> Result<(Record, Option<Exit>), Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(Failure::own)?;
    runtime.block_on(async {
        let server: Arc<OnceLock<Hurry>> = Arc::default();
        let hurry = server.clone();
        let interrupt = Interrupt::listen(move || {
            if let Some(hurry) = hurry.get() {
                hurry.now();
            }
        })
        .map_err(Failure::own)?;
        let token: &CancellationToken = interrupt.token();
        let on_server = |hurry| {
            let _ = server.set(hurry);
        };
        let server_log: PathBuf = folder.path().join("server.log");
        let cx =
            Context { work, store, folder, clock, interrupt: token, on_server: &on_server, server_log: &server_log };
        let over = CancellationToken::new();
        let run = async {
            let ended = run::run(job, &cx).await;
            over.cancel();
            ended
        };
        let (ended, ()) = tokio::join!(run, follower.follow(screen, &over));
        screen.end();
        // What cannot be written down is no measurement.
        let exit = interrupt.exit().unwrap_or(Exit::NoMeasurement);
        let record = ended.map_err(|error| Failure::new(exit, error))?;
        Ok((record, interrupt.exit()))
    })
}
