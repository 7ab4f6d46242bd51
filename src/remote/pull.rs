//! Brings the folder of a run back, whole or not at all.
//!
//! Each file is read by offset into a folder under a temporary name, and held against the hash that the host made of it;
//! only when all of them are there does the folder get its name. A record that is here already is left as it is, but one
//! of a run that was interrupted and has gone on there since.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};

use super::beside::ListedFile;
use super::{Door, Far, Line, LineEvent, RemoteError};
use crate::host::Host;
use crate::record::{RunId, Store};

/// What became of a run that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// It is here now.
    New,
    /// It was here already.
    There,
}

/// Brings a run that has ended into `store`. `folder` is where it is on the host. A lost line is opened anew, and what has
/// come by then is not read again.
pub async fn pull<D: Door>(
    line: &mut Line<D>,
    far: &Far,
    store: &Store,
    id: &RunId,
    folder: &Path,
    tell: &mut impl FnMut(LineEvent),
) -> Result<Pulled, RemoteError> {
    let target = store.run_path(id);
    let is_here = fs::symlink_metadata(&target).is_ok();
    let was_interrupted = || !store.is_running(id) && store.record(id).is_ok_and(|record| !record.complete);
    if is_here && !was_interrupted() {
        return Ok(Pulled::There);
    }
    let files: Vec<ListedFile> = loop {
        let words = ["files", "--run", id.as_str()];
        match far.ask(&line.host(), "list the files of a run", &words, Bytes::new()).await {
            Err(error) if error.is_lost() => line.again(&error, tell).await?,
            listed => break listed?,
        }
    };
    if is_here && !has_gone_on(&files, &target) {
        return Ok(Pulled::There);
    }
    let new = Incoming::make(&target)?;
    for file in &files {
        let path = new.file(&file.path)?;
        loop {
            match fetch(&line.host(), &folder.join(&file.path), &path, file.mode).await {
                Err(error) if error.is_lost() => line.again(&error, tell).await?,
                fetched => break fetched?,
            }
        }
        let got = sum(&path).map_err(failed("read", &path))?;
        if got != file.sha256 {
            return Err(RemoteError::Damaged { host: far.name().to_owned(), got, want: file.sha256.clone() });
        }
    }
    new.settle(&target, is_here)
}

/// Whether the journal there is another one than here.
fn has_gone_on(files: &[ListedFile], target: &Path) -> bool {
    let journal = files.iter().find(|file| file.path == Path::new(JOURNAL));
    journal.is_some_and(|file| sum(&target.join(JOURNAL)).is_ok_and(|here| here != file.sha256))
}

/// What tells of a run.
const JOURNAL: &str = "journal.jsonl";

/// Reads what of a file is not here yet.
async fn fetch<H: Host>(host: &H, from: &Path, to: &Path, mode: u32) -> Result<(), RemoteError> {
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(mode).open(to);
    let mut file = open.map_err(failed("write", to))?;
    let at = file.seek(SeekFrom::End(0)).map_err(failed("write", to))?;
    let mut blocks = host.read(&from.to_owned(), at).await?;
    while let Some(block) = blocks.next().await {
        file.write_all(&block?).map_err(failed("write", to))?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed("write", to))?;
    file.sync_all().map_err(failed("write", to))
}

fn sum(path: &Path) -> io::Result<String> {
    let mut hasher = Hashing(Sha256::new());
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A hash as something that is written to.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RemoteError {
    move |source| RemoteError::File { what, path: path.to_owned(), source }
}

/// A run's folder while it comes: taken away with all that is in it, unless it was settled.
struct Incoming(PathBuf);

impl Incoming {
    fn make(target: &Path) -> Result<Self, RemoteError> {
        let runs = target.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(runs).map_err(failed("make", runs))?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = runs.join(format!(".coming-{name}-{:08x}", rand::random::<u32>()));
        fs::create_dir(&path).map_err(failed("make", &path))?;
        Ok(Incoming(path))
    }

    /// Where a file goes. The host says its path: it must stay inside.
    fn file(&self, within: &Path) -> Result<PathBuf, RemoteError> {
        let path = self.0.join(within);
        if !within.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(failed("write", &path)(io::Error::other("it leads out of the run's folder")));
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed("make", parent))?;
        }
        Ok(path)
    }

    /// Gives the folder its name. What is of that name, and is to be replaced, is moved out of the way first.
    fn settle(self, target: &Path, replace: bool) -> Result<Pulled, RemoteError> {
        let sync = |path: &Path| File::open(path).and_then(|folder| folder.sync_all()).map_err(failed("write", path));
        sync(&self.0)?;
        let old = Incoming(self.0.with_extension("old"));
        if replace {
            fs::rename(target, &old.0).map_err(failed("rename", target))?;
        }
        // A folder takes the place of an empty one only: what another pull has brought meanwhile stays.
        match fs::rename(&self.0, target) {
            Ok(()) => {
                target.parent().map_or(Ok(()), sync)?;
                Ok(Pulled::New)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                Ok(Pulled::There)
            }
            Err(error) => Err(failed("write", target)(error)),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // After the renaming there is nothing of this name.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests;
