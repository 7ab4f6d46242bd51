//! Why a server could not be launched, listed or stopped.

use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

use super::Lease;
use crate::event::EmitError;

/// Why a server could not be launched, listed or stopped.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum LaunchError {
    /// The folder that orch keeps on a host cannot be used.
    #[error("cannot use the work folder {}: {why}", path.display())]
    #[diagnostic(
        code(orch::launch::work_folder),
        help("it must be yours alone, since commands are read from it; XDG_STATE_HOME says where else to put it")
    )]
    WorkFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something else of ours has what is needed.
    #[error("{} is taken by {holder}{}", lease_text(lease), since_text(since))]
    #[diagnostic(code(orch::launch::lease_taken), help("{}", lease_help(lease)))]
    LeaseTaken {
        /// What is taken.
        lease: Lease,
        /// By whom.
        holder: String,
        /// Since when, if that is known.
        since: Option<Timestamp>,
    },
    /// A process that is not ours listens on the port.
    #[error("port {port} is taken by {holder}, which orch did not start")]
    #[diagnostic(
        code(orch::launch::port_taken),
        help("choose another `port`, or `port: auto` for the first free one of 30000-30999")
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// `pid 123 (nginx)`, or that it cannot be told.
        holder: String,
    },
    /// The system does not let this user have the port, whether or not anybody has it.
    #[error("port {port} may not be used by this user: {why}")]
    #[diagnostic(
        code(orch::launch::port_denied),
        help("ports below 1024 are usually for root alone; choose a higher one, or `port: auto`")
    )]
    PortDenied {
        /// The port.
        port: u16,
        /// What the system said.
        why: io::Error,
    },
    /// Every port of the range is taken.
    #[error("no port of 30000-30999 is free and without a lease")]
    #[diagnostic(code(orch::launch::no_port), help("`orch ps` shows what runs; `orch stop --all` ends it"))]
    NoFreePort,
    /// Not so many GPUs are free.
    #[error("{needed} GPUs are needed, and {} of {there} are free{}", there - taken.len(), taken_text(taken))]
    #[diagnostic(
        code(orch::launch::no_gpus),
        help("`orch ps` shows what runs; `orch stop ID` ends it and gives back what it holds")
    )]
    NoFreeGpus {
        /// How many are needed.
        needed: usize,
        /// How many there are to choose from.
        there: usize,
        /// Who has the others, and since when.
        taken: Vec<String>,
    },
    /// The program is not there.
    #[error("cannot find the program `{program}`: {why}")]
    #[diagnostic(
        code(orch::launch::no_executable),
        help("set `engine.executable`, or `engine.install` so that it is installed")
    )]
    NoExecutable {
        /// The command's first word.
        program: String,
        /// Where it was looked for.
        why: String,
    },
    /// The program is there and the system refused to run it.
    #[error("cannot run `{program}`: {why}")]
    #[diagnostic(
        code(orch::launch::exec),
        help("it may be for another processor, or name an interpreter that is missing")
    )]
    Exec {
        /// The command's first word.
        program: String,
        /// What the system said.
        why: String,
    },
    /// The plan asks for something that cannot be done.
    #[error("cannot launch as planned: {why}")]
    #[diagnostic(code(orch::launch::plan))]
    Plan {
        /// What.
        why: String,
    },
    /// The process that looks after the server did not come up.
    #[error("the supervisor did not start the server: {why}")]
    #[diagnostic(code(orch::launch::supervisor))]
    Supervisor {
        /// What is known.
        why: String,
    },
    /// The journal could not be written, so nothing more was done.
    #[error(transparent)]
    #[diagnostic(code(orch::launch::journal))]
    Journal(#[from] EmitError),
    /// A file or a process could not be read or changed.
    #[error("cannot {what} {}: {source}", path.display())]
    #[diagnostic(code(orch::launch::io))]
    Io {
        /// `write`, `lock`, …
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The container engine did not do as it was asked.
    #[error("`docker {what}`: {why}")]
    #[diagnostic(code(orch::launch::docker), help("{}", docker_help(why)))]
    Docker {
        /// The words; no secret is ever among them.
        what: String,
        /// What it said.
        why: String,
    },
    /// A systemd manager did not do as it was asked.
    #[error("`systemctl {what}`: {why}")]
    #[diagnostic(code(orch::launch::systemd), help("`systemctl status` and `journalctl` of the unit say more"))]
    Systemd {
        /// The words.
        what: String,
        /// What it said.
        why: String,
    },
    /// There is no server of that name.
    #[error("no server `{id}` is known here")]
    #[diagnostic(code(orch::launch::no_such_server), help("{}", known_text(known)))]
    NoSuchServer {
        /// What was asked for.
        id: String,
        /// The ids that there are.
        known: Vec<String>,
    },
    /// It cannot be measured on.
    #[error("cannot measure on `{id}`: {why}")]
    #[diagnostic(code(orch::launch::not_there), help("{help}"))]
    NotThere {
        /// What was asked for.
        id: String,
        /// Why not.
        why: String,
        /// What to do.
        help: String,
    },
    /// All were tried, and some could not be stopped.
    #[error("could not stop {} of {} servers: {}", failed.len(), failed.len() + stopped.len(), failed_text(failed))]
    #[diagnostic(code(orch::launch::not_all_stopped), help("{}", stopped_text(stopped)))]
    NotAllStopped {
        /// The ids of those, and why.
        failed: Vec<(String, LaunchError)>,
        /// The ids of the others.
        stopped: Vec<String>,
    },
    /// A short name fits several runs.
    #[error("`{id}` fits {} runs", runs.len())]
    #[diagnostic(code(orch::launch::ambiguous), help("say which: {}", runs.join(", ")))]
    Ambiguous {
        /// What was asked for.
        id: String,
        /// The runs that it fits.
        runs: Vec<String>,
    },
}

fn lease_text(lease: &Lease) -> String {
    match lease {
        Lease::Measure => "the right to measure on this host".to_owned(),
        lease => lease.to_string(),
    }
}

fn taken_text(taken: &[String]) -> String {
    if taken.is_empty() { String::new() } else { format!(": {}", taken.join("; ")) }
}

fn lease_help(lease: &Lease) -> &'static str {
    match lease {
        Lease::Measure => {
            "wait until it is done, or measure beside it, which is recorded: `share: true`, or `orch bench --share`"
        }
        _ => "`orch ps` shows what runs; `orch stop ID` ends it and gives back what it holds",
    }
}

fn since_text(since: &Option<Timestamp>) -> String {
    since.map(|since| format!(" since {since:.0}")).unwrap_or_default()
}

fn known_text(known: &[String]) -> String {
    match known {
        [] => "nothing of orch runs here".to_owned(),
        known => format!("`orch ps` shows what there is: {}", known.join(", ")),
    }
}

fn failed_text(failed: &[(String, LaunchError)]) -> String {
    failed.iter().map(|(id, error)| format!("{id}: {error}")).collect::<Vec<_>>().join("; ")
}

fn stopped_text(stopped: &[String]) -> String {
    match stopped {
        [] => "`orch ps` shows what is left".to_owned(),
        stopped => format!("`orch ps` shows what is left; stopped: {}", stopped.join(", ")),
    }
}

fn docker_help(why: &str) -> &'static str {
    let why = why.to_lowercase();
    match () {
        () if why.contains("no such file") => "the program `docker` is not on the PATH: install a container engine",
        () if why.contains("cannot connect") || why.contains("permission denied") => {
            "the engine must run, and this user must be let to it: `docker version` shows whether it answers"
        }
        () if why.contains("device driver") || why.contains("nvidia-container-cli") => {
            "the engine gives no GPUs: install the NVIDIA container toolkit, or set `launch.via.docker.options`"
        }
        () if why.contains("already in use") => {
            "a container that orch did not make has the name; orch leaves it alone: rename or remove it"
        }
        () if why.contains("manifest unknown") || why.contains("pull access denied") || why.contains("not found") => {
            "mend `launch.via.docker.image`, or log in to its registry"
        }
        () => "`docker` itself says more",
    }
}

impl LaunchError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LaunchError {
        let path = path.into();
        move |source| LaunchError::Io { what, path, source }
    }
}
