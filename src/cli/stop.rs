//! `orch stop`: ends what orch started, to the last process.

use super::{Exit, Failure, Global, Outcome, out};
use crate::launch::{self, LaunchError, PortOwner, Stopped, Which, WorkFolder};

/// Stops servers that orch started on this machine, and returns when nothing of them is left.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  orch stop r0420\n  orch stop --all")]
#[group(required = true, multiple = false)]
pub(crate) struct StopArgs {
    /// A server's id as `orch ps` shows it, a run's id, or a run's short name.
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Every server of this user's work folder.
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: StopArgs, _global: &Global) -> Outcome {
    let StopArgs { id, all: _ } = args;
    let which = id.map_or(Which::All, Which::One);
    let runtime = crate::host::runtime::on_this_thread()
        .map_err(|error| Failure::new(Exit::Own, miette::miette!("cannot start: {error}")))?;
    let stopped = runtime.block_on(stop(&which)).map_err(|error| Failure::new(exit(&error), error))?;
    if stopped.is_empty() {
        out::note("nothing of orch is left here");
    }
    for server in &stopped {
        say(server);
    }
    let all_gone = stopped.iter().all(|server| server.left.is_empty());
    Ok(if all_gone { Exit::Done } else { Exit::Own })
}

async fn stop(which: &Which) -> Result<Vec<Stopped>, LaunchError> {
    launch::stop(&WorkFolder::find()?, which).await
}

fn exit(error: &LaunchError) -> Exit {
    match error {
        LaunchError::NoSuchServer { .. } | LaunchError::Ambiguous { .. } => Exit::Usage,
        _ => Exit::Own,
    }
}

fn say(server: &Stopped) {
    if !server.left.is_empty() {
        out::line(format!("{}: could not be ended: {}", server.id, server.left.join(", ")));
        return;
    }
    let port = match &server.port {
        None => String::new(),
        Some((port, PortOwner::Nobody)) => format!(", port {port} is free"),
        Some((port, PortOwner::Stranger(who))) => format!(", port {port} is held by {who}, which is not ours"),
        Some((port, _)) => format!(", port {port} is held by a process that cannot be looked at"),
    };
    let memory = match server.gpu_mib {
        None => String::new(),
        Some(0) => ", the memory of its GPUs is free".to_owned(),
        Some(mib) => format!(", {mib} MiB above the idle level of its GPUs are not given back"),
    };
    let files = match server.removed.len() {
        0 => String::new(),
        1 => ", 1 file that it had left was removed".to_owned(),
        count => format!(", {count} files that it had left were removed"),
    };
    out::line(format!("{}: nothing is left{port}{memory}{files}", server.id));
    for file in &server.files {
        out::line(format!("  still there: {file}"));
    }
}
