//! All that is not generated: what the engine says of itself.

use serde_json::{Value, json};

use super::asked;
use super::engine::Engine;
use super::metrics;
use super::scenario::Played;
use super::voice;

/// An answer: its status, its type, its text.
pub(super) type Page = (u16, &'static str, String);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

fn document(document: &Value) -> Page {
    (200, JSON, document.to_string())
}

/// An error in the engine's words.
pub(super) fn error(engine: &Engine, status: u16, message: &str) -> Page {
    (status, JSON, voice::error(engine.played(), status, message).to_string())
}

/// The answer to whatever does not generate.
pub(super) fn page(engine: &Engine, method: &str, path: &str, query: &str, body: &[u8]) -> Page {
    let played = engine.played();
    // SGLang has its other pages as soon as it listens, before its own warm-up is over.
    let is_health = path.starts_with("/health") || path == "/ready";
    if !engine.ready.get() && (played != Played::Sglang || is_health || method != "GET") {
        return loading(engine);
    }
    let found = match (method, path) {
        ("GET", "/v1/models") => Some(document(&models(engine))),
        ("GET", "/metrics") => Some(metrics_page(engine)),
        ("GET", "/health") => Some(match played {
            Played::Llamacpp => document(&json!({"status": "ok"})),
            Played::Sglang | Played::Vllm => (200, "text/plain", String::new()),
        }),
        ("GET", "/version") => Some(document(&json!({"version": engine.scenario.said_version(), "simulated": true}))),
        ("POST", "/tokenize" | "/detokenize" | "/apply-template") => tokenizing(engine, path, body),
        _ => None,
    };
    let found = found.or_else(|| match played {
        Played::Sglang => sglang(engine, method, path),
        Played::Vllm => vllm(engine, method, path),
        Played::Llamacpp => llamacpp(engine, method, path, query),
    });
    found.unwrap_or_else(|| error(engine, 404, "Not Found"))
}

/// Before the model is loaded, llama.cpp answers everything so; SGLang its health; vLLM does not listen yet.
fn loading(engine: &Engine) -> Page {
    error(engine, 503, "Loading model")
}

fn metrics_page(engine: &Engine) -> Page {
    match (engine.scenario.serve.metrics, engine.played()) {
        (true, _) => (200, TEXT, metrics::page(engine)),
        (false, Played::Llamacpp) => {
            let message = "This server does not support metrics endpoint. Start it with `--metrics`";
            (501, JSON, json!({"error": {"code": 501, "message": message, "type": "not_supported_error"}}).to_string())
        }
        (false, _) => error(engine, 404, "Not Found"),
    }
}

fn models(engine: &Engine) -> Value {
    let owner = engine.played().word();
    let mut model = json!({"id": engine.model, "object": "model", "created": engine.since.get(), "owned_by": owner});
    match engine.played() {
        Played::Sglang | Played::Vllm => {
            model["root"] = json!(engine.model);
            model["parent"] = Value::Null;
            model["max_model_len"] = json!(engine.scenario.context());
        }
        Played::Llamacpp => model["meta"] = json!({"n_ctx_train": engine.scenario.context()}),
    }
    json!({"object": "list", "data": [model]})
}

fn sglang(engine: &Engine, method: &str, path: &str) -> Option<Page> {
    match (method, path) {
        ("GET", "/health_generate" | "/ready") => Some((200, "text/plain", String::new())),
        ("GET", "/server_info" | "/get_server_info") => Some(document(&server_info(engine))),
        ("GET", "/model_info" | "/get_model_info") => Some(document(&json!({
            "model_path": engine.model, "tokenizer_path": engine.model, "is_generation": true,
            "served_model_name": engine.model, "load_format": "auto", "weight_version": "default", "simulated": true}))),
        (_, "/flush_cache") if engine.admission.borrow().running() > 0 => {
            Some((400, "text/plain", "Cache not flushed because there are pending requests.\n".to_owned()))
        }
        (_, "/flush_cache") => {
            engine.forget_prompts();
            Some((200, "text/plain", "Cache flushed.\n".to_owned()))
        }
        _ => None,
    }
}

/// SGLang's `/server_info`: what it was asked, and under `internal_states` what it made of it.
fn server_info(engine: &Engine) -> Value {
    let scenario = &engine.scenario;
    let counters = engine.counters.borrow();
    let ranks = scenario.ranks.unwrap_or(1);
    let mut state = json!({
        "last_gen_throughput": counters.rate.last,
        "memory_usage": {"weight": scenario.memory.total_gb * 0.5, "kvcache": scenario.memory.total_gb * 0.3,
            "startup_available": scenario.memory.total_gb, "token_capacity": engine.kv_tokens(), "token_capacity_swa": 0,
            "graph": {"prefill": 0.0, "decode": 0.0}},
        "effective_max_running_requests_per_dp": scenario.running_cap().unwrap_or(4096),
        "world_size": ranks, "startup_time": {},
    });
    let drafts = !scenario.accepted_shares().is_empty();
    if drafts {
        // Before the first verify step it is 1: a step gives one token at least.
        state["avg_spec_accept_length"] = json!(counters.acceptance_length().unwrap_or(1.0));
    }
    let steps = scenario.draft_steps();
    json!({
        "model_path": engine.model, "served_model_name": engine.model, "context_length": scenario.context_length,
        "tp_size": ranks, "dp_size": 1, "max_running_requests": scenario.max_running_requests,
        "cuda_graph_max_bs": scenario.serve.graph_max_batch, "enable_metrics": scenario.serve.metrics,
        "cuda_graph_config": {"decode": {
            "backend": scenario.serve.graph_max_batch.map_or("disabled", |_| "full"),
            "max_bs": scenario.serve.graph_max_batch}},
        "speculative_algorithm": drafts.then_some("EAGLE"), "speculative_num_steps": drafts.then_some(steps),
        "speculative_num_draft_tokens": drafts.then_some(steps + 1), "disable_radix_cache": !scenario.serve.prefix_cache,
        "random_seed": engine.seed, "status": "ready", "max_total_num_tokens": engine.kv_tokens(),
        "max_req_input_len": scenario.context().saturating_sub(6), "internal_states": [state],
        "version": scenario.said_version(), "simulated": true,
    })
}

fn vllm(engine: &Engine, method: &str, path: &str) -> Option<Page> {
    match (method, path) {
        ("GET" | "POST", "/ping") => Some((200, "text/plain", String::new())),
        ("GET", "/load") => Some(document(&json!({"server_load": engine.active()}))),
        ("POST", "/reset_prefix_cache") => {
            engine.forget_prompts();
            Some((200, "text/plain", String::new()))
        }
        ("GET", "/server_info") => Some(document(&json!({
            "vllm_config": format!("model='{}', max_model_len={}, max_num_seqs={}, num_gpu_blocks={}", engine.model,
                engine.scenario.context(), engine.scenario.running_cap().unwrap_or(256), engine.kv_tokens() / 16),
            "simulated": true}))),
        _ => None,
    }
}

fn llamacpp(engine: &Engine, method: &str, path: &str, query: &str) -> Option<Page> {
    let slots = u64::from(engine.scenario.running_cap().unwrap_or(4));
    match (method, path) {
        ("GET", "/v1/health") => Some(document(&json!({"status": "ok"}))),
        ("GET", "/models") => Some(document(&models(engine))),
        ("GET", "/props") => Some(document(&json!({
            "default_generation_settings": {"n_ctx": engine.scenario.context(),
                "speculative": !engine.scenario.accepted_shares().is_empty(), "id": 0},
            "total_slots": slots, "model_alias": engine.model, "model_path": engine.model, "chat_template": "simulated",
            "modalities": {"vision": false, "audio": false}, "build_info": format!("{}-orch-sim",
                engine.scenario.said_version()), "simulated": true}))),
        ("GET", "/slots") => {
            let busy = engine.admission.borrow().running();
            if busy >= slots && query.contains("fail_on_no_slot=1") {
                return Some(error(engine, 503, "no slot available"));
            }
            let list: Vec<Value> = (0..slots)
                .map(|id| {
                    json!({"id": id, "n_ctx": engine.scenario.context(), "is_processing": id < busy,
                        "speculative": !engine.scenario.accepted_shares().is_empty()})
                })
                .collect();
            Some(document(&json!(list)))
        }
        ("POST", path) if path.starts_with("/slots/") && query.contains("action=erase") => {
            engine.forget_prompts();
            Some(document(&json!({"id_slot": 0, "n_erased": 0})))
        }
        _ => None,
    }
}

/// Texts to tokens and back, in the words of each engine.
fn tokenizing(engine: &Engine, path: &str, body: &[u8]) -> Option<Page> {
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return Some(error(engine, 400, "the body is no JSON"));
    };
    let messages = body["messages"].as_array();
    if path == "/apply-template" {
        let text = messages.map(|messages| asked::template(messages))?;
        return Some(match text {
            Ok(text) if engine.played() == Played::Llamacpp => document(&json!({"prompt": text})),
            Ok(_) => error(engine, 404, "Not Found"),
            Err(message) => error(engine, 400, &message),
        });
    }
    if path == "/detokenize" {
        let ids = body["tokens"].as_array()?.iter().filter_map(Value::as_u64);
        let text = engine.known.borrow().text(ids);
        let key = match engine.played() {
            Played::Llamacpp => "content",
            Played::Vllm => "prompt",
            Played::Sglang => "text",
        };
        let mut answer = json!({});
        answer[key] = json!(text);
        return Some(document(&answer));
    }
    let text = match (&body["content"], &body["prompt"], messages) {
        (Value::String(text), _, _) | (_, Value::String(text), _) => text.clone(),
        (_, _, Some(messages)) => asked::template(messages).unwrap_or_default(),
        _ => return Some(error(engine, 400, "there is no text")),
    };
    let ids = engine.known.borrow_mut().ids(&text);
    Some(document(&match engine.played() {
        Played::Llamacpp => json!({"tokens": ids}),
        Played::Sglang | Played::Vllm => {
            json!({"count": ids.len(), "max_model_len": engine.scenario.context(), "tokens": ids})
        }
    }))
}
