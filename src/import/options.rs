//! The words of a command as options: which flag, with which values. What is known of a flag, the definition says;
//! of others it shows in the words after them.

use crate::engine::{Definition, FlagList, Spelling, Takes};

/// An option as it was given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Given<'d> {
    /// The flag as it was written; empty for a word that belongs to none.
    pub(super) flag: String,
    /// Its values.
    pub(super) values: Vec<String>,
    /// What it is to the profile.
    pub(super) means: Means<'d>,
    /// Whether its list follows it once.
    pub(super) many: bool,
}

/// What a flag is to a profile.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Means<'d> {
    /// It carries a setting, in these of its spellings.
    Setting {
        /// The setting.
        key: &'d str,
        /// The spellings that it may be.
        spellings: Vec<&'d Spelling>,
        /// Which of the flags of a spelling it is, where each carries the value.
        which: usize,
    },
    /// A part of a setting that is one JSON: `--speculative-config.method`.
    Part {
        /// The setting.
        key: &'d str,
        /// The path in it.
        path: String,
    },
    /// It says that a setting is on or off.
    Switch {
        /// The setting.
        key: &'d str,
        /// Which.
        on: bool,
        /// The spelling that says it.
        spelling: &'d Spelling,
    },
    /// Words that say that a setting has some value, whichever.
    Words {
        /// The setting.
        key: &'d str,
        /// The spelling that says it.
        spelling: &'d Spelling,
    },
    /// The model, where the engine's definition leaves its word to the template.
    Model,
    /// orch gives it itself.
    Owned,
    /// The engine's own affair.
    Free,
}

/// Settings that are on or off.
const SWITCHES: &[&str] = &["graphs.enabled", "instrument", "derived.headless"];

/// Reads the words after a program.
pub(super) fn read<'d>(words: &[String], definition: &'d Definition) -> Vec<Given<'d>> {
    // The flags of the versions that are known, the newest first: which of them take a value.
    let lists: Vec<FlagList> = definition.flag_lists.0.iter().map(|(_, text)| FlagList::kept(text)).collect();
    let known =
        |flag: &str| lists.iter().find_map(|list| list.find(flag)).map_or(&Takes::Unknown, |named| &named.takes);
    let mut given = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let word = &words[at];
        if word == "--" || !is_flag(word) {
            given.push(Given { flag: String::new(), values: vec![word.clone()], means: Means::Free, many: false });
            at += 1;
            continue;
        }
        if let Some((means, length)) = switch(definition, &words[at..]) {
            given.push(Given { flag: words[at..at + length].join(" "), values: Vec::new(), means, many: false });
            at += length;
            continue;
        }
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        at += 1;
        let means = meaning(definition, &flag);
        let follow = words[at..].iter().take_while(|word| !is_flag(word)).count();
        let takes = match (inline.is_some(), arity(definition, &flag, &means, known(&definition.read_name(&flag)))) {
            (true, _) => 0,
            (false, Arity::None) => 0,
            (false, Arity::One) => follow.min(1),
            (false, Arity::Many | Arity::Unknown) => follow,
        };
        let values = inline.into_iter().chain(words[at..at + takes].iter().cloned()).collect();
        at += takes;
        let many = matches!(arity(definition, &flag, &means, known(&definition.read_name(&flag))), Arity::Many);
        given.push(Given { flag, values, means, many });
    }
    given
}

/// How many values a flag takes.
enum Arity {
    None,
    One,
    Many,
    Unknown,
}

fn arity(definition: &Definition, flag: &str, means: &Means<'_>, known: &Takes) -> Arity {
    if definition.flags.follow.iter().any(|known| same(known, flag)) {
        return Arity::Many;
    }
    match means {
        Means::Setting { key: "graphs.batches" | "derived.graph_sizes", .. } => Arity::Many,
        Means::Setting { key: "model.served_name", .. } if *known == Takes::Many => Arity::Many,
        Means::Setting { .. } | Means::Part { .. } | Means::Model => Arity::One,
        Means::Switch { .. } | Means::Words { .. } => Arity::None,
        Means::Owned | Means::Free => {
            let default = definition.defaults.iter().find(|words| names(&words.flag, &words.aliases, flag));
            match default {
                Some(words) if words.value.is_some() => Arity::One,
                Some(_) => Arity::None,
                None => match known {
                    // A part of a JSON has a value, whatever the JSON takes.
                    _ if definition.flags.dotted && flag.contains('.') => Arity::One,
                    Takes::Nothing => Arity::None,
                    Takes::One(_) => Arity::One,
                    Takes::Many => Arity::Many,
                    Takes::Unknown => Arity::Unknown,
                },
            }
        }
    }
}

/// Whether a flag is one of these names.
pub(super) fn names(flag: &str, aliases: &[String], asked: &str) -> bool {
    same(flag, asked) || aliases.iter().any(|alias| same(alias, asked))
}

/// Long flags may be written with `_` for `-`.
pub(super) fn same(one: &str, other: &str) -> bool {
    one == other || (one.starts_with("--") && one.replace('_', "-") == other.replace('_', "-"))
}

fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word.parse::<f64>().is_err() && !word.contains(char::is_whitespace)
}

/// A setting that is said by words of its own, perhaps several: `--disable-cuda-graph`, `--backend disabled`.
fn switch<'d>(definition: &'d Definition, words: &[String]) -> Option<(Means<'d>, usize)> {
    let begins = |with: &[String]| {
        let all = !with.is_empty() && with.len() <= words.len();
        all && same(&with[0], &words[0]) && with[1..] == words[1..with.len()]
    };
    for (key, row) in &definition.settings {
        for spelling in &row.spellings {
            for (on, said) in [(true, &spelling.on), (false, &spelling.off)] {
                if let Some(said) = said.as_ref().filter(|said| begins(said)) {
                    return Some((Means::Switch { key, on, spelling }, said.len()));
                }
            }
            let by_flag = SWITCHES.contains(&key.as_str()) && spelling.on.is_none();
            if by_flag && spelling.flag.iter().any(|flag| same(flag, &words[0])) {
                return Some((Means::Switch { key, on: true, spelling }, 1));
            }
            if let Some(said) = &spelling.words {
                let by_alias = || {
                    let alias =
                        spelling.aliases.iter().any(|alias| !alias.starts_with("--no-") && same(alias, &words[0]));
                    alias && words.len() >= said.len() && said[1..] == words[1..said.len()]
                };
                if begins(said) || by_alias() {
                    return Some((Means::Words { key, spelling }, said.len()));
                }
            }
            // Another name of a switch: `--no-enforce-eager` is its opposite.
            let is_switch = spelling.on.is_some() || spelling.off.is_some() || by_flag;
            if is_switch && spelling.aliases.iter().any(|alias| same(alias, &words[0])) {
                let opposite = words[0].starts_with("--no-");
                let on = if by_flag { !opposite } else { opposite };
                return Some((Means::Switch { key, on, spelling }, 1));
            }
        }
    }
    None
}

/// What a flag is to a profile: by its whole name, else as a part of a JSON, else as the beginning of a name.
fn meaning<'d>(definition: &'d Definition, flag: &str) -> Means<'d> {
    if let Some(means) = exact(definition, flag) {
        return means;
    }
    if let Some((head, path)) = flag.split_once('.')
        && let Some(Means::Setting { key: key @ "derived.speculative_config", .. }) = exact(definition, head)
    {
        return Means::Part { key, path: path.to_owned() };
    }
    if definition.settings.contains_key("model.path") && matches!(flag, "--model" | "--model-path") {
        return Means::Model;
    }
    let beginning = beginning(definition, flag);
    if let Some(means) = beginning {
        return means;
    }
    match definition.owner(flag) {
        Some(_) => Means::Owned,
        None if definition.flags.owned.iter().any(|owned| same(owned, flag)) => Means::Owned,
        None => Means::Free,
    }
}

fn exact<'d>(definition: &'d Definition, flag: &str) -> Option<Means<'d>> {
    definition.settings.iter().find_map(|(key, row)| {
        let fits = |spelling: &&Spelling| {
            !spelling.flag.is_empty() && names(&spelling.flag[0], &spelling.aliases, flag)
                || spelling.flag.iter().any(|known| same(known, flag))
        };
        let spellings: Vec<&Spelling> = row.spellings.iter().filter(fits).collect();
        let first = *spellings.first()?;
        Some(Means::Setting { key, which: which(first, flag), spellings })
    })
}

/// Which of several flags that carry one value a name is: their aliases stand in the same order.
fn which(spelling: &Spelling, flag: &str) -> usize {
    let of_flags = spelling.flag.iter().position(|known| same(known, flag));
    let of_aliases =
        || spelling.aliases.iter().position(|known| same(known, flag)).map(|at| at % spelling.flag.len().max(1));
    of_flags.or_else(of_aliases).unwrap_or(0)
}

/// Python's parsers take a beginning that fits one name only. It must fit one setting, and no flag that orch knows
/// otherwise.
fn beginning<'d>(definition: &'d Definition, flag: &str) -> Option<Means<'d>> {
    if !flag.starts_with("--") || flag.len() < 4 || flag.contains('.') {
        return None;
    }
    let mut found: Vec<Means<'d>> = Vec::new();
    for (key, row) in &definition.settings {
        let begins = |known: &&String| known.replace('_', "-").starts_with(&flag.replace('_', "-"));
        let spelling = row
            .spellings
            .iter()
            .find(|spelling| spelling.flag.iter().chain(&spelling.aliases).any(|known| begins(&known)));
        if let Some(spelling) = spelling.filter(|_| !SWITCHES.contains(&key.as_str())) {
            found.push(Means::Setting { key, spellings: vec![spelling], which: 0 });
        }
    }
    // `--dp` may stand for more than the settings know of, unless the definition names it among its own short forms.
    let known = definition.flags.owned.iter().any(|owned| same(owned, flag));
    match (found.pop(), found.is_empty()) {
        (Some(means), true) if known || flag.len() >= 8 => Some(means),
        _ => None,
    }
}
