//! SGLang: the three numbers of its speculation, and its ranks on several nodes.

use super::{At, Fault, Logic, Settings, count, meet, uneven};
use crate::profile::Flag;

pub(super) struct Sglang;

/// Methods that draft one block at a time: there is no chain to give a length of.
const BLOCKS: &[&str] = &["ngram", "dflash", "dspark", "uno"];

impl Logic for Sglang {
    fn derive(&self, at: &At<'_>, settings: &mut Settings) -> Vec<Fault> {
        speculation(settings);
        let mut faults: Vec<Fault> = tree(settings).into_iter().collect();
        faults.extend(served_name(settings));
        if at.seat.of > 1 {
            faults.extend(ranks(at, settings));
            meet(at, settings);
        } else {
            settings.shift_remove("parallel.nodes");
        }
        faults
    }
}

/// The engine counts the tokens of a verify step, which are those drafted and the one that is verified. Steps, topk and
/// draft tokens stand together or not at all: a start with one of them alone is refused by some versions and crashes in
/// others. A chain is what `steps` alone means.
fn speculation(settings: &mut Settings) {
    let Some(steps) = count(settings, "speculative.steps") else { return };
    let method = settings.get("speculative.method").and_then(serde_json::Value::as_str).unwrap_or_default();
    let chain = if BLOCKS.contains(&method) {
        true
    } else {
        settings.entry("speculative.topk".to_owned()).or_insert_with(|| 1.into()).as_u64() == Some(1)
    };
    if chain {
        settings.entry("speculative.draft_tokens".to_owned()).or_insert_with(|| (steps + 1).into());
    }
}

/// A tree of some steps with so many branches has no more tokens than this.
fn tree(settings: &Settings) -> Option<Fault> {
    let (steps, topk) = (count(settings, "speculative.steps")?, count(settings, "speculative.topk")?);
    let tokens = count(settings, "speculative.draft_tokens")?;
    let most = topk.checked_mul(topk)?.checked_mul(steps.saturating_sub(1))?.checked_add(topk + 1)?;
    let text = format!("a tree of {steps} steps with {topk} branches has at most {most} tokens, not {tokens}");
    (topk > 1 && steps > 0 && tokens > most).then(|| {
        Fault::new("rule", "speculative.draft_tokens", text)
            .help("lower it, or raise `speculative.steps` or `speculative.topk`")
    })
}

fn served_name(settings: &Settings) -> Option<Fault> {
    let name = settings.get("model.served_name")?.as_str()?;
    name.contains(':').then(|| {
        Fault::new("rule", "model.served_name", format!("`{name}` holds a `:`, over which SGLang ends at its start"))
            .help("set `model.served_name` to a name without one")
    })
}

fn ranks(at: &At<'_>, settings: &Settings) -> Option<Fault> {
    let nodes = at.seat.of as u64;
    let size = |key: &str| count(settings, key).unwrap_or(1);
    let (tensor, pipeline, data) = (size("parallel.tensor"), size("parallel.pipeline"), size("parallel.data"));
    let of_attention = matches!(at.profile.flags.get("enable-dp-attention"), Some(Flag::Switch(true)));
    if data > 1 && !of_attention {
        let text = "SGLang does not spread whole copies of a model over nodes";
        return Some(
            Fault::new("rule", "parallel.data", text)
                .help("start one server a node, or share the attention alone: `flags: {enable-dp-attention: true}`"),
        );
    }
    (tensor * pipeline % nodes != 0).then(|| uneven("ranks", "parallel.tensor", tensor * pipeline, nodes))
}
