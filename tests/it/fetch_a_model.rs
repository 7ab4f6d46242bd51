//! What a server loads is here before it is started: by commit, with its sizes, from the hub or from a folder.
//!
//! No network: a stand-in for the hub client copies files from a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{Home, Ran};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

const CLIENT: &str = r#"
import os, shutil
class constants:
    HF_HUB_CACHE = os.environ["HF_HUB_CACHE"]
class RepositoryNotFoundError(Exception): pass
class File:
    def __init__(self, name, size): self.rfilename, self.size = name, size
class Info: pass
COMMIT = "0123456789abcdef0123456789abcdef01234567"
def source(repository): return os.path.join(os.environ["FAKE_HUB"], repository)
def cached(repository): return os.path.join(constants.HF_HUB_CACHE, "models--" + repository.replace("/", "--"))
class HfApi:
    def model_info(self, repository, revision=None, files_metadata=False):
        if os.environ.get("FAKE_OFFLINE"): raise ConnectionError("no route to the hub")
        if not os.path.isdir(source(repository)): raise RepositoryNotFoundError("no repository " + repository)
        info = Info()
        info.sha = COMMIT
        info.siblings = [File(os.path.relpath(os.path.join(place, name), source(repository)), os.path.getsize(os.path.join(place, name)))
                         for place, _, names in os.walk(source(repository)) for name in names]
        return info
def hf_hub_download(repository, name, revision=None):
    blob = os.path.join(cached(repository), "blobs", name.replace("/", "_"))
    path = os.path.join(cached(repository), "snapshots", COMMIT, name)
    for each in (blob, path): os.makedirs(os.path.dirname(each), exist_ok=True)
    if not os.path.exists(blob): shutil.copy(os.path.join(source(repository), name), blob)
    if os.environ.get("FAKE_CUT") == name: open(blob, "w").write("x")
    if not os.path.exists(path): os.symlink(blob, path)
    return path
def snapshot_download(repository, revision=None, local_files_only=False):
    path = os.path.join(cached(repository), "snapshots", COMMIT)
    if not os.path.isdir(path): raise FileNotFoundError(path)
    return path
"#;

/// A home with an engine's Python that has the client, and a hub.
struct Place {
    home: Home,
}

impl Place {
    fn new() -> Self {
        let home = Home::new();
        home.write("site/huggingface_hub.py", CLIENT);
        for (name, text) in [
            ("hub/org/tiny/config.json", "{}"),
            ("hub/org/tiny/model.safetensors", "0123456789"),
            ("hub/org/tiny/pytorch_model.bin", "not loaded beside safetensors"),
            ("hub/org/tiny/original/x.pth", "never loaded"),
            ("hub/org/head/config.json", "{}"),
            ("hub/org/head/model.safetensors", "01234"),
        ] {
            home.write(name, text);
        }
        // The engine's own Python, with its client beside it.
        let python = home.write("bin/python3", "#!/bin/sh\nexec /usr/bin/env -u PYTHONHOME python3 \"$@\"\n");
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        Place { home }
    }

    fn profile(&self, keys: &str) -> PathBuf {
        let python = self.home.path("bin/python3");
        let text = format!("engine: {{kind: sglang, version: ==0.5.23, executable: {}}}\n{keys}", python.display());
        self.home.write("p.yaml", &text)
    }

    fn fetch(&self, profile: &std::path::Path, env: &[(&str, &str)]) -> Ran {
        let mut command: Command = self.home.orch(&["fetch", &profile.display().to_string(), "--json"]);
        command
            .env("PYTHONPATH", self.home.path("site"))
            .env("FAKE_HUB", self.home.path("hub"))
            .env("HF_HUB_CACHE", self.home.path("cache"))
            .envs(env.iter().copied());
        Ran::of(command.output().unwrap())
    }
}

fn staged(ran: &Ran) -> Vec<Value> {
    serde_json::from_str::<Value>(&ran.stdout).unwrap()["staged"].as_array().unwrap().clone()
}

#[test]
fn model_and_draft_are_fetched_by_commit_and_found_again() {
    let place = Place::new();
    let profile = place.profile("model: org/tiny@main\nspeculative: {method: eagle3, steps: 3, model: org/head}\n");
    let all = staged(&place.fetch(&profile, &[]).expect(0));
    let keys: Vec<&str> = all.iter().map(|each| each["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["model", "speculative.model"]);
    for each in &all {
        assert_eq!(
            (each["commit"].as_str(), each["fetched"].as_bool(), each["checked"].as_bool()),
            (Some(COMMIT), Some(true), Some(true))
        );
        assert!(PathBuf::from(each["path"].as_str().unwrap()).join("model.safetensors").exists());
    }
    // What is not loaded is not fetched.
    assert_eq!((all[0]["files"].as_u64(), all[0]["bytes"].as_u64()), (Some(2), Some(12)));
    let again = staged(&place.fetch(&profile, &[]).expect(0));
    assert_eq!(again[0]["fetched"], false);
    let offline = place.fetch(&profile, &[("FAKE_OFFLINE", "1")]).expect(0);
    assert_eq!(
        (staged(&offline)[0]["checked"].as_bool(), staged(&offline)[0]["commit"].as_str()),
        (Some(false), Some(COMMIT))
    );
}

#[test]
fn a_tokenizer_of_its_own_is_fetched_without_the_weights_beside_it() {
    let place = Place::new();
    place.home.write("hub/org/words/tokenizer.json", "{}");
    place.home.write("hub/org/words/tokenizer_config.json", "{}");
    let profile = place.profile("model: {path: org/tiny, tokenizer: org/words}\n");
    let all = staged(&place.fetch(&profile, &[]).expect(0));
    let keys: Vec<&str> = all.iter().map(|each| each["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["model", "model.tokenizer"]);
    let words = &all[1];
    assert_eq!((words["files"].as_u64(), words["commit"].as_str()), (Some(2), Some(COMMIT)));
    assert!(PathBuf::from(words["path"].as_str().unwrap()).join("tokenizer.json").exists());
    let lost = place.profile("model: {path: org/tiny, tokenizer: org/none}\n");
    let lost = place.fetch(&lost, &[]).expect(3).stderr;
    assert!(lost.contains("model.tokenizer") && lost.contains("org/none"), "{lost}");
}

#[test]
fn what_is_damaged_missing_or_out_of_reach_is_told() {
    let place = Place::new();
    let profile = place.profile("model: org/tiny\n");
    let said = |ran: Ran| ran.stderr.replace("  │ ", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let offline = said(place.fetch(&profile, &[("FAKE_OFFLINE", "1")]).expect(3));
    assert!(offline.contains("no route to the hub") && offline.contains("orch fetch PROFILE"), "{offline}");
    let cut = said(place.fetch(&profile, &[("FAKE_CUT", "model.safetensors")]).expect(3));
    assert!(cut.contains("model.safetensors has 1 bytes, and 10 are right"), "{cut}");
    let none = place.profile("model: org/none\n");
    let none = said(place.fetch(&none, &[]).expect(3));
    assert!(none.contains("cannot use the model `org/none` (`model`): no repository org/none"), "{none}");
}

#[test]
fn a_local_folder_is_looked_through() {
    let place = Place::new();
    let index = r#"{"metadata": {"total_size": 4}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    place.home.write("m/model.safetensors.index.json", index);
    place.home.write("m/1.safetensors", "12");
    let profile = place.profile(&format!("model: {}\n", place.home.path("m").display()));
    let missing = place.fetch(&profile, &[]).expect(3);
    assert!(missing.stderr.contains("2.safetensors"), "{}", missing.stderr);
    place.home.write("m/2.safetensors", "34");
    let all = staged(&place.fetch(&profile, &[]).expect(0));
    assert_eq!(
        (all[0]["files"].as_u64(), all[0]["commit"].is_null(), all[0]["checked"].as_bool()),
        (Some(3), true, Some(true))
    );
}

#[test]
fn without_a_client_it_is_a_warning() {
    let place = Place::new();
    let profile = place.profile("model: org/tiny\n");
    place.home.write("site/huggingface_hub.py", "raise ImportError('none')\n");
    let ran = place.fetch(&profile, &[]).expect(0);
    assert!(ran.stderr.contains("was not fetched beforehand") && staged(&ran).is_empty(), "{}", ran.stderr);
}
