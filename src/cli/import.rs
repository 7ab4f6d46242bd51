//! `orch import`: a profile from what starts a server today.

use std::path::{Path, PathBuf};

use crate::engine::Version;
use crate::profile::{self, Request};

use super::sources::Source;
use super::{Exit, Failure, Global, Outcome, out, planned};

/// Makes a profile of what starts a server today: a command line, a script, a systemd unit, a Slurm job, a process, or a server's address
///
/// The flags are read by the same table that `orch render` writes them by. What is not understood is kept as `flags` and
/// `args`; what no profile can say is left out, and a comment says so. Values of secrets are never taken over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch import /etc/systemd/system/sglang-qwen.service -o profiles/qwen.yaml
  orch import serve.sh
  orch import -- vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32768
  orch import --pid 4711
  orch import gpu-3:30000

Exit codes: 0 imported; 2 usage, or nothing that starts one server; 3 no server that orch knows answers there")]
pub(crate) struct ImportArgs {
    /// A script, a unit (by path, or by name where systemd keeps it), or HOST:PORT
    #[arg(value_name = "FILE|HOST:PORT", conflicts_with_all = ["pid", "command"])]
    source: Option<String>,
    /// A process of this machine
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pid: Option<u32>,
    /// Where the profile is written; not over a file that is there. Absent: standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The version of the engine that the command is for
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<String>,
    /// The command, word by word, or as one quoted line
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(args: ImportArgs, _global: &Global) -> Outcome {
    let ImportArgs { source, pid, output, engine_version, command } = args;
    let source = match (source, pid, command.is_empty()) {
        (Some(text), ..) => Source::of(&text),
        (None, Some(pid), _) => Source::Pid(pid),
        (None, None, false) => Source::Words(command),
        (None, None, true) => {
            let help = "for example `orch import serve.sh`, or `orch import -- vllm serve MODEL`; `orch import --help` shows more";
            return Err(Failure::new(
                Exit::Usage,
                miette::miette!(help = help, "nothing is named that could be imported"),
            ));
        }
    };
    let text = source.draft(engine_version.map(Version))?.yaml(&source.name());
    if let Some(fault) = fault(&text) {
        out::note("warning: the command asks for what its engine refuses, so the profile has to be mended:");
        out::complain(&fault);
    }
    match output {
        Some(path) => {
            write_new(&path, &text)?;
            out::note(format_args!("wrote {}", path.display()));
        }
        None => out::text(text),
    }
    Ok(Exit::Done)
}

/// What `orch check` would say of the text, if anything.
fn fault(text: &str) -> Option<miette::Report> {
    let folder = tempfile::tempdir().ok()?;
    let path = folder.path().join("imported.yaml");
    std::fs::write(&path, text).ok()?;
    let asked = path.display().to_string();
    let folders = profile::default_folders();
    let loaded =
        match profile::load(&Request { profile: &asked, set: &[], folders: &folders, env: &profile::process_env }) {
            Ok(loaded) => loaded,
            Err(error) => return Some(error.into()),
        };
    let definition = planned::find_definition(&loaded.profile).ok()?;
    planned::plan_faults(&loaded, &definition).err().map(Into::into)
}

/// A profile that is there was written by a person.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        let help = match error.kind() {
            std::io::ErrorKind::AlreadyExists => "orch replaces no profile: give another name, or remove it first",
            _ => "give a path in a folder that is there and that you may write to",
        };
        Failure::new(Exit::Usage, miette::miette!(help = help, "cannot write {}: {error}", path.display()))
    })
}
