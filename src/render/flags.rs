//! The profile's own flags: none that orch gives itself, and, where the flags of the very build are known, none that it
//! does not have. A parser that takes a beginning for the whole makes no difference: the next version may have a second
//! flag that begins so, and then the same profile no longer starts.

use serde_json::{Value, json};

use super::Fault;
use crate::engine::{Definition, FlagList, Named, Owner, Spelling, Takes, Version, settings};
use crate::profile::{Flag, Profile, nearest};

/// What a version of an engine knows.
pub(super) struct Known<'a> {
    pub(super) definition: &'a Definition,
    pub(super) version: &'a Version,
    /// Its flags, where they are known.
    pub(super) list: Option<&'a FlagList>,
}

/// A flag's name as it is written on the command line.
pub(super) fn dashed(name: &str) -> String {
    match name.chars().count() {
        _ if name.starts_with('-') => name.to_owned(),
        1 => format!("-{name}"),
        _ => format!("--{name}"),
    }
}

impl Known<'_> {
    /// The profile's `flags` in words. `taken`: those that are part of something else.
    pub(super) fn flags(&self, profile: &Profile, taken: impl Fn(&str) -> bool, faults: &mut Vec<Fault>) -> Vec<Value> {
        let mut spelled = Vec::new();
        for (name, value) in profile.flags.iter().filter(|(name, _)| !taken(name)) {
            let flag = dashed(name);
            let key = format!("flags.{name}");
            let option = match self.look(&flag, &key) {
                Ok(option) => option,
                Err(fault) => {
                    faults.push(fault);
                    continue;
                }
            };
            faults.extend(option.and_then(|option| misused(&flag, name, value, option)));
            let follows = self.definition.flags.follow.contains(&flag)
                || option.is_some_and(|option| option.takes == Takes::Many);
            let words = match value {
                Flag::Switch(false) => continue,
                Flag::Switch(true) => vec![flag],
                Flag::Value(value) => vec![flag, value.clone()],
                Flag::List(values) if follows => std::iter::once(flag).chain(values.clone()).collect(),
                Flag::List(values) => values.iter().flat_map(|value| [flag.clone(), value.clone()]).collect(),
            };
            spelled.push(json!({"name": name, "words": words}));
        }
        spelled
    }

    /// What stands against the profile's `args`.
    pub(super) fn args(&self, profile: &Profile, faults: &mut Vec<Fault>) {
        let mut is_value = false;
        for (place, word) in profile.args.iter().enumerate() {
            let is_flag = word.starts_with('-') && word.len() > 1 && word.parse::<f64>().is_err();
            // The value of the flag before may begin with a dash.
            if std::mem::take(&mut is_value) || !is_flag {
                continue;
            }
            let (flag, value) = word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
            let key = format!("args[{place}]");
            match self.look(flag, &key) {
                Err(fault) => faults.push(fault),
                Ok(Some(Named { takes: Takes::One(choices), .. })) => {
                    is_value = value.is_none();
                    let next = profile.args.get(place + 1).map(String::as_str);
                    faults.extend(value.or(next).and_then(|value| no_choice(flag, &key, value, choices)));
                }
                Ok(_) => {}
            }
        }
    }

    /// What stands against the words that a setting is written in, by the build that shall read them.
    pub(super) fn setting(&self, key: &str, words: &[String]) -> Option<Fault> {
        let list = self.list?;
        let names: Vec<&String> =
            self.definition.settings.get(key)?.spellings.iter().flat_map(Spelling::names).collect();
        // A value may begin with dashes too.
        let flags = words.iter().enumerate().filter(|(_, word)| word.starts_with("--") && names.contains(word));
        for (place, word) in flags {
            let engine = self.definition.kind;
            let Some(option) = list.find(word).filter(|option| option.removed.is_none()) else {
                let key = settings::origin(key);
                let text = format!("{engine} {} has no `{word}`, which `{key}` is written as", self.version);
                let fault = Fault::new("unknown_flag", key, text);
                let own = format!("mend `templates/{engine}/engine.yaml` in a folder of your own");
                return Some(fault.help(match self.past(word) {
                    Some(past) => format!("{past}; {own}"),
                    None => format!("is it a build of another version? Else {own}"),
                }));
            };
            let (Takes::One(choices), Some(value)) = (&option.takes, words.get(place + 1)) else { continue };
            if !choices.is_empty() && !choices.contains(value) {
                let text = format!("{engine} {} has no `{value}` for `{word}`", self.version);
                return Some(Fault::new("unsupported", settings::origin(key), text).help(choices_text(value, choices)));
            }
        }
        None
    }

    /// The option of a flag, if it is known, or what stands against it.
    fn look(&self, flag: &str, key: &str) -> Result<Option<&Named>, Fault> {
        if let Some(owner) = self.definition.owner(flag) {
            return Err(owned(format!("`{flag}` is given by orch itself"), owner, key));
        }
        let Some(list) = self.list else {
            return match self.definition.owner_of_abbreviation(flag) {
                Some(owner) => Err(owned(format!("`{flag}` is short for a flag that orch gives itself"), owner, key)),
                None => Ok(None),
            };
        };
        let name = self.definition.read_name(flag);
        match list.find(&name).or_else(|| joined(list, &name)) {
            Some(Named { removed: Some(said), .. }) => {
                let text = format!("`{flag}` was removed from {}", self.definition.kind);
                let fault = Fault::new("removed_flag", key, text);
                Err(fault.help(if said.is_empty() { "take it out".to_owned() } else { format!("it says: {said}") }))
            }
            Some(option) => Ok(Some(option)),
            None => Err(self.unknown(flag, &name, list, key)),
        }
    }

    fn unknown(&self, flag: &str, name: &str, list: &FlagList, key: &str) -> Fault {
        let engine = self.definition.kind;
        // Names that are gone are told as such, though a new one may begin with them.
        let past = self.past(name);
        if past.is_none() && name.starts_with("--") && self.definition.flags.abbreviations {
            let meant = list.beginning_with(name);
            if let Some(owner) = self.definition.owner_of_abbreviation(flag)
                && let [one] = meant.as_slice()
            {
                return owned(format!("`{flag}` is short for `{one}`, which orch gives itself"), owner, key);
            }
            match meant.as_slice() {
                [] => {}
                [one] => {
                    let text = format!("`{flag}` is not the whole name of a flag");
                    return Fault::new("abbreviated_flag", key, text).help(format!(
                        "write `{one}`: an abbreviation fits a second flag in another version, and then nothing starts"
                    ));
                }
                several => {
                    let text = format!("`{flag}` is the beginning of {} flags, and the name of none", several.len());
                    let shown: Vec<&str> = several.iter().take(5).copied().collect();
                    let more = if several.len() > shown.len() { " or another" } else { "" };
                    return Fault::new("abbreviated_flag", key, text)
                        .help(format!("write the one that is meant: `{}`{more}", shown.join("`, `")));
                }
            }
        }
        let renamed = self.definition.flags.renamed.get(name).map(|new| format!("its name is `{new}` now"));
        let near = || nearest(name, list.names()).map(|near| format!("did you mean `{near}`?"));
        let mut help: Vec<String> = past.into_iter().chain(renamed.or_else(near)).collect();
        if help.is_empty() {
            let program = self.definition.executable.as_deref().unwrap_or("the program");
            help.push(format!("`{program} {}` lists its flags", self.definition.flags.help.join(" ")));
        }
        Fault::new("unknown_flag", key, format!("{engine} {} has no flag `{flag}`", self.version)).help(help.join("; "))
    }

    /// Since when a flag is gone, or which version has it first, as far as lists are kept.
    fn past(&self, flag: &str) -> Option<String> {
        let past = self.definition.flag_lists.past(flag, self.version);
        match (past.until, past.from) {
            (Some(until), _) => Some(format!("it is gone, {until} still had it")),
            (None, Some(from)) => Some(format!("it came later, {from} has it")),
            (None, None) => None,
        }
    }
}

/// `-O3`, as parsers read it: the flag and its value in one word.
fn joined<'l>(list: &'l FlagList, name: &str) -> Option<&'l Named> {
    let short: String = name.chars().take(2).collect();
    let is_joined = !name.starts_with("--") && name.len() > 2 && name[2..].starts_with(|c: char| c.is_ascii_digit());
    list.find(&short).filter(|_| is_joined)
}

fn owned(text: String, owner: Owner<'_>, key: &str) -> Fault {
    let fault = Fault::new("owned_flag", key, text);
    match owner {
        Owner::Setting("derived.pool_tokens") => {
            fault.help("set `context_length` (for one request) and `max_running_requests`: the pool follows from them")
        }
        Owner::Setting("derived.speculative_config") => fault.help(
            "set `speculative` instead: it is written from that; other keys of it stand in `flags` as `speculative-config.KEY`",
        ),
        Owner::Setting("derived.graph_tokens") => fault.help("set `graphs.max_batch` instead, in requests"),
        Owner::Setting("derived.graph_sizes") => fault.help("set `graphs.batches` instead, in requests"),
        Owner::Setting("derived.tensor_split") => fault.help("set `parallel.tensor` or `parallel.pipeline` instead"),
        Owner::Setting(key) if key.starts_with("derived.") => {
            fault.help("set `parallel.nodes` and `hosts` instead: it follows from them")
        }
        Owner::Setting("instrument") => fault.help("`instrument: on` gives it, `instrument: off` leaves it out"),
        Owner::Setting("host") => fault.help("the server listens where orch can reach it and nobody else: take it out"),
        Owner::Setting(key) => fault.help(format!("set `{key}` instead")),
        Owner::Orch => fault.help("take it out: orch could not find, prove or measure the server with another value"),
    }
}

/// A value where none is taken, none where one is, or one that is none of its words.
fn misused(flag: &str, name: &str, value: &Flag, option: &Named) -> Option<Fault> {
    let key = format!("flags.{name}");
    match (&option.takes, value) {
        (Takes::Nothing, Flag::Value(_) | Flag::List(_)) => Some(
            Fault::new("flag_value", key, format!("`{flag}` takes no value")).help(format!("write `{name}: true`")),
        ),
        (Takes::One(_) | Takes::Many, Flag::Switch(true)) => Some(
            Fault::new("flag_value", key, format!("`{flag}` needs a value")).help(format!("write `{name}: VALUE`")),
        ),
        (Takes::One(choices), Flag::Value(value)) => no_choice(flag, &key, value, choices),
        (Takes::One(choices), Flag::List(values)) => {
            values.iter().find_map(|value| no_choice(flag, &key, value, choices))
        }
        _ => None,
    }
}

fn no_choice(flag: &str, key: &str, value: &str, choices: &[String]) -> Option<Fault> {
    let is_one = choices.is_empty() || choices.iter().any(|choice| choice == value);
    (!is_one).then(|| {
        Fault::new("flag_value", key, format!("`{flag}` cannot be `{value}`")).help(choices_text(value, choices))
    })
}

fn choices_text(value: &str, choices: &[String]) -> String {
    match nearest(value, choices) {
        Some(near) => format!("did you mean `{near}`? It can be {}", choices.join(", ")),
        None => format!("it can be {}", choices.join(", ")),
    }
}
