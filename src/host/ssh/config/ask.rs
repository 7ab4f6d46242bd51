//! Asking the system's `ssh` what the person's configuration says of a host.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::target::Target;

/// `Match exec` runs programs, and one of them may hang.
const PATIENCE: Duration = Duration::from_secs(15);

/// What `ssh -G` prints: a key and its value a line. `None` where no `ssh` is installed.
pub(super) async fn ask(target: &Target, file: Option<&Path>) -> Result<Option<Vec<(String, String)>>, String> {
    let mut command = tokio::process::Command::new("ssh");
    command.arg("-G");
    if let Some(file) = file {
        command.arg("-F").arg(file);
    }
    if let Some(user) = &target.user {
        command.args(["-l", user]);
    }
    if let Some(port) = target.port {
        command.args(["-p", &port.to_string()]);
    }
    command.arg("--").arg(&target.name);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(PATIENCE, command.output()).await {
        Err(_) => return Err(format!("`ssh -G {target}` says nothing for {} s", PATIENCE.as_secs())),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(Err(error)) => return Err(format!("cannot run `ssh -G {target}`: {error}")),
        Ok(Ok(output)) => output,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let mut lines =
            said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Pseudo-terminal"));
        let line = lines.next().unwrap_or("it says nothing").to_owned();
        return Err(format!("`ssh -G {target}` fails: {line}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    Ok(Some(pairs.map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned())).collect()))
}
