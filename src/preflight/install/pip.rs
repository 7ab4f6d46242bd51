//! The installers: uv where it is on the PATH, else Python's own venv and pip.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;

use super::folder::Folder;
use super::lock::Lock;
use super::log;
use super::{InstallError, Step, Told};
use crate::preflight::executable::on_path;
use crate::profile::InstallVariant;

/// What would lead the packages elsewhere than into the environment.
const IN_THE_WAY: [&str; 7] =
    ["PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "UV_PROJECT_ENVIRONMENT"];

/// Makes the environment in its folder and installs the variant's packages.
pub(super) async fn make(
    variant: &InstallVariant,
    folder: &Folder,
    lock: &mut Lock,
    told: Told<'_>,
) -> Result<(), InstallError> {
    let requirements = write_requirements(variant, folder)?;
    let mut installer = Installer { variant, folder, lock, told, began: Instant::now() };
    let commands = match (on_path("uv"), on_path("python3")) {
        (Some(uv), _) => with_uv(&uv, variant, folder, &requirements),
        (None, Some(python)) => with_pip(&python, variant, folder, &requirements),
        (None, None) => return Err(InstallError::NoPython),
    };
    for command in commands {
        installer.run(command).await?;
    }
    Ok(())
}

/// A program and its words.
type Words = (PathBuf, Vec<OsString>);

fn with_uv(uv: &Path, variant: &InstallVariant, folder: &Folder, requirements: &Path) -> [Words; 2] {
    // The folder is there already, with the log in it.
    let make = words(&["venv", "--allow-existing", "--no-project"], &[folder.path()]);
    let mut install = words(&["pip", "install", "--no-deps", "--require-hashes", "--python"], &[&folder.python()]);
    install.extend(only_wheels(variant));
    install.extend(words(&["-r"], &[requirements]));
    [(uv.to_owned(), make), (uv.to_owned(), install)]
}

fn with_pip(python: &Path, variant: &InstallVariant, folder: &Folder, requirements: &Path) -> [Words; 2] {
    let make = words(&["-m", "venv"], &[folder.path()]);
    let mut install = words(&["-m", "pip", "install", "--no-deps", "--require-hashes"], &[]);
    install.extend(words(&["--disable-pip-version-check", "--no-input", "--progress-bar", "off"], &[]));
    install.extend(only_wheels(variant));
    install.extend(words(&["-r"], &[requirements]));
    [(python.to_owned(), make), (folder.python(), install)]
}

/// Nothing is built, and so nothing of a package is executed, unless the profile says how to build.
fn only_wheels(variant: &InstallVariant) -> Vec<OsString> {
    if variant.build_env.is_empty() { words(&["--only-binary", ":all:"], &[]) } else { Vec::new() }
}

fn words(first: &[&str], paths: &[&Path]) -> Vec<OsString> {
    first.iter().map(OsString::from).chain(paths.iter().map(|path| path.as_os_str().to_owned())).collect()
}

fn write_requirements(variant: &InstallVariant, folder: &Folder) -> Result<PathBuf, InstallError> {
    let path = folder.path().join("requirements.txt");
    let line = |package: &crate::profile::Package| {
        let hashes: String = package.sha256.iter().map(|hash| format!(" --hash=sha256:{hash}")).collect();
        format!("{}=={}{hashes}\n", package.name, package.version)
    };
    let text: String = variant.packages.iter().map(line).collect();
    fs::write(&path, text).map_err(InstallError::io("write", &path))?;
    Ok(path)
}

struct Installer<'a> {
    variant: &'a InstallVariant,
    folder: &'a Folder,
    lock: &'a mut Lock,
    told: Told<'a>,
    began: Instant,
}

impl Installer<'_> {
    async fn run(&mut self, (program, words): Words) -> Result<(), InstallError> {
        let log = self.folder.log();
        let output = OpenOptions::new().create(true).append(true).open(&log).map_err(InstallError::io("open", &log))?;
        let errors = output.try_clone().map_err(InstallError::io("open", &log))?;
        let mut command = Command::new(&program);
        command
            .args(&words)
            .current_dir(self.folder.path())
            .envs(&self.variant.build_env)
            .stdin(self.lock.for_installer()?)
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true);
        for name in IN_THE_WAY {
            command.env_remove(name);
        }
        let mut child =
            command.spawn().map_err(|source| InstallError::Run { program: program.display().to_string(), source })?;
        let group = Group(child.id());
        self.lock.note_installer(child.id())?;
        let status = loop {
            self.say(&log)?;
            tokio::select! {
                status = child.wait() => break status,
                () = tokio::time::sleep(self.pause()) => {}
            }
        };
        group.has_ended();
        self.lock.note_installer(None)?;
        let status = status.map_err(|source| InstallError::Run { program: program.display().to_string(), source })?;
        if status.success() { Ok(()) } else { Err(self.failed(&program, &words, status, &log)?) }
    }

    fn say(&mut self, log: &Path) -> Result<(), InstallError> {
        let output = read(log)?;
        let doing =
            log::doing(&output, self.variant).unwrap_or_else(|| format!("installing {}", log::names(self.variant)));
        (self.told)(Step::Sign(format!("{doing}, {} s", self.began.elapsed().as_secs())))?;
        Ok(())
    }

    /// Every sign is a line of the journal: a build of an hour need not write thousands.
    fn pause(&self) -> Duration {
        Duration::from_secs(if self.began.elapsed() < Duration::from_secs(60) { 1 } else { 5 })
    }

    fn failed(
        &self,
        program: &Path,
        words: &[OsString],
        status: ExitStatus,
        log: &Path,
    ) -> Result<InstallError, InstallError> {
        let name = program.file_name().map_or_else(|| program.display().to_string(), |name| name.display().to_string());
        let verb: Vec<String> = words
            .iter()
            .map(|word| word.display().to_string())
            .take_while(|word| !word.starts_with("--") && !word.starts_with('/'))
            .collect();
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no status".to_owned(),
        };
        Ok(log::explain(&read(log)?, &format!("{name} {}", verb.join(" ")), status, self.variant, log))
    }
}

fn read(log: &Path) -> Result<String, InstallError> {
    let bytes = fs::read(log).map_err(InstallError::io("read", log))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A process group that is killed unless it has ended by itself: an installer starts compilers and downloads of its own.
struct Group(Option<u32>);

impl Group {
    fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(Ok(pid)) = self.0.map(i32::try_from) {
            // The leader is not reaped yet, so the group is ours. That it has just ended is no fault.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}
