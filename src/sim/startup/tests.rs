//! Starts as they are told, without waiting for them.

use super::*;

fn told(text: &str) -> (Vec<String>, Script) {
    let scenario = Scenario::parse("s.yaml", text).unwrap();
    let script = script(&scenario, 30000);
    let model = Model::of(&scenario, 30000);
    let printer = Printer::new(&model, Pids { main: 100, engine: 140, ranks: vec![150, 151] });
    let stamp = |at| Stamp { local: jiff::civil::date(2026, 11, 1).at(9, 0, 0, 0), since: at };
    let bytes: Vec<u8> = script.beats.iter().flat_map(|beat| printer.bytes(beat, &stamp(beat.at))).collect();
    let lines = String::from_utf8(bytes).unwrap().split(['\n', '\r']).map(str::to_owned).collect();
    (lines, script)
}

fn has(lines: &[String], wanted: &str) -> bool {
    lines.iter().any(|line| line.contains(wanted))
}

#[test]
fn the_same_seed_tells_the_same_start() {
    let text = "{seed: 7, as: sglang, ranks: 4, acceptance: [0.8]}";
    assert_eq!(told(text).0, told(text).0);
    assert_ne!(told(text).1, told("{seed: 8, as: sglang, ranks: 4, acceptance: [0.8]}").1);
}

#[test]
fn words_follow_the_version() {
    let (lines, _) = told("{as: sglang, version: 0.5.9, ranks: 2, acceptance: [0.8]}");
    assert!(has(&lines, "[2026-11-01 09:00:00 TP1] Init torch distributed begin."), "{lines:#?}");
    assert!(has(&lines, "TP0] Capture cuda graph begin. This can take up to several minutes. avail mem="));
    assert!(has(&lines, "TP0] Capture draft cuda graph end. Time elapsed: "));
    let (lines, _) = told("{as: sglang, ranks: 1}");
    assert!(has(&lines, "[2026-11-01 09:00:00] Init parallel begin."), "no tag on one GPU");
    assert!(has(&lines, "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem="));
    let (lines, _) = told("{as: vllm, version: 0.11.2, ranks: 2}");
    assert!(has(&lines, "(EngineCore pid=140) INFO 11-01 09:00:00 [kv_cache_utils.py:2327] GPU KV cache size: "));
    assert!(has(&lines, "(Worker_TP1 pid=151) INFO 11-01 09:00:00 "));
}

#[test]
fn memory_falls_and_beyond_the_cliff_capture_fails() {
    let (lines, script) = told("{as: sglang, ranks: 2, memory: {total_gb: 80, fraction: 0.92, cliff: 0.90}}");
    assert_eq!(script.ending, Ending::Signal(9));
    assert!(has(&lines, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "));
    assert!(has(&lines, "Received sigquit from a child process."));
    assert!(!has(&lines, "fired up"), "nothing after the end");
    let (lines, script) = told("{as: sglang, ranks: 2, memory: {total_gb: 80, fraction: 0.88, cliff: 0.90}}");
    assert_eq!(script.ending, Ending::Serves);
    let free: Vec<f64> = lines
        .iter()
        .filter(|line| line.contains("avail mem="))
        .filter_map(|line| line.split("avail mem=").nth(1)?.split(' ').next()?.parse().ok())
        .collect();
    assert!(free.len() > 6 && free.windows(2).all(|pair| pair[1] <= pair[0]), "{free:?}");
}

#[test]
fn every_kind_of_failure_ends_in_the_engines_way() {
    let ending = |engine: &str, kind: &str| told(&format!("{{as: {engine}, ranks: 2, fail: {{kind: {kind}}}}}")).1;
    assert_eq!(ending("sglang", "bad_flag").ending, Ending::Exits(2));
    assert_eq!(ending("llamacpp", "bad_flag").ending, Ending::Exits(1));
    assert_eq!(ending("vllm", "oom_capture").ending, Ending::Exits(1));
    assert_eq!(ending("sglang", "hang_collective").ending, Ending::Hangs);
    let host = ending("sglang", "oom_host");
    assert_eq!(host.ending, Ending::Exits(1));
    assert!(matches!(host.loses, Some((_, 9))));
    assert_eq!(ending("llamacpp", "oom_host").ending, Ending::Signal(9));
}

#[test]
fn bars_are_drawn_over_and_closed() {
    let text = bar("Capturing batches (bs=8 avail_mem=19.60 GB)", 2, 4, Duration::from_secs(4));
    assert_eq!(text, "Capturing batches (bs=8 avail_mem=19.60 GB):  50%|█████     | 2/4 [00:04<00:04,  2.00s/it]");
    let text = shards_bar("Loading safetensors checkpoint shards", 4, 4, Duration::from_secs(6));
    assert_eq!(text, "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:06<00:00,  1.50s/it]");
}
