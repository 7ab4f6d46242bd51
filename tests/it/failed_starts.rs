//! Starts that fail, of every kind that a start can have and on each engine: ended at the right moment, by the right rule,
//! with the right kind and something to do about it. In virtual time.

use orch::event::Event;
use orch::gate::Conduct;
use orch::gate::life::Look;
use orch::gate::starting::End;
use orch::launch::gpu::Reading;
use orch::sim::startup::{Ending, What};

use crate::virtual_start::{Outcome, S, Start, Told};

/// Kinds of a server that serves: no start can have them.
const OF_SERVING: [&str; 4] = ["garbage_output", "low_acceptance", "slow_decode", "stale_server"];
/// Kinds of which a server says something while it starts, and serves all the same.
const SERVES: [&str; 2] = ["cpu_fallback", "feature_off"];
/// Kinds that come while it serves, and in the last phase of a start when the server asks itself.
const IN_WARMUP: [&str; 2] = ["oom_runtime", "nan_output"];
/// What vLLM has no words of its own for.
const NOT_VLLM: [&str; 3] = ["load_timeout", "watchdog_timeout", "warmup_failed"];
/// Kinds without a line: nothing more comes, or the end comes from outside.
const SILENT: [&str; 4] = ["hang_collective", "rank_missing", "host_memory_stall", "killed_by_supervisor"];
/// What llama.cpp has words for.
const LLAMACPP: [&str; 10] = [
    "bad_flag",
    "weights_missing",
    "unsupported_model",
    "weights_mismatch",
    "draft_mismatch",
    "oom_weights",
    "oom_kv",
    "oom_profile",
    "port_in_use",
    "cuda_fault",
];

fn kinds(engine: &str) -> Vec<&'static str> {
    let has_words = |kind: &&str| match engine {
        "llamacpp" => LLAMACPP.contains(kind),
        "vllm" => !NOT_VLLM.contains(kind),
        _ => true,
    };
    let others = [OF_SERVING.as_slice(), &SERVES, &IN_WARMUP, &SILENT].concat();
    let all = orch::profile::failure_kinds().iter().copied();
    all.filter(|kind| !others.contains(kind)).filter(has_words).collect()
}

fn scenario(engine: &str, kind: &str) -> String {
    let phases = "weights: 20s, kv_pool: 2s, compile: 8s, graph_capture: 10s, draft_weights: 4s, warmup: 3s";
    format!("{{seed: 3, as: {engine}, ranks: 2, acceptance: [0.8], startup: {{{phases}}}, fail: {{kind: {kind}}}}}")
}

/// A scenario whose failure comes in this phase.
fn scenario_at(engine: &str, kind: &str, phase: &str) -> String {
    scenario(engine, kind).replace(&format!("kind: {kind}"), &format!("kind: {kind}, at: {phase}"))
}

/// The moment of the first line that looked like this failure.
fn seen_at(told: &Told, kind: &str) -> Option<u64> {
    told.when(|event| matches!(event, Event::FailureSeen { kind: seen, .. } if seen == kind))
}

#[test]
fn every_kind_is_ended_by_the_engines_own_end_and_named_with_what_to_do() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for engine in ["sglang", "vllm", "llamacpp"] {
        for kind in kinds(engine) {
            count += 1;
            let start = Start::of(&scenario(engine, kind));
            let told = start.tell(|_| start.quiet());
            let root = told.startup.root();
            let at = seen_at(&told, kind);
            let found = root.map(|root| root.kind.as_str());
            let remedy = root.and_then(|root| root.remedy.clone()).unwrap_or_default();
            let fits = found == Some(kind) || (kind == "oom_host" && engine == "llamacpp" && found.is_none());
            if told.outcome != Outcome::Exited || !fits || remedy.is_empty() || at.is_none_or(|at| told.at - at > S) {
                let line = root.map(|root| root.line.clone());
                wrong.push(format!(
                    "{engine} {kind}: {:?}, {found:?}, seen {at:?}, {line:?}, do: {remedy}",
                    told.outcome
                ));
            }
        }
    }
    assert!(count > 50, "{count}");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_fails_when_the_server_asks_itself_is_named_too() {
    for (engine, kind) in [("sglang", "oom_runtime"), ("llamacpp", "nan_output")] {
        let start = Start::of(&scenario_at(engine, kind, "warmup"));
        let told = start.tell(|_| start.quiet());
        let root = told.startup.root().unwrap_or_else(|| panic!("{engine} {kind}: no cause"));
        assert_eq!((told.outcome, root.kind.as_str()), (Outcome::Exited, kind), "{engine}: {}", root.line);
        assert!(root.remedy.is_some(), "{engine} {kind}");
    }
}

#[test]
fn a_server_that_serves_without_what_was_asked_for_is_not_ended_and_it_is_told() {
    for kind in SERVES {
        let start = Start::of(&scenario("llamacpp", kind));
        let told = start.tell(|_| start.quiet());
        assert_eq!(told.outcome, Outcome::Ready, "{kind}");
        assert!(seen_at(&told, kind).is_some(), "{kind}: {:?}", told.startup.failures());
    }
}

#[test]
fn a_start_that_was_ended_from_outside_blames_no_line() {
    for engine in ["sglang", "vllm", "llamacpp"] {
        let start = Start::of(&scenario(engine, "killed_by_supervisor"));
        let told = start.tell(|_| start.quiet());
        assert_eq!(told.outcome, Outcome::Exited, "{engine}");
        let kind = told.startup.root().map(|root| root.kind.as_str());
        assert!(matches!(kind, None | Some("killed_by_supervisor")), "{engine}: {kind:?}");
    }
}

#[test]
fn an_engine_that_says_so_and_stays_is_ended_within_a_second() {
    for engine in ["sglang", "vllm"] {
        for kind in ["oom_capture", "nccl_error", "weights_mismatch"] {
            let mut start = Start::of(&scenario(engine, kind));
            start.script.ending = Ending::Hangs;
            let told = start.tell(|_| start.quiet());
            assert_eq!(told.outcome, Outcome::Ended(End::Confirmed), "{engine} {kind}");
            let confirmed = told.when(|event| matches!(event, Event::FailureSeen { wraps: true, .. })).unwrap();
            assert!(told.at - confirmed <= S, "{engine} {kind}: {} ms", (told.at - confirmed) / 1_000_000);
        }
    }
}

/// A start whose engine never says that it failed: only the rank's own words are there.
fn without_confirmation(scenario: &str) -> Start {
    let mut start = Start::of(scenario);
    start.script.ending = Ending::Hangs;
    start.script.beats.retain(|beat| match &beat.what {
        What::Record(_, text) => !["sigquit", "kill_process_tree"].iter().any(|word| text.contains(word)),
        _ => true,
    });
    for beat in &mut start.script.beats {
        if let What::Record(_, text) = &mut beat.what {
            *text = text.replace("Scheduler hit an exception: ", "");
        }
    }
    start
}

#[test]
fn a_launcher_that_does_not_see_its_dead_rank_is_ended_for_it() {
    let start = without_confirmation(&scenario("sglang", "oom_capture"));
    let failed = nanos_of_last(&start);
    let told = start.tell(|now| {
        let gone: &[u32] = if now > failed + 2 * S { &[0, 1] } else { &[] };
        Look { processes: Some(start.processes(gone)), ..Look::default() }
    });
    assert!(matches!(told.outcome, Outcome::Ended(End::DeadRank(_))), "{:?}", told.outcome);
    assert!(told.at <= failed + 6 * S, "{}", told.at);
    assert_eq!(told.startup.root().unwrap().kind, "oom_capture");
}

#[test]
fn a_line_that_looks_fatal_alone_ends_nothing_but_a_start_that_fails_fast() {
    let mut start = without_confirmation(&scenario("sglang", "oom_capture"));
    let told = start.tell(|_| start.quiet());
    assert_eq!((told.outcome.clone(), told.at), (Outcome::Ended(End::TimedOut), 1200 * S));
    assert!(told.screen.iter().any(|(_, line)| line.contains("this looks fatal, waiting for the engine to confirm")));
    start.conduct = Conduct { fail_fast: true, ..start.conduct };
    let told = start.tell(|_| start.quiet());
    assert_eq!(told.outcome, Outcome::Ended(End::FailFast));
    assert!(told.at - seen_at(&told, "oom_capture").unwrap() <= S);
}

#[test]
fn a_hang_is_told_as_one_and_ended_by_the_limit_alone() {
    for kind in SILENT.iter().filter(|kind| **kind != "killed_by_supervisor") {
        let start = Start::of(&scenario("sglang", kind));
        let hung = Reading {
            uuid: "GPU-a".into(),
            used_mib: Some(44_120),
            busy_ratio: Some(1.0),
            power_w: Some(130.0),
            power_limit_w: Some(600.0),
        };
        let told =
            start.tell(|now| Look { devices: now.is_multiple_of(5 * S).then(|| vec![hung.clone()]), ..start.quiet() });
        assert_eq!((told.outcome.clone(), told.at), (Outcome::Ended(End::TimedOut), 1200 * S), "{kind}");
        let stalls = told.stalls();
        let (_, phase, evidence) = stalls.first().unwrap_or_else(|| panic!("{kind}: never told"));
        assert!(["graph_capture", "weights"].contains(&phase.as_str()), "{kind}: {phase}");
        assert!(evidence.iter().any(|words| words.contains("collective hang")), "{kind}: {evidence:?}");
        let screen: Vec<&str> = told.screen.iter().map(|(_, line)| line.as_str()).collect();
        assert!(screen.iter().any(|line| line.contains("Stalled?")), "{screen:#?}");
        assert!(screen.iter().any(|line| line.contains("GPUs 100 % busy at 130 W (load: 600 W), memory constant")));
    }
}

#[test]
fn eighty_three_shards_then_a_crash_in_autotune() {
    let scenario = "{seed: 1, as: sglang, ranks: 4, startup: {weights: 410s, compile: 90s}, fail: {kind: cuda_fault, at: compile, after: 60s}}";
    let scenario = orch::sim::Scenario::parse("s.yaml", scenario).unwrap();
    let mut model = orch::sim::startup::Model::of(&scenario, 30000);
    model.shards = 83;
    let mut start = Start::with(model);
    // The engine takes its time to end: what it says is told before that.
    start.script.ending = Ending::Hangs;
    let told = start.tell(|_| start.quiet());
    let weights = told.screen.iter().find(|(_, line)| line.contains(" weights ")).unwrap();
    assert!(weights.1.contains("83/83 shards"), "{}", weights.1);
    let confirmed = told.when(|event| matches!(event, Event::FailureSeen { wraps: true, .. })).unwrap();
    assert_eq!(told.outcome, Outcome::Ended(End::Confirmed));
    assert!(told.at - confirmed <= S);
    let root = told.startup.root().unwrap();
    assert_eq!((root.kind.as_str(), root.phase.as_str()), ("cuda_fault", "compile"));
    assert!(root.line.contains("an illegal memory access"), "{}", root.line);
    assert!(root.rank.is_some() && root.remedy.is_some());
}

fn nanos_of_last(start: &Start) -> u64 {
    crate::virtual_start::nanos(start.script.beats.last().unwrap().at)
}
