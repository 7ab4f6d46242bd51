//! The command line: settings in the engine's spelling, the profile's own flags, and the template that orders them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::flags::{Known, dashed};
use super::logic::{self, At, Settings};
use super::{Facts, Fault, Warning, packaged};
use crate::engine::{Choice, Definition, Row, Spelling, kind_word, settings};
use crate::profile::{EngineKind, Profile, Via};

/// What a command came to.
pub(super) struct Command {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) warnings: Vec<Warning>,
}

/// Renders the command of one node, or says everything that stands against it.
pub(super) fn render(at: &At<'_>) -> Result<Command, Vec<Fault>> {
    let At { profile, definition, facts, .. } = *at;
    let mut faults = Vec::new();
    let mut warnings = Vec::new();
    let mut settings = settings::of(profile);
    place(&mut settings, definition, facts, &mut faults);
    let own_words = settings::own_words(profile);
    rules(definition, &joined(&settings, &own_words), facts, &mut faults, &mut warnings);
    let logic = logic::of(profile.engine.kind);
    faults.extend(logic.derive(at, &mut settings));
    let kept = definition.flag_lists.of(&facts.version);
    let list = facts.flags.as_ref().or(kept.as_ref());
    let known = Known { definition, version: &facts.version, list };
    let mut env = definition.env.clone();
    let spelled = spell(at, &settings, &own_words, &mut env, &mut faults, &mut warnings);
    for setting in &spelled {
        faults.extend(known.setting(&setting.key, &setting.words));
    }
    let flags = known.flags(profile, |flag| logic.takes(flag), &mut faults);
    known.args(profile, &mut faults);
    env.extend(devices(profile, facts));
    env.extend(profile.env.clone());
    let executable = executable(profile, definition, facts, &mut faults);
    let mut context = named(&settings);
    context.insert("name".into(), json!(profile.name));
    context.insert("engine".into(), json!({"kind": kind_word(profile.engine.kind), "version": facts.version.0}));
    context.insert("executable".into(), json!(executable));
    context.insert("settings".into(), json!(spelled));
    context.insert("defaults".into(), json!(defaults(profile, definition)));
    context.insert("flags".into(), json!(flags));
    context.insert("args".into(), json!(profile.args));
    context.insert("command".into(), json!(own_command(profile, &settings)));
    no_nul(&context, &env, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    let argv = definition.template.words(&Value::Object(context)).map_err(|error| {
        vec![
            Fault::new("template", "engine.kind", error.to_string())
                .help("mend the template: a field that may be unset stands inside `{{#if …}}`"),
        ]
    })?;
    if argv.is_empty() {
        return Err(vec![Fault::new(
            "template",
            "engine.kind",
            format!("{} gives no words", definition.template.name),
        )]);
    }
    Ok(Command { argv, env, warnings })
}

/// Settings beside what the profile gives in the engine's own words, for conditions.
fn joined(settings: &Settings, own_words: &Settings) -> Settings {
    settings.iter().chain(own_words).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// A setting in the engine's words.
#[derive(Serialize)]
struct Setting {
    key: String,
    words: Vec<String>,
}

/// Shows the server the GPUs that were chosen for it, where there are others. By number, since some engines read nothing
/// else there, and in the order that the numbers are given in. A container is given its GPUs by its engine.
fn devices(profile: &Profile, facts: &Facts) -> BTreeMap<String, String> {
    let chosen = facts.gpus.iter().filter(|gpu| facts.devices.contains(&gpu.uuid));
    let numbers: Vec<String> = chosen.map(|gpu| gpu.index.to_string()).collect();
    let by_container = matches!(profile.launch.via, Via::Docker { .. });
    let named = profile.env.contains_key("CUDA_VISIBLE_DEVICES");
    if numbers.is_empty() || numbers.len() == facts.gpus.len() || by_container || named {
        return BTreeMap::new();
    }
    [("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()), ("CUDA_VISIBLE_DEVICES", numbers.join(","))]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

/// Puts in what the place decides.
fn place(settings: &mut Settings, definition: &Definition, facts: &Facts, faults: &mut Vec<Fault>) {
    settings.insert("host".into(), json!(definition.bind));
    settings.insert("port".into(), json!(facts.port));
    for key in ["model.path", "speculative.model"] {
        let Some(Value::String(path)) = settings.get_mut(key) else { continue };
        if !path.starts_with("package:") {
            continue;
        }
        match packaged(path, facts.environment.as_deref()) {
            Some(file) => *path = file.to_string_lossy().into_owned(),
            None => faults.push(
                Fault::new(
                    "no_package",
                    key,
                    format!("`{path}` is a file of a package, and the profile installs none"),
                )
                .help("name the package under `engine.install`"),
            ),
        }
    }
}

fn rules(
    definition: &Definition,
    settings: &Settings,
    facts: &Facts,
    faults: &mut Vec<Fault>,
    warnings: &mut Vec<Warning>,
) {
    let fits = |versions: &Option<crate::engine::Requirement>| {
        versions.as_ref().is_none_or(|versions| versions.allows(&facts.version))
    };
    for rule in definition.rules.iter().filter(|rule| fits(&rule.versions)) {
        if rule.when.holds(settings) && !rule.need.as_ref().is_some_and(|need| need.holds(settings)) {
            // The value that is wrong, if there is one; else what asks for it.
            let wrong =
                rule.need.as_ref().and_then(|need| need.key(settings)).filter(|key| settings.contains_key(*key));
            let key = wrong.or_else(|| rule.when.key(settings)).unwrap_or("engine.kind");
            let fault = Fault::new("rule", key, &rule.say);
            faults.push(match &rule.help {
                Some(help) => fault.help(help),
                None => fault,
            });
        }
    }
    for trap in definition.warnings.iter().filter(|trap| fits(&trap.versions) && trap.when.holds(settings)) {
        warnings.push(Warning::new(&trap.id, &trap.say));
    }
}

/// The words of each setting, in the definition's order.
fn spell(
    at: &At<'_>,
    values: &Settings,
    own_words: &Settings,
    env: &mut BTreeMap<String, String>,
    faults: &mut Vec<Fault>,
    warnings: &mut Vec<Warning>,
) -> Vec<Setting> {
    let At { profile, definition, facts, .. } = *at;
    let engine = kind_word(definition.kind);
    for (key, value) in values {
        // Off is what an engine without the setting does anyway.
        let off = *value == Value::Bool(false) && key == "instrument";
        // The port and the address always are somewhere; a template may name them itself. So is the name, but for one
        // that was asked for.
        let placed = matches!(key.as_str(), "host" | "port" | "model.path" | "instrument")
            || (key == "model.served_name" && profile.model.served_name.is_none());
        let derived = key.starts_with("derived.");
        if !off && !placed && !derived && !definition.settings.contains_key(key) {
            faults.push(unsupported(definition, key));
        }
    }
    let conditions = joined(values, own_words);
    let mut spelled = Vec::new();
    for (key, row) in &definition.settings {
        let Some(value) = values.get(key) else { continue };
        let spelling = match row.choose(&facts.version, &conditions) {
            Choice::Known(spelling) => spelling,
            Choice::Between(spelling) => {
                let text = format!(
                    "{} lies between two known spellings of `{key}`: the later one, `{}`, is taken",
                    facts.version,
                    spelling.flag.join(" ")
                );
                warnings.push(Warning::new("spelling_between", text));
                spelling
            }
            Choice::Gone => {
                faults.push(gone(key, value, row, facts, engine));
                continue;
            }
            Choice::NotHere => {
                faults.push(
                    Fault::new(
                        "unsupported",
                        settings::origin(key),
                        format!("{engine} has no such setting beside the others here"),
                    )
                    .help("take it out, or use the engine's own flag under `flags` if there is one"),
                );
                continue;
            }
        };
        match spelling.spell(value) {
            Ok(words) => {
                if let Some((name, _)) = words.env.as_ref().filter(|(name, _)| profile.env.contains_key(name)) {
                    let text = format!("`{name}` carries `{key}`, and `env` sets it too");
                    faults.push(
                        Fault::new("owned_flag", format!("env.{name}"), text).help(format!("`{key}` alone is enough")),
                    );
                }
                env.extend(words.env);
                if !words.words.is_empty() {
                    spelled.push(Setting { key: key.clone(), words: words.words });
                }
            }
            Err(unknown) => faults.push(
                Fault::new(
                    "unsupported",
                    settings::origin(key),
                    format!("{engine} has no `{}`", settings::plain(value)),
                )
                .help(format!("it has `{}`", unknown.known.join("`, `"))),
            ),
        }
    }
    spelled
}

/// A setting, or a word of it, that other versions have.
fn gone(key: &str, value: &Value, row: &Row, facts: &Facts, engine: &str) -> Fault {
    let version = &facts.version;
    let is_word = row.spellings.iter().any(|spelling| !spelling.values.is_empty());
    let what = if is_word { format!("`{}`", settings::plain(value)) } else { "such setting".to_owned() };
    let has =
        |spelling: &&Spelling| spelling.values.is_empty() || spelling.values.contains_key(&settings::plain(value));
    let first = row.spellings.iter().filter(has).filter_map(|spelling| spelling.from.as_ref());
    let first = first
        .filter(|from| version.is_before(from))
        .min_by(|one, two| one.compare(two).unwrap_or(std::cmp::Ordering::Equal));
    Fault::new("unsupported", settings::origin(key), format!("{engine} {version} has no {what}")).help(match first {
        Some(first) => format!("{first} has it: take it out, or change the version"),
        None => "other versions have it: take it out, or change the version".to_owned(),
    })
}

fn unsupported(definition: &Definition, key: &str) -> Fault {
    let engine = kind_word(definition.kind);
    let fault = Fault::new("unsupported", key, format!("{engine} has no such setting"));
    fault.help(match key {
        "memory.fraction" if definition.settings.contains_key("memory.gpu_layers") => {
            "it fills no fraction of the memory: set `memory.gpu_layers` and `context_length`"
        }
        "speculative.topk" | "speculative.draft_tokens" => {
            "it drafts a chain and has no trees: `speculative.steps` says how long it is"
        }
        _ => "take it out, or use the engine's own flag under `flags` if there is one",
    })
}

/// The definition's own words, but for flags that the profile gives.
fn defaults(profile: &Profile, definition: &Definition) -> Vec<Value> {
    let given: Vec<String> = profile
        .flags
        .keys()
        .map(|name| dashed(name))
        .chain(profile.args.iter().map(|word| word.split_once('=').map_or(word.clone(), |(flag, _)| flag.to_owned())))
        .collect();
    let open = definition
        .defaults
        .iter()
        .filter(|words| !given.contains(&words.flag) && !words.aliases.iter().any(|alias| given.contains(alias)));
    open.map(|words| {
        let all: Vec<&String> = std::iter::once(&words.flag).chain(&words.value).collect();
        json!({"flag": words.flag, "words": all})
    })
    .collect()
}

/// The program: as found; else in the environment; else by its name.
fn executable(profile: &Profile, definition: &Definition, facts: &Facts, faults: &mut Vec<Fault>) -> Option<String> {
    if profile.engine.kind == EngineKind::Command {
        return None;
    }
    let name = facts.executable.as_ref().or(profile.engine.executable.as_ref()).or(definition.executable.as_ref());
    let Some(name) = name else {
        faults.push(Fault::new(
            "no_executable",
            "engine.executable",
            "neither the profile nor the engine's definition names a program",
        ));
        return None;
    };
    Some(match &facts.environment {
        Some(environment) => in_environment(environment, name).to_string_lossy().into_owned(),
        None => name.clone(),
    })
}

/// A name is in `bin/`, a relative path begins at the environment, an absolute one stays.
pub(crate) fn in_environment(environment: &Path, name: &str) -> PathBuf {
    if name.contains('/') { environment.join(name) } else { environment.join("bin").join(name) }
}

/// The words of `kind: command`, with `{port}`, `{model}` and `{host}` filled in.
fn own_command(profile: &Profile, values: &Settings) -> Vec<String> {
    let value = |key: &str| values.get(key).map(settings::plain).unwrap_or_default();
    let (port, model, host) = (value("port"), value("model.path"), value("host"));
    profile
        .engine
        .command
        .iter()
        .map(|word| fill(word, &[("{port}", &port), ("{model}", &model), ("{host}", &host)]))
        .collect()
}

/// One pass, so that what was filled in is not filled again.
fn fill(word: &str, with: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        match with.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => {
                text.push_str(value);
                rest = &rest[name.len()..];
            }
            None => {
                text.push('{');
                rest = &rest[1..];
            }
        }
    }
    text + rest
}

/// Settings as nested fields: `model.path` is `path` of `model`.
fn named(settings: &Settings) -> Map<String, Value> {
    let mut context = Map::new();
    for (key, value) in settings {
        match key.split_once('.') {
            None => {
                context.insert(key.clone(), value.clone());
            }
            Some((group, field)) => {
                if let Value::Object(fields) = context.entry(group).or_insert_with(|| json!({})) {
                    fields.insert(field.to_owned(), value.clone());
                }
            }
        }
    }
    context
}

/// A word with a NUL byte cannot be given to a process.
fn no_nul(context: &Map<String, Value>, env: &BTreeMap<String, String>, faults: &mut Vec<Fault>) {
    let mut check = |key: String, value: &Value| {
        if has_nul(value) {
            faults.push(Fault::new("nul", key, "holds a NUL byte, which no command line can carry"));
        }
    };
    for (group, value) in context {
        match (group.as_str(), value) {
            // The values of settings once more, spelled.
            ("settings", _) => {}
            ("flags", Value::Array(flags)) => {
                flags.iter().for_each(|flag| check(format!("flags.{}", settings::plain(&flag["name"])), flag));
            }
            ("args", Value::Array(words)) => {
                words.iter().enumerate().for_each(|(place, word)| check(format!("args[{place}]"), word));
            }
            ("command", Value::Array(words)) => {
                words.iter().enumerate().for_each(|(place, word)| check(format!("engine.command[{place}]"), word));
            }
            ("executable", _) => check("engine.executable".to_owned(), value),
            (_, Value::Object(fields)) => {
                fields.iter().for_each(|(field, value)| check(format!("{group}.{field}"), value));
            }
            _ => check(group.clone(), value),
        }
    }
    for (name, value) in env {
        if value.contains('\0') {
            faults.push(Fault::new("nul", format!("env.{name}"), "holds a NUL byte, which no environment can carry"));
        }
    }
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.values().any(has_nul),
        _ => false,
    }
}
