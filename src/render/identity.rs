//! What makes two workloads the same.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{Api, Lengths, Special, Stop, Workload};
use crate::profile::Prompt;

/// Everything that decides what is sent, in the engine-neutral form: the same workload has one hash on all engines, so
/// that they can be compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    /// Raised when what is sent changes although none of the other fields does.
    pub(crate) form: u32,
    pub(crate) api: Api,
    pub(crate) prompts: &'a [Prompt],
    pub(crate) stop: Stop,
    pub(crate) sampling: &'a Map<String, Value>,
    pub(crate) cold_prefix: bool,
    pub(crate) seed: u64,
    pub(crate) lengths: &'a Lengths,
    pub(crate) special: &'a Special,
}

impl Identity<'_> {
    /// `sha256:<hex>`.
    pub(crate) fn hash(&self) -> String {
        let Identity { form, api, prompts, stop, sampling, cold_prefix, seed, lengths, special } = self;
        // `json!` cannot fail here: each of these is a plain struct, a list or a map with text keys.
        let mut whole = serde_json::json!({
            "form": form,
            "api": api,
            "prompts": prompts,
            "stop": stop,
            "sampling": sampling,
            "cold_prefix": cold_prefix,
            "seed": seed,
        });
        // Only where there are any: workloads of before keep their hash.
        if **lengths != Lengths::default() {
            whole["lengths"] = serde_json::json!(lengths);
        }
        if **special != Special::default() {
            whole["special"] = serde_json::json!(special);
        }
        // A value tree has its keys sorted first: in which order a person wrote `sampling` changes nothing.
        let sorted = sorted(whole);
        let digest = Sha256::digest(sorted.to_string().as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        scalar => scalar,
    }
}

impl Workload {
    /// A workload without sampling parameters or wishes about the prefix cache.
    pub fn plain(name: &str, api: Api, prompts: Vec<Prompt>, stop: Stop, seed: u64, lengths: Lengths) -> Self {
        Workload::special(name, api, prompts, stop, seed, lengths, Special::default())
    }

    /// The same with what few workloads have.
    pub fn special(
        name: &str,
        api: Api,
        prompts: Vec<Prompt>,
        stop: Stop,
        seed: u64,
        lengths: Lengths,
        special: Special,
    ) -> Self {
        let sampling = Map::new();
        let identity = Identity {
            form: 1,
            api,
            prompts: &prompts,
            stop,
            sampling: &sampling,
            cold_prefix: false,
            seed,
            lengths: &lengths,
            special: &special,
        };
        Workload {
            name: name.to_owned(),
            hash: identity.hash(),
            api,
            prompts,
            stop,
            body: sampling,
            cold_prefix: false,
            seed,
            lengths,
            special,
        }
    }
}
