//! Which charts a run has, and what stands on them.

use super::chart::{Axis, Change, Drawn, Part, Scale, Series, bar, changes, lines};
use super::{Run, Samples};
use crate::measure::MetricValue;
use crate::record::model::{Comparison, Startup, StepResult, VerdictKind};
use crate::render::Arrival;
use crate::report::number::{self, amount};
use crate::report::record::label;

/// So many divisions a power of ten has in a distribution.
const PER_DECADE: f64 = 12.0;

/// The chart that says most of a run, as a file of its own: what changed, else how long requests took, else how long the
/// start did. `None` where there is nothing of the three.
pub fn svg(run: &Run) -> Option<String> {
    let drawn = comparisons(&run.record.comparisons)
        .or_else(|| distributions(&run.samples).into_iter().next().map(|(_, drawn)| drawn))
        .or_else(|| run.record.startup.as_ref().and_then(startup))?;
    let drawn = drawn.svg;
    // A file of its own has no page to take its style from.
    let inside = drawn.find('>')? + 1;
    Some(format!("{}<style>{}</style>{}\n", &drawn[..inside], super::STYLE, &drawn[inside..]))
}

/// How long each phase of the start took.
pub(super) fn startup(startup: &Startup) -> Option<Drawn> {
    let part = |phase: &crate::record::model::PhaseTime| Part {
        name: phase.name.clone(),
        value: phase.s,
        tip: format!("{}: {} s", phase.name, amount(phase.s)),
    };
    bar("time of each phase of the start", &startup.phases.iter().map(part).collect::<Vec<_>>(), "s")
}

/// The memory that was left, phase by phase, of each rank.
pub(super) fn memory(startup: &Startup) -> Option<Drawn> {
    let mut series: Vec<Series> = Vec::new();
    for (index, point) in startup.memory.iter().enumerate() {
        let name = format!("rank {}", point.rank);
        let at = (index as f64, point.free_gb);
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(at),
            None => series.push(Series { name, points: vec![at] }),
        }
    }
    // A line needs two points.
    series.retain(|series| series.points.len() > 1);
    let x = Axis { title: "readings, in their order", unit: "", scale: Scale::Linear };
    lines("memory left during the start", &series, x, Axis { title: "GB left", unit: "GB", scale: Scale::Linear })
}

/// How the latencies of the steps are spread, each metric on a chart of its own.
pub(super) fn distributions(samples: &[Samples]) -> Vec<(&'static str, Drawn)> {
    let of = |title: &'static str, of: fn(&Samples) -> &[f64]| {
        let series = samples.iter().map(|step| Series { name: step.step.clone(), points: spread(of(step)) });
        let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
        let x = Axis { title: "ms", unit: "ms", scale: Scale::Log };
        let y = Axis { title: "share of the requests, %", unit: "% of the requests", scale: Scale::Linear };
        lines(title, &series, x, y).map(|drawn| (title, drawn))
    };
    [
        of("Time to the first token", |step| &step.ttft_ms),
        of("Time per output token", |step| &step.tpot_ms),
        of("Time to the end", |step| &step.e2e_ms),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Values by powers of ten, divided: the middle of each division, and the share of the values in it, in percent.
pub(super) fn spread(values: &[f64]) -> Vec<(f64, f64)> {
    let mut counts = std::collections::BTreeMap::<i64, u64>::new();
    let usable = values.iter().filter(|value| value.is_finite() && **value > 0.0);
    let mut all = 0_u64;
    for value in usable {
        *counts.entry((value.log10() * PER_DECADE).floor() as i64).or_default() += 1;
        all += 1;
    }
    let (Some((first, _)), Some((last, _))) = (counts.first_key_value(), counts.last_key_value()) else {
        return Vec::new();
    };
    // A division without any value is one with a share of zero, and one beyond each end closes the shape.
    let division = |index: i64| {
        let middle = 10_f64.powf((index as f64 + 0.5) / PER_DECADE);
        (middle, counts.get(&index).copied().unwrap_or(0) as f64 * 100.0 / all as f64)
    };
    (first - 1..=last + 1).map(division).collect()
}

/// How the load went, step by step.
pub(super) fn over_time(run: &Run) -> Option<Drawn> {
    let mut series: Vec<Series> = Vec::new();
    for point in &run.load {
        let at = (point.at_s, point.chunks_per_s);
        match series.iter_mut().find(|series| series.name == point.step) {
            Some(series) => series.points.push(at),
            None => series.push(Series { name: point.step.clone(), points: vec![at] }),
        }
    }
    series.retain(|series| series.points.len() > 1);
    lines("the load over time", &series, seconds(), Axis { title: "chunks/s", unit: "chunks/s", scale: Scale::Linear })
}

/// What the GPUs drew.
pub(super) fn power(run: &Run) -> Option<Drawn> {
    let series = [Series { name: "all GPUs".to_owned(), points: run.power_w.clone() }];
    let some = run.power_w.len() > 1;
    let y = Axis { title: "W", unit: "W", scale: Scale::Linear };
    some.then(|| lines("power over time", &series, seconds(), y)).flatten()
}

fn seconds<'a>() -> Axis<'a> {
    Axis { title: "seconds since the run began", unit: "s", scale: Scale::Linear }
}

/// Throughput against concurrency or rate, where several steps differ in it.
pub(super) fn ladder(steps: &[StepResult]) -> Option<Drawn> {
    let valid = || steps.iter().filter(|step| step.valid);
    let closed =
        || valid().filter_map(|step| Some((f64::from(concurrency(step)?), number_of(step, "output_tokens_per_s")?)));
    let open = || {
        valid().filter_map(|step| {
            Some((
                rate(step)?,
                number_of(step, "goodput_requests_per_s").or_else(|| number_of(step, "requests_per_s"))?,
            ))
        })
    };
    let sorted = |points: Vec<(f64, f64)>| {
        let mut points = points;
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    };
    let (closed, open) = (sorted(closed().collect()), sorted(open().collect()));
    let axis = |title, unit| Axis { title, unit, scale: Scale::Linear };
    if closed.len() > 1 {
        let series = [Series { name: "output tokens/s".to_owned(), points: closed }];
        return lines(
            "throughput against concurrency",
            &series,
            axis("requests at a time", "at a time"),
            axis("tokens/s", "tok/s"),
        );
    }
    let series = [Series { name: "good requests/s".to_owned(), points: open }];
    let some = series[0].points.len() > 1;
    some.then(|| {
        lines("goodput against rate", &series, axis("requests/s asked", "asked"), axis("requests/s", "requests/s"))
    })
    .flatten()
}

fn concurrency(step: &StepResult) -> Option<u32> {
    match step.load.arrival {
        Arrival::Closed { concurrency } => Some(concurrency),
        _ => None,
    }
}

fn rate(step: &StepResult) -> Option<f64> {
    match &step.load.arrival {
        Arrival::Open { rate, .. } => Some(*rate),
        _ => None,
    }
}

fn number_of(step: &StepResult, id: &str) -> Option<f64> {
    match step.metrics.get(id)? {
        MetricValue::Number(value) => Some(*value),
        _ => None,
    }
}

/// Each compared metric with how much it changed, in the band of what could be seen.
pub(super) fn comparisons(all: &[Comparison]) -> Option<Drawn> {
    let one = |each: &Comparison| {
        let change = each.change_ratio?;
        Some(Change {
            name: format!("{}  {}", each.step, label(&each.metric)),
            change,
            can_see: each.can_see_ratio,
            class: match each.verdict {
                VerdictKind::Regressed => "worse",
                VerdictKind::Improved => "better",
                _ => "same",
            },
            tip: format!(
                "{} {}: {}, was {} ({}); can see {}",
                each.step,
                label(&each.metric),
                number::optional(each.now),
                number::optional(each.was),
                number::change(Some(change)),
                number::share(each.can_see_ratio)
            ),
        })
    };
    changes("change of each metric against the baseline", &all.iter().filter_map(one).collect::<Vec<_>>())
}
