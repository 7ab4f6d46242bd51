//! What is wrong with a server that serves: not what was asked for, wrong, or slower than before.

use super::Reason;
use super::context::{Check, Context, SideFacts};
use crate::gate::log::{Nature, Startup};

/// Acceptance below this share of the earlier run's is too low.
const ACCEPTS: f64 = 0.8;
/// In one and the same run it has collapsed below this share of its best.
const COLLAPSED: f64 = 0.6;
/// A step that gives no more than this accepts nothing.
const NOTHING: f64 = 1.05;
/// A rate below this share of the earlier run's is far below.
const FAR_BELOW: f64 = 0.7;
/// So many lines about its work say that there would have been one about drafts.
const ENOUGH_LINES: u64 = 2;

/// What is wrong with it, if anything is.
pub(super) fn impaired(startup: &Startup, context: &Context) -> Option<Reason> {
    let side = context.side_facts.clone().unwrap_or_default();
    stranger(&side)
        .or_else(|| gone(&side))
        .or_else(|| wrong(&side))
        .or_else(|| told(startup))
        .or_else(|| undrafted(startup, context))
        .or_else(|| accepts_little(startup, context))
        .or_else(|| slower(startup, context))
}

/// The port answers as another model.
fn stranger(side: &SideFacts) -> Option<Reason> {
    let probe = side.probe.as_ref()?;
    let (answers, started) = (probe.models_id.as_ref()?, probe.expected_model_id.as_ref()?);
    (answers != started)
        .then(|| Reason::saying("stale_server", format!("`{answers}` answers, `{started}` was started")))
}

fn gone(side: &SideFacts) -> Option<Reason> {
    let gone = &side.missing_ranks;
    let names: Vec<String> = gone.iter().map(u32::to_string).collect();
    (!gone.is_empty()).then(|| Reason::saying("rank_missing", format!("gone: {}", names.join(", "))))
}

fn wrong(side: &SideFacts) -> Option<Reason> {
    (side.known_answer_check == Some(Check::Failed)).then(|| Reason::of("garbage_output"))
}

/// The log itself says that something is not as it was asked for.
fn told(startup: &Startup) -> Option<Reason> {
    let offloaded = startup.facts().get("layers_offloaded").and_then(serde_json::Value::as_f64);
    let degrading = startup.failures().iter().filter(|failure| failure.nature == Nature::Degrades);
    // The one process has no GPU and does not need it: its child has.
    let holds = |kind: &str| {
        kind != "cpu_fallback"
            || offloaded == Some(0.0)
            || (offloaded.is_none() && !startup.facts().contains_key("child_port"))
    };
    degrading.filter(|failure| holds(&failure.kind)).map(Reason::root).next()
}

/// Speculation was asked for, and no line about its work tells of drafts.
fn undrafted(startup: &Startup, context: &Context) -> Option<Reason> {
    let method = context.speculative.as_deref().filter(|method| *method != "none")?;
    let telling = startup.telling();
    (telling.acceptances == 0 && telling.rates >= ENOUGH_LINES).then(|| {
        Reason::saying(
            "feature_off",
            format!("`{method}` was asked for, and none of its lines tells of drafted tokens"),
        )
    })
}

fn accepts_little(startup: &Startup, context: &Context) -> Option<Reason> {
    let length = startup.facts().get("accept_len")?.as_f64()?;
    let before = context.baseline.as_ref().and_then(|baseline| baseline.accept_len);
    if let Some(before) = before.filter(|before| length < before * ACCEPTS) {
        return Some(Reason::saying("low_acceptance", format!("it was {before} before")));
    }
    let best = startup.telling().best_length?;
    if best > NOTHING && length < best * COLLAPSED {
        return Some(Reason::saying(
            "low_acceptance",
            format!("it has fallen from {best}, as it does when text turns to gibberish"),
        ));
    }
    (length <= NOTHING && best <= NOTHING && startup.telling().acceptances >= ENOUGH_LINES)
        .then(|| Reason::saying("low_acceptance", "nothing that is drafted is accepted".to_owned()))
}

fn slower(startup: &Startup, context: &Context) -> Option<Reason> {
    let baseline = context.baseline.as_ref()?;
    let now = |key: &str| startup.facts().get(key)?.as_f64();
    let far = |key: &str, before: Option<f64>| {
        let (now, before) = (now(key)?, before?);
        (now < before * FAR_BELOW).then_some((now, before))
    };
    if let Some((now, before)) = far("gen_tok_s", baseline.gen_tok_s) {
        let change = (1.0 - now / before) * 100.0;
        return Some(Reason::saying("slow_decode", format!("{before} before, {change:.0} % less")));
    }
    let (now, before) = far("prompt_tok_s", baseline.prompt_tok_s)?;
    (now > 0.0 && baseline.gen_tok_s.is_none())
        .then(|| Reason::saying("slow_decode", format!("prompts are read at {now} tokens/s, {before} before")))
}
