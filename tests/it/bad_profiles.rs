//! Someone gets a profile wrong, and is told what, where, and what to do.

use std::path::Path;
use std::process::Command;

/// Runs `orch check` in a folder, drawn for people and as JSON, and puts both into one text.
fn check(folder: &Path, arguments: &[&str]) -> String {
    let run = |json: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orch"));
        command.current_dir(folder).arg("check").args(arguments);
        // What a terminal is like must not change what is drawn.
        command.env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8").env_remove("FORCE_COLOR").env_remove("COLUMNS");
        for name in ["ORCH_TEST_UNSET", "ORCH_TEST_ALSO_UNSET", "FRACTION", "HF_TOKEN"] {
            command.env_remove(name);
        }
        if json {
            command.arg("--json");
        }
        command.output().unwrap()
    };
    let drawn = run(false);
    let json = run(true);
    assert_eq!((drawn.status.code(), json.status.code()), (Some(2), Some(2)), "{arguments:?}");
    assert_eq!(String::from_utf8_lossy(&drawn.stdout), "");
    assert_eq!(String::from_utf8_lossy(&json.stderr), "");
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["ok"], false);
    let lines: Vec<String> = report["faults"].as_array().unwrap().iter().map(ToString::to_string).collect();
    assert!(!lines.is_empty());
    format!("{}\n{}\n", String::from_utf8_lossy(&drawn.stderr).trim_end(), lines.join("\n"))
}

fn data() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/profiles"))
}

#[test]
fn each_bad_profile_has_its_message() {
    let mut names: Vec<String> = std::fs::read_dir(data().join("bad"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() > 30);
    for name in names {
        insta::assert_snapshot!(format!("bad_{name}"), check(data(), &[&format!("bad/{name}.yaml")]));
    }
}

#[test]
fn a_file_that_is_not_there() {
    insta::assert_snapshot!(check(data(), &["bad/nowhere.yaml"]));
}

#[test]
fn a_name_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("profiles")).unwrap();
    std::fs::write(folder.path().join("profiles/qwen-mtp3.yaml"), "").unwrap();
    std::fs::write(folder.path().join("stray"), "").unwrap();
    insta::assert_snapshot!(check(folder.path(), &["qwen-mtp"]));
    insta::assert_snapshot!(check(folder.path(), &["stray"]));
}

#[test]
fn a_folder_instead_of_a_file() {
    insta::assert_snapshot!(check(data(), &["./bad"]));
}

#[test]
fn files_that_are_no_text() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("binary.yaml"), b"engine: sglang\n\x7fELF\0\0").unwrap();
    std::fs::write(folder.path().join("latin1.yaml"), b"engine: sglang\nname: caf\xe9\n").unwrap();
    insta::assert_snapshot!(check(folder.path(), &["./binary.yaml", "./latin1.yaml"]));
}

#[test]
fn a_file_that_never_ends() {
    insta::assert_snapshot!(check(data(), &["/dev/zero"]));
}

#[test]
fn a_huge_file_is_not_even_read() {
    let folder = tempfile::tempdir().unwrap();
    // A hole of 100 GB: whoever reads it runs out of memory or time.
    let file = std::fs::File::create(folder.path().join("huge.yaml")).unwrap();
    file.set_len(100_000_000_000).unwrap();
    insta::assert_snapshot!(check(folder.path(), &["huge.yaml"]));
}

#[test]
fn very_many_keys_cost_little() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for number in 0..60_000 {
        text.push_str(&format!("key{number}: 1\n"));
    }
    std::fs::write(folder.path().join("many.yaml"), text).unwrap();
    let told = check(folder.path(), &["many.yaml"]);
    assert!(told.contains("it holds more than 20,000 values"), "{told}");
}

#[test]
fn a_layer_that_is_laid_under_itself_many_times_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..40 {
        let text = format!("extends: [l{0}, l{0}]\n", number + 1);
        std::fs::write(folder.path().join(format!("l{number}.yaml")), text).unwrap();
    }
    std::fs::write(folder.path().join("l40.yaml"), "engine: nothing\nmodel: x\n").unwrap();
    // Two to the power of forty readings would not end.
    let told = check(folder.path(), &["./l0.yaml"]);
    assert!(told.contains("unknown word `nothing` for `engine.kind`"), "{told}");
}

#[test]
fn a_wrong_value_on_the_command_line_is_shown_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.yaml"), "engine: sglang\nmodel: Qwen/Qwen3-8B\n").unwrap();
    let set = |arguments: &[&str]| {
        let words: Vec<&str> = arguments.iter().flat_map(|argument| ["--set", argument]).collect();
        check(folder.path(), &[&["good.yaml"], words.as_slice()].concat())
    };
    insta::assert_snapshot!(set(&["memory.fractoin=0.9", "memory.fraction=1.5", "launch.abandon=20"]));
    insta::assert_snapshot!(set(&["port", "port=", "extends=x", "port=[1"]));
    insta::assert_snapshot!(set(&["args.0=x", "port.x=1", "expect.ttft_ms=1"]));
    insta::assert_snapshot!(set(&["engine=vllm", "engine.kind=sglnag"]));
}

#[test]
fn what_the_engine_cannot_do_is_shown_where_it_was_set() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("good.yaml", "engine: llamacpp\nmodel: /models/a.gguf\nflags: {threads: 4}\n");
    let set = |arguments: &[&str]| {
        let words: Vec<&str> = arguments.iter().flat_map(|argument| ["--set", argument]).collect();
        check(folder.path(), &[&["good.yaml"], words.as_slice()].concat())
    };
    insta::assert_snapshot!(set(&["flags.port=1"]));
    insta::assert_snapshot!(set(&[
        "context_length=4294967295",
        "env.A=\"x\\0\"",
        "flags.a.b=\"x\\0\"",
        "args=[\"x\\0\"]"
    ]));
    // A measurement that lacks something, and one whose workload, in another file, asks for too much.
    write("workloads/talk.yaml", "prompts: builtin/chat\noutput: {stop: natural, max_tokens: 9}\nturns: 3\n");
    write(
        "steps.yaml",
        "engine: llamacpp\nmodel: /models/a.gguf\nbench:\n  one: {prompts: builtin/chat, concurrency: 1, requests: 8}\n  \
         two: {use: talk, concurrency: 1, requests: 8}\n",
    );
    insta::assert_snapshot!(check(folder.path(), &["./steps.yaml"]));
}

/// The same words as `orch check`, before there is anything of a run.
#[test]
fn a_run_tells_it_too_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_orch"));
    command.current_dir(data()).args(["run", "bad/owned_flag.yaml"]).env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8");
    command.env("ORCH_RESULTS", folder.path().join("results")).env("XDG_STATE_HOME", folder.path().join("state"));
    let ran = command.env_remove("FORCE_COLOR").env_remove("COLUMNS").output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    let told = String::from_utf8(ran.stderr).unwrap();
    let checked = check(data(), &["bad/owned_flag.yaml"]);
    assert!(checked.starts_with(told.trim_end()) && told.contains("bad/owned_flag.yaml:4:21"), "{told}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn wrong_files_of_an_engine_are_told_as_theirs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("templates/llamacpp")).unwrap();
    std::fs::write(folder.path().join("templates/llamacpp/launch.hbs"), "{{executable}}\n{{args}} {{model}}\n")
        .unwrap();
    std::fs::write(folder.path().join("good.yaml"), "engine: llamacpp\nmodel: /models/a.gguf\n").unwrap();
    insta::assert_snapshot!(check(folder.path(), &["good.yaml"]));
}

#[test]
fn faults_of_several_profiles_are_told_in_one_go() {
    let told = check(data(), &["bad/docker_without_image.yaml", "bad/tab.yaml"]);
    for code in ["orch::profile::unknown_word", "orch::profile::tab"] {
        assert!(told.contains(code), "{told}");
    }
}
