//! Why an engine could not be installed.

use std::io;
use std::path::PathBuf;

use crate::event::EmitError;

/// Why an engine could not be installed.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum InstallError {
    /// No variant runs on this processor.
    #[error("no variant of `engine.install` fits this machine's processor: {}", lacking_text(lacking))]
    #[diagnostic(
        code(orch::install::no_variant),
        help(
            "add a variant to `engine.install` that needs less of the processor, or set `engine.executable` to a program that is there"
        )
    )]
    NoVariant {
        /// For each variant the features that are missing.
        lacking: Vec<Vec<String>>,
    },
    /// A launcher is not there.
    #[error("`engine.install` names the launcher `{name}`, which the engine's templates do not have")]
    #[diagnostic(code(orch::install::no_launcher), help("put the file into `templates/<engine>/`"))]
    NoLauncher {
        /// The file.
        name: String,
    },
    /// A launcher becomes no program.
    #[error("`engine.install` names the launcher `{name}` and no `executable` that it becomes")]
    #[diagnostic(code(orch::install::unnamed_launcher), help("add `executable: NAME` to the variant"))]
    UnnamedLauncher {
        /// The file.
        name: String,
    },
    /// A launcher cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Launcher(#[from] crate::engine::EngineError),
    /// A patch does not fit.
    #[error("the patch {} cannot be applied{}: {why}", patch.display(), file_text(file))]
    #[diagnostic(
        code(orch::install::patch),
        help(
            "make the patch anew for the version of the package that `engine.install` pins, or take it out of `engine.patches`"
        )
    )]
    Patch {
        /// The patch.
        patch: PathBuf,
        /// The file that it is about; empty for the patch as a whole.
        file: PathBuf,
        /// What is in the way.
        why: String,
    },
    /// A patched file is not what the patch made of it.
    #[error("{} is not what `engine.patches` made of it: somebody changed it since", path.display())]
    #[diagnostic(
        code(orch::install::unpatched),
        help(
            "put the change into a patch of the profile; to make the environment anew, remove its folder under `envs/`"
        )
    )]
    Unpatched {
        /// The file.
        path: PathBuf,
    },
    /// There is no Python.
    #[error("cannot make an environment for the engine: there is neither `uv` nor `python3` on the PATH")]
    #[diagnostic(
        code(orch::install::no_python),
        help(
            "install Python 3 with venv (Debian, Ubuntu: `apt install python3-venv`) or uv, or set `engine.executable` to a program that is there"
        )
    )]
    NoPython,
    /// Python is there and cannot make environments.
    #[error("`python3 -m venv` cannot make environments here: it lacks ensurepip or venv")]
    #[diagnostic(
        code(orch::install::no_venv),
        help("install the missing part (Debian, Ubuntu: `apt install {package}`) or uv, then run again")
    )]
    NoVenv {
        /// The system's package that has it.
        package: String,
    },
    /// A package is not the one that was pinned.
    #[error("a package is not the file that the profile pins by its hash\n{}", lines_text(lines))]
    #[diagnostic(
        code(orch::install::hash),
        help("if the publisher changed the file on purpose, correct `sha256` in `engine.install`; otherwise do not use it. All output is in {}", log.display())
    )]
    WrongHash {
        /// The last lines of the output.
        lines: Vec<String>,
        /// All of it.
        log: PathBuf,
    },
    /// The packages could not be fetched.
    #[error("cannot reach the package index to install {packages}\n{}", lines_text(lines))]
    #[diagnostic(
        code(orch::install::no_network),
        help("run once with a network (`orch fetch PROFILE`), after that it works offline; or set `engine.executable` to a program that is there. All output is in {}", log.display())
    )]
    NoNetwork {
        /// What was to be installed.
        packages: String,
        /// The last lines of the output.
        lines: Vec<String>,
        /// All of it.
        log: PathBuf,
    },
    /// No file of that package fits here.
    #[error(
        "a package of `engine.install` is not to be had in that version for this Python and this machine\n{}",
        lines_text(lines)
    )]
    #[diagnostic(
        code(orch::install::no_such_package),
        help("look at `packages` in `engine.install`: name, version, and whether there is a file for this machine and Python. All output is in {}", log.display())
    )]
    NoSuchPackage {
        /// The last lines of the output.
        lines: Vec<String>,
        /// All of it.
        log: PathBuf,
    },
    /// The disk is full.
    #[error("there is no space left for {}", path.display())]
    #[diagnostic(code(orch::install::no_space), help("make room, or let XDG_STATE_HOME point to a larger disk"))]
    NoSpace {
        /// What did not fit.
        path: PathBuf,
    },
    /// The installer failed for another reason.
    #[error("`{command}` ended with {status}\n{}", lines_text(lines))]
    #[diagnostic(code(orch::install::failed), help("all output is in {}", log.display()))]
    Failed {
        /// The command, shortened.
        command: String,
        /// `status 1` or `signal 9`.
        status: String,
        /// The last lines of the output.
        lines: Vec<String>,
        /// All of it.
        log: PathBuf,
    },
    /// The installer was content and something is missing all the same.
    #[error("{} was installed and has no {what}", path.display())]
    #[diagnostic(code(orch::install::incomplete))]
    Incomplete {
        /// The environment.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// A program could not be started.
    #[error("cannot run `{program}`: {source}")]
    #[diagnostic(code(orch::install::run))]
    Run {
        /// Which.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The processor's features cannot be read.
    #[error("cannot tell what this processor can do: {why}")]
    #[diagnostic(code(orch::install::processor), help("ORCH_CPU_FEATURES may name its features, separated by spaces"))]
    Processor {
        /// What is in the way.
        why: String,
    },
    /// The journal could not be written, so nothing more was done.
    #[error(transparent)]
    #[diagnostic(code(orch::install::journal))]
    Journal(#[from] EmitError),
    /// A file could not be read or changed.
    #[error("cannot {what} {}: {source}", path.display())]
    #[diagnostic(code(orch::install::io))]
    Io {
        /// `write`, `lock`, …
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl InstallError {
    pub(super) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> InstallError {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => InstallError::NoSpace { path },
            _ => InstallError::Io { what, path, source },
        }
    }

    /// One of the failure kinds of the log vocabulary.
    pub fn kind(&self) -> &'static str {
        match self {
            InstallError::NoPython
            | InstallError::NoVenv { .. }
            | InstallError::NoNetwork { .. }
            | InstallError::NoSuchPackage { .. } => "missing_dependency",
            InstallError::NoVariant { .. }
            | InstallError::WrongHash { .. }
            | InstallError::Patch { .. }
            | InstallError::Unpatched { .. } => "bad_config",
            _ => "unknown",
        }
    }
}

fn file_text(file: &std::path::Path) -> String {
    if file.as_os_str().is_empty() { String::new() } else { format!(" to {}", file.display()) }
}

fn lacking_text(lacking: &[Vec<String>]) -> String {
    let one = |(index, lacking): (usize, &Vec<String>)| format!("variant {} needs {}", index + 1, lacking.join(", "));
    match lacking {
        [] => "it has none".to_owned(),
        lacking => lacking.iter().enumerate().map(one).collect::<Vec<_>>().join("; "),
    }
}

fn lines_text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
