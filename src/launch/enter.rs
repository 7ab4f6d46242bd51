//! The last step before a server is itself: a session of its own, its pid on disk, then its program.
//!
//! This is a program of its own (`orch supervise enter`) because between fork and exec of a larger program nothing may
//! safely be done. The pid stays the same when the program is replaced.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::marks::{MARK, memory_name};
use super::servers::Identity;
use crate::host::{self, Mode};

/// What went wrong, told to the supervisor. Nothing is told when all is well: the line closes by itself when the
/// program is replaced.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EnterFault {
    /// What was being done: `exec`, `setsid`, `pid`.
    pub(crate) at: String,
    /// What the system said.
    pub(crate) why: String,
}

/// Becomes the server. Returns only if it could not; the supervisor has been told then.
pub fn enter(pid_file: &Path, words: &[String]) -> io::Error {
    let line = match take_stdin() {
        Ok(line) => line,
        Err(error) => return error,
    };
    let (at, error) = become_server(pid_file, words);
    let fault = EnterFault { at: at.to_owned(), why: error.to_string() };
    if let Ok(bytes) = serde_json::to_vec(&fault) {
        // If the supervisor is gone too, the error that is returned still says it, in the server's log.
        let _ = (&line).write_all(&bytes);
    }
    error
}

fn become_server(pid_file: &Path, words: &[String]) -> (&'static str, io::Error) {
    let Some((program, arguments)) = words.split_first() else {
        return ("exec", io::Error::other("there is no program"));
    };
    if let Err(error) = nix::unistd::setsid() {
        return ("setsid", error.into());
    }
    if let Err(error) = mark() {
        return ("mark", error);
    }
    // On disk before the server runs: from here on it can be found, whatever happens to the supervisor.
    let written = Identity::own().and_then(|identity| {
        let bytes = serde_json::to_vec(&identity)?;
        host::write_whole(pid_file, &bytes, Mode::PRIVATE)
    });
    if let Err(error) = written {
        return ("pid", error);
    }
    ("exec", Command::new(program).args(arguments).exec())
}

/// Opens the file in memory that marks this process and everything that is forked from it. It is left open for that.
fn mark() -> io::Result<()> {
    let Ok(id) = std::env::var(MARK) else { return Ok(()) };
    match memfd_create(memory_name(&id).as_str(), MFdFlags::empty()) {
        Ok(file) => drop(file.into_raw_fd()),
        // An old kernel or a sandbox: the other marks are there.
        Err(Errno::ENOSYS | Errno::EPERM | Errno::EACCES) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Takes the socket on standard input and puts `/dev/null` in its place. The socket closes when the program is replaced.
pub(crate) fn take_stdin() -> io::Result<UnixStream> {
    let line: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(UnixStream::from(line))
}
