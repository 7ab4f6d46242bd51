//! Logs of SGLang and vLLM read by their definitions: those of the log corpus, and those that the simulated engine
//! writes. The corpus is found by `ORCH_CORPUS` (default `../shared/corpus`); it is not part of the repository, and
//! without it a test says so and passes, except in CI.

use std::path::{Path, PathBuf};

use orch::gate::LogGrammar;
use orch::gate::log::{Startup, read};
use orch::profile::EngineKind;

fn startup(engine: EngineKind, log: &Path) -> Startup {
    let definition = orch::engine::definition(engine, &[]).unwrap();
    let grammar = LogGrammar::new(&definition.log).unwrap();
    read(log, &grammar, None).unwrap().startup
}

/// A folder of the corpus, or `None` with a word about it.
fn corpus(folder: &str) -> Option<PathBuf> {
    let root = std::env::var_os("ORCH_CORPUS").map_or_else(|| PathBuf::from("../shared/corpus"), PathBuf::from);
    let folder = root.join(folder);
    if folder.is_dir() {
        return Some(folder);
    }
    crate::support::skipped(&format!("{} is not there", folder.display()));
    None
}

fn phases(startup: &Startup) -> Vec<&str> {
    startup.phases().iter().map(|phase| phase.name.as_str()).collect()
}

#[test]
fn healthy_starts_of_real_engines_go_through_their_phases() {
    let Some(real) = corpus("real") else { return };
    let sglang = startup(EngineKind::Sglang, &real.join("sglang-0.5.23-cpu-healthy.log"));
    assert_eq!(phases(&sglang), ["launch", "config", "dist_init", "weights", "kv_pool", "http_up", "warmup"]);
    assert_eq!((sglang.phase(), sglang.root()), ("serving", None));
    assert_eq!(sglang.facts()["kv_tokens"], 8192);
    assert_eq!(sglang.facts()["max_running"], 2048);
    assert_eq!(sglang.facts()["avail_mem_gb"], 15.29);
    for (log, draft) in
        [("vllm-0.32.0-cpu-healthy.log", None), ("vllm-0.32.0-cpu-spec-ngram.log", Some("draft_weights"))]
    {
        let vllm = startup(EngineKind::Vllm, &real.join(log));
        let expected =
            ["launch", "config", "dist_init", "weights"].into_iter().chain(draft).chain(["kv_pool", "http_up"]);
        assert_eq!(phases(&vllm), expected.collect::<Vec<_>>(), "{log}");
        assert_eq!((vllm.phase(), vllm.root()), ("serving", None), "{log}");
        assert_eq!(vllm.facts()["context_len"], 1024, "{log}");
    }
}

#[test]
fn failed_starts_of_real_engines_have_their_kind() {
    let Some(real) = corpus("real") else { return };
    let failed = [
        (EngineKind::Sglang, "sglang-0.5.23-cpu-unknown-flag.log", "bad_flag"),
        (EngineKind::Sglang, "sglang-0.5.23-cpu-too-long-context.log", "bad_config"),
        (EngineKind::Sglang, "sglang-0.5.23-cpu-no-kv-memory.log", "oom_kv"),
        (EngineKind::Vllm, "vllm-0.32.0-cpu-unknown-flag.log", "bad_flag"),
        (EngineKind::Vllm, "vllm-0.32.0-cpu-port-in-use.log", "port_in_use"),
        (EngineKind::Vllm, "vllm-0.32.0-cpu-kv-too-large.log", "oom_kv"),
        (EngineKind::Vllm, "vllm-0.32.0-cpu-spec-eagle3-bad-weights.log", "draft_mismatch"),
    ];
    for (engine, log, kind) in failed {
        let startup = startup(engine, &real.join(log));
        let root = startup.root().unwrap_or_else(|| panic!("{log}: no cause"));
        assert_eq!(root.kind, kind, "{log}: {}", root.line);
    }
}

/// What these rules tell of the log corpus by its bytes alone. States that need more than the log (who is alive, how
/// long it is silent, a baseline) are not told yet.
#[test]
fn the_log_corpus_is_read_as_well_as_before() {
    let Some(folder) = corpus("logs") else { return };
    let text = std::fs::read_to_string(folder.join("cases.yaml")).unwrap();
    let cases: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    let (mut kinds, mut phases, mut all) = (0, 0, 0);
    for case in cases["cases"].as_array().unwrap() {
        let engine = match case["engine"].as_str().unwrap() {
            "sglang" => EngineKind::Sglang,
            "vllm" => EngineKind::Vllm,
            _ => EngineKind::Llamacpp,
        };
        let startup = startup(engine, &folder.join(case["file"].as_str().unwrap()));
        let expect = &case["expect"];
        let root = startup.root();
        let kind = root.map(|root| root.kind.as_str());
        let kind_fits = kind == expect["failure_kind"].as_str();
        let phase_fits = Some(startup.phase()) == expect["phase"].as_str();
        all += 1;
        kinds += i32::from(kind_fits);
        phases += i32::from(phase_fits);
        let mut facts = Vec::new();
        for (key, value) in expect["facts"].as_object().into_iter().flatten() {
            let read = startup.facts().get(key);
            let close = match (read.and_then(|v| v.as_f64()), value.as_f64()) {
                (Some(one), Some(two)) => (one - two).abs() <= two.abs() * 0.01,
                _ => read == Some(value),
            };
            if !close {
                facts.push(format!("{key}={value} read {read:?}"));
            }
        }
        eprintln!(
            "{} {} {}: kind {kind:?} want {}, phase {} want {}; facts {facts:?}; line {:?}",
            if kind_fits { "ok" } else { "KIND" },
            if phase_fits { "ok" } else { "PHASE" },
            case["id"],
            expect["failure_kind"],
            startup.phase(),
            expect["phase"],
            root.map(|root| root.line.chars().take(120).collect::<String>()),
        );
    }
    eprintln!("{kinds} kinds and {phases} phases of {all}");
    assert!(kinds >= 44 && phases >= 45, "{kinds} kinds and {phases} phases of {all}");
}
