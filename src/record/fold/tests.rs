use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::engine::Version;
use crate::event::VERSION;
use crate::measure::{MetricValue, WarmUp};
use crate::profile::EngineKind;
use crate::record::model::{Answer, AnswersWhen, Comparison, Counts, Effective};
use crate::render::{Arrival, Load, Warning};

pub(crate) const RUN: &str = "20261129-151503-demo-0a4f";

/// A whole run, with a line of every kind.
pub(crate) fn story() -> Vec<(Scope, Event)> {
    let run = |event| (Scope::Run, event);
    let rank = |rank, event| (Scope::Rank(rank), event);
    let step = |event| (Scope::Step("single".into()), event);
    let planned = |name: &str| PlannedStep { name: name.into(), workload: "sha256:aa".into() };
    let process = |pid| Event::ProcessBegan { pid, start_ticks: 77, supervisor_pid: Some(40) };
    let fact = |key: &str, value: Value| Event::Fact { key: key.into(), value };
    vec![
        run(Event::RunBegan {
            profile: json!({"name": "demo", "memory": {"fraction": 0.88}}),
            series: "demos".into(),
            name: "demo".into(),
            orch: OrchInfo { version: "0.1.0".into(), commit: Some("abc".into()) },
            host: HostInfo { name: "box".into(), hardware: "2x RTX A6000".into() },
            kind: RunKind::Run,
            metrics_version: 1,
            group: None,
            asked: crate::record::model::Asked::default(),
        }),
        run(Event::Preflight { check: "port".into(), ok: true, text: "30000 is free".into() }),
        run(Event::Planned {
            engine: PlannedEngine { kind: EngineKind::Llamacpp, version: Version("b10434".into()), assumed: false },
            simulated: false,
            command: vec!["llama-server".into()],
            env: BTreeMap::new(),
            steps: vec![planned("single"), planned("ladder@8")],
            provenance: BTreeMap::from([("driver".into(), json!("570.1"))]),
        }),
        run(Event::LeaseTaken { lease: "port:30000".into() }),
        run(Event::LeaseTaken { lease: "measure".into() }),
        run(Event::Change { what: "deployment qwen".into(), diff: "-old\n+new\n".into() }),
        run(Event::Displaced { what: "sglang-qwen.service".into() }),
        run(Event::Launching { server: "s1".into(), command: vec!["llama-server".into(), "--port".into()] }),
        rank(0, process(41)),
        rank(1, process(42)),
        run(Event::PhaseBegan { phase: "weights".into() }),
        run(Event::PhaseProgress { phase: "weights".into(), done: 3.0, total: Some(11.0), unit: "shards".into() }),
        rank(1, fact("avail_mem_gb", json!(5.01))),
        rank(0, fact("avail_mem_gb", json!(5.14))),
        rank(1, fact("avail_mem_gb", json!(4.9))),
        run(fact("weights_cache", json!("warm"))),
        run(Event::installing("log")),
        run(Event::Stalled {
            phase: "weights".into(),
            silent_s: 61.0,
            usual_s: Some(10.0),
            limit_s: 1200.0,
            evidence: vec!["log silent".into()],
        }),
        rank(0, Event::PhaseEnded { phase: "weights".into(), s: 10.2 }),
        rank(1, Event::PhaseEnded { phase: "weights".into(), s: 12.1 }),
        run(Event::FailureSeen { kind: "oom".into(), line: "CUDA".into(), line_no: 12, remedy: None, wraps: false }),
        run(Event::ProbeAnswered { probe: "/health".into(), answer: "200".into() }),
        run(Event::Ready {
            ready_s: Some(41.2),
            tokens: 48,
            model: "qwen".into(),
            base_url: "http://127.0.0.1:30000".into(),
        }),
        run(Event::Readback {
            effective: vec![Effective {
                key: "max_running_requests".into(),
                asked: Some(json!(16)),
                read: Some(json!(10)),
            }],
        }),
        step(Event::WarmupBegan {}),
        step(Event::WarmupEnded(WarmUp { requests: 2, s: 1.5, settled: None })),
        step(Event::StepBegan {}),
        step(Event::LoadProgress {
            done: 3,
            requests: Some(24),
            elapsed_s: 2.0,
            duration_s: None,
            failed: 0,
            chunks_per_s: Some(70.5),
            ttft_ms: None,
        }),
        run(Event::Telemetry { values: BTreeMap::from([("gpu0_w".into(), 280.5)]) }),
        step(Event::Counters { values: BTreeMap::from([("steps".into(), 812.0)]) }),
        step(Event::StepEnded { result: Box::new(result("single", 70.1)) }),
        (Scope::Step("ladder@8".into()), Event::StepEnded { result: Box::new(result("ladder@8", 383.0)) }),
        run(Event::Warning(Warning::new("capacity", "runs 10 requests, 16 asked"))),
        run(Event::Warning(Warning::new("capacity", "runs 10 requests, 16 asked"))),
        run(Event::Stopping { why: "done".into() }),
        rank(0, Event::ProcessEnded { code: Some(0), signal: None, expected: true }),
        rank(1, Event::ProcessEnded { code: None, signal: Some(15), expected: true }),
        run(Event::MemoryReturned { s: 0.7 }),
        run(Event::LeaseLeft { lease: "port:30000".into() }),
        run(Event::Answers {
            when: AnswersWhen::After,
            answers: vec![Answer {
                id: "capital".into(),
                right: Some(true),
                text: "Paris".into(),
                expect: Some("Paris".into()),
                problem: None,
            }],
        }),
        run(Event::Restored { what: "sglang-qwen.service".into(), outage_s: 684.0 }),
        run(Event::Judged {
            verdict: Verdict { kind: VerdictKind::Ok, reasons: vec![], cause: None },
            comparisons: vec![Comparison {
                step: "single".into(),
                metric: "output_tokens_per_s".into(),
                was: Some(70.9),
                now: Some(70.1),
                change_ratio: Some(-0.011),
                can_see_ratio: Some(0.021),
                loss_at_least_ratio: None,
                verdict: VerdictKind::Ok,
            }],
            failure: None,
        }),
        run(Event::RunEnded { complete: true, left: Some(Left { gpu_mib: Some(0), ..Left::default() }) }),
    ]
}

pub(crate) fn result(name: &str, output: f64) -> StepResult {
    StepResult {
        name: name.into(),
        valid: true,
        reasons: vec![],
        workload: "sha256:aa".into(),
        workload_name: "chat-mix".into(),
        load: Load { arrival: Arrival::Closed { concurrency: 1 }, requests: Some(24), duration_s: None, warmup: None },
        goodput: None,
        load_path: "beside".into(),
        counts: Counts { ok: 24, ..Counts::default() },
        metrics: BTreeMap::from([("output_tokens_per_s".into(), MetricValue::Number(output))]),
        errors: BTreeMap::new(),
        counters: BTreeMap::new(),
        warmup: None,
        client: None,
        sources: BTreeMap::new(),
        acceptance_by_position: Vec::new(),
        probe: false,
    }
}

pub(crate) fn entries(story: Vec<(Scope, Event)>) -> Vec<Entry> {
    let line = |(seq, (scope, event))| Entry {
        v: VERSION,
        seq: seq as u64,
        at: Timestamp::from_second(1_795_965_303 + seq as i64).unwrap(),
        since_start_ns: seq as u64 * 1_000_000_000,
        run: RUN.into(),
        scope,
        event,
    };
    story.into_iter().enumerate().map(line).collect()
}

#[test]
fn the_story_has_every_kind_and_no_other() {
    let kind = |event: &Event| serde_json::to_value(event).unwrap()["event"].as_str().unwrap().to_owned();
    let told: BTreeSet<String> = story().iter().map(|(_, event)| kind(event)).collect();
    let known: BTreeSet<String> = Event::KINDS.iter().map(|&kind| kind.to_owned()).collect();
    assert_eq!(told, known);
}

#[test]
fn a_whole_run_folds_to_its_record() {
    let state = fold(entries(story()));
    insta::assert_json_snapshot!(state.record);
    assert_eq!(state.stage, Stage::Ended);
    assert_eq!((state.leases, state.displaced), (vec!["measure".to_owned()], vec![]));
    let server = state.server.unwrap();
    assert_eq!((server.id.as_str(), server.model.as_deref()), ("s1", Some("qwen")));
    assert_eq!(server.processes[&1].ended, Some(Ended { code: None, signal: Some(15), expected: true }));
    assert_eq!(state.failures_seen.len(), 1);
}

#[test]
fn until_its_last_line_a_run_is_incomplete_failed_and_interrupted() {
    let all = entries(story());
    for count in 0..all.len() {
        let state = fold(all[..count].iter().cloned());
        assert!(!state.record.complete, "after {count} lines");
        assert_eq!(state.record.verdict, interrupted(), "after {count} lines");
        assert_eq!((state.record.ended_at, &state.record.left), (None, &None));
        assert_eq!(state.began(), count > 0);
    }
}

#[test]
fn what_is_left_to_do_and_to_judge_follows_from_the_steps() {
    let all = entries(story());
    let at = |kind: &str, nth: usize| {
        let found = |entry: &Entry| serde_json::to_value(entry).unwrap()["event"] == kind;
        all.iter().enumerate().filter(|(_, entry)| found(entry)).nth(nth).unwrap().0
    };
    let first_done = fold(all[..=at("step_ended", 0)].iter().cloned());
    assert_eq!(first_done.undone().map(|step| step.name.as_str()).collect::<Vec<_>>(), ["ladder@8"]);
    assert!(!first_done.to_judge().complete);
    let both_done = fold(all[..=at("step_ended", 1)].iter().cloned());
    assert_eq!(both_done.undone().count(), 0);
    assert!(both_done.to_judge().complete && !both_done.record.complete);
    // Questions that were asked before the steps and not after them are an end that was not reached.
    let answers = |when| (Scope::Run, Event::Answers { when, answers: vec![] });
    let mut asked = story()[..=at("step_ended", 1)].to_vec();
    asked.push(answers(AnswersWhen::Before));
    assert!(!fold(entries(asked.clone())).to_judge().complete);
    asked.push(answers(AnswersWhen::After));
    assert!(fold(entries(asked)).to_judge().complete);
    // A run that never became ready has nothing to judge, though no step of it is open.
    let bare = vec![story().remove(0)];
    assert!(!fold(entries(bare)).to_judge().complete);
}

#[test]
fn the_end_says_how_it_was_judged() {
    let ended = |kind: Option<VerdictKind>, complete: bool| {
        let mut story = story();
        story.truncate(story.len() - 2);
        if let Some(kind) = kind {
            let verdict = Verdict { kind, reasons: vec![Reason::new("exited", "status 1")], cause: None };
            story.push((Scope::Run, Event::Judged { verdict, comparisons: vec![], failure: None }));
        }
        story.push((Scope::Run, Event::RunEnded { complete, left: Some(Left::default()) }));
        let record = fold(entries(story)).record;
        (record.complete, record.verdict.kind, record.verdict.reasons[0].id.clone())
    };
    use VerdictKind::{Failed, Invalid, Regressed};
    assert_eq!(ended(Some(Regressed), true), (true, Regressed, "exited".into()));
    assert_eq!(ended(Some(Failed), false), (false, Failed, "exited".into()));
    assert_eq!(ended(Some(Invalid), false), (false, Invalid, "exited".into()));
    // A verdict over a part is no verdict over the run.
    assert_eq!(ended(Some(Regressed), false), (false, Failed, "interrupted".into()));
    assert_eq!(ended(None, false), (false, Failed, "interrupted".into()));
    assert_eq!(ended(None, true), (true, Failed, "not_judged".into()));
}

#[test]
fn a_run_that_goes_on_after_its_end_is_open_again_and_keeps_its_steps() {
    let mut resumed = story();
    let launching = resumed.iter().find(|(_, event)| matches!(event, Event::Launching { .. })).unwrap().clone();
    resumed.push(launching);
    resumed.push((Scope::Step("single".into()), Event::StepEnded { result: Box::new(result("single", 71.0)) }));
    let state = fold(entries(resumed));
    assert_eq!((state.record.complete, state.record.verdict.clone()), (false, interrupted()));
    assert_eq!((state.record.ended_at, &state.record.left, state.stage), (None, &None, Stage::Launch));
    // Measured again: it counts once, and as it was the last time.
    let output: Vec<_> =
        state.record.steps.iter().map(|step| (step.name.as_str(), &step.metrics["output_tokens_per_s"])).collect();
    assert_eq!(output, [("single", &MetricValue::Number(71.0)), ("ladder@8", &MetricValue::Number(383.0))]);
}

proptest! {
    /// However the lines are mixed up, folding them in two goes is folding them in one, and nothing panics.
    #[test]
    fn folding_in_two_goes_is_folding_in_one(order in proptest::collection::vec(0..40usize, 0..60), cut in 0..60usize) {
        let story = story();
        let mixed: Vec<_> = order.into_iter().map(|at| story[at % story.len()].clone()).collect();
        let all = entries(mixed);
        let (first, second) = all.split_at(cut.min(all.len()));
        let mut state = fold(first.iter().cloned());
        second.iter().for_each(|entry| state.apply(entry));
        prop_assert_eq!(state, fold(all));
    }

    /// Half a run claims nothing that the whole run does not say: its steps are a part of the whole one's.
    #[test]
    fn a_prefix_knows_a_part_of_the_whole(cut in 0..40usize) {
        let all = entries(story());
        let whole = fold(all.iter().cloned()).record;
        let part = fold(all[..cut].iter().cloned()).record;
        prop_assert!(part.steps.iter().all(|step| whole.steps.contains(step)));
        prop_assert!(part.warnings.iter().all(|warning| whole.warnings.contains(warning)));
        prop_assert!(part.steps.len() <= whole.steps.len());
    }
}
