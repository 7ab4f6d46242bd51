//! Why a start takes longer: the phase that does.

use super::super::words::{number, signed_percent};
use crate::record::model::{Cause, Record};

/// The cause of a slower start.
pub(super) fn of(now: &[&Record], was: &[&Record]) -> Option<Cause> {
    let ready = |runs: &[&Record]| mean(runs, |run| run.startup.as_ref()?.ready_s);
    let longer = ready(now)? - ready(was)?;
    let mut phases: Vec<(String, f64, f64)> = Vec::new();
    for phase in now.iter().filter_map(|run| run.startup.as_ref()).flat_map(|startup| &startup.phases) {
        if phases.iter().all(|(name, ..)| *name != phase.name) {
            let after = mean(now, |run| took(run, &phase.name))?;
            phases.push((phase.name.clone(), mean(was, |run| took(run, &phase.name)).unwrap_or(0.0), after));
        }
    }
    phases.sort_by(|one, other| (other.2 - other.1).total_cmp(&(one.2 - one.1)));
    let (name, before, after) = phases.first()?;
    if longer <= 0.0 || after <= before {
        return None;
    }
    let share = ((after - before) / longer).min(1.0);
    let sentence = format!(
        "the start takes longer in its phase {name}: {} s, was {} s, {}",
        number(*after),
        number(*before),
        super::share_words(share)
    );
    let evidence = phases.iter().map(|(name, before, after)| {
        let change = if *before > 0.0 { format!(" ({})", signed_percent(after / before - 1.0)) } else { String::new() };
        format!("{name} {} s, was {} s{change}", number(*after), number(*before))
    });
    Some(Cause { kind: "startup".to_owned(), sentence, evidence: evidence.collect() })
}

fn took(run: &Record, name: &str) -> Option<f64> {
    run.startup.as_ref()?.phases.iter().find(|phase| phase.name == name).map(|phase| phase.s)
}

fn mean(runs: &[&Record], of: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.iter().filter_map(|run| of(run)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
