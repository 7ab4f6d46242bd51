//! The measurements of a profile as steps: one for each load, with nothing left to choose.

use serde_json::{Map, Value};

use super::identity::Identity;
use super::{Api, Arrival, Fault, Lengths, Load, Step, Stop, Workload};
use crate::engine::{Definition, kind_word};
use crate::measure::Goodput;
use crate::profile::{Bench, Length, Output, PrefixCache, Profile, WorkloadKeys};

/// The steps, in the profile's order.
pub(super) fn of(profile: &Profile, definition: &Definition) -> Result<Vec<Step>, Vec<Fault>> {
    let mut faults = Vec::new();
    let mut steps = Vec::new();
    for (name, bench) in &profile.bench {
        match (workload(name, bench, definition), loads(name, bench)) {
            (Ok(workload), Ok(loads)) => {
                let several = loads.len() > 1;
                steps.extend(loads.into_iter().map(|(suffix, load)| Step {
                    name: if several { format!("{name}@{suffix}") } else { name.clone() },
                    workload: workload.clone(),
                    load,
                    goodput: goodput(bench),
                }));
            }
            (workload, loads) => faults.extend(workload.err().into_iter().flatten().chain(loads.err())),
        }
    }
    if faults.is_empty() { Ok(steps) } else { Err(faults) }
}

fn goodput(bench: &Bench) -> Option<Goodput> {
    let limits = bench.goodput.iter().map(|(id, limit)| (id.clone(), limit.as_secs_f64() * 1e3));
    let limits = Goodput(limits.collect());
    (!limits.0.is_empty()).then_some(limits)
}

fn loads(name: &str, bench: &Bench) -> Result<Vec<(String, Load)>, Fault> {
    if bench.requests.is_none() && bench.duration.is_none() {
        return Err(Fault::new(
            "no_end",
            format!("bench.{name}"),
            "says neither how many requests nor how long is measured",
        )
        .help("for example `requests: 48` or `duration: 2m`"));
    }
    let load = |arrival| Load {
        arrival,
        requests: bench.requests,
        duration_s: bench.duration.map(|duration| duration.as_secs_f64()),
        warmup: bench.warmup,
    };
    let closed = bench
        .concurrency
        .iter()
        .map(|concurrency| (concurrency.to_string(), load(Arrival::Closed { concurrency: *concurrency })));
    let shape = bench.arrival.clone().unwrap_or_else(|| "poisson".to_owned());
    let open =
        bench.rate.iter().map(|rate| (format!("{rate}"), load(Arrival::Open { rate: *rate, shape: shape.clone() })));
    let loads: Vec<_> = closed.chain(open).collect();
    if loads.is_empty() {
        return Err(Fault::new("no_load", format!("bench.{name}"), "says not how requests are sent")
            .help("for example `concurrency: 1` or `rate: 4`"));
    }
    Ok(loads)
}

fn workload(name: &str, bench: &Bench, definition: &Definition) -> Result<Workload, Vec<Fault>> {
    let WorkloadKeys {
        prompts: _,
        texts,
        input_tokens,
        output_tokens,
        output,
        sampling,
        prefix_cache,
        turns,
        seed,
        api,
    } = &bench.inline;
    let key = |key: &str| format!("bench.{name}.{key}");
    let later = |what: &str| Fault::new("not_yet", key(what), "this build of orch cannot do that yet");
    let mut faults = Vec::new();
    if input_tokens.is_none() && texts.is_empty() {
        faults.push(
            Fault::new("no_prompts", key("prompts"), "there are no prompts")
                .help("for example `prompts: [builtin/chat]`"),
        );
    }
    if input_tokens.is_some() && !texts.is_empty() {
        faults.push(
            Fault::new("two_prompts", key("input_tokens"), "prompts are made to a length, or given, not both")
                .help("take out `prompts` or `input_tokens`"),
        );
    }
    if turns.is_some_and(|turns| turns > 1) {
        faults.push(later("turns").help("take it out: each request is a conversation of its own"));
    }
    let (stop, output_length) = stop(output.as_ref(), output_tokens.as_ref(), &key, &mut faults);
    let lengths = Lengths { input: input_tokens.clone(), output: output_length };
    let api = match api.as_deref() {
        None | Some("chat") => Api::Chat,
        Some("completions") => Api::Completions,
        Some("generate") => Api::Generate,
        Some("completion") => Api::Completion,
        Some(other) => {
            faults.push(
                Fault::new("bad_api", key("api"), format!("`{other}` is not an endpoint"))
                    .help("`chat`, `completions`, `generate` (SGLang) or `completion` (llama.cpp)"),
            );
            Api::Chat
        }
    };
    let sampling: Map<String, Value> =
        sampling.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    // What a request before it has left in the cache would make a prompt look faster than it is: a workload is cold
    // unless it says otherwise. One that says `cold` itself insists on an engine that can be told.
    let cold_prefix = match prefix_cache {
        Some(PrefixCache::Warm) => false,
        None | Some(PrefixCache::Cold) => true,
        Some(PrefixCache::HitRatio(_)) => {
            faults.push(later("prefix_cache.hit_ratio").help("`cold` and `warm` are there"));
            false
        }
    };
    let mut body = sampling.clone();
    if cold_prefix {
        if definition.requests.cold_prefix.is_empty() && prefix_cache.is_some() {
            let engine = kind_word(definition.kind);
            faults.push(
                Fault::new(
                    "unsupported",
                    key("prefix_cache"),
                    format!("{engine} cannot be told, request by request, to leave its prefix cache aside"),
                )
                .help("take it out, and turn the cache off with the engine's own flag"),
            );
        }
        body.extend(definition.requests.cold_prefix.clone());
    }
    let seed = seed.unwrap_or(0);
    let (Some(stop), true) = (stop, faults.is_empty()) else { return Err(faults) };
    let identity =
        Identity { form: 1, api, prompts: texts, stop, sampling: &sampling, cold_prefix, seed, lengths: &lengths };
    Ok(Workload {
        name: bench.workload.clone().unwrap_or_else(|| "inline".to_owned()),
        hash: identity.hash(),
        api,
        prompts: texts.clone(),
        stop,
        body,
        cold_prefix,
        seed,
        lengths,
    })
}

/// When an answer ends, and the lengths that are drawn for it, if they are.
fn stop(
    output: Option<&Output>,
    output_tokens: Option<&Length>,
    key: &dyn Fn(&str) -> String,
    faults: &mut Vec<Fault>,
) -> (Option<Stop>, Option<Length>) {
    let length = match (output, output_tokens) {
        (Some(Output::Natural { max_tokens, .. }), _) => {
            return (Some(Stop::Natural { max_tokens: *max_tokens }), None);
        }
        (Some(Output::Exact { exact }), _) => exact,
        (None, Some(length)) => length,
        (None, None) => {
            faults.push(
                Fault::new("no_stop", key("output"), "says not when an answer ends")
                    .help("for example `output: {stop: natural, max_tokens: 256}`"),
            );
            return (None, None);
        }
    };
    match length {
        Length::Exact(tokens) => (Some(Stop::Exact { tokens: *tokens }), None),
        Length::Range { to: tokens, .. } | Length::Normal { max: tokens, .. } => {
            (Some(Stop::Exact { tokens: *tokens }), Some(length.clone()))
        }
    }
}
