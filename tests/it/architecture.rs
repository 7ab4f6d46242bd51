//! The pages tell the truth: what ARCHITECTURE.md names is there, and what is there is named.

use std::collections::BTreeSet;
use std::path::Path;

fn page() -> String {
    std::fs::read_to_string("ARCHITECTURE.md").unwrap()
}

#[test]
fn every_module_of_the_page_exists_and_every_folder_is_on_the_page() {
    let named: BTreeSet<String> = page()
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(module, _)| module.to_owned())
        .collect();
    let there: BTreeSet<String> = std::fs::read_dir("src")
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(named, there);
}

#[test]
fn every_path_in_backticks_exists() {
    for page in ["ARCHITECTURE.md", "README.md"] {
        let text = std::fs::read_to_string(page).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let looks_like_a_file =
                (name.starts_with("docs/") || name.starts_with("profiles/") || name.starts_with("tests/"))
                    && !name.contains(['<', '*', ' ', '\n']);
            assert!(!looks_like_a_file || Path::new(name).exists(), "{page} names `{name}`, which is not there");
        }
    }
}
