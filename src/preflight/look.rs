//! The looks, one after the other, each told to the journal.

use std::path::Path;

use super::flags::Asked;
use super::install::{self, CpuFeatures, Environment, Step};
use super::stage::{self, Staged};
use super::{PreflightError, container, executable, gpus, model, port, version};
use crate::engine::{self, EngineFacts, FlagList, Requirement, Version};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::launch::WorkFolder;
use crate::profile::{EngineKind, Profile, Via};
use crate::render::docker::Image;
use crate::render::{Facts, Warning};

/// What was found, but for the port.
#[derive(Clone, Debug)]
pub struct Found {
    /// The environment, where the profile has an `engine.install`.
    pub environment: Option<Environment>,
    /// The program's path; `None` for an engine without one.
    pub executable: Option<String>,
    /// The engine's version; `unknown` where nothing tells.
    pub version: Version,
    /// The flags of this build; `None` where it was not asked, or does not say.
    pub flags: Option<FlagList>,
    /// Where the model is; `None` for one that the engine itself looks up.
    pub model: Option<std::path::PathBuf>,
    /// The image, where the server is started in a container.
    pub image: Option<Image>,
    /// What the server loads, and where it is.
    pub staged: Vec<Staged>,
}

/// Looks at all that a launch needs and chooses the port.
pub async fn look(
    profile: &Profile,
    engine: &EngineFacts,
    work: &WorkFolder,
    emit: &dyn Emit,
) -> Result<Facts, PreflightError> {
    let found = look_without_port(profile, engine, &work.envs(), emit).await?;
    choose_port(found, profile, work, emit)
}

/// What was found becomes the facts of a plan: the port is chosen, and reserved.
pub fn choose_port(
    found: Found,
    profile: &Profile,
    work: &WorkFolder,
    emit: &dyn Emit,
) -> Result<Facts, PreflightError> {
    let chosen = gpus::choose(profile, work);
    let there = match &chosen {
        // Nothing is said of a machine without.
        Ok(chosen) if chosen.all.is_empty() => chosen.clone(),
        _ => Teller(emit).check("gpus", chosen, ToString::to_string)?,
    };
    if let Some(doubt) = there.doubt {
        Teller(emit).warn(doubt)?;
    }
    let port = Teller(emit).check("port", port::choose(profile.port, work), |port| port.to_string())?;
    Ok(Facts { gpus: there.all, ..found.at(port, there.devices) })
}

impl Found {
    /// The facts of a plan for a server at this port, with these GPUs.
    pub fn at(self, port: u16, devices: Vec<String>) -> Facts {
        Facts {
            version: self.version,
            flags: self.flags,
            port,
            gpus: Vec::new(),
            devices,
            nodes: Vec::new(),
            environment: self.environment.map(|environment| environment.path),
            executable: self.executable,
            assumed: false,
        }
    }
}

/// Looks at all but the port, for who only wants things to be there.
pub async fn look_without_port(
    profile: &Profile,
    engine: &EngineFacts,
    envs: &Path,
    emit: &dyn Emit,
) -> Result<Found, PreflightError> {
    let teller = Teller(emit);
    if let Via::Docker { image, .. } = &profile.launch.via {
        return container::look(profile, engine, image, envs, &teller).await;
    }
    let environment = match &crate::render::installable(profile) {
        Some(install) => {
            let made = ensure(install, &profile.engine.patches, profile.engine.kind, envs, &teller).await;
            Some(teller.check("installed", made, installed_text)?)
        }
        None => None,
    };
    let wanted = executable::wanted(profile, environment.as_ref(), engine.executable.as_deref());
    let executable = match wanted {
        Some(wanted) => {
            let found = executable::find(&wanted, environment.as_ref().map(|environment| environment.path.as_path()));
            Some(teller.check("executable", found, Clone::clone)?)
        }
        None => None,
    };
    let asked = match simulated(profile, engine) {
        Some(said) => version::allowed(profile, said),
        None => {
            let patience = version::PATIENCE;
            version::find(profile, environment.as_ref(), executable.as_deref(), engine.version.as_ref(), patience).await
        }
    };
    let (version, doubt) = teller.check("version", asked, |(version, _)| version.to_string())?;
    if let Some(doubt) = doubt {
        teller.warn(doubt)?;
    }
    let flags = match &executable {
        Some(program) if !engine.flags.help.is_empty() => {
            let command = std::iter::once(program).chain(&engine.flags.help).cloned().collect();
            ask_flags(&Asked { command, program, version: &version }, envs, &teller).await?
        }
        _ => None,
    };
    stray(engine, &teller)?;
    let model = model::find(profile, environment.as_ref().map(|environment| environment.path.as_path()), engine.model);
    let model = teller.check("model", model, |found| match found {
        Some(path) => path.display().to_string(),
        None => format!("{}, looked up by the engine", profile.model.path),
    })?;
    let found = Found { environment, executable, version, flags, model, image: None, staged: Vec::new() };
    let staged = stage::stage(profile, &found, engine.model, &teller).await?;
    Ok(Found { staged, ..found })
}

/// The flags of a build, kept beside the environments. One that does not say them is launched all the same.
pub(super) async fn ask_flags(
    asked: &Asked<'_>,
    envs: &Path,
    teller: &Teller<'_>,
) -> Result<Option<FlagList>, PreflightError> {
    let folder = envs.with_file_name("flags");
    if !asked.is_kept(&folder) {
        teller.0.emit(Scope::Run, Event::installing("asking the engine for its flags"))?;
    }
    match asked.flags(&folder).await {
        Ok(list) => Ok(Some(list)),
        Err(why) => {
            let text = format!("the flags are not held against this build: {why}");
            teller.warn(Warning::new("flags_not_checked", text))?;
            Ok(None)
        }
    }
}

/// Warns of variables that somebody left in the environment and that the server would inherit.
fn stray(engine: &EngineFacts, teller: &Teller<'_>) -> Result<(), PreflightError> {
    let mut names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    names.sort();
    for (name, stray) in names.iter().filter_map(|name| Some((name, engine.stray.iter().find(|stray| stray.is(name))?)))
    {
        let text = format!("`{name}` is set where orch was started, and the server inherits it: {}", stray.say);
        teller.warn(Warning::new("stray_environment", text))?;
    }
    Ok(())
}

/// The version that a simulated engine says: the scenario's, else the first that its engine was held against and the
/// profile allows.
fn simulated(profile: &Profile, engine: &EngineFacts) -> Option<Version> {
    if profile.engine.kind != EngineKind::Sim {
        return None;
    }
    let wanted = profile.engine.version.as_ref().and_then(|wanted| wanted.parse().ok());
    let said = profile.engine.said_version().map(Version::from);
    said.or_else(|| wanted.as_ref().and_then(Requirement::exact).cloned())
        .or_else(|| engine.preferred(wanted.as_ref()).cloned())
}

async fn ensure(
    install: &crate::profile::Install,
    patches: &[std::path::PathBuf],
    kind: EngineKind,
    envs: &Path,
    teller: &Teller<'_>,
) -> Result<Environment, PreflightError> {
    let features = CpuFeatures::read()?;
    let mut told = |step| match step {
        Step::Sign(what) => teller.0.emit(Scope::Run, Event::installing(what)),
        Step::Warning(warning) => teller.warn(warning),
    };
    let launchers = |name: &str| engine::file(kind, name, &engine::default_folders());
    let patches = install::Patch::read(patches)?;
    Ok(install::ensure(install, &patches, envs, &features, &launchers, &mut told).await?)
}

fn installed_text(environment: &Environment) -> String {
    let made = if environment.made { "" } else { ", as before" };
    let patches = match environment.patches.as_slice() {
        [] => String::new(),
        patches => format!(", patched by {}", patches.join(", ")),
    };
    format!("{}{patches}{made}", environment.packages.join(", "))
}

/// Tells the journal what was looked at.
pub(super) struct Teller<'a>(pub(super) &'a dyn Emit);

impl Teller<'_> {
    pub(super) fn check<T>(
        &self,
        check: &str,
        result: Result<T, PreflightError>,
        text: impl FnOnce(&T) -> String,
    ) -> Result<T, PreflightError> {
        let (ok, text) = match &result {
            Ok(found) => (true, text(found)),
            // What cannot be written down once need not be tried again.
            Err(PreflightError::Journal(_)) => return result,
            // The first line says what; the rest is in the failure itself.
            Err(error) => (false, error.to_string().lines().next().unwrap_or_default().to_owned()),
        };
        self.0.emit(Scope::Run, Event::Preflight { check: check.to_owned(), ok, text })?;
        result
    }

    pub(super) fn warn(&self, warning: Warning) -> Result<(), EmitError> {
        self.0.emit(Scope::Run, Event::Warning(warning))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

    use super::*;
    use crate::profile::{self, Request};

    /// Keeps what is told.
    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Emit for Told {
        fn emit(&self, _scope: Scope, event: Event) -> Result<(), EmitError> {
            let line = match event {
                Event::Preflight { check, ok, text } => format!("{} {check}: {text}", if ok { "ok" } else { "bad" }),
                Event::Warning(warning) => format!("warning {}", warning.id),
                other => format!("{other:?}"),
            };
            self.0.lock().unwrap().push(line);
            Ok(())
        }
    }

    /// A place with a program that says its version, and a model.
    struct Place {
        folder: tempfile::TempDir,
        work: WorkFolder,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let server = folder.path().join("server");
            fs::write(&server, "#!/bin/sh\necho version: 0.5.9 >&2\n").unwrap();
            fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(folder.path().join("tiny.gguf"), "GGUF").unwrap();
            let work = WorkFolder::at(folder.path().join("orch")).unwrap();
            Place { folder, work }
        }

        fn path(&self, name: &str) -> String {
            self.folder.path().join(name).to_str().unwrap().to_owned()
        }

        /// What a look finds and tells, with these keys over a profile that is right.
        async fn look(&self, set: &[String]) -> (Result<Facts, PreflightError>, Vec<String>) {
            let file = self.path("p.yaml");
            let (server, model) = (self.path("server"), self.path("tiny.gguf"));
            fs::write(&file, format!("engine: {{kind: sglang, executable: '{server}'}}\nmodel: '{model}'\n")).unwrap();
            let request = Request { profile: &file, set, folders: &[], env: &|_| None };
            let profile = profile::load(&request).unwrap().profile;
            let told = Told::default();
            let probe = r"{kind: sglang, version: {probe: [], pattern: 'version: (\S+)'}}";
            let engine: EngineFacts = serde_yaml::from_str(probe).unwrap();
            let facts = look(&profile, &engine, &self.work, &told).await;
            (facts, told.0.into_inner().unwrap())
        }
    }

    #[tokio::test]
    async fn all_looks_are_told_in_order_and_become_facts() {
        let place = Place::new();
        let (facts, told) = place.look(&["engine.version='>=0.5.5'".to_owned()]).await;
        let facts = facts.unwrap();
        assert_eq!((facts.version, facts.executable), (Version::from("0.5.9"), Some(place.path("server"))));
        assert!(!facts.assumed && facts.environment.is_none());
        let expected = [
            format!("ok executable: {}", place.path("server")),
            "ok version: 0.5.9".to_owned(),
            format!("ok model: {}", place.path("tiny.gguf")),
            format!("ok port: {}", facts.port),
        ];
        assert_eq!(told, expected);
    }

    #[tokio::test]
    async fn the_first_look_that_fails_is_the_last_one() {
        let place = Place::new();
        let (facts, told) = place.look(&["engine.version='>=0.6'".to_owned()]).await;
        let error = facts.unwrap_err();
        assert_eq!((error.stage(), error.kind()), ("preflight", "bad_config"));
        let expected = format!("the profile asks for version >=0.6 and {} is 0.5.9", place.path("server"));
        assert_eq!(error.to_string(), expected);
        assert_eq!(told, [format!("ok executable: {}", place.path("server")), format!("bad version: {expected}")]);

        let (facts, told) = place.look(&["model=./no/such.gguf".to_owned()]).await;
        assert_eq!(facts.unwrap_err().kind(), "weights_missing");
        assert_eq!(told[2], "bad model: cannot use the model `./no/such.gguf` (`model`): ./no/such.gguf is not there");
    }

    #[tokio::test]
    async fn a_pin_is_believed_only_where_the_program_is_silent_and_a_range_never() {
        let place = Place::new();
        let pin = ["engine.version='==0.5.9'".to_owned()];
        fs::write(place.path("server"), "#!/bin/sh\necho hello\n").unwrap();
        let (facts, told) = place.look(&pin).await;
        assert_eq!(facts.unwrap().version, Version::from("0.5.9"));
        assert_eq!(told[2], "warning version_not_checked");
        let (facts, _) = place.look(&["engine.version='>=0.5.5'".to_owned()]).await;
        let error = facts.unwrap_err().to_string();
        assert!(error.ends_with("says nothing that looks like a version"), "{error}");
        let (facts, told) = place.look(&[]).await;
        assert_eq!((facts.unwrap().version, told[2].as_str()), (Version::from("unknown"), "warning version_unknown"));
        fs::write(place.path("server"), "#!/bin/sh\necho version: 0.5.8\n").unwrap();
        let (facts, _) = place.look(&pin).await;
        assert!(facts.unwrap_err().to_string().ends_with(" is 0.5.8"));
    }
}
