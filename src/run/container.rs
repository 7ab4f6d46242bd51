//! A server in a container: the command of the plan becomes the client's, and how the container ended is read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::launch::docker::{self, Mark};
use crate::profile::{EngineKind, Profile, Via};
use crate::record::model::Failure;
use crate::render::docker::{Container, Gpus, Image, Mount, Secrets, replaced, words};
use crate::render::{Facts, File, Plan, Rank, Warning};

/// What stands around the command of a rank.
pub(super) struct Around<'a> {
    pub(super) profile: &'a Profile,
    pub(super) facts: &'a Facts,
    pub(super) image: &'a Image,
    /// Where the model is on this host.
    pub(super) model: Option<&'a Path>,
}

impl Around<'_> {
    /// The container of a server that this host shall run, without a name or a mark.
    pub(super) fn container(&self, plan: &Plan) -> Container {
        let Via::Docker { options, .. } = &self.profile.launch.via else { return self.bare(plan, &[]) };
        self.bare(plan, options)
    }

    fn bare(&self, plan: &Plan, options: &[String]) -> Container {
        let relative = Path::new(&self.profile.model.path).is_relative() && self.model.is_some();
        Container {
            name: String::new(),
            labels: BTreeMap::new(),
            image: self.image.clone(),
            options: options.to_vec(),
            gpus: gpus(self.profile.engine.kind, self.facts),
            mounts: mounts(self.profile.engine.kind, self.model),
            user: user(),
            folder: relative.then(|| std::env::current_dir().unwrap_or_default()),
            stop_signal: plan.stop.signal.clone(),
            stop_patience: plan.stop.patience,
            inherited: Vec::new(),
            secrets: Secrets::Inherited,
            stays: false,
        }
    }
}

/// The container that a profile asks for, when nobody has looked at the image; `None` when it asks for none.
pub fn container_of(profile: &Profile, facts: &Facts, plan: &Plan) -> Option<Container> {
    let Via::Docker { image, .. } = &profile.launch.via else { return None };
    let path = Path::new(&profile.model.path);
    let around = Around { profile, facts, image: &Image::assumed(image), model: path.is_absolute().then_some(path) };
    let mut container = around.container(plan);
    container.name = format!("orch-{}", profile.name);
    container.labels.insert(docker::DEPLOYMENT_LABEL.to_owned(), profile.name.clone());
    container.stays = true;
    Some(container)
}

/// Puts the container around the head's command: what the supervisor starts is the client, which passes signals on and
/// ends as the server does. The mark goes beside it, for whoever stops what is left.
pub(super) fn wrap(plan: &mut Plan, around: &Around<'_>, run: &str) {
    let mut container = around.container(plan);
    container.name = format!("orch-{run}");
    container.labels.insert(docker::RUN_LABEL.to_owned(), run.to_owned());
    // The supervisor gives the client the marks of a server, and the client gives them to the container.
    container.inherited = vec!["ORCH_RUN".to_owned(), "SPT_NOENV".to_owned(), "PYTHONUNBUFFERED".to_owned()];
    let Some(head) = plan.ranks.iter_mut().find(|rank| rank.head) else { return };
    if let Some(text) = replaced(&head.argv, around.image) {
        plan.warnings.push(Warning::new("entrypoint_replaced", text));
    }
    let mark = Mark { label: docker::RUN_LABEL.to_owned(), value: run.to_owned() };
    let content = json!(mark).to_string();
    *head = Rank {
        argv: words(head, &container),
        env: BTreeMap::new(),
        files: vec![File { path: PathBuf::from(docker::MARK_FILE), content }],
        ..head.clone()
    };
}

/// What provenance knows of an image.
pub(super) fn provenance(image: &Image) -> BTreeMap<String, Value> {
    [("image".to_owned(), json!({"asked": image.asked, "resolved": image.resolved, "entrypoint": image.entrypoint}))]
        .into()
}

/// A container that the kernel killed for its memory ended for that, whatever its log says.
pub(super) async fn look_why(failure: &mut Failure, run: &str) {
    let mark = Mark { label: docker::RUN_LABEL.to_owned(), value: run.to_owned() };
    // What cannot be asked leaves the failure as it was told.
    let found = tokio::task::spawn_blocking(move || docker::find(&mark)).await;
    let Ok(Ok(found)) = found else { return };
    for container in found {
        if container.oom_killed {
            "oom_host".clone_into(&mut failure.kind);
            failure.text = format!("{}; its container was killed for its memory (OOMKilled)", failure.text);
            failure.remedy =
                Some("give it more memory (`--memory` in `launch.via.docker.options`), or load less".to_owned());
        } else if !container.error.is_empty() {
            failure.text = format!("{}; the container engine says: {}", failure.text, container.error);
        }
    }
}

/// The GPUs of the facts; all, where the host has some and nobody has chosen.
fn gpus(kind: EngineKind, facts: &Facts) -> Gpus {
    let needs = matches!(kind, EngineKind::Sglang | EngineKind::Vllm | EngineKind::Trtllm);
    let any = !facts.gpus.is_empty() || Path::new("/dev/nvidiactl").exists();
    let uuids = facts.devices.clone();
    match (facts.assumed, any) {
        (true, _) if needs => Gpus::All,
        (false, true) if docker::gives_by_cdi() => {
            Gpus::Cdi(if uuids.is_empty() { vec!["all".to_owned()] } else { uuids })
        }
        (false, true) if uuids.is_empty() => Gpus::All,
        (false, true) => Gpus::These(uuids),
        _ => Gpus::None,
    }
}

/// The model, which nothing may change, and the hub's cache for engines that look models up themselves.
fn mounts(kind: EngineKind, model: Option<&Path>) -> Vec<Mount> {
    let model = model.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    match model {
        Some(path) => vec![Mount { path: whole_model(&path), writable: false }],
        None if matches!(kind, EngineKind::Sglang | EngineKind::Vllm | EngineKind::Trtllm) => {
            hub_cache().map(|path| Mount { path, writable: true }).into_iter().collect()
        }
        None => Vec::new(),
    }
}

/// The folder that holds all of a model: files of the hub's cache are links to `blobs/` beside `snapshots/`.
fn whole_model(path: &Path) -> PathBuf {
    let of_hub = path
        .ancestors()
        .find(|folder| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("models--")));
    match of_hub {
        Some(folder) => folder.to_owned(),
        None if path.is_dir() => path.to_owned(),
        None => path.parent().unwrap_or(path).to_owned(),
    }
}

fn hub_cache() -> Option<PathBuf> {
    let set = std::env::var_os("HF_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    set.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/huggingface")))
        .filter(|path| path.is_dir())
}

/// The user who runs orch, so that what a container writes is theirs; root is left to the image.
fn user() -> Option<String> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    (!user.is_root()).then(|| format!("{user}:{group}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_model_of_the_hub_is_mounted_and_of_a_file_its_folder() {
        let hub = Path::new("/c/hub/models--a--b/snapshots/0123/m.gguf");
        assert_eq!(whole_model(hub), Path::new("/c/hub/models--a--b"));
        assert_eq!(whole_model(Path::new("/models/m.gguf")), Path::new("/models"));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(whole_model(folder.path()), folder.path());
    }
}
