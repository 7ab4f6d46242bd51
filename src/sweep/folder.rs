//! The folder of a sweep: `results/sweeps/<id>/` with its file, the profile it is laid over, its plan and its journal.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::journal::{Line, State, SweepEvent};
use super::plan::{Plan, Point};

/// Version of the journal's lines.
const VERSION: u32 = 1;

/// What can go wrong with a sweep's folder.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum SweepError {
    /// The system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    #[diagnostic(code(orch::sweep::io), help("sweeps are kept under the folder that `--results DIR` names"))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such sweep, or it cannot be read.
    #[error("no sweep `{text}` in {}: {reason}", folder.display())]
    #[diagnostic(code(orch::sweep::none), help("{known}"))]
    None {
        /// What was typed.
        text: String,
        /// Where it was looked for.
        folder: PathBuf,
        /// Why not.
        reason: String,
        /// Those that are there.
        known: String,
    },
    /// Another orch is at it.
    #[error("another orch is at work on {id}")]
    #[diagnostic(code(orch::sweep::busy), help("`orch sweep show {id}` tells how far it is"))]
    Busy {
        /// The sweep's id.
        id: String,
    },
}

impl SweepError {
    /// Whether what was typed is at fault.
    pub fn is_usage(&self) -> bool {
        matches!(self, SweepError::None { .. } | SweepError::Busy { .. })
    }
}

/// The folder of a sweep.
#[derive(Clone, Debug)]
pub struct SweepFolder {
    id: String,
    path: PathBuf,
}

/// Held by the one orch that writes. The kernel drops it with its holder.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl SweepFolder {
    /// Makes the folder of a new sweep or search.
    pub fn create(results: &Path, name: &str, at: Timestamp) -> Result<Self, SweepError> {
        let stamp = at.strftime("%Y%m%d-%H%M%S");
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let name: String = name.chars().take(60).map(plain).collect();
        let id = format!("{stamp}-{name}-{:04x}", rand::random::<u16>());
        let path = results.join("sweeps").join(&id);
        fs::create_dir_all(&path).map_err(|source| SweepError::Io { doing: "make", path: path.clone(), source })?;
        Ok(SweepFolder { id, path })
    }

    /// Opens one that is there: by its id, by `s` and the four hex digits of it, or `latest`. `file` is what it must hold.
    pub fn open(results: &Path, text: &str, file: &str) -> Result<Self, SweepError> {
        let sweeps = results.join("sweeps");
        let names = || {
            let entries = fs::read_dir(&sweeps).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut names: Vec<String> = names.filter(|name| sweeps.join(name).join(file).is_file()).collect();
            names.sort();
            names
        };
        let none = |reason: &str| {
            let known = match names().as_slice() {
                [] => "none was begun here".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            SweepError::None { text: text.to_owned(), folder: sweeps.clone(), reason: reason.to_owned(), known }
        };
        if text.contains(['/', '\\']) || text.starts_with('.') {
            return Err(none("that is not a sweep's id"));
        }
        let short = text.strip_prefix('s').filter(|digits| digits.len() == 4);
        let fits = |name: &String| name == text || short.is_some_and(|digits| name.ends_with(&format!("-{digits}")));
        let fitting: Vec<String> = match text {
            "latest" => names().pop().into_iter().collect(),
            _ => names().into_iter().filter(fits).collect(),
        };
        match fitting.as_slice() {
            [id] => Ok(SweepFolder { id: id.clone(), path: sweeps.join(id) }),
            [] => Err(none("there is none of that name")),
            _ => Err(none("several have that short name")),
        }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// `s0a4f`: what commands take.
    pub fn short(&self) -> String {
        format!("s{}", self.id.rsplit('-').next().unwrap_or(&self.id))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Takes the sweep for this process.
    pub fn lock(&self) -> Result<Lock, SweepError> {
        let path = self.file("journal.jsonl");
        let io = |source| SweepError::Io { doing: "lock", path: path.clone(), source };
        let file = OpenOptions::new().append(true).create(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(SweepError::Busy { id: self.id.clone() }),
            // A file system without locks: ids keep two orchs apart well enough.
            Err(TryLockError::Error(_)) => Ok(Lock { _file: file }),
        }
    }

    /// Whether some orch is at it.
    pub fn is_running(&self) -> bool {
        matches!(self.lock(), Err(SweepError::Busy { .. }))
    }

    /// Writes a file whole: a reader sees the old one or the new one.
    pub fn write(&self, name: &str, text: &str) -> Result<(), SweepError> {
        let path = self.file(name);
        let io = |source| SweepError::Io { doing: "write", path: path.clone(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let new = path.with_extension("new");
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&new, &path)).map_err(io)
    }

    /// The text of a file in it.
    pub fn read(&self, name: &str) -> Result<String, SweepError> {
        let path = self.file(name);
        fs::read_to_string(&path).map_err(|source| SweepError::Io { doing: "read", path, source })
    }

    /// Writes the plan.
    pub fn write_plan(&self, plan: &Plan) -> Result<(), SweepError> {
        let mut text = String::new();
        for point in &plan.0 {
            // A point is words alone, which JSON has a form for.
            text.push_str(&serde_json::to_string(point).unwrap_or_default());
            text.push('\n');
        }
        self.write("plan.jsonl", &text)
    }

    /// The plan.
    pub fn plan(&self) -> Result<Plan, SweepError> {
        Ok(Plan(lines::<Point>(&self.read("plan.jsonl")?)))
    }

    /// Adds a line to the journal, and syncs it to disk.
    pub fn add(&self, event: &SweepEvent, at: Timestamp) -> Result<(), SweepError> {
        let path = self.file("journal.jsonl");
        let write = || {
            let mut line = serde_json::to_vec(&Line { v: VERSION, at, event: event.clone() })?;
            // Half a line of a kill is ended first, so that this one stands alone.
            if torn(&path)? {
                line.insert(0, b'\n');
            }
            line.push(b'\n');
            let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_data()
        };
        write().map_err(|source| SweepError::Io { doing: "write", path: path.clone(), source })
    }

    /// What is known of it. Lines that do not read, such as half of one, tell nothing.
    pub fn state(&self) -> Result<State, SweepError> {
        Ok(State::fold(self.lines()?))
    }

    /// The journal's lines.
    pub fn lines(&self) -> Result<Vec<Line>, SweepError> {
        let path = self.file("journal.jsonl");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(lines(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(SweepError::Io { doing: "read", path, source }),
        }
    }
}

fn lines<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn torn(path: &Path) -> io::Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last[0] != b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_passed_by_and_one_orch_writes_at_a_time() {
        let results = tempfile::tempdir().unwrap();
        let at: Timestamp = "2026-11-29T15:15:03Z".parse().unwrap();
        let folder = SweepFolder::create(results.path(), "a/b", at).unwrap();
        folder.write("sweep.yaml", "base: b\n").unwrap();
        assert!(folder.id().starts_with("20261129-151503-a-b-"));
        let began = |point: &str| SweepEvent::PointBegan { point: point.into(), start: 1, attempt: 1 };
        folder.add(&began("a"), at).unwrap();
        let journal = folder.file("journal.jsonl");
        let mut text = fs::read_to_string(&journal).unwrap();
        text.push_str("{\"v\":1,\"at");
        fs::write(&journal, text).unwrap();
        folder.add(&began("b"), at).unwrap();
        assert_eq!(folder.state().unwrap().order, ["a", "b"]);
        let lock = folder.lock().unwrap();
        assert!(folder.is_running() && matches!(folder.lock(), Err(SweepError::Busy { .. })));
        drop(lock);
        assert!(!folder.is_running());
        for text in [folder.id().to_owned(), folder.short(), "latest".to_owned()] {
            assert_eq!(SweepFolder::open(results.path(), &text, "sweep.yaml").unwrap().id(), folder.id());
        }
        assert!(SweepFolder::open(results.path(), "latest", "tune.json").unwrap_err().is_usage());
        assert!(SweepFolder::open(results.path(), "../x", "sweep.yaml").is_err());
    }
}
