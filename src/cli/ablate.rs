//! `orch ablate`: which of the differences between two settings makes the difference.

use std::collections::BTreeMap;
use std::time::Duration;

use super::trial::{Running, Start, by_name};
use super::{Exit, Failure, Global, Outcome, ab, out, records};
use crate::compare::{self, differences_of_settings};
use crate::record::index::Filter;
use crate::record::model::StepResult;
use crate::record::{Baseline, Record, Store};
use crate::report::{Align, Table, number, record as shown};
use crate::trial::{Arm, Effect, Kind, Trial, effects, parts};
use crate::units;

/// Measures each difference between a good and a bad setting alone: put onto the good one, and taken back from the bad one
///
/// The cheapest to start come first. Nothing is started before the number of starts and, where history tells it, their time
/// are shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch ablate qwen-mtp3 qwen-mtp1 --dry-run
  orch ablate r0412 r0420 --starts 2 --budget 2h
  orch ablate --resume 20261129-220000-ablate-0a4f

Ends with 0 when it did its work.")]
pub(crate) struct AblateArgs {
    /// The good one: a profile, or a run whose settings they were
    #[arg(required_unless_present = "resume")]
    good: Option<String>,
    /// The bad one
    #[arg(required_unless_present = "resume")]
    bad: Option<String>,
    /// Sets a key of both, above all files
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Starts of each setting
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100))]
    starts: u32,
    /// Leaves out what does not fit into this time, the dearest first
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    budget: Option<Duration>,
    /// Shows what would be done and starts nothing
    #[arg(long)]
    dry_run: bool,
    /// Goes on with a trial that was interrupted
    #[arg(long, value_name = "ID", conflicts_with_all = ["good", "bad", "set", "budget", "dry_run"])]
    resume: Option<String>,
    /// The effects as JSON on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: AblateArgs, global: &Global) -> Outcome {
    let AblateArgs { good, bad, set, starts, budget, dry_run, resume, json } = args;
    let mut running = match (resume, good, bad) {
        (Some(id), ..) => Running::resume_of(Kind::Ablate, &id, global)?,
        (None, Some(good), Some(bad)) => {
            let wanted = Wanted { good: &good, bad: &bad, set: &set, starts, budget };
            match begin(&wanted, dry_run, global)? {
                Some(running) => running,
                None => return Ok(Exit::Done),
            }
        }
        _ => return Err(Failure::new(Exit::Usage, miette::miette!("which two?"))),
    };
    for slot in 0..running.trial.slots.len() {
        if running.start(slot)? != Start::Measured {
            out::note(format_args!("{} gave no measurement", running.trial.arms[running.trial.slots[slot].arm].title));
        }
    }
    let found = found(&running)?;
    if json {
        out::line(serde_json::to_string_pretty(&found).map_err(Failure::own)?);
    } else {
        out::text(table(&found));
    }
    Ok(Exit::Done)
}

struct Wanted<'a> {
    good: &'a str,
    bad: &'a str,
    set: &'a [String],
    starts: u32,
    budget: Option<Duration>,
}

/// A profile by its name, or that of a run.
fn profile_of(text: &str, store: &Store) -> String {
    match store.find(text) {
        Ok(id) => store.run_path(&id).join("profile.yaml").to_string_lossy().into_owned(),
        Err(_) => text.to_owned(),
    }
}

/// Shows what will be done and begins it; `None` where that was all that was wanted.
fn begin<'a>(wanted: &Wanted<'_>, dry_run: bool, global: &'a Global) -> Result<Option<Running<'a>>, Failure> {
    let Wanted { good, bad, set, starts, budget } = *wanted;
    let store = records::store_with_others(global)?;
    let (good, bad) = (profile_of(good, &store), profile_of(bad, &store));
    let (one, other) = (ab::side(&good, set)?, ab::side(&bad, set)?);
    let value = |profile| serde_json::to_value(profile).map_err(Failure::own);
    let differing = differences_of_settings(&value(&one.profile)?, &value(&other.profile)?);
    let mut parts = parts(&differing);
    if parts.is_empty() {
        let report =
            miette::miette!(help = "`orch compare` tells what else differs", "no setting differs between them");
        return Err(Failure::new(Exit::Usage, report));
    }
    let each = usual_time(&store, &one.profile.series);
    // Where there is one difference alone, each of the two is the other with it.
    let several = parts.len() > 1;
    let starts_of = |parts: usize| {
        let arms = if several { 2 + 2 * parts } else { 2 };
        u32::try_from(arms).unwrap_or(u32::MAX).saturating_mul(starts)
    };
    let fits = |parts: usize| each.zip(budget).is_none_or(|(each, budget)| each * starts_of(parts) <= budget);
    while parts.len() > 1 && !fits(parts.len()) {
        let left = parts.pop().map(|part| part.text).unwrap_or_default();
        out::note(format_args!("left out for want of time: {left}"));
    }
    let all = starts_of(parts.len());
    let time = each.map(|each| format!(", about {} in all", units::duration_text(round(each * all))));
    out::note(format_args!("{} differences, {all} starts{}", parts.len(), time.unwrap_or_default()));
    for part in &parts {
        out::note(format_args!("  {}", part.text));
    }
    if dry_run {
        return Ok(None);
    }
    let arm = |name: String, title: String| Arm { name, title };
    let mut arms = vec![arm("good".into(), "good".into()), arm("bad".into(), "bad".into())];
    let mut profiles = vec![one.yaml.clone(), other.yaml.clone()];
    if several {
        for (place, part) in parts.iter().enumerate() {
            let with = |extra: &String| set.iter().cloned().chain([extra.clone()]).collect::<Vec<_>>();
            arms.push(arm(format!("onto-{}", place + 1), format!("good with {}", part.onto)));
            profiles.push(ab::side(&good, &with(&part.onto))?.yaml);
            arms.push(arm(format!("back-{}", place + 1), format!("bad with {}", part.back)));
            profiles.push(ab::side(&bad, &with(&part.back))?.yaml);
        }
    }
    Running::begin(Trial::by_turns(Kind::Ablate, arms, starts, 1), &profiles, global).map(Some)
}

fn round(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

/// How long the newest run of the series took.
fn usual_time(store: &Store, series: &str) -> Option<Duration> {
    let filter = Filter { series: Some(series.to_owned()), complete: true, limit: Some(1), ..Filter::default() };
    let row = store.list(&filter).ok()?.rows.into_iter().next()?;
    let record = store.record(&row.id.parse().ok()?).ok()?;
    Duration::try_from(record.ended_at?.duration_since(record.started_at)).ok()
}

fn found(running: &Running<'_>) -> Result<Vec<Effect>, Failure> {
    let mut records = by_name(&running.trial, running.records()?);
    let (Some(good), Some(bad)) = (first(&records, "good"), first(&records, "bad")) else {
        let report =
            miette::miette!("without a measurement of the good one and of the bad one there is no effect to tell");
        return Err(Failure::new(Exit::NoMeasurement, report));
    };
    let parts = parts(&differences_of_settings(&good.profile, &bad.profile));
    if parts.len() == 1 {
        let (good, bad) = (records["good"].clone(), records["bad"].clone());
        records.insert("onto-1".to_owned(), bad);
        records.insert("back-1".to_owned(), good);
    }
    let Some(step) = common_step(&records["good"], &records["bad"]) else {
        let report = miette::miette!("no step is valid both in the good one and in the bad one");
        return Err(Failure::new(Exit::NoMeasurement, report));
    };
    let value = |arm: &str| mean(records.get(arm)?, &step);
    let sees = |from: &str, to: &str| {
        let (from, to) = (records.get(from)?, records.get(to)?);
        let now: Vec<&Record> = to.iter().collect();
        let judgement = compare::judge_all(&now, Some(&Baseline::of(from.clone())), &Default::default());
        let own = judgement.comparisons.iter().find(|each| each.metric == HEADLINE && each.step == step);
        own.and_then(|each| each.can_see_ratio)
    };
    Ok(effects(parts, value, sees))
}

fn first<'a>(records: &'a BTreeMap<String, Vec<Record>>, arm: &str) -> Option<&'a Record> {
    records.get(arm)?.first()
}

const HEADLINE: &str = "output_tokens_per_s";

/// The first step that is valid in the good one and in the bad one: all arms are compared by one and the same.
fn common_step(good: &[Record], bad: &[Record]) -> Option<String> {
    let valid = |runs: &[Record], name: &str| runs.iter().any(|run| valid_step(run, name).is_some());
    let names = good.iter().flat_map(|run| &run.steps).map(|step| &step.name);
    names.into_iter().find(|name| valid(good, name) && valid(bad, name)).cloned()
}

fn valid_step<'a>(run: &'a Record, name: &str) -> Option<&'a StepResult> {
    run.steps.iter().find(|step| step.valid && step.name == name)
}

/// The headline metric of a step, as the geometric mean of the runs in which it is valid.
fn mean(runs: &[Record], step: &str) -> Option<f64> {
    let value = |run: &Record| compare::value(valid_step(run, step)?, HEADLINE);
    let values: Vec<f64> = runs.iter().filter_map(value).filter(|value| *value > 0.0).collect();
    (!values.is_empty()).then(|| (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp())
}

fn table(effects: &[Effect]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("difference", Align::Left),
        ("alone onto the good", right),
        ("taken back from the bad", right),
        ("can see", right),
    ]);
    for effect in effects {
        table.row([
            number::plain(&effect.part.text),
            number::change(effect.alone),
            number::change(effect.taken_back),
            number::share(effect.can_see),
        ]);
    }
    format!("{}, by difference\n\n{table}", shown::label(HEADLINE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fold;
    use crate::record::samples::{entries, result, story};

    fn run(steps: &[(&str, bool, f64)]) -> Record {
        let step = |&(name, valid, output): &(&str, bool, f64)| StepResult {
            metrics: [(HEADLINE.to_owned(), crate::measure::MetricValue::Number(output))].into(),
            valid,
            ..result(name, 0.0)
        };
        Record { steps: steps.iter().map(step).collect(), ..fold(entries(story())).record }
    }

    #[test]
    fn arms_are_compared_by_one_step_that_both_ends_have() {
        let good = [run(&[("single", true, 70.0), ("ladder", true, 400.0)])];
        let bad = [run(&[("single", false, 30.0), ("ladder", true, 300.0)])];
        assert_eq!(common_step(&good, &bad).as_deref(), Some("ladder"));
        assert!((mean(&good, "ladder").unwrap() - 400.0).abs() < 1e-9);
        assert_eq!(mean(&bad, "single"), None);
        let gone = [run(&[("single", false, 30.0)])];
        assert_eq!(common_step(&good, &gone), None);
    }
}
