//! What is in the program itself, so that it works from any folder: workloads, their prompts, and profiles that need
//! nothing but orch. A user's file of the same name is found first.

use std::sync::OnceLock;

use super::model::Prompt;

/// Files by their path below `profiles/`.
const FILES: &[(&str, &str)] = &[
    ("sim-capped.yaml", include_str!("../../profiles/sim-capped.yaml")),
    ("sim-demo.yaml", include_str!("../../profiles/sim-demo.yaml")),
    ("sim-mtp1.yaml", include_str!("../../profiles/sim-mtp1.yaml")),
    ("sim-oom.yaml", include_str!("../../profiles/sim-oom.yaml")),
    ("sim-quick.yaml", include_str!("../../profiles/sim-quick.yaml")),
    ("sweeps/sim-cap.yaml", include_str!("../../profiles/sweeps/sim-cap.yaml")),
    ("workloads/chat.yaml", include_str!("../../profiles/workloads/chat.yaml")),
    ("workloads/chat-mix.yaml", include_str!("../../profiles/workloads/chat-mix.yaml")),
    ("workloads/chat-short.yaml", include_str!("../../profiles/workloads/chat-short.yaml")),
    ("workloads/code.yaml", include_str!("../../profiles/workloads/code.yaml")),
    ("workloads/extraction.yaml", include_str!("../../profiles/workloads/extraction.yaml")),
    ("workloads/reasoning.yaml", include_str!("../../profiles/workloads/reasoning.yaml")),
];

/// The text of a built-in file, by its path below `profiles/`.
pub(crate) fn file(path: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}

/// Names of the built-in files of a folder (`workloads`; empty for profiles), without their ending.
pub(crate) fn names(folder: &str) -> impl Iterator<Item = &'static str> {
    let folder = folder.to_owned();
    FILES.iter().filter_map(move |(path, _)| {
        let (place, name) = path.rsplit_once('/').unwrap_or(("", path));
        if place == folder { name.strip_suffix(".yaml") } else { None }
    })
}

/// The kinds of prompts that orch has itself.
pub const PROMPT_KINDS: &[&str] = &["chat", "code", "extraction", "reasoning"];

/// The prompts of a built-in kind, in their order; `None` for a word that is not one of [`PROMPT_KINDS`].
pub fn prompts(kind: &str) -> Option<&'static [Prompt]> {
    static READ: OnceLock<Vec<Vec<Prompt>>> = OnceLock::new();
    let read = READ.get_or_init(|| {
        let texts = [
            include_str!("../../profiles/workloads/prompts/chat.jsonl"),
            include_str!("../../profiles/workloads/prompts/code.jsonl"),
            include_str!("../../profiles/workloads/prompts/extraction.jsonl"),
            include_str!("../../profiles/workloads/prompts/reasoning.jsonl"),
        ];
        // A line that is none is caught by the test below, which reads the same bytes.
        texts.map(|text| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()).into()
    });
    let index = PROMPT_KINDS.iter().position(|known| *known == kind)?;
    read.get(index).map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_line_of_the_built_in_prompts_is_a_prompt() {
        let mut ids = HashSet::new();
        let mut texts = HashSet::new();
        for kind in PROMPT_KINDS {
            let path = format!("{}/profiles/workloads/prompts/{kind}.jsonl", env!("CARGO_MANIFEST_DIR"));
            let lines = std::fs::read_to_string(path).unwrap().lines().count();
            let prompts = prompts(kind).unwrap();
            assert_eq!(prompts.len(), lines, "{kind}");
            for prompt in prompts {
                assert!(prompt.id.starts_with(kind), "{}", prompt.id);
                assert!(ids.insert(prompt.id.clone()), "{} twice", prompt.id);
                assert!(texts.insert(prompt.text.clone()), "the text of {} twice", prompt.id);
                assert!(!prompt.text.trim().is_empty());
            }
        }
        assert!(super::prompts("poetry").is_none());
    }
}
