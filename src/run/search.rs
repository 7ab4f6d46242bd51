//! A search for the highest load under which the limits on single requests are met. Each load that is tried is a step of
//! its own; what was found is the search's own result.

use super::bench::{Bench, Files, measure_step};
use super::error::Stop;
use crate::event::{Event, Scope};
use crate::measure::MetricValue;
use crate::record::model::{Reason, StepResult};
use crate::render::{Arrival, Load, Search, SearchOf, Step, Warning};

/// Measures a step, or searches where it is a search. `done` are the results that are there already.
pub(super) async fn measure(
    bench: &Bench<'_>,
    step: &Step,
    files: &mut Files,
    done: &[StepResult],
) -> Result<StepResult, Stop> {
    match &step.load.arrival {
        Arrival::Search(wanted) => search(bench, step, wanted, files, done).await,
        _ => measure_step(bench, step, files).await,
    }
}

/// Whether `name` is that of a load that the search `step` tries.
pub(super) fn tries(step: &Step, name: &str) -> bool {
    let own = name.strip_prefix(&*step.name).and_then(|rest| rest.strip_prefix('@'));
    matches!(step.load.arrival, Arrival::Search(_)) && own.is_some()
}

async fn search(
    bench: &Bench<'_>,
    step: &Step,
    wanted: &Search,
    files: &mut Files,
    done: &[StepResult],
) -> Result<StepResult, Stop> {
    let bench = &Bench { probe: true, ..*bench };
    let mut bracket = Bracket::default();
    let (mut best, mut worst): (Option<StepResult>, Option<StepResult>) = (None, None);
    while let Some(load) = bracket.next(wanted) {
        let probe = probe(step, wanted, load);
        let known = done.iter().find(|done| done.name == probe.name).cloned();
        let result = match known {
            Some(result) => result,
            None => measure_step(bench, &probe, files).await?,
        };
        if met(&result).is_some_and(|share| share >= wanted.share) && result.valid {
            bracket.passed = Some(load);
            best = Some(result);
        } else {
            bracket.failed = Some(load);
            worst = Some(result);
        }
    }
    let result = found(step, wanted, &bracket, best, worst);
    let scope = Scope::Step(step.name.clone());
    if bracket.failed.is_none() {
        let text = format!("every load up to {} met the limits: the highest is above", number(wanted.to));
        bench.log.emit(scope.clone(), Event::Warning(Warning::new("search_open_end", text)))?;
    }
    bench.log.emit(scope, Event::StepEnded { result: Box::new(result.clone()) })?;
    Ok(result)
}

/// The step that tries a load.
fn probe(step: &Step, wanted: &Search, load: f64) -> Step {
    let arrival = match wanted.of {
        SearchOf::Concurrency => Arrival::Closed { concurrency: load as u32 },
        SearchOf::Rate => Arrival::Open {
            rate: load,
            shape: wanted.shape.clone().unwrap_or_else(|| "poisson".to_owned()),
            burstiness: wanted.burstiness,
        },
    };
    let load = number(load);
    Step { name: format!("{}@{load}", step.name), load: Load { arrival, ..step.load.clone() }, ..step.clone() }
}

/// As it stands in names, with as many digits as a search tells apart.
fn number(load: f64) -> String {
    let rounded = rounded(load);
    format!("{rounded}")
}

/// To four digits.
fn rounded(load: f64) -> f64 {
    if load <= 0.0 || !load.is_finite() {
        return load;
    }
    let scale = 10_f64.powi(3 - load.log10().floor() as i32);
    (load * scale).round() / scale
}

/// The share of requests that met every limit.
fn met(result: &StepResult) -> Option<f64> {
    let value = |id: &str| match result.metrics.get(id) {
        Some(MetricValue::Number(value)) => Some(*value),
        _ => None,
    };
    let of_ok = value("goodput_requests_per_s")? / value("requests_per_s").filter(|rate| *rate > 0.0)?;
    let all = result.counts.ok + result.counts.failed;
    // Rates of the same span: their quotient is one of counts, but for rounding.
    Some((of_ok * result.counts.ok as f64).round() / all.max(1) as f64)
}

/// What the search came to, as a step: its load is what was searched, so that it is compared with the same search.
fn found(
    step: &Step,
    wanted: &Search,
    bracket: &Bracket,
    best: Option<StepResult>,
    worst: Option<StepResult>,
) -> StepResult {
    let id = match wanted.of {
        SearchOf::Concurrency => "highest_concurrency",
        SearchOf::Rate => "highest_requests_per_s",
    };
    let mut reasons = Vec::new();
    if best.is_none() {
        let share = worst.as_ref().and_then(met).map_or(0.0, |share| share * 100.0);
        let mut text = format!(
            "at the lowest load, {}, {share:.1} % of the requests met the limits, and {:.1} % must",
            number(wanted.from),
            wanted.share * 100.0
        );
        if let Some(reason) = worst.as_ref().and_then(|worst| worst.reasons.first()) {
            text.push_str(&format!("; {}", reason.text));
        }
        reasons.push(Reason::new("no_load_met", text));
    }
    let of = best.or(worst);
    let highest = bracket.passed.map_or(MetricValue::Absent(()), MetricValue::Number);
    StepResult {
        name: step.name.clone(),
        valid: reasons.is_empty(),
        reasons,
        workload: step.workload.hash.clone(),
        workload_name: step.workload.name.clone(),
        load: step.load.clone(),
        goodput: step.goodput.clone(),
        load_path: of.as_ref().map(|of| of.load_path.clone()).unwrap_or_default(),
        counts: of.map(|of| of.counts).unwrap_or_default(),
        metrics: [(id.to_owned(), highest)].into(),
        errors: Default::default(),
        counters: Default::default(),
        warmup: None,
        client: None,
        sources: Default::default(),
        acceptance_by_position: Vec::new(),
        probe: false,
    }
}

/// What is known so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bracket {
    /// The highest load that met the limits,
    passed: Option<f64>,
    /// and the lowest that did not.
    failed: Option<f64>,
}

impl Bracket {
    /// The load to try next; `None` when enough is known.
    fn next(&self, wanted: &Search) -> Option<f64> {
        match (self.passed, self.failed) {
            (None, None) => Some(wanted.from),
            (None, Some(_)) => None,
            (Some(passed), None) => (passed < wanted.to).then(|| (passed * 2.0).min(wanted.to)),
            (Some(passed), Some(failed)) => {
                if failed / passed - 1.0 <= wanted.within {
                    return None;
                }
                let middle = match wanted.of {
                    SearchOf::Concurrency => ((passed + failed) / 2.0).floor(),
                    // Rates are alike by their quotient.
                    SearchOf::Rate => rounded((passed * failed).sqrt()),
                };
                (middle > passed && middle < failed).then_some(middle)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(of: SearchOf, from: f64, to: f64, within: f64) -> Search {
        Search { of, from, to, share: 0.95, within, shape: None, burstiness: None }
    }

    /// The loads that are tried where all up to `most` pass.
    fn tried(wanted: &Search, most: f64) -> (Vec<f64>, Option<f64>) {
        let mut bracket = Bracket::default();
        let mut loads = Vec::new();
        while let Some(load) = bracket.next(wanted) {
            loads.push(load);
            if load <= most {
                bracket.passed = Some(load)
            } else {
                bracket.failed = Some(load)
            }
            assert!(loads.len() < 100, "it does not end: {loads:?}");
        }
        (loads, bracket.passed)
    }

    #[test]
    fn requests_in_flight_are_doubled_and_then_halved_to_neighbours() {
        let search = wanted(SearchOf::Concurrency, 1.0, 128.0, 0.001);
        assert_eq!(tried(&search, 21.0), (vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 24.0, 20.0, 22.0, 21.0], Some(21.0)));
        assert_eq!(tried(&search, 0.0), (vec![1.0], None));
        assert_eq!(tried(&search, 500.0).1, Some(128.0));
        for most in 1..=128 {
            assert_eq!(tried(&search, f64::from(most)).1, Some(f64::from(most)));
        }
    }

    #[test]
    fn a_rate_is_found_as_near_as_was_asked() {
        for most in [0.5, 0.7, 3.3, 17.0, 63.0] {
            let (loads, found) = tried(&wanted(SearchOf::Rate, 0.5, 64.0, 0.05), most);
            let found = found.unwrap();
            assert!(found <= most && most / found <= 1.0501, "{found} of {most}");
            assert!(loads.len() <= 14, "{loads:?}");
        }
        assert_eq!(
            (number(5.656_854), number(0.031_415_9), number(128.0)),
            ("5.657".into(), "0.03142".into(), "128".into())
        );
    }
}
