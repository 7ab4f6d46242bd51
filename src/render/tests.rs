//! What holds for every command, whatever a profile says.

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::engine::{self, Definition, LaunchTemplate};
use crate::profile::{EngineKind, Profile};

/// A profile with the given keys over the least that a profile has.
fn profile(keys: Value) -> Profile {
    let mut whole = json!({
        "name": "p", "series": "p",
        "engine": {"kind": "llamacpp"},
        "model": {"path": "m.gguf"},
        "port": "auto", "instrument": true,
        "launch": {"via": "process", "abandon": "15m"},
        "gate": {"timeout": "auto"},
        "repeat": {"starts": 1, "runs": 1},
        "share": false,
    });
    for (key, value) in keys.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(whole).unwrap()
}

fn facts() -> Facts {
    Facts {
        version: "b10434".into(),
        flags: None,
        port: 30000,
        gpus: Vec::new(),
        devices: Vec::new(),
        nodes: Vec::new(),
        environment: None,
        executable: None,
        assumed: false,
    }
}

/// Read once: a property is held against hundreds of profiles.
fn llamacpp() -> &'static Definition {
    static READ: LazyLock<Definition> = LazyLock::new(|| engine::definition(EngineKind::Llamacpp, &[]).unwrap());
    &READ
}

fn command() -> &'static Definition {
    static READ: LazyLock<Definition> = LazyLock::new(|| engine::definition(EngineKind::Command, &[]).unwrap());
    &READ
}

fn argv(profile: &Profile, definition: &Definition) -> Vec<String> {
    plan(profile, definition, &facts()).unwrap().ranks.remove(0).argv
}

/// Faults as `code key`.
fn faults(keys: Value) -> Vec<String> {
    let faults = plan(&profile(keys), llamacpp(), &facts()).unwrap_err();
    faults.iter().map(|fault| format!("{} {}", fault.code, fault.key)).collect()
}

/// Text as people, and people who mean ill, write it; no NUL, which is refused by name.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[^\0]{0,40}",
        r#"[ '"\\$`();&|<>*?#~!\n\t{}=-]{0,12}"#,
        Just(String::new()),
        Just("'; rm -rf / #".to_owned()),
        Just("$(reboot)\n`reboot`".to_owned()),
        Just("{{executable}} {port}".to_owned()),
        Just("--port 1 \u{2028} \u{a0} ü".to_owned()),
    ]
}

proptest! {
    #[test]
    fn no_value_ever_becomes_a_second_word(path in text(), alias in text(), dtype in text(), flag in text(), items in prop::collection::vec(text(), 0..3), arg in "[^-\0][^\0]{0,20}", env in text()) {
        let keys = |path: &str, alias: &str, dtype: &str, flag: &str, items: &[String], arg: &str, env: &str| profile(json!({
            "model": {"path": path, "served_name": alias},
            "memory": {"kv_dtype": dtype},
            "flags": {"grammar": flag, "lora": items},
            "args": [arg],
            "env": {"X": env},
        }));
        let plain: Vec<String> = items.iter().map(|_| "I".to_owned()).collect();
        let expected = argv(&keys("P", "A", "D", "F", &plain, "R", "E"), llamacpp());
        let mut items_left = items.iter();
        let expected: Vec<String> = expected.into_iter().map(|word| match word.as_str() {
            "P" => path.clone(),
            "A" => alias.clone(),
            "D" => dtype.clone(),
            "F" => flag.clone(),
            "I" => items_left.next().unwrap().clone(),
            "R" => arg.clone(),
            _ => word,
        }).collect();
        // `package:` paths are files in an environment, which there is none of here.
        prop_assume!(!path.starts_with("package:"));
        let profile = keys(&path, &alias, &dtype, &flag, &items, &arg, &env);
        prop_assert_eq!(argv(&profile, llamacpp()), expected);
        prop_assert_eq!(&plan(&profile, llamacpp(), &facts()).unwrap().ranks[0].env["X"], &env);
    }

    #[test]
    fn nor_in_the_middle_of_a_word_of_a_users_template(alias in text(), name in text()) {
        let mut definition = llamacpp().clone();
        let template = "{{executable}} --alias={{model.served_name}} pre{{name}}post{{model.served_name}} --port {{port}}\n";
        definition.template = LaunchTemplate::compile("mine", template).unwrap();
        let mut profile = profile(json!({"model": {"path": "m", "served_name": alias}}));
        profile.name = name.clone();
        let expected = ["llama-server".to_owned(), format!("--alias={alias}"), format!("pre{name}post{alias}"), "--port".into(), "30000".into()];
        prop_assert_eq!(argv(&profile, &definition), expected);
    }

    #[test]
    fn nor_in_a_command_of_the_users_own(word in text(), model in text()) {
        let profile = profile(json!({
            "engine": {"kind": "command", "command": ["serve", word, "--model={model}", "{port}{host}"]},
            "model": {"path": model},
        }));
        prop_assume!(!model.starts_with("package:") && !word.contains('{'));
        let expected = ["serve".to_owned(), word, format!("--model={model}"), "30000127.0.0.1".to_owned()];
        prop_assert_eq!(argv(&profile, command()), expected);
    }
}

#[test]
fn nul_bytes_are_refused_where_they_stand() {
    let found = faults(json!({"model": {"path": "a\0b", "served_name": "x"}, "args": ["\0"], "env": {"X": "\0"}}));
    assert!(found.contains(&"nul model.path".to_owned()), "{found:?}");
    assert!(found.contains(&"nul args[0]".to_owned()) && found.contains(&"nul env.X".to_owned()), "{found:?}");
}

#[test]
fn flags_that_orch_gives_itself_are_refused_by_any_of_their_names() {
    assert_eq!(
        faults(json!({
            "flags": {"port": "1", "ctx-size": "4096", "gpu-layers": "9", "hf-repo": "x"},
            "args": ["-np", "4", "--alias=x", "-a"],
        })),
        [
            "owned_flag flags.port",
            "owned_flag flags.ctx-size",
            "owned_flag flags.gpu-layers",
            "owned_flag flags.hf-repo",
            "owned_flag args[0]",
            "owned_flag args[2]",
            "owned_flag args[3]"
        ]
    );
}

#[test]
fn settings_that_the_engine_lacks_are_refused_not_ignored() {
    assert_eq!(
        faults(json!({"graphs": {"max_batch": 4}, "attention_backend": "x", "memory": {"fraction": 0.9}})),
        ["unsupported memory.fraction", "unsupported graphs.max_batch", "unsupported attention_backend"]
    );
    assert_eq!(faults(json!({"speculative": {"method": "suffix"}})), ["unsupported speculative.method"]);
}

#[test]
fn constraints_between_settings_are_checked() {
    assert_eq!(faults(json!({"speculative": {"method": "draft", "steps": 4}})), ["rule speculative.method"]);
    // Where there is a value that is wrong, the fault stands there.
    assert_eq!(faults(json!({"speculative": {"method": "ngram", "model": "d.gguf"}})), ["rule speculative.model"]);
}

#[test]
fn the_pool_of_llama_server_holds_the_context_of_every_request() {
    let words = |keys: Value| argv(&profile(keys), llamacpp()).join(" ");
    assert!(words(json!({"context_length": 2048, "max_running_requests": 4})).contains("--ctx-size 8192 --parallel 4"));
    let keys = json!({"context_length": 2048});
    assert!(words(keys.clone()).contains("--ctx-size 8192 --parallel 4"));
    let warnings = plan(&profile(keys), llamacpp(), &facts()).unwrap().warnings;
    assert_eq!(warnings.iter().map(|warning| warning.id.as_str()).collect::<Vec<_>>(), ["llamacpp_slots_automatic"]);
    assert_eq!(
        faults(json!({"context_length": 1_000_000_000, "max_running_requests": 64})),
        ["too_large context_length"]
    );
}

#[test]
fn a_default_gives_way_to_the_profile() {
    let words = |keys: Value| argv(&profile(keys), llamacpp()).join(" ");
    assert!(words(json!({})).contains("--fit off"));
    assert!(words(json!({"flags": {"fit": "on"}})).ends_with("--metrics --fit on"));
    assert!(words(json!({"args": ["-fit", "on"]})).ends_with("--metrics -fit on"));
    assert!(!words(json!({"instrument": false})).contains("--metrics"));
}

#[test]
fn speculation_with_no_steps_is_none() {
    let words = argv(&profile(json!({"speculative": {"method": "draft", "model": "d.gguf", "steps": 0}})), llamacpp());
    assert!(!words.iter().any(|word| word.starts_with("--spec")), "{words:?}");
}

#[test]
fn a_packaged_model_is_a_file_in_the_environment() {
    let facts = Facts { environment: Some("/e".into()), executable: Some("llama-server-vulkan".into()), ..facts() };
    let profile = profile(json!({"model": {"path": "package:tiny/t.gguf"}}));
    let argv = plan(&profile, llamacpp(), &facts).unwrap().ranks.remove(0).argv;
    assert_eq!(argv[..5], ["/e/bin/llama-server-vulkan", "--model", "/e/site-packages/tiny/t.gguf", "--alias", "t"]);
    assert_eq!(faults(json!({"model": {"path": "package:tiny/t.gguf"}})), ["no_package model.path"]);
    assert_eq!(in_environment(&PathBuf::from("/e"), "opt/x"), PathBuf::from("/e/opt/x"));
}

#[test]
fn each_load_is_a_step_with_the_same_workload() {
    let bench = json!({
        "single": {"concurrency": [1], "requests": 4, "texts": []},
        "ladder": {"concurrency": [2, 8], "duration": "90s"},
        "open": {"rate": [0.5, 4.0], "arrival": "constant", "duration": "1m"},
    });
    let mut profile = profile(json!({"bench": bench}));
    let texts = |texts: &[&str]| -> Vec<_> {
        texts
            .iter()
            .map(|text| crate::profile::Prompt { id: (*text).into(), text: (*text).into(), then: Vec::new() })
            .collect()
    };
    for bench in profile.bench.values_mut() {
        bench.inline.texts = texts(&["one", "two"]);
        bench.inline.output = Some(serde_json::from_value(json!({"stop": "natural", "max_tokens": 32})).unwrap());
    }
    let steps = |profile: &Profile| plan(profile, llamacpp(), &facts()).unwrap().steps;
    let planned = steps(&profile);
    let names: Vec<&str> = planned.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["single", "ladder@2", "ladder@8", "open@0.5", "open@4"]);
    assert_eq!(planned[2].load.arrival, Arrival::Closed { concurrency: 8 });
    assert_eq!((planned[1].load.requests, planned[1].load.duration_s), (None, Some(90.0)));
    assert_eq!(planned[0].workload.stop, Stop::Natural { max_tokens: 32 });
    // What is sent is the same, so the hash is; anything else that is sent has another.
    assert!(planned.iter().all(|step| step.workload.hash == planned[0].workload.hash));
    let hash = |change: &dyn Fn(&mut crate::profile::Bench)| {
        let mut profile = profile.clone();
        change(&mut profile.bench["single"]);
        steps(&profile)[0].workload.hash.clone()
    };
    let same = planned[0].workload.hash.clone();
    assert_eq!(hash(&|bench| bench.workload = Some("other-name".into())), same);
    assert_eq!(hash(&|bench| bench.requests = Some(9)), same);
    assert_ne!(hash(&|bench| bench.inline.texts = texts(&["two", "one"])), same);
    assert_ne!(hash(&|bench| bench.inline.seed = Some(1)), same);
    assert_eq!(hash(&|bench| bench.inline.prefix_cache = Some(crate::profile::PrefixCache::Cold)), same);
    assert_ne!(hash(&|bench| bench.inline.prefix_cache = Some(crate::profile::PrefixCache::Warm)), same);
    let sampling = |text: &str| serde_json::from_str(text).unwrap();
    let hot = hash(&|bench| bench.inline.sampling = Some(sampling(r#"{"temperature": 1, "top_p": 0.9}"#)));
    assert_ne!(hot, same);
    assert_eq!(hash(&|bench| bench.inline.sampling = Some(sampling(r#"{"top_p": 0.9, "temperature": 1}"#))), hot);
}

#[test]
fn a_cold_prefix_is_asked_for_in_the_engines_words() {
    let mut profile = profile(
        json!({"bench": {"one": {"concurrency": [1], "requests": 4, "prefix_cache": "cold", "output_tokens": 16}}}),
    );
    profile.bench["one"].inline.texts =
        vec![crate::profile::Prompt { id: "a".into(), text: "a".into(), then: Vec::new() }];
    let step = plan(&profile, llamacpp(), &facts()).unwrap().steps.remove(0);
    assert_eq!(Value::Object(step.workload.body), json!({"cache_prompt": false}));
    assert_eq!(step.workload.stop, Stop::Exact { tokens: 16 });
    profile.engine.kind = EngineKind::Command;
    profile.engine.command = vec!["serve".into()];
    let faults = plan(&profile, command(), &facts()).unwrap_err();
    assert_eq!((faults[0].code, faults[0].key.as_str()), ("unsupported", "bench.one.prefix_cache"));
}

#[test]
fn the_version_is_assumed_from_the_narrowest_that_is_known() {
    let assumed = |keys: Value, asked: Option<&str>| {
        let asked = asked.map(Into::into);
        assume(&profile(keys), llamacpp(), asked.as_ref(), |_| None)
            .map(|assumed| {
                (assumed.facts.version.0, assumed.warnings.iter().map(|warning| warning.id.clone()).collect::<Vec<_>>())
            })
            .map_err(|fault| fault.to_string())
    };
    let engine = |version: &str| json!({"engine": {"kind": "llamacpp", "version": version}});
    assert_eq!(assumed(json!({}), None), Ok(("b10434".into(), vec![])));
    assert_eq!(assumed(engine("==b9000"), None), Ok(("b9000".into(), vec![])));
    assert_eq!(assumed(engine(">b10434"), None), Ok(("b11549".into(), vec![])));
    assert_eq!(
        assumed(engine(">b10434"), Some("b10000")),
        Ok(("b10000".into(), vec!["engine_version_outside".into()]))
    );
    assert_eq!(assumed(engine("<b10"), None), Err("`engine.version`: no version that is known fits `<b10`".into()));
    let warnings = plan(&profile(json!({})), llamacpp(), &Facts { version: "b9".into(), ..facts() }).unwrap().warnings;
    assert_eq!(warnings[0].id, "engine_version_unverified");
}
