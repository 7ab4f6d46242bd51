//! Stopping servers so that nothing is left: `orch stop`, and the end of every run.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::leftovers::{self, Cleared};
use super::marks::Marks;
use super::process::Stat;
use super::servers::{self, Folder, Status};
use super::{LaunchError, PortOwner, Process, WorkFolder, end, gpu, port};
use crate::render::StopRule;

/// How long a supervisor that has ended its server has to end itself.
const SUPERVISOR: Duration = Duration::from_secs(5);
/// How long the kernel has to free a port after its last process is gone.
const PORT: Duration = Duration::from_secs(5);
/// How long a socket that listens may still be one of a process that has just gone.
const LISTENER: Duration = Duration::from_secs(1);

/// Which servers are stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every one of this work folder.
    All,
    /// The one of this id, those of this run, or those of the run with this short name (`r` and four hex digits).
    One(String),
    /// What is left of a run that is gone: its servers that nobody lets stay. There may be none.
    Unkept(String),
}

/// What came of stopping a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Its id.
    pub id: String,
    /// What could not be ended, as `pid 123 (name)`.
    pub left: Vec<String>,
    /// The port it had a lease for, and who listens there now.
    pub port: Option<(u16, PortOwner)>,
    /// Device memory above the idle level, in MiB; `None` where there is no device, or nothing tells.
    pub gpu_mib: Option<u64>,
    /// Files that its processes had left and that were removed.
    pub removed: Vec<String>,
    /// Files of its processes that are still there, each with why.
    pub files: Vec<String>,
}

/// Stops servers, one after the other, each to its end. A server that was stopped before is no fault and no entry. One
/// that cannot be stopped does not keep the others: all are tried, and then it is told.
pub async fn stop(work: &WorkFolder, which: &Which) -> Result<Vec<Stopped>, LaunchError> {
    let (mut stopped, mut failed) = (Vec::new(), Vec::new());
    for folder in resolve(work, which)? {
        match stop_folder(work, &folder).await {
            Ok(one) => stopped.push(one),
            Err(error) => failed.push((folder.id().to_owned(), error)),
        }
    }
    match failed.pop() {
        None => Ok(stopped),
        // Its own code and help say more.
        Some((_, error)) if failed.is_empty() && stopped.is_empty() => Err(error),
        Some(last) => {
            failed.push(last);
            Err(LaunchError::NotAllStopped { failed, stopped: stopped.into_iter().map(|one| one.id).collect() })
        }
    }
}

/// Stops a server and removes its folder, unless its run lives: the run takes over its status and removes it.
pub(crate) async fn stop_folder(work: &WorkFolder, folder: &Folder) -> Result<Stopped, LaunchError> {
    let port = folder.plan().and_then(|plan| plan.port());
    let ended = end_server(folder).await?;
    let After { cleared, returned } = match ended.left.is_empty() {
        true => after(folder).await,
        false => After::default(),
    };
    let port = match port {
        Some(number) if ended.left.is_empty() => Some((number, freed(number).await)),
        _ => None,
    };
    if ended.left.is_empty() {
        if folder.is_locked("owner") {
            tell_the_run(folder)?;
        } else {
            folder.remove(work)?;
        }
    }
    Ok(Stopped {
        id: folder.id().to_owned(),
        left: ended.left.iter().map(|stat| port::name(stat.process.pid)).collect(),
        port,
        gpu_mib: returned.map(|returned| returned.above_mib),
        removed: cleared.removed,
        files: cleared.files,
    })
}

/// A run that waits for its server's end must learn of it also when the supervisor could not say.
fn tell_the_run(folder: &Folder) -> Result<(), LaunchError> {
    if folder.status().is_some() {
        return Ok(());
    }
    let status = Status { code: None, signal: None, stopped: true, at: jiff::Timestamp::now() };
    match folder.write("status", &status) {
        // It was quicker and has removed the folder.
        Err(_) if !folder.path().exists() => Ok(()),
        written => written,
    }
}

/// Who has a port after the last process of its server is gone. Waits for the kernel to free it, within bounds.
pub(crate) async fn freed(number: u16) -> PortOwner {
    let began = Instant::now();
    loop {
        if port::is_free(number) {
            return PortOwner::Nobody;
        }
        if began.elapsed() >= LISTENER
            && let Ok(listeners) = port::listeners(number)
            && !listeners.is_empty()
        {
            return PortOwner::Stranger(port::holder(number));
        }
        if began.elapsed() >= PORT {
            return PortOwner::CannotTell;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// What was left when everything was tried.
pub(crate) struct Ended {
    pub(crate) left: Vec<Stat>,
}

/// Ends a server and its supervisor. The supervisor does it as long as it lives, since it knows most; what it leaves, or
/// what an orphan is, is ended from here by the marks.
pub(crate) async fn end_server(folder: &Folder) -> Result<Ended, LaunchError> {
    if !folder.path().exists() || folder.is_of_another_boot() {
        return Ok(Ended { left: Vec::new() });
    }
    let rule = folder.plan().map(|plan| plan.stop);
    let rule = rule.unwrap_or(StopRule { signal: "TERM".to_owned(), patience: Duration::from_secs(10) });
    if let Some(supervisor) = folder.supervisor().filter(Process::lives) {
        // Before the signal: whoever comes after a kill of this process must not take a server that is going for one that
        // serves. What cannot be written down is no reason to let it live.
        let _ = folder.set("stopping");
        ask_supervisor(supervisor, &rule).await?;
    }
    // From here on no supervisor can start anything in this folder, however late it comes.
    let Some(_lock) = lock(folder).await? else {
        return Err(LaunchError::Supervisor { why: format!("{} is held by a process that does not end", folder.id()) });
    };
    if !folder.path().exists() {
        return Ok(Ended { left: Vec::new() });
    }
    let mut marks = Marks::of(folder);
    let none = marks.living().map_err(LaunchError::io("read", "/proc"))?.is_empty();
    if !none {
        folder.set("stopping")?;
        let processes: Vec<Process> = marks.seen();
        // What cannot be noted stays behind; that is no reason to let the processes live.
        let _ = leftovers::note(folder, &processes);
        let left = end::end(&mut marks, &rule, &CancellationToken::new())
            .await
            .map_err(LaunchError::io("end", "processes"))?;
        super::docker::end_of(folder).await?;
        return Ok(Ended { left });
    }
    super::docker::end_of(folder).await?;
    Ok(Ended { left: Vec::new() })
}

/// What else there is to see to once nothing of a server lives: its files, and the memory of its devices.
#[derive(Debug, Default)]
pub(crate) struct After {
    pub(crate) cleared: Cleared,
    pub(crate) returned: Option<gpu::Returned>,
}

/// Sees to it.
pub(crate) async fn after(folder: &Folder) -> After {
    if folder.is_of_another_boot() {
        return After::default();
    }
    let of = folder.clone();
    let cleared = tokio::task::spawn_blocking(move || leftovers::clear(&of)).await.unwrap_or_default();
    let returned = match folder.plan().and_then(|plan| plan.idle_mib) {
        Some(idle) => gpu::returned(&idle).await,
        None => None,
    };
    After { cleared, returned }
}

async fn ask_supervisor(supervisor: Process, rule: &StopRule) -> Result<(), LaunchError> {
    let send = |signal| supervisor.signal(signal).map_err(LaunchError::io("stop", "the supervisor"));
    if !send(Signal::SIGTERM)? {
        return Ok(());
    }
    let deadline = Instant::now() + end::bound(rule) + SUPERVISOR;
    while supervisor.lives() && Instant::now() < deadline {
        sleep(Duration::from_millis(25)).await;
    }
    if send(Signal::SIGKILL)? {
        let deadline = Instant::now() + SUPERVISOR;
        while supervisor.lives() && Instant::now() < deadline {
            sleep(Duration::from_millis(25)).await;
        }
    }
    Ok(())
}

/// Another `orch stop` may be at the same server: it will be done soon.
async fn lock(folder: &Folder) -> Result<Option<std::fs::File>, LaunchError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match folder.lock("lock") {
            Ok(Some(file)) => return Ok(Some(file)),
            Ok(None) if Instant::now() >= deadline => return Ok(None),
            Ok(None) => sleep(Duration::from_millis(50)).await,
            // It is gone, with its lock.
            Err(_) if !folder.path().exists() => return gone().map(Some),
            Err(error) => return Err(error),
        }
    }
}

fn gone() -> Result<std::fs::File, LaunchError> {
    std::fs::File::open("/dev/null").map_err(LaunchError::io("open", "/dev/null"))
}

pub(crate) fn resolve(work: &WorkFolder, which: &Which) -> Result<Vec<Folder>, LaunchError> {
    let folders = Folder::all(work)?;
    let id = match which {
        Which::All => return Ok(folders),
        Which::Unkept(run) => {
            return Ok(folders.into_iter().filter(|one| one.run() == run && !one.has("keep")).collect());
        }
        Which::One(id) => id,
    };
    let fits: Vec<Folder> = folders.iter().filter(|folder| names(id, folder.id())).cloned().collect();
    let mut runs: Vec<String> = fits.iter().map(|folder| folder.run().to_owned()).collect();
    runs.dedup();
    match runs.len() {
        1 => Ok(fits),
        0 if servers::ended(work).iter().any(|ended| names(id, ended)) => Ok(Vec::new()),
        0 => {
            let known = folders.iter().map(|folder| folder.id().to_owned()).collect();
            Err(LaunchError::NoSuchServer { id: id.clone(), known })
        }
        _ => Err(LaunchError::Ambiguous { id: id.clone(), runs }),
    }
}

/// Whether what a person typed names the server of this id: the id, the run, or the run's short name.
fn names(typed: &str, id: &str) -> bool {
    let run = id.rsplit_once('.').map_or(id, |(run, _)| run);
    let short = run.rsplit_once('-').map(|(_, hex)| hex).filter(|hex| hex.len() == 4);
    typed == id || typed == run || (typed.strip_prefix('r').is_some() && typed.strip_prefix('r') == short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_goes_by_its_id_its_run_and_the_runs_short_name() {
        let id = "20260101-120000-smollm2-0420.9f3c";
        for typed in [id, "20260101-120000-smollm2-0420", "r0420"] {
            assert!(names(typed, id), "{typed}");
        }
        for typed in ["r042", "0420", "20260101-120000-smollm2", "smollm2", "r", "r9f3c", ""] {
            assert!(!names(typed, id), "{typed}");
        }
    }

    #[tokio::test]
    async fn a_word_that_never_was_an_id_is_a_mistake_and_all_of_nothing_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        assert_eq!(stop(&work, &Which::All).await.unwrap(), []);
        let error = stop(&work, &Which::One("r0420".to_owned())).await.unwrap_err();
        assert_eq!(error.to_string(), "no server `r0420` is known here");
    }

    #[tokio::test]
    async fn of_a_run_that_is_gone_what_is_to_stay_stays() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        let path = |id: &str| work.servers().join(id);
        for id in ["a.0001", "a.0002", "b.0003"] {
            std::fs::create_dir_all(path(id)).unwrap();
        }
        std::fs::write(path("a.0002").join("keep"), "").unwrap();
        let stopped = stop(&work, &Which::Unkept("a".to_owned())).await.unwrap();
        assert_eq!(stopped.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["a.0001"]);
        assert!(!path("a.0001").exists() && path("a.0002").exists() && path("b.0003").exists());
        assert_eq!(stop(&work, &Which::Unkept("never".to_owned())).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_stopped_does_not_keep_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let work = WorkFolder::at(folder.path().join("orch")).unwrap();
        let (bad, good) = (work.servers().join("a.0001"), work.servers().join("b.0002"));
        // A folder in the place of the file that is to be locked.
        std::fs::create_dir_all(bad.join("lock")).unwrap();
        std::fs::create_dir(&good).unwrap();
        let error = stop(&work, &Which::All).await.unwrap_err();
        let expected = format!("could not stop 1 of 2 servers: a.0001: cannot open {}", bad.join("lock").display());
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(!good.exists(), "the second one was stopped all the same");
        let alone = stop(&work, &Which::All).await.unwrap_err();
        assert!(matches!(alone, LaunchError::Io { what: "open", .. }), "{alone}");
    }
}
