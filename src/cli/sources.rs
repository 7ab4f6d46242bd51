//! Where a command can be read from: what was typed, a script, a unit with its drop-ins, a process, an address. What
//! is read becomes commands; what they mean is the library's affair.

use std::path::{Path, PathBuf};

use crate::engine::{self, Definition, EngineError, Version};
use crate::import::{self, Beside, Draft, ImportError, Launch, shell, slurm, unit};
use crate::launch::running::{Running, listening_on};
use crate::profile::EngineKind;

use super::{Exit, Failure, server_pages};

/// No script or unit is larger.
const MAX_BYTES: u64 = 1 << 20;

/// Folders that units lie in, the first that has one counts.
const UNIT_FOLDERS: &[&str] = &[
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// What a command is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Words that were typed.
    Words(Vec<String>),
    /// A script or a unit.
    File(PathBuf),
    /// A process of this machine.
    Pid(u32),
    /// `HOST:PORT`, or a URL.
    Address(String),
}

/// A variable for the command that follows: `NAME=value`.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

impl Source {
    /// A file if there is one, or if it looks like one; else an address.
    pub(crate) fn of(text: &str) -> Source {
        let path = PathBuf::from(text);
        let is_unit = text.ends_with(".service");
        if path.exists() || is_unit || !looks_like_an_address(text) {
            Source::File(path)
        } else {
            Source::Address(text.to_owned())
        }
    }

    /// What a person calls it.
    pub(crate) fn name(&self) -> String {
        match self {
            Source::Words(words) => match words.iter().find(|word| !is_assignment(word)) {
                Some(first) if words.len() > 1 => format!("a command, {}", import::hide(first)),
                _ => "a command".to_owned(),
            },
            Source::File(path) => {
                path.file_name().map_or_else(|| path.display().to_string(), |name| name.display().to_string())
            }
            Source::Pid(pid) => format!("process {pid}"),
            Source::Address(address) => format!("the server at {}", import::hide(address)),
        }
    }

    /// The profile that it comes to.
    pub(crate) fn draft(&self, version: Option<Version>) -> Result<Draft, Failure> {
        let (launches, told) = match self {
            Source::Words(words) => (typed(words)?, None),
            Source::File(path) => (file(path)?, None),
            Source::Pid(pid) => (vec![process(*pid)?], None),
            Source::Address(address) => match server_pages::read(address)? {
                server_pages::Said::Command { launch, version } => (vec![*launch], version),
                server_pages::Said::Draft(draft) => return Ok(*draft),
            },
        };
        let beside = Beside { definitions: &definition, is_set: &is_set, version: version.or(told) };
        import::import(launches, &self.name(), &beside).map_err(refused)
    }
}

/// A failure of a text that a person gave.
pub(crate) fn refused(error: ImportError) -> Failure {
    Failure::new(Exit::Usage, error)
}

pub(crate) fn definition(kind: EngineKind) -> Result<Definition, EngineError> {
    engine::definition(kind, &engine::default_folders())
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| !value.is_empty())
}

fn looks_like_an_address(text: &str) -> bool {
    let plain = text.strip_prefix("http://").or(text.strip_prefix("https://")).unwrap_or(text).trim_end_matches('/');
    text.contains("://") || plain.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// One word with spaces is a line for a shell.
fn typed(words: &[String]) -> Result<Vec<Launch>, Failure> {
    match words {
        [line] if line.contains(char::is_whitespace) => shell::read(line, "the command", &text_of).map_err(refused),
        words => Ok(vec![Launch::of(words.to_vec())]),
    }
}

fn file(path: &Path) -> Result<Vec<Launch>, Failure> {
    let place = path.display().to_string();
    if place.ends_with(".service") {
        return Ok(vec![unit_file(path)?]);
    }
    let text = read(path)?;
    if text.lines().any(|line| line.trim() == "[Service]") {
        return Ok(vec![unit_file(path)?]);
    }
    let mut launches = shell::read(&text, &place, &text_of).map_err(refused)?;
    if let Some(note) = slurm::note(&text) {
        launches.iter_mut().for_each(|launch| launch.notes.insert(0, note.clone()));
    }
    Ok(launches)
}

/// A file as text, for what scripts and units name; `None` where it cannot be read.
fn text_of(path: &str) -> Option<String> {
    let path = Path::new(path);
    let small = std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_BYTES);
    small.then(|| std::fs::read_to_string(path).ok()).flatten()
}

fn read(path: &Path) -> Result<String, Failure> {
    let place = path.display();
    let meta = std::fs::metadata(path).map_err(|error| cannot(&place, &error))?;
    if meta.len() > MAX_BYTES {
        return Err(Failure::new(
            Exit::Usage,
            miette::miette!("{place} is larger than 1 MiB: that is no script and no unit"),
        ));
    }
    let bytes = std::fs::read(path).map_err(|error| cannot(&place, &error))?;
    String::from_utf8(bytes).map_err(|_| Failure::new(Exit::Usage, miette::miette!("{place} is no text")))
}

fn cannot(place: &dyn std::fmt::Display, error: &std::io::Error) -> Failure {
    Failure::new(
        Exit::Usage,
        miette::miette!(
            help = "give a file, HOST:PORT, `--pid N`, or a command after `--`",
            "cannot read {place}: {error}"
        ),
    )
}

/// A unit with what lies over it: `NAME.service.d/*.conf` beside it, for an instance also those of its template.
fn unit_file(asked: &Path) -> Result<Launch, Failure> {
    let path = find_unit(asked);
    let text = read(&path)?;
    let name = asked.file_name().map_or_else(String::new, |name| name.display().to_string());
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut drop_ins = Vec::new();
    for name in template(&name).into_iter().chain([name.clone()]) {
        let folder = folder.join(format!("{name}.d"));
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|ending| ending == "conf"));
        files.sort();
        for file in files {
            drop_ins.push(read(&file)?);
        }
    }
    let of_user =
        path.components().any(|part| part.as_os_str() == "user") && path.to_string_lossy().contains("systemd/user");
    let manager = unit::Manager {
        unit: name,
        home: if of_user { std::env::var("HOME").ok() } else { Some("/root".to_owned()) },
        user: if of_user { std::env::var("USER").ok() } else { Some("root".to_owned()) },
        machine: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()),
        of_user,
    };
    unit::read(&text, &drop_ins, &manager, &text_of).map_err(refused)
}

/// `name@.service` of `name@instance.service`.
fn template(name: &str) -> Option<String> {
    let (prefix, rest) = name.split_once('@')?;
    (rest != ".service").then(|| format!("{prefix}@.service"))
}

fn find_unit(asked: &Path) -> PathBuf {
    let name = asked.file_name().map(|name| name.display().to_string()).unwrap_or_default();
    let bare = asked.components().count() == 1;
    let home = std::env::var("HOME").ok().map(|home| format!("{home}/.config/systemd/user"));
    let beside = asked.parent().map(Path::to_owned).unwrap_or_default();
    let folders = std::iter::once(beside)
        .chain(home.into_iter().map(PathBuf::from))
        .chain(UNIT_FOLDERS.iter().map(PathBuf::from));
    let folders: Vec<PathBuf> = if bare { folders.collect() } else { folders.take(1).collect() };
    let names = || std::iter::once(name.clone()).chain(template(&name));
    let found =
        folders.iter().flat_map(|folder| names().map(move |name| folder.join(name))).find(|path| path.is_file());
    found.unwrap_or_else(|| asked.to_owned())
}

/// A process, or the nearest of those that started it whose command is that of a server: engines rename their own
/// processes.
pub(crate) fn process(pid: u32) -> Result<Launch, Failure> {
    let running = |pid: u32| {
        Running::of(pid)
            .map_err(|error| Failure::new(Exit::Usage, miette::miette!("cannot look at process {pid}: {error}")))
    };
    let first = running(pid)?;
    let mut at = first.clone();
    // No chain is longer, unless it changes while it is walked.
    for _ in 0..32 {
        if import::starts_an_engine(&launch_of(&at)) {
            return Ok(launch_of(&at));
        }
        let Some(parent) = at.parent() else { break };
        at = running(parent)?;
    }
    if first.words.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            miette::miette!("process {pid} has no command: it is one of the kernel, or has ended"),
        ));
    }
    Ok(launch_of(&first))
}

fn launch_of(running: &Running) -> Launch {
    let mut unread = Vec::new();
    let env = match &running.environment {
        Some(bytes) => import::process_environment(bytes),
        None => {
            unread
                .push(format!("the environment of process {} may not be read: what it sets is not known", running.pid));
            Default::default()
        }
    };
    Launch {
        words: running.words.clone(),
        env,
        folder: running.folder.clone(),
        programs: None,
        notes: Vec::new(),
        unread,
    }
}

/// The process of this machine that listens on a port and whose command starts an engine.
pub(crate) fn behind(port: u16) -> Option<Launch> {
    let pids = listening_on(port).unwrap_or_default();
    pids.into_iter().filter_map(|pid| process(pid).ok()).find(import::starts_an_engine)
}
