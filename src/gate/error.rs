//! Why a server is not ready and will not be.

use std::fmt::{self, Display, Write};
use std::path::PathBuf;
use std::time::Duration;

use miette::Diagnostic;

use super::life::Worker;
use super::log::Failure;
use super::starting::End;
use crate::event::EmitError;
use crate::host::HostError;
use crate::launch::Exited;
use crate::units::duration_text;

/// Why a server is not ready and will not be.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// Its main process ended.
    #[error("the server ended before it was ready: {exited}, {} after its launch, in phase {}", short(log.elapsed), log.phase)]
    Exited {
        /// How.
        exited: Exited,
        /// What its log said.
        log: Box<LogState>,
    },
    /// The limit passed.
    #[error(
        "the server was not ready within {}: phase {}, its log silent for {}{}",
        short(*limit), log.phase, short(log.silent), answers_text(answers)
    )]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// What the probes answered last, by what was asked.
        answers: Vec<(String, String)>,
        /// What its log said.
        log: Box<LogState>,
    },
    /// The engine itself says that it failed, and its main process stays.
    #[error("the server says that it failed, {} after its launch, in phase {}; its main process did not end by itself", short(log.elapsed), log.phase)]
    Confirmed {
        /// What its log said.
        log: Box<LogState>,
    },
    /// A rank is gone, a line says why, and the main process stays.
    #[error("a rank of the server is gone, {} after its launch, in phase {}: {worker}", short(log.elapsed), log.phase)]
    DeadRank {
        /// Which.
        worker: Worker,
        /// What its log said.
        log: Box<LogState>,
    },
    /// A line looks like the cause of a failure, and it was not to be waited for the engine's own word.
    #[error("the log says what looks fatal, {} after the launch, in phase {}; the engine had not confirmed it", short(log.elapsed), log.phase)]
    LooksFatal {
        /// What its log said.
        log: Box<LogState>,
    },
    /// It answers, and what it answers will not do; and that did not change for a while.
    #[error("the server is up, and cannot be used as asked: {probe} answered {answer}")]
    Unfit {
        /// What was asked.
        probe: String,
        /// What it answered.
        answer: String,
        /// What to do about it.
        remedy: String,
        /// What its log said.
        log: Box<LogState>,
    },
    /// The plan's readiness cannot be checked.
    #[error("cannot check readiness as planned: {why}")]
    Plan {
        /// Why.
        why: String,
    },
    /// The journal could not be written.
    #[error(transparent)]
    Journal(#[from] EmitError),
    /// The log could not be read.
    #[error(transparent)]
    Log(#[from] HostError),
}

/// What a server's log had said when the gate closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The log.
    pub path: PathBuf,
    /// The phase it was in.
    pub phase: String,
    /// Since its launch.
    pub elapsed: Duration,
    /// Since its log last grew.
    pub silent: Duration,
    /// The line that looks like the cause.
    pub root: Option<Failure>,
    /// The first line that only reports it, with its number.
    pub consequence: Option<(u64, String)>,
    /// What its processes and devices look like, where no line says it: `hang_collective`, `rank_missing`.
    pub looks_like: Option<&'static str>,
    /// Its last lines, oldest first.
    pub last_words: Vec<String>,
}

impl GateError {
    /// Why a start was ended whose main process lives.
    pub(super) fn ended(end: End, limit: Duration, answers: Vec<(String, String)>, log: Box<LogState>) -> Self {
        match end {
            End::TimedOut => GateError::TimedOut { limit, answers, log },
            End::Confirmed => GateError::Confirmed { log },
            End::DeadRank(worker) => GateError::DeadRank { worker, log },
            End::FailFast => GateError::LooksFatal { log },
        }
    }

    /// The rule that ended the start, as one word; `None` where that was no rule of the gate.
    pub fn rule(&self) -> Option<&'static str> {
        match self {
            GateError::Exited { .. } => Some("exited"),
            GateError::TimedOut { .. } => Some("limit"),
            GateError::Confirmed { .. } => Some("confirmed"),
            GateError::DeadRank { .. } => Some("dead_rank"),
            GateError::LooksFatal { .. } => Some("fail_fast"),
            GateError::Unfit { .. } => Some("unfit"),
            GateError::Plan { .. } | GateError::Journal(_) | GateError::Log(_) => None,
        }
    }

    /// What the log had said, where the log matters.
    pub fn log(&self) -> Option<&LogState> {
        match self {
            GateError::Exited { log, .. }
            | GateError::TimedOut { log, .. }
            | GateError::Confirmed { log }
            | GateError::DeadRank { log, .. }
            | GateError::LooksFatal { log }
            | GateError::Unfit { log, .. } => Some(log),
            GateError::Plan { .. } | GateError::Journal(_) | GateError::Log(_) => None,
        }
    }
}

impl Diagnostic for GateError {
    fn code<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        Some(Box::new(match self {
            GateError::Exited { .. } => "orch::gate::exited",
            GateError::TimedOut { .. } => "orch::gate::timed_out",
            GateError::Confirmed { .. } => "orch::gate::confirmed",
            GateError::DeadRank { .. } => "orch::gate::dead_rank",
            GateError::LooksFatal { .. } => "orch::gate::looks_fatal",
            GateError::Unfit { .. } => "orch::gate::unfit",
            GateError::Plan { .. } => "orch::gate::plan",
            GateError::Journal(_) => "orch::gate::journal",
            GateError::Log(_) => "orch::gate::log",
        }))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        let log = self.log()?;
        let mut text = String::new();
        let said = match self {
            GateError::Unfit { remedy, .. } => writeln!(text, "{remedy}"),
            _ => Ok(()),
        };
        said.and_then(|()| describe(log, &mut text)).ok()?;
        Some(Box::new(text.trim_end().to_owned()))
    }
}

/// The line that is the cause and what to do about it; without one, the last words.
fn describe(log: &LogState, text: &mut String) -> fmt::Result {
    if let Some(root) = &log.root {
        let rank = root.rank.map(|rank| format!(" (rank {rank})")).unwrap_or_default();
        writeln!(text, "{}:{}{rank}  {}", log.path.display(), root.line_no, root.line.trim())?;
        if let Some(remedy) = &root.remedy {
            writeln!(text, "{remedy}")?;
        }
    }
    if log.last_words.is_empty() {
        return writeln!(text, "its log {} is empty", log.path.display());
    }
    writeln!(text, "the end of {}:", log.path.display())?;
    log.last_words.iter().try_for_each(|line| writeln!(text, "  {line}"))
}

/// To the second, or finer below ten of them.
fn short(duration: Duration) -> String {
    let whole = if duration < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX) / 100 * 100)
    } else {
        Duration::from_secs(duration.as_secs())
    };
    duration_text(whole)
}

fn answers_text(answers: &[(String, String)]) -> String {
    let mut text = String::new();
    for (probe, answer) in answers {
        // A `String` takes whatever is written to it.
        let _ = write!(text, ", {probe} answered {answer}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Box<LogState> {
        let root = Failure {
            kind: "oom_weights".into(),
            nature: super::super::log::Nature::Cause,
            line: "torch.OutOfMemoryError: CUDA out of memory.".into(),
            line_no: 212,
            rank: Some(1),
            phase: "weights".into(),
            proves: false,
            remedy: Some("raise `parallel.tensor`".into()),
            retry: None,
        };
        Box::new(LogState {
            path: "runs/x/server.log".into(),
            phase: "weights".into(),
            elapsed: Duration::from_millis(41_234),
            silent: Duration::from_millis(1_250),
            root: Some(root),
            consequence: None,
            looks_like: None,
            last_words: vec!["one".into(), "two".into()],
        })
    }

    #[test]
    fn an_exit_says_how_when_and_where_and_shows_the_cause() {
        let exited = Exited { code: Some(1), signal: None, stopped: false };
        let error = GateError::Exited { exited, log: log() };
        assert_eq!(
            error.to_string(),
            "the server ended before it was ready: exit code 1, 41s after its launch, in phase weights"
        );
        assert_eq!(
            error.help().unwrap().to_string(),
            "runs/x/server.log:212 (rank 1)  torch.OutOfMemoryError: CUDA out of memory.\n\
             raise `parallel.tensor`\nthe end of runs/x/server.log:\n  one\n  two"
        );
    }

    #[test]
    fn a_timeout_says_what_was_last_seen() {
        let answers = vec![("/health".to_owned(), "503".to_owned())];
        let error = GateError::TimedOut { limit: Duration::from_secs(1200), answers, log: log() };
        assert_eq!(
            error.to_string(),
            "the server was not ready within 20m: phase weights, its log silent for 1s200ms, /health answered 503"
        );
    }
}
