//! Which version of the engine there is.

use std::process::Stdio;
use std::time::Duration;

use regex::Regex;
use tokio::process::Command;

use super::PreflightError;
use super::install::Environment;
use crate::engine::{Requirement, Version, VersionProbe};
use crate::profile::Profile;
use crate::render::Warning;

/// How long a program may take to say its version. vLLM was seen to import for three quarters of a minute first.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// The version that the installed variant names; else what the program says; else an exact pin of the profile, which is
/// believed with a warning. What the program says comes before the pin, since a record must name what ran.
pub(super) async fn find(
    profile: &Profile,
    environment: Option<&Environment>,
    executable: Option<&str>,
    probe: Option<&VersionProbe>,
    patience: Duration,
) -> Result<(Version, Option<Warning>), PreflightError> {
    let wanted = profile.engine.version.as_deref().map(requirement).transpose()?;
    if let Some(version) = environment.and_then(|environment| environment.version.as_deref()) {
        return held(Version::from(version), wanted.as_ref(), "`engine.install` installs");
    }
    let (Some(probe), Some(executable)) = (probe, executable) else {
        // Nothing can be asked, and a pin is all there is.
        return Ok(match &wanted {
            None => (unknown(), None),
            Some(wanted) => match wanted.exact() {
                Some(version) => (version.clone(), None),
                None => {
                    let text =
                        format!("version {wanted} cannot be checked: this engine cannot be asked for its version");
                    (unknown(), Some(Warning::new("version_unknown", text)))
                }
            },
        });
    };
    let silence = match ask(executable, probe, patience).await? {
        Ok(version) => return held(version, wanted.as_ref(), &format!("{executable} is")),
        Err(why) => why,
    };
    let command = format!("`{executable} {}` {silence}", probe.probe.join(" "));
    match &wanted {
        None => Ok((
            unknown(),
            Some(Warning::new("version_unknown", format!("the engine's version is not known: {command}"))),
        )),
        Some(wanted) => match wanted.exact() {
            Some(version) => {
                let text = format!("version {version} is believed from the profile: {command}");
                Ok((version.clone(), Some(Warning::new("version_not_checked", text))))
            }
            None => Err(PreflightError::Version {
                wanted: wanted.to_string(),
                found: command,
                help: "pin the version exactly (`==`) to have it believed",
            }),
        },
    }
}

/// What a simulated engine will say, if the profile allows it.
pub(super) fn allowed(profile: &Profile, said: Version) -> Result<(Version, Option<Warning>), PreflightError> {
    let wanted = profile.engine.version.as_deref().map(requirement).transpose()?;
    held(said, wanted.as_ref(), "the scenario says")
}

fn requirement(text: &str) -> Result<Requirement, PreflightError> {
    text.parse().map_err(|_| PreflightError::Version {
        wanted: text.to_owned(),
        found: "that is no condition on a version".to_owned(),
        help: "write conditions such as `>=0.5.9` or `==b10434`, joined by commas",
    })
}

fn unknown() -> Version {
    Version::from("unknown")
}

fn held(
    version: Version,
    wanted: Option<&Requirement>,
    who: &str,
) -> Result<(Version, Option<Warning>), PreflightError> {
    match wanted {
        Some(wanted) if !wanted.allows(&version) => Err(PreflightError::Version {
            wanted: wanted.to_string(),
            found: format!("{who} {version}"),
            help: "change `engine.version`, or `engine.install` or `engine.executable`, so that they agree",
        }),
        _ => Ok((version, None)),
    }
}

/// Runs the program with the probe's words. The inner error says in words why it told nothing.
async fn ask(
    executable: &str,
    probe: &VersionProbe,
    patience: Duration,
) -> Result<Result<Version, String>, PreflightError> {
    let pattern = Regex::new(&probe.pattern).map_err(|error| PreflightError::Pattern { why: error.to_string() })?;
    let output = Command::new(executable)
        .args(&probe.probe)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(patience, output).await {
        Err(_) => return Ok(Err(format!("said nothing in {} s", patience.as_secs()))),
        Ok(Err(error)) => return Ok(Err(format!("cannot be run: {error}"))),
        Ok(Ok(output)) => output,
    };
    let text = String::from_utf8_lossy(&[output.stdout, b"\n".to_vec(), output.stderr].concat()).into_owned();
    let Some(found) = pattern.captures(&text) else {
        return Ok(Err("says nothing that looks like a version".to_owned()));
    };
    let version = found.name("version").or_else(|| found.get(1)).or_else(|| found.get(0));
    let version = version.map(|version| format!("{}{}", probe.prefix, version.as_str().trim()));
    Ok(Ok(Version(version.unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn say(script: &str, pattern: &str) -> Result<Version, String> {
        let probe = vec!["-c".to_owned(), script.to_owned()];
        let probe = VersionProbe { probe, pattern: pattern.to_owned(), prefix: "b".to_owned() };
        ask("/bin/sh", &probe, PATIENCE).await.unwrap()
    }

    #[tokio::test]
    async fn the_version_is_read_from_both_outputs() {
        let pattern = r"version: (?P<version>\d+)";
        assert_eq!(say("echo 'version: 10434 (7e4c0a9)'", pattern).await, Ok(Version::from("b10434")));
        assert_eq!(say("echo 'version: 10434' >&2; exit 1", pattern).await, Ok(Version::from("b10434")));
        assert_eq!(say("echo 0.1.0-dev", pattern).await, Err("says nothing that looks like a version".to_owned()));
    }

    #[tokio::test]
    async fn a_pattern_that_is_none_is_named() {
        let probe = VersionProbe { probe: Vec::new(), pattern: "(".to_owned(), prefix: String::new() };
        let error = ask("/bin/sh", &probe, PATIENCE).await.unwrap_err().to_string();
        assert!(
            error.starts_with("the pattern of the version probe in `engine.yaml` is no regular expression"),
            "{error}"
        );
    }

    #[test]
    fn a_version_outside_the_range_is_refused_with_both() {
        let wanted: Requirement = ">=b10434".parse().unwrap();
        assert_eq!(held("b10500".into(), Some(&wanted), "x is").unwrap().0, Version::from("b10500"));
        let error = held("b10400".into(), Some(&wanted), "/bin/llama-server is").unwrap_err();
        assert_eq!(error.to_string(), "the profile asks for version >=b10434 and /bin/llama-server is b10400");
    }
}
