//! From a sweep's file to its plan: the profile that it is laid over, what each point is called, what cannot be started and
//! why, and how long it should take.

use std::time::Duration;

use super::super::trial::ALONE;
use super::super::{Exit, Failure, out, planned, run};
use crate::profile::{self, Loaded, Misplaced, ProfileError, Request, SweepFile};
use crate::record::Store;
use crate::record::history::PastStarts;
use crate::sweep::{Ids, Plan, Point, Variant, combinations};
use crate::units;

/// Up to so many points each is resolved and held against its engine before anything is started. Of larger plans the values
/// of each axis are, and what does not go together is found when its turn comes, before its start.
const EACH: usize = 512;

/// So many combinations are tried for one that resolves.
const REFERENCES: usize = 64;

/// A sweep that was planned.
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// The profile with the sweep's load, in one file.
    pub(crate) base: Loaded,
}

/// What is set before the axes.
fn fixed(file: &SweepFile, set: &[String]) -> Vec<String> {
    let mut sets: Vec<String> = set.to_vec();
    sets.extend(ALONE.map(str::to_owned));
    if let Some(load) = &file.load {
        sets.push("bench=null".to_owned());
        sets.push(format!("bench.load={load}"));
    }
    sets
}

/// Reads a sweep's file.
pub(crate) fn read(asked: &str) -> Result<SweepFile, Failure> {
    let read = profile::sweep_file(asked, &profile::default_folders(), &profile::process_env);
    read.map_err(|error| Failure::new(Exit::Usage, error))
}

/// Plans it. Nothing is started or written.
pub(crate) fn plan(file: &SweepFile, set: &[String]) -> Result<Planned, Failure> {
    let fixed = fixed(file, set);
    let base = run::load(&file.base, &fixed)?;
    if base.profile.bench.is_empty() {
        let help = "`load: {use: chat-mix, concurrency: [1, 4, 16], requests: 64}`";
        let report = miette::miette!(help = help, "neither the sweep nor its profile says what is measured");
        return Err(Failure::new(Exit::Usage, report));
    }
    let resolver = Resolver { file, fixed: &fixed };
    let all = combinations(file).map_err(|error| Failure::new(Exit::Usage, miette::miette!("{error}")))?;
    let (reference, levels) = resolver.reference(&all)?;
    let ids = Ids::new(value(&reference)?, &resolver.variants(&levels)?);
    let each = all.len() <= EACH;
    let plan = Plan::make(file, |levels| ids.id(levels), |point| if each { resolver.hindrance(point) } else { None });
    let plan = plan.map_err(|error| Failure::new(Exit::Usage, miette::miette!("{error}")))?;
    if plan.tried().next().is_none() {
        let reasons: Vec<&str> = plan.0.iter().filter_map(|point| point.dropped.as_deref()).take(5).collect();
        let report = miette::miette!(help = reasons.join("\n"), "none of its {} points can be started", plan.0.len());
        return Err(Failure::new(Exit::Usage, report));
    }
    Ok(Planned { plan, base })
}

fn value(loaded: &Loaded) -> Result<serde_json::Value, Failure> {
    serde_json::to_value(&loaded.profile).map_err(Failure::own)
}

struct Resolver<'a> {
    file: &'a SweepFile,
    fixed: &'a [String],
}

impl Resolver<'_> {
    fn load(&self, sets: impl IntoIterator<Item = String>) -> Result<Loaded, ProfileError> {
        let set: Vec<String> = self.fixed.iter().cloned().chain(sets).collect();
        let folders = profile::default_folders();
        profile::load(&Request { profile: &self.file.base, set: &set, folders: &folders, env: &profile::process_env })
    }

    fn sets(&self, levels: &[usize]) -> Vec<String> {
        let pairs = self.file.axes.iter().zip(levels);
        pairs.map(|(axis, level)| format!("{}={}", axis.path, axis.values[*level])).collect()
    }

    /// A combination that resolves, which the others are held against.
    fn reference(&self, all: &[Vec<usize>]) -> Result<(Loaded, Vec<usize>), Failure> {
        let mut first = None;
        // Neighbours fail alike: what is tried is spread over all of them.
        let stride = (all.len() / REFERENCES).max(1);
        for levels in all.iter().step_by(stride) {
            match self.load(self.sets(levels)) {
                Ok(loaded) => return Ok((loaded, levels.clone())),
                Err(error) => {
                    first.get_or_insert((error, levels));
                }
            }
        }
        Err(match first {
            Some((error, levels)) => Failure::new(Exit::Usage, self.misplaced(&error, levels)),
            None => Failure::new(Exit::Usage, miette::miette!("the sweep has no points")),
        })
    }

    /// The faults of a combination, at the values of the sweep's file that they are about.
    fn misplaced(&self, error: &ProfileError, levels: &[usize]) -> ProfileError {
        self.file.faults(error.faults().map(|fault| {
            let axis = fault.file.as_deref().and_then(|file| self.axis_of(file));
            let key = match axis {
                Some(axis) => format!("server.{}[{}]", self.file.axes[axis].path, levels[axis]),
                None => "server".to_owned(),
            };
            Misplaced { code: fault.code, key, message: fault.message, help: fault.help }
        }))
    }

    /// The axis that an argument set, by what its place is called: `--set #7`.
    fn axis_of(&self, file: &str) -> Option<usize> {
        let number: usize = file.strip_prefix("--set #")?.parse().ok()?;
        number.checked_sub(self.fixed.len() + 1).filter(|axis| *axis < self.file.axes.len())
    }

    /// Each value of each axis beside the reference's other values. One that is wrong by itself is a fault of the file.
    fn variants(&self, reference: &[usize]) -> Result<Vec<(String, Vec<Variant>)>, Failure> {
        let mut wrong: Vec<Misplaced> = Vec::new();
        let mut all = Vec::new();
        for (index, axis) in self.file.axes.iter().enumerate() {
            let mut variants = Vec::new();
            for (level, text) in axis.values.iter().enumerate() {
                let mut levels = reference.to_vec();
                levels[index] = level;
                variants.push(match self.load(self.sets(&levels)) {
                    Ok(loaded) => Variant::Read(value(&loaded)?),
                    Err(error) => {
                        let own = error.faults().filter(|fault| {
                            let here = fault.file.as_deref().and_then(|file| self.axis_of(file)) == Some(index);
                            here && !goes_with_others(&fault.code)
                        });
                        let key = format!("server.{}[{level}]", axis.path);
                        wrong.extend(own.map(|fault| Misplaced {
                            code: fault.code,
                            key: key.clone(),
                            message: fault.message,
                            help: fault.help,
                        }));
                        Variant::Raw(text.clone())
                    }
                });
            }
            all.push((axis.path.clone(), variants));
        }
        if wrong.is_empty() { Ok(all) } else { Err(Failure::new(Exit::Usage, self.file.faults(wrong))) }
    }

    /// Why a point cannot be started.
    fn hindrance(&self, point: &Point) -> Option<String> {
        match self.load(point.sets()) {
            Ok(loaded) => match planned::definition(&loaded.profile) {
                Ok(definition) => planned::hindrance(&loaded, &definition),
                Err(failure) => Some(failure.report.to_string()),
            },
            Err(error) => Some(error.faults().map(|fault| fault.message).collect::<Vec<_>>().join("; ")),
        }
    }
}

/// Whether a fault may be gone beside other values.
fn goes_with_others(code: &str) -> bool {
    ["contradiction", "inherited_across_engines", "missing_key"].iter().any(|word| code.ends_with(word))
}

/// How long a start with its load should take, by earlier runs of the profile; `None` where there are none.
pub(crate) fn expected(base: &Loaded, store: &Store) -> Option<Duration> {
    let past = run::past(store, &base.profile);
    let seconds = match timed(base) {
        Some(load) => past.ready_s(None, None)? + load.as_secs_f64(),
        None => usual_total(&past)?,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

/// How long the load takes where all of it is timed, with a quarter more for what comes before.
fn timed(base: &Loaded) -> Option<Duration> {
    let each = base.profile.bench.values().map(|bench| {
        let steps = bench.concurrency.len().max(bench.rate.len()).max(1);
        bench.duration.map(|duration| duration.mul_f64(1.25 * steps as f64))
    });
    each.sum()
}

fn usual_total(past: &PastStarts) -> Option<f64> {
    let mut totals: Vec<f64> = past.0.iter().filter_map(|start| start.total_s).collect();
    totals.sort_by(f64::total_cmp);
    totals.get(totals.len() / 2).copied()
}

/// So many points of a plan are shown.
const SHOWN: usize = 24;

/// Shows what will be done.
pub(crate) fn tell(file: &SweepFile, planned: &Planned, expected: Option<Duration>, budget: Option<Duration>) {
    let Planned { plan, base } = planned;
    let tried = plan.tried().count();
    let starts = u32::try_from(tried).unwrap_or(u32::MAX);
    let time = expected.map_or_else(
        || "; how long it takes is not known: no earlier run of the profile here".to_owned(),
        |each| format!(", about {} in all", rounded(each.saturating_mul(starts))),
    );
    out::note(format_args!("{} over {}: {tried} points, {tried} starts{time}", file.name, base.profile.name));
    if let Some(confirm) = file.confirm {
        let more = confirm.top.min(starts).saturating_mul(confirm.starts);
        out::note(format_args!("then at most {more} more starts of the {} best", confirm.top));
    }
    if let Some(budget) = budget {
        out::note(format_args!("nothing begins that cannot end within {}", units::duration_text(budget)));
    }
    for point in plan.tried().take(SHOWN) {
        out::note(format_args!("  {}  {}", point.point, point.title()));
    }
    if tried > SHOWN {
        out::note(format_args!("  … and {} more", tried - SHOWN));
    }
    let dropped: Vec<&Point> = plan.0.iter().filter(|point| !point.is_tried()).collect();
    if !dropped.is_empty() {
        out::note(format_args!("{} points are left out", dropped.len()));
    }
    for point in dropped.iter().take(SHOWN) {
        out::note(format_args!("  {}: {}", point.title(), point.dropped.as_deref().unwrap_or_default()));
    }
    if dropped.len() > SHOWN {
        out::note(format_args!("  … and {} more", dropped.len() - SHOWN));
    }
}

/// To the minute, and below ten of them to the second.
fn rounded(time: Duration) -> String {
    let seconds = time.as_secs().max(1);
    units::duration_text(Duration::from_secs(if seconds < 600 { seconds } else { seconds / 60 * 60 }))
}
