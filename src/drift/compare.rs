//! A draft of a profile's own command against a draft of the one that was found.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::Comparison;
use crate::engine::settings::KEYS;
use crate::engine::{Definition, Requirement, Version};
use crate::import::Draft;
use crate::profile::{Flag, Port, Profile, Via};

/// What a profile asks for.
pub struct Asked<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// Its rendered command, imported.
    pub draft: &'a Draft,
    /// Its engine's definition.
    pub definition: &'a Definition,
}

/// Variables that choose GPUs: unless the profile names them, orch sets them when it starts a server.
const CHOSEN: &[&str] = &["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

/// Compares all that a profile says with a command that was found.
pub fn compare(asked: &Asked<'_>, found: &Draft) -> Comparison {
    let mut comparison = Comparison::default();
    engine(asked, found, &mut comparison);
    if asked.draft.engine.kind != found.engine.kind {
        comparison.apart("everything else: the words of two engines cannot be compared");
        return comparison;
    }
    for key in KEYS.iter().filter(|key| !matches!(**key, "host" | "port" | "instrument")) {
        comparison.hold(key, asked.draft.settings.get(*key).cloned(), found.settings.get(*key).cloned());
    }
    port(asked, found, &mut comparison);
    if asked.definition.settings.contains_key("instrument") {
        comparison.hold("instrument", Some(instrument(asked.draft)), Some(instrument(found)));
    }
    flags(asked, found, &mut comparison);
    if asked.draft.args != found.args {
        let list = |words: &[String]| (!words.is_empty()).then(|| json!(words));
        comparison.hold("args", list(&asked.draft.args), list(&found.args));
    }
    environment(asked, found, &mut comparison);
    container(asked, found, &mut comparison);
    for what in &found.apart {
        comparison.apart(format!("`{what}`: no profile says it"));
    }
    unknown(found, &mut comparison);
    comparison
}

/// What the command gives a value that is not known here neither differs nor is the same.
fn unknown(found: &Draft, comparison: &mut Comparison) {
    for key in &found.unknown {
        let head = key.strip_prefix("derived.").map_or(key.as_str(), |_| "speculative");
        comparison
            .differences
            .retain(|difference| difference.key != *key && !difference.key.starts_with(&format!("{head}.")));
        comparison.apart(format!("`{key}`: what the command gives it is not known here"));
    }
    for text in &found.unread {
        comparison.apart(text);
    }
}

fn engine(asked: &Asked<'_>, found: &Draft, comparison: &mut Comparison) {
    let (wanted, has) = (&asked.draft.engine, &found.engine);
    comparison.hold("engine.kind", Some(json!(wanted.kind)), Some(json!(has.kind)));
    if wanted.kind != has.kind {
        return;
    }
    if let Some(condition) = &asked.profile.engine.version {
        let requirement = condition.parse::<Requirement>().ok();
        match has.version.as_deref().and_then(|text| text.strip_prefix("==")) {
            Some(version) if requirement.is_some_and(|wanted| wanted.allows(&Version::from(version))) => {
                comparison.same += 1
            }
            Some(version) => comparison.hold("engine.version", Some(json!(condition)), Some(json!(version))),
            None => comparison.apart("`engine.version`: nothing there tells it"),
        }
    }
    if wanted.executable != has.executable {
        let program = |name: &Option<String>| name.as_ref().map(|name| json!(name));
        let is_path = |name: &Option<String>| name.as_ref().is_some_and(|name| name.starts_with('/'));
        if is_path(&wanted.executable) && is_path(&has.executable) {
            comparison.hold("engine.executable", program(&wanted.executable), program(&has.executable));
        } else {
            let name = |name: &Option<String>| {
                name.clone().or_else(|| asked.definition.executable.clone()).unwrap_or_else(|| "none".to_owned())
            };
            let (wanted, has) = (name(&wanted.executable), name(&has.executable));
            comparison.apart(format!(
                "`engine.executable`: whether `{wanted}` and `{has}` are the same program is not known"
            ));
        }
    }
    let words = |words: &[String]| (!words.is_empty()).then(|| json!(words));
    if wanted.command != has.command {
        comparison.hold("engine.command", words(&wanted.command), words(&has.command));
    }
    if wanted.scenario != has.scenario {
        comparison.hold("engine.scenario", wanted.scenario.clone(), has.scenario.clone());
    }
}

fn port(asked: &Asked<'_>, found: &Draft, comparison: &mut Comparison) {
    let has = found.settings.get("port").cloned();
    match (asked.profile.port, has) {
        (Port::Fixed(port), Some(has)) => comparison.hold("port", Some(json!(port)), Some(has)),
        (Port::Fixed(port), None) => {
            comparison.apart(format!("`port`: {port} is asked for, and the command leaves it to the engine"))
        }
        (Port::Auto, _) => comparison.apart("`port`: the profile leaves it to orch"),
    }
}

/// As a word: what is not said is on.
fn instrument(draft: &Draft) -> Value {
    let off = draft.settings.get("instrument") == Some(&Value::Bool(false));
    json!(if off { "off" } else { "on" })
}

fn flags(asked: &Asked<'_>, found: &Draft, comparison: &mut Comparison) {
    let plain = |name: &String| name.replace('_', "-");
    let of = |draft: &Draft| -> IndexMap<String, Flag> {
        draft.flags.iter().map(|(name, value)| (plain(name), value.clone())).collect()
    };
    let (wanted, has) = (of(asked.draft), of(found));
    let names: BTreeSet<&String> = wanted.keys().chain(has.keys()).collect();
    for name in names {
        // Where a command leaves out what orch adds, the draft says `false`; where it has it, nothing.
        let default =
            asked.definition.defaults.iter().find(|words| words.flag.trim_start_matches('-') == name.as_str());
        let value = |flag: Option<&Flag>| match (flag, default) {
            (Some(Flag::Switch(false)), _) => None,
            (Some(Flag::Switch(on)), _) => Some(json!(on)),
            (Some(Flag::Value(value)), _) => Some(json!(value)),
            (Some(Flag::List(values)), _) => Some(json!(values)),
            (None, Some(words)) => Some(words.value.as_ref().map_or(json!(true), |value| json!(value))),
            (None, None) => None,
        };
        comparison.hold(&format!("flags.{name}"), value(wanted.get(name)), value(has.get(name)));
    }
}

fn environment(asked: &Asked<'_>, found: &Draft, comparison: &mut Comparison) {
    let names: BTreeSet<&String> = asked.draft.env.keys().chain(found.env.keys()).collect();
    for name in names {
        let (wanted, has) = (asked.draft.env.get(name), found.env.get(name));
        if wanted.is_none() && CHOSEN.contains(&name.as_str()) {
            comparison.apart(format!("`env.{name}`: the profile leaves the GPUs to orch"));
            continue;
        }
        comparison.hold(&format!("env.{name}"), wanted.map(|value| json!(value)), has.map(|value| json!(value)));
    }
    let secrets: BTreeSet<&String> = asked.profile.secrets.iter().chain(&found.secrets).collect();
    for name in secrets {
        comparison.apart(format!("the secret `{name}`: its value is not looked at"));
    }
}

fn container(asked: &Asked<'_>, found: &Draft, comparison: &mut Comparison) {
    let wanted = match &asked.profile.launch.via {
        Via::Docker { image, options } => Some((image.clone(), options.clone())),
        Via::Process | Via::Systemd => None,
    };
    let image = |of: &Option<(String, Vec<String>)>| of.as_ref().map(|(image, _)| json!(image));
    if wanted.is_some() || found.container.is_some() {
        comparison.hold("launch.via.docker.image", image(&wanted), image(&found.container));
    }
    if let (Some((_, wanted)), Some((_, has))) = (&wanted, &found.container) {
        let sorted = |words: &Vec<String>| words.iter().cloned().collect::<BTreeSet<String>>();
        if sorted(wanted) != sorted(has) {
            comparison.hold("launch.via.docker.options", Some(json!(wanted)), Some(json!(has)));
        }
    }
}
