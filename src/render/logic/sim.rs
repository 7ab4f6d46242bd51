//! The simulated engine: all that a profile asks for goes into its scenario.

use serde_json::{Map, Value};

use super::{At, Fault, Logic, Settings};

pub(super) struct Sim;

impl Logic for Sim {
    /// What the profile asks for joins the scenario; where both say something, the profile does.
    fn derive(&self, at: &At<'_>, settings: &mut Settings) -> Vec<Fault> {
        let mut scenario = match &at.profile.engine.scenario {
            Some(Value::Object(scenario)) => scenario.clone(),
            _ => Map::new(),
        };
        let mut ask = |path: &[&str], value: Option<&Value>| {
            let Some(value) = value else { return };
            let mut into = &mut scenario;
            for key in &path[..path.len() - 1] {
                let inner = into.entry(*key).or_insert_with(|| Value::Object(Map::new()));
                let Value::Object(inner) = inner else { return };
                into = inner;
            }
            into.insert(path[path.len() - 1].to_owned(), value.clone());
        };
        let played = at.profile.engine.pretends.map(|kind| Value::from(kind.word()));
        ask(&["as"], played.as_ref());
        ask(&["version"], Some(&at.facts.version.0.clone().into()));
        for (path, key) in [
            (&["served_name"][..], "model.served_name"),
            (&["ranks"], "parallel.tensor"),
            (&["speculative", "steps"], "speculative.steps"),
            (&["memory", "fraction"], "memory.fraction"),
            (&["context_length"], "context_length"),
            (&["max_running_requests"], "max_running_requests"),
            (&["serve", "graph_max_batch"], "graphs.max_batch"),
        ] {
            ask(path, settings.get(key));
        }
        if !at.profile.instrument {
            ask(&["serve", "metrics"], Some(&Value::Bool(false)));
        }
        settings.insert("derived.scenario".to_owned(), Value::Object(scenario).to_string().into());
        Vec::new()
    }
}
