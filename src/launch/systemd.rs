//! A systemd manager, the system's or the user's own, driven through `systemctl` and read through `journalctl`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{LaunchError, command};

/// Which manager has a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// The system's.
    #[default]
    System,
    /// The user's own: `systemctl --user`.
    User,
}

/// A unit as its manager tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// `active`, `activating`, `inactive`, `failed`, …
    pub active: String,
    /// `loaded`, `not-found`, …
    pub load: String,
    /// `running`, `auto-restart`, …
    pub sub: String,
    /// Its main process, while it has one.
    pub main_pid: Option<u32>,
    /// How often the manager has started it again.
    pub restarts: u64,
    /// The exit code of its main process, or the signal that ended it.
    pub status: Option<(Ended, i32)>,
    /// Since when it is active.
    pub since: Option<Timestamp>,
    /// Its control group, below the hierarchy's root.
    pub control_group: Option<String>,
}

/// How a main process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code.
    Code,
    /// By a signal.
    Signal,
}

impl UnitState {
    /// Whether it is up, or on its way.
    pub fn is_up(&self) -> bool {
        matches!(self.active.as_str(), "active" | "activating" | "reloading")
    }

    /// Whether there is such a unit.
    pub fn is_known(&self) -> bool {
        self.load != "not-found"
    }
}

impl std::fmt::Display for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Manager::System => "the system's systemd",
            Manager::User => "the user's systemd",
        })
    }
}

impl Manager {
    /// The manager that answers: for root the system's first, for anybody else their own.
    pub fn find() -> Option<Manager> {
        let order = match nix::unistd::geteuid().is_root() {
            true => &[Manager::System, Manager::User][..],
            false => &[Manager::User][..],
        };
        order.iter().copied().find(|manager| manager.answers())
    }

    /// Whether it runs. One that is still starting, or has failed units, does.
    pub fn answers(self) -> bool {
        let output =
            command::output(Command::new("systemctl").args(self.words()).arg("is-system-running"), command::ASK);
        output.is_ok_and(|output| {
            let text = String::from_utf8_lossy(&output.stdout);
            matches!(text.trim(), "running" | "degraded" | "starting" | "initializing" | "maintenance")
        })
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Manager::System => &[],
            Manager::User => &["--user"],
        }
    }

    /// Where units that a person or a program wrote are.
    pub fn folder(self) -> PathBuf {
        match self {
            Manager::System => PathBuf::from("/etc/systemd/system"),
            Manager::User => {
                let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
                // Without HOME the manager takes the home of the user's entry, so that is where it looks for units.
                let entry = || nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.dir);
                let home = || set("HOME").or_else(entry).unwrap_or_else(|| PathBuf::from("/"));
                set("XDG_CONFIG_HOME").unwrap_or_else(|| home().join(".config")).join("systemd/user")
            }
        }
    }

    fn systemctl(self, words: &[&str]) -> Result<Output, LaunchError> {
        let failed = |why: String| LaunchError::Systemd { what: self.shown(words), why };
        // A start and a stop wait for the unit, which the manager itself bounds.
        let limit = match words.first() {
            Some(&("start" | "stop")) => command::ACT,
            _ => command::ASK,
        };
        let output = command::output(Command::new("systemctl").args(self.words()).args(words), limit);
        let output = output.map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(output),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }

    fn shown(self, words: &[&str]) -> String {
        [self.words(), words].concat().join(" ")
    }

    /// Reads the unit files anew.
    pub fn reload(self) -> Result<(), LaunchError> {
        self.systemctl(&["daemon-reload"]).map(drop)
    }

    /// Starts a unit and returns when its process runs. A unit that is up stays as it is.
    pub fn start(self, unit: &str) -> Result<(), LaunchError> {
        // One that has failed too often is not started any more without this.
        let _ = self.systemctl(&["reset-failed", unit]);
        self.systemctl(&["start", unit]).map(drop)
    }

    /// Stops a unit and returns when nothing of it is left, or its own limit is over.
    pub fn stop(self, unit: &str) -> Result<(), LaunchError> {
        self.systemctl(&["stop", unit]).map(drop)
    }

    /// Has the unit started with the machine, or not any more.
    pub fn enable(self, unit: &str, on: bool) -> Result<(), LaunchError> {
        self.systemctl(&[if on { "enable" } else { "disable" }, unit]).map(drop)
    }

    /// What it knows of a unit.
    pub fn show(self, unit: &str) -> Result<UnitState, LaunchError> {
        const WANTED: &str = "--property=ActiveState,SubState,LoadState,MainPID,NRestarts,ExecMainCode,ExecMainStatus,\
                              ActiveEnterTimestamp,ControlGroup";
        let output = self.systemctl(&["show", "--timestamp=unix", WANTED, unit])?;
        Ok(parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// What the unit wrote in the last `seconds`, as its log has it.
    pub fn log_of_the_last(self, unit: &str, seconds: u64) -> Result<String, LaunchError> {
        let since = format!("--since=-{seconds}s");
        let words = [self.unit_word(), unit, "--output=cat", "--no-pager", "--quiet", &since];
        let failed = |why: String| LaunchError::Systemd { what: format!("journalctl {}", words.join(" ")), why };
        let output = command::output(Command::new("journalctl").args(words), command::ASK);
        let output = output.map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }

    fn unit_word(self) -> &'static str {
        match self {
            Manager::System => "--unit",
            Manager::User => "--user-unit",
        }
    }

    /// The words of a command that prints what a unit writes from a moment on, as long as it runs.
    pub fn follow(self, unit: &str, since: Timestamp) -> Vec<String> {
        let since = format!("--since=@{}.{:06}", since.as_second(), since.subsec_nanosecond().unsigned_abs() / 1000);
        [
            "journalctl",
            self.unit_word(),
            unit,
            "--output=cat",
            "--no-pager",
            "--quiet",
            "--follow",
            "--lines=all",
            &since,
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

fn parse(text: &str) -> UnitState {
    let found: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let word = |key: &str| found.get(key).copied().unwrap_or_default();
    let number = |key: &str| word(key).parse::<i64>().ok();
    // 1 is CLD_EXITED; 2 and 3 are CLD_KILLED and CLD_DUMPED; 0 is that nothing has ended yet.
    let status = match (number("ExecMainCode"), number("ExecMainStatus").and_then(|code| i32::try_from(code).ok())) {
        (Some(1), Some(code)) => Some((Ended::Code, code)),
        (Some(2 | 3), Some(signal)) => Some((Ended::Signal, signal)),
        _ => None,
    };
    let since = word("ActiveEnterTimestamp").strip_prefix('@').and_then(|seconds| seconds.parse::<i64>().ok());
    UnitState {
        active: word("ActiveState").to_owned(),
        load: word("LoadState").to_owned(),
        sub: word("SubState").to_owned(),
        main_pid: number("MainPID").and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0),
        restarts: number("NRestarts").and_then(|count| u64::try_from(count).ok()).unwrap_or(0),
        status,
        since: since.and_then(|seconds| Timestamp::from_second(seconds).ok()),
        control_group: Some(word("ControlGroup")).filter(|group| !group.is_empty()).map(str::to_owned),
    }
}

/// What systemd's own reader says against a unit; `None` where it is not here to be asked.
pub fn verify(name: &str, text: &str) -> Option<Result<(), String>> {
    let folder = tempfile::tempdir().ok()?;
    let path = folder.path().join(name);
    std::fs::write(&path, text).ok()?;
    let mut verify = Command::new("systemd-analyze");
    let output = command::output(verify.args(["verify", "--man=no"]).arg(&path), command::ASK).ok()?;
    if output.status.success() {
        return Some(Ok(()));
    }
    let said = String::from_utf8_lossy(&output.stderr).replace(&path.display().to_string(), name);
    // Of other units that it happens to read it complains too; only what it says of this one is about this text.
    let own: Vec<&str> = said.lines().filter(|line| line.contains(name)).collect();
    Some(if own.is_empty() { Ok(()) } else { Err(own.join("\n")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_manager_shows_is_read() {
        let state = parse(
            "MainPID=0\nNRestarts=2\nExecMainCode=2\nExecMainStatus=9\nActiveState=activating\nSubState=auto-restart\n\
             LoadState=loaded\nActiveEnterTimestamp=@1795984671\nControlGroup=/system.slice/x.service\n",
        );
        assert!(state.is_up() && state.is_known());
        assert_eq!((state.main_pid, state.restarts, state.status), (None, 2, Some((Ended::Signal, 9))));
        assert_eq!(state.since.unwrap().as_second(), 1_795_984_671);
        let gone = parse(
            "LoadState=not-found\nActiveState=inactive\nMainPID=0\nExecMainCode=0\nExecMainStatus=0\nActiveEnterTimestamp=\n",
        );
        assert!(!gone.is_known() && !gone.is_up());
        assert_eq!((gone.status, gone.since), (None, None));
    }
}
