//! Exit codes, and what a verb returns.

use std::process::ExitCode;

use crate::record::model::{self, Verdict, VerdictKind};

/// How the program ends. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked.
    Done = 0,
    /// A fault of orch's own.
    Own = 1,
    /// Usage, or a file that a person wrote.
    Usage = 2,
    /// Could not launch: install, preflight, lease taken, host unreachable.
    NotLaunched = 3,
    /// The server never became ready.
    NeverReady = 4,
    /// No valid measurement.
    NoMeasurement = 5,
    /// Worse than the baseline.
    Regressed = 6,
    /// `--strict`: no baseline, inconclusive, or another host.
    Strict = 7,
    /// Something differs (`drift`).
    Differs = 8,
    /// SIGINT; the record is kept.
    Interrupted = 130,
    /// SIGTERM; the record is kept.
    Terminated = 143,
}

impl Exit {
    /// How a command ends whose result is `verdict`. `failure` is the record's, and tells how far a failed run came;
    /// `strict` makes an error of not knowing. A run that a signal ended is interrupted here; which signal that was, its
    /// receiver knows.
    pub fn of(verdict: &Verdict, failure: Option<&model::Failure>, strict: bool) -> Exit {
        let interrupted = verdict.reasons.iter().any(|reason| reason.id == "interrupted");
        match verdict.kind {
            VerdictKind::Failed if interrupted => Exit::Interrupted,
            VerdictKind::Failed => match failure.map(|failure| failure.stage.as_str()) {
                Some("install" | "preflight" | "launch") => Exit::NotLaunched,
                Some("gate") => Exit::NeverReady,
                Some("load" | "server") => Exit::NoMeasurement,
                Some("render") => Exit::Usage,
                Some(_) | None => Exit::Own,
            },
            VerdictKind::Invalid => Exit::NoMeasurement,
            VerdictKind::Regressed => Exit::Regressed,
            VerdictKind::NoBaseline | VerdictKind::Inconclusive | VerdictKind::HostChanged if strict => Exit::Strict,
            VerdictKind::NoBaseline | VerdictKind::Inconclusive | VerdictKind::HostChanged => Exit::Done,
            VerdictKind::Ok | VerdictKind::Improved => Exit::Done,
        }
    }
}

impl Exit {
    /// The one with this number: how an orch elsewhere ended.
    pub fn of_code(code: i32) -> Option<Exit> {
        let all = [
            Exit::Done,
            Exit::Own,
            Exit::Usage,
            Exit::NotLaunched,
            Exit::NeverReady,
            Exit::NoMeasurement,
            Exit::Regressed,
            Exit::Strict,
            Exit::Differs,
            Exit::Interrupted,
            Exit::Terminated,
        ];
        all.into_iter().find(|exit| *exit as i32 == code)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a verb could not do what was asked: what to print, and how to end.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What is printed on standard error.
    pub report: miette::Report,
}

impl Failure {
    /// Ends with `exit` and prints `error`.
    pub fn new(exit: Exit, error: impl Into<miette::Report>) -> Self {
        Failure { exit, report: error.into() }
    }

    /// Ends because orch could not set itself up: threads, timers, signals. It is nearly always a limit.
    pub fn start(error: std::io::Error) -> Self {
        let help = "`ulimit -n` and `ulimit -u` say how many files and threads this user may have";
        Failure::new(Exit::Own, miette::miette!(help = help, "cannot set up orch's own threads and timers: {error}"))
    }

    /// Ends as a fault of orch's own.
    pub fn own(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Failure::new(Exit::Own, miette::Report::msg(error.to_string()))
    }
}

/// What a verb returns.
pub type Outcome = Result<Exit, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: VerdictKind, reason: &str, stage: Option<&str>, strict: bool) -> u8 {
        let verdict = Verdict { kind, reasons: vec![model::Reason::new(reason, "")], cause: None };
        let failure = stage.map(|stage| model::Failure {
            stage: stage.to_owned(),
            kind: "exited".to_owned(),
            text: String::new(),
            line: None,
            line_no: None,
            remedy: None,
            last_words: Vec::new(),
            start: None,
        });
        Exit::of(&verdict, failure.as_ref(), strict) as u8
    }

    #[test]
    fn each_verdict_has_its_code() {
        use VerdictKind::*;
        for (kind, usual, strict) in [
            (Ok, 0, 0),
            (Improved, 0, 0),
            (NoBaseline, 0, 7),
            (Inconclusive, 0, 7),
            (HostChanged, 0, 7),
            (Invalid, 5, 5),
            (Regressed, 6, 6),
        ] {
            assert_eq!((of(kind, "", None, false), of(kind, "", None, true)), (usual, strict), "{kind:?}");
        }
    }

    #[test]
    fn a_failure_ends_by_how_far_it_came() {
        let exited = |stage| of(VerdictKind::Failed, "exited", stage, true);
        let stages = ["install", "preflight", "launch", "gate", "load", "server", "render", "own"];
        assert_eq!(stages.map(|stage| exited(Some(stage))), [3, 3, 3, 4, 5, 5, 2, 1]);
        assert_eq!(exited(None), 1);
        let interrupted = [None, Some("run"), Some("gate")];
        assert_eq!(interrupted.map(|stage| of(VerdictKind::Failed, "interrupted", stage, false)), [130; 3]);
    }
}
