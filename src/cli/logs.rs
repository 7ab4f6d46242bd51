//! `orch logs`: what a server printed.

use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::far::{self, There};
use super::far_run;
use super::locate::{self, Located};
use super::{Exit, Failure, Global, Outcome, out};
use crate::host::Follow;
use crate::launch::{self, WorkFolder};
use crate::remote::{Line, RemoteError};

/// Prints what the server of a run printed
///
/// It is found by the run or the server, whatever `--results` says, while it runs and afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch logs r0421                the whole log
  orch logs r0421 -f             and what is added, until the server ends
  orch logs r0421 --at 287       the lines around line 287, as a failure names it")]
pub(crate) struct LogsArgs {
    /// A run's short name or id, a server's id, or `latest`
    #[arg(value_name = "ID", default_value = "latest")]
    id: String,
    /// Goes on with what is added, until the server has ended
    #[arg(short, long, conflicts_with = "at")]
    follow: bool,
    /// The lines around this one, with their numbers
    #[arg(long, value_name = "LINE", value_parser = clap::value_parser!(u64).range(1..))]
    at: Option<u64>,
}

/// Lines shown before and after the one that was asked for.
const AROUND: u64 = 10;
/// Between two looks for more.
const LOOK: Duration = Duration::from_millis(150);

impl LogsArgs {
    /// Whether it goes on with what is added.
    pub(crate) fn follows(&self) -> bool {
        self.follow
    }
}

pub(crate) fn run(args: LogsArgs, global: &Global) -> Outcome {
    let LogsArgs { id, follow, at } = args;
    if let Some(host) = far::asked(global).filter(|_| follow) {
        return far_log(host, &id, global);
    }
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let Located { store, id: run } = locate::run(&id, &work, global)?;
    let path = store.run_path(&run).join("server.log");
    let failed = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::NotFound => "the run started no server, or measured one that was up before",
            _ => "the log is its owner's alone",
        };
        Failure::new(Exit::Own, miette::miette!(help = help, "cannot read {}: {error}", path.display()))
    };
    match at {
        Some(line) => around(&path, line).map_err(failed)?,
        None => {
            let lives = || follow && is_alive(&work, run.as_str());
            whole(&path, &lives).map_err(failed)?;
        }
    }
    Ok(Exit::Done)
}

/// Prints the log of a run on another host, and what is added, until the run has ended.
fn far_log(host: &str, id: &str, global: &Global) -> Outcome {
    let there = There::of(host, global)?;
    let runtime = crate::host::runtime::on_this_thread().map_err(Failure::start)?;
    runtime.block_on(async {
        let mut line = Line::open(there.door.clone()).await.map_err(far::failure)?;
        let mut look = far_run::look_at(&there, &line.host(), id).await?;
        let Some(run) = look.run.clone() else { return Ok(Exit::Done) };
        let mut follow = Follow::new(line.host(), run.folder.join("server.log"), 0);
        loop {
            // Before the reading: what is printed in between is read yet.
            let goes_on = look.running;
            let read = follow.more(|block| out::text(shown(&String::from_utf8_lossy(block)))).await;
            let looked = match read.map_err(RemoteError::from) {
                Ok(_) if !goes_on => return Ok(Exit::Done),
                Ok(_) => {
                    tokio::time::sleep(LOOK * 4).await;
                    far_run::look_again(&there, &line.host(), &run.id).await
                }
                Err(error) => Err(error),
            };
            match looked {
                Ok(now) => look = now,
                Err(error) if error.is_lost() => {
                    line.again(&error, &mut far::tell).await.map_err(far::failure)?;
                    follow = Follow::new(line.host(), run.folder.join("server.log"), follow.offset());
                }
                Err(error) => return Err(far::failure(error)),
            }
        }
    })
}

/// Whether a server of the run may still print something.
fn is_alive(work: &WorkFolder, run: &str) -> bool {
    launch::list(work).is_ok_and(|all| all.iter().any(|listed| listed.run == run && listed.lives()))
}

/// Prints the log, and what is added while `lives` says so.
fn whole(path: &Path, lives: &dyn Fn() -> bool) -> std::io::Result<()> {
    let mut at = 0;
    loop {
        // Before the reading: what is printed in between is read yet.
        let more = lives();
        let mut file = std::fs::File::open(path)?;
        if file.metadata()?.len() < at {
            at = 0;
        }
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        at += file.read_to_end(&mut bytes)? as u64;
        if !bytes.is_empty() {
            out::text(shown(&String::from_utf8_lossy(&bytes)));
        }
        if !more {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// Prints the lines around `line`, numbered as failures number them: only line feeds count.
fn around(path: &PathBuf, line: u64) -> std::io::Result<()> {
    let bytes = std::fs::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let count = lines.len() as u64;
    if line > count {
        out::note(format!("the log has {count} lines; these are its last"));
    }
    let middle = line.min(count);
    let (first, last) = (middle.saturating_sub(AROUND).max(1), (middle + AROUND).min(count));
    for number in first..=last {
        let mark = if number == line { '>' } else { ' ' };
        // A progress bar is one line: its last state is the one that stayed.
        let text = lines[(number - 1) as usize].rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default();
        out::line(format!("{mark}{number:>6}  {}", shown(text)));
    }
    Ok(())
}

/// On a terminal without what could steer it; to a file or a program as it is.
fn shown(text: &str) -> String {
    if !std::io::stdout().is_terminal() {
        return text.to_owned();
    }
    let keep = |c: char| if c.is_control() && !matches!(c, '\n' | '\r' | '\t') { '\u{fffd}' } else { c };
    text.chars().map(keep).collect()
}
