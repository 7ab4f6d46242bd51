//! `orch supervise`: what orch runs itself as, to look after a server. Not for people.

use std::path::PathBuf;

use super::{Exit, Failure, Global, Outcome};
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
        Part::Enter { pid_file, words } => {
            let error = launch::enter(&pid_file, &words);
            let program = words.first().map_or("", String::as_str);
            Err(Failure::new(Exit::Own, miette::miette!("cannot become `{program}`: {error}")))
        }
    }
}
