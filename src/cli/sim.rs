//! `orch sim`: the simulated engine.

use std::path::PathBuf;
use std::rc::Rc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sim::processes::{self, Renamed};
use crate::sim::{Ended, Life, Scenario, live};

use super::{Exit, Failure, Global, Outcome, out};

/// Serves as a simulated engine: known speed, known faults, the same again for the same seed
///
/// It plays SGLang, vLLM or llama.cpp, as its scenario says (docs/simulated.md), and computes nothing. Its answers are
/// marked as simulated. SIGTERM stops it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  orch sim --port 30000\n  orch sim --scenario slow.yaml --port 30000 --ledger ledger.jsonl"
)]
pub(crate) struct SimArgs {
    /// A file that says how it behaves, or the scenario itself in braces; without one it is a plain SGLang
    #[arg(long, value_name = "FILE")]
    scenario: Option<String>,
    /// The port to listen at; 0 is any free one, which its first line says
    #[arg(long)]
    port: u16,
    /// The address to listen at
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Where it writes what it really sent, a line of JSON for each request
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
}

pub(crate) fn run(args: SimArgs, _global: &Global) -> Outcome {
    let SimArgs { scenario, port, host, ledger } = args;
    let scenario = match scenario {
        Some(inline) if inline.trim_start().starts_with('{') => {
            Scenario::parse("--scenario", &inline).map_err(|error| Failure::new(Exit::Usage, error))?
        }
        Some(path) => Scenario::load(path.as_ref()).map_err(|error| Failure::new(Exit::Usage, error))?,
        None => Scenario::default(),
    };
    // Each of its clients takes a descriptor, and how many come is theirs to say. Where it cannot have more it does with
    // what it has.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    if scenario.processes.rename == Renamed::All {
        processes::rename_main(scenario.played()).map_err(Failure::own)?;
    }
    match live(Life { scenario, host, port, ledger }, Rc::new(out::raw)) {
        Ok(Ended::Code(0)) => Ok(Exit::Done),
        // An exit code that a scenario asked for is nothing that orch's own codes mean.
        Ok(Ended::Code(code)) => std::process::exit(i32::from(code)),
        Ok(Ended::Signal(signal)) => {
            let signal = Signal::try_from(signal).map_err(Failure::own)?;
            kill(Pid::this(), signal).map_err(Failure::own)?;
            // One that is not deadly at once, such as an abort that is being written down.
            std::thread::sleep(std::time::Duration::from_secs(1));
            Ok(Exit::Own)
        }
        Err(error) => Err(Failure::new(Exit::NotLaunched, miette::Report::msg(error.to_string()))),
    }
}
