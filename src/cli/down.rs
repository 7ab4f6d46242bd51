//! `orch down`: takes a deployment away.

use super::{Exit, Failure, Global, Outcome, out};
use crate::deploy::{self, DeployError, Deployments, undone};
use crate::launch::WorkFolder;

/// Stops a deployment that `orch up` made and takes it away: unit, container or process, and its files
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch down qwen-mtp3
  orch down r0420

Exit codes: 0 it is gone; 1 it could not be stopped; 2 there is no such deployment")]
pub(crate) struct DownArgs {
    /// The deployment's name (the profile's, unless `--name` said otherwise), or the run that deployed it
    #[arg(value_name = "NAME|ID")]
    name: String,
}

pub(crate) fn run(args: DownArgs, _global: &Global) -> Outcome {
    let DownArgs { name } = args;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let deployments = Deployments::of(&work);
    let deployed = deployments.find(&name).map_err(failure)?;
    let key = format!("deployment-{}", deployed.name);
    if let Some((record, _)) = undone(&work).map_err(failure)?.into_iter().find(|(record, _)| record.key == key) {
        let busy = DeployError::Busy { what: deployed.shown(), by: format!("run {}", record.run), since: record.since };
        return Err(failure(busy));
    }
    let runtime = crate::host::runtime::on_threads(1).map_err(Failure::own)?;
    runtime.block_on(deploy::remove(&deployed, &work, false)).map_err(failure)?;
    deployments.place(&deployed.name).remove().map_err(failure)?;
    out::line(format_args!("{}: stopped and taken away", deployed.shown()));
    Ok(Exit::Done)
}

fn failure(error: DeployError) -> Failure {
    let exit = match &error {
        DeployError::None { .. } => Exit::Usage,
        DeployError::Busy { .. } => Exit::NotLaunched,
        _ => Exit::Own,
    };
    Failure::new(exit, error)
}
