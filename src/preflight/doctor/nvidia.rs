//! Asks `nvidia-smi`, each question within a time limit.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use super::facts::{GpuFact, GpuProcess, Nvidia, Xid};
use super::topology::Topology;
use crate::launch::command;

/// `nvidia-smi` takes seconds on a machine without its persistence daemon, and hangs for ever on one with a broken GPU.
const PATIENCE: Duration = Duration::from_secs(20);
/// The variable that sets another limit, in seconds: for tests of one that hangs.
const LIMIT: &str = "ORCH_GPU_QUERY_LIMIT_S";

/// What every driver tells.
const ALWAYS: [&str; 8] =
    ["index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "memory.used", "utilization.gpu"];
/// What some do not know the names of.
const SOME: [&str; 6] = [
    "pcie.link.width.current",
    "pcie.link.width.max",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "clocks_throttle_reasons.active",
    "temperature.gpu",
];

/// What a question came to.
enum Answer {
    Told(String),
    Absent,
    Hung,
    Failed(String),
}

pub(super) fn limit() -> Duration {
    let set = std::env::var(LIMIT).ok().and_then(|text| text.parse().ok());
    set.filter(|seconds| *seconds > 0.0).map_or(PATIENCE, Duration::from_secs_f64)
}

fn ask(words: &[&str]) -> Answer {
    let mut command = Command::new("nvidia-smi");
    // Its numbers are then those of the bus, whatever the environment says.
    command.args(words).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    match command::output(&mut command, limit()) {
        Ok(output) if output.status.success() => Answer::Told(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let said = [output.stderr, output.stdout].concat();
            Answer::Failed(String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>().join(" "))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Answer::Absent,
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Answer::Hung,
        Err(error) => Answer::Failed(error.to_string()),
    }
}

fn query(fields: &[&str]) -> Answer {
    ask(&[&format!("--query-gpu={}", fields.join(",")), "--format=csv,noheader,nounits"])
}

/// The GPUs. After a question that hung no other is asked: each would wait as long.
pub(super) fn gpus() -> Nvidia {
    let all: Vec<&str> = ALWAYS.iter().chain(&SOME).copied().collect();
    let hung =
        |fields: &[&str]| Nvidia::Hung { query: format!("--query-gpu={},…", fields[..2].join(",")), limit: limit() };
    match query(&all) {
        Answer::Told(text) => Nvidia::Told(parse(&all, &text)),
        Answer::Absent => Nvidia::Absent,
        Answer::Hung => hung(&all),
        Answer::Failed(said) if !said.contains("not a valid field") => Nvidia::Failed { said },
        Answer::Failed(_) => match query(&ALWAYS) {
            Answer::Told(text) => Nvidia::Told(parse(&ALWAYS, &text)),
            Answer::Absent => Nvidia::Absent,
            Answer::Hung => hung(&ALWAYS),
            Answer::Failed(said) => Nvidia::Failed { said },
        },
    }
}

fn parse(fields: &[&str], text: &str) -> Vec<GpuFact> {
    text.lines().filter_map(|line| gpu(fields, line)).collect()
}

fn gpu(fields: &[&str], line: &str) -> Option<GpuFact> {
    let values: BTreeMap<&str, &str> = fields.iter().copied().zip(line.split(',').map(str::trim)).collect();
    let text = |field: &str| values.get(field).copied().unwrap_or_default().to_owned();
    let number = |field: &str| values.get(field).and_then(|value| value.parse::<u64>().ok());
    let lanes = |field: &str| number(field).and_then(|lanes| u32::try_from(lanes).ok());
    let bits = |field: &str| u64::from_str_radix(values.get(field)?.strip_prefix("0x")?, 16).ok();
    Some(GpuFact {
        index: u32::try_from(number("index")?).ok()?,
        uuid: text("uuid"),
        name: text("name"),
        bus: text("pci.bus_id"),
        driver: text("driver_version"),
        memory_mib: number("memory.total"),
        used_mib: number("memory.used"),
        busy_percent: number("utilization.gpu"),
        lanes: lanes("pcie.link.width.current").zip(lanes("pcie.link.width.max")),
        ecc_volatile: number("ecc.errors.uncorrected.volatile.total"),
        ecc_ever: number("ecc.errors.uncorrected.aggregate.total"),
        throttle: bits("clocks_throttle_reasons.active"),
        celsius: lanes("temperature.gpu"),
    })
}

/// What runs on them; `is_ours` knows our own.
pub(super) fn processes(is_ours: &dyn Fn(u32) -> bool) -> Vec<GpuProcess> {
    let Answer::Told(text) =
        ask(&["--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"])
    else {
        return Vec::new();
    };
    let process = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        let (uuid, pid) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
        let name = fields.next()?.to_owned();
        Some(GpuProcess { uuid, pid, name, used_mib: fields.next()?.parse().ok(), ours: is_ours(pid) })
    };
    text.lines().filter_map(process).collect()
}

/// How they are linked.
pub(super) fn topology() -> Option<Topology> {
    match ask(&["topo", "-m"]) {
        Answer::Told(text) => Topology::parse(&text),
        _ => None,
    }
}

/// Errors of GPUs in the kernel's log; `None` where it may not be read.
pub(super) fn xids() -> Option<Vec<Xid>> {
    let output = command::output(&mut Command::new("dmesg"), limit()).ok()?;
    output.status.success().then(|| parse_xids(&String::from_utf8_lossy(&output.stdout)))
}

/// `[ 1234.5] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.`
fn parse_xids(text: &str) -> Vec<Xid> {
    let xid = |line: &str| {
        let (before, rest) = line.split_once("NVRM: Xid (")?;
        let (bus, rest) = rest.split_once("):")?;
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        let at_s = before.trim().strip_prefix('[').and_then(|at| at.split(']').next()?.trim().parse().ok());
        Some(Xid {
            at_s,
            bus: bus.trim_start_matches("PCI:").to_owned(),
            code: digits.parse().ok()?,
            line: line.trim().to_owned(),
        })
    };
    text.lines().filter_map(xid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_names_and_what_is_not_told_is_absent() {
        let fields = ["index", "uuid", "memory.used", "pcie.link.width.current", "pcie.link.width.max"];
        let read = gpu(&fields, "1, GPU-5a7b, 44120, 8, 16").unwrap();
        assert_eq!((read.index, read.used_mib, read.lanes, read.throttle), (1, Some(44120), Some((8, 16)), None));
        let read = gpu(&["index", "clocks_throttle_reasons.active", "memory.used"], "0, 0x0000000000000044, [N/A]");
        let read = read.unwrap();
        assert_eq!((read.throttle, read.used_mib), (Some(0x44), None));
        assert_eq!(gpu(&fields, "Unable to determine the device handle for GPU"), None);
    }

    #[test]
    fn errors_are_read_off_the_kernels_log() {
        let text = "[    0.000000] Linux\n[ 1234.567890] NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.\n\
                    Nov 30 12:00:01 box kernel: NVRM: Xid (PCI:0000:01:00): 13, Graphics Exception\n";
        let found = parse_xids(text);
        let told: Vec<_> = found.iter().map(|xid| (xid.at_s, xid.bus.as_str(), xid.code)).collect();
        assert_eq!(told, [(Some(1234.56789), "0000:41:00", 79), (None, "0000:01:00", 13)]);
    }
}
