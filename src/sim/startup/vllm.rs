//! vLLM's start, in the words of its version.

use std::time::Duration;

use super::{Level, Milestone, Story, What, Who, bar, shards_bar};

pub(super) fn tell(story: &mut Story<'_>) {
    // A second server on the port fails at once, long before anything answers.
    story.put(Duration::ZERO, Who::Main, What::Reached(Milestone::Bound));
    story.phase("launch", |_, _| {});
    story.phase("config", config);
    story.phase("dist_init", dist_init);
    story.phase("weights", weights);
    if story.model.steps > 0 {
        story.phase("draft_weights", draft_weights);
    }
    weights_end(story);
    story.phase("compile", compile);
    story.phase("kv_pool", kv_pool);
    story.phase("graph_capture", capture);
    engine_up(story);
    story.phase("http_up", http_up);
    story.phase("serving", |story, _| {
        let at = story.at;
        story.put(at, Who::Main, What::Plain("INFO:     Application startup complete.".to_owned()));
        story.put(at, Who::Main, What::Reached(Milestone::Open));
        story.put(at, Who::Main, What::Reached(Milestone::Ready));
    });
}

fn config(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    story.record(at, Who::Main, format!("vLLM API server version {}", model.version));
    let speculative = match model.steps {
        0 => String::new(),
        steps => format!(", 'speculative_config': {{'method': 'mtp', 'num_speculative_tokens': {steps}}}"),
    };
    story.record(
        at,
        Who::Main,
        format!(
            "non-default args: {{'model_tag': '{name}', 'host': '127.0.0.1', 'port': {}, 'model': '{name}', 'max_model_len': {}, 'tensor_parallel_size': {}, 'gpu_memory_utilization': {}, 'max_num_seqs': {}{speculative}}}",
            model.port,
            model.context,
            model.ranks,
            model.fraction,
            model.running,
            name = model.name,
        ),
    );
    let at = at + length / 2;
    story.record(at, Who::Main, "Resolved architecture: Qwen3ForCausalLM");
    story.record(at, Who::Main, format!("Using max model len {}", model.context));
    story.record(at, Who::Main, "Chunked prefill is enabled with max_num_batched_tokens=8192.");
}

fn dist_init(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let speculative = match model.steps {
        0 => "None".to_owned(),
        steps => format!("SpeculativeConfig(method='mtp', model='{}', num_spec_tokens={steps})", model.name),
    };
    story.record(
        at,
        Who::Engine,
        format!(
            "Initializing a V1 LLM engine (v{}) with config: model='{}', speculative_config={speculative}, tensor_parallel_size={}",
            model.version, model.name, model.ranks
        ),
    );
    let n = model.ranks;
    story.ranks(at + length / 2, |rank| {
        format!("rank {rank} in world size {n} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank {rank}, EP rank N/A, EPLB rank N/A")
    });
}

fn weights(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    story.ranks(at, |_| format!("Starting to load model {}...", model.name));
    let shards = model.shards;
    for done in 0..=shards {
        let elapsed = length.mul_f64(0.75 * f64::from(done) / f64::from(shards));
        let text = shards_bar("Loading safetensors checkpoint shards", done, shards, elapsed);
        story.put(at + length.mul_f64(0.1) + elapsed, Who::Rank(0), What::Bar(text, done == shards));
    }
    let s = length.as_secs_f64();
    story.ranks(at + length.mul_f64(0.9), |_| format!("Loading weights took {s:.2} seconds"));
}

fn draft_weights(story: &mut Story<'_>, length: Duration) {
    let at = story.at;
    story.ranks(at, |_| "Loading drafter model...".to_owned());
    let s = length.as_secs_f64();
    story.ranks(at + length.mul_f64(0.8), |_| format!("Loading weights took {s:.2} seconds"));
}

fn weights_end(story: &mut Story<'_>) {
    if story.is_over() {
        return;
    }
    let model = story.model;
    let draft = if model.steps > 0 { model.draft_gb() } else { 0.0 };
    let memory = if model.before("0.33.0") { " memory" } else { "" };
    let s = model.length("weights").as_secs_f64();
    let at = story.at;
    story.ranks(at, |_| format!("Model loading took {:.2} GiB{memory} and {s:.6} seconds", model.weights_gb() + draft));
}

fn compile(story: &mut Story<'_>, length: Duration) {
    let at = story.at;
    story.ranks(at, |rank| {
        format!("Using cache directory: /home/sim/.cache/vllm/torch_compile_cache/9c1f2ab/rank_{rank}_0/backbone for vLLM's torch.compile")
    });
    let s = length.as_secs_f64();
    story.ranks(at + length.mul_f64(0.4), |_| format!("Dynamo bytecode transform time: {:.2} s", s * 0.4));
    let verb = if story.model.before("0.32.0") { "takes" } else { "took" };
    story.ranks(at + length.mul_f64(0.9), |_| format!("torch.compile {verb} {s:.2} s in total"));
}

fn kv_pool(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at + length / 2, story.model);
    story.ranks(at, |_| format!("Available KV cache memory: {:.2} GiB", model.pool_gb()));
    let size = format!("GPU KV cache size: {} tokens", thousands(model.kv_tokens));
    let most = format!(
        "Maximum concurrency for {} tokens per request: {:.2}x",
        thousands(model.context),
        model.kv_tokens as f64 / model.context.max(1) as f64
    );
    let at = at + length / 4;
    if model.before("0.32.0") {
        story.record(at, Who::Engine, size);
        story.record(at, Who::Engine, most);
    } else {
        story.record(at, Who::Engine, format!("{size}, {most}"));
    }
}

fn capture(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let total = u32::try_from(model.batches.len()).unwrap_or(u32::MAX);
    for done in 0..=total {
        let elapsed = length.mul_f64(0.9 * f64::from(done) / f64::from(total.max(1)));
        let text = bar("Capturing CUDA graphs (decode, FULL)", done, total, elapsed);
        story.put(at + elapsed, Who::Rank(0), What::Bar(text, done == total));
    }
    let s = length.as_secs();
    story.ranks(at + length.mul_f64(0.92), |_| {
        format!("Graph capturing finished in {s} secs, took {:.2} GiB", model.graphs_gb())
    });
}

fn engine_up(story: &mut Story<'_>) {
    if story.is_over() {
        return;
    }
    let (at, model) = (story.at, story.model);
    let took: Duration = ["compile", "kv_pool", "graph_capture"].into_iter().map(|phase| model.length(phase)).sum();
    let s = took.as_secs_f64();
    let text = if model.before("0.32.0") {
        format!("init engine (profile, create kv cache, warmup model) took {s:.2} seconds")
    } else {
        let compiled = model.length("compile").as_secs_f64();
        format!("init engine (profile, create kv cache, warmup model) took {s:.2} s (compilation: {compiled:.2} s)")
    };
    story.record(at, Who::Engine, text);
}

fn http_up(story: &mut Story<'_>, length: Duration) {
    let (at, model) = (story.at, story.model);
    let words = if model.before("0.32.0") { "vLLM API server 0" } else { "vLLM server" };
    story.record(at, Who::Main, format!("Starting {words} on http://127.0.0.1:{}", model.port));
    story.record(at, Who::Main, "Available routes are:");
    for (path, methods) in [
        ("/health", "GET"),
        ("/metrics", "GET"),
        ("/v1/models", "GET"),
        ("/v1/chat/completions", "POST"),
        ("/v1/completions", "POST"),
    ] {
        story.record(at, Who::Main, format!("Route: {path}, Methods: {methods}"));
    }
    story.put(at + length / 2, Who::Main, What::Plain("INFO:     Started server process [{pid}]".to_owned()));
    story.put(at + length / 2, Who::Main, What::Plain("INFO:     Waiting for application startup.".to_owned()));
}

/// With commas, as vLLM prints tokens.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A traceback in records, as a worker writes it.
pub(super) fn worker_failed(story: &mut Story<'_>, at: Duration, rank: u32, error: &[String]) {
    let mut lines = vec![
        "WorkerProc failed to start.".to_owned(),
        "Traceback (most recent call last):".to_owned(),
        "  File \"vllm/v1/executor/multiproc_executor.py\", line 902, in worker_main".to_owned(),
    ];
    lines.extend(error.iter().cloned());
    for line in lines {
        story.put(at, Who::Rank(rank), What::Record(Level::Error, line));
    }
}
