//! The definitions in the program itself, so that it works from any folder.

/// Files by their path below `templates/`.
const FILES: &[(&str, &str)] = &[
    ("command/engine.yaml", include_str!("../../templates/command/engine.yaml")),
    ("command/launch.hbs", include_str!("../../templates/command/launch.hbs")),
    ("common.yaml", include_str!("../../templates/common.yaml")),
    ("llamacpp/engine.yaml", include_str!("../../templates/llamacpp/engine.yaml")),
    ("llamacpp/flags/b10434.txt", include_str!("../../templates/llamacpp/flags/b10434.txt")),
    ("llamacpp/launch.hbs", include_str!("../../templates/llamacpp/launch.hbs")),
    ("llamacpp/xllamacpp.py", include_str!("../../templates/llamacpp/xllamacpp.py")),
    ("sglang/engine.yaml", include_str!("../../templates/sglang/engine.yaml")),
    ("sglang/flags/0.5.12.txt", include_str!("../../templates/sglang/flags/0.5.12.txt")),
    ("sglang/flags/0.5.14.txt", include_str!("../../templates/sglang/flags/0.5.14.txt")),
    ("sglang/flags/0.5.18.txt", include_str!("../../templates/sglang/flags/0.5.18.txt")),
    ("sglang/flags/0.5.21.txt", include_str!("../../templates/sglang/flags/0.5.21.txt")),
    ("sglang/flags/0.5.23.txt", include_str!("../../templates/sglang/flags/0.5.23.txt")),
    ("sglang/flags/0.5.5.txt", include_str!("../../templates/sglang/flags/0.5.5.txt")),
    ("sglang/flags/0.5.9.txt", include_str!("../../templates/sglang/flags/0.5.9.txt")),
    ("sglang/launch.hbs", include_str!("../../templates/sglang/launch.hbs")),
    ("sim/engine.yaml", include_str!("../../templates/sim/engine.yaml")),
    ("sim/launch.hbs", include_str!("../../templates/sim/launch.hbs")),
    ("systemd/server.service.hbs", include_str!("../../templates/systemd/server.service.hbs")),
    ("trtllm/engine.yaml", include_str!("../../templates/trtllm/engine.yaml")),
    ("trtllm/launch.hbs", include_str!("../../templates/trtllm/launch.hbs")),
    ("vllm/engine.yaml", include_str!("../../templates/vllm/engine.yaml")),
    ("vllm/flags/0.32.0.txt", include_str!("../../templates/vllm/flags/0.32.0.txt")),
    ("vllm/launch.hbs", include_str!("../../templates/vllm/launch.hbs")),
];

/// The text of a built-in file, by its path below `templates/`.
pub(super) fn file(path: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}

/// The lists of flags that are kept of an engine: version and text.
pub(super) fn flag_lists(kind: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let folder = format!("{kind}/flags/");
    FILES.iter().filter_map(move |(name, text)| Some((name.strip_prefix(&folder)?.strip_suffix(".txt")?, *text)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_in_the_program() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
        let mut found = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(path.strip_prefix(&root).unwrap().display().to_string()),
                }
            }
        }
        found.sort();
        let mut known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
