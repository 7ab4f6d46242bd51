//! `orch sim` as a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use tempfile::TempDir;

/// This program, which also plays the server.
pub(crate) const ORCH: &str = env!("CARGO_BIN_EXE_orch");

/// A simulated server. Dropping it kills it.
pub(crate) struct Sim {
    child: Child,
    url: String,
    folder: TempDir,
}

/// What its ledger has of a generating request.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    n: u64,
    path: String,
    pub(crate) arrived_ns: u64,
    pub(crate) chunks: Vec<(u64, u32)>,
    pub(crate) end_ns: u64,
}

impl Sim {
    /// Starts one, on a core where that is wanted, and returns when it serves.
    pub(crate) fn start(scenario: &str, core: Option<usize>) -> Sim {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(ORCH);
        command.args(["sim", "--port", "0", "--scenario", scenario, "--ledger"]).arg(folder.path().join("ledger"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        if let Some(core) = core {
            let mut set = nix::sched::CpuSet::new();
            set.set(core).unwrap();
            let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
            nix::sched::sched_setaffinity(pid, &set).unwrap();
        }
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let url = loop {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the simulated server does not serve");
            if let Some((_, rest)) = line.split_once("listening at ") {
                break rest.split(',').next().unwrap().trim().to_owned();
            }
        };
        // Nobody reads on, but a pipe that is full would stop it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Sim { child, url, folder }
    }

    /// Its address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Stops it. Its ledger, in order of arrival.
    pub(crate) fn stop(mut self) -> Vec<Line> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
        let text = std::fs::read_to_string(self.folder.path().join("ledger")).unwrap();
        let mut lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.retain(|line| line.path.ends_with("/chat/completions"));
        lines.sort_by_key(|line| line.n);
        lines
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
