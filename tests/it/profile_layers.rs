//! A profile is put together: layers, `--set`, `${NAME}`, workloads; and what comes out is written down and read again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orch::profile::{
    Bench, EngineKind, Expectation, Flag, Length, Loaded, Output, Port, PrefixCache, ProfileError, Request, Via,
};

/// A folder of profiles.
struct Profiles {
    folder: tempfile::TempDir,
    env: BTreeMap<&'static str, &'static str>,
}

impl Profiles {
    fn new(files: &[(&str, &str)]) -> Self {
        let profiles = Profiles { folder: tempfile::tempdir().unwrap(), env: BTreeMap::new() };
        for (name, text) in files {
            profiles.write(name, text);
        }
        profiles
    }

    fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.insert(name, value);
        self
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn load(&self, profile: &str, set: &[&str]) -> Result<Loaded, ProfileError> {
        let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
        let env = |name: &str| self.env.get(name).map(|value| (*value).to_owned());
        let folders = [self.folder.path().to_owned()];
        orch::profile::load(&Request { profile, set: &set, folders: &folders, env: &env })
    }

    fn codes(&self, profile: &str, set: &[&str]) -> Vec<String> {
        let error = self.load(profile, set).unwrap_err();
        error.faults().map(|fault| fault.code.trim_start_matches("orch::profile::").to_owned()).collect()
    }
}

fn told(error: ProfileError) -> Vec<String> {
    error.faults().map(|fault| fault.message).collect()
}

const SMALL: &str = "engine: sglang\nmodel: Qwen/Qwen3-8B\n";

#[test]
fn the_whole_vocabulary() {
    let path = root().join("tests/data/profiles/good/full.yaml");
    let profile = Profiles::new(&[]).load(path.to_str().unwrap(), &[]).unwrap().profile;
    assert_eq!((profile.name.as_str(), profile.series.as_str()), ("qwen-mtp3", "qwen36-27b"));
    assert_eq!(profile.engine.kind, EngineKind::Sglang);
    assert_eq!(profile.engine.version.as_deref(), Some(">=0.5.9"));
    assert_eq!(profile.model.path, "Qwen/Qwen3.6-27B");
    assert_eq!(profile.model.revision.as_deref(), Some("9c1f2ab"));
    assert_eq!(profile.port, Port::Auto);
    assert_eq!(profile.parallel.tensor, Some(2));
    let speculative = profile.speculative.unwrap();
    assert_eq!((speculative.method.as_str(), speculative.steps), ("mtp", Some(3)));
    assert_eq!(profile.memory.fraction, Some(0.88));
    assert_eq!(profile.context_length, Some(131_072));
    let text = |text: &str| Flag::Value(text.to_owned());
    assert_eq!(profile.flags["reasoning-parser"], text("qwen3"));
    assert_eq!(profile.flags["chunked-prefill-size"], text("8192"));
    assert_eq!(profile.flags["bare"], Flag::Switch(true));
    assert_eq!(profile.flags["quoted"], text("true"));
    assert_eq!(profile.flags["many"], Flag::List(vec!["1".into(), "0.10".into(), "no".into()]));
    assert_eq!(profile.env["NORWAY"], "no");
    assert_eq!(profile.env["VERSION"], "0.10");
    assert!(!profile.instrument && profile.share);
    assert_eq!(profile.launch.via, Via::Docker { image: "lmsysorg/sglang:v0.5.9".into(), options: vec![] });
    assert_eq!(profile.launch.abandon, Duration::from_secs(90));
    assert_eq!(profile.gate.timeout, Some(Duration::from_secs(5400)));
    assert_eq!(profile.gate.patience["graph_capture"], Duration::from_secs(900));
    assert_eq!(profile.bench.keys().collect::<Vec<_>>(), ["single", "ladder", "exact", "own"]);
    let single = &profile.bench["single"];
    assert_eq!((single.workload.as_deref(), single.requests), (Some("chat-mix"), Some(48)));
    assert!(matches!(single.inline.output, Some(Output::Natural { max_tokens: 256, .. })));
    let kinds: Vec<_> = single.inline.texts[..4].iter().map(|prompt| prompt.id.split('-').next().unwrap()).collect();
    assert_eq!(kinds, ["chat", "code", "extraction", "reasoning"]);
    assert_eq!(profile.bench["ladder"].concurrency, [4, 8, 16]);
    let exact = &profile.bench["exact"];
    assert_eq!(exact.inline.input_tokens, Some(Length::Exact(1000)));
    assert_eq!(exact.inline.output_tokens, Some(Length::Normal { mean: 500.0, stdev: 50.0, min: 100, max: 900 }));
    assert_eq!(exact.rate, [2.0, 4.5]);
    let own = &profile.bench["own"];
    assert_eq!(own.workload, None);
    assert_eq!(own.inline.output, Some(Output::Exact { exact: Length::Range { from: 10, to: 20 } }));
    assert_eq!(own.inline.prefix_cache, Some(PrefixCache::HitRatio(0.6)));
    assert_eq!(own.inline.sampling.as_ref().unwrap()["stop"], serde_json::json!(["x"]));
    assert_eq!(profile.expect["effective.max_running_requests"], Expectation::Number(16.0));
    assert_eq!(profile.expect["acceptance_length"], Expectation::Text(">= 2.4".into()));
    assert_eq!(profile.expect["ttft_ms.p99"], Expectation::Text("< 500".into()));
    assert_eq!(profile.expect["effective.attention_backend"], Expectation::Text("triton".into()));
    assert_eq!(profile.tolerance["output_tokens_per_s"].relative, Some(0.03));
    let tolerance = profile.tolerance["ttft_ms.p90"];
    assert_eq!((tolerance.relative, tolerance.absolute), (Some(0.1), Some(20.0)));
    assert_eq!((profile.repeat.starts, profile.repeat.runs), (5, 1));
    let suspect = profile.suspect.unwrap();
    assert_eq!((suspect.restarts, suspect.control.as_deref()), (1, Some("baseline")));
    let before = profile.hooks.before_launch.unwrap();
    assert_eq!(
        (before.command, before.timeout),
        (vec!["./drop".into(), "--all".into(), "a b".into()], Duration::from_secs(60))
    );
    assert_eq!(profile.hooks.after_stop.unwrap().timeout, Duration::from_secs(120));
    assert_eq!(profile.quality.unwrap().file, path.with_file_name("answers.jsonl"));
}

#[test]
fn defaults_are_as_the_reference_says() {
    let profile = Profiles::new(&[("small.yaml", SMALL)]).load("small", &[]).unwrap().profile;
    assert_eq!((profile.name.as_str(), profile.series.as_str()), ("small", "small"));
    assert_eq!(profile.port, Port::Auto);
    assert!(profile.instrument && !profile.share);
    assert_eq!(profile.launch.via, Via::Process);
    assert_eq!(profile.launch.abandon, Duration::from_secs(900));
    assert_eq!(profile.gate.timeout, None);
    assert_eq!((profile.repeat.starts, profile.repeat.runs), (1, 1));
    assert!(profile.bench.is_empty() && profile.speculative.is_none() && profile.suspect.is_none());
}

#[test]
fn layers_lie_over_each_other() {
    let profiles = Profiles::new(&[
        (
            "layers/base.yaml",
            "engine: sglang >=0.5\nmemory: {fraction: 0.8, kv_dtype: fp8}\nflags: {a: 1, b: [1, 2], old: 3}\n",
        ),
        ("layers/left.yaml", "extends: base\nmemory: {fraction: 0.85}\n"),
        ("layers/right.yaml", "extends: base\nflags: {b: [3]}\n"),
        (
            "top.yaml",
            "extends: [layers/left, layers/right.yaml]\nmodel: m\nengine: {executable: /opt/sglang}\nflags: {old: null, c: 4}\n",
        ),
    ]);
    let loaded = profiles.load("top", &["flags.d=5", "memory.kv_dtype=null"]).unwrap();
    let profile = loaded.profile;
    // The base lies below both, once: the right one does not bring its fraction back.
    assert_eq!(profile.memory.fraction, Some(0.85));
    assert_eq!(profile.memory.kv_dtype, None);
    assert_eq!(profile.engine.version.as_deref(), Some(">=0.5"));
    assert_eq!(profile.engine.executable.as_deref(), Some("/opt/sglang"));
    assert_eq!(profile.flags.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(profile.flags["b"], Flag::List(vec!["3".into()]));
    let names: Vec<_> = loaded.layers.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["base.yaml", "left.yaml", "right.yaml", "top.yaml"]);
}

#[test]
fn a_profile_elsewhere_finds_layers_and_workloads_of_the_profile_folder() {
    let profiles = Profiles::new(&[
        ("layers/base.yaml", SMALL),
        ("workloads/mine.yaml", "prompts: [mine.txt]\noutput: {stop: natural, max_tokens: 9}\n"),
        ("workloads/mine.txt", "first\n\nsecond\nfirst\n"),
    ]);
    let elsewhere =
        Profiles::new(&[("p.yaml", "extends: base\nbench:\n  one: {use: mine, concurrency: 1, requests: 2}\n")]);
    let path = elsewhere.folder.path().join("p.yaml");
    let profile = profiles.load(path.to_str().unwrap(), &[]).unwrap().profile;
    let texts: Vec<_> = profile.bench["one"].inline.texts.iter().map(|p| (p.id.as_str(), p.text.as_str())).collect();
    assert_eq!(texts, [("mine-001", "first"), ("mine-003", "second")]);
}

#[test]
fn a_workload_of_the_user_is_found_before_the_built_in_one() {
    let profiles = Profiles::new(&[
        (
            "p.yaml",
            "engine: sglang\nmodel: m\nbench:\n  one: {use: chat, concurrency: 1, requests: 2}\n  two: {use: chat, output_tokens: 5, seed: 3, concurrency: 1, requests: 2}\n",
        ),
        ("workloads/chat.yaml", "prompts: [mine.jsonl]\noutput: {stop: natural, max_tokens: 9}\nseed: 1\n"),
        ("workloads/mine.jsonl", "{\"id\": \"x\", \"prompt\": \"hello\"}\n"),
    ]);
    let profile = profiles.load("p", &[]).unwrap().profile;
    let one = &profile.bench["one"].inline;
    assert_eq!((one.texts.len(), one.texts[0].text.as_str(), one.seed), (1, "hello", Some(1)));
    // What a measurement says itself wins, and an exact length takes the place of the natural end.
    let two = &profile.bench["two"].inline;
    assert_eq!((two.seed, &two.output, &two.output_tokens), (Some(3), &None, &Some(Length::Exact(5))));
}

#[test]
fn the_environment_fills_in_values() {
    let profiles = Profiles::new(&[(
        "p.yaml",
        "engine: ${ENGINE}\nmodel: ${ROOT}/m\nport: ${PORT:-31000}\nmemory: {fraction: \"${FRACTION:-0.9}\"}\nenv: {LITERAL: \"$${HOME} costs $5\"}\nmax_running_requests: ${N}\n",
    )])
    .env("ENGINE", "sglang >=0.5.9")
    .env("ROOT", "/models")
    .env("N", "16");
    let loaded = profiles.load("p", &[]).unwrap();
    let profile = loaded.profile;
    assert_eq!(profile.engine.version.as_deref(), Some(">=0.5.9"));
    assert_eq!(profile.model.path, "/models/m");
    assert_eq!(profile.port, Port::Fixed(31000));
    assert_eq!(profile.memory.fraction, Some(0.9));
    assert_eq!(profile.max_running_requests, Some(16));
    assert_eq!(profile.env["LITERAL"], "${HOME} costs $5");
    assert!(loaded.yaml.contains("$${HOME}"), "{}", loaded.yaml);
    // A value from the environment is a value: no second key, no list, whatever it holds.
    let sly = Profiles::new(&[("p.yaml", "engine: sglang\nmodel: ${M}\nenv: {A: \"${M}\"}\n")])
        .env("M", "x\nport: 1, y: [a]");
    let profile = sly.load("p", &[]).unwrap().profile;
    assert_eq!(profile.model.path, "x\nport: 1, y: [a]");
    assert_eq!(profile.port, Port::Auto);
}

#[test]
fn what_a_layer_below_lost_is_not_expanded() {
    let profiles =
        Profiles::new(&[("base.yaml", "engine: sglang\nmodel: ${NOT_SET}\n"), ("p.yaml", "extends: base\nmodel: m\n")]);
    assert_eq!(profiles.load("p", &[]).unwrap().profile.model.path, "m");
    assert_eq!(profiles.codes("base", &[]), ["unset_variable"]);
}

#[test]
fn steps_of_zero_are_no_speculation() {
    let profiles =
        Profiles::new(&[("p.yaml", "engine: sglang\nmodel: m\nspeculative: {method: mtp, steps: 3, topk: 1}\n")]);
    assert!(profiles.load("p", &["speculative.steps=0"]).unwrap().profile.speculative.is_none());
    assert!(profiles.load("p", &["speculative=null"]).unwrap().profile.speculative.is_none());
    assert_eq!(profiles.codes("p", &["speculative.method=null"]), ["contradiction", "contradiction"]);
}

#[test]
fn a_fraction_is_not_inherited_across_engines() {
    let profiles = Profiles::new(&[
        ("base.yaml", "engine: sglang\nmodel: m\nmemory: {fraction: 0.88}\n"),
        ("vllm.yaml", "extends: base\nengine: vllm\n"),
        ("own.yaml", "extends: base\nengine: vllm\nmemory: {fraction: 0.9}\n"),
        ("neutral.yaml", "memory: {fraction: 0.88}\n"),
        ("on_neutral.yaml", "extends: neutral\nengine: vllm\nmodel: m\n"),
        ("sim.yaml", "extends: base\nengine: {kind: sim, as: sglang}\n"),
        ("other_sim.yaml", "extends: base\nengine: {kind: sim, as: vllm}\n"),
    ]);
    assert_eq!(profiles.codes("vllm", &[]), ["inherited_across_engines"]);
    assert_eq!(profiles.codes("base", &["engine.kind=vllm"]), ["inherited_across_engines"]);
    assert_eq!(profiles.codes("other_sim", &[]), ["inherited_across_engines"]);
    for (name, set) in [
        ("own", vec![]),
        ("on_neutral", vec![]),
        ("sim", vec![]),
        ("vllm", vec!["memory.fraction=0.9"]),
        ("vllm", vec!["memory=null"]),
    ] {
        assert!(profiles.load(name, &set).is_ok(), "{name} {set:?}");
    }
}

#[test]
fn an_unreadable_layer_does_not_make_more_faults_of_what_it_may_hold() {
    let profiles = Profiles::new(&[
        ("base.yaml", "engine: [\n"),
        ("p.yaml", "extends: base\nparallel: {tensr: 1}\nspeculative: {steps: 3}\n"),
    ]);
    assert_eq!(profiles.codes("p", &[]), ["unknown_key", "syntax"]);
}

#[test]
fn a_command_and_a_simulated_engine() {
    let profiles = Profiles::new(&[
        (
            "own.yaml",
            "engine: {kind: command, command: [serve, --port, \"{port}\"], ready: {log: 'listening on \\d+', http: /health}}\nmodel: m\n",
        ),
        (
            "sim.yaml",
            "engine: {kind: sim, as: sglang, scenario: {seed: 1, speed: {ttft: 50ms}, acceptance: [0.8, 0.6]}}\n",
        ),
        ("sim_file.yaml", "engine: {kind: sim, as: sglang, scenario: fast.yaml}\n"),
        ("fast.yaml", "seed: 1\n"),
    ]);
    let engine = profiles.load("own", &[]).unwrap().profile.engine;
    assert_eq!(engine.command, ["serve", "--port", "{port}"]);
    assert_eq!(engine.ready.unwrap().http.as_deref(), Some("/health"));
    let sim = profiles.load("sim", &["engine.scenario.speed.step=20ms"]).unwrap().profile;
    assert_eq!(sim.model.path, "simulated");
    assert_eq!(
        sim.engine.scenario.unwrap(),
        serde_json::json!({"seed": 1, "speed": {"ttft": "50ms", "step": "20ms"}, "acceptance": [0.8, 0.6]})
    );
    let scenario = profiles.load("sim_file", &[]).unwrap().profile.engine.scenario.unwrap();
    assert_eq!(scenario, serde_json::json!({"seed": 1}), "the file's text, so that a record is whole");
}

#[test]
fn a_secret_is_a_name_and_nothing_more() {
    let profiles =
        Profiles::new(&[("p.yaml", "engine: sglang\nmodel: m\nsecrets: [HF_TOKEN]\n")]).env("HF_TOKEN", "hush-hush");
    let loaded = profiles.load("p", &[]).unwrap();
    assert_eq!(loaded.profile.secrets, ["HF_TOKEN"]);
    assert!(!loaded.yaml.contains("hush"));
    assert_eq!(profiles.codes("p", &["flags.token=\"${HF_TOKEN}\""]), ["secret_in_value"]);
}

#[test]
fn the_resolved_profile_reads_back_as_the_same_profile() {
    let files: Vec<PathBuf> = orch_profiles();
    assert!(files.iter().any(|path| path.ends_with("workloads/chat-mix.yaml")));
    let folders = [root().join("profiles")];
    let mut seen = 0;
    for path in files.iter().filter(|path| is_profile(path)) {
        let env = |_: &str| None;
        let load = |profile: &str| orch::profile::load(&Request { profile, set: &[], folders: &folders, env: &env });
        let first =
            load(path.to_str().unwrap()).unwrap_or_else(|error| panic!("{}: {:?}", path.display(), told(error)));
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy.yaml");
        std::fs::write(&copy, &first.yaml).unwrap();
        let again = load(copy.to_str().unwrap()).unwrap_or_else(|error| panic!("{}: {:?}", first.yaml, told(error)));
        assert_eq!(again.profile, first.profile, "{}", path.display());
        assert_eq!(again.yaml, first.yaml);
        // A record holds it as JSON.
        let json = serde_json::to_value(&first.profile).unwrap();
        let mut from_json: orch::profile::Profile = serde_json::from_value(json).unwrap();
        for (name, Bench { inline, .. }) in &mut from_json.bench {
            inline.texts = first.profile.bench[name].inline.texts.clone();
        }
        assert_eq!(from_json, first.profile);
        seen += 1;
    }
    assert!(seen > 0, "no profile was tried");
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All YAML files below `profiles/`, and a profile that has every key.
pub(crate) fn orch_profiles() -> Vec<PathBuf> {
    let mut found = vec![root().join("tests/data/profiles/good/full.yaml")];
    let mut folders = vec![root().join("profiles")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "yaml") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Whether it is a whole profile: not a layer, a workload, a sweep or a suite.
pub(crate) fn is_profile(path: &Path) -> bool {
    let is_in = |name: &str| path.parent().is_some_and(|folder| folder.ends_with(name));
    (is_in("profiles") || is_in("profiles/good")) && !path.ends_with("hosts.yaml")
}
