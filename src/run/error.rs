//! What ends a run early, and how that is told in its record.

use std::path::Path;

use crate::event::EmitError;
use crate::gate::{self, GateError, LogGrammar};
use crate::launch::{Exited, LaunchError};
use crate::load::LoadError;
use crate::measure::FileError;
use crate::preflight::PreflightError;
use crate::record::StoreError;
use crate::record::model::{FailedStart, Failure, LogLine};
use crate::render::Fault;

/// The run was ended because what happened could not be written down.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum RunError {
    /// The journal.
    #[error(transparent)]
    #[diagnostic(
        code(orch::run::journal),
        help("the server was stopped; what stands in the run's folder is true up to its last line")
    )]
    Journal(#[from] EmitError),
    /// Another file of the run, or of the results folder.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// A file of the run.
    #[error(transparent)]
    #[diagnostic(transparent)]
    File(#[from] FileError),
}

/// What ends a stage early.
#[derive(Debug)]
pub(super) enum Stop {
    /// It failed, and how.
    Failed(Box<Failure>),
    /// Somebody asked for an end.
    Interrupted,
    /// What happened cannot be written down, so nothing more may be done.
    Error(RunError),
}

impl Stop {
    pub(super) fn failed(stage: &str, kind: &str, text: String, remedy: Option<String>) -> Self {
        Stop::Failed(Box::new(failure(stage, kind, text, remedy)))
    }

    /// Before anything was launched.
    pub(super) fn preflight(kind: &str, error: &dyn miette::Diagnostic) -> Self {
        of("preflight", kind, error)
    }

    /// While it was launched, or what it replaces was stopped.
    pub(super) fn launch(kind: &str, error: &dyn miette::Diagnostic) -> Self {
        of("launch", kind, error)
    }

    /// It serves, and did not prove itself.
    pub(super) fn gate(kind: &str, error: &dyn miette::Diagnostic) -> Self {
        of("gate", kind, error)
    }

    /// The definition's patterns do not read.
    pub(super) fn grammar(error: gate::log::GrammarError) -> Self {
        of("render", "bad_config", &error)
    }

    /// What the profile asks for cannot be rendered for this place.
    pub(super) fn faults(faults: Vec<Fault>) -> Self {
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let help = faults.iter().find_map(|fault| miette::Diagnostic::help(fault).map(|help| help.to_string()));
        Stop::failed("render", "bad_config", texts.join("; "), help)
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Failed(failure) => f.write_str(&failure.text),
            Stop::Interrupted => f.write_str("interrupted"),
            Stop::Error(error) => error.fmt(f),
        }
    }
}

impl From<EmitError> for Stop {
    fn from(error: EmitError) -> Self {
        Stop::Error(error.into())
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Error(error.into())
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Self {
        Stop::Error(error)
    }
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Self {
        Stop::Error(error.into())
    }
}

impl From<PreflightError> for Stop {
    fn from(error: PreflightError) -> Self {
        match error {
            PreflightError::Journal(error) => error.into(),
            PreflightError::Launch(LaunchError::Journal(error)) => error.into(),
            error => of(error.stage(), error.kind(), &error),
        }
    }
}

impl From<LaunchError> for Stop {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Journal(error) => error.into(),
            error => {
                let kind = match &error {
                    LaunchError::LeaseTaken { .. } => "lease_taken",
                    LaunchError::PortTaken { .. } => "port_in_use",
                    LaunchError::PortDenied { .. } => "bad_config",
                    _ => "unknown",
                };
                of("launch", kind, &error)
            }
        }
    }
}

impl From<GateError> for Stop {
    fn from(error: GateError) -> Self {
        let kind = match &error {
            GateError::Journal(_) | GateError::Log(_) => "unknown",
            GateError::Exited { exited, .. } if exited.stopped => "stopped",
            GateError::Exited { .. }
            | GateError::Confirmed { .. }
            | GateError::DeadRank { .. }
            | GateError::LooksFatal { .. } => "unknown",
            GateError::TimedOut { .. } => "not_ready_in_time",
            GateError::Unfit { .. } => "unfit",
            GateError::Plan { .. } => "bad_config",
        };
        if let GateError::Journal(error) = error {
            return error.into();
        }
        let mut failure = failure("gate", kind, error.to_string(), None);
        if let GateError::Unfit { remedy, .. } = &error {
            failure.remedy = Some(remedy.clone());
        }
        if let GateError::Exited { exited, .. } = &error {
            failure.remedy = signal_remedy(exited).map(str::to_owned);
        }
        if let Some(log) = error.log() {
            told_by(&mut failure, log.root.as_ref(), log.last_words.clone());
            if let (None, Some(kind), GateError::TimedOut { .. }) = (&log.root, log.looks_like, &error) {
                failure.kind = kind.to_owned();
                failure.remedy = Some(silent_remedy(kind).to_owned());
            }
            failure.start = Some(FailedStart {
                rule: error.rule().unwrap_or_default().to_owned(),
                phase: log.phase.clone(),
                after_s: log.elapsed.as_secs_f64(),
                rank: log.root.as_ref().and_then(|root| root.rank),
                retry: log.root.as_ref().and_then(|root| root.retry.clone()),
                not: log.consequence.clone().map(|(line_no, line)| LogLine { line_no, line: line.trim().to_owned() }),
                known_good: None,
            });
        }
        Stop::Failed(Box::new(failure))
    }
}

impl From<LoadError> for Stop {
    fn from(error: LoadError) -> Self {
        of("load", "unknown", &error)
    }
}

/// A server that ended while it was measured. What its log says after it was ready, past `ready_lines` lines, is the
/// cause, if anything is.
pub(super) fn died_under_load(step: &str, exited: &Exited, log: &Path, ready_lines: u64, grammar: &LogGrammar) -> Stop {
    if exited.stopped {
        let text = format!("the server was stopped from outside while step `{step}` was measured: {exited}");
        return Stop::failed("server", "stopped", text, Some("`orch stop` does so; run it again".to_owned()));
    }
    let text = format!("the server ended while step `{step}` was measured: {exited}");
    let mut failure = failure("server", "unknown", text, signal_remedy(exited).map(str::to_owned));
    match gate::log::read(log, grammar, Some(ready_lines)) {
        // What it lived through before is not why it died.
        Ok(said) => told_by(&mut failure, said.startup.root(), said.startup.last_words()),
        Err(error) => failure.remedy = Some(format!("its log {} cannot be read: {error}", log.display())),
    }
    Stop::Failed(Box::new(failure))
}

/// What to do about a start that ended without a word, by what its processes and devices looked like.
fn silent_remedy(kind: &str) -> &'static str {
    match kind {
        "rank_missing" => {
            "a rank ended without a word or never started: look at the kernel's log, and at what the other ranks wait for in `evidence/` of the run"
        }
        _ => {
            "the ranks wait for each other: `evidence/` of the run says where each of them stands; try without one part that they \
              talk through (NCCL_P2P_DISABLE, another attention backend, without graphs)"
        }
    }
}

/// What to do about a server that a signal ended, if its log tells of nothing. A shell tells a signal as a code.
fn signal_remedy(exited: &Exited) -> Option<&'static str> {
    match exited.signal.or_else(|| exited.code.filter(|code| (129..=159).contains(code)).map(|code| code - 128))? {
        4 => Some(
            "the program holds an instruction that this processor does not have: take a build of the engine for this \
             processor, or turn off what needs the instruction (llama.cpp: `flags: {no-repack: true}`)",
        ),
        7 => Some(
            "a bus error: most often shared memory was full (`df /dev/shm`), or a file that is mapped was cut short",
        ),
        9 => Some("nobody says who killed it: the kernel's log says whether the host's memory ran out (`dmesg -T`)"),
        _ => None,
    }
}

/// Puts what a log says into a failure.
fn told_by(failure: &mut Failure, root: Option<&gate::log::Failure>, last_words: Vec<String>) {
    failure.last_words = last_words;
    if let Some(root) = root {
        failure.kind = root.kind.clone();
        failure.line = Some(root.line.trim().to_owned());
        failure.line_no = Some(root.line_no);
        failure.remedy = root.remedy.clone().or_else(|| failure.remedy.take());
    }
}

fn of(stage: &str, kind: &str, error: &dyn miette::Diagnostic) -> Stop {
    Stop::failed(stage, kind, error.to_string(), error.help().map(|help| help.to_string()))
}

fn failure(stage: &str, kind: &str, text: String, remedy: Option<String>) -> Failure {
    Failure { stage: stage.to_owned(), kind: kind.to_owned(), text, remedy, ..Failure::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_without_a_word_says_what_its_signal_means() {
        let ended = |code, signal| Exited { code, signal, stopped: false };
        let illegal = signal_remedy(&ended(None, Some(4))).unwrap();
        assert!(illegal.contains("an instruction that this processor does not have"), "{illegal}");
        assert_eq!(signal_remedy(&ended(Some(132), None)), Some(illegal), "as a shell tells it");
        assert!(signal_remedy(&ended(None, Some(9))).unwrap().contains("the host's memory"));
        assert_eq!(signal_remedy(&ended(Some(1), None)), None);
        assert_eq!(signal_remedy(&ended(Some(0), None)), None);
        assert_eq!(signal_remedy(&ended(None, Some(15))), None, "it was told to end");
    }
}
