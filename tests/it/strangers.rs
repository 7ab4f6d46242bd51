//! A stranger's server that stands beside those of a story: the same program, with the port, the name and the marks of ours
//! among its words, and with workers under the same names. Nothing that a story does may reach it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::launching::until;
use crate::support::free_port;

/// One that runs. When it goes out of scope it must still run, and must not have been asked anything.
pub(crate) struct Stranger {
    child: Child,
    ledger: PathBuf,
    /// Its processes, as they were when it was up.
    pids: Vec<u32>,
    _folder: tempfile::TempDir,
}

impl Stranger {
    /// Beside a server of ours on this port. It cannot listen there itself, since orch then starts nothing at all; the
    /// port stands among its words.
    pub(crate) fn beside(port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let words =
            format!("orch supervise watch --server ORCH_RUN=serve orch.run=serve tiny --port {port} sglang::server");
        let ledger = folder.path().join(words);
        let own = free_port();
        let child = Command::new(env!("CARGO_BIN_EXE_orch"))
            .args(["sim", "--port", &own.to_string(), "--scenario", "{seed: 1, as: sglang}", "--ledger"])
            .arg(&ledger)
            // The mark of another server than any of ours, and one of ours where it means nothing.
            .env("ORCH_RUN", "20260101-120000-serve-0420.0001")
            .env("NOTE", "ORCH_RUN=serve")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the stranger", || std::net::TcpStream::connect(("127.0.0.1", own)).ok());
        let pids = family(child.id());
        assert!(pids.len() > 1, "it has workers");
        Stranger { child, ledger, pids, _folder: folder }
    }

    /// Its main process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    pub(crate) fn assert_untouched(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "a stranger's server was ended");
        let gone: Vec<&u32> = self.pids.iter().filter(|pid| !crate::launching::lives(**pid)).collect();
        assert!(gone.is_empty(), "a stranger's workers were ended: {gone:?}");
        let asked = std::fs::read_to_string(&self.ledger).unwrap_or_default();
        assert_eq!(asked, "", "a stranger's server was asked something");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_untouched();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The port that a profile names.
pub(crate) fn port_of(profile: &Path) -> u16 {
    let text = std::fs::read_to_string(profile).unwrap();
    text.lines().find_map(|line| line.strip_prefix("port: ")?.parse().ok()).unwrap()
}

/// A process and its children.
fn family(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    all.filter(|one: &u32| *one == pid || parent(*one) == Some(pid)).collect()
}
