//! A profile becomes the command that an expert would type.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Home, Ran};

/// The words of `orch render`, with what differs from one home to another masked.
fn render(home: &Home, words: &[&str]) -> Ran {
    let ran = home.run(&[&["render"], words].concat());
    Ran { code: ran.code, stdout: mask(home, &ran.stdout), stderr: mask(home, &ran.stderr) }
}

fn mask(home: &Home, text: &str) -> String {
    let text = text.replace(&home.path("").display().to_string(), "HOME/");
    let mut masked = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("/envs/") {
        let (before, after) = rest.split_at(at + "/envs/".len());
        masked.push_str(before);
        masked.push_str("KEY");
        rest = after.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    masked + rest
}

const LLAMA: &str = "engine: llamacpp ==b10434\nmodel: {path: /models/m.gguf}\n";

fn profile(home: &Home, keys: &str) -> String {
    home.write("p.yaml", keys).display().to_string()
}

#[test]
fn the_first_profile() {
    let home = Home::new();
    let ran = render(&home, &["profiles/smollm2.yaml"]).expect(0);
    insta::assert_snapshot!(ran.stdout);
    insta::assert_snapshot!(ran.stderr);
    assert!(!home.state().exists(), "rendering makes nothing");
}

#[test]
fn speculation_with_a_draft() {
    let home = Home::new();
    let path = profile(
        &home,
        &format!(
            "{LLAMA}port: 8001\ncontext_length: 32k\nmax_running_requests: 8\nmemory: {{gpu_layers: 99, kv_dtype: q8_0}}\n\
             speculative: {{method: draft, steps: 4, model: /models/draft.gguf}}\ninstrument: off\n\
             flags: {{jinja: true, lora: [a.gguf, \"b c.gguf\"], flash-attn: on}}\nargs: [--override-kv, \"x=int:1\"]\n\
             env: {{GGML_X: \"a b\"}}\nsecrets: [HF_TOKEN]\n"
        ),
    );
    let ran = render(&home, &[&path]).expect(0);
    insta::assert_snapshot!(ran.stdout);
    insta::assert_snapshot!(ran.stderr);
}

#[test]
fn speculation_from_the_prompt() {
    let home = Home::new();
    let path = profile(&home, &format!("{LLAMA}speculative: {{method: ngram, steps: 16}}\nmax_running_requests: 2\n"));
    let ran = render(&home, &[&path]).expect(0);
    insta::assert_snapshot!(ran.stdout);
    insta::assert_snapshot!(ran.stderr);
}

#[test]
fn for_machines() {
    let home = Home::new();
    let path = profile(&home, &format!("{LLAMA}context_length: 4096\nmax_running_requests: 1\nenv: {{A: b}}\n"));
    let argv = render(&home, &[&path, "--format", "argv"]).expect(0);
    let json = render(&home, &[&path, "--format", "json"]).expect(0);
    insta::assert_snapshot!(json.stdout);
    let argv: Vec<String> = serde_json::from_str(&argv.stdout).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["argv"], serde_json::json!(argv));
}

#[test]
fn any_command() {
    let home = Home::new();
    let path = profile(
        &home,
        "engine:\n  kind: command\n  command: [my-server, \"--port={port}\", --bind, \"{host}\", \"{model}\", \"two {words}\"]\n\
         \x20 ready: {http: /up}\nmodel: org/model\n",
    );
    insta::assert_snapshot!(render(&home, &[&path]).expect(0).stdout);
}

#[test]
fn another_version_than_the_profiles_own_is_rendered_with_a_warning() {
    let home = Home::new();
    let path = profile(&home, LLAMA);
    let ran = render(&home, &[&path, "--engine-version", "b9000", "--format", "json"]).expect(0);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["engine"], serde_json::json!({"kind": "llamacpp", "version": "b9000", "assumed": true}));
    insta::assert_snapshot!(ran.stderr);
}

#[test]
fn what_the_engine_does_not_have_is_said_all_at_once() {
    let home = Home::new();
    let yaml = format!(
        "{LLAMA}flags: {{port: 1, ctx-size: 4096}}\nargs: [-ngl, \"3\", --api-key=x]\ngraphs: {{max_batch: 3}}\n\
         speculative: {{method: draft, steps: 3}}\n"
    );
    let ran = in_folder(&home, &[("p.yaml", &yaml)], &["render", "p.yaml"]).expect(2);
    assert_eq!(ran.stdout, "");
    insta::assert_snapshot!(ran.stderr);
}

/// What a shell makes of the rendered command is what a process would get.
#[test]
fn a_shell_reads_it_word_for_word() {
    let home = Home::new();
    let show = home.write("show words", "#!/bin/sh\nprintf '%s\\0' \"$X\" \"$@\"\n");
    std::fs::set_permissions(&show, std::fs::Permissions::from_mode(0o755)).unwrap();
    let nasty = r#"it's "$HOME" `id` $(id); & * \ #"#;
    let yaml = serde_json::json!({
        "engine": {"kind": "llamacpp", "executable": show},
        "model": {"path": format!("/m/{nasty}"), "served_name": nasty},
        "flags": {"grammar": format!("{nasty}\nline"), "samplers": ""},
        "args": ["-1", "~", "a=b c"],
        "env": {"X": nasty},
    });
    let path = profile(&home, &yaml.to_string());
    let shell = home.run(&["render", &path]).expect(0).stdout;
    let argv = home.run(&["render", &path, "--format", "argv"]).expect(0).stdout;
    let argv: Vec<String> = serde_json::from_str(&argv).unwrap();
    let output = Command::new("sh").arg("-c").arg(&shell).output().unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = words.strip_suffix('\0').unwrap().split('\0').collect();
    assert_eq!(words[0], nasty);
    assert_eq!(words[1..], argv[1..]);
    assert!(argv.contains(&nasty.to_owned()) && argv.contains(&String::new()));
}

/// In a folder with `templates/` of the user's own.
fn in_folder(home: &Home, files: &[(&str, &str)], words: &[&str]) -> Ran {
    for (path, text) in files {
        home.write(path, text);
    }
    let output = home.orch(words).current_dir(home.path("")).output().unwrap();
    let ran = Ran::of(output);
    Ran { code: ran.code, stdout: mask(home, &ran.stdout), stderr: mask(home, &ran.stderr) }
}

/// The folder of `docs/engines.md`: an engine that this program has never heard of.
const ADDED: [(&str, &str); 3] = [
    ("templates/tgi/engine.yaml", include_str!("../data/templates/tgi/engine.yaml")),
    ("templates/tgi/launch.hbs", include_str!("../data/templates/tgi/launch.hbs")),
    ("templates/tgi/flags/3.3.txt", include_str!("../data/templates/tgi/flags/3.3.txt")),
];

#[test]
fn an_engine_is_added_by_a_folder() {
    let home = Home::new();
    let profile = "engine: tgi\nmodel: org/model@abc\nparallel: {tensor: 2}\nmax_running_requests: 16\n\
                   memory: {fraction: 0.9}\nspeculative: {method: ngram, steps: 3}\nflags: {max-input-tokens: 4096}\n";
    let files: Vec<(&str, &str)> = ADDED.into_iter().chain([("p.yaml", profile)]).collect();
    let ran = in_folder(&home, &files, &["render", "p.yaml"]).expect(0);
    insta::assert_snapshot!(ran.stdout);
    insta::assert_snapshot!(ran.stderr);
    let checked = in_folder(&home, &files, &["check", "p.yaml"]).expect(0);
    assert_eq!(checked.stdout, "ok  p  tgi, org/model, 0 measurements\n");
}

#[test]
fn an_added_engine_is_held_to_what_its_folder_says() {
    let home = Home::new();
    let profile = "engine: tgi\nmodel: org/model\nparallel: {pipeline: 2}\nflags: {port: 1, max-input-token: 1, quantise: x}\n\
                   speculative: {method: mtp, steps: 3}\n";
    let files: Vec<(&str, &str)> = ADDED.into_iter().chain([("p.yaml", profile)]).collect();
    insta::assert_snapshot!(in_folder(&home, &files, &["check", "p.yaml"]).expect(2).stderr);
}

#[test]
fn the_page_on_engines_shows_that_very_folder() {
    let page = std::fs::read_to_string("docs/engines.md").unwrap();
    for (_, text) in &ADDED[..2] {
        let (_, text) = text.split_once('\n').unwrap();
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn an_engine_that_is_nowhere_is_named_with_how_to_add_it() {
    let home = Home::new();
    let ran = in_folder(&home, &[("p.yaml", "engine: tgi\nmodel: org/model\n")], &["render", "p.yaml"]).expect(2);
    insta::assert_snapshot!(ran.stderr);
}

#[test]
fn an_unknown_variable_of_a_template_is_found_before_anything_is_rendered() {
    let home = Home::new();
    let template =
        "{{executable}} --model {{model.path}}\n{{#if context_lenght}}--ctx-size {{context_length}}{{/if}}\n";
    let files = [("templates/llamacpp/launch.hbs", template), ("p.yaml", LLAMA)];
    let ran = in_folder(&home, &files, &["render", "p.yaml"]).expect(2);
    insta::assert_snapshot!(ran.stderr);
    assert!(Path::new(&home.path("p.yaml")).exists());
}

#[test]
fn a_field_that_is_not_set_is_no_empty_word() {
    let home = Home::new();
    let files = [("templates/llamacpp/launch.hbs", "{{executable}} --threads {{context_length}}\n"), ("p.yaml", LLAMA)];
    let ran = in_folder(&home, &files, &["render", "p.yaml"]).expect(2);
    insta::assert_snapshot!(ran.stderr);
}
