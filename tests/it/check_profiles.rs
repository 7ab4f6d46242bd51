//! Someone checks profiles before a night's runs, or lets a machine do it.

use std::path::Path;
use std::process::{Command, Output};

fn orch(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orch")).current_dir(folder).args(arguments).output().unwrap()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("profiles")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join("profiles").join(name), text).unwrap();
    write("base.yaml", "engine: sglang >=0.5.9\nmodel: Qwen/Qwen3-8B\nseries: qwen\n");
    write(
        "mtp.yaml",
        "extends: base\nspeculative: {method: mtp, steps: 3}\nbench:\n  one: {use: chat-mix, concurrency: 1, requests: 16}\n",
    );
    write("wrong.yaml", "extends: base\nport: 0\n");
    folder
}

#[test]
fn profiles_that_are_right_get_a_line_each() {
    let folder = folder();
    let output = orch(folder.path(), &["check", "base", "profiles/mtp.yaml", "--set", "memory.fraction=0.9"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "ok  base  sglang >=0.5.9, Qwen/Qwen3-8B, 0 measurements\n\
         ok  mtp  sglang >=0.5.9, Qwen/Qwen3-8B, 1 measurement\n"
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn an_engine_that_nobody_describes_is_told_with_those_that_are_there() {
    let folder = folder();
    std::fs::write(folder.path().join("profiles/other.yaml"), "engine: tgi\nmodel: m\n").unwrap();
    std::fs::create_dir_all(folder.path().join("templates/mine")).unwrap();
    std::fs::write(folder.path().join("templates/mine/engine.yaml"), "kind: mine\n").unwrap();
    let output = orch(folder.path(), &["check", "other"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    for word in ["unknown word `tgi` for `engine.kind`", "`sglang`", "`mine`"] {
        assert!(told.contains(word), "{told}");
    }
}

/// A definition of which a half is missing: what cannot be known is not claimed.
#[test]
fn nothing_is_claimed_of_an_engine_whose_template_is_missing() {
    let folder = folder();
    std::fs::write(folder.path().join("profiles/other.yaml"), "engine: mine\nmodel: m\n").unwrap();
    std::fs::create_dir_all(folder.path().join("templates/mine")).unwrap();
    std::fs::write(folder.path().join("templates/mine/engine.yaml"), "kind: mine\n").unwrap();
    let output = orch(folder.path(), &["check", "other"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "note: other: flags and settings not checked, as this build of orch has no definition of mine\n"
    );
}

#[test]
fn an_engine_of_the_users_own_is_checked_like_a_built_in_one() {
    let folder = folder();
    let engine = folder.path().join("templates/sglang");
    std::fs::create_dir_all(&engine).unwrap();
    std::fs::write(
        engine.join("engine.yaml"),
        "kind: sglang\nexecutable: sglang\nverified: [0.5.9]\nsettings: {memory.fraction: {flag: --mem-fraction-static}}\n",
    )
    .unwrap();
    std::fs::write(
        engine.join("launch.hbs"),
        "{{executable}} {{#each settings}}{{#each words}}{{this}} {{/each}}{{/each}}",
    )
    .unwrap();
    let right = orch(folder.path(), &["check", "base"]);
    assert_eq!((right.status.code(), String::from_utf8(right.stderr).unwrap()), (Some(0), String::new()));
    let owned = orch(folder.path(), &["check", "base", "--set", "flags.mem-fraction-static=0.9"]);
    assert_eq!(owned.status.code(), Some(2));
    assert!(String::from_utf8(owned.stderr).unwrap().contains("orch::render::owned_flag"));
}

#[test]
fn a_wrong_one_among_them_is_told_and_the_others_are_checked_all_the_same() {
    let folder = folder();
    let output = orch(folder.path(), &["check", "wrong", "mtp"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("ok  mtp"));
    assert!(String::from_utf8(output.stderr).unwrap().contains("profiles/wrong.yaml:2:7"));
}

#[test]
fn a_machine_reads_the_same_as_json() {
    let folder = folder();
    let output = orch(folder.path(), &["check", "--json", "mtp", "wrong"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report,
        serde_json::json!({
            "ok": false,
            "profiles": [
                {"profile": "mtp", "ok": true, "name": "mtp", "series": "qwen", "engine": "sglang", "engine_checked": true},
                {"profile": "wrong", "ok": false, "name": null, "series": null, "engine": null, "engine_checked": null},
            ],
            "faults": [{
                "profile": "wrong",
                "file": "profiles/wrong.yaml",
                "line": 2,
                "column": 7,
                "code": "orch::profile::out_of_range",
                "message": "`port` is 0, and must be from 1 to 65535",
                "help": null,
            }],
        })
    );
    std::fs::write(folder.path().join("profiles/tiny.yaml"), "engine: llamacpp\nmodel: /models/a.gguf\n").unwrap();
    let right = orch(folder.path(), &["check", "--json", "tiny"]);
    assert_eq!((right.status.code(), String::from_utf8(right.stderr).unwrap()), (Some(0), String::new()));
    let report: serde_json::Value = serde_json::from_slice(&right.stdout).unwrap();
    assert_eq!(report["profiles"][0]["engine_checked"], true);
}

#[test]
fn a_run_without_a_profile_is_a_mistake_in_the_command() {
    let output = orch(folder().path(), &["check"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("<PROFILE>"));
}

#[test]
fn the_profiles_of_the_repository_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files: Vec<String> = crate::profile_layers::orch_profiles()
        .iter()
        // That one has the whole vocabulary, and flags that nobody has.
        .filter(|path| crate::profile_layers::is_profile(path) && !path.ends_with("full.yaml"))
        .map(|path| path.strip_prefix(root).unwrap().display().to_string())
        .collect();
    let arguments: Vec<&str> = std::iter::once("check").chain(files.iter().map(String::as_str)).collect();
    let output = orch(root, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), files.len());
}
