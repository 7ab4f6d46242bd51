//! `orch export`: a run in the shape of another tool.

use std::path::PathBuf;

use super::{Exit, Failure, Global, Outcome, out, records};
use crate::interop::{self, Format};
use crate::measure::{Row, read_rows};
use crate::record::Store;
use crate::record::model::StepResult;

/// Writes a run in the shape of another tool's results
///
/// Figures go under the names whose formulas are theirs; names with another formula there are told on standard error, and
/// all of them are compared in docs/interop.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch export r0420 --format vllm -o result.json
  orch export latest --format sglang --step ladder@8 >> results.jsonl
  orch export latest --format hlog -o run.hlog

Exit codes: 0 written; 1 a file cannot be written; 2 usage, or no such run or step")]
pub(crate) struct ExportArgs {
    /// The run: `r` and its 4 hex digits, its whole id, or `latest`
    #[arg(default_value = "latest")]
    run: String,
    /// Whose shape: `vllm bench serve`, `sglang.bench_serving`, the llm-d benchmark report 0.1, or HdrHistogram's log
    #[arg(long, value_enum)]
    format: FormatArg,
    /// The step; without it, the run's only one
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// Where it is written. Absent: standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FormatArg {
    Vllm,
    Sglang,
    Llmd,
    Hlog,
}

pub(crate) fn run(args: ExportArgs, global: &Global) -> Outcome {
    let ExportArgs { run, format, step, output } = args;
    let store = Store::open(&global.results).map_err(records::failure)?;
    let id = store.find(&run).map_err(records::failure)?;
    let record = store.record(&id).map_err(records::failure)?;
    let folder = store.run_path(&id);
    let format = match format {
        FormatArg::Vllm => Format::Vllm,
        FormatArg::Sglang => Format::Sglang,
        FormatArg::Llmd => Format::Llmd,
        FormatArg::Hlog => {
            let path = folder.join("histograms.hlog");
            let text = std::fs::read_to_string(&path).map_err(|error| {
                Failure::new(Exit::Usage, miette::miette!("cannot read {}: {error}", path.display()))
            })?;
            return write(output, &of_step(&text, step.as_deref()));
        }
    };
    let step = chosen(&record.steps, step.as_deref())?;
    // An imported run has no rows, and one that was killed may have lost some.
    let rows: Vec<Row> = read_rows(&folder.join("requests.jsonl.zst")).unwrap_or_default();
    let rows: Vec<Row> = rows.into_iter().filter(|row| row.step == step.name).collect();
    if rows.is_empty() {
        out::note("warning: the run has no rows of single requests: only what its record holds is exported");
    }
    let (value, lossy) = interop::of_step(format, &record, step, &rows);
    for (name, why) in lossy {
        out::note(format_args!("note: `{name}` has another formula there: {why}"));
    }
    write(output, &format!("{value}\n"))
}

/// The step that is meant.
fn chosen<'a>(steps: &'a [StepResult], name: Option<&str>) -> Result<&'a StepResult, Failure> {
    let names = || steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join(" ");
    let usage = |text: String, help: String| Err(Failure::new(Exit::Usage, miette::miette!(help = help, "{text}")));
    match (name, steps) {
        (Some(name), steps) => match steps.iter().find(|step| step.name == name) {
            Some(step) => Ok(step),
            None => usage(format!("the run has no step `{name}`"), format!("its steps are: {}", names())),
        },
        (None, [step]) => Ok(step),
        (None, []) => usage("the run has no steps".to_owned(), "`orch show` tells how it ended".to_owned()),
        (None, _) => usage("the run has several steps".to_owned(), format!("choose one with --step: {}", names())),
    }
}

/// The lines of a log that are of the step, and those of none.
fn of_step(text: &str, step: Option<&str>) -> String {
    let Some(step) = step else { return text.to_owned() };
    let tag = format!("Tag={step}/");
    text.split_inclusive('\n').filter(|line| !line.starts_with("Tag=") || line.starts_with(&tag)).collect()
}

fn write(output: Option<PathBuf>, text: &str) -> Outcome {
    match output {
        None => out::text(text),
        Some(path) => std::fs::write(&path, text)
            .map_err(|error| Failure::new(Exit::Own, miette::miette!("cannot write {}: {error}", path.display())))?,
    }
    Ok(Exit::Done)
}
