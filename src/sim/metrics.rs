//! `/metrics`: the counts in each engine's own Prometheus names.

use std::fmt::Write;

use super::counters::{Counters, Histogram};
use super::engine::Engine;
use super::scenario::Played;

/// The page.
pub(super) fn page(engine: &Engine) -> String {
    let mut page = Page { text: String::new(), labels: String::new() };
    let counters = engine.counters.borrow();
    match engine.played() {
        Played::Sglang => sglang(engine, &counters, &mut page),
        Played::Vllm => vllm(engine, &counters, &mut page),
        Played::Llamacpp => llamacpp(engine, &counters, &mut page),
    }
    page.text
}

struct Page {
    text: String,
    /// Labels of each value, without braces.
    labels: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str) {
        // Writing to a text never fails.
        let _ = writeln!(self.text, "# HELP {name} Simulated.\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, more: &str, value: f64) {
        let labels = match (self.labels.is_empty(), more.is_empty()) {
            (true, true) => String::new(),
            (false, true) => format!("{{{}}}", self.labels),
            (true, false) => format!("{{{more}}}"),
            (false, false) => format!("{{{},{more}}}", self.labels),
        };
        let _ = writeln!(self.text, "{name}{labels} {value:?}");
    }

    fn gauge(&mut self, name: &str, value: f64) {
        self.head(name, "gauge");
        self.value(name, "", value);
    }

    fn counter(&mut self, name: &str, value: f64) {
        self.head(name, "counter");
        self.value(name, "", value);
    }

    /// A counter for each value of a label.
    fn counters(&mut self, name: &str, label: &str, values: &[(&str, f64)]) {
        self.head(name, "counter");
        for (word, value) in values {
            self.value(name, &format!("{label}=\"{word}\""), *value);
        }
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        self.head(name, "histogram");
        self.value(&format!("{name}_sum"), "", histogram.sum);
        for (bound, count) in histogram.buckets() {
            self.value(&format!("{name}_bucket"), &format!("le=\"{bound:?}\""), count as f64);
        }
        self.value(&format!("{name}_bucket"), "le=\"+Inf\"", histogram.count as f64);
        self.value(&format!("{name}_count"), "", histogram.count as f64);
    }
}

/// A label's value, with what would end it taken out.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn sglang(engine: &Engine, counters: &Counters, page: &mut Page) {
    page.labels = format!(
        "engine_type=\"unified\",model_name=\"{}\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"",
        label(&engine.model)
    );
    let admission = engine.admission.borrow();
    let room = engine.kv_tokens() as f64;
    page.gauge("sglang:num_running_reqs", admission.running() as f64);
    page.gauge("sglang:num_queue_reqs", admission.waiting() as f64);
    page.gauge("sglang:num_retracted_reqs", counters.retracted as f64);
    page.gauge("sglang:num_used_tokens", admission.used() as f64);
    page.gauge("sglang:token_usage", share(admission.used() as f64, room));
    page.gauge("sglang:max_total_num_tokens", room);
    page.gauge("sglang:context_len", engine.scenario.context() as f64);
    page.gauge("sglang:gen_throughput", counters.rate.last);
    page.gauge("sglang:cache_hit_rate", share(counters.cached_tokens as f64, counters.prompt_tokens as f64));
    let steps = f64::from(engine.scenario.draft_steps());
    let drafts = !engine.scenario.accepted_shares().is_empty();
    // Without speculation the gauges are there and 0.
    page.gauge("sglang:spec_accept_length", counters.acceptance_length().unwrap_or(0.0));
    page.gauge("sglang:spec_accept_rate", share(counters.accepted as f64, counters.drafted as f64));
    page.gauge("sglang:spec_num_steps", if drafts { steps } else { 0.0 });
    page.gauge("sglang:spec_num_draft_tokens", if drafts { steps + 1.0 } else { 0.0 });
    page.gauge("sglang:is_cuda_graph", f64::from(u8::from(counters.last_in_graph.unwrap_or(false))));
    page.counter("sglang:prompt_tokens_total", counters.prompt_tokens as f64);
    page.counter("sglang:generation_tokens_total", counters.output_tokens as f64);
    page.counter("sglang:cached_tokens_total", counters.cached_tokens as f64);
    page.counter("sglang:num_requests_total", counters.requests as f64);
    page.counter("sglang:num_aborted_requests_total", counters.aborted as f64);
    let fresh = counters.prompt_tokens.saturating_sub(counters.cached_tokens) as f64;
    let cached = counters.cached_tokens as f64;
    let modes = [("prefill_compute", fresh), ("prefill_cache", cached), ("decode", counters.output_tokens as f64)];
    page.counters("sglang:realtime_tokens_total", "mode", &modes);
    if drafts {
        page.counter("sglang:spec_verify_calls_total", counters.drafts as f64);
    }
    let none = counters.engine_steps - counters.graph_steps;
    let graphs = [
        ("prefill_none", counters.prefills as f64),
        ("decode_full", counters.graph_steps.round()),
        ("decode_none", none.round()),
    ];
    page.counters("sglang:cuda_graph_passes_total", "mode", &graphs);
    page.histogram("sglang:time_to_first_token_seconds", &counters.ttft);
    page.histogram("sglang:inter_token_latency_seconds", &counters.itl);
    page.histogram("sglang:e2e_request_latency_seconds", &counters.e2e);
    page.histogram("sglang:queue_time_seconds", &counters.queued);
    page.histogram("sglang:prompt_tokens_histogram", &counters.prompt_lengths);
    page.histogram("sglang:generation_tokens_histogram", &counters.output_lengths);
}

fn vllm(engine: &Engine, counters: &Counters, page: &mut Page) {
    page.gauge("process_start_time_seconds", engine.since.get() as f64);
    page.labels = format!("engine=\"0\",model_name=\"{}\"", label(&engine.model));
    let admission = engine.admission.borrow();
    page.gauge("vllm:num_requests_running", admission.running() as f64);
    page.gauge("vllm:num_requests_waiting", admission.waiting() as f64);
    page.gauge("vllm:kv_cache_usage_perc", share(admission.used() as f64, engine.kv_tokens() as f64));
    page.counter("vllm:prefix_cache_queries_total", counters.prompt_tokens as f64);
    page.counter("vllm:prefix_cache_hits_total", counters.cached_tokens as f64);
    page.counter("vllm:num_preemptions_total", counters.retracted as f64);
    page.counter("vllm:prompt_tokens_total", counters.prompt_tokens as f64);
    page.counter("vllm:prompt_tokens_cached_total", counters.cached_tokens as f64);
    page.counter("vllm:generation_tokens_total", counters.output_tokens as f64);
    let ends = [
        ("stop", counters.stopped),
        ("length", counters.limited),
        ("abort", counters.aborted),
        ("error", counters.failed),
    ];
    page.counters("vllm:request_success_total", "finished_reason", &ends.map(|(word, count)| (word, count as f64)));
    page.head("vllm:iteration_tokens_total", "histogram");
    let tokens = counters.output_tokens + counters.prompt_tokens - counters.cached_tokens;
    let steps = (counters.engine_steps + counters.prefills as f64).round();
    page.value("vllm:iteration_tokens_total_sum", "", tokens as f64);
    page.value("vllm:iteration_tokens_total_bucket", "le=\"+Inf\"", steps);
    page.value("vllm:iteration_tokens_total_count", "", steps);
    if !engine.scenario.accepted_shares().is_empty() {
        page.counter("vllm:spec_decode_num_drafts_total", counters.drafts as f64);
        page.counter("vllm:spec_decode_num_draft_tokens_total", counters.drafted as f64);
        page.counter("vllm:spec_decode_num_accepted_tokens_total", counters.accepted as f64);
        positions(engine, counters, "vllm:spec_decode_num_accepted_tokens_per_pos_total", page);
    }
    page.histogram("vllm:request_prompt_tokens", &counters.prompt_lengths);
    page.histogram("vllm:request_generation_tokens", &counters.output_lengths);
    page.histogram("vllm:time_to_first_token_seconds", &counters.ttft);
    page.histogram("vllm:inter_token_latency_seconds", &counters.itl);
    page.histogram("vllm:request_time_per_output_token_seconds", &counters.tpot);
    page.histogram("vllm:e2e_request_latency_seconds", &counters.e2e);
    page.histogram("vllm:request_queue_time_seconds", &counters.queued);
    let tokens = engine.kv_tokens();
    page.head("vllm:cache_config_info", "gauge");
    let info = format!(
        "block_size=\"16\",enable_prefix_caching=\"{}\",kv_cache_size_tokens=\"{tokens}\",num_gpu_blocks=\"{}\"",
        if engine.scenario.serve.prefix_cache { "True" } else { "False" },
        tokens / 16
    );
    page.value("vllm:cache_config_info", &info, 1.0);
}

/// Accepted tokens by position, from 0.
fn positions(engine: &Engine, counters: &Counters, name: &str, page: &mut Page) {
    page.head(name, "counter");
    for position in 0..engine.scenario.draft_steps() as usize {
        let count = counters.accepted_at.get(position).copied().unwrap_or(0);
        page.value(name, &format!("position=\"{position}\""), count as f64);
    }
}

fn llamacpp(engine: &Engine, counters: &Counters, page: &mut Page) {
    let fresh = counters.prompt_tokens.saturating_sub(counters.cached_tokens) as f64;
    let output = counters.output_tokens as f64;
    page.counter("llamacpp:prompt_tokens_total", fresh);
    page.counter("llamacpp:prompt_tokens_cached_total", counters.cached_tokens as f64);
    page.counter("llamacpp:prompt_seconds_total", counters.prompt_seconds);
    page.counter("llamacpp:tokens_predicted_total", output);
    page.counter("llamacpp:tokens_predicted_seconds_total", counters.output_seconds);
    page.counter("llamacpp:n_decode_total", (counters.engine_steps + counters.prefills as f64).round());
    page.counter("llamacpp:n_tokens_max", counters.longest as f64);
    if !engine.scenario.accepted_shares().is_empty() {
        page.counter("llamacpp:spec_decode_num_drafts_total", counters.drafts as f64);
        page.counter("llamacpp:spec_decode_num_draft_tokens_total", counters.drafted as f64);
        page.counter("llamacpp:spec_decode_num_accepted_tokens_total", counters.accepted as f64);
        positions(engine, counters, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", page);
    }
    page.gauge("llamacpp:prompt_tokens_seconds", share(fresh, counters.prompt_seconds));
    page.gauge("llamacpp:predicted_tokens_seconds", share(output, counters.output_seconds));
    page.gauge("llamacpp:requests_processing", engine.admission.borrow().running() as f64);
    page.gauge("llamacpp:requests_deferred", engine.admission.borrow().waiting() as f64);
    page.gauge("llamacpp:n_busy_slots_per_decode", counters.requests_per_step());
}
