//! What the stories about servers share: a private work folder, and a way to start `tests/data/servers/openai.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use orch::clock::Clock;
use orch::event::{Emit, EmitError, Event, Scope};
use orch::gate::log::{BarRule, FailureRule, LogRules, PhaseRule};
use orch::gate::{self, Conduct, GateError, LogGrammar, Pace, Ready};
use orch::launch::{self, LaunchError, Lease, Server, Start, WorkFolder};
use orch::profile::EngineKind;
use orch::render::{Rank, Readiness, StopRule};

/// The program under test.
pub(crate) const ORCH: &str = env!("CARGO_BIN_EXE_orch");

/// A private place: a work folder, a run's folder, and a folder where processes leave their pids.
pub(crate) struct Place {
    folder: PathBuf,
    pub(crate) work: WorkFolder,
    /// Removes the folder in the end; the one that made it.
    _made: Option<tempfile::TempDir>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let made = tempfile::tempdir().unwrap();
        std::fs::create_dir(made.path().join("pids")).unwrap();
        let mut place = Place::at(made.path().to_owned());
        place._made = Some(made);
        place
    }

    /// The place that another process has made.
    pub(crate) fn at(folder: PathBuf) -> Self {
        let work = WorkFolder::at(folder.join("orch")).unwrap();
        Place { folder, work, _made: None }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// The pids that the server and its workers have left, by what they are.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(self.folder.join("pids")).unwrap();
        entries.filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().ok()).collect()
    }

    /// Waits until so many processes have said that they are there.
    pub(crate) fn wait_for_pids(&self, count: usize) -> Vec<u32> {
        until("the server and its workers", || (self.pids().len() == count).then(|| self.pids()))
    }

    /// Runs `orch` with this work folder.
    pub(crate) fn orch(&self, words: &[&str]) -> Output {
        Command::new(ORCH).args(words).env("XDG_STATE_HOME", &self.folder).env("NO_COLOR", "1").output().unwrap()
    }

    pub(crate) fn ps(&self) -> Vec<serde_json::Value> {
        let output = self.orch(&["ps", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A server with these options.
    pub(crate) fn server(&self, options: &[&str]) -> Launch<'_> {
        let mut argv: Vec<String> = vec!["python3".into(), script().display().to_string()];
        let port = free_port();
        let pids = self.folder.join("pids");
        argv.extend(["--port".to_owned(), port.to_string(), "--pid-dir".to_owned(), pids.display().to_string()]);
        argv.extend(options.iter().map(|word| (*word).to_owned()));
        Launch {
            place: self,
            port,
            leases: vec![Lease::Port(port)],
            rank: Rank {
                node: "local".into(),
                argv,
                env: BTreeMap::new(),
                secrets: Vec::new(),
                files: Vec::new(),
                head: true,
            },
            stop: StopRule { signal: "TERM".into(), patience: Duration::from_secs(20) },
            abandon: Duration::from_secs(600),
            secrets: BTreeMap::new(),
            said: Said::default(),
        }
    }
}

impl Drop for Place {
    /// A story that failed half-way must not leave its servers to the next one.
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(self.orch(&["stop", "--all"]));
        }
    }
}

/// A launch in the making; the test changes what it is about.
pub(crate) struct Launch<'a> {
    pub(crate) place: &'a Place,
    pub(crate) port: u16,
    pub(crate) rank: Rank,
    pub(crate) stop: StopRule,
    pub(crate) abandon: Duration,
    pub(crate) leases: Vec<Lease>,
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) said: Said,
}

impl Launch<'_> {
    pub(crate) async fn start(&self) -> Result<Server, LaunchError> {
        let log = self.place.log();
        let start = Start {
            run: "20260101-120000-tiny-0420",
            rank: &self.rank,
            stop: &self.stop,
            abandon: self.abandon,
            leases: self.leases.clone(),
            log: &log,
            secrets: self.secrets.clone(),
            orch: Path::new(ORCH),
        };
        launch::start(start, &self.place.work, &self.said).await
    }
}

/// How the server's log reads, as an engine's definition would have it.
pub(crate) fn grammar() -> LogGrammar {
    let rules = LogRules {
        heartbeat: vec!["^INFO: \"GET /health".into()],
        phases: vec![PhaseRule {
            phase: "weights".into(),
            begin: Some("loading model".into()),
            end: Some("model loaded".into()),
            ..PhaseRule::default()
        }],
        bars: vec![BarRule {
            pattern: "Loading weights".into(),
            unit: "parts".into(),
            phase: "weights".into(),
            ..BarRule::default()
        }],
        failures: vec![
            FailureRule {
                kind: "oom_weights".into(),
                pattern: "OutOfMemoryError".into(),
                phase: Some("weights".into()),
                retry: Some("never".into()),
                remedy: Some("lower `context_length`".into()),
                ..FailureRule::default()
            },
            FailureRule {
                kind: "port_in_use".into(),
                pattern: "couldn't bind HTTP server socket".into(),
                retry: Some("later".into()),
                ..FailureRule::default()
            },
        ],
        facts: vec![r"listening on http://[^:]+:(?<port>\d+)".into()],
        ..LogRules::default()
    };
    LogGrammar::new(&rules).unwrap()
}

impl Launch<'_> {
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness {
            base_url: format!("http://127.0.0.1:{}", self.port),
            health: Some("/health".into()),
            models: Some("/v1/models".into()),
            model: Some("tiny".into()),
            log: None,
            tokens: 8,
            timeout_s: Some(60.0),
            grammar: EngineKind::Command,
        }
    }

    /// Waits for the server, and looks more often than a run does.
    pub(crate) async fn wait(&self, server: &Server, readiness: &Readiness) -> Result<Ready, GateError> {
        let pace = Pace {
            log: Duration::from_millis(20),
            probe: Duration::from_millis(20),
            unfit: Duration::from_millis(200),
        };
        let (log, clock) = (self.place.log(), Clock::system());
        let limit = readiness.timeout_s.map_or(Duration::from_secs(60), Duration::from_secs_f64);
        let conduct = Conduct { limit, limit_is_auto: false, ..Conduct::default() };
        gate::wait_at(pace, server, &log, readiness, &grammar(), &conduct, &clock, &self.said).await
    }
}

/// Events as they were emitted.
#[derive(Default)]
pub(crate) struct Said(pub(crate) Mutex<Vec<Event>>);

impl Said {
    /// The kinds, in order.
    pub(crate) fn kinds(&self) -> Vec<String> {
        let kind = |event: &Event| serde_json::to_value(event).unwrap()["event"].as_str().unwrap().to_owned();
        self.0.lock().unwrap().iter().map(kind).collect()
    }

    /// The fields of the events of a kind.
    pub(crate) fn of(&self, kind: &str) -> Vec<serde_json::Value> {
        let values =
            self.0.lock().unwrap().iter().map(|event| serde_json::to_value(event).unwrap()).collect::<Vec<_>>();
        values.into_iter().filter(|value| value["event"] == kind).map(|value| value["data"].clone()).collect()
    }
}

impl Emit for Said {
    fn emit(&self, _scope: Scope, event: Event) -> Result<(), EmitError> {
        self.0.lock().unwrap().push(event);
        Ok(())
    }
}

pub(crate) fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/servers/openai.py")
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Far longer than anything takes that is waited for, also beside a load of twenty on two cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Waits for something, far longer than it can take.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process runs; one that only waits to be reaped does not.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn kill(pid: u64, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}
