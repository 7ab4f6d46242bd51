//! What may be compared with what. A *hard* difference makes a comparison meaningless; everything else is a suspect.

use crate::record::Baseline;
use crate::record::baselines::same_load;
use crate::record::model::{Reason, Record, StepResult};

/// The runs of the baseline whose `step` may be compared with `step`, or what keeps every one of them from it.
pub(super) fn alike<'a>(
    record: &Record,
    step: &StepResult,
    baseline: &'a Baseline,
) -> Result<Vec<(&'a Record, &'a StepResult)>, Vec<Reason>> {
    let mut usable = Vec::new();
    let mut reasons = Vec::new();
    for run in baseline.for_step(&step.name)? {
        let there = run.steps.iter().find(|other| other.name == step.name);
        match there {
            // That it did not come to its end is why it lacks the step.
            None if !run.complete || run.failure.is_some() => reasons.extend(run_difference(record, run)),
            Some(other) => match hard_difference(record, step, run, other) {
                Some(reason) if reasons.contains(&reason) => {}
                Some(reason) => reasons.push(reason),
                None => usable.push((run, other)),
            },
            None => {
                reasons.push(Reason::new("step_not_in_baseline", format!("{} has no step `{}`", run.id, step.name)));
            }
        }
    }
    if usable.is_empty() { Err(reasons) } else { Ok(usable) }
}

/// The runs among `runs` that measured `step` of `record` again, itself among them.
pub(super) fn again<'a>(record: &Record, step: &StepResult, runs: &[&'a Record]) -> Vec<(&'a Record, &'a StepResult)> {
    let same = |run: &&'a Record| {
        let run: &'a Record = run;
        let other = run.steps.iter().find(|other| other.name == step.name)?;
        hard_difference(record, step, run, other).is_none().then_some((run, other))
    };
    runs.iter().filter_map(same).collect()
}

/// What makes a comparison meaningless, if anything does.
fn hard_difference(record: &Record, step: &StepResult, run: &Record, other: &StepResult) -> Option<Reason> {
    run_difference(record, run).or_else(|| {
        let name = &step.name;
        if !other.valid {
            Some(Reason::new("baseline_invalid", format!("`{name}` is not valid in {}", run.id)))
        } else if step.workload != other.workload {
            Some(Reason::new("workload_differs", format!("the workload of `{name}` is not the one of {}", run.id)))
        } else if !same_load(&step.load, &other.load) {
            Some(Reason::new("load_differs", format!("the load of `{name}` is not the one of {}", run.id)))
        } else {
            None
        }
    })
}

/// The same, for what all steps of a run share.
pub(super) fn run_difference(record: &Record, run: &Record) -> Option<Reason> {
    let simulated = |record: &Record| record.engine.as_ref().is_some_and(|engine| engine.simulated);
    if !run.complete || run.failure.is_some() {
        let why = run.failure.as_ref().map(|failure| failure.text.clone());
        let why = why.or_else(|| run.verdict.reasons.first().map(|reason| reason.text.clone()));
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        Some(Reason::new("baseline_incomplete", format!("{} did not come to its end{why}", run.id)))
    } else if simulated(record) != simulated(run) {
        let which = if simulated(record) { "this run's engine" } else { "the engine of the baseline" };
        Some(Reason::new("simulated_differs", format!("{which} is simulated, the other is real")))
    } else if record.metrics_version != run.metrics_version {
        let text = format!(
            "metrics are defined by version {} here and by version {} in {}",
            record.metrics_version, run.metrics_version, run.id
        );
        Some(Reason::new("metrics_version_differs", text))
    } else if record.host.hardware != run.host.hardware {
        let text = format!("other hardware: {}, was {}", record.host.hardware, run.host.hardware);
        Some(Reason::new("hardware_differs", text))
    } else {
        None
    }
}
