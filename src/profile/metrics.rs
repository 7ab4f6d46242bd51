//! Which words `expect` and `tolerance` may speak of.

use crate::measure::{self, METRICS, Metric, Shape};
use crate::units::Measure;

use super::fields::{self, PHASES, PROFILE};

const PARTS: &[&str] = &["mean", "p50", "p90", "p95", "p99", "max"];

/// Settings that a server reports as in effect, beside those that a profile sets.
const EFFECTIVE: &[&str] =
    &["kv_tokens", "kv_bytes", "requests_that_fit", "largest_graph_batch", "speculative.active", "slots", "version"];

/// Why a key names nothing that can be judged.
#[derive(Debug, PartialEq)]
pub(crate) enum Unknown {
    /// A distribution without the part that is meant.
    NeedsPart,
    /// A number has no parts.
    NoParts,
    /// Nothing of that name.
    Name,
}

/// In what the metric `key` is counted.
pub(crate) fn metric(key: &str) -> Result<Measure, Unknown> {
    let (id, part) = match key.split_once('.') {
        Some((id, part)) => (id, Some(part)),
        None => (key, None),
    };
    let of_phase = id.strip_prefix("startup_").and_then(|rest| rest.strip_suffix("_s"));
    let id = if of_phase.is_some_and(|phase| PHASES.contains(&phase)) { EACH_PHASE } else { id };
    if key == EACH_PHASE {
        return Err(Unknown::Name);
    }
    let metric = METRICS.iter().find(|metric| metric.id == id).ok_or(Unknown::Name)?;
    match (metric.shape, part) {
        (Shape::Number, None) => Ok(unit(metric)),
        (Shape::Number, Some(_)) => Err(Unknown::NoParts),
        (Shape::Distribution, Some(part)) if PARTS.contains(&part) => Ok(unit(metric)),
        (Shape::Distribution, Some(_)) => Err(Unknown::Name),
        (Shape::Distribution, None) => Err(Unknown::NeedsPart),
    }
}

/// Why no verdict compares a metric that there is, and what to do about it.
pub(crate) fn never_judged(key: &str) -> Option<(&'static str, &'static str)> {
    let known = metric(key).is_ok().then(|| measure::metric(key)).flatten()?;
    if known.id == EACH_PHASE {
        Some(("the phases of a start-up are shown and not compared", "the start-up as a whole is: `startup_s`"))
    } else if key.ends_with(".max") {
        Some(("the largest value of a run is not compared", "choose a percentile, such as `p90`"))
    } else if known.better.is_none() {
        Some(("neither more nor less of it is better, so it is not compared", "`expect` can ask for a value"))
    } else {
        None
    }
}

/// What stands in the table of metrics for one metric a phase.
const EACH_PHASE: &str = "startup_<phase>_s";

fn unit(metric: &Metric) -> Measure {
    match metric.unit {
        "ms" => Measure::Milliseconds,
        "s" => Measure::Seconds,
        "bytes" => Measure::Bytes,
        "ratio" => Measure::Share,
        _ => Measure::Number,
    }
}

/// Whether `effective.<key>` is something that a server may report: a setting of a profile, or what follows from one.
pub(crate) fn is_effective(key: &str) -> bool {
    EFFECTIVE.contains(&key) || settings().any(|setting| setting == key)
}

/// Parts of a profile that set the server up, and that a server may report under the same words.
const SETTING_UP: &[&str] = &[
    "model",
    "parallel",
    "speculative",
    "memory",
    "context_length",
    "max_running_requests",
    "graphs",
    "attention_backend",
];

/// The settings in those parts: `parallel.tensor`, `context_length`.
fn settings() -> impl Iterator<Item = String> {
    SETTING_UP.iter().filter_map(|key| PROFILE.field(key)).flat_map(|field| match field.shape {
        fields::Shape::Struct(table) | fields::Shape::Short(_, table) => {
            table.fields.iter().map(|inner| format!("{}.{}", field.key, inner.key)).collect()
        }
        _ => vec![field.key.to_owned()],
    })
}

/// All words, for the nearest one.
pub(crate) fn words(effective: bool) -> impl Iterator<Item = String> {
    let metrics = METRICS.iter().flat_map(|metric| match metric.shape {
        _ if metric.id == EACH_PHASE => PHASES.iter().map(|phase| format!("startup_{phase}_s")).collect(),
        Shape::Distribution => PARTS.iter().map(|part| format!("{}.{part}", metric.id)).collect(),
        Shape::Number => vec![metric.id.to_owned()],
    });
    let settings = EFFECTIVE.iter().map(|key| (*key).to_owned()).chain(settings());
    let settings = settings.filter(move |_| effective).map(|key| format!("effective.{key}"));
    metrics.chain(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_need_a_part_and_numbers_have_none() {
        assert_eq!(metric("ttft_ms.p99"), Ok(Measure::Milliseconds));
        assert_eq!(metric("ttft_ms"), Err(Unknown::NeedsPart));
        assert_eq!(metric("ttft_ms.p98"), Err(Unknown::Name));
        assert_eq!(metric("output_tokens_per_s"), Ok(Measure::Number));
        assert_eq!(metric("output_tokens_per_s.p50"), Err(Unknown::NoParts));
        assert_eq!(metric("startup_weights_s"), Ok(Measure::Seconds));
        assert_eq!(metric("startup_lunch_s"), Err(Unknown::Name));
        assert_eq!(metric("startup_<phase>_s"), Err(Unknown::Name));
        assert_eq!(metric("startup_s"), Ok(Measure::Seconds));
        assert_eq!(metric("acceptance_ratio"), Ok(Measure::Share));
        assert_eq!(metric("peak_memory_bytes"), Ok(Measure::Bytes));
    }

    #[test]
    fn a_tolerance_for_what_is_never_compared_is_known_as_such() {
        for key in ["startup_weights_s", "ttft_ms.max", "tokens_per_chunk.p50"] {
            assert!(metric(key).is_ok() && never_judged(key).is_some(), "{key}");
        }
        for key in ["startup_s", "ttft_ms.p99", "ttft_ms.mean", "output_tokens_per_s", "no_such_metric"] {
            assert_eq!(never_judged(key), None, "{key}");
        }
    }

    #[test]
    fn every_word_that_is_offered_is_accepted() {
        for word in words(true) {
            match word.strip_prefix("effective.") {
                Some(key) => assert!(is_effective(key), "{word}"),
                None => assert!(metric(&word).is_ok(), "{word}"),
            }
        }
    }
}
