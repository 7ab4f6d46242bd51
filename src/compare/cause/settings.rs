//! Which differences can act on what. A difference that cannot is no suspect, however much it differs.

use super::super::Difference;
use super::Kind;

/// How likely a difference is behind a loss of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Likely {
    /// It acts on exactly this.
    Directly,
    /// It may act on this among other things.
    Perhaps,
    /// It acts on something else.
    No,
}

use Kind::{Acceptance, Batch, Cache, Cap, Clocks, Graphs, Prefill, Queue, StepTime};

/// Beginnings of paths, what they act on directly, and what they may act on. The first that fits counts.
const ACTS: &[(&[&str], &[Kind], &[Kind])] = &[
    (&["speculative"], &[Acceptance], &[]),
    (&["effective.speculative", "effective.draft"], &[Acceptance], &[]),
    (&["max_running_requests", "effective.max_running"], &[Cap, Queue, Batch], &[]),
    (&["memory.fraction", "context_length", "effective.kv", "effective.context"], &[], &[Cap, Queue, Batch, Cache]),
    (&["memory.kv_dtype"], &[], &[StepTime, Batch, Queue, Acceptance]),
    (&["graphs", "effective.graph"], &[Graphs], &[StepTime]),
    (&["attention_backend"], &[StepTime, Prefill], &[Graphs]),
    (&["memory.gpu_layers", "parallel"], &[StepTime, Prefill], &[Batch]),
    (&["model"], &[], &[Acceptance, StepTime, Prefill]),
    (&["engine", "provenance.driver", "provenance.image"], &[], &[Acceptance, StepTime, Prefill, Graphs, Batch, Cache]),
    (&["provenance.clocks", "provenance.power"], &[Clocks], &[StepTime]),
    (&["env", "provenance", "launch"], &[], &[StepTime, Prefill, Graphs]),
    (&["host"], &[], &[StepTime, Prefill, Clocks]),
];

/// Words in the names of engines' own flags, as in [`ACTS`].
const FLAGS: &[(&[&str], &[Kind], &[Kind])] = &[
    (&["log", "metrics", "served", "api-key", "parser", "template", "host", "port", "alias"], &[], &[]),
    (&["radix", "prefix", "cache-reuse", "cache-prompt"], &[Cache], &[Prefill]),
    (&["spec", "draft", "mtp", "eagle", "ngram"], &[Acceptance], &[StepTime]),
    (&["chunk", "prefill", "ubatch"], &[Prefill], &[StepTime]),
    (&["graph", "eager"], &[Graphs], &[StepTime]),
    (&["thread", "numa", "attention", "backend", "quant", "flash"], &[StepTime, Prefill], &[]),
    (&["running", "max-num-seqs", "slots", "schedule", "batch", "mamba"], &[Cap, Queue, Batch], &[]),
];

/// What a flag of which nothing is known may act on.
const ANY_FLAG: &[Kind] = &[StepTime, Prefill, Batch, Queue, Graphs];

/// How likely `difference` is behind a loss of `kind`.
pub(crate) fn likely(difference: &Difference, kind: Kind) -> Likely {
    let path = difference.path.as_str();
    let (directly, perhaps) = match path.strip_prefix("flags.").or_else(|| path.strip_prefix("effective.")) {
        Some(name) if !ACTS.iter().any(|(beginnings, ..)| begins(path, beginnings)) => {
            let known = FLAGS.iter().find(|(words, ..)| words.iter().any(|word| name.contains(word)));
            known.map_or((&[][..], ANY_FLAG), |(_, directly, perhaps)| (*directly, *perhaps))
        }
        _ if path == "args" => (&[][..], ANY_FLAG),
        _ => {
            let known = ACTS.iter().find(|(beginnings, ..)| begins(path, beginnings));
            known.map_or((&[][..], &[][..]), |(_, directly, perhaps)| (*directly, *perhaps))
        }
    };
    if directly.contains(&kind) {
        Likely::Directly
    } else if perhaps.contains(&kind) || (path == "speculative.steps" && kind == StepTime && rose(difference)) {
        Likely::Perhaps
    } else {
        Likely::No
    }
}

fn begins(path: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| path.starts_with(beginning))
}

/// More drafts a step take longer; fewer do not.
fn rose(difference: &Difference) -> bool {
    let number = |value: &Option<serde_json::Value>| value.as_ref().and_then(serde_json::Value::as_f64);
    number(&difference.now) > number(&difference.was)
}
