//! `orch baseline`: which runs count as what is usual.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use miette::Diagnostic;

use super::{Exit, Failure, Global, Outcome, out, quick, records};
use crate::clock::Clock;
use crate::compare;
use crate::record::baselines::{Action, Baselines, Key, Line, VERSION};
use crate::record::index::Filter;
use crate::record::model::{VerdictKind, Writer};
use crate::record::{Baseline, Record, RunId, Store};
use crate::report::{Align, Table, number};

/// Says which runs are the baseline of a series.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  orch baseline set\n  orch baseline set r0412 r0413 r0414\n  orch baseline promote r0420 --why \"new model revision\"\n  orch baseline list"
)]
pub(crate) struct BaselineArgs {
    #[command(subcommand)]
    action: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// These runs are the baseline of every step that they have.
    Set {
        /// Runs of one series; without one, the newest complete run.
        #[arg(value_name = "RUN")]
        runs: Vec<String>,
        /// Why, for whoever reads the history.
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
    },
    /// The same for a run that is worse than the baseline so far, and is meant to be.
    Promote {
        /// The run.
        run: String,
        /// Why what has changed is meant to last.
        #[arg(long, value_name = "TEXT")]
        why: String,
    },
    /// The baseline tells nothing of today any more. Verdicts are `no_baseline` until another is set.
    Expire(Ending),
    /// There is no baseline.
    Clear(Ending),
    /// Lists the baselines that hold.
    List {
        /// Only those of this series.
        #[arg(long)]
        series: Option<String>,
        /// A JSON array on standard output.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct Ending {
    /// The series whose baseline ends.
    series: String,
    /// Only that of this step.
    #[arg(long)]
    step: Option<String>,
    /// Only on this host.
    #[arg(long)]
    host: Option<String>,
    /// Why, for whoever reads the history.
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
}

/// Why a baseline is left as it is.
#[derive(Debug, thiserror::Error, Diagnostic)]
enum Refused {
    #[error("{run} cannot be a baseline: {why}")]
    #[diagnostic(
        code(orch::baseline::refused),
        help("only a complete run with valid steps can be one; `orch list` shows them")
    )]
    Unfit { run: String, why: String },
    #[error("{run} has regressed against the baseline that holds, and would hide its own loss")]
    #[diagnostic(
        code(orch::baseline::regressed),
        help("if the change is meant to last: `orch baseline promote {run} --why TEXT`")
    )]
    Regressed { run: String },
    #[error("{runs} would hide a loss that came in small steps: {why}")]
    #[diagnostic(
        code(orch::baseline::lost_since),
        help(
            "{anchor} is the first baseline since one was promoted, expired or cleared. If the change is meant to last: `orch baseline promote RUN --why TEXT`"
        )
    )]
    LostSince { runs: String, anchor: String, why: String },
    #[error("the runs are of several series: {}", series.join(", "))]
    #[diagnostic(code(orch::baseline::several_series), help("set the baseline of one series at a time"))]
    SeveralSeries { series: Vec<String> },
    #[error("no baseline holds for {what}")]
    #[diagnostic(code(orch::baseline::none), help("{known}"))]
    None { what: String, known: String },
    #[error("no complete run in {folder}")]
    #[diagnostic(code(orch::baseline::no_run), help("`orch run PROFILE` makes one"))]
    NoRun { folder: String },
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Failure::new(Exit::Usage, refused)
    }
}

pub(crate) fn run(args: BaselineArgs, global: &Global) -> Outcome {
    let store = records::store_with_others(global)?;
    let done = match args.action {
        What::Set { runs, why } => set(&store, Action::Set, &runs, why),
        What::Promote { run, why } => set(&store, Action::Promote, &[run], Some(why)),
        What::Expire(ending) => end(&store, Action::Expire, ending),
        What::Clear(ending) => end(&store, Action::Clear, ending),
        What::List { series, json } => return list(&store, series.as_deref(), json),
    }?;
    // Whoever judges next is to judge by it.
    records::meet(&store);
    Ok(done)
}

fn set(store: &Store, action: Action, names: &[String], why: Option<String>) -> Outcome {
    let chosen = if names.is_empty() { vec![newest(store)?] } else { found(store, names)? };
    let mut runs = Vec::new();
    for id in chosen {
        let record = store.record(&id).map_err(records::failure)?;
        fit(&id, &record, action)?;
        runs.push((id, record));
    }
    let series: BTreeSet<&str> = runs.iter().map(|(_, record)| record.series.as_str()).collect();
    if series.len() > 1 {
        return Err(Refused::SeveralSeries { series: series.into_iter().map(str::to_owned).collect() }.into());
    }
    let keys = keys(&runs);
    if action == Action::Set {
        for (key, _) in &keys {
            not_lost(store, key, &runs)?;
        }
    }
    let lines: Vec<Line> = keys.into_iter().map(|(key, runs)| line(action, key, runs, why.clone())).collect();
    store.append_baselines(&lines).map_err(records::failure)?;
    for line in &lines {
        let Key { series, step, host, .. } = &line.key;
        let said = format!("baseline of {series}, step {step}, on {host}: {}", shorts(&line.runs));
        out::line(number::plain(&said));
    }
    Ok(Exit::Done)
}

/// The runs that a person named, each once.
fn found(store: &Store, names: &[String]) -> Result<Vec<RunId>, Failure> {
    let mut ids = Vec::new();
    for name in names {
        let id = store.find(name).map_err(records::failure)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn newest(store: &Store) -> Result<RunId, Failure> {
    let filter = Filter { complete: true, own: true, limit: Some(1), ..Filter::default() };
    let rows = store.list(&filter).map_err(records::failure)?.rows;
    let newest = rows.first().and_then(|row| row.id.parse().ok());
    newest.ok_or_else(|| Refused::NoRun { folder: store.folder().display().to_string() }.into())
}

fn fit(id: &RunId, record: &Record, action: Action) -> Result<(), Refused> {
    let unfit = |why: &str| Err(Refused::Unfit { run: id.short(), why: why.to_owned() });
    let reason = || record.verdict.reasons.first().map(|reason| format!(": {}", reason.text)).unwrap_or_default();
    match record.verdict.kind {
        _ if !record.complete => unfit("it did not come to its end"),
        _ if record.warnings.iter().any(|warning| warning.id == quick::ID) => {
            unfit("it was a quick look (`--quick`), which is no baseline")
        }
        VerdictKind::Failed => unfit(&format!("it failed{}", reason())),
        VerdictKind::Invalid => unfit(&format!("its numbers are invalid{}", reason())),
        _ if record.steps.is_empty() => unfit("it measured nothing"),
        _ if record.steps.iter().any(|step| !step.valid && !step.probe) => unfit("one of its steps is not valid"),
        VerdictKind::Regressed if action == Action::Set => Err(Refused::Regressed { run: id.short() }),
        _ => Ok(()),
    }
}

/// Refuses runs that have regressed against the baseline that all since then go back to.
fn not_lost(store: &Store, key: &Key, runs: &[(RunId, Record)]) -> Result<(), Failure> {
    let lines = store.baselines().map_err(records::failure)?;
    let Some(anchor) = lines.anchor(key) else { return Ok(()) };
    // A run that is gone can be held against nothing.
    let record = |id: &String| store.record(&id.parse::<RunId>().ok()?).ok();
    let then: Vec<Record> = anchor.runs.iter().filter_map(record).collect();
    let new: Vec<&Record> = runs.iter().map(|(_, run)| run).filter(|run| !anchor.runs.contains(&run.id)).collect();
    let Some(newest) = new.last() else { return Ok(()) };
    let baseline = Baseline::of(then);
    let judgement = compare::judge_all(&new, Some(&baseline), &compare::tolerances(newest));
    let lost = judgement.comparisons.iter().any(|each| each.step == key.step && each.verdict == VerdictKind::Regressed);
    let why = judgement.verdict.reasons.iter().find(|reason| lost && reason.id == "regressed");
    match why {
        None => Ok(()),
        Some(why) => Err(Refused::LostSince {
            runs: runs.iter().map(|(id, _)| id.short()).collect::<Vec<_>>().join(", "),
            anchor: shorts(&anchor.runs),
            why: why.text.clone(),
        }
        .into()),
    }
}

/// What the runs measured, and which of them did.
fn keys(runs: &[(RunId, Record)]) -> Vec<(Key, Vec<String>)> {
    let mut keys: Vec<(Key, Vec<String>)> = Vec::new();
    for (id, record) in runs {
        for step in record.steps.iter().filter(|step| !step.probe) {
            let key = Key::of(record, step);
            match keys.iter_mut().find(|(known, _)| known.same(&key)) {
                Some((_, runs)) => runs.push(id.to_string()),
                None => keys.push((key, vec![id.to_string()])),
            }
        }
    }
    keys
}

fn end(store: &Store, action: Action, ending: Ending) -> Outcome {
    let Ending { series, step, host, why } = ending;
    let lines = store.baselines().map_err(records::failure)?;
    let all = holding(&lines);
    let meant = all.iter().filter(|line| {
        line.key.series == series
            && step.as_ref().is_none_or(|step| line.key.step == *step)
            && host.as_ref().is_none_or(|host| line.key.host == *host)
    });
    let ended: Vec<Line> = meant.map(|line| self::line(action, line.key.clone(), Vec::new(), why.clone())).collect();
    if ended.is_empty() {
        let step = step.map(|step| format!(", step `{step}`")).unwrap_or_default();
        let known: BTreeSet<&str> = all.iter().map(|line| line.key.series.as_str()).collect();
        let known = match known.is_empty() {
            true => "no baseline is set at all".to_owned(),
            false => format!("there is one for {}", known.into_iter().collect::<Vec<_>>().join(", ")),
        };
        return Err(Refused::None { what: format!("the series `{series}`{step}"), known }.into());
    }
    store.append_baselines(&ended).map_err(records::failure)?;
    for line in &ended {
        let word = if action == Action::Expire { "has expired" } else { "is cleared" };
        let Key { series, step, host, .. } = &line.key;
        out::line(number::plain(&format!("the baseline of {series}, step {step}, on {host} {word}")));
    }
    Ok(Exit::Done)
}

fn list(store: &Store, series: Option<&str>, json: bool) -> Outcome {
    let lines = store.baselines().map_err(records::failure)?;
    let mut shown = holding(&lines);
    shown.retain(|line| series.is_none_or(|series| line.key.series == series));
    if json {
        out::line(serde_json::to_string_pretty(&shown).map_err(Failure::own)?);
    } else if shown.is_empty() {
        out::note(format_args!("no baseline is set in {}; `orch baseline set` sets one", store.folder().display()));
    } else {
        let headings = ["series", "step", "host", "since", "runs", "why"];
        let mut table = Table::new(&headings.map(|heading| (heading, Align::Left)));
        for line in shown {
            let since = line.at.strftime("%Y-%m-%d").to_string();
            let why = number::plain(line.why.as_deref().unwrap_or_default());
            let Key { series, step, host, .. } = &line.key;
            table.row([series.clone(), step.clone(), host.clone(), since, shorts(&line.runs), why]);
        }
        out::text(table);
    }
    Ok(Exit::Done)
}

/// The lines that say that there is a baseline.
fn holding(lines: &Baselines) -> Vec<&Line> {
    let mut holding = lines.currents();
    holding.retain(|line| matches!(line.action, Action::Set | Action::Promote));
    holding
}

fn line(action: Action, key: Key, runs: Vec<String>, why: Option<String>) -> Line {
    let id = format!("b{:016x}", rand::random::<u64>());
    Line { v: VERSION, id, at: Clock::system().now(), by: Writer::here().to_string(), action, key, runs, why }
}

fn shorts(ids: &[String]) -> String {
    let short = |id: &String| id.parse::<RunId>().map_or_else(|_| id.clone(), |id| id.short());
    ids.iter().map(short).collect::<Vec<_>>().join(", ")
}
