use super::*;

const S: Nanos = 1_000_000_000;

fn life() -> Life {
    Life::new(0, Some(Regex::new(r"^engine::rank_(\d+)").unwrap()))
}

fn process(pid: u32, name: &str, title: &str) -> Seen {
    Seen { pid, start_ticks: u64::from(pid), name: name.into(), title: title.into(), ..Seen::default() }
}

fn reading(read: u64, anywhere: u64) -> Seen {
    let main = process(1, "python3", "python3 -m engine");
    Seen { read_bytes: Some(read), read_anywhere_bytes: Some(anywhere), written_bytes: Some(0), ..main }
}

fn of(processes: Vec<Seen>) -> Look {
    Look { processes: Some(processes), ..Look::default() }
}

fn kinds(signs: &[(Sign, String)]) -> Vec<Sign> {
    signs.iter().map(|(sign, _)| *sign).collect()
}

fn gpu(used_mib: u64, busy: f64, power_w: f64) -> Reading {
    Reading {
        uuid: "GPU-a".into(),
        used_mib: Some(used_mib),
        busy_ratio: Some(busy),
        power_w: Some(power_w),
        power_limit_w: Some(600.0),
    }
}

fn devices(reading: Reading) -> Look {
    Look { devices: Some(vec![reading]), ..Look::default() }
}

#[test]
fn bytes_from_a_storage_are_a_sign_and_a_spinning_reader_is_none() {
    let mut life = life();
    assert!(life.look(&of(vec![reading(0, 0)]), S).is_empty());
    let signs = life.look(&of(vec![reading(300 << 20, 0)]), 2 * S);
    assert_eq!(signs, [(Sign::Read, "300 MiB read from a storage".to_owned())]);
    // Somebody who polls an event: eight bytes, half a million times a second.
    assert!(life.look(&of(vec![reading(300 << 20, 4_000_000)]), 3 * S).is_empty());
    // Weights that are in the page cache.
    let signs = life.look(&of(vec![reading(300 << 20, 2_000_000_000)]), 4 * S);
    assert_eq!(kinds(&signs), [Sign::Read]);
    assert_eq!((life.last_at(), life.read_bytes()), (4 * S, Some(300 << 20)));
}

#[test]
fn without_a_look_nothing_is_known() {
    let mut life = life();
    assert!(life.look(&Look::default(), S).is_empty());
    assert_eq!((life.read_bytes(), life.compiled()), (None, None));
    assert_eq!(life.evidence(61 * S), ["log silent 61 s"]);
}

#[test]
fn a_compiler_is_a_sign_as_long_as_it_lives() {
    let mut life = life();
    assert_eq!(life.compiled(), None);
    life.look(&of(vec![process(1, "python3", "x")]), S);
    assert_eq!(life.compiled(), Some(false));
    for name in ["nvcc", "ptxas", "cicc", "ninja", "cc1plus", "gcc-13", "clang", "x86_64-linux-gn"] {
        let signs = life.look(&of(vec![process(1, "python3", "x"), process(2, name, name)]), 2 * S);
        assert_eq!(signs, [(Sign::Compiler, format!("{name} runs"))]);
    }
    assert!(life.look(&of(vec![process(1, "python3", "x"), process(2, "ninja-turtle", "x")]), 3 * S).is_empty());
    assert_eq!((life.compiled(), life.last_at()), (Some(true), 2 * S));
}

#[test]
fn full_use_at_idle_power_with_constant_memory_is_a_hang_and_no_sign() {
    let mut life = life();
    for s in 0..40 {
        assert!(life.look(&devices(gpu(44_120, 1.0, 131.0)), s * S).is_empty(), "busy is no sign");
    }
    let words = life.evidence(40 * S);
    assert_eq!(words[1], "GPUs 100 % busy at 131 W (load: 600 W), memory constant");
    assert_eq!(words[2], "looks like ranks waiting for each other (collective hang)");
    // One that works draws power.
    life.look(&devices(gpu(44_120, 1.0, 520.0)), 41 * S);
    assert_eq!(life.evidence(41 * S).len(), 2);
    // And memory that changes is a sign of life.
    let signs = life.look(&devices(gpu(44_248, 1.0, 131.0)), 42 * S);
    assert_eq!(signs, [(Sign::DeviceMemory, "device memory +128 MiB".to_owned())]);
    assert_eq!(life.evidence(43 * S)[1], "GPUs 100 % busy at 131 W (load: 600 W)");
}

#[test]
fn a_worker_that_is_gone_is_named_unless_it_was_only_a_step() {
    let mut life = life();
    let all = vec![process(1, "a", "main"), process(2, "a", "engine::rank_0"), process(3, "a", "engine::rank_1")];
    life.look(&of(all.clone()), S);
    assert_eq!(life.living(), 2);
    life.look(&of(all[..2].to_vec()), 2 * S);
    assert!(life.dead().is_empty(), "it had just begun");
    life.look(&of(all.clone()), 3 * S);
    life.look(&of(all[..2].to_vec()), 9 * S);
    let dead = Worker { pid: 3, title: "engine::rank_1".into(), rank: Some(1) };
    assert_eq!((life.dead(), life.living()), (&[dead][..], 1));
    assert_eq!(life.evidence(9 * S)[..3], ["engine::rank_1 (pid 3) is gone", "log silent 9 s", "1/2 alive"]);
}

#[test]
fn what_is_downloaded_is_written_and_the_log_does_not_count() {
    let mut life = life();
    let written = |bytes: u64, log: u64| {
        let main = Seen { written_bytes: Some(bytes), ..reading(0, 0) };
        Look { log_bytes: log, ..of(vec![main]) }
    };
    life.look(&written(0, 0), S);
    life.look(&written(50 << 20, 0), 2 * S);
    assert_eq!(life.downloading(), Duration::from_secs(1));
    life.look(&written(100 << 20, 50 << 20), 3 * S);
    assert_eq!(life.downloading(), Duration::from_secs(1), "it talked");
}

#[test]
fn a_cache_that_grew_was_filled_by_a_compiler() {
    let mut life = life();
    let cache = |entries, newest_s| Look { jit_cache: Some(JitCache { entries, newest_s }), ..Look::default() };
    assert!(life.look(&cache(10, 100), S).is_empty(), "what was there before says nothing");
    assert!(life.look(&cache(10, 100), 2 * S).is_empty());
    assert_eq!(kinds(&life.look(&cache(12, 105), 3 * S)), [Sign::JitCache]);
    assert_eq!(life.compiled(), Some(true));
}
