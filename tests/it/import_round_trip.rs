//! Any profile that renders comes back from its command: render, import, render gives the same flags.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex};

use orch::engine::{self, Choice, Definition, Version};
use orch::import::{self, Beside, Launch};
use orch::profile::{self, EngineKind, Request};
use orch::render;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;

/// The command and the environment of a profile for a version; `None` if its engine refuses it.
fn command(yaml: &str, version: &Version) -> Result<(Vec<String>, BTreeMap<String, String>), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.yaml");
    std::fs::write(&path, yaml).unwrap();
    let asked = path.display().to_string();
    let request = Request { profile: &asked, set: &[], folders: &[], env: &|_| None };
    let profile = profile::load(&request).map_err(|error| format!("{:?}", miette::Report::from(error)))?.profile;
    let definition = definition(profile.engine.kind);
    let assumed = render::assume(&profile, &definition, Some(version), |_| None).map_err(|fault| fault.to_string())?;
    let plan = render::plan(&profile, &definition, &assumed.facts).map_err(|faults| format!("{faults:?}"))?;
    let rank = plan.ranks.into_iter().next().unwrap();
    Ok((rank.argv, rank.env))
}

/// Read once: it is long.
fn definition(kind: EngineKind) -> Definition {
    static READ: LazyLock<Mutex<HashMap<EngineKind, Definition>>> = LazyLock::new(Mutex::default);
    let mut read = READ.lock().unwrap();
    read.entry(kind).or_insert_with(|| engine::definition(kind, &[]).unwrap()).clone()
}

/// Each flag with the words that follow it, in whatever order.
fn options(words: &[String]) -> Vec<Vec<String>> {
    let mut options: Vec<Vec<String>> = Vec::new();
    for word in words {
        let is_flag = word.starts_with('-') && word.parse::<f64>().is_err();
        match options.last_mut() {
            Some(option) if !is_flag => option.push(word.clone()),
            _ => options.push(vec![word.clone()]),
        }
    }
    options.sort();
    options
}

/// Renders, imports, renders again, and holds the two commands against each other.
fn holds(yaml: &str, version: &Version) -> Result<bool, TestCaseError> {
    // What an engine refuses has no command that could come back.
    let Ok((words, env)) = command(yaml, version) else { return Ok(false) };
    let launch = Launch { words: words.clone(), env: env.clone().into_iter().collect(), ..Launch::default() };
    let beside =
        Beside { definitions: &|kind| Ok(definition(kind)), is_set: &|_| false, version: Some(version.clone()) };
    let draft =
        import::import(vec![launch], "the command", &beside).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let text = draft.yaml("a test");
    let fail = |what: &str| {
        TestCaseError::fail(format!("{what}\n--- profile\n{yaml}\n--- command\n{words:?}\n--- imported\n{text}"))
    };
    let (again, env_again) = command(&text, version).map_err(|error| fail(&error))?;
    if options(&again) != options(&words) {
        return Err(fail(&format!("other flags: {again:?}")));
    }
    if env_again != env {
        return Err(fail(&format!("another environment: {env_again:?}")));
    }
    Ok(true)
}

/// Versions of an engine whose spellings differ.
fn versions(kind: EngineKind) -> Vec<Version> {
    definition(kind).verified.clone()
}

/// A value that a setting may have, as YAML.
fn value(key: &str, definition: &Definition, pick: u32) -> Option<String> {
    let number = |choices: &[u64]| Some(choices[pick as usize % choices.len()].to_string());
    let word = |choices: &[&str]| Some(choices[pick as usize % choices.len()].to_owned());
    match key {
        "model.revision" => word(&["9c1f2ab", "main", "refs/pr/3"]),
        "model.served_name" => word(&["qwen", "\"Qwen/Qwen3 8B\"", "M"]),
        "model.tokenizer" => word(&["org/tok", "/t/k"]),
        "model.dtype" => word(&["bfloat16", "auto"]),
        "model.quantization" => word(&["fp8", "awq"]),
        "model.load_format" => word(&["dummy", "safetensors"]),
        "parallel.tensor" | "parallel.pipeline" | "parallel.data" | "parallel.expert" => number(&[1, 2, 8]),
        "speculative.method" => {
            let row = definition.settings.get(key)?;
            let mut words: Vec<&str> =
                row.spellings.iter().flat_map(|spelling| spelling.values.keys().map(String::as_str)).collect();
            words.extend(["mtp", "eagle", "eagle3", "draft", "ngram"]);
            word(&words)
        }
        "speculative.steps" => number(&[1, 3, 5]),
        "speculative.topk" => number(&[1, 4]),
        "speculative.draft_tokens" => number(&[4, 6, 16]),
        "speculative.model" => word(&["org/head", "/models/draft.gguf"]),
        "memory.fraction" => word(&["0.88", "90%", "0.5"]),
        "memory.kv_dtype" => word(&["fp8", "q8_0", "auto"]),
        "memory.gpu_layers" => number(&[0, 33, 99]),
        "context_length" => word(&["128k", "4096", "5000"]),
        "max_running_requests" => number(&[1, 16, 48]),
        "graphs.enabled" => word(&["true", "false"]),
        "graphs.max_batch" => number(&[8, 16]),
        "graphs.batches" => word(&["[1, 2, 4, 8]", "[16]"]),
        "attention_backend" => word(&["triton", "flashinfer"]),
        "instrument" => word(&["on", "off"]),
        _ => None,
    }
}

/// A profile with some of the settings that the engine has in that version.
fn profile_text(kind: EngineKind, version: &Version, picks: &[(bool, u32)], extra: &str) -> String {
    let definition = definition(kind);
    let model = if kind == EngineKind::Llamacpp { "/models/a.gguf" } else { "Org/Model" };
    let mut groups: BTreeMap<String, Vec<String>> = [("model".to_owned(), vec![format!("path: {model}")])].into();
    let mut text = format!("engine: {} =={version}\n", kind.word());
    for (key, (chosen, pick)) in engine::settings::KEYS.iter().zip(picks) {
        let has = definition.settings.get(*key).is_some_and(|row| {
            let known = [("speculative.method".to_owned(), Value::from("mtp"))].into_iter().collect();
            !matches!(row.choose(version, &known), Choice::Gone | Choice::NotHere)
        });
        let Some(value) = value(key, &definition, *pick).filter(|_| *chosen && has) else { continue };
        match key.split_once('.') {
            Some((group, field)) => groups.entry(group.to_owned()).or_default().push(format!("{field}: {value}")),
            None => text.push_str(&format!("{key}: {value}\n")),
        }
    }
    for (group, fields) in groups {
        text.push_str(&format!("{group}: {{{}}}\n", fields.join(", ")));
    }
    text + extra
}

/// Flags and environment of the engine's own, in the names that each engine has for a number, a text and a switch.
fn extra(
    kind: EngineKind,
    number: Option<u32>,
    text: Option<&str>,
    switch: bool,
    env: &BTreeMap<String, String>,
) -> String {
    let [of_number, of_text, of_switch] = match kind {
        EngineKind::Sglang => ["chunked-prefill-size", "chat-template", "disable-radix-cache"],
        EngineKind::Vllm => ["max-num-batched-tokens", "chat-template", "async-scheduling"],
        _ => ["ubatch-size", "chat-template", "no-warmup"],
    };
    let mut given = Vec::new();
    given.extend(number.map(|number| format!("  {of_number}: {number}\n")));
    given.extend(text.map(|text| format!("  {of_text}: {}\n", json(text))));
    given.extend(switch.then(|| format!("  {of_switch}: true\n")));
    let mut lines = if given.is_empty() { String::new() } else { format!("flags:\n{}", given.concat()) };
    if !env.is_empty() {
        let env = env.iter().map(|(name, value)| format!("  {name}: {}\n", json(value)));
        lines.push_str(&format!("env:\n{}", env.collect::<String>()));
    }
    lines
}

/// A text as a profile holds it, with `${` as it stands.
fn json(text: &str) -> String {
    Value::from(text.replace("${", "$${")).to_string()
}

/// The same profiles each time, so that a failure comes back; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` give others.
fn config() -> ProptestConfig {
    let of = ProptestConfig::default();
    let chosen = |name: &str| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if chosen("PROPTEST_CASES") { of.cases } else { 250 },
        rng_seed: if chosen("PROPTEST_RNG_SEED") { of.rng_seed } else { RngSeed::Fixed(20_261_130) },
        failure_persistence: None,
        ..of
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_profiles_of_all_engines_come_back_from_their_commands(
        engine in 0..3_usize,
        version in 0..8_usize,
        picks in prop::collection::vec((prop::bool::weighted(0.3), any::<u32>()), engine::settings::KEYS.len()),
        number in prop::option::of(1..100_000_u32),
        text in prop::option::of("[a-zA-Z0-9_./:{][a-zA-Z0-9 _./:{}\"'$%\\\\#=,~!*-]{0,11}"),
        switch in any::<bool>(),
        env in prop::collection::btree_map("X_[A-Z]{1,5}", "[a-zA-Z0-9 _./:{}\"'$%\\\\#=,~!*-]{1,12}", 0..3),
    ) {
        let kind = [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp][engine];
        let versions = versions(kind);
        let version = &versions[version % versions.len()];
        let extra = extra(kind, number, text.as_deref(), switch, &env);
        holds(&profile_text(kind, version, &picks, &extra), version)?;
    }
}

#[test]
fn each_setting_of_each_engine_comes_back_by_itself() {
    let mut held = 0;
    for kind in [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp] {
        for version in versions(kind) {
            for place in 0..engine::settings::KEYS.len() {
                for pick in 0..3 {
                    let mut picks = vec![(false, pick); engine::settings::KEYS.len()];
                    picks[place].0 = true;
                    let text = profile_text(kind, &version, &picks, "");
                    held += usize::from(holds(&text, &version).unwrap_or_else(|error| panic!("{error}")));
                }
            }
        }
    }
    // Most of them render alone; some need another beside them.
    assert!(held > 250, "{held} profiles rendered");
}
