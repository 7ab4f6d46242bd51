//! The command line: what was typed, turned into what is meant. The only place that prints.
//!
//! One file a verb. Each holds its arguments as typed (clap) and `run`, which takes them apart field by field.

mod ab;
mod ablate;
mod attach;
mod baseline;
mod bench;
mod beside;
mod bisect;
mod bundle;
mod check;
mod children;
mod compare;
mod completions;
mod diagnose;
mod displace;
mod doctor;
mod down;
mod drift;
mod elsewhere;
mod exit;
mod export;
mod far;
mod far_run;
mod fetch;
mod follow;
mod history;
mod import;
mod import_results;
mod index;
mod list;
mod locate;
mod logs;
mod out;
mod planned;
mod prepared;
mod ps;
mod pull;
mod quick;
mod records;
mod render;
mod repeated;
mod report;
mod restore;
mod resume;
mod run;
mod schema;
mod screen;
mod secrets;
mod selftest;
mod server_pages;
mod show;
mod shown;
mod signals;
mod sim;
mod sources;
mod standing;
mod stop;
mod supervise;
mod sweep;
mod trial;
mod tune;
mod up;
mod upgrade;
mod viewer;
mod watch;
mod wishes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use exit::{Exit, Failure, Outcome};

/// Launches LLM inference servers from a profile, measures them, and judges the result against a baseline
#[derive(Debug, Parser)]
#[command(name = "orch", version = version(), arg_required_else_help = true, after_help = "Examples:
  orch run profiles/smollm2.yaml      the whole story, from a profile to a verdict
  orch render smollm2                 the command that would be run
  orch baseline set                   the newest run is what later ones are compared with
  orch ps                             what of ours runs here
  orch run smollm2 -H ct129           the same on another host: it goes on there whatever becomes of this machine

With ORCH_STORE=postgres://USER@HOST/DATABASE records and baselines are shared with a team (docs/team.md).
`orch VERB --help` shows more of each")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// With the commit where it is known, so that a record can be traced to a build.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| match option_env!("ORCH_COMMIT") {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    });
    &VERSION
}

/// What every verb takes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Global {
    /// The folder that records are kept in
    #[arg(long, global = true, value_name = "DIR", default_value = "results", env = "ORCH_RESULTS")]
    pub(crate) results: PathBuf,
    /// Says more of what is done
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Does it on this host of hosts.yaml instead of this machine, which is `local`
    #[arg(short = 'H', id = "on_host", global = true, value_name = "HOST", help_heading = ELSEWHERE)]
    pub(crate) on: Option<String>,
    /// The file that names hosts [default: hosts.yaml in the profile folders]
    #[arg(long, global = true, value_name = "FILE", help_heading = ELSEWHERE)]
    pub(crate) hosts: Option<PathBuf>,
    /// The configuration of SSH [default: ~/.ssh/config]
    #[arg(long, global = true, value_name = "FILE", help_heading = ELSEWHERE)]
    pub(crate) ssh_config: Option<PathBuf>,
    /// The build of orch that is put on the host, for one that this build does not run on
    #[arg(long, global = true, value_name = "FILE", help_heading = ELSEWHERE)]
    pub(crate) runner: Option<PathBuf>,
}

/// The options that say where.
const ELSEWHERE: &str = "Another host";
/// Verbs that look at no host, or at this one alone: `-H` is refused, and not offered.
const HERE_ONLY: [&str; 6] = ["check", "render", "import", "schema", "completions", "sim"];

/// What is typed. `-H` is `--host` too, but for the verbs that have a `--host` of their own.
fn command() -> clap::Command {
    let command = Cli::command();
    let elsewhere = |arg: &&clap::Arg| arg.get_help_heading() == Some(ELSEWHERE);
    let all: Vec<clap::Arg> = command.get_arguments().filter(elsewhere).cloned().collect();
    let long = |arg: clap::Arg| if arg.get_id() == ON_HOST { arg.long("host") } else { arg };
    let verbs: Vec<(String, bool)> =
        command.get_subcommands().map(|verb| (verb.get_name().to_owned(), has_own_host(verb))).collect();
    let command = command.mut_arg(ON_HOST, long);
    verbs.into_iter().fold(command, |command, (name, own)| {
        let hidden = HERE_ONLY.contains(&name.as_str());
        let of_verb = all.iter().cloned().map(|arg| if own { arg } else { long(arg) }.hide(hidden));
        let of_verb: Vec<clap::Arg> = of_verb.collect();
        command.mut_subcommand(name, |verb| verb.args(of_verb))
    })
}

/// The option that names the host.
const ON_HOST: &str = "on_host";

/// Whether a verb has a `--host` that means something else.
fn has_own_host(verb: &clap::Command) -> bool {
    verb.get_arguments().any(|arg| arg.get_long() == Some("host")) || verb.get_subcommands().any(has_own_host)
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::RunArgs),
    Bench(Box<bench::BenchArgs>),
    Check(check::CheckArgs),
    Render(render::RenderArgs),
    Fetch(fetch::FetchArgs),
    Import(import::ImportArgs),
    Drift(drift::DriftArgs),
    List(list::ListArgs),
    Show(show::ShowArgs),
    Compare(compare::CompareArgs),
    Report(report::ReportArgs),
    History(history::HistoryArgs),
    Export(export::ExportArgs),
    ImportResults(import_results::ImportResultsArgs),
    Ab(ab::AbArgs),
    Ablate(ablate::AblateArgs),
    Bisect(bisect::BisectArgs),
    Sweep(sweep::SweepArgs),
    Tune(tune::TuneArgs),
    Baseline(baseline::BaselineArgs),
    Index(index::IndexArgs),
    Ps(ps::PsArgs),
    Logs(logs::LogsArgs),
    Diagnose(diagnose::DiagnoseArgs),
    Doctor(doctor::DoctorArgs),
    Watch(watch::WatchArgs),
    Bundle(bundle::BundleArgs),
    Attach(attach::AttachArgs),
    Pull(pull::PullArgs),
    Stop(stop::StopArgs),
    Sim(sim::SimArgs),
    Selftest(selftest::SelftestArgs),
    Up(up::UpArgs),
    Down(down::DownArgs),
    Restore(restore::RestoreArgs),
    Schema(schema::SchemaArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Supervise(supervise::SuperviseArgs),
    #[command(hide = true)]
    Beside(beside::BesideArgs),
}

/// Runs the program.
pub fn main() -> ExitCode {
    // A process of the simulated engine has an engine's name and no command line.
    if let Some(code) = crate::sim::processes::as_worker() {
        return ExitCode::from(code);
    }
    let typed = command().try_get_matches().and_then(|matches| {
        let verb = matches.subcommand_name().unwrap_or_default().to_owned();
        Ok((Cli::from_arg_matches(&matches)?, verb))
    });
    let (cli, verb) = match typed {
        Ok(typed) => typed,
        Err(error) => {
            // clap knows itself whether this is help (0, standard output) or a mistake (2, standard error).
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { Exit::Done as u8 });
        }
    };
    let outcome = elsewhere::run(&cli, &verb).unwrap_or_else(|| here(cli));
    match outcome {
        Ok(exit) => out::exit(exit).into(),
        Err(failure) => {
            out::complain(&failure.report);
            failure.exit.into()
        }
    }
}

/// Does a verb that is not simply done on another host.
fn here(cli: Cli) -> Outcome {
    let global = &cli.global;
    match cli.verb {
        Verb::Run(args) => run::run(args, global),
        Verb::Bench(args) => bench::run(*args, global),
        Verb::Check(args) => check::run(args, global),
        Verb::Render(args) => render::run(args, global),
        Verb::Fetch(args) => fetch::run(args, global),
        Verb::Import(args) => import::run(args, global),
        Verb::Drift(args) => drift::run(args, global),
        Verb::List(args) => list::run(args, global),
        Verb::Show(args) => show::run(args, global),
        Verb::Compare(args) => compare::run(args, global),
        Verb::Report(args) => report::run(args, global),
        Verb::History(args) => history::run(args, global),
        Verb::Export(args) => export::run(args, global),
        Verb::ImportResults(args) => import_results::run(args, global),
        Verb::Ab(args) => ab::run(args, global),
        Verb::Ablate(args) => ablate::run(args, global),
        Verb::Bisect(args) => bisect::run(args, global),
        Verb::Sweep(args) => sweep::run(args, global),
        Verb::Tune(args) => tune::run(args, global),
        Verb::Baseline(args) => baseline::run(args, global),
        Verb::Index(args) => index::run(args, global),
        Verb::Ps(args) => ps::run(args, global),
        Verb::Logs(args) => logs::run(args, global),
        Verb::Diagnose(args) => diagnose::run(args, global),
        Verb::Doctor(args) => doctor::run(args, global),
        Verb::Watch(args) => watch::run(args, global),
        Verb::Bundle(args) => bundle::run(args, global),
        Verb::Attach(args) => attach::run(args, global),
        Verb::Pull(args) => pull::run(args, global),
        Verb::Stop(args) => stop::run(args, global),
        Verb::Sim(args) => sim::run(args, global),
        Verb::Selftest(args) => selftest::run(args, global),
        Verb::Up(args) => up::run(args, global),
        Verb::Down(args) => down::run(args, global),
        Verb::Restore(args) => restore::run(args, global),
        Verb::Schema(args) => schema::run(args, global),
        Verb::Completions(args) => completions::run(args),
        Verb::Supervise(args) => supervise::run(args, global),
        Verb::Beside(args) => beside::run(args, global),
    }
}
