//! What can go wrong between here and another host.

use std::path::PathBuf;

use crate::host::HostError;

/// Something could not be done on another host.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum RemoteError {
    /// There is no such host, or nothing says how to reach it.
    #[error("host `{name}` cannot be used: {why}")]
    #[diagnostic(code(orch::remote::host), help("{help}"))]
    Host {
        /// As it was asked for.
        name: String,
        /// What is wrong.
        why: String,
        /// What to do.
        help: String,
    },
    /// The transport refused.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Transport(#[from] HostError),
    /// The host has another processor or system than the program.
    #[error("{host} is {theirs}, and {} is a program for {ours}", program.display())]
    #[diagnostic(
        code(orch::remote::architecture),
        help("`--runner FILE` names an orch that was built for {theirs}; docs/remote-runs.md shows how one is built")
    )]
    Architecture {
        /// The host.
        host: String,
        /// What it is: `Linux aarch64`.
        theirs: String,
        /// The program.
        program: PathBuf,
        /// What that is for: `Linux x86_64`.
        ours: String,
    },
    /// The program was built with a newer C library than the host has.
    #[error("orch does not run on {host}: it needs {needs}, and {host} has {has}")]
    #[diagnostic(
        code(orch::remote::c_library),
        help(
            "`--runner FILE` names a static build, which needs none; docs/remote-runs.md has the command that makes one"
        )
    )]
    CLibrary {
        /// The host.
        host: String,
        /// What is asked for, `GLIBC_2.39`.
        needs: String,
        /// What is there, `glibc 2.31`.
        has: String,
    },
    /// The program was put there, and does not run.
    #[error("orch does not run on {host}: tried with `--version` it ended with {code}: {said}")]
    #[diagnostic(
        code(orch::remote::trial),
        help(
            "where the file system is mounted `noexec`, `work:` in hosts.yaml names another folder; `--runner FILE` names another build"
        )
    )]
    Trial {
        /// The host.
        host: String,
        /// The exit code.
        code: String,
        /// What it wrote.
        said: String,
    },
    /// The runner is another version of orch.
    #[error("{} is `{theirs}`, and this is `{ours}`", program.display())]
    #[diagnostic(code(orch::remote::other_version), help("build the runner from the same commit"))]
    OtherVersion {
        /// The runner.
        program: PathBuf,
        /// What it says of itself.
        theirs: String,
        /// What this program says.
        ours: String,
    },
    /// What arrived is not what was sent.
    #[error("what arrived on {host} is not what was sent: its SHA-256 is {got}, and it was {want}")]
    #[diagnostic(
        code(orch::remote::damaged),
        help("nothing of it was kept; something between here and there changes what passes")
    )]
    Damaged {
        /// The host.
        host: String,
        /// What arrived.
        got: String,
        /// What was sent.
        want: String,
    },
    /// Something else lies where the program belongs.
    #[error("{path} on {host} is not the orch that belongs there: {what}")]
    #[diagnostic(
        code(orch::remote::in_the_way),
        help("orch replaces nothing that it did not put there: look at it, and take it away")
    )]
    InTheWay {
        /// The host.
        host: String,
        /// The path there.
        path: String,
        /// What it is.
        what: String,
    },
    /// The work folder there is not fit for programs.
    #[error("the work folder {path} on {host} cannot be used: {why}")]
    #[diagnostic(
        code(orch::remote::work_folder),
        help("`work:` of the host in hosts.yaml names another; it must belong to the user there and to nobody else")
    )]
    WorkFolder {
        /// The host.
        host: String,
        /// The path there.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no room.
    #[error("there is no room for orch on {host}: {path} has {free} free, and {needed} are needed")]
    #[diagnostic(code(orch::remote::full), help("make room there, or name another folder as `work:` in hosts.yaml"))]
    Full {
        /// The host.
        host: String,
        /// The folder there.
        path: String,
        /// What is free.
        free: String,
        /// What is needed.
        needed: String,
    },
    /// A command of our own there failed.
    #[error("orch on {host} could not {what}: {said}")]
    #[diagnostic(code(orch::remote::beside))]
    Beside {
        /// The host.
        host: String,
        /// What it was to do.
        what: String,
        /// What it said.
        said: String,
    },
    /// A file of this machine.
    #[error("cannot {what} {}: {source}", path.display())]
    #[diagnostic(code(orch::remote::file))]
    File {
        /// `read`, `write`, …
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no such run there.
    #[error("there is no run `{run}` on {host}")]
    #[diagnostic(code(orch::remote::no_such_run), help("`orch list -H {host}` shows its runs"))]
    NoSuchRun {
        /// The host.
        host: String,
        /// As it was asked for.
        run: String,
    },
    /// The process that should have outlived the connection did not.
    #[error("the run on {host} ended with the connection that had started it")]
    #[diagnostic(
        code(orch::remote::not_survived),
        help(
            "the host ends what a login leaves behind: `loginctl enable-linger` there, or log in as root, lets it stay; nothing was launched"
        )
    )]
    NotSurvived {
        /// The host.
        host: String,
    },
}

impl RemoteError {
    /// Whether the line is at fault, so that trying again may help.
    pub fn is_lost(&self) -> bool {
        matches!(self, RemoteError::Transport(HostError::Lost { .. } | HostError::CannotConnect { .. }))
    }

    /// Whether a host that was reached before may be reached again later.
    pub fn may_pass(&self) -> bool {
        self.is_lost() || matches!(self, RemoteError::Transport(HostError::Unreachable { .. }))
    }
}
