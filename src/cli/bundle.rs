//! `orch bundle`: one archive of a run, for an issue at the engine's own project.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::locate::{self, Located};
use super::{Exit, Failure, Global, Outcome, out, records, secrets};
use crate::launch::WorkFolder;
use crate::record::bundle;
use crate::record::mask::Mask;

/// Packs what somebody needs who was not there: the command, versions, the environment, the log around the cause
///
/// Values of secrets are masked, and so is what only looks like one, the home folder and the host's name. Look through it
/// before you send it all the same: an engine may print what nobody can know.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch bundle r0421
  orch bundle latest -o /tmp/for-the-issue.tar.zst
  tar --zstd -tf r0421.tar.zst

Exit codes: 0 written; 1 it cannot be written; 2 no such run, or a secret whose value is not known here")]
pub(crate) struct BundleArgs {
    /// A run's short name or id, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    id: String,
    /// Where the archive is written; not over a file that is there. Absent: `RUN.tar.zst` here
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: BundleArgs, global: &Global) -> Outcome {
    let BundleArgs { id, output } = args;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let Located { store, id } = locate::run(&id, &work, global)?;
    let record = store.record(&id).map_err(records::failure)?;
    let mask = mask(&record.profile, &record.host.name)?;
    let folder = store.run_path(&id);
    let path = output.unwrap_or_else(|| PathBuf::from(format!("{}.tar.zst", id.short())));
    let failed = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::AlreadyExists => "name another with `-o FILE`",
            _ => "`-o FILE` writes it elsewhere",
        };
        Failure::new(Exit::Own, miette::miette!(help = help, "cannot write {}: {error}", path.display()))
    };
    let entries = bundle::entries(&record, &folder, &mask).map_err(failed)?;
    let file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    bundle::write(&entries, &id.short(), file).map_err(failed)?;
    let bytes: usize = entries.iter().map(|entry| entry.text.len()).sum();
    out::line(format_args!(
        "{}: {} files, {} unpacked; secrets are masked, look through it before you send it",
        path.display(),
        entries.len(),
        crate::units::bytes_text(bytes as u64)
    ));
    Ok(Exit::Done)
}

/// What must not be in it. The run has not kept the values of its secrets, so they have to be here again to be found.
fn mask(profile: &serde_json::Value, host: &str) -> Result<Mask, Failure> {
    let names = profile.get("secrets").and_then(|names| names.as_array()).into_iter().flatten();
    let names: Vec<String> = names.filter_map(|name| name.as_str()).map(str::to_owned).collect();
    let values = secrets::by_name(&names).map_err(|error| {
        let help = "the server may have printed it, and what is not known cannot be masked";
        Failure::new(Exit::Usage, miette::miette!(help = help, "{error}"))
    })?;
    let home = std::env::var("HOME").unwrap_or_default();
    // `/` or `/root` would be found in much that is nobody's.
    let home = if home.matches('/').count() >= 2 { home } else { String::new() };
    Ok(Mask::new(&values).with(&home, "~").with(host, "HOST"))
}
