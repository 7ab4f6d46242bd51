//! `orch beside`: what one orch asks of another on that one's host. Not for people; its answers are JSON.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Serialize;

use super::locate::{self, Located};
use super::{Exit, Failure, Global, Outcome, out};
use crate::launch::WorkFolder;
use crate::record::{RunId, Store};
use crate::remote::{JobId, beside};

/// Answers another orch. Not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct BesideArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Makes room for a job.
    Where {
        /// Its id.
        #[arg(long)]
        job: Option<JobId>,
    },
    /// Starts a job; the values of its secrets come on standard input.
    Start {
        /// Its id.
        #[arg(long)]
        job: JobId,
    },
    /// Is the keeper of a job.
    Keep {
        /// Its id.
        #[arg(long)]
        job: JobId,
    },
    /// How a job or a run is doing.
    Look {
        /// The job's id,
        #[arg(long, required_unless_present = "run")]
        job: Option<JobId>,
        /// or the run's.
        #[arg(long, conflicts_with = "job")]
        run: Option<String>,
    },
    /// Passes a signal on to a job.
    Signal {
        /// Its id.
        #[arg(long)]
        job: JobId,
        /// SIGTERM instead of SIGINT.
        #[arg(long)]
        terminate: bool,
    },
    /// The files of a run.
    Files {
        /// Its id.
        #[arg(long)]
        run: String,
    },
    /// All runs.
    Runs,
    /// Takes away what a job has left.
    End {
        /// Its id.
        #[arg(long)]
        job: JobId,
    },
}

pub(crate) fn run(args: BesideArgs, global: &Global) -> Outcome {
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let root = work.root();
    let run = |text: &str| locate::run(text, &work, global);
    match args.part {
        Part::Where { job } => answer(&beside::place(root, job.as_ref()).map_err(Failure::own)?),
        Part::Start { job } => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(Failure::own)?;
            let secrets: BTreeMap<String, String> = serde_json::from_str(&text).map_err(|_| {
                // What could not be read may hold what nobody may see.
                Failure::new(Exit::Own, miette::miette!("what came on standard input are no secrets"))
            })?;
            answer(&beside::start(root, &job, &secrets).map_err(Failure::own)?)
        }
        Part::Keep { job } => beside::keep(root, &job).map(|()| Exit::Done).map_err(Failure::own),
        Part::Look { job: Some(job), .. } => answer(&beside::look(root, &job)),
        Part::Look { run: text, job: None } => {
            let Located { store, id } = run(&text.unwrap_or_default())?;
            answer(&beside::look_at_run(root, &store, &id))
        }
        Part::Signal { job, terminate } => answer(&beside::signal(root, &job, terminate).map_err(Failure::own)?),
        Part::Files { run: text } => {
            let Located { store, id } = run(&text)?;
            answer(&beside::files(&store.run_path(&id)).map_err(Failure::own)?)
        }
        Part::Runs => {
            let store = Store::open(&global.results).map_err(super::records::failure)?;
            let mut ids: Vec<RunId> = store.scan().map_err(super::records::failure)?.ids;
            ids.sort();
            let looks: Vec<_> = ids.iter().map(|id| beside::look_at_run(root, &store, id)).collect();
            answer(&looks)
        }
        Part::End { job } => answer(&beside::end(root, &job).map_err(Failure::own)?),
    }
}

fn answer(answer: &impl Serialize) -> Outcome {
    out::line(serde_json::to_string(answer).map_err(Failure::own)?);
    Ok(Exit::Done)
}
