//! Options become settings: the rows of the definition read from the right to the left.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::docker::{self, Container};
use super::options::{self, Given, Means};
use super::{Beside, Draft, ImportError, Program, environment, logic, open, secret, typed, version};
use crate::engine::{Choice, Definition, ModelIs, Spelling, Version, settings};
use crate::profile::{EngineKind, Flag};

/// Makes a profile of a command whose engine is known.
pub(super) fn draft(program: Program, definition: &Definition, beside: &Beside<'_>) -> Result<Draft, ImportError> {
    let mut inverse = Inverse {
        draft: Draft::of(program.kind),
        definition,
        is_set: beside.is_set,
        seen: Vec::new(),
        several: IndexMap::new(),
        config: Map::new(),
        worded: Vec::new(),
        instrumented: Vec::new(),
    };
    inverse.draft.notes = program.notes.iter().map(|text| super::Note { key: None, text: text.clone() }).collect();
    for text in &program.unread {
        inverse.draft.note(text);
    }
    inverse.draft.unread.clone_from(&program.unread);
    inverse.environment(&program);
    match program.kind {
        EngineKind::Command => logic::command(&program, &mut inverse.draft, beside.is_set),
        EngineKind::Sim => logic::sim(&program, &mut inverse.draft)?,
        _ => inverse.options(&program)?,
    }
    let said = beside.version.clone().or_else(|| {
        let image = &program.container.as_ref()?.image;
        docker::version(image).map(|version| Version::from(version.as_str()))
    });
    version::choose(&mut inverse.draft, &inverse.seen, definition, said);
    inverse.by_environment();
    inverse.executable(&program);
    if let Some(container) = &program.container {
        inverse.container(container);
    }
    Ok(inverse.draft)
}

/// What has been made of the options so far.
struct Inverse<'d> {
    draft: Draft,
    definition: &'d Definition,
    is_set: &'d dyn Fn(&str) -> bool,
    /// Which spelling of a setting the command used.
    seen: Vec<(&'d str, &'d Spelling)>,
    /// Values of settings that several flags carry, by the flag's place.
    several: IndexMap<&'d str, (&'d Spelling, Vec<Option<String>>)>,
    /// vLLM's JSON of everything about speculation.
    config: Map<String, Value>,
    /// Settings that were said by words without a value.
    worded: Vec<&'d str>,
    /// Flags of `instrument` that were there.
    instrumented: Vec<(String, &'d Spelling)>,
}

impl<'d> Inverse<'d> {
    fn options(&mut self, program: &Program) -> Result<(), ImportError> {
        for given in options::read(&program.words, self.definition) {
            self.take(given);
        }
        self.shared();
        logic::invert(&mut self.draft, std::mem::take(&mut self.config), &self.worded, self.definition);
        self.instrument();
        self.defaults();
        self.model(program)
    }

    fn take(&mut self, given: Given<'d>) {
        let Given { flag, values, means, many } = given;
        if secret::is_name(&flag) && !values.is_empty() {
            return self.secret(&flag, matches!(means, Means::Owned));
        }
        let shown = || [std::slice::from_ref(&flag), &values].concat().join(" ");
        if values.iter().any(|value| secret::is_value(value)) {
            return self
                .draft
                .leave_out(&format!("{flag} ***"), "its value looks like a secret, which no profile may hold");
        }
        let unknown = values.iter().any(|value| open::in_profile(value, self.is_set).is_none());
        if unknown && !matches!(means, Means::Model | Means::Setting { key: "model.path", .. }) && !self.is_model(&flag)
        {
            let key = match &means {
                Means::Setting { key, .. } => (*key).to_owned(),
                Means::Part { .. } => "speculative".to_owned(),
                _ => format!("flags.{}", flag.trim_start_matches('-')),
            };
            return self.draft.leave_open(&shown(), key);
        }
        match means {
            Means::Model => self.path(values),
            Means::Setting { key, spellings, which } => self.setting(key, &spellings, which, &flag, values),
            Means::Part { path, .. } => match values.first() {
                Some(value) => part(&mut self.config, &path, value),
                None => self.draft.leave_out(&flag, "it has no value"),
            },
            Means::Switch { key: "instrument", on: true, spelling } => self.instrumented.push((flag, spelling)),
            Means::Switch { key: "instrument", .. } => {}
            Means::Switch { key, on, spelling } => {
                self.draft.settings.insert(key.to_owned(), Value::Bool(on));
                self.seen.push((key, spelling));
            }
            Means::Owned => {
                if !logic::owned(self.draft.engine.kind, &flag, &values, &mut self.config, &mut self.draft) {
                    let why = "orch gives it itself, or could not find and measure the server with it";
                    self.draft.leave_out(&shown(), why);
                }
            }
            Means::Words { key, spelling } => {
                self.worded.push(key);
                self.seen.push((key, spelling));
            }
            Means::Free => self.free(flag, values, many),
        }
    }

    /// A word without a flag is the model where the model is named so.
    fn is_model(&self, flag: &str) -> bool {
        flag.is_empty() && self.names_model_first() && !self.draft.settings.contains_key("model.path")
    }

    fn names_model_first(&self) -> bool {
        matches!(self.draft.engine.kind, EngineKind::Vllm | EngineKind::Sglang | EngineKind::Trtllm)
    }

    fn path(&mut self, values: Vec<String>) {
        if let Some(path) = values.into_iter().next() {
            self.draft.settings.insert("model.path".to_owned(), path.into());
        }
    }

    fn secret(&mut self, flag: &str, owned: bool) {
        if owned {
            let why = "orch asks a server of its own without a key, and a key is a secret, which no profile may hold";
            return self.draft.leave_out(&format!("{flag} ***"), why);
        }
        let name = flag.trim_start_matches('-').replace(['-', '.'], "_").to_ascii_uppercase();
        self.draft.apart.push(format!("{flag} ***"));
        self.draft.secret(&name);
        let text = format!(
            "`{flag}` carried a secret on the command line; the server is given ${name} in its environment instead"
        );
        self.draft.note_on("secrets", text);
    }

    fn setting(&mut self, key: &'d str, spellings: &[&'d Spelling], which: usize, flag: &str, values: Vec<String>) {
        let Some(word) = values.first().cloned() else {
            return self.draft.leave_out(flag, "it has no value");
        };
        let kind = self.draft.engine.kind;
        let shown = format!("{flag} {}", values.join(" "));
        let Some(first) = spellings.first().copied() else { return };
        match key {
            // One node is what there is without it.
            "parallel.nodes" if word == "1" => return,
            "derived.node_rank" if word == "0" => return,
            "parallel.nodes" => {
                return self
                    .draft
                    .leave_out(&shown, "name the nodes under `hosts`, and their number under `parallel.nodes`");
            }
            key if logic::of_nodes(key) => return self.draft.leave_out(&shown, "orch gives each node its own"),
            "host" if word == self.definition.bind || word == "localhost" => return,
            "host" => {
                let why = format!(
                    "orch lets its servers listen on {} alone; `orch up` would do so too",
                    self.definition.bind
                );
                return self.draft.leave_out(&shown, &why);
            }
            "derived.speculative_config" => {
                return match serde_json::from_str(&word) {
                    Ok(Value::Object(config)) => self.config.extend(config),
                    _ => self.draft.leave_out(&shown, "it is no JSON object"),
                };
            }
            "model.served_name" if values.len() > 1 => {
                self.draft.note_on(
                    "model",
                    format!("it is served under {} names; a profile has one, the first", values.len()),
                );
            }
            _ => {}
        }
        if first.flag.len() > 1 {
            let flags = first.flag.len();
            let (_, words) = self.several.entry(key).or_insert_with(|| (first, vec![None; flags]));
            if let Some(place) = words.get_mut(which) {
                *place = Some(word);
            }
            return;
        }
        let listed = spellings.iter().find_map(|spelling| {
            let neutral = spelling.values.iter().find(|(_, said)| said.eq_ignore_ascii_case(&word))?;
            Some((*spelling, Value::from(neutral.0.clone())))
        });
        let found = match listed {
            Some((spelling, value)) => Ok((spelling, value)),
            None if !first.values.is_empty() => Err("a profile has no word for it"),
            None if matches!(key, "graphs.batches" | "derived.graph_sizes") => {
                typed::numbers(&values).map(|value| (first, value))
            }
            None if key == "port" => match word.parse::<u16>() {
                Ok(port) if port > 0 => Ok((first, Value::from(port))),
                _ => Err("it is no port"),
            },
            None => typed::value(key, &word, kind).map(|value| (first, value)),
        };
        match found {
            Ok((spelling, value)) => {
                if open::is_open(&word) {
                    self.draft.note_on(
                        top(key),
                        format!("`{}` is filled in from the environment of orch", open::shown(&word)),
                    );
                }
                let before = self.draft.settings.insert(key.to_owned(), value.clone());
                if before.is_some_and(|before| before != value) {
                    self.draft.note_on(
                        top(key),
                        format!("`{flag}` is given more than once: the last one counts, as for the engine"),
                    );
                }
                if word == "all" && key == "memory.gpu_layers" {
                    self.draft.note_on("memory", "`all` layers: more than any model has");
                }
                self.seen.push((key, spelling));
            }
            Err(why) => self.draft.leave_out(&shown, &format!("for `{key}` it is {why}")),
        }
    }

    /// Settings that several flags carry, each with the same value.
    fn shared(&mut self) {
        for (key, (spelling, words)) in std::mem::take(&mut self.several) {
            let whole =
                words.first().cloned().flatten().filter(|first| words.iter().all(|word| word.as_ref() == Some(first)));
            match whole {
                Some(word) => {
                    self.draft.settings.insert(key.to_owned(), word.into());
                    self.seen.push((key, spelling));
                }
                None => {
                    let given = spelling
                        .flag
                        .iter()
                        .zip(&words)
                        .filter_map(|(flag, word)| Some(format!("{flag} {}", word.as_ref()?)));
                    let shown: Vec<String> = given.collect();
                    self.draft.leave_out(
                        &shown.join(" "),
                        &format!("`{key}` gives all of `{}` one value", spelling.flag.join("`, `")),
                    );
                }
            }
        }
    }

    fn free(&mut self, flag: String, values: Vec<String>, follow: bool) {
        if self.is_model(&flag) {
            return self.path(values);
        }
        let name = match (flag.strip_prefix("--"), flag.strip_prefix('-')) {
            (Some(name), _) => Some(name),
            (None, Some(letter)) if letter.chars().count() == 1 => Some(letter),
            _ => None,
        };
        let is_name = |name: &&str| {
            let mut chars = name.chars();
            chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
                && chars.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let raw = |draft: &mut Draft| {
            draft.args.extend(Some(flag.clone()).filter(|flag| !flag.is_empty()));
            draft.args.extend(values.iter().cloned());
        };
        let Some(name) = name.filter(is_name).filter(|_| follow || values.len() < 2) else {
            return raw(&mut self.draft);
        };
        let value = match values.as_slice() {
            [] => Flag::Switch(true),
            [one] => Flag::Value(one.clone()),
            several => Flag::List(several.to_vec()),
        };
        let known = self.draft.flags.get(name).cloned();
        let both = match (known, value) {
            (None, value) => value,
            (Some(Flag::Value(one)), Flag::Value(other)) if !follow => Flag::List(vec![one, other]),
            (Some(Flag::List(mut all)), Flag::Value(other)) if !follow => {
                all.push(other);
                Flag::List(all)
            }
            (Some(known), value) if known == value => value,
            _ => return raw(&mut self.draft),
        };
        self.draft.flags.insert(name.to_owned(), both);
    }

    /// What orch adds to be able to measure: there, not there, or in part.
    fn instrument(&mut self) {
        let Some(row) = self.definition.settings.get("instrument") else { return };
        let spelling = self.instrumented.first().map(|(_, spelling)| *spelling).or(row.spellings.last());
        let Some(spelling) = spelling else { return };
        let wanted = spelling.on.as_ref().unwrap_or(&spelling.flag);
        if spelling.silent || wanted.is_empty() {
            return;
        }
        let is_there = |flag: &&String| {
            self.instrumented.iter().any(|(given, _)| given.split(' ').any(|given| options::same(given, flag)))
        };
        let missing: Vec<&String> = wanted.iter().filter(|flag| !is_there(flag)).collect();
        if missing.len() == wanted.len() {
            self.draft.settings.insert("instrument".to_owned(), Value::Bool(false));
            let text =
                format!("as imported; `on` adds `{}`, by which orch reads the server's counters", wanted.join(" "));
            self.draft.note_on("instrument", text);
        } else if !missing.is_empty() {
            let missing: Vec<&str> = missing.iter().map(|flag| flag.as_str()).collect();
            self.draft.note(format!("`instrument: on` also gives `{}`, which the command did not", missing.join(" ")));
        }
    }

    /// Words that orch adds unless a profile says otherwise: those that the command has need not be said, those that it
    /// has not are taken off.
    fn defaults(&mut self) {
        for default in &self.definition.defaults {
            let asked = self.draft.flags.keys().find(|name| {
                let flag = if name.chars().count() == 1 { format!("-{name}") } else { format!("--{name}") };
                options::names(&default.flag, &default.aliases, &flag)
            });
            let in_args = self.draft.args.iter().position(|word| options::names(&default.flag, &default.aliases, word));
            let bare = default.flag.trim_start_matches('-').to_owned();
            let wanted = default.value.clone().map_or(Flag::Switch(true), Flag::Value);
            match (asked.cloned(), in_args) {
                (Some(name), _) if self.draft.flags.get(&name) == Some(&wanted) => {
                    self.draft.flags.shift_remove(&name);
                }
                (Some(_), _) => {}
                // A short form with several letters is no name in `flags`.
                (None, Some(at)) if self.draft.args.get(at + 1) == default.value.as_ref() => {
                    let length = 1 + usize::from(default.value.is_some());
                    self.draft.args.drain(at..(at + length).min(self.draft.args.len()));
                }
                (None, Some(_)) => {}
                (None, None) => {
                    self.draft.flags.insert(bare.clone(), Flag::Switch(false));
                    let words: Vec<&str> =
                        std::iter::once(default.flag.as_str()).chain(default.value.as_deref()).collect();
                    let text = format!(
                        "`{bare}: false` leaves out orch's own `{}`, as the command did; {}",
                        words.join(" "),
                        default.why
                    );
                    self.draft.note_on("flags", text);
                }
            }
        }
    }

    fn model(&mut self, program: &Program) -> Result<(), ImportError> {
        if !self.draft.settings.contains_key("model.path") {
            self.model_behind_a_switch();
        }
        let Some(Value::String(path)) = self.draft.settings.get("model.path").cloned() else {
            return Err(ImportError::NoModel { command: super::hide(&program.shown()) });
        };
        if open::in_profile(&path, self.is_set).is_none() {
            let shown = open::shown(&path);
            self.draft.note_on(
                "model",
                format!("the command says `{shown}`, which is not known here: write the model's name or path"),
            );
            let name: String =
                shown.chars().map(|c| if c.is_ascii_alphanumeric() || "._-/".contains(c) { c } else { '-' }).collect();
            self.draft.settings.insert("model.path".to_owned(), format!("unknown{name}").into());
            self.draft.unknown.push("model.path".to_owned());
        } else if let Some(folder) = &program.folder
            && !path.starts_with(['/', '~'])
            && !open::is_open(&path)
            && (path.starts_with('.') || self.definition.model == ModelIs::File)
        {
            let path = path.trim_start_matches("./");
            self.draft
                .settings
                .insert("model.path".to_owned(), format!("{}/{path}", folder.trim_end_matches('/')).into());
        }
        self.served_name(&path);
        Ok(())
    }

    /// Without a name of its own a model is served under its path as it was given, where orch takes the last part.
    fn served_name(&mut self, path: &str) {
        if !self.definition.settings.contains_key("model.served_name") {
            return;
        }
        let last = settings::last_part(path);
        let name = self.draft.settings.get("model.served_name").and_then(Value::as_str).map(str::to_owned);
        match name {
            Some(name) if name == last => {
                self.draft.settings.shift_remove("model.served_name");
            }
            Some(_) => {}
            None if self.definition.model == ModelIs::HubOrPath && path != last && !open::is_open(path) => {
                self.draft.settings.insert("model.served_name".to_owned(), path.into());
            }
            None => {}
        }
    }

    /// `vllm serve --enforce-eager MODEL`: what looks like the value of a flag that nothing is known of.
    fn model_behind_a_switch(&mut self) {
        if !self.names_model_first() {
            return;
        }
        const SWITCHES: &[&str] =
            &["enable-", "disable-", "no-", "trust-", "enforce-", "skip-", "async-", "use-", "log-"];
        let is_switch = |name: &str| SWITCHES.iter().any(|head| name.replace('_', "-").starts_with(head));
        let found = self.draft.flags.iter().find_map(|(name, value)| match value {
            Flag::Value(value) if is_switch(name) => Some((name.clone(), value.clone())),
            _ => None,
        });
        if let Some((name, value)) = found {
            self.draft.flags.insert(name, Flag::Switch(true));
            self.path(vec![value]);
        }
    }

    fn environment(&mut self, program: &Program) {
        let mut named = Vec::new();
        for (name, value) in &program.env {
            if environment::is_own(name) || self.definition.env.get(name) == Some(value) {
                continue;
            }
            if secret::is_name(name) || secret::is_value(value) {
                self.draft.secret(name);
                named.push(format!("`{name}`"));
            } else if open::in_profile(value, self.is_set).is_none() {
                self.draft.leave_open(&format!("{name}={value}"), format!("env.{name}"));
            } else {
                self.draft.env.insert(name.clone(), value.clone());
            }
        }
        if !named.is_empty() {
            let text = format!(
                "the value of {} was not taken over: set it where orch runs, or name a file in NAME_FILE",
                named.join(", ")
            );
            self.draft.note_on("secrets", text);
        }
    }

    /// Settings that an environment variable carries in the version that the command is for.
    fn by_environment(&mut self) {
        let Some(version) = self.draft.exact_version() else { return };
        for (key, row) in &self.definition.settings {
            let Choice::Known(spelling) = row.choose(&version, &self.draft.settings) else { continue };
            let Some(name) = spelling.env.as_ref() else { continue };
            let Some(word) = self.draft.env.get(name).filter(|word| !open::is_open(word)).cloned() else { continue };
            let neutral = spelling
                .values
                .iter()
                .find(|(_, said)| **said == word)
                .map(|(neutral, _)| Value::from(neutral.clone()));
            let value = neutral.map_or_else(|| typed::value(key, &word, self.draft.engine.kind), Ok);
            if let Ok(value) = value
                && !self.draft.settings.contains_key(key)
            {
                self.draft.env.shift_remove(name);
                self.draft.settings.insert(key.clone(), value);
            }
        }
    }

    fn executable(&mut self, program: &Program) {
        let Some(executable) = program.executable.clone().filter(|_| program.kind != EngineKind::Sim) else { return };
        if open::in_profile(&executable, self.is_set).is_none() {
            return self.draft.leave_out(&executable, "which program it is is not known here: set `engine.executable`");
        }
        if self.definition.executable.as_deref() != Some(&executable) {
            self.draft.engine.executable = Some(executable);
        }
    }

    fn container(&mut self, container: &Container) {
        let port = self.draft.settings.get("port").and_then(Value::as_u64);
        let published = container.ports.iter().find(|(_, inside)| port.is_none_or(|port| port == u64::from(*inside)));
        if let Some((outside, inside)) = published
            && (port.is_none() || outside != inside)
        {
            self.draft.settings.insert("port".to_owned(), Value::from(*outside));
            if port.is_some() {
                let text = format!(
                    "{inside} in the container was {outside} outside; now the server itself listens on {outside}"
                );
                self.draft.note_on("port", text);
            }
        }
        let known: Vec<String> =
            container.options.iter().filter(|word| open::in_profile(word, self.is_set).is_some()).cloned().collect();
        for word in container.options.iter().filter(|word| !known.contains(word)) {
            self.draft.leave_out(word, "its value is not known here");
        }
        self.draft.container = Some((container.image.clone(), known));
    }
}

/// The key of a profile that holds a setting.
fn top(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

/// Sets a dotted path in a JSON: a value that is JSON stays what it is.
fn part(config: &mut Map<String, Value>, path: &str, word: &str) {
    let value = serde_json::from_str(word).unwrap_or_else(|_| Value::from(word));
    let mut into = config;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            into.insert(name.replace('-', "_"), value);
            return;
        }
        let inner = into.entry(name.replace('-', "_")).or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(inner) = inner else { return };
        into = inner;
    }
}
