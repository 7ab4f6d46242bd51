//! Which engine a profile names. The kinds that need Rust of their own are variants; any other is a folder of the
//! user's, and then the word is all that is known of it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::check::is_name;

/// The kinds that are in the program.
pub const BUILT_IN: &[&str] = &["sglang", "vllm", "llamacpp", "trtllm", "command", "sim"];

/// An engine's kind: the name of its folder under `templates/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum EngineKind {
    Sglang,
    Vllm,
    Llamacpp,
    Trtllm,
    Command,
    Sim,
    /// One of the user's own.
    Other(OtherKind),
}

/// The name of a kind that only a user's folder describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OtherKind(&'static str);

impl EngineKind {
    /// The kind of a name; `None` when it cannot be the name of a folder.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "sglang" => EngineKind::Sglang,
            "vllm" => EngineKind::Vllm,
            "llamacpp" => EngineKind::Llamacpp,
            "trtllm" => EngineKind::Trtllm,
            "command" => EngineKind::Command,
            "sim" => EngineKind::Sim,
            other if is_name(other) => EngineKind::Other(OtherKind(kept(other))),
            _ => return None,
        })
    }

    /// The word for it in profiles, which is also the name of its folder under `templates/`.
    pub fn word(self) -> &'static str {
        match self {
            EngineKind::Sglang => "sglang",
            EngineKind::Vllm => "vllm",
            EngineKind::Llamacpp => "llamacpp",
            EngineKind::Trtllm => "trtllm",
            EngineKind::Command => "command",
            EngineKind::Sim => "sim",
            EngineKind::Other(OtherKind(word)) => word,
        }
    }
}

/// Each name is kept once for as long as the program runs, so that a kind is as cheap to hand on as a number.
fn kept(word: &str) -> &'static str {
    static NAMES: LazyLock<Mutex<BTreeSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(word) {
        return known;
    }
    let new: &'static str = Box::leak(word.to_owned().into_boxed_str());
    names.insert(new);
    new
}

/// The kinds that a profile may name: those in the program, and the folders below these that hold an `engine.yaml`.
pub fn known(folders: &[impl AsRef<Path>]) -> Vec<String> {
    let mut own = BTreeSet::new();
    for folder in folders {
        // A folder that is not there, or cannot be read, adds nothing; who asks for a kind in it is told so.
        for entry in std::fs::read_dir(folder.as_ref()).into_iter().flatten().flatten() {
            if let Ok(name) = entry.file_name().into_string()
                && is_name(&name)
                && entry.path().join("engine.yaml").is_file()
            {
                own.insert(name);
            }
        }
    }
    let built_in = BUILT_IN.iter().map(|word| (*word).to_owned());
    built_in.chain(own.into_iter().filter(|name| !BUILT_IN.contains(&name.as_str()))).collect()
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Serialize for EngineKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl<'de> Deserialize<'de> for EngineKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        EngineKind::named(&word).ok_or_else(|| serde::de::Error::custom(format!("`{word}` is no kind of engine")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_its_word_there_and_back() {
        for word in BUILT_IN.iter().copied().chain(["tgi", "my-engine2"]) {
            let kind = EngineKind::named(word).unwrap();
            assert_eq!(kind.word(), word);
            let text = serde_json::to_string(&kind).unwrap();
            assert_eq!(serde_json::from_str::<EngineKind>(&text).unwrap(), kind);
        }
        assert_eq!(EngineKind::named("tgi"), EngineKind::named("tgi"));
        assert_ne!(EngineKind::named("tgi"), EngineKind::named("other"));
        for bad in ["", "../x", "a b", "-x"] {
            assert_eq!(EngineKind::named(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_folder_with_a_definition_is_a_kind_and_another_folder_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tgi", "sglang", "systemd"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["tgi", "sglang"] {
            std::fs::write(folder.path().join(name).join("engine.yaml"), "").unwrap();
        }
        let names = known(&[folder.path().to_owned(), "nowhere".into()]);
        assert_eq!(names, ["sglang", "vllm", "llamacpp", "trtllm", "command", "sim", "tgi"]);
    }
}
