//! Where profiles, layers, workloads and the files they name are found.

use std::path::{Component, Path, PathBuf};

use super::builtin;
use super::fault::Fault;
use super::nearest::nearest;
use super::read::{self, MAX_FILE_BYTES};

/// A file that was found, not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// On the disk.
    File(PathBuf),
    /// In the program, by its path below `profiles/`.
    BuiltIn(String),
}

impl Found {
    /// What a person calls it.
    pub(crate) fn name(&self) -> String {
        match self {
            Found::File(path) => path.display().to_string(),
            Found::BuiltIn(path) => format!("builtin:{path}"),
        }
    }

    /// What makes two ways of naming it the same.
    pub(crate) fn identity(&self) -> PathBuf {
        match self {
            // A path that cannot be resolved cannot be read either, which is told then.
            Found::File(path) => path.canonicalize().unwrap_or_else(|_| path.clone()),
            Found::BuiltIn(path) => PathBuf::from(format!("builtin:{path}")),
        }
    }

    /// Where relative paths in it begin.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match self {
            Found::File(path) => path.parent(),
            Found::BuiltIn(_) => None,
        }
    }

    /// The file's name without its ending.
    pub(crate) fn stem(&self) -> String {
        let path = match self {
            Found::File(path) => path.as_path(),
            Found::BuiltIn(path) => Path::new(path),
        };
        path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    }

    pub(crate) fn read(&self) -> Result<String, Fault> {
        match self {
            Found::File(path) => read::text(path, MAX_FILE_BYTES),
            Found::BuiltIn(path) => builtin::file(path)
                .map(str::to_owned)
                .ok_or_else(|| Fault::new("not_found", format!("there is no built-in file `{path}`"))),
        }
    }
}

/// Finds a profile by name or path.
pub(crate) fn profile(asked: &str, folders: &[PathBuf]) -> Result<Found, Fault> {
    if looks_like_a_path(asked) {
        let path = Path::new(asked);
        return match existing(path) {
            Some(path) => Ok(Found::File(path)),
            // What is there and is no file is found too, so that it can be said what it is.
            None if path.exists() => Ok(Found::File(path.to_owned())),
            None => Err(Fault::new("not_found", format!("there is no file `{asked}`")).in_file(path, None)),
        };
    }
    if let Some(path) = folders.iter().find_map(|folder| existing(&folder.join(asked))) {
        return Ok(Found::File(path));
    }
    let path = format!("{asked}.yaml");
    if builtin::file(&path).is_some() {
        return Ok(Found::BuiltIn(path));
    }
    let known = names(folders, "");
    let places = places(folders);
    let fault = Fault::new("not_found", format!("there is no profile `{asked}` in {places}"));
    Err(match nearest(asked, &known) {
        Some(near) => fault.help(format!("did you mean `{near}`?")),
        None if Path::new(asked).exists() => fault.help(format!("for the file write `./{asked}`")),
        None => fault.help("give a name from there, or the path of a file"),
    })
}

/// Finds a layer: a path relative to the file that names it, then a name in the profile folders.
pub(crate) fn layer(word: &str, from: Option<&Path>, folders: &[PathBuf]) -> Option<Found> {
    let mut places: Vec<PathBuf> = from.into_iter().map(|folder| folder.join(word)).collect();
    for folder in folders {
        places.push(folder.join(word));
        places.push(folder.join("layers").join(word));
    }
    if from.is_none() {
        places.push(PathBuf::from(word));
    }
    if let Some(path) = places.iter().find_map(|path| existing(path)) {
        return Some(Found::File(tidy(path)));
    }
    let word = word.trim_end_matches(".yaml");
    [format!("{word}.yaml"), format!("layers/{word}.yaml")]
        .into_iter()
        .find(|path| builtin::file(path).is_some())
        .map(Found::BuiltIn)
}

/// Finds a workload by name, near the file that names it, then in the profile folders, then in the program.
pub(crate) fn workload(name: &str, from: Option<&Path>, folders: &[PathBuf]) -> Option<Found> {
    let near = from.into_iter().chain(folders.iter().map(PathBuf::as_path));
    let found = near.map(|folder| folder.join("workloads").join(name)).find_map(|path| existing(&path));
    if let Some(path) = found {
        return Some(Found::File(path));
    }
    let path = format!("workloads/{name}.yaml");
    builtin::file(&path).is_some().then_some(Found::BuiltIn(path))
}

/// Finds a sweep by name or path.
pub(crate) fn sweep(asked: &str, folders: &[PathBuf]) -> Result<Found, Fault> {
    if looks_like_a_path(asked) {
        return profile(asked, folders);
    }
    if let Some(path) = folders.iter().find_map(|folder| existing(&folder.join("sweeps").join(asked))) {
        return Ok(Found::File(path));
    }
    let path = format!("sweeps/{asked}.yaml");
    if builtin::file(&path).is_some() {
        return Ok(Found::BuiltIn(path));
    }
    let known = names(folders, "sweeps");
    let fault = Fault::new("not_found", format!("there is no sweep `{asked}` in `sweeps/` of {}", places(folders)));
    Err(match nearest(asked, &known) {
        Some(near) => fault.help(format!("did you mean `{near}`?")),
        None => fault.help("give a name from there, or the path of a file"),
    })
}

/// Names of the profiles (or workloads) that could be meant.
pub(crate) fn names(folders: &[PathBuf], below: &str) -> Vec<String> {
    let mut names: Vec<String> = builtin::names(below).map(str::to_owned).collect();
    for folder in folders {
        // A folder that is not there has no names.
        let Ok(entries) = std::fs::read_dir(folder.join(below)) else { continue };
        names.extend(entries.flatten().filter_map(|entry| {
            let path = entry.path();
            let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
            if is_yaml { Some(path.file_stem()?.to_str()?.to_owned()) } else { None }
        }));
    }
    names.sort();
    names.dedup();
    names
}

/// Finds a file that a profile names: beside the file that names it, then from the current folder, then in the
/// profile folders.
pub(crate) fn companion(word: &str, from: Option<&Path>, folders: &[PathBuf]) -> Option<PathBuf> {
    let here = [PathBuf::from(word)];
    let beside = from.into_iter().map(|folder| folder.join(word));
    let shared = folders.iter().map(|folder| folder.join(word));
    beside.chain(here).chain(shared).find(|path| path.exists())
}

/// `profiles or the built-in ones`, for messages.
pub(crate) fn places(folders: &[PathBuf]) -> String {
    let mut places: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
    places.push("the built-in ones".to_owned());
    places.join(" or ")
}

/// `a/b/../c` as `a/c`, when that is the same file.
fn tidy(path: PathBuf) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match (part, tidy.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(_))) => {
                tidy.pop();
            }
            (Component::CurDir, _) => {}
            (part, _) => tidy.push(part),
        }
    }
    // With a link to a folder in it, `b/..` is not where it seems to be.
    let is_same =
        |one: &Path, other: &Path| matches!((one.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if is_same(&path, &tidy) { tidy } else { path }
}

fn looks_like_a_path(word: &str) -> bool {
    word.contains('/') || word.ends_with(".yaml") || word.ends_with(".yml")
}

/// The path, or the path with `.yaml` after it, whichever is there.
pub(crate) fn existing(path: &Path) -> Option<PathBuf> {
    if path.is_file() || has_yaml_ending(path) && path.exists() {
        return Some(path.to_owned());
    }
    let with_ending = ["yaml", "yml"].into_iter().find_map(|ending| {
        let mut name = path.file_name()?.to_owned();
        name.push(".");
        name.push(ending);
        let path = path.with_file_name(name);
        path.exists().then_some(path)
    });
    with_ending.or_else(|| (path.exists() && !path.is_dir()).then(|| path.to_owned()))
}

fn has_yaml_ending(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}
