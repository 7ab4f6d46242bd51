//! Whether the key that a host shows is one to trust: the files of known hosts, read as `ssh` reads them.

mod fault;
mod line;
pub(crate) mod pattern;

use std::io;
use std::path::{Path, PathBuf};

pub use fault::KeyFault;
pub(crate) use line::HostKey;
use line::{Line, Marker};

/// A file of this size is no list of hosts.
const MAX_BYTES: u64 = 64 << 20;

/// All that the files say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    files: Vec<PathBuf>,
    lines: Vec<(Place, Line)>,
}

/// Where a line stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, the first being 1.
    pub line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// The names by which a host stands in the files.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// With its port, if that is not the usual one.
    with_port: String,
    /// Without, where a port was left away.
    bare: Option<String>,
}

impl Names {
    /// Of a host that is reached under this name and port, or that has another name for its key.
    pub(crate) fn new(hostname: &str, port: u16, alias: Option<&str>) -> Self {
        match alias {
            // An alias stands there as it is, whatever the port.
            Some(alias) => Names { with_port: alias.to_lowercase(), bare: None },
            None if port == 22 => Names { with_port: hostname.to_lowercase(), bare: None },
            None => {
                let hostname = hostname.to_lowercase();
                Names { with_port: format!("[{hostname}]:{port}"), bare: Some(hostname) }
            }
        }
    }

    /// As it would be written into a file.
    pub(crate) fn written(&self) -> &str {
        &self.with_port
    }
}

impl Known {
    /// Reads the files. One that is not there says nothing; one that cannot be read is an error, since it may revoke a key.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self, (PathBuf, io::Error)> {
        let mut known = Known { files: files.to_vec(), lines: Vec::new() };
        for file in files {
            match known.file(file) {
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => return Err((file.clone(), error)),
                Ok(()) => {}
            }
        }
        Ok(known)
    }

    fn file(&mut self, file: &Path) -> io::Result<()> {
        let meta = std::fs::metadata(file)?;
        if meta.is_file() && meta.len() > MAX_BYTES {
            return Err(io::Error::other("it is too large"));
        }
        // A line in another encoding is a comment at best; the rest still counts.
        let bytes = std::fs::read(file)?;
        for (number, text) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let text = String::from_utf8_lossy(text);
            if let Some(line) = Line::read(text.trim_end_matches('\r')) {
                self.lines.push((Place { file: file.to_owned(), line: number + 1 }, line));
            }
        }
        Ok(())
    }

    fn of<'a>(&'a self, marker: Marker, name: &'a str) -> impl Iterator<Item = &'a (Place, Line)> {
        self.lines.iter().filter(move |(_, line)| line.marker == marker && line.names(name))
    }

    /// The algorithms of the keys that are known for a host: it is asked for one of those, or a key that is known would
    /// look unknown.
    pub(crate) fn algorithms(&self, names: &Names) -> Vec<String> {
        let mut algorithms = Vec::new();
        for name in [Some(&names.with_port), names.bare.as_ref()].into_iter().flatten() {
            for (_, line) in self.of(Marker::None, name) {
                if !algorithms.contains(&line.key.algorithm) {
                    algorithms.push(line.key.algorithm.clone());
                }
            }
            if !algorithms.is_empty() {
                break;
            }
        }
        algorithms
    }

    /// Whether there is an authority that signs this host's key.
    pub(crate) fn has_authority(&self, names: &Names) -> bool {
        self.each(names).any(|name| self.of(Marker::Authority, name).next().is_some())
    }

    fn each<'a>(&self, names: &'a Names) -> impl Iterator<Item = &'a str> {
        [Some(names.with_port.as_str()), names.bare.as_deref()].into_iter().flatten()
    }

    /// Whether the key that a host shows is to be trusted.
    pub(crate) fn check(&self, names: &Names, key: &HostKey) -> Result<(), KeyFault> {
        self.revoked(names, key)?;
        let mut other = None;
        for (place, line) in self.of(Marker::None, &names.with_port) {
            if line.key == *key {
                return Ok(());
            }
            // One of the same algorithm says more than one of another.
            if other.is_none() || line.key.algorithm == key.algorithm {
                other = Some((place, line));
            }
        }
        if let Some((place, line)) = other {
            return Err(KeyFault::Changed {
                shown: key.shown(),
                known: line.key.shown(),
                place: place.clone(),
                name: names.written().to_owned(),
            });
        }
        // A line without a port speaks for the key on any port, but does not say that it must be that one.
        let bare = names.bare.as_deref();
        if bare.is_some_and(|name| self.of(Marker::None, name).any(|(_, line)| line.key == *key)) {
            return Ok(());
        }
        Err(KeyFault::Unknown {
            shown: key.shown(),
            line: format!("{} {}", names.written(), key.written()),
            file: self.files.first().cloned().unwrap_or_else(|| PathBuf::from("~/.ssh/known_hosts")),
            accept: None,
        })
    }

    /// Whether a key, or that of the authority that signed it, must not be trusted.
    pub(crate) fn revoked(&self, names: &Names, key: &HostKey) -> Result<(), KeyFault> {
        for name in self.each(names) {
            if let Some((place, _)) = self.of(Marker::Revoked, name).find(|(_, line)| line.key == *key) {
                return Err(KeyFault::Revoked { shown: key.shown(), place: place.clone() });
            }
        }
        Ok(())
    }

    /// Whether an authority may sign this host's key.
    pub(crate) fn authority(&self, names: &Names, key: &HostKey) -> bool {
        self.each(names).any(|name| self.of(Marker::Authority, name).any(|(_, line)| line.key == *key))
    }
}

#[cfg(test)]
mod tests;
