//! What must be computed for an engine, beyond spelling its settings: one small implementation where one is needed.

mod llamacpp;
mod sglang;
mod sim;
mod vllm;

use indexmap::IndexMap;
use serde_json::Value;

use super::nodes::Seat;
use super::{Facts, Fault};
use crate::engine::{Choice, Definition};
use crate::profile::{EngineKind, Profile};

/// Settings by neutral key.
pub(super) type Settings = IndexMap<String, Value>;

/// What a command is made of.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) profile: &'a Profile,
    pub(super) definition: &'a Definition,
    pub(super) facts: &'a Facts,
    /// Which of the nodes it is for.
    pub(super) seat: &'a Seat,
}

impl At<'_> {
    /// The engine's word for the value of a setting, in this version.
    fn word(&self, key: &str, settings: &Settings) -> Option<String> {
        let value = crate::engine::settings::plain(settings.get(key)?);
        match self.definition.settings.get(key)?.choose(&self.facts.version, settings) {
            Choice::Known(spelling) | Choice::Between(spelling) => spelling.word(value).ok(),
            Choice::Gone | Choice::NotHere => None,
        }
    }
}

/// An engine's own logic.
pub(super) trait Logic {
    /// Adds what follows from the neutral settings, so that the definition can spell it.
    fn derive(&self, at: &At<'_>, settings: &mut Settings) -> Vec<Fault>;

    /// Whether a flag of the profile goes into something that is derived, and so is not written by itself.
    fn takes(&self, _flag: &str) -> bool {
        false
    }
}

/// The logic of a kind.
pub(super) fn of(kind: EngineKind) -> &'static dyn Logic {
    match kind {
        EngineKind::Llamacpp => &llamacpp::LlamaCpp,
        EngineKind::Sglang => &sglang::Sglang,
        EngineKind::Vllm => &vllm::Vllm,
        EngineKind::Sim => &sim::Sim,
        EngineKind::Trtllm | EngineKind::Command | EngineKind::Other(_) => &Plain,
    }
}

/// Nothing to compute.
struct Plain;

impl Logic for Plain {
    fn derive(&self, _: &At<'_>, _: &mut Settings) -> Vec<Fault> {
        Vec::new()
    }
}

fn count(settings: &Settings, key: &str) -> Option<u64> {
    settings.get(key).and_then(Value::as_u64)
}

/// What the nodes of a server need to find each other, under the keys that definitions spell.
fn meet(at: &At<'_>, settings: &mut Settings) {
    let Seat { rank, head, meeting_port, .. } = at.seat;
    settings.insert("derived.node_rank".to_owned(), (*rank).into());
    settings.insert("derived.head".to_owned(), format!("{head}:{meeting_port}").into());
    settings.insert("derived.head_address".to_owned(), head.clone().into());
    settings.insert("derived.head_port".to_owned(), (*meeting_port).into());
}

/// A number of ranks that cannot be spread evenly over the nodes.
fn uneven(what: &str, key: &str, ranks: u64, nodes: u64) -> Fault {
    Fault::new("uneven", key, format!("{ranks} {what} do not spread evenly over {nodes} nodes"))
        .help("make it a multiple of `parallel.nodes`")
}
