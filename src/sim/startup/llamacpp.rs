//! llama-server's start.

use std::time::Duration;

use super::{Level, Milestone, Story, What, Who};

pub(super) fn tell(story: &mut Story<'_>) {
    story.phase("launch", launch);
    story.phase("weights", weights);
    if story.model.has("kv_pool") {
        story.phase("kv_pool", |_, _| {});
    }
    story.phase("warmup", warmup);
    if story.model.steps > 0 {
        story.phase("draft_weights", draft_weights);
    }
    story.phase("serving", serving);
}

fn launch(story: &mut Story<'_>, _: Duration) {
    let at = story.at;
    story.record(
        at,
        Who::Main,
        "cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)",
    );
    for text in
        ["-----------------", "CORS is set to allow all origins ('*') and no API key is set", "-----------------"]
    {
        story.put(at, Who::Main, What::Record(Level::Warning, format!("srv  llama_server: {text}")));
    }
    // It answers before it loads: every request with 503.
    story.put(at, Who::Main, What::Reached(Milestone::Open));
}

fn weights(story: &mut Story<'_>, _: Duration) {
    let at = story.at;
    story.record(at, Who::Main, format!("srv    load_model: loading model '{}'", story.model.name));
}

fn warmup(story: &mut Story<'_>, _: Duration) {
    let at = story.at;
    story.record(at, Who::Main, "cmn          init: llama threadpool init, n_threads = 2");
}

fn draft_weights(story: &mut Story<'_>, _: Duration) {
    let at = story.at;
    story.record(at, Who::Main, format!("common_speculative_init_result: loading draft model '{}'", story.model.name));
}

fn serving(story: &mut Story<'_>, _: Duration) {
    let (at, model) = (story.at, story.model);
    let slots = model.running.min(256);
    story.record(
        at,
        Who::Main,
        format!(
            "srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = {}, kv_unified = 'false'",
            model.context
        ),
    );
    story.record(at, Who::Main, "srv  llama_server: model loaded");
    story.record(at, Who::Main, format!("srv  llama_server: listening on http://127.0.0.1:{}", model.port));
    story.put(at, Who::Main, What::Reached(Milestone::Ready));
}
