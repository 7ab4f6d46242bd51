//! Why it became slower: by what the engine counted, not by what differs. The throughput is a product, and the factor
//! that fell says where the loss is; the differences that can act on that factor are then named, and no others.

mod figures;
mod settings;
mod startup;
#[cfg(test)]
mod tests;

use super::words::{number, percent, signed_percent};
use super::{Difference, START};
use crate::record::model::{Cause, Comparison, Record, StepResult, VerdictKind};
use figures::{Both, Figures, Part, parts};
pub(super) use settings::{Likely, likely};

/// A part that explains less than this share of a loss is not named as its cause.
const NAMED: f64 = 0.5;

/// A second part is told from this share on.
const TOLD: f64 = 0.25;

/// From this share on it is all of the loss.
const ALL: f64 = 0.9;

/// A share of requests, hits or steps that changed by less is the same.
const SAME_SHARE: f64 = 0.05;

/// Where a loss is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A step gives a request fewer tokens: fewer drafts are accepted.
    Acceptance,
    /// The model's steps take longer.
    StepTime,
    /// Because the device's clocks are lower.
    Clocks,
    /// Because fewer of them run as captured graphs.
    Graphs,
    /// Fewer requests are in a step.
    Batch,
    /// Because the server runs fewer at once than before.
    Cap,
    /// Because they wait in its queue.
    Queue,
    /// The time to the first token.
    Prefill,
    /// Because less of the prompts is found in the cache.
    Cache,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Acceptance => "acceptance",
            Kind::StepTime => "step_time",
            Kind::Clocks => "clocks",
            Kind::Graphs => "graphs",
            Kind::Batch => "batch",
            Kind::Cap => "cap",
            Kind::Queue => "queue",
            Kind::Prefill => "prefill",
            Kind::Cache => "cache",
        }
    }
}

/// The runs of both sides.
pub(super) struct Sides<'a> {
    pub(super) now: &'a [&'a Record],
    pub(super) was: &'a [&'a Record],
}

/// What was found: where the loss is and in how many words. `kind` is `None` for the start-up.
pub(super) struct Named {
    pub(super) cause: Cause,
    pub(super) kind: Option<Kind>,
}

/// The cause of what the comparisons found, if the counters tell one.
pub(super) fn of(
    lead: &Record,
    sides: &Sides<'_>,
    comparisons: &[Comparison],
    differences: &[Difference],
) -> Option<Named> {
    if let Some(step) = lead.steps.iter().find(|step| is_capped(step)) {
        return of_cap(lead, sides, &step.name, differences);
    }
    let lost = comparisons.iter().filter(|each| each.verdict == VerdictKind::Regressed);
    let size = |each: &&Comparison| each.change_ratio.map_or(f64::INFINITY, |change| change.ln_1p().abs());
    let worst = lost.clone().filter(|each| each.step != START).max_by(|one, other| size(one).total_cmp(&size(other)));
    match worst {
        Some(worst) => {
            let loss = size(&worst);
            of_step(&figures(sides, &worst.step), worst, loss, sides, differences)
        }
        None if lost.clone().next().is_some() => {
            startup::of(sides.now, sides.was).map(|cause| Named { cause, kind: None })
        }
        None => None,
    }
}

fn figures<'a>(sides: &Sides<'a>, step: &str) -> Figures<'a> {
    let steps = |runs: &[&'a Record]| -> Vec<&'a StepResult> {
        runs.iter().filter_map(|run| run.steps.iter().find(|each| each.name == step)).collect()
    };
    Figures { now: steps(sides.now), was: steps(sides.was) }
}

/// A step that asked for more at once than the server runs is not valid, and the reason is told all the same.
fn is_capped(step: &StepResult) -> bool {
    step.reasons.iter().any(|reason| reason.id == "over_running_cap")
}

fn of_cap(lead: &Record, sides: &Sides<'_>, step: &str, differences: &[Difference]) -> Option<Named> {
    let (was, now) = caps(sides, lead);
    let figures = figures(sides, step);
    let now = now?;
    let before = was.filter(|was| *was != now).map(|was| format!(", was {was}")).unwrap_or_default();
    let mut sentence = format!("the server runs {now} requests at once{before}, and `{step}` asks for more");
    sentence.push_str(&because(Kind::Cap, differences));
    let evidence = ["requests_per_step", "output_tokens_per_s", "waiting_ratio"];
    let evidence = evidence.iter().filter_map(|id| Some(told(id, figures.both(id)?))).collect();
    Some(Named { cause: Cause { kind: "cap".to_owned(), sentence, evidence }, kind: Some(Kind::Cap) })
}

/// How many requests the server runs at once by its own word, before and now.
fn caps(sides: &Sides<'_>, lead: &Record) -> (Option<f64>, Option<f64>) {
    let read = |run: &Record| {
        let cap = run.effective.iter().find(|each| each.key == "max_running_requests");
        cap.and_then(|cap| cap.read.as_ref()).and_then(serde_json::Value::as_f64)
    };
    (sides.was.iter().rev().find_map(|run| read(run)), read(lead))
}

fn of_step(
    figures: &Figures<'_>,
    worst: &Comparison,
    loss: f64,
    sides: &Sides<'_>,
    differences: &[Difference],
) -> Option<Named> {
    let output = figures.both("output_tokens_per_s").filter(|both| both.was > 0.0 && both.now > 0.0);
    // Where requests come at a rate, the throughput is the load's own and only latencies tell.
    let total = output.map(Both::loss).filter(|total| *total > 0.5 * loss);
    let speculates = |run: &&Record| run.profile.get("speculative").is_some_and(|asked| !asked.is_null());
    let speculates = sides.now.iter().any(&speculates) || sides.was.iter().any(&speculates);
    let mut parts = parts(figures, speculates);
    parts.sort_by(|one, other| other.loss.total_cmp(&one.loss));
    let capped = sides.now.last().is_some_and(|lead| matches!(caps(sides, lead), (Some(was), Some(now)) if now < was));
    let of_latency = || latency(figures, worst).map(|(kind, both)| (kind, None, both, loss));
    let of_throughput = || {
        let total = total?;
        let first = parts.first().filter(|part| part.loss > NAMED * total)?;
        Some((refine(figures, first, total, capped), Some(*first), first.both, total))
    };
    let found = of_throughput().or_else(of_latency).or_else(|| {
        // A decode that became slower although the throughput is the load's own.
        let decode = parts.iter().filter(|part| part.kind != Kind::Prefill && part.kind != Kind::Batch);
        let first = *decode.max_by(|one, other| one.loss.total_cmp(&other.loss))?;
        (first.loss > NAMED * loss).then(|| (refine(figures, &first, loss, capped), Some(first), first.both, loss))
    });
    let (kind, part, both, total) = found?;
    let (kind, what) = describe(figures, kind, part.as_ref(), both, sides);
    let share = part.map_or(1.0, |part| part.loss / total);
    let mut sentence = format!("`{}`: {what}: {}", worst.step, share_words(share));
    sentence.push_str(&because(kind, differences));
    if let Some(second) = parts.iter().find(|other| Some(other.kind) != part.map(|part| part.kind))
        && part.is_some()
        && second.loss > TOLD * total
    {
        let Part { name, both, loss, .. } = second;
        let text = format!("; {name} {}, were {}: {}", number(both.now), number(both.was), share_words(loss / total));
        sentence.push_str(&text);
    }
    let evidence = evidence(figures, &parts, total);
    Some(Named { cause: Cause { kind: kind.word().to_owned(), sentence, evidence }, kind: Some(kind) })
}

/// What is behind a factor that fell: clocks or graphs behind slower steps, the prompts' part behind fewer of them, a cap
/// or a queue behind fewer requests in each.
fn refine(figures: &Figures<'_>, part: &Part, total: f64, capped: bool) -> Kind {
    let waits = waits(figures) || (capped && part.kind != Kind::StepTime);
    let first_token = figures.first_token_share().is_some_and(|share| share > NAMED);
    match part.kind {
        Kind::StepTime | Kind::Prefill | Kind::Batch if first_token && !waits => match cache_fell(figures) {
            true => Kind::Cache,
            false => Kind::Prefill,
        },
        Kind::StepTime => {
            let clocks = figures.counters("clock_mhz").filter(|both| both.now > 0.0 && both.was > 0.0);
            let in_graph = figures.both("in_graph_ratio");
            match (clocks, in_graph) {
                (Some(clocks), _) if clocks.loss() > NAMED * part.loss.min(total) => Kind::Clocks,
                (_, Some(graphs)) if graphs.was - graphs.now > SAME_SHARE => Kind::Graphs,
                _ => Kind::StepTime,
            }
        }
        Kind::Batch | Kind::Prefill if waits => Kind::Queue,
        kind => kind,
    }
}

/// Whether requests wait in the server's queue more than before.
fn waits(figures: &Figures<'_>) -> bool {
    let more = |both: Both, least: f64| both.now - both.was > least;
    let queue = figures.both("engine_queue_ms").zip(figures.mean_ms("ttft_ms"));
    queue.is_some_and(|(queue, first)| queue.now - queue.was > NAMED * (first.now - first.was) && more(queue, 1.0))
        || figures.both("waiting_ratio").is_some_and(|waiting| more(waiting, 2.0 * SAME_SHARE))
}

fn cache_fell(figures: &Figures<'_>) -> bool {
    figures.both("cache_hit_ratio").is_some_and(|hits| hits.was - hits.now > SAME_SHARE)
}

/// The cause of a latency where the throughput tells nothing.
fn latency(figures: &Figures<'_>, worst: &Comparison) -> Option<(Kind, Both)> {
    let first = figures.mean_ms("ttft_ms")?;
    let in_first = worst.metric.starts_with("ttft")
        || (worst.metric.starts_with("e2e") && figures.first_token_share().is_some_and(|share| share > NAMED));
    if !in_first {
        return None;
    }
    Some(match (waits(figures), cache_fell(figures)) {
        (true, _) => (Kind::Queue, first),
        (false, true) => (Kind::Cache, first),
        (false, false) => (Kind::Prefill, first),
    })
}

/// The kind, made more exact where the server's own words allow, and what fell.
fn describe(figures: &Figures<'_>, kind: Kind, part: Option<&Part>, both: Both, sides: &Sides<'_>) -> (Kind, String) {
    let plain = |name: &str, both: Both| {
        format!("{name} {}, were {} ({})", number(both.now), number(both.was), signed_percent(both.change()))
    };
    let first = figures
        .mean_ms("ttft_ms")
        .map(|first| format!(", and the first token comes after {} ms, was {}", number(first.now), number(first.was)))
        .unwrap_or_default();
    let text = match kind {
        Kind::Acceptance => {
            let length = figures.both("acceptance_length").unwrap_or(both);
            plain("accepted tokens per step are", length)
        }
        Kind::Clocks => {
            let clocks = figures.counters("clock_mhz").unwrap_or(both);
            plain("the clocks are at MHz", clocks)
        }
        Kind::Graphs => {
            let graphs = figures.both("in_graph_ratio").unwrap_or(both);
            format!("{} of the decode steps run as captured graphs, were {}", percent(graphs.now), percent(graphs.was))
        }
        Kind::Cache => {
            let hits = figures.both("cache_hit_ratio").unwrap_or(both);
            let found =
                format!("{} of the prompts' tokens come from the cache, were {}", percent(hits.now), percent(hits.was));
            format!("{found}{first}")
        }
        Kind::Queue | Kind::Batch => {
            let lead = sides.now.last();
            let (was, now) = lead.map_or((None, None), |lead| caps(sides, lead));
            if let (Some(was), Some(now)) = (was, now)
                && now < was
            {
                let text = format!("the server runs {now} requests at once, was {was}{first}");
                return (Kind::Cap, text);
            }
            match kind {
                Kind::Queue => format!("requests wait in the server's queue{first}"),
                _ => plain("requests per step are", both),
            }
        }
        Kind::Prefill => match figures.mean_ms("ttft_ms") {
            Some(first) => plain("ms to the first token are", first),
            None => plain("requests that decode are", both),
        },
        Kind::StepTime | Kind::Cap => plain(&format!("{} are", part.map_or("steps/s", |part| part.name)), both),
    };
    (kind, text)
}

/// What differs and can act on this: directly, else perhaps, else nothing.
fn because(kind: Kind, differences: &[Difference]) -> String {
    let of = |wanted: Likely| -> Vec<String> {
        let fitting = differences.iter().filter(|each| likely(each, kind) == wanted);
        // What the server made of a setting follows from it.
        let (made, asked): (Vec<_>, Vec<_>) = fitting.partition(|each| each.path.starts_with("effective."));
        let chosen = if asked.is_empty() { made } else { asked };
        chosen.iter().take(3).map(|each| code(each)).collect()
    };
    let (directly, perhaps) = (of(Likely::Directly), of(Likely::Perhaps));
    match (directly.is_empty(), perhaps.is_empty()) {
        (false, _) => format!(", because {}", directly.join(" and ")),
        (true, false) => format!(". What differs and could do that: {}", perhaps.join(", ")),
        (true, true) if differences.is_empty() => ", with the same settings, versions and host".to_owned(),
        (true, true) => ", and nothing that differs is known to act on that".to_owned(),
    }
}

/// A difference in a sentence.
fn code(difference: &Difference) -> String {
    let text = difference.to_string();
    match text.split_once(" is ") {
        Some((path, rest)) => format!("`{path}` is {rest}"),
        None => text,
    }
}

fn evidence(figures: &Figures<'_>, parts: &[Part], total: f64) -> Vec<String> {
    let mut evidence: Vec<String> = parts
        .iter()
        .map(|part| {
            let Part { name, both, loss, .. } = part;
            let share = if *loss > 0.0 { format!(": {}", share_words(loss / total)) } else { String::new() };
            format!("{name} {}, was {} ({}){share}", number(both.now), number(both.was), signed_percent(both.change()))
        })
        .collect();
    let more = ["acceptance_length", "cache_hit_ratio", "in_graph_ratio", "engine_queue_ms", "waiting_ratio"];
    evidence.extend(more.iter().filter_map(|id| Some(told(id, figures.both(id)?))));
    if let Some(first) = figures.first_accepted() {
        let text = format!("the first draft is accepted in {}, was {}", percent(first.now), percent(first.was));
        evidence.push(text);
    }
    for (name, counter) in [("clocks, MHz", "clock_mhz"), ("power, W", "power_w")] {
        evidence.extend(figures.counters(counter).map(|both| told(name, both)));
    }
    if let (Some(first), Some(whole)) = (figures.mean_ms("ttft_ms"), figures.mean_ms("e2e_ms")) {
        evidence.push(told("ms to the first token", first));
        evidence.push(told("ms to the last token", whole));
    }
    evidence
}

fn told(name: &str, both: Both) -> String {
    format!("{name} {}, was {}", number(both.now), number(both.was))
}

/// A share of a loss in words.
fn share_words(share: f64) -> String {
    match share {
        share if share >= ALL => "all of the loss".to_owned(),
        share => format!("{:.0} % of the loss", share * 100.0),
    }
}
