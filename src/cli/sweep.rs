//! `orch sweep`: settings in all combinations over a profile, each measured once, and what they tell together.

mod planning;
pub(crate) mod points;
pub(crate) mod show;

use std::collections::HashSet;
use std::time::Duration;

use clap::Subcommand;

use super::trial::of_code;
use super::{Exit, Failure, Global, Outcome, out, records};
use crate::clock::Clock;
use crate::profile::SweepFile;
use crate::sweep::{Attempt, Next, Plan, Point, SweepEvent, SweepFolder, best, budget_allows, could_win, next, rows};
use crate::units;
use planning::Planned;
use points::Points;

/// Tries settings in all combinations over a profile, and shows which is best and which of them makes the difference
///
/// Each point is a start of the server with its own settings and all of the load on it, and has a record like any run.
/// Nothing is started before the plan is shown. What was measured stays when it is interrupted or killed; `--resume` goes on.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  orch sweep sim-cap --dry-run
  orch sweep sim-cap
  orch sweep profiles/sweeps/qwen-spec.yaml --budget 6h
  orch sweep --resume 20261129-220000-sim-cap-0a4f
  orch sweep show latest --x ttft_ms.p99 --y output_tokens_per_s
  orch sweep show s0a4f --format csv

docs/sweeps.md has the file and the rules. Ends with 0 when it did its work, 6 when a point regressed against its
baseline, and 3 to 5 only when no point gave a measurement."
)]
pub(crate) struct SweepArgs {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    go: GoArgs,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Shows what came of a sweep: a table, the best, and what each axis does
    Show(show::ShowArgs),
}

#[derive(Debug, clap::Args)]
struct GoArgs {
    /// Name of a sweep in `sweeps/` of the profile folder, or the path of its file
    #[arg(required_unless_present = "resume", value_name = "FILE|NAME")]
    file: Option<String>,
    /// Sets a key of the profile below all axes
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Shows the plan and starts nothing
    #[arg(long)]
    dry_run: bool,
    /// Goes on with a sweep: points that are measured stay, also where its file has changed and is named again
    #[arg(long, value_name = "ID")]
    resume: Option<String>,
    /// How long it may take in all: nothing begins that cannot end within it
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    budget: Option<Duration>,
    /// What came of it as JSON on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: SweepArgs, global: &Global) -> Outcome {
    let SweepArgs { what, go } = args;
    if let Some(What::Show(args)) = what {
        return show::run(args, global);
    }
    let GoArgs { file, set, dry_run, resume, budget, json } = go;
    let store = records::store(global)?;
    let known = resume.map(|id| SweepFolder::open(&global.results, &id, "sweep.yaml")).transpose()?;
    let (file, planned) = match (&file, &known) {
        (Some(asked), _) => {
            let file = planning::read(asked)?;
            let planned = planning::plan(&file, &set)?;
            (file, Some(planned))
        }
        (None, Some(folder)) if set.is_empty() => (planning::read(&folder.file("sweep.yaml").to_string_lossy())?, None),
        (None, _) => {
            let help = "`orch sweep FILE --resume ID --set PATH=VALUE`";
            let report = miette::miette!(help = help, "`--set` makes another plan, and needs the sweep's file");
            return Err(Failure::new(Exit::Usage, report));
        }
    };
    let budget = budget.or(file.budget);
    let expected = planned.as_ref().and_then(|planned| planning::expected(&planned.base, &store));
    if let Some(planned) = &planned {
        planning::tell(&file, planned, expected, budget);
    }
    if dry_run {
        return match (&planned, &known) {
            (None, Some(folder)) => tell_rest(&file, folder),
            _ => Ok(Exit::Done),
        };
    }
    let folder = match known {
        Some(folder) => folder,
        None => SweepFolder::create(&global.results, &file.name, Clock::system().now())?,
    };
    let prepare = |folder: &SweepFolder| {
        if let Some(Planned { plan, base }) = &planned {
            folder.write("base.yaml", &base.yaml)?;
            folder.write_plan(plan)?;
            // Last: a folder without it is no sweep yet.
            folder.write("sweep.yaml", &file.text)?;
        }
        Ok(())
    };
    let points = Points::open(folder, "orch sweep", budget.map(|budget| budget.as_secs_f64()), global, prepare)?;
    let plan = points.folder.plan()?;
    out::note(format_args!("sweep {}", points.folder.id()));
    let mut sweep = Sweep { file, plan, points, expected_s: expected.map(|each| each.as_secs_f64()), regressed: false };
    let stopped = sweep.all()?;
    sweep.points.write(SweepEvent::SweepEnded { stopped: stopped.clone() })?;
    show::tell(&sweep.points.folder, &sweep.points.store, &show::Asked::at_the_end(json))?;
    if let Some(why) = stopped {
        out::note(format_args!("{why}; `orch sweep --resume {} --budget TIME` goes on", sweep.points.folder.id()));
    }
    Ok(sweep.exit())
}

/// What a resume would do.
fn tell_rest(file: &SweepFile, folder: &SweepFolder) -> Outcome {
    let (plan, state) = (folder.plan()?, folder.state()?);
    let done = plan.tried().filter(|point| state.last(&point.point, 1).is_some()).count();
    let all = plan.tried().count();
    out::note(format_args!("{} ({}): {done} of {all} points are done", folder.id(), file.name));
    if let Next::Start { index, start, .. } = next(&plan, &state, file.skip_higher_fraction, more(file)) {
        out::note(format_args!("next: {}, start {start}", plan.0[index].title()));
    }
    Ok(Exit::Done)
}

fn more(file: &SweepFile) -> Option<u32> {
    file.confirm.map(|confirm| confirm.starts)
}

struct Sweep<'a> {
    file: SweepFile,
    plan: Plan,
    points: Points<'a>,
    /// How long a start should take, before one of this sweep has told.
    expected_s: Option<f64>,
    regressed: bool,
}

impl Sweep<'_> {
    /// Makes all points. Returns why something is left, if it is.
    fn all(&mut self) -> Result<Option<String>, Failure> {
        loop {
            match next(&self.plan, &self.points.state, self.file.skip_higher_fraction, more(&self.file)) {
                Next::Done => return Ok(None),
                Next::Choose => {
                    let chosen = self.chosen();
                    self.points.write(SweepEvent::Confirming { points: chosen })?;
                }
                Next::Start { index, start, attempt } => {
                    let expected = self.points.usual_s().or(self.expected_s);
                    let state = &self.points.state;
                    if !budget_allows(state.budget_s, state.spent_s, expected) {
                        return Ok(Some("the budget leaves no time for another start".to_owned()));
                    }
                    self.start(index, start, attempt)?;
                }
            }
        }
    }

    fn start(&mut self, index: usize, start: u32, attempt: u32) -> Result<(), Failure> {
        let point = self.plan.0[index].clone();
        let place = self.plan.tried().position(|each| each.point == point.point).unwrap_or(0) + 1;
        let again = match (start, attempt) {
            (1, 1) => String::new(),
            (1, _) => ", once more".to_owned(),
            _ => format!(", start {start}"),
        };
        out::note(format_args!("\npoint {place} of {}{again}: {}", self.plan.tried().count(), point.title()));
        let outcome = self.points.measure(&point, start, attempt)?;
        self.regressed |= outcome.exit == Exit::Regressed as i32;
        if let Some(failure) = &outcome.failure {
            out::note(format_args!("{} gave no measurement: {}", point.title(), failure.text));
        }
        Ok(())
    }

    /// Of the best points those that could still be the best of all.
    fn chosen(&self) -> Vec<String> {
        let Some(confirm) = self.file.confirm else { return Vec::new() };
        let goal = &self.file.goal;
        let rows = rows(&self.plan, |point| self.points.records(point));
        let Some(winner) = best(&rows, goal) else { return Vec::new() };
        let lead = winner.values(&goal.metric);
        let fitting = rows.iter().filter(|row| row.meets(goal) == Some(true));
        let mut fitting: Vec<(f64, usize)> = fitting
            .filter(|row| could_win(&lead, &row.values(&goal.metric), &goal.metric, goal.maximize))
            .filter_map(|row| Some((row.mean(&goal.metric)?, row.index)))
            .collect();
        fitting.sort_by(|one, other| if goal.maximize { other.0.total_cmp(&one.0) } else { one.0.total_cmp(&other.0) });
        let mut seen = HashSet::new();
        fitting.retain(|(_, index)| seen.insert(*index));
        fitting.truncate(confirm.top as usize);
        // One that nothing comes near is the best already, and is told with its interval all the same.
        fitting.into_iter().map(|(_, index)| self.plan.0[index].point.clone()).collect()
    }

    fn exit(&self) -> Exit {
        let last = |point: &Point| self.points.state.last(&point.point, 1);
        let ended: Vec<&Attempt> = self.plan.tried().filter_map(last).collect();
        let regressed = ended.iter().any(|attempt| attempt.exit == Exit::Regressed as i32);
        match ended.last() {
            Some(last) if !ended.iter().any(|attempt| attempt.complete) => of_code(last.exit),
            _ if self.regressed || regressed => Exit::Regressed,
            _ => Exit::Done,
        }
    }
}
