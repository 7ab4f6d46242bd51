//! The files of a run, for whoever takes them away.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Its path below the run's folder.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hex.
    pub sha256: String,
    /// Its permission bits.
    pub mode: u32,
}

/// All regular files below a folder, by path. Links are left out: what they lead to is not the run's.
pub fn files(folder: &Path) -> io::Result<Vec<ListedFile>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(place) = open.pop() {
        for entry in std::fs::read_dir(&place)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                found.push(listed(&entry.path(), folder)?);
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn listed(path: &Path, folder: &Path) -> io::Result<ListedFile> {
    let mut file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    let mut hasher = Sha256::new();
    let (mut block, mut bytes) = (vec![0; 256 << 10], 0);
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            break;
        }
        hasher.update(&block[..count]);
        bytes += count as u64;
    }
    let sha256 = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let path = path.strip_prefix(folder).unwrap_or(path).to_owned();
    Ok(ListedFile { path, bytes, sha256, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_listed_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("below")).unwrap();
        std::fs::write(folder.path().join("below/b"), "two").unwrap();
        std::fs::write(folder.path().join("a"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let found = files(folder.path()).unwrap();
        let told: Vec<_> = found.iter().map(|file| (file.path.to_str().unwrap(), file.bytes)).collect();
        assert_eq!(told, [("a", 0), ("below/b", 3)]);
        assert!(found[1].sha256.starts_with("3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"));
    }
}
