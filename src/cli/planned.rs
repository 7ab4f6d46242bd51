//! Whether a profile that reads well can be rendered: what a person wrote is judged before anything is started, in the
//! same words by every verb.

use std::path::{Path, PathBuf};

use super::{Exit, Failure};
use crate::engine::{self, Definition, EngineError};
use crate::profile::{Loaded, Misplaced, Profile, ProfileError, Question, read_questions};
use crate::render::{self, Fault, Warning};
use crate::run;

/// The definition of a profile's engine: of a user's `templates/`, else of the program.
pub(crate) fn find_definition(profile: &Profile) -> Result<Definition, EngineError> {
    engine::definition_for(&profile.engine, &engine::default_folders())
}

/// The definition of a profile's engine, without which a verb can do nothing.
pub(crate) fn definition(profile: &Profile) -> Result<Definition, Failure> {
    find_definition(profile).map_err(|error| Failure::new(Exit::Usage, error))
}

/// The questions in a file, if one is named.
pub(crate) fn questions(file: Option<&Path>) -> Result<Vec<Question>, Failure> {
    let questions = file.map(read_questions).transpose().map_err(|error| Failure::new(Exit::Usage, error))?;
    Ok(questions.unwrap_or_default())
}

/// Whether a plan can be made at all, on whatever machine, and this build can run it.
pub(crate) fn run_check(loaded: &Loaded, definition: &Definition) -> Result<(), Failure> {
    refuse(loaded, definition, run::not_yet(&loaded.profile))
}

/// The same for a run on another host, as far as that can be told from here.
pub(crate) fn far_check(loaded: &Loaded, definition: &Definition) -> Result<(), Failure> {
    let later = run::not_yet(&loaded.profile).into_iter().filter(|fault| fault.key != "host");
    refuse(loaded, definition, later.collect())
}

/// The same for a deployment, which a manager may keep.
pub(crate) fn up_check(loaded: &Loaded, definition: &Definition) -> Result<(), Failure> {
    let later = run::not_yet(&loaded.profile).into_iter().filter(|fault| fault.key != "launch.via");
    refuse(loaded, definition, later.collect())
}

/// Refuses for the profile's own faults, and those of this build told with them; a profile that is right is no mistake of
/// whoever wrote it: that it cannot be launched here is another exit code.
fn refuse(loaded: &Loaded, definition: &Definition, later: Vec<Fault>) -> Result<(), Failure> {
    let mut faults = all_faults(&loaded.profile, definition);
    faults.extend(later);
    if faults.is_empty() {
        return Ok(());
    }
    let right = faults.iter().all(|fault| fault.code == render::NOT_YET);
    let exit = if right { Exit::NotLaunched } else { Exit::Usage };
    Err(Failure::new(exit, at_their_places(loaded, faults)))
}

/// Why no run of a profile could be begun, whatever machine it were on; `None` if one could.
pub(crate) fn hindrance(loaded: &Loaded, definition: &Definition) -> Option<String> {
    let mut faults = all_faults(&loaded.profile, definition);
    faults.extend(run::not_yet(&loaded.profile));
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    (!faults.is_empty()).then(|| faults.join("; "))
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

/// What a person should know of the measurements before they are made.
pub(crate) fn warnings(profile: &Profile, definition: &Definition) -> Vec<Warning> {
    let somewhere = |_: &_| Some(PathBuf::from("ENVIRONMENT"));
    let assumed = render::assume(profile, definition, definition.verified.first(), somewhere);
    let plan = assumed.ok().and_then(|assumed| render::plan(profile, definition, &assumed.facts).ok());
    let warnings = plan.into_iter().flat_map(|plan| plan.warnings);
    // What depends on the version that will be found is said by the run.
    warnings.filter(|warning| warning.id == "too_few_requests").collect()
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
