//! `orch run` of a profile that says `repeat` or `suspect`: several starts are judged together, and a suspicious result
//! sets off another start, and then the baseline's own settings.

use super::trial::{Running, Start, TRIES, of_code};
use super::{Exit, Failure, Global, Outcome, ab, out, records};
use crate::clock::Clock;
use crate::compare::{self, Judgement};
use crate::event::{Emit, Event, Scope};
use crate::profile::Profile;
use crate::record::model::{Reason, VerdictKind};
use crate::record::{Baseline, Record, RunId};
use crate::report::record as shown;
use crate::trial::{Arm, Kind, Slot, Trial, conclude, is_suspicious};

/// Whether a profile asks for more than one run.
pub(super) fn asked(profile: &Profile) -> bool {
    profile.repeat.starts > 1 || profile.repeat.runs > 1 || profile.suspect.is_some()
}

/// Runs it as often as its profile says.
pub(super) fn run(profile: &Profile, name: &str, set: &[String], strict: bool, json: bool, global: &Global) -> Outcome {
    let (repeat, suspect) = (profile.repeat, profile.suspect.clone());
    if let Some(host) = profile.host.as_deref().filter(|_| repeat.runs > 1) {
        let report = miette::miette!(
            help = "leave `repeat.runs` at 1; `repeat.starts` makes starts of their own there",
            "several measurements of one start are not driven from here on `{host}`"
        );
        return Err(Failure::new(Exit::Usage, report));
    }
    let restarts = suspect.as_ref().map_or(0, |suspect| suspect.restarts);
    let arms = vec![
        Arm { name: "own".to_owned(), title: profile.name.clone() },
        Arm { name: "control".to_owned(), title: "control, the baseline's settings".to_owned() },
    ];
    let own = (1..=repeat.starts + restarts).map(|start| Slot { arm: 0, start });
    let slots = own.chain([Slot { arm: 1, start: 1 }]).collect();
    let trial = Trial { kind: Kind::Repeat, arms, slots, runs: repeat.runs };
    let mut running = Running::begin(trial, &[ab::side_anywhere(name, set)?.yaml], global)?;
    let mut failed = Vec::new();
    for slot in 0..repeat.starts as usize {
        failed.extend(measured(&mut running, slot)?);
    }
    let mut now = running.records()?.swap_remove(0);
    // How the first of them ended is how this ends.
    let Some(first) = now.first().cloned() else { return Err(nothing(failed.first().copied())) };
    records::meet(&running.store);
    let (baseline, warnings) = running.store.baseline_for(&first).map_err(records::failure)?;
    for warning in warnings {
        out::note(format_args!("warning: {}", warning.text));
    }
    let tolerances = compare::tolerances(&first);
    let mut found = conclude(&refs(&now), 0, None, &baseline, &tolerances);
    let mut again = 0;
    for restart in 0..restarts as usize {
        if found.open {
            out::note("\nsuspicious: the same settings are started again");
            match measured(&mut running, repeat.starts as usize + restart)? {
                Some(exit) => failed.push(exit),
                None => again += 1,
            }
            now = running.records()?.swap_remove(0);
            found = conclude(&refs(&now), again, None, &baseline, &tolerances);
        }
    }
    let control = suspect.and_then(|suspect| suspect.control);
    if found.open && control.is_some() && give_control(&running, &baseline, profile.host.as_deref())? {
        out::note("\nstill suspicious: the baseline's own settings are measured on this host now");
        let last = running.trial.slots.len() - 1;
        if running.start(last)? == Start::Measured {
            let control = running.records()?.swap_remove(1);
            found = conclude(&refs(&now), again, control.last(), &baseline, &tolerances);
        }
    }
    let mut judgement = found.judgement;
    without(&mut judgement, &failed);
    keep(&running, &first, &judgement)?;
    tell(&judgement, &now, json)?;
    Ok(Exit::of(&judgement.verdict, None, strict))
}

fn refs(records: &[Record]) -> Vec<&Record> {
    records.iter().collect()
}

fn nothing(exit: Option<i32>) -> Failure {
    let exit = exit.map_or(Exit::NoMeasurement, of_code);
    Failure::new(exit, miette::miette!("no start gave a measurement"))
}

/// How a start ended that gave no measurement. What went wrong, its run has told.
fn measured(running: &mut Running<'_>, slot: usize) -> Result<Option<i32>, Failure> {
    Ok(match running.start(slot)? {
        Start::Measured => None,
        Start::Nothing(exit) => Some(exit),
    })
}

/// A server that does not always start is not measured by the times that it does.
fn without(judgement: &mut Judgement, failed: &[i32]) {
    if failed.is_empty() {
        return;
    }
    let starts = if failed.len() == 1 { "1 start".to_owned() } else { format!("{} starts", failed.len()) };
    let text = format!("{starts} gave no measurement, each tried {TRIES} times");
    judgement.verdict.reasons.insert(0, Reason::new("starts_failed", text));
    judgement.verdict.kind = judgement.verdict.kind.min(VerdictKind::Invalid);
}

/// Puts the profile of the baseline's newest run in the control's place. Returns whether there is one.
fn give_control(running: &Running<'_>, baseline: &Baseline, host: Option<&str>) -> Result<bool, Failure> {
    let Some(newest) = baseline.runs.iter().max_by_key(|run| run.started_at) else { return Ok(false) };
    let id: RunId = newest.id.parse().map_err(Failure::own)?;
    let profile = running.store.run_path(&id).join("profile.yaml");
    if !profile.is_file() {
        out::note(format_args!("no control: {} has no profile.yaml", id.short()));
        return Ok(false);
    }
    // Measured beside the others; a record's profile says nothing of where it was.
    let set: Vec<String> = host.iter().map(|host| format!("host={host}")).collect();
    let control = ab::side_anywhere(&profile.to_string_lossy(), &set)?;
    std::fs::write(running.folder.profile("control"), control.yaml).map_err(Failure::own)?;
    Ok(true)
}

/// Writes the verdict of all runs down as that of the first, which is what a baseline and a history go by.
fn keep(running: &Running<'_>, first: &Record, judgement: &Judgement) -> Result<(), Failure> {
    let failed = judgement.verdict.reasons.iter().any(|reason| reason.id == "starts_failed");
    if judgement.verdict == first.verdict || !(failed || is_suspicious(&first.verdict)) {
        return Ok(());
    }
    let id: RunId = first.id.parse().map_err(Failure::own)?;
    let clock = Clock::system();
    let folder = running.store.reopen(&id, &clock).map_err(records::failure)?;
    let judged =
        Event::Judged { verdict: judgement.verdict.clone(), comparisons: judgement.comparisons.clone(), failure: None };
    let ended = Event::RunEnded { complete: true, left: first.left.clone() };
    for event in [judged, ended] {
        folder.journal.emit(Scope::Run, event).map_err(|error| records::failure(error.into()))?;
    }
    folder.save().map_err(records::failure)?;
    records::meet(&running.store);
    Ok(())
}

fn tell(judgement: &Judgement, now: &[Record], json: bool) -> Result<(), Failure> {
    if json {
        out::line(serde_json::to_string_pretty(judgement).map_err(Failure::own)?);
        return Ok(());
    }
    let steps = now.last().map(|record| record.steps.as_slice()).unwrap_or_default();
    out::text(format!(
        "\n{}\n{}",
        shown::verdict(&judgement.verdict),
        shown::comparisons(&judgement.comparisons, steps)
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::model::Verdict;

    #[test]
    fn starts_that_gave_nothing_are_counted_and_make_the_whole_invalid() {
        let judged = |failed: &[i32]| {
            let verdict = Verdict { kind: VerdictKind::Ok, reasons: Vec::new(), cause: None };
            let mut judgement = Judgement { verdict, comparisons: Vec::new(), differences: Vec::new() };
            without(&mut judgement, failed);
            judgement.verdict
        };
        assert_eq!((judged(&[]).kind, judged(&[]).reasons.len()), (VerdictKind::Ok, 0));
        let verdict = judged(&[4, 4]);
        assert_eq!((verdict.kind, verdict.reasons[0].id.as_str()), (VerdictKind::Invalid, "starts_failed"));
        assert!(verdict.reasons[0].text.starts_with("2 starts "), "{verdict:?}");
    }
}
