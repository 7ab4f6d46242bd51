//! `orch run`: from a profile to a verdict.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use super::children;
use super::displace::DisplaceArgs;
use super::far;
use super::far_run;
use super::follow::Follower;
use super::prepared::Prepared;
use super::resume::{self, Added, Begun};
use super::screen::{Screen, Stream};
use super::signals::Interrupt;
use super::{Exit, Failure, Global, Outcome, out, planned, quick, records, repeated};
use crate::clock::Clock;
use crate::engine::Definition;
use crate::event::{Emit, Event, Scope};
use crate::launch::{Hurry, WorkFolder};
use crate::preflight;
use crate::profile::{self, Loaded, Profile, Request};
use crate::record::history::PastStarts;
use crate::record::model::{Asked, Group, OrchInfo, Record, RunKind};
use crate::record::{NewRun, RunFolder, Store};
use crate::remote::beside::JobFolder;
use crate::render::Warning;
use crate::report::live::View;
use crate::report::run as report;
use crate::run::{self, After, Context, Job, Source};

/// Starts the server of a profile, waits until it is ready, measures it, stops it, and judges the result
///
/// The record is kept under the results folder, whatever happens. Ctrl-C once stops load and server in order; twice at
/// once. With `--attach` a server is measured that is up already, and is neither started nor stopped. With `-H` it is done on
/// another host and watched from here: Ctrl-D leaves it, Ctrl-C asks, and its record is brought here at its end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch run profiles/smollm2.yaml
  orch run smollm2 --set bench.single.requests=64
  orch run smollm2 --against r0420 --strict
  orch run smollm2 --quick                    one step, about a minute, never a baseline
  orch run smollm2 --json > record.json
  orch run smollm2 --keep                     the server stays; `orch stop ID` ends it
  orch run --attach r0420                     measures on it again, with its own profile
  orch run smollm2 --attach http://gpu-3:8000
  orch run qwen-mtp3 --displace               production makes room, and comes back whatever happens
  orch run --resume r0421                     goes on with a run that was interrupted
  orch run smollm2 -H ct129                   on that host; the laptop may close

Exit codes: 0 ok, improved (and, unless --strict, no baseline or inconclusive); 2 usage or profile; 3 could not launch;
4 never ready; 5 no valid measurement; 6 regressed; 7 --strict; 130, 143 interrupted")]
pub(crate) struct RunArgs {
    /// Name of a profile, or the path of its file
    #[arg(required_unless_present_any = ["resume", "attach"])]
    profile: Option<String>,
    /// Sets a key above all files; the value is YAML, and `null` removes the key
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// A quick look: the first load of the first measurement, for at most 45 s after a short warm-up; never a baseline
    #[arg(long)]
    quick: bool,
    /// Judges against this run instead of the baseline
    #[arg(long, value_name = "RUN")]
    against: Option<String>,
    #[command(flatten)]
    displace: DisplaceArgs,
    /// Lets the server stay when the run has come to its end
    ///
    /// Not with `--displace`: production comes back to the place that the server would keep.
    #[arg(long, conflicts_with_all = ["attach", "displace", "force_displace"])]
    keep: bool,
    /// Measures a server that is up: one that a run kept, by its id or the run's short name, or any by its address
    #[arg(long, value_name = "ID|URL")]
    attach: Option<String>,
    /// Goes on with a run that was interrupted: what is finished stays, and its server is taken over if it still lives
    #[arg(long, value_name = "RUN", conflicts_with_all = ["profile", "set", "attach", "quick"])]
    resume: Option<String>,
    /// Ends with 7 where there is no baseline, or the noise does not allow a word
    #[arg(long)]
    strict: bool,
    /// Ends a start at the first line that looks fatal, without waiting for the engine to confirm it
    #[arg(long)]
    fail_fast: bool,
    /// What it is a part of, as JSON; a trial says so of its runs
    #[arg(long, hide = true, value_name = "JSON")]
    group: Option<String>,
    /// The folder of the job that it is: what it is judged by, and who is told
    #[arg(long, hide = true, value_name = "DIR")]
    job: Option<PathBuf>,
    /// The process that this one ends with
    #[arg(long, hide = true, value_name = "PID")]
    with_parent: Option<u32>,
    /// Prints the record as JSON on standard output, and all else on standard error
    #[arg(long, conflicts_with = "events")]
    json: bool,
    /// Prints the journal's lines as JSON on standard output while they come, and all else on standard error
    #[arg(long)]
    events: bool,
}

/// What is done beside what the profile says.
struct How {
    source: Source,
    after: After,
    against: Option<String>,
    displace: DisplaceArgs,
}

impl How {
    fn of(asked: &Asked, displace: DisplaceArgs) -> Self {
        let after = if asked.keep { After::Keep } else { After::Stop };
        let displace = displace.or(asked.displace.as_ref());
        How { source: source(asked.attach.as_deref()), after, against: asked.against.clone(), displace }
    }
}

/// Where the server of a run comes from, by what `--attach` says.
fn source(attach: Option<&str>) -> Source {
    match attach {
        None => Source::Start,
        Some(text) if text.contains("://") => Source::Url(text.to_owned()),
        Some(text) => Source::Kept(text.to_owned()),
    }
}

/// How a run is told.
pub(super) struct Tell {
    pub(super) strict: bool,
    pub(super) fail_fast: bool,
    pub(super) json: bool,
    pub(super) events: bool,
    pub(super) verbose: bool,
    /// The job that it is, of another orch that watches from elsewhere.
    pub(super) job: Option<JobFolder>,
}

impl Tell {
    /// For whoever only watches.
    pub(super) fn watching(events: bool, verbose: bool) -> Self {
        Tell { strict: false, fail_fast: false, json: false, events, verbose, job: None }
    }

    /// The results folder that the verdict is made from: that of a job stands alone.
    fn judge(&self, own: &Store) -> Result<Store, Failure> {
        match &self.job {
            Some(job) => Store::open(&job.judge()).map_err(records::failure),
            None => Ok(own.clone()),
        }
    }
}

pub(crate) fn run(args: RunArgs, global: &Global) -> Outcome {
    let RunArgs {
        profile: asked,
        mut set,
        quick: quickly,
        against,
        displace,
        keep,
        attach,
        resume: resumed,
        strict,
        fail_fast,
        group,
        job,
        with_parent,
        json,
        events,
    } = args;
    let displace = displace.with(global);
    if let Some(parent) = with_parent {
        children::end_with(parent)?;
    }
    let job = job.map(JobFolder::at);
    let tell = Tell { strict, fail_fast, json, events, verbose: global.verbose > 0, job };
    let clock = Clock::system();
    let group = group.map(|text| serde_json::from_str(&text)).transpose();
    let group: Option<Group> =
        group.map_err(|error| Failure::new(Exit::Usage, miette::miette!("`--group`: {error}")))?;
    // On another host without a profile from here: it goes by what is there.
    if let Some(host) = far::asked(global)
        && asked.is_none()
    {
        let there = far_run::Asked {
            quick: quickly,
            against: against.as_deref(),
            displace: &displace,
            keep,
            attach: attach.as_deref(),
            resume: resumed.as_deref(),
            fail_fast,
            group: group.as_ref(),
        };
        return far_run::run(host, None, &there, &tell, global);
    }
    if let Some(text) = resumed {
        let work = own_folder()?;
        let added = Added { keep, against, displace: displace.remembered() };
        return match resume::open(&text, added, &work, global, &clock)? {
            resume::Found::Open(_, asked) if asked.keep && asked.displace.is_some() => {
                let report = miette::miette!(
                    help = "resume it without `--displace`",
                    "run `{text}` keeps its server, and production could not come back beside it"
                );
                Err(Failure::new(Exit::Usage, report))
            }
            resume::Found::Open(begun, asked) => {
                let judge = tell.judge(&begun.store)?;
                story(Begun { store: judge, ..*begun }, How::of(&asked, displace), &work, &clock, &tell)
            }
            resume::Found::Complete(record, short) => ending(&record, &short, None, &tell),
        };
    }
    let attach = match attach {
        Some(text) if text.contains("://") => Some(address(&text)?),
        other => other,
    };
    let source = source(attach.as_deref());
    let asked = match (asked, &source) {
        (Some(asked), _) => asked,
        (None, Source::Kept(text)) => resume::profile_of(text, &own_folder()?, global)?,
        (None, _) => {
            let report =
                miette::miette!(help = "`orch run PROFILE --attach URL`", "an address has no profile of its own");
            return Err(Failure::new(Exit::Usage, report));
        }
    };
    let mut loaded = load(&asked, &set)?;
    let host = far::of_profile(&loaded.profile, global).map(str::to_owned);
    let here = global.on.is_some() && host.is_none() && loaded.profile.host.is_some();
    if here || (host.is_some() && repeated::asked(&loaded.profile)) {
        // `-H` has the last word; several runs are each told where to be by their profile.
        set.push(format!("host={}", host.as_deref().unwrap_or("null")));
        loaded = load(&asked, &set)?;
    }
    let whole = loaded.clone();
    if quickly {
        set.extend(quick::sets(&loaded.profile));
        loaded = load(&asked, &set)?;
    }
    // A profile that cannot be run leaves nothing behind, not even a folder.
    match host {
        Some(_) => planned::far_check(&loaded, &planned::definition(&loaded.profile)?)?,
        None => drop(checked(&loaded)?),
    }
    if repeated::asked(&loaded.profile) {
        if attach.is_some() || keep || events || fail_fast || displace.asked() || against.is_some() {
            return Err(one_run_only());
        }
        return repeated::run(&loaded.profile, &asked, &set, strict, json, global);
    }
    if let Some(host) = host {
        let there = far_run::Asked {
            quick: quickly,
            against: against.as_deref(),
            displace: &displace,
            keep,
            attach: attach.as_deref(),
            resume: None,
            fail_fast,
            group: group.as_ref(),
        };
        return far_run::run(&host, Some(&whole), &there, &tell, global);
    }
    let work = own_folder()?;
    let store = records::store(global)?;
    let judge = tell.judge(&store)?;
    // By its id: what `latest` means changes with the run that begins here.
    let against = against.map(|run| judge.find(&run)).transpose().map_err(records::failure)?;
    let asked = Asked { attach, keep, against: against.map(|id| id.to_string()), displace: displace.remembered() };
    let folder = |loaded: &Loaded| {
        let new = new_run(loaded, &asked)?.part_of(group);
        let folder = store.create(&new, &clock).map_err(|error| Failure::new(Exit::NotLaunched, error))?;
        if quickly {
            let warning = Warning::new(quick::ID, quick::TEXT);
            folder.journal.emit(Scope::Run, Event::Warning(warning)).map_err(Failure::own)?;
        }
        Ok((folder, 0))
    };
    let begun = Begun::new(loaded, judge, folder)?;
    story(begun, How::of(&asked, displace), &work, &clock, &tell)
}

/// A profile that asks for several runs, with a flag that is about one.
fn one_run_only() -> Failure {
    let report = miette::miette!(
        help = "leave it out, or make it one run with `--set repeat=null --set suspect=null`",
        "`--attach`, `--keep`, `--against`, `--displace` and `--events` are of one run, and the profile asks for several by `repeat` or `suspect`"
    );
    Failure::new(Exit::Usage, report)
}

fn own_folder() -> Result<WorkFolder, Failure> {
    WorkFolder::find().map_err(|error| Failure::new(Exit::NotLaunched, error))
}

/// What is known of the profile's engine, if it can be run at all.
fn checked(loaded: &Loaded) -> Result<Definition, Failure> {
    let definition = planned::definition(&loaded.profile)?;
    planned::run_check(loaded, &definition)?;
    Ok(definition)
}

/// An address as `http://host:port`, whatever path of OpenAI's interface a person added to it.
fn address(text: &str) -> Result<String, Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, miette::miette!("`--attach {text}`: {why}"));
    let url = reqwest::Url::parse(text).map_err(|error| usage(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(usage("an address begins with http:// or https://".to_owned()));
    }
    Ok(text.trim_end_matches('/').trim_end_matches("/v1").to_owned())
}

/// Reads a profile, and whether this build can run it.
pub(super) fn load(asked: &str, set: &[String]) -> Result<Loaded, Failure> {
    let folders = profile::default_folders();
    let request = Request { profile: asked, set, folders: &folders, env: &profile::process_env };
    profile::load(&request).map_err(|error| Failure::new(Exit::Usage, error))
}

/// From what is to be run to how it ended.
fn story(begun: Begun<'_>, how: How, work: &WorkFolder, clock: &Clock, tell: &Tell) -> Outcome {
    let Begun { loaded, store, folder } = begun;
    let definition = checked(&loaded)?;
    let found = Prepared::find(&loaded, definition, how.against.as_deref(), &how.displace, &store, work)?;
    let runtime = crate::host::runtime::on_threads(2).map_err(Failure::start)?;
    // Before there is anything to be kept: a signal from here on ends the run in order, with a record that says so.
    let server: Arc<OnceLock<Hurry>> = Arc::default();
    let hurry = server.clone();
    let listening = async {
        Interrupt::listen(move || {
            if let Some(hurry) = hurry.get() {
                hurry.now();
            }
        })
    };
    let interrupt = runtime.block_on(listening).map_err(Failure::start)?;
    let (folder, from) = folder(&loaded)?;
    // Where its folder is, for whoever asks without saying `--results`. Without it nothing is lost but that.
    let _ = work.remember_run(folder.id().as_str(), folder.path());
    if let Some(job) = &tell.job {
        // Who watches would never find it.
        job.tell_run(folder.id().as_str(), folder.path()).map_err(Failure::own)?;
    }
    let screen = Screen::new(if tell.json || tell.events { Stream::Err } else { Stream::Out });
    let job = found.job(&loaded, how.source, how.after, &how.displace, tell.fail_fast);
    let view = View::new(screen.width(), found.usual(), tell.verbose);
    let follower = Follower::new(folder.journal.path(), folder.journal.subscribe(), clock.clone(), tell.events, view)
        .starting_at(from);
    let on_server = |hurry| {
        let _ = server.set(hurry);
    };
    let server_log: PathBuf = folder.path().join("server.log");
    let token: &CancellationToken = interrupt.token();
    let (folder, store) = (&folder, &store);
    let machine = &run::Readings::new(&folder.journal, folder.path(), clock);
    let cx = Context {
        work,
        store,
        folder,
        clock,
        machine,
        interrupt: token,
        on_server: &on_server,
        server_log: &server_log,
    };
    let ended = runtime.block_on(go(&job, &cx, follower, &screen));
    let signalled = interrupt.exit().filter(|_| !ended.record.complete);
    // What cannot be written down is no measurement.
    let unwritten = ended.unwritten.is_some().then_some(Exit::NoMeasurement);
    let exit = ending(&ended.record, &folder.id().short(), signalled.or(unwritten), tell)?;
    // Who wants it to end now does not wait for others: the next verb sends what this one did not.
    if interrupt.exit().is_none() {
        records::meet(store);
    }
    match ended.unwritten {
        None => Ok(exit),
        Some(error) => Err(Failure::new(exit, error)),
    }
}

/// The run itself, with somebody who watches.
async fn go(job: &Job<'_>, cx: &Context<'_>, follower: Follower, screen: &Screen) -> run::Told {
    let over = CancellationToken::new();
    let run = async {
        let ended = run::run(job, cx).await;
        over.cancel();
        ended
    };
    let (ended, ()) = tokio::join!(run, follower.follow(screen, &over));
    screen.end();
    ended
}

/// Shows how a run ended. `exit` is what a signal asks for, if one ended it.
pub(super) fn ending(record: &Record, short: &str, exit: Option<Exit>, tell: &Tell) -> Outcome {
    let screen = Screen::new(if tell.json || tell.events { Stream::Err } else { Stream::Out });
    let exit = exit.unwrap_or_else(|| Exit::of(&record.verdict, record.failure.as_ref(), tell.strict));
    for line in report::ending(record, short, exit as u8, screen.width()) {
        screen.line(&line);
    }
    if tell.json {
        out::line(serde_json::to_string_pretty(record).map_err(Failure::own)?);
    }
    Ok(exit)
}

/// Makes the folder of a new run.
pub(super) fn begin(store: &Store, loaded: &Loaded, asked: &Asked, clock: &Clock) -> Result<(RunFolder, u64), Failure> {
    let new = new_run(loaded, asked)?;
    let folder = store.create(&new, clock).map_err(|error| Failure::new(Exit::NotLaunched, error))?;
    Ok((folder, 0))
}

/// What a run of this profile says of itself when it begins.
pub(super) fn new_run(loaded: &Loaded, asked: &Asked) -> Result<NewRun, Failure> {
    Ok(NewRun {
        name: loaded.profile.name.clone(),
        series: loaded.profile.series.clone(),
        profile: serde_json::to_value(&loaded.profile).map_err(Failure::own)?,
        yaml: loaded.yaml.clone(),
        orch: this_build(),
        host: preflight::hardware().map_err(Failure::own)?,
        kind: RunKind::Run,
        group: None,
        asked: asked.clone(),
    })
}

/// Which build of orch this is.
pub(crate) fn this_build() -> OrchInfo {
    OrchInfo { version: env!("CARGO_PKG_VERSION").to_owned(), commit: option_env!("ORCH_COMMIT").map(str::to_owned) }
}

/// How starts of this profile went before on this machine, newest first.
pub(super) fn past(store: &Store, profile: &Profile) -> PastStarts {
    PastStarts::of(store, &profile.series, &profile.name, preflight::hardware().ok().as_ref())
}
