//! `orch tune`: the best settings of a profile with few starts. How it searches is in `sweep::tune`.

mod question;
mod winner;

use std::time::Duration;

use indexmap::IndexMap;

use super::sweep::points::Points;
use super::{Exit, Failure, Global, Outcome, out};
use crate::clock::Clock;
use crate::record::Record;
use crate::render::Arrival;
use crate::sweep::tune::{Ask, Found, Outcome as Came, Seen, next};
use crate::sweep::{Attempt, Plan, Point, Row, SweepEvent, SweepFolder, best, budget_allows, id_of, rows};
use crate::units;
use question::Question;

/// Finds the best settings of a profile with few starts
///
/// First the highest memory fraction that starts and survives the load, by what the starts leave free; then one setting
/// after the other; then the length of the draft, by what its acceptance lets it gain at most; and in the end those again
/// that could be the best. It ends with a profile that has the winner's settings, and with the evidence.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch tune qwen-mtp3 --goal output_tokens_per_s --where 'ttft_ms.p99<500ms' --budget 20
  orch tune qwen-mtp3 --axis memory.fraction=0.84,0.86,0.88,0.90 --axis speculative.steps=0,1,2,3,4 --budget 6h
  orch tune qwen-mtp3 --dry-run
  orch tune --resume 20261129-220000-tune-qwen-mtp3-0a4f

docs/sweeps.md tells how it searches. Ends with 0 when it did its work, and with 3 to 5 when no start gave a measurement.")]
pub(crate) struct TuneArgs {
    /// Name of a profile, or the path of its file
    #[arg(required_unless_present = "resume")]
    profile: Option<String>,
    /// What is best: a metric, `maximize:METRIC` or `minimize:METRIC`
    #[arg(long, value_name = "GOAL", default_value = "output_tokens_per_s")]
    goal: String,
    /// What must hold, such as `ttft_ms.p99<500ms`
    #[arg(long = "where", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// How many starts there may be, or how long it may take; a third of the grid's starts unless told
    #[arg(long, value_name = "STARTS|TIME")]
    budget: Option<String>,
    /// A setting and its values, for those that follow from the profile
    #[arg(long = "axis", value_name = "PATH=V,V,…")]
    axes: Vec<String>,
    /// Sets a key of the profile below all of them
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Shows what would be searched and starts nothing
    #[arg(long)]
    dry_run: bool,
    /// Goes on with a search that was interrupted
    #[arg(long, value_name = "ID", conflicts_with_all = ["profile", "conditions", "axes", "set"])]
    resume: Option<String>,
    /// What was found as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// How long a search may be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Budget {
    Starts(usize),
    Time(Duration),
}

fn budget(text: &str) -> Result<Budget, Failure> {
    if let Ok(starts) = text.trim_end_matches("-starts").parse::<usize>() {
        return Ok(Budget::Starts(starts.max(1)));
    }
    units::parse_duration(text).map(Budget::Time).map_err(|error| {
        let help = "a number of starts, such as `20`, or a time, such as `6h`";
        Failure::new(Exit::Usage, miette::miette!(help = help, "`--budget {text}`: {error}"))
    })
}

pub(crate) fn run(args: TuneArgs, global: &Global) -> Outcome {
    let TuneArgs { profile, goal, conditions, budget: asked, axes, set, dry_run, resume, json } = args;
    let asked = asked.as_deref().map(budget).transpose()?;
    let (mut question, known) = match (&resume, &profile) {
        (Some(id), _) => {
            let folder = SweepFolder::open(&global.results, id, "tune.json")?;
            (Question::read(&folder)?, Some(folder))
        }
        (None, Some(profile)) => (Question::ask(profile, &set, &goal, &conditions, &axes)?, None),
        (None, None) => return Err(Failure::new(Exit::Usage, miette::miette!("which profile?"))),
    };
    match asked {
        Some(Budget::Starts(starts)) => question.starts = starts,
        Some(Budget::Time(time)) => {
            question.budget_s = Some(time.as_secs_f64());
            question.starts = question.space.grid();
        }
        None => {}
    }
    for line in question.words() {
        out::note(line);
    }
    if dry_run {
        return Ok(Exit::Done);
    }
    let folder = match known {
        Some(folder) => folder,
        None => question.begin(global, Clock::system().now())?,
    };
    let prepare = |folder: &SweepFolder| question.write(folder);
    let points = Points::open(folder, "orch tune", question.budget_s, global, prepare)?;
    out::note(format_args!("search {}", points.folder.id()));
    let mut search = Search { question, points, plan: Plan::default() };
    search.plan = search.points.folder.plan().unwrap_or_default();
    let found = search.all()?;
    search.points.write(SweepEvent::SweepEnded { stopped: None })?;
    search.end(&found, json)
}

struct Search<'a> {
    question: Question,
    points: Points<'a>,
    /// The points that were begun.
    plan: Plan,
}

impl Search<'_> {
    fn all(&mut self) -> Result<Found, Failure> {
        loop {
            let seen = self.seen()?;
            let (settings, why) = match next(&self.question.space, &seen, self.question.starts) {
                Ask::Done(found) => return Ok(found),
                Ask::Start { levels, loads, why } => (self.question.loaded(&levels, &loads), why),
            };
            let state = &self.points.state;
            if !budget_allows(self.question.budget_s, state.spent_s, self.points.usual_s()) {
                out::note("the budget leaves no time for another start");
                // What a search without another start would say.
                return Ok(match next(&self.question.space, &seen, seen.len()) {
                    Ask::Done(found) => found,
                    Ask::Start { .. } => Found::default(),
                });
            }
            self.start(settings, &why, seen.len() + 1)?;
        }
    }

    fn start(&mut self, settings: IndexMap<String, String>, why: &str, number: usize) -> Result<(), Failure> {
        let point = self.point(settings)?;
        let mut start = 1;
        while self.points.state.last(&point.point, start).is_some() {
            start += 1;
        }
        out::note(format_args!("\nstart {number} of at most {}: {} ({why})", self.question.starts, point.title()));
        let first = self.points.measure(&point, start, 1)?;
        if first.may_end_otherwise() {
            out::note("it gave no measurement; once more");
            self.points.measure(&point, start, 2)?;
        }
        Ok(())
    }

    /// The point with these settings, which is in the plan from now on.
    fn point(&mut self, settings: IndexMap<String, String>) -> Result<Point, Failure> {
        if let Some(known) = self.plan.0.iter().find(|point| point.settings == settings) {
            return Ok(known.clone());
        }
        let named = serde_json::json!({"base": self.question.base, "settings": settings});
        let point = Point { point: id_of(&named), settings, dropped: None };
        self.plan.0.push(point.clone());
        self.points.folder.write_plan(&self.plan)?;
        Ok(point)
    }

    /// All starts that were made, oldest first.
    fn seen(&self) -> Result<Vec<Seen>, Failure> {
        let mut order: Vec<(String, u32)> = Vec::new();
        for line in self.points.folder.lines()? {
            if let SweepEvent::PointBegan { point, start, .. } = line.event
                && !order.contains(&(point.clone(), start))
            {
                order.push((point, start));
            }
        }
        let of = |(point, start): &(String, u32)| {
            let settings = &self.plan.find(point)?.settings;
            let (levels, loads) = (self.question.levels(settings)?, self.question.loads(settings));
            let tries = self.points.state.tries(point, *start);
            let last = tries.last()?.as_ref()?;
            // Cut short between its two tries, it is not seen yet.
            if last.may_end_otherwise() && tries.len() < 2 {
                return None;
            }
            Some(Seen { levels, loads, outcome: self.came(last) })
        };
        Ok(order.iter().filter_map(of).collect())
    }

    fn came(&self, attempt: &Attempt) -> Came {
        let record = attempt.run.as_deref().and_then(|run| self.points.store.record(&run.parse().ok()?).ok());
        let record = record.filter(|_| attempt.complete);
        let mut came = Came { oom: attempt.is_oom(), ..Came::default() };
        let Some(record) = record else { return came };
        came.free_ratio = free_ratio(&record);
        let one = Plan(vec![Point { point: "one".into(), settings: Default::default(), dropped: None }]);
        let goal = &self.question.goal;
        let rows = rows(&one, |_| vec![record.clone()]);
        let load = |row: &Row| match row.results.first()?.load.arrival {
            Arrival::Closed { concurrency } => Some(concurrency),
            _ => None,
        };
        came.loads =
            rows.iter().filter_map(|row| Some((load(row)?, row.meets(goal)? && row.limited.is_none()))).collect();
        if let Some(row) = best(&rows, goal) {
            came.value = row.mean(&goal.metric).filter(|value| *value > 0.0);
            came.accepted = row.results.first().map(|step| step.acceptance_by_position.clone()).unwrap_or_default();
        }
        came
    }

    fn end(&self, found: &Found, json: bool) -> Outcome {
        let seen = self.seen()?;
        let Some(levels) = &found.levels else {
            let report = miette::miette!(
                help = format!("`orch list` shows the runs; the search is in {}", self.points.folder.id()),
                "no start gave a measurement that meets the goal"
            );
            return Err(Failure::new(Exit::NoMeasurement, report));
        };
        let told = winner::tell(&self.question, &self.points.folder, levels, &seen, &found.evidence)?;
        if json {
            out::line(serde_json::to_string_pretty(&told).map_err(Failure::own)?);
        } else {
            out::text(winner::text(&told));
        }
        Ok(Exit::Done)
    }
}

/// The share of the memory that was left at the lowest moment: on any rank, in any phase, the draft's peak with them.
fn free_ratio(record: &Record) -> Option<f64> {
    let trail = &record.startup.as_ref()?.memory;
    let free = trail.iter().map(|point| point.free_gb);
    // Before the weights nothing is taken yet.
    let (lowest, whole) = (free.clone().reduce(f64::min)?, free.reduce(f64::max)?);
    (whole > 0.0 && trail.len() > 1).then(|| (lowest / whole).clamp(0.0, 1.0))
}
