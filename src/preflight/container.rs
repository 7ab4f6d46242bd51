//! The looks for a server in a container: its engine, its image, and what the image's program says of itself.

use std::path::Path;
use std::time::Duration;

use super::flags::Asked;
use super::look::{Found, Teller, ask_flags};
use super::{PreflightError, executable, model, version};
use crate::engine::{EngineFacts, VersionProbe};
use crate::event::{Event, Scope};
use crate::launch::{LaunchError, docker};
use crate::profile::Profile;
use crate::render::docker::Image;

/// How long a program in a container may take to say its version: an interpreter that is read from a cold disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// Looks at all but the port. An image that is not here is fetched; that is before any clock starts.
pub(super) async fn look(
    profile: &Profile,
    engine: &EngineFacts,
    asked: &str,
    envs: &Path,
    teller: &Teller<'_>,
) -> Result<Found, PreflightError> {
    teller.check("container", blocking(docker::engine).await, |version| format!("engine {version}"))?;
    let image = match blocking({
        let asked = asked.to_owned();
        move || docker::image(&asked)
    })
    .await
    {
        Ok(None) => {
            teller.0.emit(Scope::Run, Event::installing(format!("fetching the image {asked}")))?;
            fetch(asked).await
        }
        Ok(Some(image)) => Ok(image),
        Err(error) => Err(error),
    };
    let image = teller.check("image", image, |image| image.resolved.clone())?;
    let program = executable::wanted(profile, None, engine.executable.as_deref());
    // Words behind `docker run` make of the client a program that says what the one in the image says.
    let inside = |program: &str, words: &[String]| -> Vec<String> {
        ["run", "--rm", "--network", "none", "--pull", "never", "--entrypoint", program, &image.resolved]
            .into_iter()
            .map(str::to_owned)
            .chain(words.iter().cloned())
            .collect()
    };
    let probe = engine
        .version
        .as_ref()
        .zip(program.as_deref())
        .map(|(probe, program)| VersionProbe { probe: inside(program, &probe.probe), ..probe.clone() });
    let found = version::find(profile, None, Some("docker"), probe.as_ref(), PATIENCE).await;
    let (version, doubt) = teller.check("version", found, |(version, _)| version.to_string())?;
    if let Some(doubt) = doubt {
        teller.warn(doubt)?;
    }
    let flags = match program.as_deref().filter(|_| !engine.flags.help.is_empty()) {
        Some(program) => {
            let command = std::iter::once("docker".to_owned()).chain(inside(program, &engine.flags.help)).collect();
            ask_flags(&Asked { command, program: &image.resolved, version: &version }, envs, teller).await?
        }
        None => None,
    };
    let model = model::find(profile, None, engine.model);
    let model = teller.check("model", model, |found| match found {
        Some(path) => path.display().to_string(),
        None => format!("{}, looked up by the engine", profile.model.path),
    })?;
    Ok(Found { environment: None, executable: None, version, model, flags, image: Some(image), staged: Vec::new() })
}

async fn fetch(asked: &str) -> Result<Image, PreflightError> {
    docker::pull(asked).await?;
    let again = asked.to_owned();
    blocking(move || docker::image(&again)).await?.ok_or_else(|| {
        let why = "it was fetched and is not there".to_owned();
        LaunchError::Docker { what: format!("image inspect {asked}"), why }.into()
    })
}

/// The engine's client is waited for off the threads that serve the rest.
async fn blocking<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, LaunchError> + Send + 'static,
) -> Result<T, PreflightError> {
    let asked = tokio::task::spawn_blocking(ask).await;
    let lost = |panic: tokio::task::JoinError| LaunchError::Docker { what: String::new(), why: panic.to_string() };
    Ok(asked.map_err(lost)??)
}
