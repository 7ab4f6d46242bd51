//! Logs of SGLang and vLLM read by their definitions: those of the log corpus, and those that the simulated engine
//! writes. The corpus is found by `ORCH_CORPUS` (default `../shared/corpus`); it is not part of the repository, and
//! without it a test says so and passes, except in CI.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use orch::diagnose::{Context, diagnose};
use orch::gate::LogGrammar;
use orch::gate::log::{SavedLog, Startup, read};
use orch::profile::EngineKind;
use regex::{Captures, Regex};
use serde_json::Value;

/// Grammars are compiled once: each holds hundreds of patterns.
static GRAMMARS: LazyLock<Vec<(EngineKind, LogGrammar)>> = LazyLock::new(|| {
    let kinds = [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp];
    let grammar = |kind| LogGrammar::new(&orch::engine::definition(kind, &[]).unwrap().log).unwrap();
    kinds.into_iter().map(|kind| (kind, grammar(kind))).collect()
});

fn grammar(engine: EngineKind) -> &'static LogGrammar {
    &GRAMMARS.iter().find(|(kind, _)| *kind == engine).unwrap().1
}

fn startup(engine: EngineKind, log: &Path) -> Startup {
    read(log, grammar(engine), None).unwrap().startup
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

fn stopped(startup: &Startup) -> Option<&str> {
    startup.root().map(|root| root.kind.as_str())
}

fn phases(startup: &Startup) -> Vec<&str> {
    startup.phases().iter().map(|phase| phase.name.as_str()).collect()
}

#[test]
fn healthy_starts_of_real_engines_go_through_their_phases() {
    let Some(real) = corpus("real") else { return };
    let sglang = startup(EngineKind::Sglang, &real.join("sglang-0.5.23-cpu-healthy.log"));
    assert_eq!(phases(&sglang), ["launch", "config", "dist_init", "weights", "kv_pool", "http_up", "warmup"]);
    // In the end they were asked to stop, and that is all.
    assert_eq!((sglang.phase(), stopped(&sglang)), ("serving", Some("killed_by_supervisor")));
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
        assert_eq!((vllm.phase(), stopped(&vllm)), ("serving", Some("killed_by_supervisor")), "{log}");
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

/// A case of the log corpus: what is known beside its log, and what must be said.
struct Case {
    id: String,
    engine: EngineKind,
    log: Vec<u8>,
    known: serde_json::Map<String, Value>,
    expect: Value,
}

impl Case {
    /// What is said with these of the keys that are known beside the log.
    fn diagnosed(&self, keys: &[&str]) -> Value {
        let known = self.known.iter().filter(|(key, value)| keys.contains(&key.as_str()) && !value.is_null());
        let context: Context =
            serde_json::from_value(Value::Object(known.map(|(k, v)| (k.clone(), v.clone())).collect())).unwrap();
        said(self.engine, &self.log, &context)
    }
}

const LOG_ONLY: &[&str] = &["engine", "topology", "speculative", "observed"];
const ALL: &[&str] = &["engine", "topology", "speculative", "observed", "baseline", "side_facts"];

fn said(engine: EngineKind, log: &[u8], context: &Context) -> Value {
    let grammar = grammar(engine);
    let saved = SavedLog::stream(std::io::Cursor::new(log.to_vec())).unwrap();
    let startup = saved.fold(grammar, None).unwrap();
    serde_json::to_value(diagnose(&startup, grammar, Some(orch::engine::kind_word(engine)), context)).unwrap()
}

fn cases() -> Option<Vec<Case>> {
    let folder = corpus("logs")?;
    let text = std::fs::read_to_string(folder.join("cases.yaml")).unwrap();
    let all: Value = serde_yaml::from_str(&text).unwrap();
    let case = |case: &Value| Case {
        id: case["id"].as_str().unwrap().to_owned(),
        engine: match case["engine"].as_str().unwrap() {
            "sglang" => EngineKind::Sglang,
            "vllm" => EngineKind::Vllm,
            _ => EngineKind::Llamacpp,
        },
        log: std::fs::read(folder.join(case["file"].as_str().unwrap())).unwrap(),
        known: ALL.iter().filter_map(|key| Some(((*key).to_owned(), case.get(*key)?.clone()))).collect(),
        expect: case["expect"].clone(),
    };
    Some(all["cases"].as_array().unwrap().iter().map(case).collect())
}

fn close(read: Option<&Value>, wanted: &Value) -> bool {
    match (read.and_then(Value::as_f64), wanted.as_f64()) {
        (Some(read), Some(wanted)) => (read - wanted).abs() <= wanted.abs() * 0.01,
        _ => read == Some(wanted),
    }
}

/// What differs from what must be said.
fn differences(case: &Case) -> Vec<String> {
    let mut wrong = Vec::new();
    let expect = &case.expect;
    let log_only = case.diagnosed(LOG_ONLY);
    if log_only["state"] != expect["log_only_state"] {
        wrong.push(format!("{}: log only {} want {}", case.id, log_only["state"], expect["log_only_state"]));
    }
    let all = case.diagnosed(ALL);
    for key in ["state", "phase", "failure_kind", "root_cause_line", "root_cause_line_no"] {
        if all[key] != expect[key] {
            wrong.push(format!("{}: {key} {} want {}", case.id, all[key], expect[key]));
        }
    }
    for key in ["done", "total", "unit"] {
        if all["progress"][key].as_f64() != expect["progress"][key].as_f64()
            || all["progress"][key].as_str() != expect["progress"][key].as_str()
        {
            wrong.push(format!("{}: progress {} want {}", case.id, all["progress"], expect["progress"]));
        }
    }
    for (key, value) in expect["facts"].as_object().into_iter().flatten() {
        if !close(all["facts"].get(key), value) {
            wrong.push(format!("{}: {key} {:?} want {value}", case.id, all["facts"].get(key)));
        }
    }
    let line = all["root_cause_line"].as_str().unwrap_or_default();
    for decoy in expect["not_root_cause"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if line.contains(decoy) {
            wrong.push(format!("{}: took the decoy {decoy}", case.id));
        }
    }
    // By the bytes alone nothing is said that they do not prove.
    let bytes = case.diagnosed(&["engine"]);
    if !matches!(bytes["state"].as_str(), Some("failed" | "ready" | "unknown" | "degraded")) {
        wrong.push(format!("{}: by its bytes {}", case.id, bytes["state"]));
    }
    let kind = &bytes["failure_kind"];
    if !kind.is_null() && *kind != expect["failure_kind"] && expect["state"] == expect["log_only_state"] {
        wrong.push(format!("{}: by its bytes {kind}", case.id));
    }
    wrong
}

#[test]
fn every_log_of_the_corpus_is_read_right() {
    let Some(cases) = cases() else { return };
    let wrong: Vec<String> = cases.iter().flat_map(differences).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// A log in which other hosts, addresses, processes, times and sizes stand, each changed in the same way wherever it is.
fn rewritten(text: &str) -> String {
    let change = |text: String, pattern: &str, new: &dyn Fn(&Captures<'_>) -> String| {
        Regex::new(pattern).unwrap().replace_all(&text, |groups: &Captures<'_>| new(groups)).into_owned()
    };
    let twice = |number: &str| {
        let digits = number.split_once('.').map_or(0, |(_, digits)| digits.len());
        format!("{:.digits$}", number.parse::<f64>().unwrap() * 2.0)
    };
    let text = change(text.to_owned(), r"(\d+\.\d+)/(\d+\.\d+) GiB", &|groups| {
        format!("{}/{} GiB", twice(&groups[1]), &groups[2])
    });
    let text = change(text, r"(\d+(?:\.\d+)?)( ?)(GB|GiB|MiB)\b", &|groups| {
        format!("{}{}{}", twice(&groups[1]), &groups[2], &groups[3])
    });
    let text = change(text, r"\b(\d\d):(\d\d):(\d\d)\b", &|groups| {
        format!("{:02}:{}:{}", (groups[1].parse::<u32>().unwrap() + 5) % 24, &groups[2], &groups[3])
    });
    let text = change(text, r"\b(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})\b", &|groups| {
        if groups[4].len() == 3 || &groups[1] == "0" {
            groups[0].to_owned()
        } else {
            format!("192.168.{}.{}", &groups[3], &groups[4])
        }
    });
    let text = change(text, r"pid=(\d+)", &|groups| format!("pid={}", groups[1].parse::<u64>().unwrap() + 4000));
    text.replace("/models/", "/data/other/").replace("node-a", "host-77").replace("gpu-b07", "n2-x9")
}

#[test]
fn other_names_and_numbers_make_no_difference() {
    let Some(cases) = cases() else { return };
    let mut wrong = Vec::new();
    for mut case in cases {
        // A clock that passes midnight, or one in the middle of a record, is another thing.
        case.log = rewritten(&String::from_utf8_lossy(&case.log)).into_bytes();
        if let Some(line) = case.expect["root_cause_line"].as_str().map(rewritten) {
            case.expect["root_cause_line"] = line.into();
        }
        let facts = case.expect["facts"].as_object_mut().unwrap();
        for (_, value) in facts.iter_mut().filter(|(key, _)| key.ends_with("_gb") || key.ends_with("_mib")) {
            *value = (value.as_f64().unwrap() * 2.0).into();
        }
        wrong.extend(differences(&case));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn other_logs_of_each_kind_are_read_right() {
    let text = std::fs::read_to_string("tests/data/logs/variants.yaml").unwrap();
    let all: Vec<Value> = serde_yaml::from_str(&text).unwrap();
    let mut wrong = Vec::new();
    for one in all {
        let engine = match one["engine"].as_str().unwrap() {
            "sglang" => EngineKind::Sglang,
            "vllm" => EngineKind::Vllm,
            _ => EngineKind::Llamacpp,
        };
        let said = said(engine, one["log"].as_str().unwrap().as_bytes(), &Context::default());
        let kind = one["kind"].as_str();
        let line = said["root_cause_line"].as_str().unwrap_or_default();
        if said["failure_kind"].as_str() != kind || !line.contains(one["root"].as_str().unwrap_or_default()) {
            wrong.push(format!("want {kind:?}, {}: {line}", said["failure_kind"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
