//! What an engine computes out of the settings, computed back: the inverse of `render`'s logic, one small function each.

use serde_json::{Map, Value};

use super::{Draft, ImportError, Program, open, secret};
use crate::engine::Definition;
use crate::profile::EngineKind;

/// Undoes what `render` derives, and takes out what a profile could not say beside the rest.
pub(super) fn invert(draft: &mut Draft, config: Map<String, Value>, worded: &[&str], definition: &Definition) {
    match draft.engine.kind {
        EngineKind::Llamacpp => {
            pool(draft);
            split(draft, worded);
        }
        EngineKind::Sglang => chain(draft),
        EngineKind::Vllm => {
            speculative_config(draft, config, definition);
            graph_tokens(draft);
            experts(draft, worded);
        }
        _ => {}
    }
    graphs(draft);
}

/// llama-server's slots when it is not told.
const AUTOMATIC_SLOTS: u64 = 4;

/// `--ctx-size` is shared by all slots.
fn pool(draft: &mut Draft) {
    let Some(pool) = draft.settings.shift_remove("derived.pool_tokens").and_then(|pool| pool.as_u64()) else { return };
    let slots = draft.settings.get("max_running_requests").and_then(Value::as_u64).unwrap_or_else(|| {
        let text = "without `--parallel` llama-server takes 4 slots that share one pool; here each of the four has its own part of it";
        draft.note_on("max_running_requests", text);
        draft.settings.insert("max_running_requests".to_owned(), AUTOMATIC_SLOTS.into());
        AUTOMATIC_SLOTS
    });
    let each = pool / slots.max(1);
    if each == 0 {
        return draft.leave_out(&format!("--ctx-size {pool}"), "it is less than a token for each request");
    }
    if each * slots != pool {
        draft.note_on("context_length", format!("{pool} tokens for {slots} requests are not a whole number for each"));
    }
    draft.settings.insert("context_length".to_owned(), each.into());
}

/// What only a server of several nodes has.
pub(super) fn of_nodes(key: &str) -> bool {
    ["node_rank", "head", "head_address", "head_port", "headless", "data_local", "data_first"]
        .iter()
        .any(|name| key.strip_prefix("derived.") == Some(name))
}

/// `--split-mode` says how GPUs share the model, `--tensor-split` how many of them do.
fn split(draft: &mut Draft, worded: &[&str]) {
    let shares = draft.settings.shift_remove("derived.tensor_split");
    let key = worded.iter().find(|key| key.starts_with("parallel."));
    let shares = shares.as_ref().and_then(Value::as_str);
    let equal = shares
        .map(|shares| shares.split(',').collect::<Vec<_>>())
        .filter(|all| all.len() > 1 && all.iter().all(|one| *one == "1"));
    match (key, equal, shares) {
        (Some(key), Some(all), _) => drop(draft.settings.insert((*key).to_owned(), all.len().into())),
        (None, None, None) => {}
        (Some(_), _, None) => draft.leave_out(
            "--split-mode",
            "how many GPUs share the model is not said: set `parallel.tensor` or `parallel.pipeline`",
        ),
        (_, _, Some(shares)) => {
            draft.leave_out(&format!("--tensor-split {shares}"), "a profile spreads a model in equal shares")
        }
        (None, Some(_), None) => {}
    }
}

/// Graphs are captured for numbers of tokens, of which a request takes one and its drafts.
fn graph_tokens(draft: &mut Draft) {
    let each = draft.settings.get("speculative.steps").and_then(Value::as_u64).unwrap_or(0) + 1;
    if let Some(tokens) = draft.settings.shift_remove("derived.graph_tokens").and_then(|tokens| tokens.as_u64()) {
        match tokens % each {
            0 => drop(draft.settings.insert("graphs.max_batch".to_owned(), (tokens / each).into())),
            _ => draft.leave_out(
                &format!("--max-cudagraph-capture-size {tokens}"),
                "it is no whole number of requests, which take a token and their drafts",
            ),
        }
    }
    if let Some(Value::Array(sizes)) = draft.settings.shift_remove("derived.graph_sizes") {
        let whole: Option<Vec<u64>> =
            sizes.iter().map(|size| size.as_u64().filter(|size| size % each == 0).map(|size| size / each)).collect();
        match whole {
            Some(batches) => drop(draft.settings.insert("graphs.batches".to_owned(), batches.into())),
            None => {
                let sizes: Vec<String> = sizes.iter().map(Value::to_string).collect();
                let why = "they are no whole numbers of requests, which take a token and their drafts";
                draft.leave_out(&format!("--cudagraph-capture-sizes {}", sizes.join(" ")), why);
            }
        }
    }
}

/// A switch: experts are spread over all the GPUs there are.
fn experts(draft: &mut Draft, worded: &[&str]) {
    if worded.contains(&"parallel.expert") {
        let of = |key: &str| draft.settings.get(key).and_then(Value::as_u64).unwrap_or(1);
        let gpus = (of("parallel.tensor") * of("parallel.data")).max(2);
        draft.settings.insert("parallel.expert".to_owned(), gpus.into());
    }
}

/// In a chain topk is 1 and the draft tokens are one more than the steps: `steps` says it all.
fn chain(draft: &mut Draft) {
    let of = |draft: &Draft, key: &str| draft.settings.get(key).and_then(Value::as_u64);
    // What is drafted as one block has the engine's draft tokens alone: those that are drafted and the one that is verified.
    let method = draft.settings.get("speculative.method").and_then(Value::as_str).unwrap_or_default();
    if matches!(method, "ngram" | "dflash" | "dspark" | "uno") {
        let tokens = of(draft, "speculative.draft_tokens").filter(|tokens| *tokens > 1);
        if let (Some(tokens), None) = (tokens, of(draft, "speculative.steps")) {
            draft.settings.shift_remove("speculative.draft_tokens");
            draft.settings.insert("speculative.steps".to_owned(), (tokens - 1).into());
        }
        return;
    }
    let (Some(steps), Some(1)) = (of(draft, "speculative.steps"), of(draft, "speculative.topk")) else { return };
    match of(draft, "speculative.draft_tokens") {
        Some(tokens) if tokens != steps + 1 => {
            let text = format!(
                "`--speculative-num-draft-tokens {tokens}` is no chain of {steps} steps: the engine makes {} of it",
                steps + 1
            );
            draft.note_on("speculative", text);
        }
        _ => {}
    }
    draft.settings.shift_remove("speculative.topk");
    draft.settings.shift_remove("speculative.draft_tokens");
}

/// vLLM's one JSON for all of `speculative`.
fn speculative_config(draft: &mut Draft, mut config: Map<String, Value>, definition: &Definition) {
    if config.is_empty() {
        return;
    }
    let method = config.shift_remove("method").and_then(|method| method.as_str().map(str::to_owned));
    let model = config.shift_remove("model").and_then(|model| model.as_str().map(str::to_owned));
    let steps = config.shift_remove("num_speculative_tokens").and_then(|steps| steps.as_u64());
    let neutral = |word: &str| {
        let row = definition.settings.get("speculative.method")?;
        let all = row.spellings.iter().flat_map(|spelling| &spelling.values);
        all.into_iter().find(|(_, said)| *said == word).map(|(neutral, _)| neutral.clone())
    };
    let method = match method.as_deref() {
        Some(word) if neutral(word).is_some() => neutral(word),
        Some(word) if word.ends_with("_mtp") => {
            draft.note_on("speculative", format!("vLLM's own name for it is `{word}`"));
            Some("mtp".to_owned())
        }
        Some(word) => {
            return draft.leave_out("--speculative-config", &format!("a profile has no word for the method `{word}`"));
        }
        None if model.is_some() => {
            draft.note_on(
                "speculative",
                "no method is given, and vLLM takes it from the draft: `draft`, `eagle`, `eagle3` or another",
            );
            Some("draft".to_owned())
        }
        None => None,
    };
    let Some(method) = method else {
        return draft.leave_out("--speculative-config", "it names neither a method nor a model");
    };
    draft.settings.insert("speculative.method".to_owned(), method.into());
    if let Some(steps) = steps.filter(|steps| (1..=1024).contains(steps)) {
        draft.settings.insert("speculative.steps".to_owned(), steps.into());
    }
    if let Some(model) = model {
        draft.settings.insert("speculative.model".to_owned(), model.into());
    }
    for (name, value) in config {
        let text = crate::engine::settings::plain(&value);
        draft.flags.insert(format!("speculative-config.{name}"), crate::profile::Flag::Value(text));
    }
}

/// Graphs that are off have no batches, and one list says the largest batch.
fn graphs(draft: &mut Draft) {
    let off = draft.settings.get("graphs.enabled") == Some(&Value::Bool(false));
    let largest = draft
        .settings
        .get("graphs.batches")
        .and_then(|batches| batches.as_array()?.iter().filter_map(Value::as_u64).max());
    let cap = draft.settings.get("graphs.max_batch").and_then(Value::as_u64);
    for key in ["graphs.max_batch", "graphs.batches"] {
        if off && draft.settings.shift_remove(key).is_some() {
            draft.note_on("graphs", format!("the command also gave `{key}`, and no graph is captured"));
        }
    }
    if !off && largest.is_some() && cap.is_some() && largest != cap {
        draft.settings.shift_remove("graphs.max_batch");
        let text = format!("the command also gave {} as the largest batch, beside this list", cap.unwrap_or_default());
        draft.note_on("graphs", text);
    }
}

/// Flags that orch owns and a profile says in another way. Whether it was one.
pub(super) fn owned(
    kind: EngineKind,
    flag: &str,
    values: &[String],
    config: &mut Map<String, Value>,
    draft: &mut Draft,
) -> bool {
    let Some(value) = values.first() else { return false };
    match (kind, flag) {
        // One node is what there is without them.
        (_, "--nnodes" | "-n") if value == "1" => true,
        (_, "--node-rank" | "-r") if value == "0" => true,
        (EngineKind::Vllm, "--spec-method") => config.insert("method".to_owned(), value.as_str().into()).is_none(),
        (EngineKind::Vllm, "--spec-model") => config.insert("model".to_owned(), value.as_str().into()).is_none(),
        (EngineKind::Vllm, "--spec-tokens") => {
            let tokens = value.parse::<u64>().map_or_else(|_| Value::from(value.as_str()), Value::from);
            config.insert("num_speculative_tokens".to_owned(), tokens).is_none()
        }
        (EngineKind::Llamacpp, "-hf" | "-hfr" | "--hf-repo" | "-mu" | "--model-url") => {
            draft.note_on("model", format!("llama-server fetched it itself (`{flag}`): write the path of the file"));
            draft.settings.entry("model.path".to_owned()).or_insert_with(|| value.as_str().into());
            true
        }
        _ => false,
    }
}

/// The simulated engine: its scenario is the profile's.
pub(super) fn sim(program: &Program, draft: &mut Draft) -> Result<(), ImportError> {
    let mut words = program.words.iter();
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), words.next().cloned()),
        };
        match (flag, value) {
            ("--port", Some(value)) if value.parse::<u16>().is_ok_and(|port| port > 0) => {
                draft.settings.insert("port".to_owned(), Value::from(value.parse::<u16>().unwrap_or_default()));
            }
            ("--scenario", Some(value)) => {
                let mut scenario = serde_json::from_str::<Value>(&value).unwrap_or(Value::from(value));
                // What a profile asks for may be fewer steps than the scenario is written for.
                let asked = scenario.pointer_mut("/speculative").and_then(Value::as_object_mut);
                if let Some(steps) = asked.and_then(|asked| asked.shift_remove("steps")) {
                    draft.settings.insert("speculative.method".to_owned(), "mtp".into());
                    draft.settings.insert("speculative.steps".to_owned(), steps);
                }
                if let Some(whole) = scenario.as_object_mut()
                    && whole.get("speculative").and_then(Value::as_object).is_some_and(Map::is_empty)
                {
                    whole.shift_remove("speculative");
                }
                if let Some(name) = scenario.get("served_name").and_then(Value::as_str) {
                    draft.settings.insert("model.path".to_owned(), "simulated".into());
                    draft.settings.insert("model.served_name".to_owned(), name.into());
                }
                draft.engine.scenario = Some(scenario);
            }
            ("--ledger", Some(value)) => draft.leave_out(&format!("--ledger {value}"), "orch gives it itself"),
            (flag, value) => {
                draft.args.push(flag.to_owned());
                draft.args.extend(value);
            }
        }
    }
    Ok(())
}

/// A command of which nothing is known: its words, with the port left to orch.
pub(super) fn command(program: &Program, draft: &mut Draft, is_set: &dyn Fn(&str) -> bool) {
    draft.note_on("engine", "no engine that orch describes: the command is taken as it is, and its readiness is proven by generated tokens alone");
    let mut words: Vec<String> = Vec::new();
    let mut given = program.words.iter().peekable();
    let (mut port, mut model) = (None, None);
    while let Some(word) = given.next() {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => (flag, Some(value)),
            _ => (word.as_str(), None),
        };
        let next = inline.or_else(|| given.peek().map(|word| word.as_str())).unwrap_or_default().to_owned();
        if flag.starts_with('-') && secret::is_name(flag) || secret::is_value(word) {
            draft.leave_out(&format!("{flag} ***"), "its value is a secret, which no profile may hold");
            if inline.is_none() && flag.starts_with('-') && !next.starts_with('-') {
                given.next();
            }
            continue;
        }
        if open::in_profile(word, is_set).is_none() {
            draft.leave_out(word, "it is not known here");
            continue;
        }
        match flag {
            "--port" | "-p" if next.parse::<u16>().is_ok_and(|port| port > 0) => {
                port = next.parse::<u16>().ok();
                match inline {
                    Some(_) => words.push(format!("{flag}={{port}}")),
                    None => {
                        words.extend([flag.to_owned(), "{port}".to_owned()]);
                        given.next();
                    }
                }
                continue;
            }
            "--model" | "--model-path" | "--model-id" | "--model_path" | "-m"
                if model.is_none() && !next.is_empty() && !next.ends_with(".py") =>
            {
                // `python -m MODULE` names no model.
                let is_module =
                    flag == "-m" && words.last().is_some_and(|word| super::program::base(word).starts_with("python"));
                model = (!is_module && open::in_profile(&next, is_set).is_some()).then_some(next);
            }
            _ => {}
        }
        words.push(word.clone());
    }
    draft.engine.command = words;
    match port {
        Some(port) => drop(draft.settings.insert("port".to_owned(), port.into())),
        None => {
            draft.settings.insert("port".to_owned(), 8000.into());
            draft.note_on(
                "port",
                "the command does not say where it listens: write its port here, or `{port}` into its words",
            );
        }
    }
    let model = model.unwrap_or_else(|| {
        draft.note_on("model", "the command does not name it: write the name that requests use");
        "unknown".to_owned()
    });
    draft.settings.insert("model.path".to_owned(), model.into());
}
