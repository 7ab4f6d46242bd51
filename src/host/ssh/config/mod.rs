//! How a host is reached, as the person's own `ssh` would reach it.

mod ask;
mod own;
mod target;
mod tokens;
mod unfollowed;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use target::Target;
use tokens::Tokens;

use crate::host::HostError;

/// How long a connection may take to be made, unless `ConnectTimeout` says so.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How often a silent host is asked whether it is there, and how often in vain before the line counts as lost, unless
/// `ServerAliveInterval` says so. A minute and more: a line that is cut for that long may still come back.
const ALIVE: (Duration, usize) = (Duration::from_secs(15), 5);

/// Everything that is needed to connect to one host.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What it was asked for as.
    pub(crate) name: String,
    /// The name that resolves.
    pub(crate) hostname: String,
    pub(crate) user: String,
    pub(crate) port: u16,
    pub(crate) identity_files: Vec<PathBuf>,
    /// Whether keys were named, and not only the names that `ssh` tries by itself.
    pub(crate) identities_only: bool,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) certificate_files: Vec<PathBuf>,
    /// The files of known hosts; the first is the one that the person's `ssh` would write.
    pub(crate) known_hosts: Vec<PathBuf>,
    /// The name in those files, if it is not the host's own.
    pub(crate) key_alias: Option<String>,
    /// The hosts on the way, nearest first.
    pub(crate) jump: Vec<Target>,
    /// A line for a shell, whose standard streams are the connection.
    pub(crate) proxy_command: Option<String>,
    pub(crate) connect_timeout: Duration,
    pub(crate) alive: (Duration, usize),
    /// The algorithms that may be used, as `ssh` names them; empty: those of orch.
    pub(crate) algorithms: Algorithms,
    /// What is said and not followed.
    pub(crate) warnings: Vec<String>,
}

/// Names of algorithms, each list as it was configured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Algorithms {
    pub(crate) ciphers: Vec<String>,
    pub(crate) kex: Vec<String>,
    pub(crate) macs: Vec<String>,
    pub(crate) host_keys: Vec<String>,
}

/// The settings of a host. `file` stands for `~/.ssh/config`.
pub(crate) async fn settings(target: &Target, file: Option<&Path>) -> Result<Settings, HostError> {
    let wrong = |why: String| HostError::Config {
        host: target.to_string(),
        why,
        help: "`ssh -G HOST` shows what ssh makes of its configuration; `--ssh-config FILE` names another".to_owned(),
    };
    let home = home();
    let said = match ask::ask(target, file).await.map_err(wrong)? {
        Some(said) => said,
        None => own::read(target, file, &home).map_err(wrong)?,
    };
    read(target, &said, &home).map_err(wrong)
}

fn read(target: &Target, said: &[(String, String)], home: &Path) -> Result<Settings, String> {
    let all = |key: &'static str| said.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str());
    let one = |key: &'static str| all(key).next().filter(|value| !value.is_empty() && *value != "none");
    let mut tokens = Tokens::new(home);
    tokens.set('n', target.name.as_str());
    tokens.set('h', target.name.as_str());
    let hostname = one("hostname").map_or(Ok(target.name.clone()), |name| tokens.expand(name))?;
    let hostname = hostname.trim_start_matches('[').trim_end_matches(']').to_owned();
    tokens.set('h', hostname.as_str());
    let user = target.user.clone().or(one("user").map(str::to_owned)).unwrap_or_else(tokens::local_user);
    tokens.set('r', user.as_str());
    let port = match (target.port, one("port")) {
        (Some(port), _) => port,
        (None, Some(port)) => port.parse().map_err(|_| format!("`Port {port}` is no port"))?,
        (None, None) => 22,
    };
    tokens.set('p', port.to_string());
    let key_alias = one("hostkeyalias").map(str::to_owned);
    tokens.set('k', key_alias.as_deref().unwrap_or(&target.name));
    tokens.set('j', one("proxyjump").unwrap_or_default());

    // Names that `ssh` tries by itself carry no tokens, so one that cannot be read was written by somebody.
    let paths =
        |key| all(key).filter(|value| *value != "none").map(|value| tokens.path(value)).collect::<Result<Vec<_>, _>>();
    let mut identity_files = paths("identityfile")?;
    if all("identityfile").next().is_none() {
        identity_files = ["id_rsa", "id_ecdsa", "id_ed25519"].map(|name| home.join(".ssh").join(name)).to_vec();
    }
    let mut known_hosts = Vec::new();
    for (key, usual) in [
        ("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"),
        ("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"),
    ] {
        let written = all(key).next().unwrap_or(usual);
        for file in files(written).into_iter().filter(|file| file != "none") {
            known_hosts.push(tokens.path(&file)?);
        }
    }
    let jump = one("proxyjump").unwrap_or_default().split(',').map(str::trim).filter(|jump| !jump.is_empty());
    let jump = jump.map(Target::read).collect::<Result<Vec<_>, _>>()?;
    let proxy_command = one("proxycommand").filter(|_| jump.is_empty());
    let proxy_command = proxy_command.map(|command| tokens.expand(command)).transpose()?;
    let list = |key| -> Vec<String> {
        // A list that begins with `+`, `-` or `^` changes the defaults of `ssh`, which only `ssh -G` resolves.
        let written = one(key).filter(|list| !list.starts_with(['+', '-', '^']));
        written.unwrap_or_default().split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    Ok(Settings {
        name: target.to_string(),
        user,
        port,
        identity_files,
        identities_only: one("identitiesonly").is_some_and(yes),
        agent: agent(all("identityagent").next(), &tokens)?,
        certificate_files: paths("certificatefile")?,
        known_hosts,
        key_alias,
        jump,
        proxy_command,
        connect_timeout: seconds(one("connecttimeout"))?.unwrap_or(CONNECT_TIMEOUT),
        alive: (
            seconds(one("serveraliveinterval"))?.unwrap_or(ALIVE.0),
            one("serveralivecountmax")
                .filter(|_| one("serveraliveinterval").is_some_and(|value| value != "0"))
                .and_then(|count| count.parse().ok())
                .unwrap_or(ALIVE.1),
        ),
        algorithms: Algorithms {
            ciphers: list("ciphers"),
            kex: list("kexalgorithms"),
            macs: list("macs"),
            host_keys: list("hostkeyalgorithms"),
        },
        warnings: unfollowed::warnings(said, &target.to_string()),
        hostname,
    })
}

/// The socket of the agent that is to be asked.
fn agent(written: Option<&str>, tokens: &Tokens) -> Result<Option<PathBuf>, String> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match written {
        None | Some("SSH_AUTH_SOCK") => Ok(of("SSH_AUTH_SOCK")),
        Some("none") => Ok(None),
        Some(written) => match written.strip_prefix('$').filter(|name| !name.starts_with('{')) {
            Some(name) => Ok(of(name)),
            None => tokens.path(written).map(Some),
        },
    }
}

/// File names with blanks between, of which some may hold blanks: `ssh -G` prints no quotes. What begins like no path goes
/// on with the one before.
fn files(written: &str) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    for word in written.split_whitespace() {
        match files.last_mut() {
            Some(before) if !word.starts_with(['/', '~', '%', '$', '.']) && word != "none" => {
                before.push(' ');
                before.push_str(word);
            }
            _ => files.push(word.to_owned()),
        }
    }
    files
}

fn yes(value: &str) -> bool {
    value.eq_ignore_ascii_case("yes") || value.eq_ignore_ascii_case("true")
}

/// A number of seconds, perhaps with a unit, as `ssh` takes them; 0 is none.
fn seconds(written: Option<&str>) -> Result<Option<Duration>, String> {
    let Some(written) = written else { return Ok(None) };
    let seconds = match written.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => crate::units::parse_duration(written).map_err(|_| format!("`{written}` is no span of time"))?,
    };
    Ok(Some(seconds).filter(|seconds| !seconds.is_zero()))
}

/// The person's home, as `ssh` finds it: by the list of users and not by the environment.
fn home() -> PathBuf {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    user.map(|user| user.dir).or_else(|| std::env::var_os("HOME").map(PathBuf::from)).unwrap_or_else(|| "/".into())
}

#[cfg(test)]
mod tests;
