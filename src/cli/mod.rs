//! The command line: what was typed, turned into what is meant. The only place that prints.
//!
//! One file a verb. Each holds its arguments as typed (clap) and `run`, which takes them apart field by field.

mod ab;
mod ablate;
mod attach;
mod baseline;
mod bench;
mod bisect;
mod bundle;
mod check;
mod children;
mod compare;
mod completions;
mod diagnose;
mod displace;
mod down;
mod drift;
mod exit;
mod export;
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
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};

pub use exit::{Exit, Failure, Outcome};

/// Launches LLM inference servers from a profile, measures them, and judges the result against a baseline
#[derive(Debug, Parser)]
#[command(name = "orch", version = version(), arg_required_else_help = true, after_help = "Examples:
  orch run profiles/smollm2.yaml      the whole story, from a profile to a verdict
  orch render smollm2                 the command that would be run
  orch baseline set                   the newest run is what later ones are compared with
  orch ps                             what of ours runs here

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
    Watch(watch::WatchArgs),
    Bundle(bundle::BundleArgs),
    Attach(attach::AttachArgs),
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
}

/// Runs the program.
pub fn main() -> ExitCode {
    // A process of the simulated engine has an engine's name and no command line.
    if let Some(code) = crate::sim::processes::as_worker() {
        return ExitCode::from(code);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap knows itself whether this is help (0, standard output) or a mistake (2, standard error).
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { Exit::Done as u8 });
        }
    };
    let global = &cli.global;
    let outcome = match cli.verb {
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
        Verb::Watch(args) => watch::run(args, global),
        Verb::Bundle(args) => bundle::run(args, global),
        Verb::Attach(args) => attach::run(args, global),
        Verb::Stop(args) => stop::run(args, global),
        Verb::Sim(args) => sim::run(args, global),
        Verb::Selftest(args) => selftest::run(args, global),
        Verb::Up(args) => up::run(args, global),
        Verb::Down(args) => down::run(args, global),
        Verb::Restore(args) => restore::run(args, global),
        Verb::Schema(args) => schema::run(args, global),
        Verb::Completions(args) => completions::run(args),
        Verb::Supervise(args) => supervise::run(args, global),
    };
    match outcome {
        Ok(exit) => out::exit(exit).into(),
        Err(failure) => {
            out::complain(&failure.report);
            failure.exit.into()
        }
    }
}
