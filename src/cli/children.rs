//! Runs of orch as processes of their own: what is killed of one takes no other with it. A trial makes its starts so, and
//! a sweep its points.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::runtime::Runtime;

use super::signals::Interrupt;
use super::{Exit, Failure, Global};

/// What makes runs of orch, one at a time.
pub(crate) struct Children<'a> {
    global: &'a Global,
    orch: PathBuf,
    runtime: Runtime,
    interrupt: Interrupt,
    /// The process of the run that goes on; 0 between runs.
    child: Arc<AtomicI32>,
}

impl<'a> Children<'a> {
    /// Listens to signals from now on: one ends the run that goes on, in order.
    pub(crate) fn new(global: &'a Global) -> Result<Self, Failure> {
        let runtime = crate::host::runtime::on_this_thread().map_err(Failure::start)?;
        let child: Arc<AtomicI32> = Arc::default();
        let hurried = child.clone();
        // A second signal is for the run, which ends its server at once.
        let listening = async { Interrupt::listen(move || signal(&hurried, Signal::SIGTERM)) };
        let interrupt = runtime.block_on(listening).map_err(Failure::start)?;
        let orch = std::env::current_exe().map_err(Failure::own)?;
        Ok(Children { global, orch, runtime, interrupt, child })
    }

    /// What a signal asks for, if there was one.
    pub(crate) fn interrupted(&self) -> Option<Exit> {
        self.interrupt.exit()
    }

    /// Lets signals arrive while nothing runs.
    pub(crate) fn pause(&self, time: std::time::Duration) {
        self.runtime.block_on(async {
            tokio::select! {
                () = self.interrupt.token().cancelled() => {}
                () = tokio::time::sleep(time) => {}
            }
        });
    }

    /// Runs orch to its end, and gives its exit code and what it wrote on standard output. It says what it does on standard
    /// error, as this process would.
    pub(crate) fn run(&self, words: &[String]) -> Result<(i32, Vec<u8>), Failure> {
        let ran = self.runtime.block_on(async {
            let mut child = Command::new(&self.orch)
                .arg("--results")
                .arg(&self.global.results)
                .args(elsewhere(self.global))
                .args(words)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()?;
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
            self.child.store(pid, Ordering::SeqCst);
            let mut stdout = child.stdout.take();
            let reading = async {
                let mut text = Vec::new();
                if let Some(stdout) = &mut stdout {
                    stdout.read_to_end(&mut text).await?;
                }
                std::io::Result::Ok((child.wait().await?, text))
            };
            tokio::pin!(reading);
            let ended = tokio::select! {
                biased;
                ended = &mut reading => ended,
                // A terminal tells a whole group at once; `kill` tells this process alone.
                () = self.interrupt.token().cancelled() => {
                    signal(&self.child, Signal::SIGTERM);
                    reading.await
                }
            };
            self.child.store(0, Ordering::SeqCst);
            ended.map(|(status, text)| (status.code().unwrap_or(Exit::Own as i32), text))
        });
        ran.map_err(|error| Failure::new(Exit::Own, miette::miette!("cannot start {}: {error}", self.orch.display())))
    }
}

/// Where a run's host is looked up and how it is reached, as it was said to this process. Which host it is stands in the
/// run's profile.
fn elsewhere(global: &Global) -> Vec<std::ffi::OsString> {
    let files = [("--hosts", &global.hosts), ("--ssh-config", &global.ssh_config), ("--runner", &global.runner)];
    let given = files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_ref()?)));
    given.flat_map(|(flag, file)| [flag.into(), file.as_os_str().to_owned()]).collect()
}

fn signal(child: &AtomicI32, which: Signal) {
    let pid = child.load(Ordering::SeqCst);
    if pid > 0 {
        // It may be gone by now, which is as good.
        let _ = kill(Pid::from_raw(pid), which);
    }
}

/// Ends this process in order when its parent ends, however that happens: nobody else would stop its server before its
/// time is over. `Err` where the parent is gone already.
pub(crate) fn end_with(parent: u32) -> Result<(), Failure> {
    set_pdeathsig(Signal::SIGTERM).map_err(Failure::own)?;
    // It may have ended before that was said.
    if u32::try_from(getppid().as_raw()).ok() != Some(parent) {
        return Err(Failure::new(Exit::Terminated, miette::miette!("what began this run is gone")));
    }
    Ok(())
}
