//! The program that is put on a host: this one, or a build that a person names.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::RemoteError;
use crate::host::{self, Mode};

/// This program, whatever lies at its path by now.
const OWN: &str = "/proc/self/exe";

/// A program that can be put on a host.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    shown: PathBuf,
    sha256: String,
    machine: String,
    version: String,
}

/// A hash that is known, and of which file: reading a large program takes longer than asking a host.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Remembered {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: i128,
    sha256: String,
}

impl Program {
    /// The one that runs, which says `version` of itself. `cache` is a folder in which its hash is kept.
    pub fn own(version: &str, cache: Option<&Path>) -> Result<Self, RemoteError> {
        let shown = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(OWN));
        Self::at(PathBuf::from(OWN), shown, version, cache.map(|folder| folder.join("own.sum")))
    }

    /// A build that a person names; it must be of the same version.
    pub fn runner(path: &Path, version: &str) -> Result<Self, RemoteError> {
        Self::at(path.to_owned(), path.to_owned(), version, None)
    }

    fn at(path: PathBuf, shown: PathBuf, version: &str, cache: Option<PathBuf>) -> Result<Self, RemoteError> {
        let failed = |source| RemoteError::File { what: "read", path: shown.clone(), source };
        let sha256 = sum(&path, cache.as_deref()).map_err(failed)?;
        let machine = machine(&path).map_err(failed)?;
        Ok(Program { path, shown, sha256, machine, version: version.to_owned() })
    }

    /// What it is called on a host: by its content, so that two of one name are the same.
    pub fn file_name(&self) -> String {
        format!("orch-{}", self.sha256)
    }

    /// Its SHA-256, in hex.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The processor it is for, as `uname -m` says it.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// What it says of itself with `--version`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where it lies here.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// The same, as a program for another processor: a script of a test is for all of them.
    #[cfg(test)]
    pub(super) fn passing_for(self, machine: &str) -> Self {
        Program { machine: machine.to_owned(), ..self }
    }

    /// All of it.
    pub fn bytes(&self) -> Result<Bytes, RemoteError> {
        let failed = |source| RemoteError::File { what: "read", path: self.shown.clone(), source };
        Ok(std::fs::read(&self.path).map_err(failed)?.into())
    }
}

fn sum(path: &Path, cache: Option<&Path>) -> std::io::Result<String> {
    let meta = std::fs::metadata(path)?;
    let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    let now = |sha256| Remembered { device: meta.dev(), inode: meta.ino(), bytes: meta.len(), modified_ns, sha256 };
    let kept = cache.and_then(|cache| serde_json::from_slice::<Remembered>(&std::fs::read(cache).ok()?).ok());
    if let Some(kept) = kept
        && kept == now(kept.sha256.clone())
    {
        return Ok(kept.sha256);
    }
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 256 << 10];
    loop {
        match file.read(&mut block)? {
            0 => break,
            count => hasher.update(&block[..count]),
        }
    }
    let sha256: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    // Kept where that is possible; without it the next one reads the program again.
    if let Some(cache) = cache
        && let Ok(text) = serde_json::to_vec(&now(sha256.clone()))
    {
        let _ = host::write_whole(cache, &text, Mode::PRIVATE);
    }
    Ok(sha256)
}

/// The processor that an ELF file is for.
fn machine(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut head = [0; 20];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut head)?;
    Ok(machine_of(&head))
}

fn machine_of(head: &[u8; 20]) -> String {
    if head[..4] != *b"\x7fELF" {
        return "no program".to_owned();
    }
    // Byte 5 tells in which order the bytes of a number stand.
    let number = match head[5] {
        2 => u16::from_be_bytes([head[18], head[19]]),
        _ => u16::from_le_bytes([head[18], head[19]]),
    };
    match number {
        3 => "i686".to_owned(),
        40 => "armv7l".to_owned(),
        62 => "x86_64".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "riscv64".to_owned(),
        21 => "ppc64le".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_of_a_program_is_read_off_its_head() {
        let mut head = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0";
        assert_eq!(machine_of(&head), "x86_64");
        head[18] = 183;
        assert_eq!(machine_of(&head), "aarch64");
        assert_eq!(machine_of(b"#!/bin/sh\necho hello"), "no program");
    }

    #[test]
    fn a_hash_is_kept_as_long_as_its_file_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (path, cache) = (folder.path().join("program"), folder.path().join("sum"));
        std::fs::write(&path, "one").unwrap();
        let one = sum(&path, Some(&cache)).unwrap();
        assert_eq!(one, "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
        let mut kept: Remembered = serde_json::from_slice(&std::fs::read(&cache).unwrap()).unwrap();
        kept.sha256 = "kept".to_owned();
        std::fs::write(&cache, serde_json::to_vec(&kept).unwrap()).unwrap();
        assert_eq!(sum(&path, Some(&cache)).unwrap(), "kept");
        std::fs::write(&path, "another").unwrap();
        assert_ne!(sum(&path, Some(&cache)).unwrap(), "kept");
    }

    #[test]
    fn this_program_is_one() {
        let own = Program::own("orch 1", None).unwrap();
        assert_eq!((own.machine(), own.sha256().len()), (std::env::consts::ARCH, 64));
        assert_eq!(own.file_name(), format!("orch-{}", own.sha256()));
    }
}
