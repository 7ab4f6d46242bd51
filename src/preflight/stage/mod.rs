//! Brings what a server loads onto this machine before any clock starts: the model, the draft, the tokenizer. A name of
//! the hub is resolved to a commit and fetched by the hub client of the engine's own environment, so that the engine finds
//! it where it looks; a local folder is looked through.

mod hub;
pub(in crate::preflight) mod local;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::PreflightError;
use super::executable::expand;
use super::look::{Found, Teller};
use crate::engine::ModelIs;
use crate::profile::Profile;
use crate::render::Warning;

/// Something that a server loads, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Staged {
    /// The key of the profile.
    pub key: &'static str,
    /// As the profile names it.
    pub asked: String,
    /// Where it is.
    pub path: PathBuf,
    /// The commit that its revision is; `null` for what is local.
    pub commit: Option<String>,
    /// How many files it has.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
    /// Whether something of it was fetched just now.
    pub fetched: bool,
    /// Whether each file has the size that it should have, as far as somebody says one.
    pub checked: bool,
}

/// What a profile loads: key, name, revision.
fn wanted(profile: &Profile) -> Vec<(&'static str, &str, Option<&str>)> {
    let model = &profile.model;
    let draft = profile.speculative.as_ref().and_then(|speculative| speculative.model.as_deref());
    let mut all = vec![("model", model.path.as_str(), model.revision.as_deref())];
    all.extend(draft.map(|draft| ("speculative.model", draft, None)));
    all.extend(model.tokenizer.as_deref().map(|tokenizer| ("model.tokenizer", tokenizer, None)));
    all.dedup_by(|one, other| one.1 == other.1);
    all
}

/// Brings all of it here, and says what is where. Where the engine's environment has no hub client, the engine will fetch
/// it by itself while it starts: that is a warning.
pub(super) async fn stage(
    profile: &Profile,
    found: &Found,
    is: ModelIs,
    teller: &Teller<'_>,
) -> Result<Vec<Staged>, PreflightError> {
    let mut staged = Vec::new();
    if is == ModelIs::Anything {
        return Ok(staged);
    }
    let environment = found.environment.as_ref().map(|environment| environment.path.as_path());
    for (key, name, revision) in wanted(profile) {
        if let Some(path) = place(name, environment) {
            staged.push(local::look(key, name, &path)?);
            continue;
        }
        if is == ModelIs::File {
            continue;
        }
        let Some(python) = hub::python(found.executable.as_deref(), environment) else {
            teller.warn(not_staged(key, name, "its environment has no Python that orch can find"))?;
            continue;
        };
        let repository = hub::Repository { key, name, revision };
        match hub::fetch(&python, &repository, profile, teller).await {
            Ok(one) => staged.push(teller.check(&format!("staged {key}"), Ok(one), ToString::to_string)?),
            Err(hub::Failed::NoClient) => {
                teller.warn(not_staged(key, name, "its environment has no hub client (`huggingface_hub`)"))?;
            }
            Err(hub::Failed::Error(error)) => {
                let failed: Result<Staged, PreflightError> = Err(error);
                staged.push(teller.check(&format!("staged {key}"), failed, ToString::to_string)?);
            }
        }
    }
    Ok(staged)
}

fn not_staged(key: &str, name: &str, why: &str) -> Warning {
    Warning::new(
        "model_not_staged",
        format!(
            "`{key}`, {name}, was not fetched beforehand: {why}. If the engine has to fetch it, its start takes longer by that"
        ),
    )
}

/// `org/model at 0123abc, 12 files, 3.1 GiB`
impl std::fmt::Display for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let commit = self
            .commit
            .as_ref()
            .map_or_else(String::new, |commit| format!(" at {}", commit.get(..12).unwrap_or(commit)));
        let how = match (self.fetched, self.commit.is_some(), self.checked) {
            (true, ..) => ", fetched",
            (false, true, true) => ", as before",
            (false, true, false) => ", as before; the hub could not be asked whether it is whole",
            (false, false, _) => "",
        };
        write!(f, "{}{commit}, {} files, {}{how}", self.asked, self.files, crate::units::bytes_text(self.bytes))
    }
}

/// A local path, and a file of a package; `None` for a name of the hub.
fn place(name: &str, environment: Option<&Path>) -> Option<PathBuf> {
    if name.starts_with("package:") {
        return crate::render::packaged(name, environment);
    }
    let path = expand(name);
    let clearly = ["/", "./", "../", "~/"].iter().any(|start| name.starts_with(start));
    (clearly || path.exists()).then_some(path)
}
