//! `orch bench`: measures an endpoint that is already up.

mod asked;
mod flags;
mod reach;
mod way;

use tokio_util::sync::CancellationToken;

use super::follow::Follower;
use super::run::this_build;
use super::screen::{Screen, Stream};
use super::signals::Interrupt;
use super::{Exit, Failure, Global, Outcome, out, records};
use crate::clock::Clock;
use crate::launch::{Held, LaunchError, WorkFolder};
use crate::load::models;
use crate::measure::RowWriter;
use crate::preflight;
use crate::record::model::{HostInfo, Record, RunKind, VerdictKind};
use crate::record::{NewRun, RunFolder, Store};
use crate::render::{Api, Warning};
use crate::report;
use crate::report::live::{Usual, View};
use crate::run::{self, Bench, Files};
use asked::{Asked, is_standard_output};
pub(crate) use flags::BenchArgs;

pub(crate) fn run(args: BenchArgs, global: &Global) -> Outcome {
    let mut asked = Asked::of(args)?;
    // Made first: a file that cannot be written is told before anything is sent.
    let rows_printed = asked.requests_out.as_deref().is_some_and(is_standard_output);
    let rows = match &asked.requests_out {
        Some(_) if rows_printed => Some(RowWriter::printed(out::duplicate().map_err(Failure::own)?)),
        Some(path) => Some(RowWriter::plain(path).map_err(|error| Failure::new(Exit::Usage, error))?),
        None => None,
    };
    // Whoever else measures here would be in these numbers, and these requests in theirs.
    let _alone = match asked.is_beside() && !asked.share {
        true => Some(alone(&asked).map_err(|error| Failure::new(Exit::NotLaunched, error))?),
        false => None,
    };
    // Without a record the same is done in a folder that is gone afterwards.
    let scratch = asked.no_record.then(tempfile::tempdir).transpose().map_err(Failure::own)?;
    let store = match &scratch {
        None => records::store(global)?,
        Some(folder) => Store::open(folder.path()).map_err(records::failure)?,
    };
    let clock = Clock::system();
    let screen = Screen::new(if asked.json || rows_printed { Stream::Err } else { Stream::Out });
    let runtime = crate::host::runtime::on_threads(2).map_err(Failure::own)?;
    let (record, short, interrupted, unwritten) = runtime.block_on(async {
        let interrupt = Interrupt::listen(|| {}).map_err(Failure::own)?;
        let mut warnings = find_model(&mut asked).await?;
        warnings.extend(reach::warnings(&asked.target, &asked.endpoint));
        let folder = begin(&asked, &store, &clock)?;
        let mut files = Files::in_folder(folder.path(), &clock, &[]).map_err(|error| Failure::new(Exit::Own, error))?;
        if let Some(rows) = rows {
            files.also(rows);
        }
        screen.line(&asked.load());
        let view = View::new(screen.width(), Usual::default(), global.verbose > 0);
        let follower = Follower::new(folder.journal.path(), folder.journal.subscribe(), clock.clone(), false, view);
        let over = CancellationToken::new();
        let work = async {
            let ended = measure(&asked, &warnings, &mut files, &store, &folder, &clock, interrupt.token()).await;
            over.cancel();
            ended
        };
        let (ended, ()) = tokio::join!(work, follower.follow(&screen, &over));
        screen.end();
        Ok::<_, Failure>((ended?, folder.id().short(), interrupt.exit(), files.unwritten()))
    })?;
    let signalled = interrupted.is_some();
    // A signal after the last step interrupted nothing.
    let exit = interrupted
        .filter(|_| !record.complete)
        .unwrap_or_else(|| Exit::of(&record.verdict, record.failure.as_ref(), false));
    // Whoever read the rows and went away has what was wanted.
    let unwritten = unwritten.filter(|error| !rows_printed || error.source.kind() != std::io::ErrorKind::BrokenPipe);
    let exit = if unwritten.is_some() && exit == Exit::Done { Exit::Own } else { exit };
    for line in ending(&record, (!asked.no_record).then_some(short.as_str()), exit) {
        screen.line(&line);
    }
    if asked.json {
        out::line(serde_json::to_string_pretty(&record).map_err(Failure::own)?);
    }
    if !signalled {
        records::meet(&store);
    }
    match unwritten {
        Some(error) => Err(Failure::new(exit, error)),
        None => Ok(exit),
    }
}

/// Takes the `measure` lease of this host.
fn alone(asked: &Asked) -> Result<Held, LaunchError> {
    WorkFolder::find()?.measure(&format!("bench {} (pid {})", asked.endpoint.url(""), std::process::id()))
}

async fn measure(
    asked: &Asked,
    warnings: &[Warning],
    files: &mut Files,
    store: &Store,
    folder: &RunFolder,
    clock: &Clock,
    interrupt: &CancellationToken,
) -> Result<Record, Failure> {
    let sources = run::Sources::of_endpoint();
    let bench = Bench {
        sources: &sources,
        target: &asked.target,
        options: &asked.options,
        clock,
        interrupt,
        log: &folder.journal,
        load_path: if asked.is_beside() { "beside" } else { "direct" },
        ceiling: WorkFolder::find().ok().as_ref().and_then(crate::selftest::known_ceiling),
        server_log: None,
        flush: None,
        capacity: None,
        probe: false,
        keep_chunks: asked.keep_chunks,
        machine: None,
        keep_partial: true,
    };
    let steps = std::slice::from_ref(&asked.step);
    let ended = run::bench(&bench, steps, warnings, &asked.questions, files, store, folder).await;
    ended.map_err(|error| Failure::new(Exit::Own, error))
}

/// Takes the only model that the server lists, where none was named; one that was named is held against the list. A
/// server that lists none is asked without a name. Its own endpoints need no name.
async fn find_model(asked: &mut Asked) -> Result<Vec<Warning>, Failure> {
    let needs_name = matches!(asked.step.workload.api, Api::Chat | Api::Completions | Api::Responses);
    let warn = |id: &str, text: String| Ok(vec![Warning::new(id, text)]);
    let mut found = match (models::list(&asked.endpoint, &asked.target.headers).await, &asked.target.model) {
        (Ok(found), None) => found,
        (Ok(found), Some(model)) if found.is_empty() || found.contains(model) => return Ok(Vec::new()),
        // No error: some servers take further names than they list, and one that does not will say so itself.
        (Ok(found), Some(model)) => {
            return warn("model_not_listed", format!("the server lists no model `{model}`, but {}", found.join(", ")));
        }
        (Err(models::NoList::NotConnected(why)), _) => {
            let url = asked.endpoint.url("");
            return warn("not_answering", format!("the server does not answer: no connection to {url} ({why})"));
        }
        (Err(_), _) if asked.target.model.is_some() || !needs_name => return Ok(Vec::new()),
        (Err(error), _) => {
            let text = format!("the server's models are not known ({error}): requests name none (--model)");
            return warn("model_unknown", text);
        }
    };
    match found.len() {
        0 if needs_name => {
            let text = "the server lists no model: requests name none (--model)";
            return warn("model_unknown", text.to_owned());
        }
        1 => asked.target.model = found.pop(),
        _ if needs_name => {
            let report = miette::miette!(
                code = "orch::bench::models",
                help = "choose one with --model",
                "the server lists {} models: {}",
                found.len(),
                found.join(", ")
            );
            return Err(Failure::new(Exit::Usage, report));
        }
        _ => {}
    }
    Ok(Vec::new())
}

fn begin(asked: &Asked, store: &Store, clock: &Clock) -> Result<RunFolder, Failure> {
    let profile = asked.profile();
    let host = match asked.is_beside() {
        true => preflight::hardware().map_err(Failure::own)?,
        false => HostInfo { name: asked.endpoint.host.clone(), hardware: "not known".to_owned() },
    };
    let new = NewRun {
        name: "bench".to_owned(),
        // A server that does not answer has no other history for having been asked without a name.
        series: match &asked.target.model {
            Some(model) => format!("bench {} {model}", asked.endpoint.authority),
            None => format!("bench {}", asked.endpoint.authority),
        },
        yaml: serde_yaml::to_string(&profile).map_err(Failure::own)?,
        profile,
        orch: this_build(),
        host,
        kind: RunKind::Bench,
        group: None,
        asked: crate::record::model::Asked::default(),
    };
    store.create(&new, clock).map_err(records::failure)
}

/// The last lines: what was measured, and whether it may be used.
fn ending(record: &Record, short: Option<&str>, exit: Exit) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in [report::record::steps(&record.steps), report::record::comparisons(&record.comparisons, &record.steps)]
    {
        lines.extend(part.lines().map(str::to_owned));
    }
    lines.push(String::new());
    lines.extend(report::record::verdict(&record.verdict).lines().map(str::to_owned));
    if let (VerdictKind::NoBaseline, Some(short)) = (record.verdict.kind, short) {
        lines.push(format!("  `orch baseline set {short}` makes this run the baseline of `{}`", record.series));
    }
    let kept = short.map_or_else(|| "no record kept".to_owned(), |short| format!("orch show {short}"));
    lines.push(format!("exit {}   {kept}", exit as u8));
    lines
}
