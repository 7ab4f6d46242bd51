//! `orch up --as unit` and the displacement of a unit. The first story runs against a STAND-IN of `systemctl`
//! (`tests/data/bin`), which really starts and stops the process; the second against a real systemd, a user's manager in
//! namespaces of its own, where this machine lets one be made.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::containers::{python, with_stand_ins};
use crate::deploy::{GOOD, SLOW, ledger, outage_s, write_profile};
use crate::launching::until;
use crate::strangers::Stranger;
use crate::support::{Home, Ran, free_port, skipped};

/// A home with a stand-in of the user's manager.
struct Manager {
    home: Home,
}

impl Manager {
    fn new() -> Self {
        let manager = Manager { home: Home::new() };
        std::fs::create_dir_all(manager.home.path("systemd")).unwrap();
        manager
    }

    fn stand_in(&self, command: &mut Command) {
        with_stand_ins(command, &self.home.path("no-engine"));
        command.env("STANDIN_SYSTEMD", self.home.path("systemd")).env("XDG_CONFIG_HOME", self.home.path("config"));
        command.env("TOKEN", "s3cret \"value\"");
    }

    fn run(&self, words: &[&str]) -> Ran {
        let mut command = self.home.orch(words);
        self.stand_in(&mut command);
        Ran::of(command.output().unwrap())
    }

    fn systemctl(&self, words: &[&str]) -> String {
        let mut command = Command::new("systemctl");
        self.stand_in(&mut command);
        String::from_utf8(command.arg("--user").args(words).output().unwrap().stdout).unwrap()
    }

    fn unit(&self, name: &str) -> std::path::PathBuf {
        self.home.path("config/systemd/user").join(name)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        for name in ["orch-serve.service", "production.service"] {
            self.systemctl(&["stop", name]);
        }
    }
}

#[test]
fn a_unit_of_a_stand_in_manager_is_replaced_and_put_back() {
    let manager = Manager::new();
    let port = free_port();
    let mut stranger = Stranger::beside(port);
    let profile = write_profile(&manager.home, port, GOOD, "secrets: [TOKEN]\n");
    let elsewhere = format!("port={}", free_port());
    manager.run(&["run", &profile, "--set", &elsewhere]).expect(0);
    manager.run(&["baseline", "set"]).expect(0);

    // A unit of that name that orch did not write is left alone.
    let unit = manager.unit("orch-serve.service");
    std::fs::create_dir_all(unit.parent().unwrap()).unwrap();
    std::fs::write(&unit, "[Service]\nExecStart=/bin/true\n").unwrap();
    let refused = manager.run(&["up", &profile]).expect(3);
    assert!(refused.stdout.contains("orch leaves it alone"), "{}", refused.stdout);
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), "[Service]\nExecStart=/bin/true\n");
    std::fs::remove_file(&unit).unwrap();

    // Without `--as` it is a unit, since a manager answers.
    let first = manager.run(&["up", &profile]).expect(0);
    assert!(first.stdout.contains("orch-serve.service serves at"), "{}", first.stdout);
    let text = std::fs::read_to_string(&unit).unwrap();
    assert!(text.contains("[X-Orch]\nDeployment=serve\n") && !text.contains("s3cret"), "{text}");
    let pid = main_pid(&manager.systemctl(&["show", "orch-serve.service"]));
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(String::from_utf8_lossy(&environ).contains("TOKEN=s3cret \"value\"\0"), "the secret reaches the server");
    let log = std::fs::read_to_string(manager.home.newest_run().join("server.log")).unwrap();
    assert!(log.contains("model loaded"), "{log}");
    let ps = manager.run(&["ps"]).stdout;
    assert!(ps.contains("unit") && ps.contains("orch-serve.service") && ps.contains("running"), "{ps}");

    let profile = write_profile(&manager.home, port, SLOW, "secrets: [TOKEN]\n");
    let worse = manager.run(&["up", &profile]).expect(6);
    assert!(worse.stdout.contains("-  --token-pace 0.012\n    +  --token-pace 0.06\n"), "{}", worse.stdout);
    assert!(worse.stdout.contains("the old one is put back") && outage_s(&worse) > 0.0, "{}", worse.stdout);
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), text, "the old unit, to the letter");
    assert_eq!(ledger(port), Some(1));

    manager.run(&["down", "serve"]).expect(0);
    assert!(!unit.exists());
    assert_eq!(ledger(port), None);
    stranger.assert_untouched();
}

#[test]
fn a_unit_of_a_stand_in_manager_makes_room_and_its_log_says_whether_it_is_idle() {
    let manager = Manager::new();
    let port = free_port();
    let server = std::env::current_dir().unwrap().join("tests/data/servers/openai.py");
    let text = format!("[Service]\nExecStart={} {} --port {port}\n", python(), server.display());
    let unit = manager.unit("production.service");
    std::fs::create_dir_all(unit.parent().unwrap()).unwrap();
    std::fs::write(&unit, text).unwrap();
    manager.systemctl(&["daemon-reload"]);
    manager.systemctl(&["start", "production.service"]);
    until("production", || ledger(port));
    let hosts = format!(
        "local: {{production: {{unit: production, manager: user, url: 'http://127.0.0.1:{port}', ready: 60s}}}}\n"
    );
    let hosts = manager.home.write("profiles/hosts.yaml", &hosts);
    let profile = write_profile(&manager.home, port, GOOD, "");
    let words = ["run", &profile, "--displace", "--hosts", hosts.to_str().unwrap()];
    // Its log has a GET and no generating request: nobody uses it.
    let ran = manager.run(&words).expect(0);
    let said = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("no generating request among") && said.contains("production.service serves outage"),
        "{said}"
    );
    // Now its log has the gate's own request, and that counts as one.
    let refused = manager.run(&words).expect(3);
    let said = refused.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("its log has 1 requests in the last 10 min"), "{said}");
    assert!(ledger(port).is_some());
}

fn main_pid(shown: &str) -> u32 {
    shown.lines().find_map(|line| line.strip_prefix("MainPID=")).unwrap().parse().unwrap()
}

/// What runs inside the namespaces: a real systemd as the user's manager, a journal, then the story.
const INSIDE: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/systemd/journal /run/u /run/log
chmod 700 /run/u
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
export XDG_RUNTIME_DIR=/run/u
/lib/systemd/systemd --user --unit=basic.target >/dev/null 2>&1 &
for i in $(seq 100); do systemctl --user is-system-running >/dev/null 2>&1 && break; sleep 0.1; done
[ "$(systemctl --user is-system-running)" = running ] || exit 77
up() { set +e; "$ORCH" up "$@"; code=$?; set -e; }
up "$GOOD" --no-check
echo "GOOD $code $(systemctl --user is-active orch-serve.service)"
cp "$XDG_CONFIG_HOME/systemd/user/orch-serve.service" "$KEPT"
up "$NEVER" --no-check
echo "NEVER $code $(systemctl --user is-active orch-serve.service) $(systemctl --user is-enabled orch-serve.service)"
cmp "$XDG_CONFIG_HOME/systemd/user/orch-serve.service" "$KEPT" && echo SAME
"$ORCH" ps
"$ORCH" down serve
echo "DOWN $(systemctl --user is-active orch-serve.service)"
systemctl --user exit || true
"#;

#[test]
fn a_unit_of_a_real_manager_in_namespaces_is_replaced_and_put_back() {
    if !nix::unistd::geteuid().is_root()
        || !Path::new("/lib/systemd/systemd").exists()
        || !Path::new("/sys/fs/cgroup/systemd").exists()
    {
        // Not a failure in CI: whether a machine lets one be made is none of this program's affair.
        if std::env::var_os("CI").is_none() {
            skipped("no systemd can be started in namespaces here");
        }
        return;
    }
    let home = Home::new();
    let port = free_port();
    let good = write_profile(&home, port, GOOD, "");
    let never =
        home.write("other/serve.yaml", &std::fs::read_to_string(&good).unwrap().replace(GOOD, "--exit-code, '3'"));
    let mut command = home.orch(&[]);
    let env: Vec<_> = command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
    command = Command::new("unshare");
    for (name, value) in env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .args([
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--cgroup",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "timeout",
            "120",
            "bash",
            "-c",
            INSIDE,
        ])
        .env("ORCH", env!("CARGO_BIN_EXE_orch"))
        .env("GOOD", &good)
        .env("NEVER", &never)
        .env("KEPT", home.path("kept.service"))
        .env("HOME", home.path("user"))
        .env("XDG_CONFIG_HOME", home.path("user/.config"))
        .stdin(Stdio::null());
    let ran = Ran::of(command.output().unwrap());
    if ran.code == 77 || ran.stderr.contains("unshare failed") || ran.stderr.contains("mount:") {
        if std::env::var_os("CI").is_none() {
            skipped("a systemd in namespaces does not come up here");
        }
        return;
    }
    let ran = ran.expect(0);
    for line in ["GOOD 0 active", "NEVER 4 active enabled", "SAME", "DOWN inactive"] {
        assert!(ran.stdout.lines().any(|found| found == line), "{line}:\n{}\n{}", ran.stdout, ran.stderr);
    }
    assert!(ran.stdout.contains("the old one is put back"), "{}", ran.stdout);
}
