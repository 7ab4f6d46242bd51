//! `orch sweep show`: what came of a sweep so far.

use std::collections::BTreeMap;

use clap::ValueEnum;

use super::super::{Exit, Failure, Global, Outcome, out, records};
use super::planning;
use super::points::all_records;
use crate::profile::{Goal, goal_of_words};
use crate::record::{RunId, Store};
use crate::report::sweep::{Best, Report, Row as Shown, Without};
use crate::sweep::{
    Next, Plan, Point, Row, State, SweepFolder, best, could_win, effects, front, interval, left_out, next, rows,
};

/// What came of a sweep.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The sweep: its id, `s` and its four hex digits, or `latest`
    #[arg(default_value = "latest")]
    id: String,
    /// The first metric of the Pareto front
    #[arg(long, value_name = "METRIC")]
    x: Option<String>,
    /// The second one
    #[arg(long, value_name = "METRIC")]
    y: Option<String>,
    /// Another goal than the sweep's: a metric, `maximize:METRIC` or `minimize:METRIC`
    #[arg(long, value_name = "GOAL")]
    goal: Option<String>,
    /// Other conditions than the sweep's, such as `ttft_ms.p99<500ms`
    #[arg(long = "where", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// How it is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Short for `--format json`
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Csv,
    Json,
    Markdown,
}

/// What is to be shown.
pub(crate) struct Asked {
    x: Option<String>,
    y: Option<String>,
    goal: Option<Goal>,
    format: Format,
    /// Whether this process is the one that is at it.
    own: bool,
}

impl Asked {
    /// What the sweep itself asks for, told by whoever made it.
    pub(crate) fn at_the_end(json: bool) -> Self {
        Asked { x: None, y: None, goal: None, format: if json { Format::Json } else { Format::Text }, own: true }
    }

    /// What the sweep itself asks for.
    pub(crate) fn plain(json: bool) -> Self {
        Asked { own: false, ..Asked::at_the_end(json) }
    }
}

/// The metrics that are read of each step, beside those of the goal and the front.
const METRICS: [&str; 9] = [
    "output_tokens_per_s",
    "decode_tokens_per_s_per_user",
    "requests_per_s",
    "goodput_requests_per_s",
    "ttft_ms.p50",
    "ttft_ms.p99",
    "tpot_ms.p50",
    "e2e_ms.p50",
    "acceptance_length",
];

pub(crate) fn run(args: ShowArgs, global: &Global) -> Outcome {
    let ShowArgs { id, x, y, goal, conditions, format, json } = args;
    let folder = SweepFolder::open(&global.results, &id, "sweep.yaml")?;
    let store = records::store(global)?;
    let usage = |why: String| Failure::new(Exit::Usage, miette::miette!("{why}"));
    for metric in x.iter().chain(&y) {
        goal_of_words(metric, &[]).map_err(usage)?;
    }
    let goal = match (&goal, conditions.is_empty()) {
        (None, true) => None,
        (Some(goal), _) => Some(goal_of_words(goal, &conditions).map_err(usage)?),
        (None, false) => {
            let own = planning::read(&folder.file("sweep.yaml").to_string_lossy())?.goal;
            let conditions = goal_of_words(&own.metric, &conditions).map_err(usage)?.conditions;
            Some(Goal { conditions, ..own })
        }
    };
    let format = if json { Format::Json } else { format };
    tell(&folder, &store, &Asked { x, y, goal, format, own: false })?;
    Ok(Exit::Done)
}

/// Shows a sweep.
pub(crate) fn tell(folder: &SweepFolder, store: &Store, asked: &Asked) -> Result<(), Failure> {
    let report = report(folder, store, asked)?;
    match asked.format {
        Format::Text => out::text(report.text()),
        Format::Csv => out::text(report.csv()),
        Format::Markdown => out::text(report.markdown()),
        Format::Json => out::line(serde_json::to_string_pretty(&report).map_err(Failure::own)?),
    }
    Ok(())
}

fn report(folder: &SweepFolder, store: &Store, asked: &Asked) -> Result<Report, Failure> {
    let file = planning::read(&folder.file("sweep.yaml").to_string_lossy())?;
    let (plan, state) = (folder.plan()?, folder.state()?);
    let goal = asked.goal.clone().unwrap_or_else(|| file.goal.clone());
    let records = all_records(store, &state);
    let rows = rows(&plan, |point| records.get(point).cloned().unwrap_or_default());
    let axes = [
        asked.x.clone().unwrap_or_else(|| other_metric(&goal)),
        asked.y.clone().unwrap_or_else(|| goal.metric.clone()),
    ];
    let front = front(&rows, &goal, &axes[0], &axes[1]);
    let winner = best(&rows, &goal);
    let busiest = || rows.iter().filter(|row| !row.results.is_empty()).map(|row| row.step.clone()).next_back();
    let step = winner.map(|row| row.step.clone()).or_else(busiest).unwrap_or_default();
    let more = file.confirm.map(|confirm| confirm.starts);
    let shown = rows.iter().enumerate().map(|(at, row)| shown(&plan, &state, row, &goal, &axes, front.contains(&at)));
    Ok(Report {
        sweep: folder.id().to_owned(),
        complete: next(&plan, &state, file.skip_higher_fraction, more) == Next::Done,
        running: !asked.own && folder.is_running(),
        points: plan.tried().count(),
        measured: plan.tried().filter(|point| !state.runs(&point.point).is_empty()).count(),
        settings: varying(&plan),
        rows: shown.collect(),
        best: winner.map(|row| best_of(&plan, &rows, row, &goal)),
        effects: effects(&plan, &rows, &step, &goal.metric, &file.linked),
        without: without(&plan, &state, file.skip_higher_fraction),
        goal,
        axes,
    })
}

/// What the front is drawn over, beside the goal: what the goal's conditions are about, else the other side of the usual
/// bargain between throughput and latency.
fn other_metric(goal: &Goal) -> String {
    match goal.conditions.first() {
        Some((metric, _)) if *metric != goal.metric => metric.clone(),
        _ if goal.metric == "output_tokens_per_s" => "ttft_ms.p50".to_owned(),
        _ => "output_tokens_per_s".to_owned(),
    }
}

fn varying(plan: &Plan) -> Vec<String> {
    let Some(first) = plan.0.first() else { return Vec::new() };
    let varies = |path: &&String| plan.0.iter().any(|point| point.settings.get(*path) != first.settings.get(*path));
    let paths: Vec<String> = first.settings.keys().filter(varies).cloned().collect();
    if paths.is_empty() { first.settings.keys().cloned().collect() } else { paths }
}

fn shown(plan: &Plan, state: &State, row: &Row, goal: &Goal, axes: &[String; 2], on_front: bool) -> Shown {
    let point = &plan.0[row.index];
    let of_goal = [goal.metric.as_str()].into_iter().chain(goal.conditions.iter().map(|(metric, _)| metric.as_str()));
    let metrics = METRICS.into_iter().chain(axes.iter().map(String::as_str)).chain(of_goal);
    let short = |run: &&str| run.parse::<RunId>().map_or_else(|_| (*run).to_owned(), |id| id.short());
    Shown {
        point: point.point.clone(),
        settings: point.settings.iter().map(|(path, value)| (path.clone(), value.clone())).collect::<BTreeMap<_, _>>(),
        step: row.step.clone(),
        starts: row.results.len(),
        runs: state.runs(&point.point).iter().map(short).collect(),
        values: metrics.map(|metric| (metric.to_owned(), row.mean(metric))).collect(),
        // Without a number there is nothing to hold against the conditions.
        meets: row.meets(goal).filter(|_| !row.results.is_empty()),
        on_front,
        limited: row.limited.clone(),
        unusable: row.unusable.clone(),
    }
}

fn best_of(plan: &Plan, rows: &[Row], winner: &Row, goal: &Goal) -> Best {
    let lead = winner.values(&goal.metric);
    let same = |row: &&Row| (row.index, &row.step) == (winner.index, &winner.step);
    let near = rows.iter().filter(|row| !same(row) && row.meets(goal) == Some(true));
    let near = near.filter(|row| could_win(&lead, &row.values(&goal.metric), &goal.metric, goal.maximize));
    let title = |row: &Row| plan.0[row.index].title();
    Best {
        point: plan.0[winner.index].point.clone(),
        title: title(winner),
        step: winner.step.clone(),
        value: interval(&lead, &goal.metric),
        also: near.map(|row| format!("{} at {}", title(row), row.step)).collect(),
    }
}

fn without(plan: &Plan, state: &State, skip_higher_fraction: bool) -> Vec<Without> {
    let out = left_out(plan, state, skip_higher_fraction);
    let of = |point: &Point| {
        let (status, reason) = if let Some(reason) = &point.dropped {
            ("left_out", reason.clone())
        } else if !state.runs(&point.point).is_empty() {
            return None;
        } else if let Some(left) = out.get(&point.point) {
            ("left_out", left.reason.clone())
        } else if let Some(last) = state.last(&point.point, 1) {
            let tries = state.tries(&point.point, 1).len();
            let why = last
                .failure
                .as_ref()
                .map_or_else(|| format!("ended with {}", last.exit), |failure| failure.text.clone());
            let run =
                last.run.as_deref().and_then(|run| run.parse::<RunId>().ok()).map(|id| format!(" ({})", id.short()));
            let what = if tries > 1 { format!("{why}; twice, so it is the settings and not the host") } else { why };
            ("failed", format!("{what}{}", run.unwrap_or_default()))
        } else {
            ("not_begun", "not reached".to_owned())
        };
        Some(Without { point: point.point.clone(), title: point.title(), status, reason })
    };
    plan.0.iter().filter_map(of).collect()
}
