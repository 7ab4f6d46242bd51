//! Whether an acceptance was measured on text as it is really written: it says nothing of other text.

use std::collections::HashSet;

use crate::render::{Api, Step, Stop, Warning};

/// Fewer distinct prompts than this are a sample of few texts.
pub const LEAST_PROMPTS: usize = 64;

/// What makes the acceptance of a step one of unreal text. The step stays valid: its speeds are what they are.
pub(super) fn warnings(step: &Step) -> Vec<Warning> {
    let workload = &step.workload;
    let mut warnings = Vec::new();
    if let Stop::Exact { tokens } = workload.stop {
        let text = format!(
            "the acceptance of `{}` is of answers forced to {tokens} tokens, past where the model would have stopped: what comes after is easier or harder to draft than real text. Use `output: {{stop: natural, max_tokens: {tokens}}}`",
            step.name
        );
        warnings.push(Warning::new("forced_past_eos", text));
    }
    if workload.api == Api::Completions {
        let text = format!(
            "the acceptance of `{}` is of prompts without the chat template, which a draft for chats was not made for. Use `api: chat`",
            step.name
        );
        warnings.push(Warning::new("no_chat_template", text));
    }
    let distinct = workload.prompts.iter().map(|prompt| prompt.text.as_str()).collect::<HashSet<_>>().len();
    if distinct < LEAST_PROMPTS {
        let text = format!(
            "the acceptance of `{}` is of {distinct} distinct prompts: at least {LEAST_PROMPTS} are needed for one that holds for texts of their kind",
            step.name
        );
        warnings.push(Warning::new("few_prompts", text));
    }
    warnings
}
