//! OpenSSH servers of a test's own on loopback, made by `tests/lab/sshd`, and gone with the test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{free_port, skipped};

/// A folder with keys, configurations and servers.
pub(crate) struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    /// With all keys made; `None` where no server is installed, which is a failure in CI.
    pub(crate) fn new() -> Option<Self> {
        let sshd = Path::new("/usr/sbin/sshd").exists() || Command::new("sshd").arg("-V").output().is_ok();
        if !sshd || Command::new("ssh-keygen").arg("-?").output().is_err() {
            skipped("there is no OpenSSH server: install the package `openssh-server`");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("orch-lab-").tempdir_in("/tmp").unwrap();
        let made = Command::new("tests/lab/sshd").arg("keys").arg(folder.path()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(Lab { folder })
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// What a shell does as long as this lab is there, and no longer: nothing that a test lost stays behind.
    pub(crate) fn for_ever(&self) -> String {
        format!("while [ -d {} ]; do sleep 0.2; done", self.folder.path().display())
    }

    /// A server that is up, with these lines before its settings.
    pub(crate) fn serve(&self, name: &str, lines: &[&str]) -> Sshd {
        // Another test may take the port that was free a moment ago.
        for _ in 0..5 {
            if let Some(server) = self.serve_at(name, free_port(), lines) {
                return server;
            }
        }
        panic!("no server came up: {}", std::fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default());
    }

    /// A server on this port, if it comes up.
    pub(crate) fn serve_at(&self, name: &str, port: u16, lines: &[&str]) -> Option<Sshd> {
        let pid_file = self.path(&format!("{name}.pid"));
        let _ = std::fs::remove_file(&pid_file);
        let mut command = Command::new("tests/lab/sshd");
        command.arg("serve").arg(self.folder.path()).args([name, &port.to_string()]).args(lines);
        let mut script = command.stdin(Stdio::piped()).spawn().unwrap();
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(60) {
            if script.try_wait().unwrap().is_some() {
                return None;
            }
            let pid = std::fs::read_to_string(&pid_file).ok().and_then(|pid| pid.trim().parse().ok());
            if let Some(pid) = pid.filter(|_| greets(port)) {
                return Some(Sshd { script, pid: Pid::from_raw(pid), port });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = script.kill();
        let _ = script.wait();
        panic!("sshd does not come up");
    }

    /// The public part of a key, as it stands in a file: its algorithm and itself.
    pub(crate) fn public(&self, key: &str) -> String {
        let text = std::fs::read_to_string(self.path(&format!("{key}.pub"))).unwrap();
        text.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    /// The fingerprint of a key, as `ssh-keygen` shows it.
    pub(crate) fn fingerprint(&self, key: &str) -> String {
        let output = Command::new("ssh-keygen").arg("-lf").arg(self.path(&format!("{key}.pub"))).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    /// Makes the key of these servers known.
    pub(crate) fn knows(&self, servers: &[&Sshd]) {
        let key = self.public("host_ed25519");
        let lines: String = servers.iter().map(|server| format!("[127.0.0.1]:{} {key}\n", server.port)).collect();
        self.write("known_hosts", &lines);
    }

    /// A configuration of `ssh` with an entry for each of these names and ports, and more lines for each.
    pub(crate) fn config(&self, hosts: &[(&str, u16, &str)]) -> PathBuf {
        let mut text = String::new();
        for (name, port, more) in hosts {
            text += &format!("Host {name}\n  HostName 127.0.0.1\n  Port {port}\n{more}\n");
        }
        let folder = self.folder.path().display();
        text += &format!(
            "Host *\n  IdentityFile {folder}/client_ed25519\n  IdentitiesOnly yes\n  IdentityAgent none\n  \
             UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        );
        self.write("config", &text)
    }
}

/// Whether a server of SSH answers there.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    let mut greeting = [0; 4];
    let greeted = stream.read_exact(&mut greeting).is_ok() && &greeting == b"SSH-";
    let _ = stream.write_all(b"SSH-2.0-test\r\n");
    greeted
}

/// A running server.
pub(crate) struct Sshd {
    script: Child,
    pid: Pid,
    pub(crate) port: u16,
}

impl Sshd {
    /// Ends all of its sessions at once, as a machine that loses power would, but for the packets.
    pub(crate) fn kill_sessions(&self) {
        for pid in below(self.pid) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// Stops answering, or goes on.
    pub(crate) fn freeze(&self, frozen: bool) {
        let signal = if frozen { Signal::SIGSTOP } else { Signal::SIGCONT };
        for pid in below(self.pid) {
            let _ = kill(pid, signal);
        }
        kill(self.pid, signal).unwrap();
    }

    /// Ends it and its sessions.
    pub(crate) fn stop(self) {}
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let sessions = below(self.pid);
        drop(self.script.stdin.take());
        let _ = self.script.wait();
        for pid in sessions {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

/// All processes of `sshd` itself below one: not what runs in the sessions.
fn below(pid: Pid) -> Vec<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut all = Vec::new();
    for child in children.split_whitespace().filter_map(|child| child.parse().ok()).map(Pid::from_raw) {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        if name.starts_with("sshd") {
            all.push(child);
            all.extend(below(child));
        }
    }
    all
}

/// An agent of a test's own, which holds these keys.
pub(crate) struct Agent {
    agent: Child,
    pub(crate) socket: PathBuf,
}

impl Agent {
    pub(crate) fn with(lab: &Lab, keys: &[&str]) -> Self {
        let socket = lab.path("agent");
        let mut command = Command::new("ssh-agent");
        let agent = command.arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn().unwrap();
        let agent = Agent { agent, socket };
        let since = Instant::now();
        while !agent.socket.exists() {
            assert!(since.elapsed() < Duration::from_secs(60), "the agent does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
        // What asks for a passphrase: a program that says it.
        let ask = lab.write("ask", "#!/bin/sh\necho 'open sesame'\n");
        std::fs::set_permissions(&ask, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        for key in keys {
            let mut add = Command::new("ssh-add");
            add.arg("-q").arg(lab.path(key)).env("SSH_AUTH_SOCK", &agent.socket).env("SSH_ASKPASS", &ask);
            add.env("SSH_ASKPASS_REQUIRE", "force").env("DISPLAY", ":0").stdin(Stdio::null());
            assert!(add.status().unwrap().success());
        }
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}
