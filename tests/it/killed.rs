//! What the stories about kills share: a command that is watched from outside by its journal, the signal from outside, and
//! the proof that nothing of ours is left on the machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::launching::PATIENCE;
use crate::support::{Home, Ran};

/// Who is killed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    Orch,
    Supervisor,
    Server,
    TermOrch,
}

pub(crate) const KILLS: [(Kill, &str); 4] = [
    (Kill::Orch, "KILL orch"),
    (Kill::Supervisor, "KILL supervisor"),
    (Kill::Server, "KILL server"),
    (Kill::TermOrch, "TERM orch"),
];

/// A run whose journal is watched from outside.
pub(crate) struct Watched {
    child: Child,
    journal: Option<PathBuf>,
    runs: PathBuf,
    /// Runs that were there before.
    before: Vec<PathBuf>,
}

impl Watched {
    pub(crate) fn start(home: &Home, mut command: Command) -> Self {
        let runs = home.results().join("runs");
        let before = folders(&runs);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Watched { child, journal: None, runs, before }
    }

    /// It writes no new journal.
    pub(crate) fn goes_on_in(&mut self, run: &Path) {
        self.journal = Some(run.join("journal.jsonl"));
    }

    pub(crate) fn pid(&self) -> u64 {
        self.child.id().into()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the `nth` line of this kind; `None` when the run has ended before.
    pub(crate) fn until(&mut self, kind: &str, nth: usize) -> Option<Vec<Value>> {
        let needle = format!("\"event\":\"{kind}\"");
        let limit = Instant::now() + PATIENCE;
        loop {
            let ended = self.child.try_wait().unwrap().is_some();
            if self.journal.is_none() {
                let run = folders(&self.runs).into_iter().find(|run| !self.before.contains(run));
                self.journal = run.map(|run| run.join("journal.jsonl"));
            }
            let text = self.journal.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            if whole.matches(&needle).count() >= nth {
                return Some(events(whole));
            }
            if ended {
                return None;
            }
            assert!(Instant::now() < limit, "`{kind}` did not come");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn end(self) -> Ran {
        Ran::of(self.child.wait_with_output().unwrap())
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

pub(crate) fn journal(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("journal.jsonl")).unwrap();
    let events = events(&text);
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], at, "the journal has no gap");
    }
    events
}

pub(crate) fn send(pid: u64, signal: Signal) -> bool {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()), signal).is_ok()
}

/// Everything on this machine that carries the marks of one of this home's servers, whatever it calls itself.
fn marked(home: &Home) -> Vec<String> {
    let state = home.state();
    let ours = |pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environ = String::from_utf8_lossy(&environ).into_owned();
        let folder = format!("XDG_STATE_HOME={}", state.display());
        let by_memory = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().any(|open| {
            std::fs::read_link(open.path()).is_ok_and(|link| {
                let link = link.display().to_string();
                link.starts_with("/memfd:ORCH_RUN=") && home_of(&link, home)
            })
        });
        environ.split('\0').any(|entry| entry == folder) || by_memory
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let lives = |pid: &u32| crate::launching::lives(*pid);
    pids.filter(ours)
        .filter(lives)
        .map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} {}", name.trim())
        })
        .collect()
}

/// Whether the server's id in a mark is that of a run of this home.
fn home_of(link: &str, home: &Home) -> bool {
    let id = link.trim_start_matches("/memfd:ORCH_RUN=").split('.').next().unwrap_or_default();
    home.results().join("runs").join(id).exists()
}

#[track_caller]
pub(crate) fn assert_nothing_left(home: &Home) {
    assert_eq!(home.ps(), [Value::Null; 0]);
    let limit = Instant::now() + Duration::from_secs(5);
    while !marked(home).is_empty() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(marked(home), [""; 0], "processes that are left");
    let servers = home.state().join("orch/servers");
    assert_eq!(std::fs::read_dir(servers).map_or(0, Iterator::count), 0, "folders under servers/");
}

/// The record as orch itself reads it: a kill in the first moment leaves a journal without `run.json`.
pub(crate) fn shown(home: &Home) -> Value {
    let ran = home.run(&["show", "latest", "--json"]).expect(0);
    serde_json::from_str(&ran.stdout).unwrap()
}
