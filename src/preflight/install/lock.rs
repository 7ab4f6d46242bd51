//! One at a time makes an environment.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{InstallError, Step, Told};
use crate::launch::Process;

/// How often a lock that somebody has is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// The right to make an environment. It ends when neither this process nor the installer that it started has the file
/// open any more.
pub(super) struct Lock {
    file: File,
    path: PathBuf,
    note: Note,
}

/// What the lock's file says of who has it.
#[derive(Clone, Serialize, Deserialize)]
struct Note {
    /// Pids mean something only within one boot of one machine.
    boot: String,
    orch: Process,
    /// The leader of the process group that writes to the environment.
    installer: Option<Process>,
}

/// Takes the lock, waiting for whoever has it.
pub(super) async fn take(envs: &Path, path: &Path, told: Told<'_>) -> Result<Lock, InstallError> {
    std::fs::create_dir_all(envs).map_err(InstallError::io("make", envs))?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(InstallError::io("open", path))?;
    let began = Instant::now();
    let mut said = None;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(InstallError::io("lock", path)(error)),
        }
        let waited = began.elapsed().as_secs();
        if said != Some(waited) {
            said = Some(waited);
            told(Step::Sign(format!("waiting for {}, {waited} s", holder(path)?)))?;
        }
        tokio::time::sleep(RETRY).await;
    }
    let orch = Process::of(std::process::id())
        .ok_or_else(|| InstallError::io("read", "/proc/self/stat")(io::Error::other("this process is not in /proc")))?;
    let note = Note { boot: boot()?, orch, installer: None };
    let lock = Lock { file, path: path.to_owned(), note };
    lock.write()?;
    Ok(lock)
}

impl Lock {
    /// For the installer's standard input: with it open the lock lives as long as the installer, also when this process
    /// is killed. There is nothing to read in it that an installer would understand, and none asks (`--no-input`).
    pub(super) fn for_installer(&self) -> Result<Stdio, InstallError> {
        self.file.try_clone().map(Stdio::from).map_err(InstallError::io("open", &self.path))
    }

    /// Notes who writes to the environment, so that a later orch can end it if this one is killed.
    pub(super) fn note_installer(&mut self, pid: Option<u32>) -> Result<(), InstallError> {
        self.note.installer = pid.and_then(Process::of);
        self.write()
    }

    fn write(&self) -> Result<(), InstallError> {
        let failed = || InstallError::io("write", &self.path);
        let text = serde_json::to_vec(&self.note).map_err(|error| failed()(error.into()))?;
        self.file.set_len(0).map_err(failed())?;
        // The installer shares this file's position.
        self.file.write_all_at(&text, 0).map_err(failed())
    }
}

/// Who has the lock, in words. If that is only an installer whose orch is gone, it is ended: what it makes will be
/// cleared anyway.
fn holder(path: &Path) -> Result<String, InstallError> {
    let text = std::fs::read(path).map_err(InstallError::io("read", path))?;
    // The one who just took it may not have written yet.
    let Ok(note) = serde_json::from_slice::<Note>(&text) else {
        return Ok("another orch that installs the same".to_owned());
    };
    if note.boot != boot()? || note.orch.lives() {
        return Ok(format!("pid {} that installs the same", note.orch.pid));
    }
    if let Some(installer) = note.installer.filter(Process::lives)
        && let Ok(pid) = i32::try_from(installer.pid)
    {
        // The leader lives, so the group is still its own. If it is gone by now, so is what there was to end.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    Ok(format!("what pid {}, which is gone, left behind", note.orch.pid))
}

fn boot() -> Result<String, InstallError> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(std::fs::read_to_string(path).map_err(InstallError::io("read", path))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn the_second_one_waits_and_says_for_whom() {
        let envs = tempfile::tempdir().unwrap();
        let path = envs.path().join("k.lock");
        let mut first = Some(take(envs.path(), &path, &mut |_| Ok(())).await.unwrap());
        let mut signs = Vec::new();
        take(envs.path(), &path, &mut |step| {
            signs.push(step);
            first = None;
            Ok(())
        })
        .await
        .unwrap();
        let expected = format!("waiting for pid {} that installs the same, 0 s", std::process::id());
        assert_eq!(signs, [Step::Sign(expected)]);
    }

    #[tokio::test]
    async fn an_installer_whose_orch_is_gone_is_ended_and_its_lock_taken() {
        let envs = tempfile::tempdir().unwrap();
        let path = envs.path().join("k.lock");
        let mut first = take(envs.path(), &path, &mut |_| Ok(())).await.unwrap();
        let mut installer =
            Command::new("sleep").arg("600").stdin(first.for_installer().unwrap()).process_group(0).spawn().unwrap();
        first.note.orch.start_ticks += 1;
        first.note_installer(Some(installer.id())).unwrap();
        let pid = first.note.orch.pid;
        drop(first);
        let mut signs = Vec::new();
        take(envs.path(), &path, &mut |step| {
            signs.push(step);
            Ok(())
        })
        .await
        .unwrap();
        assert_eq!(signs[0], Step::Sign(format!("waiting for what pid {pid}, which is gone, left behind, 0 s")));
        assert!(!installer.wait().unwrap().success());
    }
}
