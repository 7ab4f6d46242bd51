//! Why a launch cannot be thought of here.

use std::path::PathBuf;

use super::install::InstallError;
use crate::event::EmitError;
use crate::launch::{LaunchError, Lease};

/// Why a launch cannot be thought of here.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum PreflightError {
    /// The engine could not be installed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Install(InstallError),
    /// The port is not to be had.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Launch(#[from] LaunchError),
    /// The program is not there, or may not be run.
    #[error("cannot find the program `{program}`: {}", looked_text(looked))]
    #[diagnostic(
        code(orch::preflight::executable),
        help("set `engine.executable` to the program's path, or let `engine.install` install it")
    )]
    ExecutableMissing {
        /// As it was asked for.
        program: String,
        /// Where it was looked for, and what was found there.
        looked: Vec<String>,
    },
    /// The model's file is not there, or may not be read.
    #[error("cannot use the model `{model}` (`{key}`): {why}")]
    #[diagnostic(code(orch::preflight::model), help("{help}"))]
    ModelMissing {
        /// The key of the profile.
        key: &'static str,
        /// As the profile names it.
        model: String,
        /// What is wrong.
        why: String,
        /// What to do.
        help: String,
    },
    /// The engine that is there is not the one that the profile asks for.
    #[error("the profile asks for version {wanted} and {found}")]
    #[diagnostic(code(orch::preflight::version), help("{help}"))]
    Version {
        /// `engine.version`.
        wanted: String,
        /// What was found, as `llama-server is b10400`.
        found: String,
        /// What to do.
        help: &'static str,
    },
    /// How to look for the version is not right in the engine's definition.
    #[error("the pattern of the version probe in `engine.yaml` is no regular expression: {why}")]
    #[diagnostic(code(orch::preflight::pattern))]
    Pattern {
        /// What is wrong with it.
        why: String,
    },
    /// The profile names GPUs that are not there.
    #[error("the profile asks for {asked}, and {there}")]
    #[diagnostic(code(orch::preflight::gpus), help("{help}"))]
    Gpus {
        /// What it asks for.
        asked: String,
        /// What there is.
        there: String,
        /// What to do.
        help: &'static str,
    },
    /// A path cannot be written in a command.
    #[error("{} is not UTF-8, and a command's words must be", path.display())]
    #[diagnostic(code(orch::preflight::path))]
    NotUtf8 {
        /// Which.
        path: PathBuf,
    },
    /// The journal could not be written, so nothing more was done.
    #[error(transparent)]
    #[diagnostic(code(orch::preflight::journal))]
    Journal(EmitError),
}

impl From<EmitError> for PreflightError {
    fn from(error: EmitError) -> Self {
        PreflightError::Journal(error)
    }
}

impl From<InstallError> for PreflightError {
    fn from(error: InstallError) -> Self {
        match error {
            InstallError::Journal(error) => PreflightError::Journal(error),
            error => PreflightError::Install(error),
        }
    }
}

impl PreflightError {
    /// The stage of a failure: `install` or `preflight`.
    pub fn stage(&self) -> &'static str {
        match self {
            PreflightError::Install(_) => "install",
            _ => "preflight",
        }
    }

    /// One of the failure kinds of the log vocabulary.
    pub fn kind(&self) -> &'static str {
        match self {
            PreflightError::Install(error) => error.kind(),
            PreflightError::Launch(
                LaunchError::PortTaken { .. }
                | LaunchError::NoFreePort
                | LaunchError::LeaseTaken { lease: Lease::Port(_), .. },
            ) => "port_in_use",
            PreflightError::Launch(
                LaunchError::LeaseTaken { lease: Lease::Gpu(_), .. } | LaunchError::NoFreeGpus { .. },
            ) => "gpu_busy",
            PreflightError::Gpus { .. } => "bad_config",
            PreflightError::ExecutableMissing { .. } => "missing_dependency",
            PreflightError::ModelMissing { .. } => "weights_missing",
            PreflightError::Launch(LaunchError::PortDenied { .. }) | PreflightError::Version { .. } => "bad_config",
            _ => "unknown",
        }
    }
}

fn looked_text(looked: &[String]) -> String {
    match looked {
        [] => "there is nowhere to look for it".to_owned(),
        looked => looked.join("; "),
    }
}
