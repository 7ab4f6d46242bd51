//! `orch diagnose`: what a log means.

use std::io;
use std::path::{Path, PathBuf};

use super::locate::{self, Located};
use super::{Exit, Failure, Global, Outcome, out};
use crate::diagnose::{self, Context, Known, LineOrder, Observed, Topology};
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
/// is known by its words. Without `--context` only what the log itself proves is said.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch diagnose server.log                    any saved log of SGLang, vLLM or llama.cpp
  kubectl logs llm-0 | orch diagnose -        what comes through a pipe
  orch diagnose r0421                         the log of a run, with what its record knows
  orch diagnose server.log --context c.json   with what was seen beside the log

The file of --context is a JSON object with those of these keys that are known: engine, topology {tp, nodes}, speculative,
observed {process_alive, exit {code, signal}, silent_s, health_status}, baseline, side_facts. See docs/diagnose.md.")]
pub(crate) struct DiagnoseArgs {
    /// A file, a run's short name or id, `latest`, or `-` for standard input
    #[arg(value_name = "LOG|RUN")]
    log: String,
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
    let DiagnoseArgs { log, engine, context, json } = args;
    let given = context.as_deref().map(read_context).transpose()?;
    let Opened { name, saved, of_run } = open(&log, global)?;
    let settings = of_run.as_ref().map(|of_run| settings::dotted(&of_run.record.profile)).unwrap_or_default();
    let context = match (given, of_run) {
        (Some(given), _) => given,
        (None, Some(OfRun { record, past })) => of_record(&record, &past),
        (None, None) => Context::default(),
    };
    let definitions = definitions()?;
    let asked = engine.as_deref().or(context.engine.as_deref());
    let kind = match asked {
        Some(word) => Some(kind(word, &definitions)?),
        None => {
            let known: Vec<Known> = definitions.iter().filter_map(|definition| Known::of(definition)).collect();
            diagnose::recognise(&saved.head(), &known)
        }
    };
    let definition = match kind {
        Some(kind) => definitions.into_iter().find(|definition| definition.kind == kind),
        // What the system and the libraries say is the same for all.
        None => Some(engine::definition(EngineKind::Command, &engine::default_folders()).map_err(own)?),
    };
    let Some(definition) = definition else {
        return Err(Failure::new(Exit::Own, miette::miette!("there is no definition to read a log by")));
    };
    let grammar = LogGrammar::new(&definition.log).map_err(own)?.with_settings(settings);
    let order = context.side_facts.as_ref().and_then(|side| side.order).map(|order| match order {
        LineOrder::OldestFirst => Order::OldestFirst,
        LineOrder::NewestFirst => Order::NewestFirst,
    });
    let startup = saved.fold(&grammar, order).map_err(|error| unreadable(&name, &error))?;
    let word = kind.map(engine::kind_word);
    let diagnosis = diagnose::diagnose(&startup, &grammar, word, &context);
    if json {
        out::line(serde_json::to_string_pretty(&diagnosis).map_err(Failure::own)?);
    } else {
        out::text(diagnose::for_people(&diagnosis, &name));
    }
    Ok(Exit::Done)
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
    saved: SavedLog,
    /// What is known of its run, if it is one's.
    of_run: Option<OfRun>,
}

/// The record of a run, and how starts of its profile on its host went.
struct OfRun {
    record: Record,
    past: PastStarts,
}

fn open(text: &str, global: &Global) -> Result<Opened, Failure> {
    if text == "-" {
        let saved = SavedLog::stream(io::stdin()).map_err(|error| unreadable("standard input", &error))?;
        return Ok(Opened { name: "stdin".to_owned(), saved, of_run: None });
    }
    let path = Path::new(text);
    let looks_like_a_file = path.exists() || text.contains(['/', '.']);
    if looks_like_a_file && !path.is_dir() {
        let saved = SavedLog::open(path).map_err(|error| unreadable(text, &error))?;
        let name = path.file_name().map_or_else(|| text.to_owned(), |name| name.to_string_lossy().into_owned());
        return Ok(Opened { name, saved, of_run: None });
    }
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let Located { store, id } = locate::run(text, &work, global)?;
    let path = store.run_path(&id).join("server.log");
    let saved = SavedLog::open(&path).map_err(|error| {
        let help = "the run started no server, or measured one that was up before";
        Failure::new(Exit::Usage, miette::miette!(help = help, "cannot read {}: {error}", path.display()))
    })?;
    let of_run = store.record(&id).ok().map(|record| {
        let name = record.profile["name"].as_str().unwrap_or(&record.series);
        OfRun { past: PastStarts::of(&store, &record.series, name, Some(&record.host)), record }
    });
    Ok(Opened { name: "server.log".to_owned(), saved, of_run })
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
