//! What stands against a run among our own: leases, servers that were left, ports, engine and model.

use super::Finding;
use super::facts::{EngineFact, Facts, ModelFact};
use crate::launch::{Lease, State};

/// A lock of a compiler that is older than this is nobody's: no kernel takes so long.
const STALE: std::time::Duration = std::time::Duration::from_secs(15 * 60);

pub(super) fn examine(facts: &Facts, findings: &mut Vec<Finding>) {
    for held in &facts.leases {
        let since = held.since.map(|since| format!(" since {}", since.strftime("%-d %b %H:%M"))).unwrap_or_default();
        if held.lease == Lease::Measure {
            findings.push(
                Finding::new(
                    "measuring",
                    format!("{} measures on this machine{since}", held.holder),
                    "two measurements at once disturb each other, so the second is refused",
                    "wait for it, or `share: true` in the profile, which the record says",
                )
                .blocking(true),
            );
        }
    }
    for server in &facts.servers {
        let id = &server.id;
        match server.state {
            State::Orphan => findings.push(Finding::new(
                "orphan",
                format!("the supervisor of {id} is gone, and {} of its processes live", server.processes),
                "it keeps its port, its GPUs and their memory, and nothing stops it when its run ends",
                format!("`orch stop {id}`"),
            )),
            State::Ended if !server.rebooted => findings.push(Finding::new(
                "ended",
                format!("{id} has ended, and its run did not take notice"),
                "its run was killed; what it measured until then is in its record",
                format!("`orch stop {id}` clears it; `orch run --resume` goes on with the run"),
            )),
            _ => {}
        }
    }
    for port in &facts.ports {
        if let Some(holder) = &port.holder {
            findings.push(
                Finding::new(
                    "port_taken",
                    format!("port {} is taken by {holder}", port.port),
                    "the profile names it, and a server can only listen on one that is free",
                    "`port: auto` takes one that is free; or stop who has it",
                )
                .blocking(true),
            );
        }
    }
    for lock in facts.jit_locks.iter().filter(|lock| lock.age > STALE) {
        findings.push(Finding::new(
            "stale_jit_lock",
            format!("{} has been there for {} min", lock.path.display(), lock.age.as_secs() / 60),
            "a compiler that was killed has left it; the next one waits for it to go away, for ever",
            format!("if nothing compiles: `rm {}`", crate::host::quote(&lock.path.display().to_string())),
        ));
    }
    match &facts.engine {
        Some(EngineFact::Not { why, remedy }) => findings.push(
            Finding::new("engine", why.clone(), "without its engine a server cannot be started", remedy.clone())
                .blocking(true),
        ),
        Some(EngineFact::There { .. } | EngineFact::Installed) | None => {}
    }
    match &facts.model {
        Some(ModelFact::Not { why, remedy }) => findings.push(
            Finding::new("model", why.clone(), "the engine would fail after minutes of loading", remedy.clone())
                .blocking(true),
        ),
        Some(ModelFact::Fetched { name, cache }) => findings.push(Finding::new(
            "model_to_fetch",
            format!("{name} is not in {}", cache.display()),
            "its weights are fetched before the start, which may take long",
            "`orch fetch` of the profile gets them before",
        )),
        Some(ModelFact::There(_)) | None => {}
    }
}
