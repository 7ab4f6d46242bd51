//! Whether a profile that reads well can be rendered: what a person wrote is judged before anything is started, in the
//! same words by every verb.

use std::path::PathBuf;

use super::{Exit, Failure};
use crate::engine::{self, Definition, EngineError};
use crate::profile::{Loaded, Misplaced, Profile, ProfileError};
use crate::render::{self, Fault};
use crate::run;

/// The definition of a profile's engine: of a user's `templates/`, else of the program.
pub(crate) fn find_definition(profile: &Profile) -> Result<Definition, EngineError> {
    engine::definition_for(&profile.engine, &engine::default_folders())
}

/// The definition of a profile's engine, without which a verb can do nothing.
pub(crate) fn definition(profile: &Profile) -> Result<Definition, Failure> {
    find_definition(profile).map_err(|error| Failure::new(Exit::Usage, error))
}

/// Whether a plan can be made at all, on whatever machine, and this build can run it.
pub(crate) fn run_check(loaded: &Loaded, definition: &Definition) -> Result<(), Failure> {
    let mut faults = all_faults(&loaded.profile, definition);
    faults.extend(run::not_yet(&loaded.profile));
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(Exit::Usage, at_their_places(loaded, faults))),
    }
}

/// The same for a deployment, which a manager may keep.
pub(crate) fn up_check(loaded: &Loaded, definition: &Definition) -> Result<(), Failure> {
    let mut faults = all_faults(&loaded.profile, definition);
    faults.extend(run::not_yet(&loaded.profile).into_iter().filter(|fault| fault.key != "launch.via"));
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(Exit::Usage, at_their_places(loaded, faults))),
    }
}

/// The names of a profile's steps, in order.
pub(crate) fn step_names(profile: &Profile, definition: &Definition) -> Vec<String> {
    let somewhere = |_: &_| Some(PathBuf::from("ENVIRONMENT"));
    let assumed = render::assume(profile, definition, definition.verified.first(), somewhere);
    let plan = assumed.ok().and_then(|assumed| render::plan(profile, definition, &assumed.facts).ok());
    plan.map(|plan| plan.steps.into_iter().map(|step| step.name).collect()).unwrap_or_default()
}

/// What stands against a plan, at its places in the profile. What this build cannot do yet is no fault of a profile.
pub(crate) fn plan_faults(loaded: &Loaded, definition: &Definition) -> Result<(), ProfileError> {
    let mut faults = all_faults(&loaded.profile, definition);
    faults.retain(|fault| fault.code != render::NOT_YET);
    if faults.is_empty() { Ok(()) } else { Err(at_their_places(loaded, faults)) }
}

fn all_faults(profile: &Profile, definition: &Definition) -> Vec<Fault> {
    let somewhere = |_: &_| Some(PathBuf::from("ENVIRONMENT"));
    // A range of versions that none of the verified ones is in is no fault yet: a run looks at the version that is there.
    let verified = definition.verified.first();
    render::assume(profile, definition, None, somewhere)
        .or_else(|fault| match fault.code {
            "no_version" => render::assume(profile, definition, verified, somewhere),
            _ => Err(fault),
        })
        .map_err(|fault| vec![fault])
        .and_then(|assumed| render::plan(profile, definition, &assumed.facts))
        .err()
        .unwrap_or_default()
}

/// Faults of the rendering, where they stand in the profile.
pub(crate) fn at_their_places(loaded: &Loaded, faults: Vec<Fault>) -> ProfileError {
    loaded.faults(faults.into_iter().map(|fault| Misplaced {
        code: format!("orch::render::{}", fault.code),
        message: fault.to_string(),
        key: fault.key,
        help: fault.help,
    }))
}
