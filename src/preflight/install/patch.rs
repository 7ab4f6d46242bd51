//! Patches: what they change, and that they fit exactly. A patch that is applied a little aside would be another engine
//! than the one that was meant, so no line may differ; only how far down the lines stand may.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::InstallError;

/// A patch file, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// As the profile names it.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// A file that a patch left in an environment, and what must be in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Patched {
    /// Below `site-packages`.
    file: PathBuf,
    /// SHA-256 of its content; `None` for a file that a patch took away.
    sha256: Option<String>,
}

impl Patch {
    /// Reads the patches of a profile.
    pub fn read(paths: &[PathBuf]) -> Result<Vec<Patch>, InstallError> {
        let one = |path: &PathBuf| {
            let text = fs::read_to_string(path).map_err(InstallError::io("read the patch", path))?;
            Ok(Patch { path: path.clone(), text })
        };
        paths.iter().map(one).collect()
    }

    /// SHA-256 of its text.
    pub fn sha256(&self) -> String {
        sha256(self.text.as_bytes())
    }

    /// `autotune.diff 3fa8c1d2`
    pub fn shown(&self) -> String {
        let name = self.path.file_name().map_or_else(String::new, |name| name.display().to_string());
        format!("{name} {}", &self.sha256()[..8])
    }

    fn refused(&self, file: &Path, why: impl Into<String>) -> InstallError {
        InstallError::Patch { patch: self.path.clone(), file: file.to_owned(), why: why.into() }
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Applies patches in their order to the packages below a folder, and says what is in each file now. Nothing is written
/// before all of a patch fits.
pub(super) fn apply(patches: &[Patch], packages: &Path) -> Result<Vec<Patched>, InstallError> {
    let mut patched: Vec<Patched> = Vec::new();
    for patch in patches {
        let changes = parse(patch)?;
        let strip = strip(patch, &changes, packages)?;
        let mut results = Vec::new();
        for change in &changes {
            results.push(change.result(patch, strip, packages)?);
        }
        for (file, content) in results {
            let path = packages.join(&file);
            write(&path, content.as_deref()).map_err(InstallError::io("patch", &path))?;
            patched.retain(|known| known.file != file);
            patched.push(Patched { file, sha256: content.map(|content| sha256(content.as_bytes())) });
        }
    }
    Ok(patched)
}

/// That each patched file still is what the patches made of it.
pub(super) fn verify(patched: &[Patched], packages: &Path) -> Result<(), InstallError> {
    for Patched { file, sha256: wanted } in patched {
        let path = packages.join(file);
        let found = match fs::read(&path) {
            Ok(bytes) => Some(sha256(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(InstallError::io("read", &path)(error)),
        };
        if found != *wanted {
            return Err(InstallError::Unpatched { path });
        }
    }
    Ok(())
}

/// A new file under the name, since the old one may be a second name of a file that other environments share; and no
/// compiled form of what it was.
fn write(path: &Path, content: Option<&str>) -> io::Result<()> {
    match content {
        Some(content) => {
            let mode = fs::metadata(path).map_or(0o644, |meta| meta.permissions().mode() & 0o7777);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            crate::host::write_whole(path, content.as_bytes(), crate::host::Mode(mode))?;
        }
        None => fs::remove_file(path)?,
    }
    let (Some(folder), Some(stem)) = (path.parent(), path.file_stem()) else { return Ok(()) };
    let Ok(entries) = fs::read_dir(folder.join("__pycache__")) else { return Ok(()) };
    let head = format!("{}.", stem.display());
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&head)) {
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

/// What a patch does to one file.
#[derive(Debug)]
struct Change<'a> {
    /// Its path before; `None` for a new file.
    before: Option<PathBuf>,
    /// Its path after; `None` for one that goes.
    after: Option<PathBuf>,
    hunks: Vec<Hunk<'a>>,
}

#[derive(Debug)]
struct Hunk<'a> {
    /// The first line that it is about, from 1.
    line: usize,
    old: Vec<&'a str>,
    new: Vec<&'a str>,
    /// Whether the last line of the new text ends without a line's end.
    open_end: bool,
}

/// Reads a unified diff, as `diff -u` and `git diff` write it.
fn parse(patch: &Patch) -> Result<Vec<Change<'_>>, InstallError> {
    let nowhere = Path::new("");
    let mut changes: Vec<Change<'_>> = Vec::new();
    let mut lines = patch.text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
            return Err(patch.refused(nowhere, "it changes a binary file, which orch does not do"));
        }
        if line.starts_with("rename from ") || line.starts_with("copy from ") {
            return Err(patch.refused(nowhere, "it renames a file: write it as one that goes and one that comes"));
        }
        if let Some(before) = line.strip_prefix("--- ")
            && let Some(after) = lines.peek().and_then(|next| next.strip_prefix("+++ "))
        {
            lines.next();
            changes.push(Change { before: named(before), after: named(after), hunks: Vec::new() });
        } else if let Some(head) = line.strip_prefix("@@ ") {
            let Some(change) = changes.last_mut() else {
                return Err(
                    patch.refused(nowhere, "it changes lines before it names a file (`--- a/FILE`, `+++ b/FILE`)")
                );
            };
            let file = change.after.clone().or(change.before.clone()).unwrap_or_default();
            let Some((line, old, new)) = counts(head) else {
                return Err(patch.refused(&file, format!("`@@ {head}` names no lines")));
            };
            let mut hunk = Hunk { line, old: Vec::new(), new: Vec::new(), open_end: false };
            while hunk.old.len() < old || hunk.new.len() < new {
                let Some(line) = lines.next() else {
                    return Err(patch.refused(&file, "it ends in the middle of a change"));
                };
                hunk.take(line)
                    .ok_or_else(|| patch.refused(&file, "a line of a change begins with none of ` `, `-` and `+`"))?;
            }
            while lines.peek().is_some_and(|line| line.starts_with('\\')) {
                let last_is_new = hunk.new.len() == new;
                hunk.open_end |= last_is_new;
                lines.next();
            }
            change.hunks.push(hunk);
        }
    }
    if changes.iter().all(|change| change.hunks.is_empty()) {
        return Err(patch.refused(nowhere, "it is no unified diff (`diff -u`, `git diff`)"));
    }
    Ok(changes)
}

impl<'a> Hunk<'a> {
    fn take(&mut self, line: &'a str) -> Option<()> {
        match line.as_bytes().first() {
            Some(b' ') => {
                self.old.push(&line[1..]);
                self.new.push(&line[1..]);
            }
            Some(b'-') => self.old.push(&line[1..]),
            Some(b'+') => self.new.push(&line[1..]),
            // Editors take the space off an empty line.
            None => {
                self.old.push("");
                self.new.push("");
            }
            Some(b'\\') => {}
            Some(_) => return None,
        }
        Some(())
    }
}

/// `-12,5 +12,7 @@`: the line, and how many there were and are.
fn counts(head: &str) -> Option<(usize, usize, usize)> {
    let mut words = head.split(' ');
    let mut pair = |sign: char| -> Option<(usize, usize)> {
        let word = words.next()?.strip_prefix(sign)?;
        let (line, count) = word.split_once(',').unwrap_or((word, "1"));
        Some((line.parse().ok()?, count.parse().ok()?))
    };
    let ((line, old), (_, new)) = (pair('-')?, pair('+')?);
    Some((line, old, new))
}

/// The path of a `---` or `+++` line; a moment may follow it.
fn named(text: &str) -> Option<PathBuf> {
    let path = text.split('\t').next().unwrap_or(text).trim().trim_matches('"');
    (path != "/dev/null").then(|| PathBuf::from(path))
}

/// How many folders are taken off the paths of a patch, so that all its files are there: one made in a checkout has more
/// above the packages than one made beside them.
fn strip(patch: &Patch, changes: &[Change<'_>], packages: &Path) -> Result<usize, InstallError> {
    let fits = |strip: &usize| {
        let is_there = |path: &PathBuf| below(path, *strip).is_some_and(|path| packages.join(path).is_file());
        changes.iter().filter_map(|change| change.before.as_ref()).all(is_there)
    };
    let any_before = changes.iter().any(|change| change.before.is_some());
    let found = if any_before { (0..=4).find(fits) } else { Some(1) };
    found.ok_or_else(|| {
        let missing = changes
            .iter()
            .filter_map(|change| change.before.as_ref())
            .find(|path| !(0..=4).any(|strip| below(path, strip).is_some_and(|path| packages.join(path).is_file())));
        let missing = missing.cloned().unwrap_or_default();
        patch.refused(&missing, "the packages have no such file")
    })
}

/// A path without its first folders; `None` where none is left, or where it leads out of the packages.
fn below(path: &Path, strip: usize) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = path.components().filter(|part| !matches!(part, Component::CurDir)).collect();
    let rest = parts.get(strip..).filter(|rest| !rest.is_empty())?;
    rest.iter().all(|part| matches!(part, Component::Normal(_))).then(|| rest.iter().collect())
}

impl Change<'_> {
    /// The file below the packages, and its text after the change.
    fn result(&self, patch: &Patch, strip: usize, packages: &Path) -> Result<(PathBuf, Option<String>), InstallError> {
        let named = self.after.as_ref().or(self.before.as_ref());
        let outside = || patch.refused(named.map_or(Path::new(""), PathBuf::as_path), "it leads out of the packages");
        let file = named.and_then(|path| below(path, strip)).ok_or_else(outside)?;
        let path = packages.join(&file);
        let text = match &self.before {
            Some(_) => fs::read_to_string(&path).map_err(InstallError::io("read", &path))?,
            None if path.exists() => return Err(patch.refused(&file, "it makes a file that is there already")),
            None => String::new(),
        };
        let result = self.patched(&text).map_err(|why| patch.refused(&file, why))?;
        match &self.after {
            Some(_) => Ok((file, Some(result))),
            None if result.is_empty() => Ok((file, None)),
            None => Err(patch.refused(&file, "it takes the file away, and the file holds more than the patch knows")),
        }
    }

    fn patched(&self, text: &str) -> Result<String, String> {
        let ends_with_line = text.is_empty() || text.ends_with('\n');
        let lines: Vec<&str> = text.lines().collect();
        let mut out: Vec<&str> = Vec::new();
        let (mut at, mut shift) = (0_usize, 0_isize);
        let mut open_end = !ends_with_line;
        for (number, hunk) in self.hunks.iter().enumerate() {
            let wanted = (hunk.line.saturating_sub(usize::from(!hunk.old.is_empty()))).saturating_add_signed(shift);
            let found = place(&lines, at, wanted, &hunk.old).ok_or_else(|| {
                format!(
                    "change {} of the file (at line {}) does not fit: its lines are not there as the patch has them",
                    number + 1,
                    hunk.line
                )
            })?;
            shift += found as isize - wanted as isize;
            out.extend(&lines[at..found]);
            out.extend(&hunk.new);
            at = found + hunk.old.len();
            if at == lines.len() {
                open_end = hunk.open_end;
            }
        }
        out.extend(&lines[at..]);
        let mut text = out.join("\n");
        if !out.is_empty() && !open_end {
            text.push('\n');
        }
        Ok(text)
    }
}

/// Where lines stand: where they should, else at the only other place.
fn place(lines: &[&str], from: usize, wanted: usize, old: &[&str]) -> Option<usize> {
    let fits = |at: usize| lines.get(at..at + old.len()).is_some_and(|there| there == old);
    if wanted >= from && fits(wanted) {
        return Some(wanted);
    }
    if old.is_empty() {
        return None;
    }
    let mut others = (from..=lines.len().checked_sub(old.len())?).filter(|at| fits(*at));
    let only = others.next()?;
    others.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "import os\n\n\ndef tune():\n    return slow()\n\n\ndef main():\n    tune()\n";
    const PATCH: &str = "diff --git a/python/tiny/run.py b/python/tiny/run.py\n--- a/python/tiny/run.py\n+++ b/python/tiny/run.py\n\
                         @@ -4,2 +4,2 @@ import os\n def tune():\n-    return slow()\n+    return None\n";

    fn packages() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("tiny/__pycache__")).unwrap();
        fs::write(folder.path().join("tiny/run.py"), FILE).unwrap();
        fs::write(folder.path().join("tiny/__pycache__/run.cpython-312.pyc"), "old").unwrap();
        folder
    }

    fn patch(text: &str) -> Vec<Patch> {
        vec![Patch { path: "patches/tune.diff".into(), text: text.to_owned() }]
    }

    fn run(folder: &tempfile::TempDir) -> String {
        fs::read_to_string(folder.path().join("tiny/run.py")).unwrap()
    }

    #[test]
    fn a_patch_from_a_checkout_changes_the_installed_file_and_no_other_name_of_it() {
        let folder = packages();
        let cache = folder.path().join("cache.py");
        fs::hard_link(folder.path().join("tiny/run.py"), &cache).unwrap();
        let patched = apply(&patch(PATCH), folder.path()).unwrap();
        assert_eq!(run(&folder), FILE.replace("slow()", "None"));
        assert_eq!(fs::read_to_string(cache).unwrap(), FILE, "an installer's cache shares the file");
        assert!(!folder.path().join("tiny/__pycache__/run.cpython-312.pyc").exists());
        assert_eq!(patched[0].file, Path::new("tiny/run.py"));
        verify(&patched, folder.path()).unwrap();
        fs::write(folder.path().join("tiny/run.py"), FILE).unwrap();
        assert!(
            matches!(verify(&patched, folder.path()), Err(InstallError::Unpatched { path }) if path.ends_with("tiny/run.py"))
        );
    }

    #[test]
    fn lines_may_stand_further_down_and_not_be_others() {
        let folder = packages();
        fs::write(folder.path().join("tiny/run.py"), format!("# one\n# two\n{FILE}")).unwrap();
        apply(&patch(PATCH), folder.path()).unwrap();
        assert!(run(&folder).contains("return None"));
        let error = apply(&patch(PATCH), folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("tiny/run.py") && error.contains("change 1 of the file (at line 4) does not fit"),
            "{error}"
        );
    }

    #[test]
    fn nothing_is_written_when_one_of_its_files_does_not_fit() {
        let folder = packages();
        fs::write(folder.path().join("tiny/other.py"), "x\n").unwrap();
        let two = format!("{PATCH}--- a/python/tiny/other.py\n+++ b/python/tiny/other.py\n@@ -1 +1 @@\n-y\n+z\n");
        assert!(apply(&patch(&two), folder.path()).is_err());
        assert_eq!(run(&folder), FILE);
    }

    #[test]
    fn files_come_and_go() {
        let folder = packages();
        let both = "--- /dev/null\n+++ b/tiny/new.py\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n--- a/tiny/run.py\n+++ /dev/null\n@@ -1,9 +0,0 @@\n"
            .to_owned()
            + &FILE.lines().map(|line| format!("-{line}\n")).collect::<String>();
        let patched = apply(&patch(&both), folder.path()).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("tiny/new.py")).unwrap(), "a\nb");
        assert!(!folder.path().join("tiny/run.py").exists());
        verify(&patched, folder.path()).unwrap();
    }

    #[test]
    fn what_is_no_patch_or_leads_elsewhere_is_refused() {
        let folder = packages();
        for (text, why) in [
            ("hello\n", "no unified diff"),
            ("--- a/../../etc/x\n+++ b/../../etc/x\n@@ -1 +1 @@\n-a\n+b\n", "no such file"),
            ("--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+b\n", "leads out"),
            ("--- a/tiny/none.py\n+++ b/tiny/none.py\n@@ -1 +1 @@\n-a\n+b\n", "no such file"),
            ("--- a/tiny/run.py\n+++ b/tiny/run.py\n@@ -1,3 +1,3 @@\n import os\n", "ends in the middle"),
            ("@@ -1 +1 @@\n-a\n+b\n", "before it names a file"),
        ] {
            let error = apply(&patch(text), folder.path()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(run(&folder), FILE);
    }
}
