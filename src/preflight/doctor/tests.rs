//! Machines as they might be seen. All of them are made up: no figure here was measured on a device.

use std::time::Duration;

use super::*;
use crate::launch::{Holding, Lease};

fn gpu(index: u32) -> GpuFact {
    GpuFact {
        index,
        uuid: format!("GPU-{index}"),
        name: "simulated H200".to_owned(),
        bus: format!("00000000:{index}1:00.0"),
        driver: "580.1".to_owned(),
        memory_mib: Some(143_771),
        used_mib: Some(0),
        busy_percent: Some(0),
        lanes: Some((16, 16)),
        ecc_volatile: Some(0),
        ecc_ever: Some(0),
        throttle: Some(0x1),
        celsius: Some(30),
    }
}

fn fit() -> Facts {
    let limits = Limits { files: Some(65_536), files_hard: None, locked_bytes: None };
    Facts { nvidia: Nvidia::Told((0..4).map(gpu).collect()), limits, ..Facts::default() }
}

fn with(change: impl FnOnce(&mut GpuFact)) -> Facts {
    let mut facts = fit();
    if let Nvidia::Told(gpus) = &mut facts.nvidia {
        change(&mut gpus[1]);
    }
    facts
}

fn told(facts: &Facts) -> Vec<(&'static str, bool)> {
    examine(facts).iter().map(|finding| (finding.id, finding.blocking)).collect()
}

fn stranger(uuid: &str) -> GpuProcess {
    GpuProcess { uuid: uuid.to_owned(), pid: 4242, name: "python".to_owned(), used_mib: Some(40_960), ours: false }
}

#[test]
fn a_machine_that_is_fit_has_no_findings() {
    assert_eq!(told(&fit()), []);
    assert_eq!(told(&Facts { limits: fit().limits, ..Facts::default() }), [], "nor one without any GPU");
}

#[test]
fn a_power_cap_is_normal_and_heat_is_not() {
    assert_eq!(told(&with(|gpu| gpu.throttle = Some(0x4))), []);
    for bits in [0x8, 0x20, 0x40, 0x80, 0x44] {
        assert_eq!(told(&with(|gpu| gpu.throttle = Some(bits))), [("gpu_slowed", true)], "{bits:#x}");
    }
}

#[test]
fn a_stranger_is_named_and_blocks_when_nothing_is_left() {
    let mut facts = with(|gpu| gpu.used_mib = Some(40_970));
    facts.processes.push(stranger("GPU-1"));
    let findings = examine(&facts);
    assert_eq!((findings[0].id, findings[0].blocking, findings.len()), ("gpu_in_use", false, 1));
    let expected =
        "GPU 1 (simulated H200, GPU-1) is used by pid 4242 (python 40960 MiB), 40970 MiB of its memory in use";
    assert_eq!(findings[0].what, expected);
    facts.wanted = Wanted::Some { of: (0..4).map(|index| format!("GPU-{index}")).collect(), count: Some(4) };
    assert_eq!(told(&facts), [("no_gpu_free", true), ("gpu_in_use", false)]);
    facts.processes[0].ours = true;
    facts.leases.push(Holding { lease: Lease::Gpu("GPU-1".to_owned()), holder: "server r1".to_owned(), since: None });
    assert_eq!(told(&facts), [("no_gpu_free", true)], "a lease of ours is no stranger, and not free either");
}

#[test]
fn the_idle_level_is_the_one_that_was_seen() {
    let mut facts = with(|gpu| gpu.used_mib = Some(900));
    assert_eq!(told(&facts), [], "without history a driver may keep so much");
    facts.last.idle_mib.insert("GPU-1".to_owned(), 10);
    assert_eq!(told(&facts), [("gpu_in_use", false)]);
    let next = facts.last.clone().with(&facts);
    assert_eq!((next.idle_mib["GPU-1"], next.idle_mib["GPU-0"]), (10, 0));
}

#[test]
fn a_driver_that_hangs_is_a_finding() {
    let hung = Nvidia::Hung { query: "--query-gpu=index".to_owned(), limit: Duration::from_secs(20) };
    let findings = examine(&Facts { nvidia: hung, ..fit() });
    assert_eq!((findings[0].id, findings[0].blocking), ("gpu_query_hung", true));
    assert_eq!(findings[0].what, "`nvidia-smi --query-gpu=index` did not come back within 20 s");
}

#[test]
fn a_closer_pair_that_is_free_is_proposed() {
    let table = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tSYS\tNV4\tSYS\nGPU1\tSYS\tX\tSYS\tSYS\nGPU2\tNV4\tSYS\tX\tSYS\nGPU3\tSYS\tSYS\tSYS\tX\n";
    let mut facts = Facts { topology: Topology::parse(table), ..fit() };
    facts.wanted = Wanted::Some { of: (0..4).map(|index| format!("GPU-{index}")).collect(), count: Some(2) };
    let findings = examine(&facts);
    assert_eq!(findings.len(), 1);
    let expected =
        "GPUs 0 and 1 would be taken, linked by the link between processors; 0 and 2 are free too, linked by 4 NVLinks";
    assert_eq!((findings[0].id, findings[0].what.as_str()), ("gpus_far_apart", expected));
    assert_eq!(findings[0].remedy, "`--set env.CUDA_VISIBLE_DEVICES=GPU-0,GPU-2`");
    facts.processes.push(stranger("GPU-2"));
    assert_eq!(told(&facts), [("gpu_in_use", false)], "what is not free is not proposed");
}

#[test]
fn errors_since_the_last_look_are_news_and_older_ones_are_not() {
    let xid = |at_s, code| Xid { at_s: Some(at_s), bus: "0000:11:00".to_owned(), code, line: "NVRM: Xid".to_owned() };
    let facts = Facts { xids: Some(vec![xid(5.0, 13), xid(6.0, 79), xid(7.0, 79)]), ..fit() };
    assert_eq!(told(&facts), [("xid", true), ("xid", false)], "each once");
    assert!(examine(&facts)[0].what.starts_with("GPU 1 (simulated H200, GPU-1) reported Xid 79: "));
    let last = LastTime::default().with(&facts);
    assert_eq!(told(&Facts { last, ..facts }), []);
    let worn = with(|gpu| gpu.ecc_ever = Some(3));
    let mut last = LastTime::default();
    last.ecc_ever.insert("GPU-1".to_owned(), 1);
    assert_eq!(told(&Facts { last, ..worn }), [("gpu_memory_errors_new", false)]);
    assert_eq!(told(&with(|gpu| gpu.ecc_volatile = Some(1))), [("gpu_memory_errors", true)]);
    assert_eq!(told(&with(|gpu| gpu.lanes = Some((8, 16)))), [("pcie_narrow", false)]);
}

#[test]
fn the_machine_itself_is_looked_at() {
    const GIB: u64 = 1 << 30;
    let disk = |role, free_bytes| Disk { role, path: "/data".into(), free_bytes, total_bytes: 100 * GIB };
    for (facts, expected) in [
        (Facts { disks: vec![disk("results", GIB)], ..fit() }, vec![("disk_full", false)]),
        (Facts { disks: vec![disk("work", 1 << 20)], ..fit() }, vec![("disk_full", true)]),
        (Facts { disks: vec![disk("weights", 30 * GIB)], ..fit() }, vec![]),
        (Facts { memory_bytes: Some((64 * GIB, GIB)), ..fit() }, vec![("memory_short", false)]),
        (Facts { shm: Some(Disk { total_bytes: 64 << 20, ..disk("shm", 0) }), ..fit() }, vec![("shm_small", false)]),
        (Facts { limits: Limits { files: Some(1024), ..fit().limits }, ..fit() }, vec![("few_files", false)]),
        (Facts { skew: Some(Skew { ahead_ms: 1500, rtt_ms: 10 }), ..fit() }, vec![]),
        (Facts { skew: Some(Skew { ahead_ms: -2500, rtt_ms: 10 }), ..fit() }, vec![("clock_skew", false)]),
        (Facts { skew: Some(Skew { ahead_ms: 2500, rtt_ms: 4000 }), ..fit() }, vec![]),
        (
            Facts { ports: vec![PortFact { port: 1, holder: Some("pid 7 (x)".into()) }], ..fit() },
            vec![("port_taken", true)],
        ),
        (
            Facts { jit_locks: vec![JitLock { path: "/c/lock".into(), age: Duration::from_secs(3600) }], ..fit() },
            vec![("stale_jit_lock", false)],
        ),
    ] {
        assert_eq!(told(&facts), expected);
    }
}

#[test]
fn what_a_login_has_and_orch_has_not_is_told() {
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    let mut facts = Facts { own: pairs(&[("PATH", "/bin:/usr/bin"), ("NCCL_DEBUG", "1")]), ..fit() };
    facts.login = Some(pairs(&[("PATH", "/usr/bin:/bin")]));
    assert_eq!(told(&facts), [], "the order is left alone");
    facts.login = Some(pairs(&[("PATH", "/opt/cuda/bin:/bin"), ("HF_HOME", "/data/hf")]));
    let finding = &examine(&facts)[0];
    assert_eq!(
        finding.what,
        "HF_HOME is `/data/hf` in a login, and not set here; the PATH of a login has /opt/cuda/bin, which is not looked \
         through here"
    );
}
