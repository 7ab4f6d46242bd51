//! Processes of this machine, ours or not, as the system tells of them: for who only wants to know what runs.

use std::io;

use super::{port, process};

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its number.
    pub pid: u32,
    /// Its words.
    pub words: Vec<String>,
    /// Its environment as it began, `NAME=value` with NUL bytes between; `None` where we may not look.
    pub environment: Option<Vec<u8>>,
    /// The folder that it is in; `None` where we may not look.
    pub folder: Option<String>,
}

impl Running {
    /// A process by its number.
    pub fn of(pid: u32) -> io::Result<Running> {
        let words = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        let words = String::from_utf8_lossy(&words).split_terminator('\0').map(str::to_owned).collect();
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).ok();
        Ok(Running {
            pid,
            words,
            environment: std::fs::read(format!("/proc/{pid}/environ")).ok(),
            folder: folder.and_then(|folder| folder.into_os_string().into_string().ok()),
        })
    }

    /// Who started it; `None` for the first process, and for one that is gone.
    pub fn parent(&self) -> Option<u32> {
        process::stat(self.pid).map(|stat| stat.parent).filter(|parent| *parent > 1)
    }
}

/// The processes that listen on a port of this machine, as far as we may look.
pub fn listening_on(number: u16) -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for listener in port::listeners(number)? {
        pids.extend(listener.pids().unwrap_or_default());
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_found_with_its_words() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let pids = listening_on(listener.local_addr().unwrap().port()).unwrap();
        assert_eq!(pids, [std::process::id()]);
        let running = Running::of(pids[0]).unwrap();
        assert_eq!(running.words, std::env::args().collect::<Vec<_>>());
        assert!(running.environment.is_some() && running.parent().is_some());
    }
}
