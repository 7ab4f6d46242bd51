//! How a process is started so that it outlives the login that started it.
//!
//! A session of its own is enough where a login ends nothing that it left behind. systemd may be told to end all of it
//! (`KillUserProcesses`): then root takes a scope of the system, and a user whose manager stays (`loginctl
//! enable-linger`) a scope of their own. A scope of a manager that does not stay would be worse than none.

use std::path::Path;
use std::process::Command;

/// What there is on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    /// systemd manages the machine.
    pub(super) systemd: bool,
    /// The user is root.
    pub(super) root: bool,
    /// What a login leaves behind is ended.
    pub(super) kills: bool,
    /// The user's manager stays without a login.
    pub(super) lingers: bool,
}

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A session of its own.
    Session,
    /// And a scope of the system.
    SystemScope,
    /// And a scope of the user's manager.
    UserScope,
}

impl Way {
    /// In a word, for whoever asked.
    pub(super) fn word(self) -> &'static str {
        match self {
            Way::Session => "session",
            Way::SystemScope | Way::UserScope => "scope",
        }
    }

    /// The words that come before the command.
    pub(super) fn before(self, unit: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Way::Session => return Vec::new(),
            Way::SystemScope => &["systemd-run", "--scope", "--quiet", "--collect"],
            Way::UserScope => &["systemd-run", "--user", "--scope", "--quiet", "--collect"],
        };
        let unit = format!("--unit={unit}");
        words.iter().map(|word| (*word).to_owned()).chain([unit, "--".to_owned()]).collect()
    }
}

/// The best way, and what a person should know where none is sure.
pub(super) fn way(login: Login) -> (Way, Option<String>) {
    match login {
        Login { systemd: false, .. } => (Way::Session, None),
        Login { root: true, .. } => (Way::SystemScope, None),
        Login { kills: false, .. } => (Way::Session, None),
        Login { lingers: true, .. } => (Way::UserScope, None),
        _ => {
            let text = "this host ends what a login leaves behind (KillUserProcesses), and this user's manager does not \
                        stay: the run may end with the connection; `loginctl enable-linger` there lets it stay";
            (Way::Session, Some(text.to_owned()))
        }
    }
}

/// What there is here.
pub(super) fn login() -> Login {
    let systemd = Path::new("/run/systemd/system").is_dir();
    let root = nix::unistd::geteuid().is_root();
    if !systemd || root {
        return Login { systemd, root, ..Login::default() };
    }
    let property = [
        "get-property",
        "org.freedesktop.login1",
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
        "KillUserProcesses",
    ];
    let own = nix::unistd::geteuid().to_string();
    Login {
        systemd,
        root,
        kills: says("busctl", &property).is_some_and(|text| text.trim() == "b true"),
        lingers: says("loginctl", &["show-user", &own, "--property=Linger", "--value"])
            .is_some_and(|text| text.trim() == "yes"),
    }
}

fn says(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).stdin(std::process::Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_taken_only_where_it_lasts_longer_than_a_session() {
        let plain = Login { systemd: true, ..Login::default() };
        assert_eq!(way(Login::default()), (Way::Session, None));
        assert_eq!(way(plain), (Way::Session, None));
        assert_eq!(way(Login { root: true, kills: true, ..plain }), (Way::SystemScope, None));
        assert_eq!(way(Login { kills: true, lingers: true, ..plain }), (Way::UserScope, None));
        let (way, warning) = way(Login { kills: true, ..plain });
        assert!(way == Way::Session && warning.unwrap().contains("enable-linger"));
    }

    #[test]
    fn the_words_of_a_scope_come_before_the_command() {
        assert_eq!(Way::Session.before("u"), [""; 0]);
        assert_eq!(
            Way::UserScope.before("orch-1").join(" "),
            "systemd-run --user --scope --quiet --collect --unit=orch-1 --"
        );
    }
}
