//! `orch bisect`: the first of ordered values of a setting that is worse.

use super::trial::{Running, Start};
use super::{Exit, Failure, Global, Outcome, ab, out};
use crate::compare;
use crate::record::model::VerdictKind;
use crate::record::{Baseline, Record};
use crate::trial::{Arm, Kind, Slot, Trial};

/// Finds the first of ordered values of a setting, such as versions of an engine, that is worse than the first of them
///
/// The first value is taken as good. One that does not start, gives no valid numbers, or differs by no more than noise
/// could do, is passed over: what is said then is which of several it may be.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch bisect qwen engine 'sglang ==0.5.9' 'sglang ==0.5.12' 'sglang ==0.5.14' 'sglang ==0.5.23'
  orch bisect qwen flags.chunked-prefill-size 8192 6144 4096 2048

Ends with 0 when it did its work, with 5 when the first value gives no numbers, or no other one a word.")]
pub(crate) struct BisectArgs {
    /// The profile
    #[arg(required_unless_present = "resume")]
    profile: Option<String>,
    /// The path of the setting
    #[arg(required_unless_present = "resume")]
    path: Option<String>,
    /// Its values in order, a good one first and a bad one last
    #[arg(required_unless_present = "resume")]
    values: Vec<String>,
    /// Starts of each value that is tried
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100))]
    starts: u32,
    /// Goes on with a search that was interrupted
    #[arg(long, value_name = "ID", conflicts_with_all = ["profile", "path", "values", "starts"])]
    resume: Option<String>,
}

/// What trying a value came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Good,
    Bad,
    /// It may be worse, and noise could do it too.
    Open,
    /// It gave no valid numbers.
    Skipped,
}

impl Tried {
    fn word(self) -> &'static str {
        match self {
            Tried::Good => "not worse",
            Tried::Bad => "worse",
            Tried::Open => "noise allows no word; more `--starts` would tell",
            Tried::Skipped => "no valid numbers",
        }
    }
}

/// What is known of the values, of which the first is good.
struct Search {
    known: Vec<Option<Tried>>,
    /// The last that is known not to be worse.
    good: usize,
    /// The first that is known to be worse; their number while none is.
    bad: usize,
}

impl Search {
    fn new(count: usize) -> Self {
        let mut known = vec![None; count];
        known[0] = Some(Tried::Good);
        Search { known, good: 0, bad: count }
    }

    /// The value to try next: while none is bad, the last; then the one between good and bad that is nearest to their
    /// middle. What was tried is not tried again.
    fn next(&self) -> Option<usize> {
        let mut open = (self.good + 1..self.bad).filter(|place| self.known[*place].is_none());
        if self.bad == self.known.len() {
            return open.next_back();
        }
        let middle = (self.good + self.bad) / 2;
        open.min_by_key(|place| place.abs_diff(middle))
    }

    fn tell(&mut self, place: usize, found: Tried) {
        self.known[place] = Some(found);
        match found {
            Tried::Good => self.good = place,
            Tried::Bad => self.bad = place,
            Tried::Open | Tried::Skipped => {}
        }
    }

    /// What follows; `None` where nothing but the first value gave a word.
    fn conclusion(&self, titles: &[String]) -> Option<String> {
        let between: Vec<String> = (self.good + 1..self.bad)
            .filter_map(|place| Some(format!("{} ({})", titles[place], self.known[place]?.word())))
            .collect();
        let last = format!("the last that is not: {}", titles[self.good]);
        Some(match (self.bad == titles.len(), between.is_empty()) {
            (true, true) => format!("none is worse than {}", titles[0]),
            (true, false) if self.good == 0 => return None,
            (true, false) => format!("none is known to be worse than {}: {}\n{last}", titles[0], between.join(", ")),
            (false, true) => format!("the first that is worse: {}\n{last}", titles[self.bad]),
            (false, false) => {
                format!("the first that is worse is {} or before it: {}\n{last}", titles[self.bad], between.join(", "))
            }
        })
    }
}

pub(crate) fn run(args: BisectArgs, global: &Global) -> Outcome {
    let BisectArgs { profile, path, values, starts, resume } = args;
    let mut running = match (resume, profile, path) {
        (Some(id), ..) => Running::resume_of(Kind::Bisect, &id, global)?,
        (None, Some(profile), Some(path)) => begin(&profile, &path, &values, starts, global)?,
        _ => return Err(Failure::new(Exit::Usage, miette::miette!("which profile and setting?"))),
    };
    let titles: Vec<String> = running.trial.arms.iter().map(|arm| arm.title.clone()).collect();
    if !measure(&mut running, 0)?.iter().any(|record| record.steps.iter().any(|step| step.valid)) {
        let report = miette::miette!(help = "begin with a value that works", "{} gives no valid numbers", titles[0]);
        return Err(Failure::new(Exit::NoMeasurement, report));
    }
    let mut search = Search::new(titles.len());
    while let Some(place) = search.next() {
        let bad = Some(search.bad).filter(|bad| *bad < titles.len());
        let found = try_value(&mut running, place, bad)?;
        out::note(format_args!("{}: {}", titles[place], found.word()));
        search.tell(place, found);
    }
    match search.conclusion(&titles) {
        Some(text) => out::line(text),
        None => {
            let report = miette::miette!(
                help = "`orch list` shows what came of each; more `--starts` let a smaller loss be seen",
                "nothing but {} gave a word: whether one is worse is not known",
                titles[0]
            );
            return Err(Failure::new(Exit::NoMeasurement, report));
        }
    }
    Ok(Exit::Done)
}

fn begin<'a>(
    profile: &str,
    path: &str,
    values: &[String],
    starts: u32,
    global: &'a Global,
) -> Result<Running<'a>, Failure> {
    if values.len() < 2 {
        let report = miette::miette!(help = "a good one first and a bad one last", "two values at least are needed");
        return Err(Failure::new(Exit::Usage, report));
    }
    let (mut arms, mut profiles, mut slots) = (Vec::new(), Vec::new(), Vec::new());
    for (place, value) in values.iter().enumerate() {
        let set = format!("{path}={value}");
        profiles.push(ab::side(profile, std::slice::from_ref(&set))?.yaml);
        arms.push(Arm { name: format!("value-{}", place + 1), title: set });
        slots.extend((1..=starts).map(|start| Slot { arm: place, start }));
    }
    Running::begin(Trial { kind: Kind::Bisect, arms, slots, runs: 1 }, &profiles, global)
}

/// Measures a value; nothing where it gives no valid numbers.
fn measure(running: &mut Running<'_>, arm: usize) -> Result<Vec<Record>, Failure> {
    let slots: Vec<usize> =
        (0..running.trial.slots.len()).filter(|&slot| running.trial.slots[slot].arm == arm).collect();
    for slot in slots {
        if running.start(slot)? != Start::Measured {
            return Ok(Vec::new());
        }
    }
    Ok(running.records()?.swap_remove(arm))
}

/// Tries a value against the first. Where noise allows no word of that, it is held against the one that is known to be bad:
/// if that one is worse than it, the loss that is looked for comes after it.
fn try_value(running: &mut Running<'_>, arm: usize, bad: Option<usize>) -> Result<Tried, Failure> {
    let now = measure(running, arm)?;
    if now.is_empty() {
        return Ok(Tried::Skipped);
    }
    let records = running.records()?;
    let found = against(&now, &records[0]);
    let comes_later = bad.is_some_and(|bad| against(&records[bad], &now) == Tried::Bad);
    Ok(if found == Tried::Open && comes_later { Tried::Good } else { found })
}

/// What runs are, held against others.
fn against(now: &[Record], good: &[Record]) -> Tried {
    let tolerances = now.last().map(compare::tolerances).unwrap_or_default();
    let now: Vec<&Record> = now.iter().collect();
    let judgement = compare::judge_all(&now, Some(&Baseline::of(good.to_vec())), &tolerances);
    match judgement.verdict.kind {
        VerdictKind::Regressed => Tried::Bad,
        VerdictKind::Failed | VerdictKind::Invalid | VerdictKind::NoBaseline => Tried::Skipped,
        VerdictKind::Inconclusive | VerdictKind::HostChanged => Tried::Open,
        VerdictKind::Ok | VerdictKind::Improved => Tried::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches among values of which those from `worse` on are worse and `gone` do not start.
    fn search(count: usize, worse: usize, gone: &[usize]) -> (usize, usize, usize) {
        let (mut search, mut tries) = (Search::new(count), 0);
        while let Some(place) = search.next() {
            tries += 1;
            let found = match gone.contains(&place) {
                true => Tried::Skipped,
                false if place >= worse => Tried::Bad,
                false => Tried::Good,
            };
            search.tell(place, found);
        }
        (search.good, search.bad, tries)
    }

    #[test]
    fn the_first_worse_value_is_found_in_few_tries() {
        for worse in 1..16 {
            let (good, bad, tries) = search(16, worse, &[]);
            assert_eq!((good, bad), (worse - 1, worse));
            assert!(tries <= 5, "{tries}");
        }
        assert_eq!(search(8, 5, &[3, 4]).0, 2);
        assert_eq!(search(8, 5, &[3, 4]).1, 5);
        assert_eq!(search(8, 6, &[7]).1, 6);
        assert_eq!(search(8, 8, &[]), (7, 8, 1));
    }

    #[test]
    fn what_gave_no_word_is_told_and_never_called_good() {
        let titles: Vec<String> = ["v1", "v2", "v3"].map(str::to_owned).into();
        let conclusion = |found: [Option<Tried>; 2]| {
            let mut search = Search::new(3);
            for (place, found) in found.into_iter().enumerate() {
                if let Some(found) = found {
                    search.tell(place + 1, found);
                }
            }
            search.conclusion(&titles)
        };
        let (good, bad, open, gone) = (Some(Tried::Good), Some(Tried::Bad), Some(Tried::Open), Some(Tried::Skipped));
        assert_eq!(conclusion([good, bad]).unwrap(), "the first that is worse: v3\nthe last that is not: v2");
        assert_eq!(conclusion([None, good]).unwrap(), "none is worse than v1");
        for passed in [open, gone] {
            let text = conclusion([passed, bad]).unwrap();
            assert!(text.starts_with("the first that is worse is v3 or before it: v2 ("), "{text}");
            let text = conclusion([good, passed]).unwrap();
            assert!(text.starts_with("none is known to be worse than v1: v3 (") && text.ends_with(": v2"), "{text}");
            assert_eq!(conclusion([passed, passed]), None);
        }
    }
}
