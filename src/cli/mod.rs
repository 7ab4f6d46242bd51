//! The command line: what was typed, turned into what is meant. The only place that prints.
//!
//! One file a verb. Each holds its arguments as typed (clap) and `run`, which takes them apart field by field.

mod attach;
mod baseline;
mod bench;
mod check;
mod compare;
mod completions;
mod displace;
mod down;
mod exit;
mod fetch;
mod follow;
mod list;
mod locate;
mod logs;
mod out;
mod planned;
mod ps;
mod records;
mod render;
mod restore;
mod resume;
mod run;
mod schema;
mod screen;
mod secrets;
mod selftest;
mod show;
mod signals;
mod sim;
mod standing;
mod stop;
mod supervise;
mod up;

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
    Bench(bench::BenchArgs),
    Check(check::CheckArgs),
    Render(render::RenderArgs),
    Fetch(fetch::FetchArgs),
    List(list::ListArgs),
    Show(show::ShowArgs),
    Compare(compare::CompareArgs),
    Baseline(baseline::BaselineArgs),
    Ps(ps::PsArgs),
    Logs(logs::LogsArgs),
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
        Verb::Bench(args) => bench::run(args, global),
        Verb::Check(args) => check::run(args, global),
        Verb::Render(args) => render::run(args, global),
        Verb::Fetch(args) => fetch::run(args, global),
        Verb::List(args) => list::run(args, global),
        Verb::Show(args) => show::run(args, global),
        Verb::Compare(args) => compare::run(args, global),
        Verb::Baseline(args) => baseline::run(args, global),
        Verb::Ps(args) => ps::run(args, global),
        Verb::Logs(args) => logs::run(args, global),
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
