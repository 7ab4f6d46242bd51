//! llama.cpp: the pool of tokens that its slots share, and how it is split over GPUs.

use super::{At, Fault, Logic, Settings, count};

pub(super) struct LlamaCpp;

/// What llama-server takes when it is not told, and what orch then tells it, so that the pool is what it should be.
const AUTOMATIC_SLOTS: u64 = 4;

impl Logic for LlamaCpp {
    fn derive(&self, _: &At<'_>, settings: &mut Settings) -> Vec<Fault> {
        split(settings);
        pool(settings).into_iter().collect()
    }
}

/// Without shares it would fill the GPUs by their free memory, and two starts would differ.
fn split(settings: &mut Settings) {
    let gpus =
        ["parallel.tensor", "parallel.pipeline"].iter().find_map(|key| count(settings, key).filter(|gpus| *gpus > 1));
    if let Some(gpus) = gpus {
        let shares = vec!["1"; usize::try_from(gpus).unwrap_or(1)].join(",");
        settings.insert("derived.tensor_split".to_owned(), shares.into());
    }
}

/// `--ctx-size` is shared by all slots.
fn pool(settings: &mut Settings) -> Option<Fault> {
    let context = count(settings, "context_length")?;
    let slots = settings.entry("max_running_requests".to_owned()).or_insert_with(|| AUTOMATIC_SLOTS.into());
    let slots = slots.as_u64().unwrap_or(AUTOMATIC_SLOTS);
    let Some(pool) = slots.checked_mul(context).filter(|pool| *pool <= u32::MAX.into()) else {
        let message = format!("{context} tokens for each of {slots} requests are more than llama-server can count");
        let fault = Fault::new("too_large", "context_length", message);
        return Some(fault.help("lower `context_length` or `max_running_requests`"));
    };
    settings.insert("derived.pool_tokens".to_owned(), pool.into());
    None
}
