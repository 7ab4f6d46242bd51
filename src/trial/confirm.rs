//! What a suspicious result sets off, and what comes of it: the same settings on a new start, and then those of the
//! baseline on the same host now. A server that was slow for one start is no regression; one that is slow beside a control
//! that is as fast as ever is.

use indexmap::{IndexMap, IndexSet};

use crate::compare::{Judgement, judge, judge_all};
use crate::record::Baseline;
use crate::record::model::{Comparison, Reason, Record, Verdict, VerdictKind};
use crate::units::Tolerance;

/// What was concluded.
#[derive(Clone, Debug, PartialEq)]
pub struct Confirmed {
    /// The verdict, and what it follows from.
    pub judgement: Judgement,
    /// Whether another run would tell more: the control is still wanted.
    pub open: bool,
}

/// Whether a verdict is worth another look: a loss, whether or not noise could do it too.
pub fn is_suspicious(verdict: &Verdict) -> bool {
    matches!(verdict.kind, VerdictKind::Regressed | VerdictKind::Inconclusive)
}

/// What follows from the runs of these settings, all of them, of which the last `again` starts were made because the ones
/// before them looked slow; and from the control where there was one.
pub fn conclude(
    runs: &[&Record],
    again: usize,
    control: Option<&Record>,
    baseline: &Baseline,
    tolerance: &IndexMap<String, Tolerance>,
) -> Confirmed {
    let mut judgement = judge_all(runs, Some(baseline), tolerance);
    let open = is_suspicious(&judgement.verdict);
    let starts: IndexSet<String> = runs.iter().map(|run| run.start_key()).collect();
    if again > 0 && matches!(judgement.verdict.kind, VerdictKind::Ok | VerdictKind::Improved) {
        let text = format!("a new start was not slower: {} starts together", starts.len());
        judgement.verdict.reasons.push(Reason::new("not_confirmed", text));
    }
    if again > 0 && judgement.verdict.kind == VerdictKind::Regressed {
        let second: Vec<&String> = starts.iter().skip(starts.len().saturating_sub(again)).collect();
        let second: Vec<&Record> = runs.iter().copied().filter(|run| second.contains(&&run.start_key())).collect();
        let text = format!("confirmed by a second start ({})", values(&judgement.comparisons, &second));
        judgement.verdict.reasons.push(Reason::new("confirmed", text));
    }
    if let Some(control) = control.filter(|_| open) {
        weigh(&mut judgement, runs, control, baseline, tolerance);
    }
    Confirmed { judgement, open: open && control.is_none() }
}

/// What a control says of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// It has lost as much: the machine is slow.
    Machine,
    /// The runs are slower than it.
    Settings,
    /// Noise allows no word.
    Nothing,
}

/// Holds the runs against the control, and the control against the baseline.
fn weigh(
    judgement: &mut Judgement,
    runs: &[&Record],
    control: &Record,
    baseline: &Baseline,
    tolerance: &IndexMap<String, Tolerance>,
) {
    let then = judge(control, Some(baseline), tolerance);
    let beside = judge_all(runs, Some(&Baseline::of(vec![control.clone()])), tolerance);
    let shown = values(&judgement.comparisons, &[control]);
    let unusable = [VerdictKind::Failed, VerdictKind::Invalid, VerdictKind::NoBaseline];
    let (id, text) = if unusable.contains(&beside.verdict.kind) || unusable.contains(&then.verdict.kind) {
        ("control_unusable", "the control gave no numbers that could be compared".to_owned())
    } else {
        let of = format!("the baseline's own settings now give {shown} on this host");
        match says(judgement, &then, &beside) {
            Says::Machine => {
                to_machine(judgement);
                ("control_slow", format!("{of}, so it is the machine"))
            }
            Says::Settings => ("control_good", format!("{of}, so it is not the machine")),
            Says::Nothing => ("control_undecided", format!("{of}, which does not tell whether it is the machine")),
        }
    };
    // Before the list of what differs.
    let place = judgement.verdict.reasons.iter().position(|reason| reason.id == "differs");
    let place = place.unwrap_or(judgement.verdict.reasons.len());
    judgement.verdict.reasons.insert(place, Reason::new(id, text));
}

/// What the control says of the metrics that are worse: of each, whether it has itself become worse, and whether the runs
/// are worse than it. One metric that the machine does not explain is enough.
fn says(judgement: &Judgement, then: &Judgement, beside: &Judgement) -> Says {
    let word = |of: &Judgement, metric: &Comparison| {
        let same = |each: &&Comparison| each.step == metric.step && each.metric == metric.metric;
        of.comparisons.iter().find(same).map(|each| each.verdict)
    };
    let worse: Vec<&Comparison> =
        judgement.comparisons.iter().filter(|each| each.verdict == judgement.verdict.kind).collect();
    let of = |metric: &&Comparison| match (word(then, metric), word(beside, metric)) {
        (_, Some(VerdictKind::Regressed)) => Says::Settings,
        (Some(VerdictKind::Regressed), Some(VerdictKind::Ok | VerdictKind::Improved)) => Says::Machine,
        _ => Says::Nothing,
    };
    let found: Vec<Says> = worse.iter().map(of).collect();
    match found.as_slice() {
        [] => Says::Nothing,
        found if found.contains(&Says::Settings) => Says::Settings,
        found if found.contains(&Says::Nothing) => Says::Nothing,
        _ => Says::Machine,
    }
}

fn to_machine(judgement: &mut Judgement) {
    judgement.verdict.kind = VerdictKind::HostChanged;
    judgement.verdict.cause = None;
    for comparison in &mut judgement.comparisons {
        if comparison.verdict == VerdictKind::Regressed {
            comparison.verdict = VerdictKind::HostChanged;
        }
    }
}

/// What runs gave of the metric that lost the most.
fn values(comparisons: &[Comparison], runs: &[&Record]) -> String {
    let size = |each: &&Comparison| each.change_ratio.unwrap_or(0.0).abs();
    let lost = comparisons.iter().filter(|each| each.change_ratio.is_some() && each.step != crate::compare::START);
    let worst = lost
        .filter(|each| matches!(each.verdict, VerdictKind::Regressed | VerdictKind::Inconclusive))
        .max_by(|one, other| size(one).total_cmp(&size(other)));
    let Some(worst) = worst else { return "no number".to_owned() };
    let value = |run: &&Record| {
        let step = run.steps.iter().find(|step| step.name == worst.step)?;
        crate::compare::value(step, &worst.metric).map(|value| format!("{value:.1}"))
    };
    let shown: Vec<String> = runs.iter().filter_map(value).collect();
    format!("{} {}", worst.metric, if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::measure::MetricValue;
    use crate::record::fold;
    use crate::record::model::StepResult;
    use crate::record::samples::{entries, result, story};

    fn run(id: &str, output: f64) -> Record {
        let mut record = fold(entries(story())).record;
        record.id = id.to_owned();
        record.startup = None;
        record.left = None;
        let metrics = BTreeMap::from([("output_tokens_per_s".to_owned(), MetricValue::Number(output))]);
        record.steps = vec![StepResult { metrics, ..result("single", 0.0) }];
        record
    }

    fn verdict(runs: &[f64], control: Option<f64>) -> (VerdictKind, bool, Vec<String>) {
        let runs: Vec<Record> =
            runs.iter().enumerate().map(|(place, value)| run(&format!("n{place}"), *value)).collect();
        let control = control.map(|value| run("control", value));
        let baseline = Baseline::of(vec![run("b1", 70.9), run("b2", 70.5), run("b3", 71.1)]);
        let runs: Vec<&Record> = runs.iter().collect();
        let found = conclude(&runs, runs.len() - 1, control.as_ref(), &baseline, &IndexMap::new());
        let ids = found.judgement.verdict.reasons.iter().map(|reason| reason.id.clone()).collect();
        (found.judgement.verdict.kind, found.open, ids)
    }

    #[test]
    fn a_start_that_was_slow_alone_is_no_regression() {
        assert_eq!((verdict(&[60.0], None).0, verdict(&[60.0], None).1), (VerdictKind::Regressed, true));
        let (kind, ..) = verdict(&[60.0, 70.8], None);
        assert_eq!(kind, VerdictKind::Inconclusive);
    }

    #[test]
    fn a_repetition_that_nothing_was_suspected_of_confirms_nothing() {
        let runs = [run("n1", 70.9), run("n2", 70.8)];
        let runs: Vec<&Record> = runs.iter().collect();
        let baseline = Baseline::of(vec![run("b1", 70.9), run("b2", 70.5), run("b3", 71.1)]);
        let found = conclude(&runs, 0, None, &baseline, &IndexMap::new());
        assert_eq!((found.judgement.verdict.kind, found.open), (VerdictKind::Ok, false));
        assert_eq!(found.judgement.verdict.reasons, []);
    }

    #[test]
    fn a_control_that_noise_hides_explains_nothing() {
        // The runs lost 7 %, and the control may have lost 3 %, or nothing.
        let (kind, open, ids) = verdict(&[66.0, 66.2], Some(69.0));
        assert_eq!((kind, open), (VerdictKind::Regressed, false));
        assert!(ids.contains(&"control_undecided".to_owned()), "{ids:?}");
    }

    #[test]
    fn what_is_slow_beside_a_control_as_fast_as_ever_is_regressed() {
        let (kind, open, ids) = verdict(&[37.8, 37.5], Some(70.6));
        assert_eq!((kind, open), (VerdictKind::Regressed, false));
        assert!(ids.contains(&"confirmed".to_owned()) && ids.contains(&"control_good".to_owned()), "{ids:?}");
    }

    #[test]
    fn a_control_that_is_slow_too_is_the_machine() {
        let (kind, _, ids) = verdict(&[57.8, 57.5], Some(58.0));
        assert_eq!(kind, VerdictKind::HostChanged);
        assert!(ids.contains(&"control_slow".to_owned()), "{ids:?}");
    }
}
