//! Starts that are slow and healthy: whatever they look like, none is ended. In virtual time, on a machine without history.

use std::collections::BTreeMap;
use std::time::Duration;

use orch::event::{Event, Sign};
use orch::gate::life::{JitCache, Look, Seen};
use orch::launch::gpu::Reading;
use orch::record::history::{PastStart, PastStarts};
use orch::record::model::MemoryPoint;
use orch::sim::startup::{Beat, Level, What, Who};

use crate::virtual_start::{Outcome, S, Start, Told};

const MIB: u64 = 1 << 20;

#[track_caller]
fn assert_ready(told: &Told) {
    assert_eq!(told.outcome, Outcome::Ready, "after {} s: {:?}", told.at / S, told.startup.root());
}

fn signs(told: &Told) -> Vec<Sign> {
    let mut signs: Vec<Sign> = Vec::new();
    for (_, _, event) in &told.events {
        if let Event::SignOfLife { signs: seen, .. } = event {
            signs.extend(seen.iter().filter(|sign| !signs.contains(sign)).copied().collect::<Vec<_>>());
        }
    }
    signs
}

/// The engine's processes, with what its main one has read from a storage and written.
fn reading(start: &Start, read: u64, written: u64) -> Look {
    let mut processes = start.processes(&[]);
    processes[0].read_bytes = Some(read);
    processes[0].read_anywhere_bytes = Some(read);
    processes[0].written_bytes = Some(written);
    Look { processes: Some(processes), ..Look::default() }
}

fn compiler(start: &Start, name: &str) -> Look {
    let mut processes = start.processes(&[]);
    processes.push(Seen { pid: 500, start_ticks: 500, name: name.into(), title: name.into(), ..Seen::default() });
    Look { processes: Some(processes), ..Look::default() }
}

#[test]
fn twenty_five_minutes_of_compiling_kernels_without_a_word() {
    let start = Start::of("{seed: 1, as: sglang, ranks: 8, startup: {weights: 60s, compile: 25m, graph_capture: 30s}}");
    let told = start.tell(|now| if now < 1500 * S { compiler(&start, "cicc") } else { start.quiet() });
    assert_ready(&told);
    assert!(told.at > 1500 * S && told.stalls().is_empty(), "{:?}", told.stalls());
    assert!(signs(&told).contains(&Sign::Compiler));
    let cold = |event: &Event| matches!(event, Event::Fact { key, value } if key == "jit_cache" && value == "cold");
    assert!(told.when(cold).is_some());
}

#[test]
fn a_cache_of_kernels_that_grows_while_the_log_is_silent() {
    let start = Start::of("{seed: 1, as: vllm, ranks: 2, startup: {weights: 60s, compile: 40m}}");
    let told = start.tell(|now| {
        let cache = JitCache { entries: 10 + now / (20 * S), newest_s: (now / S) as i64 };
        Look { jit_cache: now.is_multiple_of(5 * S).then_some(cache), ..start.quiet() }
    });
    assert_ready(&told);
    assert!(told.stalls().is_empty() && signs(&told).contains(&Sign::JitCache));
}

#[test]
fn forty_shards_over_a_slow_network_file_system() {
    let scenario =
        orch::sim::Scenario::parse("s.yaml", "{seed: 1, as: sglang, ranks: 8, startup: {weights: 50m}}").unwrap();
    let mut model = orch::sim::startup::Model::of(&scenario, 30000);
    model.shards = 40;
    let start = Start::with(model);
    let told = start.tell(|now| reading(&start, now / S * 90 * MIB, 0));
    assert_ready(&told);
    assert!(told.stalls().is_empty() && signs(&told).contains(&Sign::Read));
    let cold = |event: &Event| matches!(event, Event::Fact { key, value } if key == "weights_cache" && value == "cold");
    assert!(told.when(cold).is_some(), "the storage gave all of it");
}

#[test]
fn half_an_hour_of_download_before_anything_is_loaded() {
    let mut start = Start::of("{seed: 1, as: vllm, ranks: 2, startup: {config: 30m, weights: 2m}}");
    start.conduct.limit = Duration::from_secs(20 * 60);
    let told = start.tell(|now| reading(&start, 0, now.min(1800 * S) / S * 80 * MIB));
    assert_ready(&told);
    assert!(told.at > 1900 * S);
}

#[test]
fn a_compile_inside_the_process_that_shows_nothing_at_all() {
    let start = Start::of("{seed: 1, as: vllm, ranks: 1, startup: {weights: 60s, compile: 15m, graph_capture: 30s}}");
    let told = start.tell(|_| start.quiet());
    assert_ready(&told);
    assert!(told.stalls().is_empty(), "a first compile is given its time: {:?}", told.stalls());
}

#[test]
fn an_out_of_memory_that_the_engine_recovers_from() {
    let mut start = Start::of("{seed: 1, as: llamacpp, startup: {weights: 30s, warmup: 20s}}");
    for text in [
        "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2112.00 MiB on device 0: cudaMalloc failed: out of memory",
        "W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism",
    ] {
        start.say(Duration::from_secs(32), Who::Main, &format!("0.32.000.100 {text}"));
    }
    assert_ready(&start.tell(|_| start.quiet()));
    // And one that a rank of another engine reports before it captures smaller graphs.
    let mut start = Start::of("{seed: 1, as: sglang, ranks: 2, startup: {weights: 30s, graph_capture: 60s}}");
    start.say(
        Duration::from_secs(40),
        Who::Rank(0),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.18 GiB. GPU 0 has a total capacity of 79.25 GiB of which 0.91 GiB is free.",
    );
    assert_ready(&start.tell(|_| start.quiet()));
}

#[test]
fn full_use_at_idle_power_for_a_while() {
    let start = Start::of("{seed: 1, as: sglang, ranks: 4, startup: {weights: 60s, dist_init: 12m}}");
    let told = start.tell(|now| {
        let busy = now < 780 * S;
        let reading = Reading {
            uuid: "GPU-a".into(),
            used_mib: Some(3000),
            busy_ratio: Some(if busy { 1.0 } else { 0.1 }),
            power_w: Some(120.0),
            power_limit_w: Some(700.0),
        };
        Look { devices: now.is_multiple_of(5 * S).then(|| vec![reading]), ..start.quiet() }
    });
    assert_ready(&told);
    let stalls = told.stalls();
    assert!(!stalls.is_empty(), "it was told");
    assert!(told.screen.iter().any(|(_, line)| line.contains("it goes on, after a silence of")), "and taken back");
}

#[test]
fn a_bar_that_stands_while_device_memory_grows() {
    let start = Start::of("{seed: 1, as: sglang, ranks: 1, startup: {weights: 35m}}");
    let told = start.tell(|now| {
        let reading = Reading { uuid: "GPU-a".into(), used_mib: Some(1000 + now / (5 * S) * 30), ..Reading::default() };
        Look { devices: now.is_multiple_of(5 * S).then(|| vec![reading]), ..start.quiet() }
    });
    assert_ready(&told);
    assert!(told.stalls().is_empty() && signs(&told).contains(&Sign::DeviceMemory));
}

#[test]
fn a_silent_load_of_a_large_file() {
    let start = Start::of("{seed: 1, as: llamacpp, startup: {weights: 45m}}");
    let told = start.tell(|now| reading(&start, now / S * 60 * MIB, 0));
    assert_ready(&told);
    assert!(told.stalls().is_empty(), "{:?}", told.stalls());
}

#[test]
fn a_log_full_of_words_like_error() {
    let mut start = Start::of("{seed: 1, as: sglang, ranks: 2, startup: {weights: 4m, graph_capture: 2m}}");
    for (at, text) in [
        (5, "Ignore import error when loading sglang.srt.models.glm_ocr: No module named 'x'"),
        (60, "NCCL WARN Failed to open libibverbs.so[.1], falling back to sockets"),
        (65, "UserWarning: an error occurred in a plugin that is not used"),
        (
            200,
            "Setup Custom allreduce failed with not supported. To silence this warning, specify disable_custom_all_reduce=True",
        ),
    ] {
        let what = What::Record(Level::Warning, text.to_owned());
        start.script.beats.push(Beat { at: Duration::from_secs(at), who: Who::Rank(1), what });
    }
    start.script.beats.sort_by_key(|beat| beat.at);
    let told = start.tell(|_| start.quiet());
    assert_ready(&told);
    assert_eq!(told.startup.root().map(|root| root.line.as_str()), None);
}

#[test]
fn a_first_request_that_compiles_for_ten_minutes() {
    let start = Start::of("{seed: 1, as: sglang, ranks: 2, startup: {weights: 60s, warmup: 18m}}");
    let told = start.tell(|now| if now < 1100 * S { compiler(&start, "nvcc") } else { start.quiet() });
    assert_ready(&told);
    assert!(told.stalls().is_empty());
}

/// How a start of a minute and a half went before.
fn past(phases: &[(&str, f64)], memory: Vec<MemoryPoint>) -> PastStarts {
    let phases: BTreeMap<String, f64> = phases.iter().map(|(name, s)| ((*name).to_owned(), *s)).collect();
    let ready_s = phases.values().sum();
    let start = PastStart { run: "20261121-220000-story-0412".into(), ready_s, phases, memory, ..PastStart::default() };
    PastStarts(vec![start])
}

#[test]
fn graph_capture_with_the_memory_trail() {
    let scenario = "{seed: 1, as: sglang, ranks: 2, memory: {total_gb: 48, fraction: 0.88}, startup: {weights: 10s, graph_capture: 9s}, serve: {graph_max_batch: 16}}";
    // What the last run of it left behind, by the same fold that made its record.
    let first = Start::of(scenario);
    let told = first.tell(|_| first.quiet());
    let memory = memory_of(&told);
    let of = |phase: &str, graphs| {
        memory.iter().find(|point| point.phase == phase && point.graphs == graphs).unwrap().free_gb
    };
    assert!(of("kv_pool", None) > of("graph_capture", None));
    let (after_one, last) = (of("graph_capture", Some(1)), of("graph_capture", None));
    assert!(of("graph_capture", Some(0)) > after_one && after_one > last);
    let start = Start::of(scenario).after(past(&[("weights", 10.0), ("graph_capture", 9.0)], memory));
    let told = start.tell_drawn(|_| start.quiet(), Some(Duration::from_millis(500)));
    let drawn = told.screen.iter().map(|(_, text)| text.as_str());
    let capture: Vec<&str> = drawn.filter(|text| text.contains("target: 1 of 6")).collect();
    let text = capture.last().unwrap_or_else(|| panic!("{:#?}", told.screen));
    // The bar and the time left share the first line; the memory of the tightest GPU then stands with the signs.
    assert!(text.contains(" ..  graphs     target: 1 of 6 [##..........] "), "{text}");
    assert!(text.lines().next().unwrap().ends_with("left, as usual"), "{text}");
    assert!(text.contains("free ") && text.contains(" GB on GPU 0 | log grew"), "{text}");
    let took = orch::report::number::amount(after_one - last);
    assert!(text.contains(&format!("GB left, the 5 smaller graphs took {took} GB last time")), "{text}");
    assert!(text.contains("log grew ") && text.contains("2 ranks alive"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let line = told.screen.iter().find(|(_, line)| line.starts_with(" ok  graphs")).unwrap();
    assert!(line.1.contains("6 of 6") && line.1.contains("; free ") && line.1.ends_with(" s (9.0)"), "{}", line.1);
}

/// The trail of memory that the record of a start has.
fn memory_of(told: &Told) -> Vec<MemoryPoint> {
    let entries = told.events.iter().enumerate().map(|(seq, (at, scope, event))| orch::event::Entry {
        v: orch::event::VERSION,
        seq: seq as u64,
        at: jiff::Timestamp::UNIX_EPOCH,
        since_start_ns: *at,
        run: "20261129-151503-story-0a4f".into(),
        scope: scope.clone(),
        event: event.clone(),
    });
    orch::record::fold(entries).record.startup.unwrap().memory
}

#[test]
fn the_same_lines_at_nine_and_at_a_hundred_percent() {
    let scenario =
        orch::sim::Scenario::parse("s.yaml", "{seed: 1, as: sglang, ranks: 2, startup: {weights: 30m}}").unwrap();
    let mut model = orch::sim::startup::Model::of(&scenario, 30000);
    model.shards = 11;
    let mut start = Start::with(model);
    // The bar stands at 9 % for a long time, and again at 100 % while the weights are put in place.
    for beat in &mut start.script.beats {
        let What::Bar(text, _) = &beat.what else { continue };
        if text.contains(" 0/11 ") || text.contains(" 1/11 ") {
            beat.at = Duration::from_secs(5);
        } else if text.contains("/11 ") {
            let left = beat.at.as_secs() % 60;
            beat.at = Duration::from_secs(1000 + left);
        }
    }
    start.script.beats.sort_by_key(|beat| beat.at);
    let told = start.tell_drawn(
        |now| match now / S {
            0..1000 => reading(&start, now / S * 90 * MIB, 0),
            1000..1100 => reading(&start, 1000 * 90 * MIB, 0),
            _ => {
                let mut look = reading(&start, 1000 * 90 * MIB, 0);
                let used = Reading { uuid: "GPU-a".into(), used_mib: Some(now / (5 * S) * 40), ..Reading::default() };
                look.devices = now.is_multiple_of(5 * S).then(|| vec![used]);
                look
            }
        },
        Some(Duration::from_secs(10)),
    );
    assert_ready(&told);
    assert!(told.stalls().is_empty());
    let nine = told.live_at(600 * S);
    assert!(nine.contains("1/11 shards") && nine.contains("[#.........."), "{nine}");
    assert!(nine.contains("log grew 9 min") && nine.contains("sign of life "), "it reads: {nine}");
    let hundred = told.live_at(1500 * S);
    assert!(hundred.contains("11/11 shards [############]"), "{hundred}");
    assert!(hundred.contains("sign of life "), "{hundred}");
}
