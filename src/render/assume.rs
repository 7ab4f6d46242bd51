//! Facts for `orch render`, which looks at no host.

use std::path::PathBuf;

use super::{Facts, Fault, Warning};
use crate::engine::{Definition, Requirement, Version};
use crate::profile::{Install, InstallVariant, Port, Profile};

/// The variants of `engine.install` that bring a version which the profile allows. Those that name none may; and where
/// none does, all of them: that they do not agree with `engine.version` is told when the version is looked at.
pub fn installable(profile: &Profile) -> Option<Install> {
    let install = profile.engine.install.as_ref()?;
    let Ok(Some(requirement)) = requirement(profile) else { return Some(install.clone()) };
    let allowed = |variant: &&InstallVariant| {
        variant.version.as_deref().is_none_or(|version| requirement.allows(&Version::from(version)))
    };
    let variants: Vec<InstallVariant> = install.variants.iter().filter(allowed).cloned().collect();
    Some(if variants.is_empty() { install.clone() } else { Install { variants } })
}

/// Facts that were not looked at, and what is said about that.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumed {
    /// The facts.
    pub facts: Facts,
    /// What a person should know of them.
    pub warnings: Vec<Warning>,
}

/// Assumes a place that suits the profile: its port if it has one, its first install variant, and a version: the one
/// that was asked for, else the profile's or the variant's exact one, else the first verified one that fits.
///
/// `environment`: where a variant would be installed.
pub fn assume(
    profile: &Profile,
    definition: &Definition,
    asked: Option<&Version>,
    environment: impl Fn(&InstallVariant) -> Option<PathBuf>,
) -> Result<Assumed, Fault> {
    let requirement = requirement(profile)?;
    let install = installable(profile);
    let variant = install.as_ref().and_then(|install| install.variants.first());
    let mut warnings = Vec::new();
    let version = if let Some(asked) = asked {
        if let Some(requirement) = requirement.as_ref().filter(|requirement| !requirement.allows(asked)) {
            let text =
                format!("rendered for {asked}, which the profile's own `engine.version: {requirement}` does not allow");
            warnings.push(Warning::new("engine_version_outside", text));
        }
        asked.clone()
    } else if let Some(said) = profile.engine.said_version() {
        Version::from(said)
    } else if let Some(exact) = requirement.as_ref().and_then(Requirement::exact) {
        exact.clone()
    } else if let Some(version) = variant.and_then(|variant| variant.version.clone()) {
        Version(version)
    } else if let Some(verified) = definition.preferred(requirement.as_ref()) {
        verified.clone()
    } else if definition.verified.is_empty() {
        // A command of the user's own has no versions, and of some engines none is known.
        Version(String::new())
    } else {
        let verified = definition.verified.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let requirement = requirement.map_or_else(String::new, |requirement| requirement.to_string());
        return Err(Fault::new(
            "no_version",
            "engine.version",
            format!("no version that is known fits `{requirement}`"),
        )
        .help(format!("known are {verified}; name one with `--engine-version`")));
    };
    if let Some(install) = install.as_ref().filter(|install| install.variants.len() > 1) {
        let text = format!(
            "rendered for the first of {} variants of `engine.install`: a run takes the first that its processor fits",
            install.variants.len()
        );
        warnings.push(Warning::new("install_assumed", text));
    }
    let facts = Facts {
        version,
        flags: None,
        port: match profile.port {
            Port::Auto => *crate::launch::AUTO_PORTS.start(),
            Port::Fixed(port) => port,
        },
        gpus: Vec::new(),
        devices: Vec::new(),
        nodes: Vec::new(),
        environment: variant.and_then(environment),
        executable: variant.and_then(|variant| variant.executable.clone()),
        assumed: true,
    };
    Ok(Assumed { facts, warnings })
}

/// The profile's condition on the version.
pub(super) fn requirement(profile: &Profile) -> Result<Option<Requirement>, Fault> {
    let parse = |text: &String| {
        text.parse().map_err(|error: crate::engine::RequirementError| {
            Fault::new("bad_version", "engine.version", error.to_string())
        })
    };
    profile.engine.version.as_ref().map(parse).transpose()
}
