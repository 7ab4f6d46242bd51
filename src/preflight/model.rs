//! Looks whether the model is there, where it is a file.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::PreflightError;
use super::executable::expand;
use crate::engine::ModelIs;
use crate::profile::Profile;

/// Where the model is; `None` when the engine looks it up itself. A draft model must be there too.
pub(super) fn find(
    profile: &Profile,
    environment: Option<&Path>,
    is: ModelIs,
) -> Result<Option<PathBuf>, PreflightError> {
    let draft = profile.speculative.as_ref().and_then(|speculative| speculative.model.as_deref());
    if let Some(draft) = draft {
        one("speculative.model", draft, environment, is)?;
    }
    one("model", &profile.model.path, environment, is)
}

fn one(
    key: &'static str,
    model: &str,
    environment: Option<&Path>,
    is: ModelIs,
) -> Result<Option<PathBuf>, PreflightError> {
    let missing = |why: String, help: &str| {
        Err(PreflightError::ModelMissing { key, model: model.to_owned(), why, help: help.to_owned() })
    };
    if let Some(within) = model.strip_prefix("package:") {
        let Some(environment) = environment else {
            return missing(
                "nothing is installed that could hold it".to_owned(),
                "add the package to `engine.install`",
            );
        };
        if !stays_inside(within) {
            return missing(
                "it leads out of the packages".to_owned(),
                "write `package:NAME/FILE`, with the package's folder as NAME",
            );
        }
        let path = environment.join("site-packages").join(within);
        return match readable(&path) {
            Ok(()) => Ok(Some(path)),
            Err(why) => missing(why, &beside(&path)),
        };
    }
    let path = expand(model);
    let clearly = ["/", "./", "../", "~/"].iter().any(|start| model.starts_with(start)) || path.exists();
    match is {
        ModelIs::Anything => Ok(None),
        ModelIs::HubOrPath if !clearly => Ok(None),
        ModelIs::File if path.is_dir() => missing(
            format!("{} is a folder", path.display()),
            &format!("it must be a file; there are {}", inside(&path)),
        ),
        ModelIs::File | ModelIs::HubOrPath => match readable(&path) {
            Ok(()) => Ok(Some(path)),
            Err(why) => missing(why, &beside(&path)),
        },
    }
}

/// Whether a path in the packages has a folder and a file, and never goes up.
fn stays_inside(within: &str) -> bool {
    let path = Path::new(within);
    path.components().count() >= 2 && path.components().all(|part| matches!(part, Component::Normal(_)))
}

fn readable(path: &Path) -> Result<(), String> {
    let opened = match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => fs::read_dir(path).map(drop),
        Ok(meta) if meta.len() == 0 => return Err(format!("{} is empty", path.display())),
        Ok(_) => fs::File::open(path).map(drop),
        Err(error) => Err(error),
    };
    opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{} is not there", path.display()),
        _ => format!("{} cannot be read: {error}", path.display()),
    })
}

/// What there is in the folder of a path, in a sentence.
fn beside(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match folder.is_dir() {
        true => format!("{} holds {}", folder.display(), inside(folder)),
        false => format!("there is no folder {}", folder.display()),
    }
}

fn inside(folder: &Path) -> String {
    let Ok(entries) = fs::read_dir(folder) else { return "what you may not read".to_owned() };
    let mut names: Vec<String> =
        entries.filter_map(Result::ok).map(|entry| entry.file_name().display().to_string()).collect();
    names.sort_unstable();
    match names.len() {
        0 => "nothing".to_owned(),
        1..=8 => names.join(", "),
        more => format!("{}, and {} more", names[..8].join(", "), more - 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("site-packages/tiny")).unwrap();
        fs::write(folder.path().join("site-packages/tiny/tiny.gguf"), "GGUF").unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        folder
    }

    fn look(model: &str, environment: Option<&Path>, is: ModelIs) -> Result<Option<PathBuf>, String> {
        one("model", model, environment, is).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_of_a_package_is_found_in_the_environment() {
        let folder = environment();
        let found = look("package:tiny/tiny.gguf", Some(folder.path()), ModelIs::File).unwrap();
        assert_eq!(found, Some(folder.path().join("site-packages/tiny/tiny.gguf")));
    }

    #[test]
    fn a_missing_file_of_a_package_says_what_the_package_holds() {
        let folder = environment();
        let error = one("model", "package:tiny/large.gguf", Some(folder.path()), ModelIs::File).unwrap_err();
        match error {
            PreflightError::ModelMissing { why, help, .. } => {
                assert!(why.ends_with("site-packages/tiny/large.gguf is not there"), "{why}");
                assert!(help.ends_with("site-packages/tiny holds tiny.gguf"), "{help}");
            }
            error => panic!("{error}"),
        }
    }

    #[test]
    fn nothing_outside_the_packages_is_reached() {
        let folder = environment();
        for model in
            ["package:../secret", "package:tiny/../../secret", "package:/etc/passwd", "package:tiny", "package:"]
        {
            let error = look(model, Some(folder.path()), ModelIs::File).unwrap_err();
            assert_eq!(error, format!("cannot use the model `{model}` (`model`): it leads out of the packages"));
        }
    }

    #[test]
    fn a_hub_name_is_left_to_the_engine_and_a_path_is_not() {
        let folder = environment();
        assert_eq!(look("Qwen/Qwen3.6-27B", None, ModelIs::HubOrPath), Ok(None));
        assert_eq!(look("./no/such", None, ModelIs::Anything), Ok(None));
        let error = look("./no/such", None, ModelIs::HubOrPath).unwrap_err();
        assert_eq!(error, "cannot use the model `./no/such` (`model`): ./no/such is not there");
        let error = look("no-such.gguf", None, ModelIs::File).unwrap_err();
        assert_eq!(error, "cannot use the model `no-such.gguf` (`model`): no-such.gguf is not there");
        let path = folder.path().to_str().unwrap();
        assert_eq!(look(path, None, ModelIs::HubOrPath), Ok(Some(folder.path().to_owned())));
        let error = look(path, None, ModelIs::File).unwrap_err();
        assert!(error.ends_with("is a folder"), "{error}");
        fs::write(folder.path().join("empty.gguf"), "").unwrap();
        let error = look(&format!("{path}/empty.gguf"), None, ModelIs::File).unwrap_err();
        assert!(error.ends_with("empty.gguf is empty"), "{error}");
    }
}
