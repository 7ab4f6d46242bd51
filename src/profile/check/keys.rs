//! Free keys under their rules, and what is said of an unknown one.

use super::super::fault::Fault;
use super::super::fields::{KeyRule, PHASES, PROFILE, SCENARIO, Shape, Struct};
use super::super::metrics::{self, Unknown};
use super::super::nearest::nearest;
use super::super::source::Place;
use super::Checker;
use super::words::{is_env_name, is_flag, is_name};
use crate::units::Measure;

impl Checker<'_> {
    /// Whether a free key is one that the rule allows.
    pub(super) fn key(&mut self, rule: KeyRule, key: &str, place: Place) -> bool {
        let parent = self.path[..self.path.len() - 1].join(".");
        // That is told already.
        if key.contains("${") {
            return false;
        }
        let fault = match rule {
            KeyRule::Free => return true,
            KeyRule::Flag if key.starts_with('-') => {
                let name = key.trim_start_matches('-');
                Fault::new("bad_key", format!("flag `{key}` is written with dashes"))
                    .help(format!("flags are named without dashes: `{name}`"))
            }
            KeyRule::Flag if is_flag(key) => return true,
            KeyRule::Flag => Fault::new("bad_key", format!("`{key}` cannot be a flag"))
                .help("a flag is one word of letters, digits, `-`, `_` and `.`; raw words go into `args`"),
            KeyRule::EnvName if is_env_name(key) => return true,
            KeyRule::EnvName => Fault::new("bad_key", format!("`{key}` cannot be a name in the environment"))
                .help("letters, digits and `_`, not beginning with a digit"),
            KeyRule::Name if is_name(key) && !key.contains('.') => return true,
            KeyRule::Name => Fault::new("bad_key", format!("`{key}` cannot be the name of a measurement"))
                .help("letters, digits, `-` and `_`"),
            KeyRule::Phase if PHASES.contains(&key) => return true,
            KeyRule::Phase => {
                Fault::new("unknown_word", format!("`{key}` is not a phase of a start")).help(word_help(key, PHASES))
            }
            KeyRule::Metric | KeyRule::Expectable => {
                if let Some(setting) = key.strip_prefix("effective.") {
                    if rule == KeyRule::Expectable && metrics::is_effective(setting) {
                        self.measure = Measure::Number;
                        return true;
                    }
                    metric_fault(rule, key, &Unknown::Name)
                } else {
                    match metrics::metric(key) {
                        Ok(measure) => {
                            self.measure = measure;
                            return true;
                        }
                        Err(unknown) => metric_fault(rule, key, &unknown),
                    }
                }
            }
        };
        self.faults.push(fault.at(place, format!("not a key of `{parent}`")));
        false
    }
}

pub(crate) fn key_help(table: &Struct, key: &str, top: bool) -> String {
    let keys = || table.fields.iter().map(|field| field.key);
    if let Some((head, rest)) = key.split_once('.')
        && table.field(head).is_some()
    {
        return format!("write it as a map: `{head}: {{{rest}: …}}`");
    }
    if let Some(near) = nearest(key, keys()) {
        return format!("did you mean `{near}`?");
    }
    if let Some(path) = elsewhere(table, key) {
        return format!("did you mean `{path}`?");
    }
    let keys = keys().collect::<Vec<_>>().join(" ");
    let flags = if top && table.name != SCENARIO.name { "\nthe engine's own flags go into `flags`" } else { "" };
    format!("the keys of {} are: {keys}{flags}", table.title())
}

/// Where a key would be known: below this table, or else in a profile.
fn elsewhere(table: &Struct, key: &str) -> Option<String> {
    if table.name == SCENARIO.name {
        return below(&SCENARIO, key);
    }
    if PROFILE.field(key).is_some() {
        return Some(key.to_owned());
    }
    below(&PROFILE, key)
}

fn below(table: &Struct, key: &str) -> Option<String> {
    table.fields.iter().find_map(|field| match field.shape {
        Shape::Struct(table) | Shape::Short(_, table) if table.field(key).is_some() => {
            Some(format!("{}.{key}", field.key))
        }
        _ => None,
    })
}

pub(super) fn word_help(word: &str, words: &[&str]) -> String {
    match nearest(word, words) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("it can be {}", list(words)),
    }
}

fn metric_fault(rule: KeyRule, key: &str, unknown: &Unknown) -> Fault {
    let fault = |message: String| Fault::new("unknown_metric", message);
    match unknown {
        Unknown::NeedsPart => fault(format!("`{key}` is a distribution, and one number of it must be named"))
            .help(format!("for example `{key}.p50` or `{key}.p99`; also `mean`, `p90`, `p95`, `max`")),
        Unknown::NoParts => fault(format!("`{key}` has a part, and the metric is a single number"))
            .help(format!("write `{}`", key.split('.').next().unwrap_or(key))),
        Unknown::Name => {
            let what = if rule == KeyRule::Metric { "a metric" } else { "a metric or an effective setting" };
            let near = nearest(key, metrics::words(rule == KeyRule::Expectable));
            let help = near.map_or_else(
                || "metrics are listed in `docs/metrics.md`, settings in `docs/profiles.md`".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            fault(format!("`{key}` is not {what}")).help(help)
        }
    }
}

pub(super) fn list(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} or {last}", head.join(", ")),
    }
}
