//! SGLang's start, in the words of its version.

use std::time::Duration;

use super::{Milestone, Story, What, Who, bar, shards_bar};

pub(super) fn tell(story: &mut Story<'_>) {
    story.phase("launch", |_, _| {});
    story.phase("config", config);
    story.phase("dist_init", dist_init);
    story.phase("weights", weights);
    story.phase("kv_pool", kv_pool);
    if story.model.has("compile") {
        story.phase("compile", compile);
    }
    story.phase("graph_capture", |story, length| capture(story, length, false));
    if story.model.steps > 0 {
        story.phase("draft_weights", draft_weights);
        story.phase("draft_capture", |story, length| capture(story, length, true));
    }
    story.phase("http_up", http_up);
    story.phase("warmup", warmup);
    story.phase("serving", |story, _| {
        let at = story.at;
        story.record(at, Who::Main, "The server is fired up and ready to roll!");
        story.put(at, Who::Main, What::Reached(Milestone::Ready));
    });
}

fn config(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let mut fields = vec![
        ("model_path", format!("'{}'", model.name)),
        ("served_model_name", format!("'{}'", model.name)),
        ("host", "'127.0.0.1'".to_owned()),
        ("port", model.port.to_string()),
        ("mem_fraction_static", model.fraction.to_string()),
        ("max_running_requests", model.running.to_string()),
        ("tp_size", model.ranks.to_string()),
    ];
    match model.steps {
        0 => fields.push(("speculative_algorithm", "None".to_owned())),
        steps => fields.extend([
            ("speculative_algorithm", "'NEXTN'".to_owned()),
            ("speculative_num_steps", steps.to_string()),
            ("speculative_eagle_topk", "1".to_owned()),
            ("speculative_num_draft_tokens", (steps + 1).to_string()),
        ]),
    }
    let old = model.before("0.5.21");
    let fields: Vec<String> = fields
        .into_iter()
        .map(|(name, value)| if old { format!("{name}={value}") } else { format!("'{name}': {value}") })
        .collect();
    let text = match old {
        true => format!("server_args=ServerArgs({})", fields.join(", ")),
        false => format!("server_args={{{}}}", fields.join(", ")),
    };
    story.record(at, Who::Main, text);
    story.record(
        at + length / 2,
        Who::Main,
        "Using default HuggingFace chat template with detected content format: string",
    );
}

fn dist_init(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let words = if model.before("0.5.21") { "torch distributed" } else { "parallel" };
    story.ranks(at, |_| format!("Init {words} begin."));
    if model.ranks > 1 {
        let peers = model.ranks - 1;
        for rank in 0..model.ranks {
            story.put(
                at + length / 2 + model.lag(rank),
                Who::Rank(rank),
                What::Plain(format!(
                    "[Gloo] Rank {rank} is connected to {peers} peer ranks. Expected number of connected peer ranks is : {peers}"
                )),
            );
        }
    }
    let used = model.total_gb - model.free_at_first();
    let s = length.as_secs_f64();
    let end = at + length.mul_f64(0.9);
    story.ranks(end, |_| {
        if model.before("0.5.9") {
            format!("Init {words} ends. mem usage={used:.2} GB")
        } else if model.before("0.5.21") {
            format!("Init {words} ends. elapsed={s:.2} s, mem usage={used:.2} GB")
        } else {
            format!("Init {words} ends. elapsed={s:.2} s")
        }
    });
    if !model.before("0.5.21") {
        story.ranks(end, |_| format!("Memory baseline taken. mem usage={used:.2} GB"));
    }
}

/// The end of a load, of the model or of the draft.
fn loaded(story: &Story<'_>, class: &str, s: f64, free: f64, took: f64) -> String {
    if story.model.before("0.5.9") {
        format!("Load weight end. type={class}, dtype=torch.bfloat16, avail mem={free:.2} GB, mem usage={took:.2} GB.")
    } else if story.model.before("0.5.12") {
        format!(
            "Load weight end. elapsed={s:.2} s, type={class}, dtype=torch.bfloat16, avail mem={free:.2} GB, mem usage={took:.2} GB."
        )
    } else {
        format!("Load weight end. elapsed={s:.2} s, type={class}, avail mem={free:.2} GB, mem usage={took:.2} GB.")
    }
}

fn weights(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let free = model.free_at_first();
    story.ranks(at, |_| format!("Load weight begin. avail mem={free:.2} GB"));
    let label =
        if model.before("0.5.21") { "Loading safetensors checkpoint shards" } else { "Multi-thread loading shards" };
    let shards = model.shards;
    for done in 0..=shards {
        let moment = length.mul_f64(0.1 + 0.75 * f64::from(done) / f64::from(shards));
        let elapsed = length.mul_f64(0.75 * f64::from(done) / f64::from(shards));
        let text = shards_bar(label, done, shards, elapsed);
        story.put(at + moment, Who::Rank(0), What::Bar(text, done == shards));
    }
    let s = length.as_secs_f64();
    let end = loaded(story, "Qwen3ForCausalLM", s, model.free_with_weights(), model.weights_gb());
    story.ranks(at + length.mul_f64(0.9), |_| end.clone());
}

fn pool(story: &mut Story<'_>, at: Duration, until: Duration, half_gb: f64, free: f64) {
    let tokens = story.model.kv_tokens;
    let dtype = if story.model.before("0.5.14") { "" } else { "dtype: torch.bfloat16, " };
    story.ranks(at, |_| {
        format!("KV Cache is allocated. {dtype}#tokens: {tokens}, K size: {half_gb:.2} GB, V size: {half_gb:.2} GB")
    });
    story.ranks(until, |_| format!("Memory pool end. avail mem={free:.2} GB"));
}

fn kv_pool(story: &mut Story<'_>, length: Duration) {
    let at = story.at;
    pool(
        story,
        at + length.mul_f64(0.1),
        at + length.mul_f64(0.8),
        story.model.pool_gb() / 2.0,
        story.model.free_with_pool(),
    );
}

fn compile(story: &mut Story<'_>, length: Duration) {
    let at = story.at;
    story.ranks(at, |_| "Running FlashInfer autotune with cache: /home/sim/.cache/flashinfer/autotune.json".to_owned());
    story.ranks(at + length.mul_f64(0.9), |_| "FlashInfer autotune completed.".to_owned());
}

fn capture(story: &mut Story<'_>, length: Duration, draft: bool) {
    let (at, model) = (story.at, story.model);
    let (from, to) = match draft {
        false => (model.free_with_pool(), model.free_with_graphs()),
        true => (model.free_with_draft(), model.free_at_last()),
    };
    let target = if model.steps > 0 { "target verify" } else { "target decode" };
    let name = if draft { "draft decode" } else { target };
    let wide = if draft { 1 } else { model.steps + 1 };
    let mut ascending = model.batches.clone();
    ascending.reverse();
    let old = model.before("0.5.14");
    let old_name = if draft { "draft cuda graph" } else { "cuda graph" };
    let field = if model.before("0.5.18") { "num_tokens_per_bs" } else { "num_tokens_per_req" };
    let late = !model.before("0.5.23");
    story.ranks(at, |_| {
        if old {
            format!("Capture {old_name} begin. This can take up to several minutes. avail mem={from:.2} GB")
        } else if late {
            format!("Capture {name} CUDA graph begin. backend=full, {field}={wide}, avail mem={from:.2} GB")
        } else {
            format!("Capture {name} CUDA graph begin. backend=full, {field}={wide}, bs={ascending:?}, avail mem={from:.2} GB")
        }
    });
    if old && !draft {
        story.ranks(at, |_| format!("Capture cuda graph bs {ascending:?}"));
    }
    let total = u32::try_from(model.batches.len()).unwrap_or(u32::MAX);
    story.put(at, Who::Rank(0), What::Bar(bar("", 0, total, Duration::ZERO).trim_start_matches(':').to_owned(), false));
    for (number, batch) in model.batches.iter().enumerate() {
        let done = u32::try_from(number).unwrap_or(0);
        let share = f64::from(done + 1) / f64::from(total);
        let free = from - (from - to) * f64::from(done) / f64::from(total);
        let label = format!("Capturing batches (bs={batch} avail_mem={free:.2} GB)");
        let before = length.mul_f64(0.9 * f64::from(done) / f64::from(total));
        story.put(at + before, Who::Rank(0), What::Bar(bar(&label, done, total, before), false));
        let after = length.mul_f64(0.9 * share);
        let last = done + 1 == total;
        story.put(at + after, Who::Rank(0), What::Bar(bar(&label, done + 1, total, after), last));
    }
    let (s, took) = (length.as_secs_f64(), from - to);
    story.ranks(at + length.mul_f64(0.92), |_| {
        if old {
            format!("Capture {old_name} end. Time elapsed: {s:.2} s. mem usage={took:.2} GB. avail mem={to:.2} GB.")
        } else if late {
            format!(
                "Capture {name} CUDA graph end. bs={ascending:?}, elapsed={s:.2} s, mem usage={took:.2} GB, avail mem={to:.2} GB."
            )
        } else {
            format!("Capture {name} CUDA graph end. elapsed={s:.2} s, mem usage={took:.2} GB, avail mem={to:.2} GB.")
        }
    });
}

fn draft_weights(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let (free, with) = (model.free_with_graphs(), model.free_with_draft());
    story.ranks(at, |_| format!("Load weight begin. avail mem={free:.2} GB"));
    let weights = (free - with) * 0.7;
    let end = loaded(story, "Qwen3ForCausalLMNextN", length.as_secs_f64(), free - weights, weights);
    story.ranks(at + length.mul_f64(0.6), |_| end.clone());
    pool(story, at + length.mul_f64(0.7), at + length.mul_f64(0.8), (free - with) * 0.15, with);
}

fn http_up(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let free = model.free_at_last();
    story.record(
        at,
        Who::Rank(0),
        format!(
            "max_total_num_tokens={}, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests={}, context_len={}, available_gpu_mem={free:.2} GB",
            model.kv_tokens, model.running, model.context
        ),
    );
    if !model.before("0.5.18") {
        let s = |phase: &str| model.length(phase).as_secs_f64();
        story.record(
            at,
            Who::Main,
            format!(
                "Engine startup timings (s): load_weight={:.2}, kv_cache_allocation={:.2}, scheduler_e2e={:.2}, cuda_graph={{prefill=0.00, decode={:.2}, target_verify=0.00, draft_prefill=0.00, draft_decode={:.2}, draft_extend=0.00}}, tokenizer_e2e={:.2}",
                s("weights"),
                s("kv_pool"),
                at.as_secs_f64(),
                s("graph_capture"),
                if model.steps > 0 { s("draft_capture") } else { 0.0 },
                at.as_secs_f64(),
            ),
        );
    }
    story.record(at, Who::Main, "INFO:     Started server process [{pid}]");
    story.record(at, Who::Main, "INFO:     Waiting for application startup.");
    let open = at + length / 2;
    story.record(open, Who::Main, "INFO:     Application startup complete.");
    story.record(
        open,
        Who::Main,
        format!("INFO:     Uvicorn running on http://127.0.0.1:{} (Press CTRL+C to quit)", model.port),
    );
    story.put(open, Who::Main, What::Reached(Milestone::Open));
}

fn warmup(story: &mut Story<'_>, length: Duration) {
    let at = story.at;
    let path = if story.model.before("0.5.9") { "get_model_info" } else { "model_info" };
    story.record(at, Who::Main, format!("INFO:     127.0.0.1:50000 - \"GET /{path} HTTP/1.1\" 200 OK"));
    let graph = if story.model.before("0.5.9") { "" } else { ", cuda graph: False, input throughput (token/s): 7.01" };
    story.record(
        at + length / 4,
        Who::Rank(0),
        format!(
            "Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0{graph}"
        ),
    );
    story.record(at + length.mul_f64(0.9), Who::Main, "INFO:     127.0.0.1:50002 - \"POST /generate HTTP/1.1\" 200 OK");
}
