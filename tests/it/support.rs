//! What stories share: orch in a home of its own, and the installation of the real engine that `tests/run` makes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// orch with its own results and state folders, which are gone with it. Whatever a story left running is stopped first.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    /// A home without any engine.
    pub(crate) fn new() -> Self {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    /// A home that shares the engines which `tests/run` installed; `None` without them. In CI that is a failure.
    pub(crate) fn with_engine() -> Option<Self> {
        let Some(state) = std::env::var_os("ORCH_TEST_STATE") else {
            skipped("no engine is installed for the tests: run tests/run");
            return None;
        };
        let home = Home::new();
        let orch = home.state().join("orch");
        std::fs::create_dir_all(&orch).unwrap();
        std::fs::set_permissions(&orch, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(Path::new(&state).join("orch/envs"), orch.join("envs")).unwrap();
        Some(home)
    }

    /// `XDG_STATE_HOME`.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The results folder.
    pub(crate) fn results(&self) -> PathBuf {
        self.folder.path().join("results")
    }

    /// A path inside the home.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file inside the home.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The program, in the package's folder, with this home.
    pub(crate) fn orch(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orch"));
        command
            .args(words)
            .env("XDG_STATE_HOME", self.state())
            .env("ORCH_RESULTS", self.results())
            // Stories run side by side, and their numbers do not matter.
            .env("ORCH_MEASURE_SCOPE", self.folder.path())
            .env_remove("ORCH_STORE")
            .env_remove("NO_COLOR")
            .env_remove("COLUMNS")
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        Ran::of(self.orch(words).output().unwrap())
    }

    /// The newest run's folder.
    pub(crate) fn newest_run(&self) -> PathBuf {
        let mut runs: Vec<PathBuf> =
            std::fs::read_dir(self.results().join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
        // Two runs may begin in one second, which is all that a name tells.
        let begun = |run: &PathBuf| read_json(&run.join("run.json"))["started_at"].as_str().unwrap_or("").to_owned();
        runs.sort_by_cached_key(begun);
        runs.pop().expect("a run")
    }

    /// The newest run's record.
    pub(crate) fn record(&self) -> serde_json::Value {
        read_json(&self.newest_run().join("run.json"))
    }

    /// What of ours runs, as `orch ps` tells it.
    pub(crate) fn ps(&self) -> Vec<serde_json::Value> {
        let ran = self.run(&["ps", "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.orch(&["stop", "--all"]).output();
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Its exit code; 128 + the signal's number where a signal ended it.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        Ran {
            code: output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap()),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Holds the exit code against the expected one and shows all that was said where it differs.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }
}

/// A JSON file.
pub(crate) fn read_json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        .unwrap()
}

/// Says that a test is skipped, past the capture of its output; in CI a skip is a failure.
pub(crate) fn skipped(because: &str) {
    assert!(std::env::var_os("CI").is_none(), "skipped in CI, because {because}");
    not_chosen(because);
}

/// Says that a test is skipped which runs only by choice, in CI as well: what it needs is too large to be had everywhere.
pub(crate) fn not_chosen(because: &str) {
    use std::io::Write;
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(std::io::stderr().lock(), "{name}: skipped, because {because}");
}

/// A port that nothing listens on. Homes know nothing of each other's leases, so that `auto` would be the same port in
/// several tests at once.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
