//! Records as they might have been measured, and the program run over them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use jiff::SignedDuration;
use orch::measure::{Distribution, METRICS_VERSION, MetricValue, Percentile};
use orch::record::RunId;
use orch::record::model::*;
use orch::render::{Arrival, Load};
use serde_json::{Value, json};

/// A record that is built up.
#[derive(Clone)]
pub(crate) struct Built(pub(crate) Record);

/// A good run with nothing measured yet. The time is in its id.
pub(crate) fn run(id: &str) -> Built {
    let parsed: RunId = id.parse().unwrap();
    let started_at = parsed.began_at().unwrap();
    Built(Record {
        schema: SCHEMA,
        metrics_version: METRICS_VERSION,
        id: id.to_owned(),
        kind: RunKind::Run,
        complete: true,
        started_at,
        ended_at: Some(started_at + SignedDuration::from_secs(684)),
        orch: OrchInfo { version: "0.1.0".into(), commit: None },
        series: "qwen36-27b".into(),
        profile: json!({
            "name": "qwen-mtp3", "series": "qwen36-27b", "port": "auto",
            "speculative": {"method": "mtp", "steps": 3}, "memory": {"fraction": 0.88},
        }),
        engine: Some(EngineInfo { kind: "sglang".into(), version: "0.5.23".into(), simulated: false }),
        command: ["python", "-m", "sglang.launch_server", "--host", "127.0.0.1", "--model", "Qwen 3"]
            .map(str::to_owned)
            .into(),
        host: HostInfo { name: "ct129".into(), hardware: "2x RTX A6000".into() },
        startup: Some(Startup {
            ready_s: Some(41.6),
            weights_cache: Some("warm".into()),
            jit_cache: Some("warm".into()),
            phases: vec![
                PhaseTime { name: "weights".into(), s: 10.2 },
                PhaseTime { name: "graph_capture".into(), s: 6.8 },
            ],
            memory: vec![MemoryPoint { phase: "weights".into(), rank: 1, free_gb: 19.3, graphs: None }],
            facts: BTreeMap::new(),
        }),
        effective: vec![Effective {
            key: "max_running_requests".into(),
            asked: Some(json!(16)),
            read: Some(json!(10)),
        }],
        answers: vec![],
        steps: vec![],
        provenance: BTreeMap::new(),
        verdict: Verdict { kind: VerdictKind::NoBaseline, reasons: vec![], cause: None },
        comparisons: vec![],
        failure: None,
        warnings: vec![],
        group: None,
        left: Some(Left { gpu_mib: Some(0), ..Left::default() }),
        writer: None,
    })
}

impl Built {
    /// A step at a concurrency whose decode rate of a user is this; everything else follows from that.
    pub(crate) fn step(mut self, name: &str, concurrency: u32, decode: f64) -> Self {
        let tpot = 1000.0 / decode;
        let metrics = BTreeMap::from([
            ("output_tokens_per_s".to_owned(), MetricValue::Number(decode * f64::from(concurrency) * 0.95)),
            ("decode_tokens_per_s_per_user".to_owned(), MetricValue::Number(decode)),
            ("ttft_ms".to_owned(), distribution(48, 212.0, 1.02)),
            ("tpot_ms".to_owned(), distribution(48, tpot, 1.01)),
            ("e2e_ms".to_owned(), distribution(48, 212.0 + 255.0 * tpot, 1.2)),
        ]);
        self.0.steps.push(StepResult {
            name: name.to_owned(),
            valid: true,
            reasons: vec![],
            workload: "sha256:c4a7".into(),
            workload_name: "chat-mix".into(),
            load: Load { arrival: Arrival::Closed { concurrency }, requests: Some(48), duration_s: None, warmup: None },
            goodput: None,
            load_path: "beside".into(),
            counts: Counts { ok: 48, ..Counts::default() },
            metrics,
            errors: BTreeMap::new(),
            counters: BTreeMap::new(),
            warmup: None,
            client: None,
            sources: BTreeMap::new(),
            acceptance_by_position: Vec::new(),
            probe: false,
        });
        self
    }

    /// With a setting, by its path in the profile.
    pub(crate) fn setting(mut self, path: &str, value: Value) -> Self {
        let mut place = &mut self.0.profile;
        for key in path.split('.') {
            place = &mut place[key];
        }
        *place = value;
        self
    }

    /// Changed in some other way.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Record)) -> Self {
        change(&mut self.0);
        self
    }

    /// Writes it where `orch` finds it.
    pub(crate) fn keep(&self, results: &Path) {
        let folder = results.join("runs").join(&self.0.id);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("run.json"), serde_json::to_vec_pretty(&self.0).unwrap()).unwrap();
    }
}

/// So many samples around a median, the 90th percentile this much above it.
pub(crate) fn distribution(samples: u64, p50: f64, p90: f64) -> MetricValue {
    let enough = match samples {
        0..10 => None,
        10..50 => Some(Percentile::P90),
        _ => Some(Percentile::P99),
    };
    MetricValue::Distribution(Distribution {
        samples,
        mean: Some(p50),
        p50: Some(p50),
        p90: Some(p50 * p90),
        p95: Some(p50 * p90),
        p99: Some(p50 * p90),
        max: Some(p50 * p90),
        enough,
    })
}

/// What a command printed, and how it ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.out, self.err))
    }
}

/// Runs `orch` over the records in `results`.
pub(crate) fn orch(results: &Path, words: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orch"));
    command
        .arg("--results")
        .arg(results)
        .args(words)
        .env("NO_COLOR", "1")
        .env_remove("ORCH_RESULTS")
        .env_remove("ORCH_STORE");
    ended(&mut command)
}

/// Runs a command to its end.
pub(crate) fn ended(command: &mut Command) -> Ended {
    let output = command.output().unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
