//! `orch sim` for stories: started on a free port with a scenario, gone with this.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A simulated engine that serves.
pub(crate) struct Sim {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    /// Reads its log to the end, so that it never waits for a reader.
    log: Option<std::thread::JoinHandle<String>>,
}

impl Sim {
    /// Starts one and returns when it serves.
    pub(crate) fn start(scenario: &str) -> Sim {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scenario.yaml");
        std::fs::write(&file, scenario).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_orch"))
            .arg("sim")
            .arg("--scenario")
            .arg(&file)
            .args(["--port", "0", "--ledger"])
            .arg(folder.path().join("ledger.jsonl"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut text = String::new();
        let port = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended: {text}");
            text.push_str(&line);
            if let Some((_, rest)) = line.split_once("listening at http://127.0.0.1:") {
                break rest.split(',').next().unwrap().trim().parse().unwrap();
            }
        };
        let log = std::thread::spawn(move || {
            let mut line = String::new();
            while log.read_line(&mut line).is_ok_and(|read| read > 0) {
                text.push_str(&line);
                line.clear();
            }
            text
        });
        Sim { child, port, folder, log: Some(log) }
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The file of its ledger.
    pub(crate) fn ledger_path(&self) -> PathBuf {
        self.folder.path().join("ledger.jsonl")
    }

    /// The ledger's lines so far, in order of arrival. A line is there soon after its request has ended.
    pub(crate) fn ledger(&self) -> Vec<serde_json::Value> {
        read_ledger(&self.ledger_path())
    }

    /// The ledger, as soon as it has so many lines.
    pub(crate) fn ledger_of(&self, requests: usize) -> Vec<serde_json::Value> {
        let begun = Instant::now();
        loop {
            let lines = self.ledger();
            if lines.len() >= requests {
                return lines;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{} of {requests} lines", lines.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A page of it: its status and its text.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        exchange(self.port(), &format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n"))
    }

    /// A page that is JSON.
    pub(crate) fn json(&self, path: &str) -> serde_json::Value {
        let (status, text) = self.get(path);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Sends a document; the answer's status and text.
    pub(crate) fn post(&self, path: &str, body: &serde_json::Value) -> (u16, String) {
        let body = body.to_string();
        let length = body.len();
        exchange(
            self.port(),
            &format!(
                "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            ),
        )
    }

    /// A value of `/metrics`, summed over its labels; `None` when it is not there.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics");
        let values: Vec<f64> = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Whether a request runs at the moment.
    pub(crate) fn running(&self) -> bool {
        let names = ["sglang:num_running_reqs", "vllm:num_requests_running", "llamacpp:requests_processing"];
        names.iter().any(|name| self.metric(name).is_some_and(|running| running > 0.0))
    }

    /// Sends it SIGTERM.
    pub(crate) fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    /// Waits for its end; its log comes with it.
    pub(crate) fn end(mut self) -> (ExitStatus, String, Vec<serde_json::Value>) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let log = self.log.take().unwrap().join().unwrap();
        (status, log, self.ledger())
    }

    /// Stops it; the whole ledger.
    pub(crate) fn stop(self) -> Vec<serde_json::Value> {
        self.terminate();
        self.end().2
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // It may have ended by itself, or not want to.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a ledger, in order of arrival.
pub(crate) fn read_ledger(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may be half written.
    let mut lines: Vec<serde_json::Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    lines.sort_by_key(|line| line["n"].as_u64());
    lines
}

fn exchange(port: u16, request: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A cut or a reset is an answer too.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), body.to_owned())
}
