//! `orch diagnose`: what a log means.

use std::io;
use std::path::{Path, PathBuf};

use super::locate::{self, Located};
use super::{Exit, Failure, Global, Outcome, out};
use crate::diagnose::{self, Context, Known, LineOrder, Observed, Part, Topology};
use crate::engine::{self, Definition};
use crate::gate::LogGrammar;
use crate::gate::log::{Order, SavedLog};
use crate::launch::WorkFolder;
use crate::profile::EngineKind;
use crate::record::history::PastStarts;
use crate::record::model::Record;
use crate::record::settings;

/// Explains a log: how far the server came, the line that is the cause, why, and what to change
///
/// The log may be a file (also one that gzip or zstd has compressed), what comes through a pipe, or that of a run. Whose log it is
/// is known by its words. Without `--context` only what the log itself proves is said. Of several logs of one server, as of its nodes,
/// the one with the cause is explained.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch diagnose server.log                    any saved log of SGLang, vLLM or llama.cpp
  kubectl logs llm-0 | orch diagnose -        what comes through a pipe
  orch diagnose r0421                         the log of a run, with what its record knows
  orch diagnose server.log --context c.json   with what was seen beside the log
  orch diagnose node0.log node1.log           the logs of a server on several nodes

The file of --context is a JSON object with those of these keys that are known: engine, topology {tp, nodes}, speculative,
observed {process_alive, exit {code, signal}, silent_s, health_status}, baseline, side_facts. See docs/diagnose.md.")]
pub(crate) struct DiagnoseArgs {
    /// A file, a run's short name or id, `latest`, or `-` for standard input; several are the logs of one server
    #[arg(value_name = "LOG|RUN", required = true)]
    logs: Vec<String>,
    /// Whose log it is: sglang, vllm, llamacpp
    #[arg(long, value_name = "KIND")]
    engine: Option<String>,
    /// What is known beside the log, as JSON
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,
    /// The diagnosis as JSON on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: DiagnoseArgs, global: &Global) -> Outcome {
    let DiagnoseArgs { logs, engine, context, json } = args;
    let given = context.as_deref().map(read_context).transpose()?;
    let mut opened = Vec::new();
    for log in &logs {
        opened.extend(open(log, logs.len() > 1, global)?);
    }
    let of_run = opened.iter_mut().find_map(|opened| opened.of_run.take());
    let settings = of_run.as_ref().map(|of_run| settings::dotted(&of_run.record.profile)).unwrap_or_default();
    let context = match (given, of_run) {
        (Some(given), _) => given,
        (None, Some(OfRun { record, past })) => of_record(&record, &past),
        (None, None) => Context::default(),
    };
    let definition = definition(engine.as_deref().or(context.engine.as_deref()), &opened)?;
    let grammar = LogGrammar::new(&definition.log).map_err(own)?.with_settings(settings);
    let word = (definition.kind != EngineKind::Command).then(|| engine::kind_word(definition.kind));
    let several = opened.len() > 1;
    let mut parts = Vec::new();
    for opened in opened {
        parts.push(read(opened, &grammar, word, &context, several)?);
    }
    if several {
        tell_together(parts, json)?;
    } else if let Some(Part { name, diagnosis, .. }) = parts.pop() {
        if json {
            out::line(serde_json::to_string_pretty(&diagnosis).map_err(Failure::own)?);
        } else {
            out::text(diagnose::for_people(&diagnosis, &name));
        }
    }
    Ok(Exit::Done)
}

fn tell_together(parts: Vec<Part>, json: bool) -> Result<(), Failure> {
    let Some(together) = diagnose::together(parts) else { return Ok(()) };
    if json {
        out::line(serde_json::to_string_pretty(&together).map_err(Failure::own)?);
    } else {
        out::text(diagnose::for_people_together(&together));
    }
    Ok(())
}

/// By what the logs are read: the engine that was asked for, else the one whose words the first of them has.
fn definition(asked: Option<&str>, opened: &[Opened]) -> Result<Definition, Failure> {
    let definitions = definitions()?;
    let kind = match asked {
        Some(word) => Some(kind(word, &definitions)?),
        None => {
            let known: Vec<Known> = definitions.iter().filter_map(|definition| Known::of(definition)).collect();
            opened.iter().find_map(|opened| diagnose::recognise(&opened.saved.head(), &known))
        }
    };
    let definition = match kind {
        Some(kind) => definitions.into_iter().find(|definition| definition.kind == kind),
        // What the system and the libraries say is the same for all.
        None => Some(engine::definition(EngineKind::Command, &engine::default_folders()).map_err(own)?),
    };
    definition.ok_or_else(|| Failure::new(Exit::Own, miette::miette!("there is no definition to read a log by")))
}

/// Reads one of the logs. Only among several it matters when its cause was written.
fn read(
    opened: Opened,
    grammar: &LogGrammar,
    engine: Option<&str>,
    context: &Context,
    several: bool,
) -> Result<Part, Failure> {
    let Opened { name, path, saved, .. } = opened;
    let order = context.side_facts.as_ref().and_then(|side| side.order).map(|order| match order {
        LineOrder::OldestFirst => Order::OldestFirst,
        LineOrder::NewestFirst => Order::NewestFirst,
    });
    let startup = saved.fold(grammar, order).map_err(|error| unreadable(&name, &error))?;
    let diagnosis = diagnose::diagnose(&startup, grammar, engine, context);
    let clock_s = match (path, diagnosis.root_cause_line_no) {
        (Some(path), Some(line_no)) if several => SavedLog::open(&path)
            .and_then(|saved| saved.clock_at(line_no))
            .map_err(|error| unreadable(&name, &error))?,
        _ => None,
    };
    Ok(Part { name, diagnosis, nature: startup.root().map(|root| root.nature), clock_s })
}

fn own(error: impl Into<miette::Report>) -> Failure {
    Failure::new(Exit::Own, error)
}

/// The engines whose logs can be told by their words.
fn definitions() -> Result<Vec<Definition>, Failure> {
    let folders = engine::default_folders();
    let kinds = [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp];
    kinds.into_iter().map(|kind| engine::definition(kind, &folders).map_err(own)).collect()
}

fn kind(word: &str, definitions: &[Definition]) -> Result<EngineKind, Failure> {
    let known = definitions.iter().map(|definition| definition.kind);
    let found = known.clone().find(|kind| engine::kind_word(*kind) == word);
    found.ok_or_else(|| {
        let words: Vec<&str> = known.map(engine::kind_word).collect();
        let help = format!("the engines whose logs are known are `{}`", words.join("`, `"));
        Failure::new(Exit::Usage, miette::miette!(help = help, "no logs of `{word}` are known"))
    })
}

fn read_context(path: &Path) -> Result<Context, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&path.display().to_string(), &error))?;
    serde_json::from_str(&text).map_err(|error| {
        let help = "a JSON object; `orch diagnose --help` names its keys";
        Failure::new(Exit::Usage, miette::miette!(help = help, "{}: {error}", path.display()))
    })
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    let help = "give a file, `-` for standard input, or a run as `orch list` names it";
    Failure::new(Exit::Usage, miette::miette!(help = help, "cannot read {name}: {error}"))
}

/// The log that is meant.
struct Opened {
    /// What it is called.
    name: String,
    /// Where it can be read again.
    path: Option<PathBuf>,
    saved: SavedLog,
    /// What is known of its run, if it is one's.
    of_run: Option<OfRun>,
}

/// The record of a run, and how starts of its profile on its host went.
struct OfRun {
    record: Record,
    past: PastStarts,
}

/// The log of that name; of a run on several nodes, all that it has. One among `several` is called as it was given.
fn open(text: &str, several: bool, global: &Global) -> Result<Vec<Opened>, Failure> {
    if text == "-" {
        let saved = SavedLog::stream(io::stdin()).map_err(|error| unreadable("standard input", &error))?;
        return Ok(vec![Opened { name: "stdin".to_owned(), path: None, saved, of_run: None }]);
    }
    let path = Path::new(text);
    let looks_like_a_file = path.exists() || text.contains(['/', '.']);
    if looks_like_a_file && !path.is_dir() {
        let saved = SavedLog::open(path).map_err(|error| unreadable(text, &error))?;
        let name = path.file_name().filter(|_| !several);
        let name = name.map_or_else(|| text.to_owned(), |name| name.to_string_lossy().into_owned());
        // A pipe by name can be read but once.
        let again = path.is_file().then(|| path.to_owned());
        return Ok(vec![Opened { name, path: again, saved, of_run: None }]);
    }
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let Located { store, id } = locate::run(text, &work, global)?;
    let folder = store.run_path(&id);
    let mut all = Vec::new();
    for name in logs_of(&folder) {
        let path = folder.join(&name);
        let saved = SavedLog::open(&path).map_err(|error| {
            let help = "the run started no server, or measured one that was up before";
            Failure::new(Exit::Usage, miette::miette!(help = help, "cannot read {}: {error}", path.display()))
        })?;
        all.push(Opened { name, path: Some(path), saved, of_run: None });
    }
    let of_run = store.record(&id).ok().map(|record| {
        let name = record.profile["name"].as_str().unwrap_or(&record.series);
        OfRun { past: PastStarts::of(&store, &record.series, name, Some(&record.host)), record }
    });
    if let Some(first) = all.first_mut() {
        first.of_run = of_run;
    }
    Ok(all)
}

/// The names of a run's logs: `server.log`, and `server-<rank>.log` of its followers in the order of their ranks.
fn logs_of(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut followers: Vec<(u32, String)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rank = name.strip_prefix("server-")?.strip_suffix(".log")?.parse().ok()?;
            Some((rank, name))
        })
        .collect();
    followers.sort();
    std::iter::once("server.log".to_owned()).chain(followers.into_iter().map(|(_, name)| name)).collect()
}

/// What the record of a run knows beside its log.
fn of_record(record: &Record, past: &PastStarts) -> Context {
    let played = record.profile["engine"]["as"].as_str();
    let engine = played.map(str::to_owned).or_else(|| record.engine.as_ref().map(|engine| engine.kind.clone()));
    let known = engine.filter(|kind| matches!(kind.as_str(), "sglang" | "vllm" | "llamacpp"));
    let tensor = record.profile["parallel"]["tensor"].as_u64().and_then(|tp| u32::try_from(tp).ok());
    let method = record.profile["speculative"]["method"].as_str().map(str::to_owned);
    let ended = record.complete || record.failure.as_ref().is_some_and(|failure| failure.stage == "gate");
    let failed = record.failure.is_some();
    // A run that did its work ends its server itself: that says nothing about the server.
    let observed = (ended && failed).then(|| Observed { process_alive: Some(false), ..Observed::default() });
    let asked = record.profile["memory"]["fraction"].as_f64();
    let known_good = record.failure.as_ref().and_then(|failure| past.known_good(asked, &failure.kind));
    Context {
        known_good,
        engine: known,
        topology: tensor.map(|tp| Topology { tp: Some(tp), nodes: None }),
        speculative: method,
        observed,
        ..Context::default()
    }
}
