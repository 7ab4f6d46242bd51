//! `orch sim`: the simulated engine.

use std::path::PathBuf;
use std::rc::Rc;

use crate::sim::{Happening, Options, Scenario, Server};

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
    /// A file that says how it behaves; without one it is a plain SGLang
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
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
        Some(path) => Scenario::load(&path).map_err(|error| Failure::new(Exit::Usage, error))?,
        None => Scenario::default(),
    };
    let name = format!("{} {}", scenario.played().word(), scenario.said_version());
    let log = Rc::new(move |happening: Happening| {
        if let Some(line) = line(&name, &happening) {
            out::note(line);
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::own)?;
    let served = tokio::task::LocalSet::new()
        .block_on(&runtime, async { Server::new(scenario, Options { host, port, ledger, log })?.serve().await });
    match served {
        // An exit code that a scenario asked for is nothing that orch's own codes mean.
        Ok(0) => Ok(Exit::Done),
        Ok(code) => std::process::exit(i32::from(code)),
        Err(error) => Err(Failure::new(Exit::NotLaunched, miette::Report::msg(error.to_string()))),
    }
}

/// What the log says of something.
fn line(name: &str, happening: &Happening) -> Option<String> {
    match happening {
        Happening::Listening { host, port, seed } => {
            Some(format!("simulated {name} listening at http://{host}:{port}, seed {seed}"))
        }
        Happening::Answered { .. } => None,
        Happening::Decode { running, queued, tokens_per_s, acceptance_length, .. } => {
            let accepted = acceptance_length.map_or_else(String::new, |length| format!(", accept len: {length:.2}"));
            Some(format!("running {running}, queued {queued}, {tokens_per_s:.1} tokens/s{accepted}"))
        }
        Happening::Retracted => Some("KV cache pool is full. Retract requests. #retracted_reqs: 1".to_owned()),
        Happening::Compiling { length } => Some(format!("compiling kernels, {:.1} s", length.as_secs_f64())),
        Happening::Dying => Some("RuntimeError: this server ends as its scenario says".to_owned()),
        Happening::Restarting => Some("restarting as the scenario says".to_owned()),
        Happening::Stopping { remaining } => Some(format!("told to stop, {remaining} requests under way")),
    }
}
