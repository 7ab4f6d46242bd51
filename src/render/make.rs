//! The plan as a whole.

use std::time::Duration;

use super::logic::At;
use super::{
    Facts, Fault, Plan, PlannedEngine, Rank, Readiness, Step, StopRule, Warning, assume, command, nodes, steps, traps,
};
use crate::engine::{Definition, Requirement, settings};
use crate::measure::validity::LEAST_REQUESTS;
use crate::profile::{EngineKind, Profile, Via};
use crate::units;

/// So many generated tokens are believed.
const PROOF_TOKENS: u32 = 8;

/// What will be done for a profile at a place.
pub fn plan(profile: &Profile, definition: &Definition, facts: &Facts) -> Result<Plan, Vec<Fault>> {
    let mut faults = Vec::new();
    let mut keep = |result: Result<Option<Requirement>, Fault>| {
        result.unwrap_or_else(|fault| {
            faults.push(fault);
            None
        })
    };
    let requirement = keep(assume::requirement(profile));
    let steps = steps::of(profile, definition).unwrap_or_else(|found| {
        faults.extend(found);
        Vec::new()
    });
    if let Via::Docker { options, .. } = &profile.launch.via {
        faults.extend(super::docker::faults(options, &profile.secrets));
    }
    let patience = units::parse_duration(&definition.stop.patience).unwrap_or(Duration::from_secs(60));
    let (ranks, said) = match ranks(profile, definition, facts) {
        Ok(ranks) if faults.is_empty() => ranks,
        Ok(_) => return Err(faults),
        Err(found) => {
            faults.extend(found);
            return Err(faults);
        }
    };
    let mut warnings = version_warnings(definition, facts, requirement.as_ref());
    warnings.extend(said);
    warnings.extend(traps::of(profile, definition, &ranks));
    if !profile.instrument
        && definition.settings.contains_key("instrument")
        && profile.engine.kind != EngineKind::Command
    {
        let text = "`instrument: off`: the engine's own counters are not read, so acceptance, cache hits, the queue and steps per second are not known, but for what it says with its answers";
        warnings.push(Warning::new("not_instrumented", text));
    }
    warnings.extend(steps.iter().filter_map(too_few));
    let ready = profile.engine.ready.clone().unwrap_or_default();
    let readiness = Readiness {
        base_url: format!("http://127.0.0.1:{}", facts.port),
        health: ready.http.or_else(|| definition.endpoints.health.clone()),
        models: definition.endpoints.models.clone(),
        // A command of the user's own may serve under any name: unless the profile says which, the list's only one.
        model: match profile.engine.kind {
            EngineKind::Command => profile.model.served_name.clone(),
            _ => Some(settings::served_name(profile)),
        },
        log: ready.log,
        tokens: PROOF_TOKENS,
        timeout_s: profile.gate.timeout.map(|timeout| timeout.as_secs_f64()),
        grammar: profile.engine.kind,
    };
    Ok(Plan {
        engine: PlannedEngine { kind: profile.engine.kind, version: facts.version.clone(), assumed: facts.assumed },
        ranks,
        readiness,
        stop: StopRule { signal: definition.stop.signal.clone(), patience },
        steps,
        warnings,
    })
}

/// One process a node, and what is worth knowing of them. What stands against the head's command stands against all.
fn ranks(profile: &Profile, definition: &Definition, facts: &Facts) -> Result<(Vec<Rank>, Vec<Warning>), Vec<Fault>> {
    let mut ranks = Vec::new();
    let mut warnings = Vec::new();
    for seat in &nodes::seats(profile, facts) {
        let command = command::render(&At { profile, definition, facts, seat })?;
        let head = seat.rank == 0;
        if head {
            warnings = command.warnings;
        }
        ranks.push(Rank {
            node: seat.name.clone(),
            argv: command.argv,
            env: command.env,
            secrets: profile.secrets.clone(),
            files: Vec::new(),
            head,
        });
    }
    Ok((ranks, warnings))
}

/// A step that cannot come to enough requests is not valid whatever happens: better said now than afterwards.
fn too_few(step: &Step) -> Option<Warning> {
    let requests = step.load.requests.filter(|requests| *requests < LEAST_REQUESTS)?;
    let text = format!(
        "`{}` measures {requests} requests: with fewer than {LEAST_REQUESTS} its result will not be valid",
        step.name
    );
    Some(Warning::new("too_few_requests", text))
}

fn version_warnings(definition: &Definition, facts: &Facts, requirement: Option<&Requirement>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let is_verified =
        definition.verified.iter().any(|verified| verified.compare(&facts.version) == Some(std::cmp::Ordering::Equal));
    if !is_verified && !definition.verified.is_empty() {
        let verified = definition.verified.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let text =
            format!("{} is not among the versions that the templates were held against: {verified}", facts.version);
        warnings.push(Warning::new("engine_version_unverified", text));
    }
    // `orch render --engine-version` says this itself; a run refuses before it comes here.
    if let Some(requirement) = requirement.filter(|requirement| !facts.assumed && !requirement.allows(&facts.version)) {
        let text = format!("{} is not what the profile asks for: `engine.version: {requirement}`", facts.version);
        warnings.push(Warning::new("engine_version_outside", text));
    }
    warnings
}
