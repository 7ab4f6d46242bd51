//! `orch up`: deploys a profile, and puts the old one back when the new one is worse.

use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use tokio_util::sync::CancellationToken;

use super::displace::DisplaceArgs;
use super::follow::Follower;
use super::prepared::Prepared;
use super::run::begin;
use super::screen::{Screen, Stream};
use super::signals::Interrupt;
use super::{Exit, Failure, Global, Outcome, out, planned, records};
use crate::clock::Clock;
use crate::deploy::As;
use crate::launch::WorkFolder;
use crate::launch::systemd::Manager;
use crate::profile::{self, Profile, Request, Via};
use crate::record::Store;
use crate::record::model::{Asked, Record};
use crate::report::live::View;
use crate::report::run as report;
use crate::run::{self, Context, Deploy, Ended, Job};

/// Deploys a profile: shows what changes, replaces what serves, waits until the new one has generated tokens, and holds
/// a step against the baseline
///
/// When the new one does not start, is not valid or is worse than the baseline, the old one is put back and gated too.
/// How long nothing served is always printed. A kill at any moment, of orch too, ends with the old one serving or the
/// new one proven. Without `--as`: what `launch.via` says, else a unit where systemd runs, else a process of orch's own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch up qwen-mtp3
  orch up qwen-mtp3 --dry-run           what would change
  orch up qwen-mtp3 --name qwen --check ladder@8
  orch up qwen-mtp3 --as docker --set 'launch.via={docker: {image: \"lmsysorg/sglang:v0.5.9\"}}'
  orch down qwen-mtp3

Exit codes: 0 it serves (or nothing had to change); 2 usage or profile; 3 could not launch; 4 never ready; 5 no valid
measurement; 6 worse than the baseline; 7 --strict; 130, 143 interrupted. With 3 to 6, 130 and 143 the old one serves
again; with 6 the new one stays where nothing was there before.")]
pub(crate) struct UpArgs {
    /// Name of a profile, or the path of its file
    profile: String,
    /// Sets a key above all files; the value is YAML, and `null` removes the key
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// In which form it is deployed
    #[arg(long = "as", value_enum, value_name = "FORM")]
    form: Option<Form>,
    /// Which systemd has the unit [default: the one that answers, for root the system's first]
    #[arg(long, value_enum)]
    manager: Option<Which>,
    /// The deployment's name: what it replaces [default: the profile's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The step that is measured and held against the baseline [default: the profile's first]
    #[arg(long, value_name = "STEP", conflicts_with = "no_check")]
    check: Option<String>,
    /// Measures nothing: proven by generated tokens is enough
    #[arg(long)]
    no_check: bool,
    /// Replaces it although nothing differs
    #[arg(long)]
    again: bool,
    /// Shows what would change, and changes nothing
    #[arg(long)]
    dry_run: bool,
    /// Judges against this run instead of the baseline
    #[arg(long, value_name = "RUN")]
    against: Option<String>,
    #[command(flatten)]
    displace: DisplaceArgs,
    /// Ends with 7 where there is no baseline, or the noise does not allow a word; what is new stays
    #[arg(long)]
    strict: bool,
    /// Prints the record as JSON on standard output, and all else on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A systemd unit
    Unit,
    /// A container that its engine keeps
    Docker,
    /// A process under orch's own supervisor
    Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// The system's
    System,
    /// The user's own
    User,
}

pub(crate) fn run(args: UpArgs, global: &Global) -> Outcome {
    let args = UpArgs { displace: args.displace.clone().with(global), ..args };
    let folders = profile::default_folders();
    let request = Request { profile: &args.profile, set: &args.set, folders: &folders, env: &profile::process_env };
    let loaded = profile::load(&request).map_err(|error| Failure::new(Exit::Usage, error))?;
    let definition = planned::definition(&loaded.profile)?;
    planned::up_check(&loaded, &definition)?;
    let (form, manager) = form(&args, &loaded.profile)?;
    let name = args.name.clone().unwrap_or_else(|| loaded.profile.name.clone());
    check_name(&name)?;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::NotLaunched, error))?;
    let store = records::store(global)?;
    let check = check(&args, &loaded.profile, &definition)?;
    let found = Prepared::find(&loaded, definition, args.against.as_deref(), &args.displace, &store, &work)?;
    let clock = Clock::system();
    let (folder, _) = begin(&store, &loaded, &Asked::default(), &clock)?;
    // Where its folder is, for whoever asks without saying `--results`. Without it nothing is lost but that.
    let _ = work.remember_run(folder.id().as_str(), folder.path());
    let screen = Screen::new(if args.json { Stream::Err } else { Stream::Out });
    let job = found.job(&loaded, Default::default(), Default::default(), &args.displace, false);
    let deploy = Deploy { form, manager, name: &name, check: check.as_deref(), again: args.again, dry: args.dry_run };
    let view = View::new(screen.width(), found.usual(), global.verbose > 0);
    let follower = Follower::new(folder.journal.path(), folder.journal.subscribe(), clock.clone(), false, view);
    let place = Place { work: &work, store: &store, folder: &folder, clock: &clock };
    let (outcome, interrupted) = go(&job, &deploy, &place, follower, &screen)?;
    let exit = exit(&outcome, interrupted, args.strict);
    for line in ending(&outcome, &folder.id().short(), exit, screen.width()) {
        screen.line(&line);
    }
    if args.json {
        out::line(serde_json::to_string_pretty(&outcome.record).map_err(Failure::own)?);
    }
    if interrupted.is_none() {
        records::meet(&store);
    }
    Ok(exit)
}

/// What is asked, what the profile says, what there is: in this order.
fn form(args: &UpArgs, profile: &Profile) -> Result<(As, Option<Manager>), Failure> {
    let manager = || {
        let asked = args.manager.map(|which| match which {
            Which::System => Manager::System,
            Which::User => Manager::User,
        });
        match asked {
            Some(manager) => manager.answers().then_some(manager),
            None => Manager::find(),
        }
    };
    let wanted = match (args.form, &profile.launch.via) {
        (Some(Form::Unit), _) | (None, Via::Systemd) => Some(As::Unit),
        (Some(Form::Docker), _) | (None, Via::Docker { .. }) => Some(As::Docker),
        (Some(Form::Process), _) => Some(As::Process),
        (None, Via::Process) => None,
    };
    if args.manager.is_some() && !matches!(wanted, Some(As::Unit) | None) {
        let error = miette::miette!(help = "take it out, or deploy `--as unit`", "`--manager` is for units only");
        return Err(Failure::new(Exit::Usage, error));
    }
    match (wanted, wanted.is_none_or(|form| form == As::Unit).then(manager).flatten()) {
        (Some(As::Unit) | None, Some(manager)) => Ok((As::Unit, Some(manager))),
        (Some(As::Unit), None) => Err(Failure::new(Exit::NotLaunched, crate::deploy::DeployError::NoManager)),
        (None, None) if args.manager.is_some() => {
            Err(Failure::new(Exit::NotLaunched, crate::deploy::DeployError::NoManager))
        }
        (Some(form), _) => Ok((form, None)),
        (None, None) => Ok((As::Process, None)),
    }
}

/// It becomes the name of a folder, a unit and a container.
fn check_name(name: &str) -> Result<(), Failure> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(good) || name.len() > 100 {
        let error = miette::miette!(
            help = "letters, digits, `.`, `_` and `-`, at most 100, and neither `.` nor `-` first",
            "`{name}` cannot be the name of a deployment"
        );
        return Err(Failure::new(Exit::Usage, error));
    }
    Ok(())
}

/// The step that is measured.
fn check(args: &UpArgs, profile: &Profile, definition: &crate::engine::Definition) -> Result<Option<String>, Failure> {
    if args.no_check {
        return Ok(None);
    }
    let steps = planned::step_names(profile, definition);
    match &args.check {
        None => Ok(steps.into_iter().next()),
        Some(asked) if steps.contains(asked) => Ok(Some(asked.clone())),
        Some(asked) => {
            let known = format!("its steps are {}", steps.join(", "));
            let error = miette::miette!(help = known, "the profile has no step `{asked}`");
            Err(Failure::new(Exit::Usage, error))
        }
    }
}

struct Place<'a> {
    work: &'a WorkFolder,
    store: &'a Store,
    folder: &'a crate::record::RunFolder,
    clock: &'a Clock,
}

fn go(
    job: &Job<'_>,
    deploy: &Deploy<'_>,
    place: &Place<'_>,
    follower: Follower,
    screen: &Screen,
) -> Result<(run::Outcome, Option<Exit>), Failure> {
    let runtime = crate::host::runtime::on_threads(2).map_err(Failure::own)?;
    runtime.block_on(async {
        let nothing: Arc<OnceLock<()>> = Arc::default();
        // A second signal ends this process; the restorer then does what is left to do.
        let interrupt = Interrupt::listen(move || drop(nothing.clone())).map_err(Failure::own)?;
        let token: &CancellationToken = interrupt.token();
        let server_log = place.folder.path().join("server.log");
        let machine = run::Readings::new(&place.folder.journal, place.folder.path(), place.clock);
        let cx = Context {
            work: place.work,
            store: place.store,
            folder: place.folder,
            clock: place.clock,
            machine: &machine,
            interrupt: token,
            on_server: &|_| {},
            server_log: &server_log,
        };
        let over = CancellationToken::new();
        let up = async {
            let ended = run::up(job, deploy, &cx).await;
            over.cancel();
            ended
        };
        let (ended, ()) = tokio::join!(up, follower.follow(screen, &over));
        screen.end();
        let exit = interrupt.exit().unwrap_or(Exit::NoMeasurement);
        let outcome = ended.map_err(|error| Failure::new(exit, error))?;
        Ok((outcome, interrupt.exit()))
    })
}

fn exit(outcome: &run::Outcome, interrupted: Option<Exit>, strict: bool) -> Exit {
    let Record { verdict, failure, complete, .. } = &outcome.record;
    if let Some(exit) = interrupted.filter(|_| !complete) {
        return exit;
    }
    match &outcome.ended {
        Ended::NotBack(_) if failure.is_none() => Exit::Own,
        Ended::Shown => Exit::Done,
        // Nothing was measured, on purpose.
        Ended::Serves | Ended::Unchanged if outcome.record.steps.is_empty() && failure.is_none() => Exit::Done,
        _ => Exit::of(verdict, failure.as_ref(), strict),
    }
}

/// The last lines: what was measured, the verdict, what serves now, and the outage.
fn ending(outcome: &run::Outcome, short: &str, exit: Exit, width: usize) -> Vec<String> {
    let record = &outcome.record;
    let mut lines = match &outcome.ended {
        Ended::Shown => vec![String::new()],
        _ if record.steps.is_empty() && record.failure.is_none() => vec![String::new()],
        _ => {
            let mut lines = report::ending(record, short, exit as u8, width);
            // What is left is what serves, and that is told below.
            lines.pop();
            lines
        }
    };
    let shown = outcome.shown.as_deref().unwrap_or("the deployment");
    let at = outcome.base_url.as_deref().map(|url| format!(" at {url}")).unwrap_or_default();
    lines.push(match &outcome.ended {
        Ended::Shown => format!("{shown}: nothing was changed (--dry-run)"),
        Ended::Unchanged => format!("{shown} serves{at}, unchanged"),
        Ended::Serves => format!("{shown} serves{at}"),
        Ended::ServesWorse => {
            format!("{shown} serves{at}: worse than the baseline, and nothing was there before to put back")
        }
        Ended::PutBack => format!("{shown}: the old one is put back and serves{at}"),
        Ended::TakenAway => format!("{shown}: taken away again; nothing was there before"),
        Ended::NotBack(why) => {
            format!("{shown}: THE OLD ONE IS NOT BACK: {why}. It is tried again in the background; `orch restore`")
        }
        Ended::Untouched => format!("{shown}: nothing was changed"),
    });
    let outage = match outcome.outage_s {
        Some(outage_s) => format!("outage {outage_s:.1} s"),
        None if matches!(outcome.ended, Ended::NotBack(_)) => "outage goes on".to_owned(),
        None => "no outage: nothing that served was stopped".to_owned(),
    };
    lines.push(format!("{outage}   orch show {short}"));
    lines
}
