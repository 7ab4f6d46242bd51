//! The measurements of a profile as steps: one for each load, with nothing left to choose.

use serde_json::{Map, Value};

use super::identity::Identity;
use super::{Api, Arrival, Fault, Lengths, Load, Search, SearchOf, Special, Stage, Step, Stop, UNIQUE, Workload};
use crate::engine::{Definition, kind_word};
use crate::measure::Goodput;
use crate::profile::{
    Bench, Bursts, Length, Output, PrefixCache, Profile, SearchKeys, StageRate, Trace, TraceRow, WorkloadKeys,
};

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
    let arrivals = arrivals(bench);
    let (requests, duration_s) = ends(bench);
    if requests.is_none() && duration_s.is_none() {
        return Err(Fault::new(
            "no_end",
            format!("bench.{name}"),
            "says neither how many requests nor how long is measured",
        )
        .help("for example `requests: 48` or `duration: 2m`"));
    }
    if arrivals.is_empty() {
        return Err(Fault::new("no_load", format!("bench.{name}"), "says not how requests are sent")
            .help("for example `concurrency: 1` or `rate: 4`"));
    }
    let load = |(suffix, arrival)| (suffix, Load { arrival, requests, duration_s, warmup: bench.warmup });
    Ok(arrivals.into_iter().map(load).collect())
}

/// How many requests are measured, and for how many seconds.
fn ends(bench: &Bench) -> (Option<u64>, Option<f64>) {
    let rows = bench.trace.as_ref().map(|trace| trace.rows.len() as u64);
    let requests = bench.requests.into_iter().chain(rows).min();
    let stages = bench.stages.iter().map(|stage| stage.duration.as_secs_f64()).sum::<f64>();
    let stages = Some(stages).filter(|_| !bench.stages.is_empty());
    (requests, bench.duration.map(|duration| duration.as_secs_f64()).or(stages))
}

/// When requests are sent, each way with what tells it from the others.
fn arrivals(bench: &Bench) -> Vec<(String, Arrival)> {
    let shape = || bench.arrival.clone().unwrap_or_else(|| "poisson".to_owned());
    let burstiness = bench.burstiness;
    let closed = bench.concurrency.iter().map(|n| (n.to_string(), Arrival::Closed { concurrency: *n }));
    let open =
        bench.rate.iter().map(|rate| (format!("{rate}"), Arrival::Open { rate: *rate, shape: shape(), burstiness }));
    let mut arrivals: Vec<_> = closed.chain(open).collect();
    if !bench.stages.is_empty() {
        let stages = bench.stages.iter().map(|stage| {
            let (from, to) = match stage.rate {
                StageRate::Steady(rate) => (rate, rate),
                StageRate::Ramp { from, to } => (from, to),
            };
            Stage { from, to, duration_s: stage.duration.as_secs_f64() }
        });
        let stages = stages.collect();
        arrivals.push(("stages".to_owned(), Arrival::Stages { stages, shape: shape(), burstiness }));
    }
    if let Some(Bursts { requests, every }) = bench.bursts {
        arrivals.push(("bursts".to_owned(), Arrival::Bursts { requests, every_s: every.as_secs_f64() }));
    }
    if let Some(trace) = &bench.trace {
        arrivals.push(("trace".to_owned(), Arrival::Trace { speed: trace.speed.unwrap_or(1.0) }));
    }
    let search = bench.search.as_ref().and_then(|keys| Search::of(keys, &shape(), burstiness));
    arrivals.extend(search.map(|search| ("search".to_owned(), Arrival::Search(search))));
    arrivals
}

impl Search {
    /// What the keys of a profile say. `None` where they name nothing that is raised.
    pub fn of(keys: &SearchKeys, shape: &str, burstiness: Option<f64>) -> Option<Self> {
        let SearchKeys { concurrency, rate, share, within } = keys;
        let of_rate = rate.map(|ends| (SearchOf::Rate, ends));
        let (of, ends) = concurrency.map(|ends| (SearchOf::Concurrency, ends)).or(of_rate)?;
        let shape = (of == SearchOf::Rate).then(|| shape.to_owned());
        Some(Search { of, from: ends.from, to: ends.to, share: *share, within: *within, shape, burstiness })
    }
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
        stream,
    } = &bench.inline;
    let key = |key: &str| format!("bench.{name}.{key}");
    let mut faults = Vec::new();
    let trace = bench
        .trace
        .as_ref()
        .map(|keys| Trace { rows: keys.rows.clone(), block_tokens: keys.block_tokens.unwrap_or(MOONCAKE_BLOCK) });
    let row = trace.as_ref().and_then(|trace| trace.rows.first());
    content(input_tokens.is_some(), !texts.is_empty(), row, &key, &mut faults);
    let longest = || trace.as_ref().and_then(|trace| trace.rows.iter().filter_map(|row| row.output).max());
    let (stop, output_length) = match (row.is_some_and(|row| row.output.is_some()), output, output_tokens) {
        (true, None, None) => (longest().map(|tokens| Stop::Exact { tokens }), None),
        (true, ..) => {
            let why = "the trace says how long answers are, and so does this";
            faults.push(Fault::new("two_outputs", key("output"), why).help("take out one of the two"));
            (None, None)
        }
        _ => stop(output.as_ref(), output_tokens.as_ref(), &key, &mut faults),
    };
    let lengths = Lengths { input: input_tokens.clone(), output: output_length };
    let api = endpoint(api.as_deref(), &key, &mut faults);
    let sampling: Map<String, Value> =
        sampling.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    // What a request before it has left in the cache would make a prompt look faster than it is: a workload is cold
    // unless it says otherwise. One that says `cold` itself insists on an engine that can be told. Where prefixes are
    // shared on purpose, what the engine keeps is what is wanted.
    let shares = row.is_some_and(|row| !row.blocks.is_empty()) || turns.is_some_and(|turns| turns > 1);
    let (cold_prefix, hit_ratio) = match prefix_cache {
        Some(PrefixCache::Warm) => (false, None),
        Some(PrefixCache::Cold) => (true, None),
        None => (!shares, None),
        Some(PrefixCache::HitRatio(share)) => (false, Some(*share)),
    };
    if hit_ratio.is_some() && input_tokens.is_none() {
        let why = "a share of the cache is made of prompts whose length is known";
        faults.push(Fault::new("no_length", key("prefix_cache"), why).help("add `input_tokens`"));
    }
    let mut body = sampling.clone();
    let cold = &definition.requests.cold_prefix;
    if cold_prefix {
        if cold.is_empty() && prefix_cache.is_some() {
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
        body.extend(cold.clone());
    } else if hit_ratio.is_some() || shares {
        // What is filled in afresh tells the requests of one step from those of all others.
        let own = cold.iter().filter(|(_, value)| value.as_str().is_some_and(|text| text.contains(UNIQUE)));
        body.extend(own.map(|(key, value)| (key.clone(), value.clone())));
    }
    let seed = seed.unwrap_or(0);
    let (Some(stop), true) = (stop, faults.is_empty()) else { return Err(faults) };
    let turns = turns.filter(|turns| *turns > 1);
    let special = Special { hit_ratio, turns, whole: *stream == Some(false), trace };
    let identity = Identity {
        form: 1,
        api,
        prompts: texts,
        stop,
        sampling: &sampling,
        cold_prefix,
        seed,
        lengths: &lengths,
        special: &special,
    };
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
        special,
    })
}

/// Tokens of a prompt that one of the ids of Mooncake's traces stands for.
const MOONCAKE_BLOCK: u64 = 512;

/// Where prompts come from: exactly one source.
fn content(made: bool, given: bool, row: Option<&TraceRow>, key: &dyn Fn(&str) -> String, faults: &mut Vec<Fault>) {
    let recorded = row.is_some_and(|row| row.input.is_some());
    if !made && !given && !recorded {
        faults.push(
            Fault::new("no_prompts", key("prompts"), "there are no prompts")
                .help("for example `prompts: [builtin/chat]`"),
        );
    }
    if made && given {
        faults.push(
            Fault::new("two_prompts", key("input_tokens"), "prompts are made to a length, or given, not both")
                .help("take out `prompts` or `input_tokens`"),
        );
    }
    if recorded && (made || given) {
        let why = "the trace says how long prompts are, and they are made so";
        faults.push(Fault::new("two_prompts", key("trace"), why).help("take out `prompts` and `input_tokens`"));
    }
}

fn endpoint(word: Option<&str>, key: &dyn Fn(&str) -> String, faults: &mut Vec<Fault>) -> Api {
    match word {
        None | Some("chat") => Api::Chat,
        Some("completions") => Api::Completions,
        Some("responses") => Api::Responses,
        Some("generate") => Api::Generate,
        Some("completion") => Api::Completion,
        Some(other) => {
            faults.push(
                Fault::new("bad_api", key("api"), format!("`{other}` is not an endpoint"))
                    .help("`chat`, `completions`, `responses`, `generate` (SGLang) or `completion` (llama.cpp)"),
            );
            Api::Chat
        }
    }
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
