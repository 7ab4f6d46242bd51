//! `orch import-results`: what another tool has measured, as records.

use std::path::PathBuf;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::json;

use super::run::this_build;
use super::{Exit, Failure, Global, Outcome, out, records};
use crate::clock::Clock;
use crate::interop::{self, Foreign, Tool};
use crate::record::model::{Asked, HostInfo, RunKind};
use crate::record::{NewRun, Store};
use crate::run;

/// Makes records of the result files of `vllm bench serve` and `sglang.bench_serving`
///
/// Each result is a run of its own in the series that is given, marked as imported, at the date that it says. They can be
/// shown, compared and be a baseline as any other; figures whose formulas differ are named in docs/interop.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch import-results vllm-inf-qps.json --from vllm --series qwen36-27b
  orch import-results *.jsonl --from sglang --series qwen36-27b --host gpu-3 --hardware '2x H200'

Exit codes: 0 imported; 2 usage, or a file that is no such result")]
pub(crate) struct ImportResultsArgs {
    /// The result files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Who wrote them
    #[arg(long, value_enum)]
    from: FromArg,
    /// The series that they belong to
    #[arg(long, value_name = "NAME")]
    series: String,
    /// The host that they were measured on
    #[arg(long, value_name = "NAME", default_value = "not known")]
    host: String,
    /// What the host is made of, as records have it: runs are compared on the same
    #[arg(long, value_name = "TEXT", default_value = "not known")]
    hardware: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FromArg {
    Vllm,
    Sglang,
}

pub(crate) fn run(args: ImportResultsArgs, global: &Global) -> Outcome {
    let ImportResultsArgs { files, from, series, host, hardware } = args;
    let tool = match from {
        FromArg::Vllm => Tool::Vllm,
        FromArg::Sglang => Tool::Sglang,
    };
    // All are read before the first is written: a slip leaves nothing behind.
    let mut all: Vec<(String, Foreign)> = Vec::new();
    for path in &files {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(Exit::Usage, miette::miette!("cannot read {name}: {error}")))?;
        let found = interop::read(tool, &text).map_err(|error| Failure::new(Exit::Usage, error))?;
        all.extend(found.into_iter().map(|foreign| (name.clone(), foreign)));
    }
    let store = Store::open(&global.results).map_err(records::failure)?;
    for (name, foreign) in &all {
        let at = foreign.date.as_deref().and_then(|text| DateTime::strptime("%Y%m%d-%H%M%S", text).ok());
        let at = at.and_then(|at| TimeZone::system().to_timestamp(at).ok());
        let clock = at.map_or_else(Clock::system, Clock::manual);
        let profile = json!({
            "imported": {"from": tool.command(), "file": name, "result": foreign.about},
            "model": foreign.model,
        });
        let new = NewRun {
            name: "imported".to_owned(),
            series: series.clone(),
            yaml: serde_yaml::to_string(&profile).map_err(Failure::own)?,
            profile,
            orch: this_build(),
            host: HostInfo { name: host.clone(), hardware: hardware.clone() },
            kind: RunKind::Bench,
            group: None,
            asked: Asked::default(),
        };
        let folder = store.create(&new, &clock).map_err(records::failure)?;
        let from = format!("{} ({name})", tool.command());
        let record = run::imported(foreign, &from, &store, &folder).map_err(|error| Failure::new(Exit::Own, error))?;
        out::line(format_args!("{}  {}  {}", folder.id().short(), record.series, name));
    }
    Ok(Exit::Done)
}
