//! `orch supervise`: what orch runs itself as, to look after a server. Not for people.

use std::path::PathBuf;

use super::{Exit, Failure, Global, Outcome};
use crate::deploy;
use crate::launch::{self, WorkFolder};

/// Looks after a server. Started by `orch run`; not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct SuperviseArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Starts a server, holds its leases, and stops it when its run is gone.
    Watch {
        /// The work folder.
        #[arg(long)]
        work: PathBuf,
        /// The server's id.
        #[arg(long)]
        server: String,
    },
    /// Waits for the end of a run that has taken something down, and puts it right.
    Restore {
        /// The work folder.
        #[arg(long)]
        work: PathBuf,
        /// What was taken down: the name of its files.
        #[arg(long)]
        key: String,
        /// Waits for whoever has it in hand; else somebody who has is left to it.
        #[arg(long)]
        wait: bool,
    },
    /// Stops or starts production, and outlives whoever asked for it.
    Act {
        /// The work folder.
        #[arg(long)]
        work: PathBuf,
        /// What was taken down: the name of its files.
        #[arg(long)]
        key: String,
        /// What is done.
        act: deploy::Act,
    },
    /// Becomes a server, in a session of its own.
    Enter {
        /// Where the pid is written first.
        #[arg(long)]
        pid_file: PathBuf,
        /// The server's command.
        #[arg(last = true, required = true)]
        words: Vec<String>,
    },
}

pub(crate) fn run(args: SuperviseArgs, _global: &Global) -> Outcome {
    match args.part {
        Part::Watch { work, server } => {
            let supervise = || launch::supervise(&WorkFolder::at(work)?, &server);
            supervise().map(|()| Exit::Done).map_err(|error| Failure::new(Exit::Own, error))
        }
        Part::Restore { work, key, wait } => {
            launch::detach().map_err(Failure::own)?;
            let orch = std::env::current_exe().map_err(Failure::own)?;
            let work = WorkFolder::at(work).map_err(|error| Failure::new(Exit::Own, error))?;
            let runtime = crate::host::runtime::on_threads(1);
            let runtime = runtime.map_err(Failure::own)?;
            let restored = runtime.block_on(async {
                launch::spare_from_terminals()?;
                Ok(deploy::restorer(&work, &key, wait, &orch).await)
            });
            let restored = restored.map_err(|error: std::io::Error| Failure::own(error))?;
            restored.map(|()| Exit::Done).map_err(|error| Failure::new(Exit::Own, error))
        }
        Part::Act { work, key, act } => {
            // A Ctrl-C at the terminal is meant for the run alone.
            launch::leave_terminal().map_err(Failure::own)?;
            let work = WorkFolder::at(work).map_err(|error| Failure::new(Exit::Own, error))?;
            let runtime = crate::host::runtime::on_this_thread().map_err(Failure::own)?;
            let done = runtime.block_on(deploy::perform(&work, &key, act));
            done.map(|()| Exit::Done).map_err(|error| Failure::new(Exit::Own, error))
        }
        Part::Enter { pid_file, words } => {
            let error = launch::enter(&pid_file, &words);
            let program = words.first().map_or("", String::as_str);
            Err(Failure::new(Exit::Own, miette::miette!("cannot become `{program}`: {error}")))
        }
    }
}
