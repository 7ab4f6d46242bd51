//! `orch ab`: two settings by turns on one host.

use serde::Serialize;

use super::trial::{ALONE, Running};
use super::{Exit, Failure, Global, Outcome, out, planned, run, upgrade};
use crate::compare::{self, Judgement};
use crate::profile::Loaded;
use crate::record::{Baseline, Record};
use crate::report::record as shown;
use crate::trial::{Arm, Kind, Trial, Upgrade};

/// Measures two settings by turns (A B B A …) on this host, and judges B against A
///
/// Taking turns keeps a drift of the machine out of the difference. Each start of a server is one value, the mean of its
/// runs. What was measured stays when it is interrupted; `--resume` goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch ab qwen-mtp3 qwen-mtp1
  orch ab qwen-mtp3 --set-b attention_backend=triton --starts 5 --runs 3
  orch ab qwen-mtp3 --engine sglang==0.5.21 --engine sglang==0.5.23
  orch ab --resume 20261129-220000-ab-0a4f

Ends with 6 if B is worse than A; docs/verdicts.md has the rule and all codes.")]
pub(crate) struct AbArgs {
    /// Profile A, which B is judged against
    #[arg(required_unless_present = "resume")]
    a: Option<String>,
    /// Profile B; without one, A with what `--set-b` says
    b: Option<String>,
    /// Sets a key of both, above all files
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Sets a key of B alone
    #[arg(long, value_name = "PATH=VALUE")]
    set_b: Vec<String>,
    /// Twice: the engine and exact version of A and of B, with the rest of the profile the same. What the upgrade changes by
    /// itself is told too: flags that vanish or are new, defaults that moved
    #[arg(long, value_name = "KIND==VERSION", conflicts_with = "b")]
    engine: Vec<String>,
    /// Starts of each side; the profile's `repeat.starts` if that is above 1, else 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    starts: Option<u32>,
    /// Runs on each start; the profile's `repeat.runs`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Goes on with a trial that was interrupted
    #[arg(long, value_name = "ID", conflicts_with_all = ["a", "b", "set", "set_b", "engine", "starts", "runs"])]
    resume: Option<String>,
    /// Ends with 7 where the noise does not allow a word
    #[arg(long)]
    strict: bool,
    /// The comparison as JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Compared<'a> {
    trial: &'a str,
    a: Vec<&'a str>,
    b: Vec<&'a str>,
    #[serde(flatten)]
    judgement: &'a Judgement,
    /// What the upgrade changes by itself, where the sides are two versions of an engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<Upgrade>,
}

pub(crate) fn run(args: AbArgs, global: &Global) -> Outcome {
    let AbArgs { a, b, set, set_b, engine, starts, runs, resume, strict, json } = args;
    let mut running = match (resume, a) {
        (Some(id), _) => Running::resume_of(Kind::Ab, &id, global)?,
        (None, Some(a)) => {
            let sides = Sides { a: &a, b: b.as_deref(), set: &set, set_b: &set_b, engines: &engine };
            begin(&sides, starts, runs, global)?
        }
        (None, None) => return Err(Failure::new(Exit::Usage, miette::miette!("which profiles?"))),
    };
    running.all()?;
    let mut records = running.records()?.into_iter();
    let (a, b) = (records.next().unwrap_or_default(), records.next().unwrap_or_default());
    let version = |runs: &[Record]| runs.last().and_then(|run| Some(run.engine.as_ref()?.version.clone()));
    let upgrade = (version(&a) != version(&b)).then(|| upgrade::of_records(&a, &b, &running.store));
    let tolerances = b.last().map(compare::tolerances).unwrap_or_default();
    let judgement = compare::judge_all(&b.iter().collect::<Vec<_>>(), Some(&Baseline::of(a.clone())), &tolerances);
    if json {
        let ids = |runs: &'_ [Record]| runs.iter().map(|run| run.id.clone()).collect::<Vec<_>>();
        let (a, b) = (ids(&a), ids(&b));
        let all = Compared {
            trial: running.folder.id(),
            a: a.iter().map(String::as_str).collect(),
            b: b.iter().map(String::as_str).collect(),
            judgement: &judgement,
            upgrade,
        };
        out::line(serde_json::to_string_pretty(&all).map_err(Failure::own)?);
    } else {
        let titles: Vec<&str> = running.trial.arms.iter().map(|arm| arm.title.as_str()).collect();
        out::text(text(&titles, &running.trial, &judgement, &b));
        if let Some(upgrade) = &upgrade {
            out::text(upgrade::text(upgrade));
        }
    }
    Ok(Exit::of(&judgement.verdict, None, strict))
}

/// Reads a side, without its own wishes for repetition.
pub(super) fn side(profile: &str, set: &[String]) -> Result<Loaded, Failure> {
    let alone: Vec<String> = set.iter().cloned().chain(ALONE.map(str::to_owned)).collect();
    let loaded = run::load(profile, &alone)?;
    planned::run_check(&loaded, &planned::definition(&loaded.profile)?)?;
    Ok(loaded)
}

/// The same, where its starts may be on another host.
pub(super) fn side_anywhere(profile: &str, set: &[String]) -> Result<Loaded, Failure> {
    let alone: Vec<String> = set.iter().cloned().chain(ALONE.map(str::to_owned)).collect();
    let loaded = run::load(profile, &alone)?;
    planned::far_check(&loaded, &planned::definition(&loaded.profile)?)?;
    Ok(loaded)
}

/// What was typed of the two sides.
struct Sides<'a> {
    a: &'a str,
    b: Option<&'a str>,
    set: &'a [String],
    set_b: &'a [String],
    engines: &'a [String],
}

fn begin<'a>(
    sides: &Sides<'_>,
    starts: Option<u32>,
    runs: Option<u32>,
    global: &'a Global,
) -> Result<Running<'a>, Failure> {
    let Sides { a, b, set, set_b, engines } = *sides;
    if b.is_none() && set_b.is_empty() && engines.is_empty() {
        let help = "`orch ab A B`, or `orch ab A --set-b PATH=VALUE`";
        return Err(Failure::new(Exit::Usage, miette::miette!(help = help, "nothing says what B is")));
    }
    let asked = run::load(a, set)?.profile;
    let repeat = &asked.repeat;
    let (mut first, mut both): (Vec<String>, Vec<String>) = (set.to_vec(), set.iter().chain(set_b).cloned().collect());
    if !engines.is_empty() {
        let [was, now] = upgrade::sets(engines, &asked)?;
        first.push(was);
        both.push(now);
    }
    let (one, other) = (side(a, &first)?, side(b.unwrap_or(a), &both)?);
    if !engines.is_empty() {
        upgrade::announce(&one, &other)?;
    }
    let of_engine = |index: usize| engines.get(index).map(|engine| format!(" on {engine}")).unwrap_or_default();
    let changed = if set_b.is_empty() { String::new() } else { format!(" with {}", set_b.join(", ")) };
    let changed = of_engine(1) + &changed;
    let arms = vec![
        Arm { name: "a".to_owned(), title: format!("A, {}{}", one.profile.name, of_engine(0)) },
        Arm { name: "b".to_owned(), title: format!("B, {}{changed}", other.profile.name) },
    ];
    let starts = starts.unwrap_or(if repeat.starts > 1 { repeat.starts } else { 3 });
    let trial = Trial::by_turns(Kind::Ab, arms, starts, runs.unwrap_or(repeat.runs));
    Running::begin(trial, &[one.yaml, other.yaml], global)
}

fn text(titles: &[&str], trial: &Trial, judgement: &Judgement, b: &[Record]) -> String {
    let starts = trial.slots.iter().filter(|slot| slot.arm == 0).count();
    let runs = if trial.runs == 1 { String::new() } else { format!(" of {} runs", trial.runs) };
    let mut text = format!("{} against {}: {starts} starts{runs} a side, by turns\n\n", titles[1], titles[0]);
    text.push_str(&shown::verdict(&judgement.verdict));
    let steps = b.last().map(|record| record.steps.as_slice()).unwrap_or_default();
    text.push_str(&format!("\n{}", shown::comparisons(&judgement.comparisons, steps)));
    text
}
