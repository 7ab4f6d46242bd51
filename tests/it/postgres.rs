//! A PostgreSQL of the test's own, in a temporary folder: made, started, stopped, started again, and gone with the test.
//!
//! It does not run as root. Where the tests do, it runs as the user `postgres`, else as whoever runs them. A shell beside it
//! ends it when the test goes away, however that ends.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::User;

use crate::support::{free_port, skipped};

/// A server, running or stopped.
pub(crate) struct Postgres {
    folder: tempfile::TempDir,
    bin: PathBuf,
    port: u16,
    more: String,
    server: Option<Child>,
}

/// Runs PostgreSQL until its standard input ends, which is when the test does.
const WATCH: &str = r#""$0" "$@" & server=$!; read -r _; kill -INT $server 2>/dev/null; wait $server"#;

impl Postgres {
    /// Makes and starts one that trusts everybody; `None` where PostgreSQL is not installed, which is a failure in CI.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["-A", "trust"], "")
    }

    /// The same with words for `initdb`, and settings for the server.
    pub(crate) fn start_with(words: &[&str], settings: &str) -> Option<Self> {
        let mut postgres = Self::make(words)?;
        postgres.set(settings);
        postgres.up();
        Some(postgres)
    }

    fn make(words: &[&str]) -> Option<Self> {
        let bin = match programs() {
            Ok(bin) => bin,
            Err(why) => {
                skipped(&why);
                return None;
            }
        };
        // A socket's path is short, and another user has to get there.
        let folder = tempfile::Builder::new().prefix("orch-pg-").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        if let Some(user) = other_user() {
            chown(folder.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
        let postgres = Postgres { folder, bin, port: free_port(), more: String::new(), server: None };
        std::fs::write(postgres.path("password"), "s3cret-of-ours\n").unwrap();
        let mut initdb = postgres.command("initdb");
        initdb.arg("-D").arg(postgres.path("data")).arg("--pwfile").arg(postgres.path("password"));
        done(initdb.args(["-U", "orch", "-N", "-E", "UTF8", "--locale=C", "--no-instructions"]).args(words));
        Some(postgres)
    }

    /// Starts it, and waits until it answers.
    pub(crate) fn up(&mut self) {
        let folder = self.path("");
        let mut server = self.as_user("sh");
        server.args(["-c", WATCH]).arg(self.bin.join("postgres")).arg("-D").arg(self.path("data"));
        server.args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]);
        server.arg("-c").arg(format!("unix_socket_directories={}", folder.display()));
        for setting in self.more.split_whitespace() {
            server.args(["-c", setting]);
        }
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        server.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        self.server = Some(server.spawn().unwrap());
        let since = Instant::now();
        let ready = || {
            let mut ready = Command::new(self.bin.join("pg_isready"));
            ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status().unwrap().success()
        };
        while !ready() {
            let log = || std::fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(since.elapsed() < Duration::from_secs(30), "PostgreSQL does not start: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Settings of the server from the next start on, as `name=value` with blanks between.
    pub(crate) fn set(&mut self, settings: &str) {
        settings.clone_into(&mut self.more);
    }

    /// Stops it.
    pub(crate) fn down(&mut self) {
        if let Some(mut server) = self.server.take() {
            drop(server.stdin.take());
            server.wait().unwrap();
        }
    }

    /// Makes a database, and returns its address, over TCP.
    pub(crate) fn database(&self, name: &str) -> String {
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        format!("postgres://orch@127.0.0.1:{}/{name}", self.port)
    }

    /// The address of a database over the socket.
    pub(crate) fn over_socket(&self, name: &str) -> String {
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://orch@{folder}:{}/{name}", self.port)
    }

    /// What a statement returns: a line a row, columns between bars.
    pub(crate) fn sql(&self, database: &str, statement: &str) -> String {
        let mut psql = Command::new(self.bin.join("psql"));
        psql.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string(), "-U", "orch", "-d", database]);
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", statement]);
        psql.env("PGPASSWORD", "s3cret-of-ours");
        String::from_utf8(done(&mut psql).stdout).unwrap().trim_end().to_owned()
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Gives a file to the server's user, for nobody else to read.
    pub(crate) fn own(&self, path: &Path) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if let Some(user) = other_user() {
            chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
    }

    fn command(&self, program: &str) -> Command {
        self.as_user(&self.bin.join(program).to_string_lossy())
    }

    fn as_user(&self, program: &str) -> Command {
        let mut command = match other_user() {
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", &user.name, "--", program]);
                command
            }
            None => Command::new(program),
        };
        command.current_dir(self.folder.path());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.down();
    }
}

/// The user that it runs as, where it may not run as this one.
fn other_user() -> Option<User> {
    nix::unistd::geteuid().is_root().then(|| User::from_name("postgres").unwrap().expect("a user `postgres`"))
}

/// Where PostgreSQL's programs are: the newest of the packages', else those on the path.
fn programs() -> Result<PathBuf, String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").is_file())
        .collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || std::env::split_paths(&path).find(|folder| folder.join("initdb").is_file());
    let bin = found.pop().map(|(_, bin)| bin).or_else(on_path);
    let bin =
        bin.ok_or("PostgreSQL is not installed: tests/run installs it where it may, else the package `postgresql`")?;
    if nix::unistd::geteuid().is_root() && !matches!(User::from_name("postgres"), Ok(Some(_))) {
        return Err("PostgreSQL does not run as root, and there is no user `postgres`".to_owned());
    }
    Ok(bin)
}

/// Runs a command that must do what it should.
fn done(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
