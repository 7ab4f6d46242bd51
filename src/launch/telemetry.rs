//! What a server takes of the machine while it runs: its processes' memory and processor time, and its GPUs.
//!
//! What cannot be read is absent. The processes of a container are none of the marked ones, so of a server in a container
//! only the GPUs are told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::servers::Folder;
use super::{Process, docker, gpu, process};
use crate::event::{Emit, EmitError, Event, Scope};

/// Between two readings.
const LOOK: Duration = Duration::from_secs(1);

/// Emits a reading a second for as long as it is polled; one in which nothing could be read is left out.
pub(super) async fn watch(folder: &Folder, emit: &dyn Emit) -> Result<(), EmitError> {
    let devices = folder.plan().map(|plan| plan.devices()).unwrap_or_default();
    let numbers = tokio::task::spawn_blocking(move || numbers(&devices)).await.unwrap_or_default();
    let contained = docker::mark_of(folder).is_some();
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        look.tick().await;
        let (folder, numbers, last) = (folder.clone(), numbers.clone(), before.take());
        // It reads files, and with GPUs it runs a program: off the threads that serve the rest.
        let read = tokio::task::spawn_blocking(move || {
            let now = (!contained).then(|| Processes::read(&folder)).flatten();
            let mut values = now.as_ref().map(|now| now.values(last.as_ref())).unwrap_or_default();
            values.extend(of_devices(&numbers));
            (now, values)
        });
        let Ok((now, values)) = read.await else { continue };
        before = now;
        if !values.is_empty() {
            emit.emit(Scope::Run, Event::Telemetry { values })?;
        }
    }
}

/// The living processes of a server at a moment.
struct Processes {
    at: Instant,
    resident_bytes: f64,
    /// Processor time of each so far, in seconds.
    cpu_s: BTreeMap<Process, f64>,
}

impl Processes {
    /// Those that were seen to descend from it; `None` when none of them lives.
    fn read(folder: &Folder) -> Option<Self> {
        let (ticks, page) = (process::ticks_per_s(), process::page_bytes());
        let mut read = Processes { at: Instant::now(), resident_bytes: 0.0, cpu_s: BTreeMap::new() };
        for known in folder.seen().into_iter().chain(folder.main()) {
            let Some(stat) = process::stat(known.pid).filter(|stat| stat.process == known && stat.lives()) else {
                continue;
            };
            // A process may be noted twice, and counts once.
            if read.cpu_s.insert(known, stat.cpu_ticks as f64 / ticks).is_none() {
                read.resident_bytes += stat.resident_pages as f64 * page;
            }
        }
        (!read.cpu_s.is_empty()).then_some(read)
    }

    /// How much processor was used since the reading `before` is known only when there is one. A process that was not
    /// there then has used all of its time since.
    fn values(&self, before: Option<&Processes>) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::from([
            ("processes".to_owned(), self.cpu_s.len() as f64),
            ("resident_bytes".to_owned(), self.resident_bytes),
        ]);
        let Some(before) = before else { return values };
        let used: f64 = self
            .cpu_s
            .iter()
            .map(|(process, now)| (now - before.cpu_s.get(process).copied().unwrap_or(0.0)).max(0.0))
            .sum();
        let passed = self.at.duration_since(before.at).as_secs_f64();
        if passed > 0.0 {
            values.insert("cpu_cores".to_owned(), used / passed);
        }
        values
    }
}

/// The numbers of the server's own GPUs, by UUID.
fn numbers(devices: &[String]) -> BTreeMap<String, u32> {
    if devices.is_empty() {
        return BTreeMap::new();
    }
    let all = gpu::here().list().into_iter().map(|gpu| (gpu.uuid, gpu.index));
    all.filter(|(uuid, _)| devices.contains(uuid)).collect()
}

/// What they read now, by their number.
fn of_devices(numbers: &BTreeMap<String, u32>) -> BTreeMap<String, f64> {
    const MIB: f64 = 1_048_576.0;
    if numbers.is_empty() {
        return BTreeMap::new();
    }
    let mut values = BTreeMap::new();
    for gpu::Reading { uuid, used_mib, busy_ratio, power_w, power_limit_w: _ } in
        gpu::here().readings().unwrap_or_default()
    {
        let Some(number) = numbers.get(&uuid) else { continue };
        for (name, value) in
            [("memory_bytes", used_mib.map(|mib| mib as f64 * MIB)), ("busy_ratio", busy_ratio), ("power_w", power_w)]
        {
            if let Some(value) = value {
                values.insert(format!("gpu{number}_{name}"), value);
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: Instant, cpu_s: &[(u32, f64)]) -> Processes {
        let cpu_s = cpu_s.iter().map(|(pid, s)| (Process { pid: *pid, start_ticks: 1 }, *s)).collect();
        Processes { at, resident_bytes: 4096.0, cpu_s }
    }

    #[test]
    fn processor_time_is_that_between_two_readings() {
        let began = Instant::now();
        let first = at(began, &[(1, 10.0), (2, 3.0)]);
        assert_eq!(
            first.values(None),
            BTreeMap::from([("processes".to_owned(), 2.0), ("resident_bytes".to_owned(), 4096.0)]),
            "of one reading no share is known"
        );
        // One worked, one is gone, and a new one has worked since it began.
        let second = at(began + Duration::from_secs(2), &[(1, 11.0), (3, 0.5)]);
        assert_eq!(second.values(Some(&first))["cpu_cores"], 0.75);
    }
}
