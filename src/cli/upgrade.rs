//! `orch ab --engine … --engine …`: the same profile on two versions of its engine, and what the upgrade changes by itself.

use std::collections::BTreeMap;
use std::io::Read;

use super::{Exit, Failure, out, planned};
use crate::profile::{Loaded, Profile};
use crate::record::{Record, Store};
use crate::render;
use crate::trial::{self, Upgrade};

/// A server tells its arguments at its start: so much of its log is looked at.
const HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// What each side sets above the profile, from `KIND==VERSION` twice.
pub(super) fn sets(engines: &[String], profile: &Profile) -> Result<[String; 2], Failure> {
    let wrong = |help: &str, text: String| Failure::new(Exit::Usage, miette::miette!(help = help.to_owned(), "{text}"));
    let [was, now] = engines else {
        let text = format!("`--engine` stands {} times", engines.len());
        return Err(wrong("twice: `--engine sglang==0.5.21 --engine sglang==0.5.23`, the version before first", text));
    };
    let kinds = [profile.engine.kind.word(), profile.engine.played().word()];
    let one = |engine: &String| {
        let (kind, version) =
            engine.split_once("==").filter(|(_, version)| !version.trim().is_empty()).ok_or_else(|| {
                wrong(
                    "`KIND==VERSION`, for example `sglang==0.5.23`",
                    format!("`{engine}` names no engine with an exact version"),
                )
            })?;
        if !kinds.contains(&kind.trim()) {
            let text = format!("`--engine {engine}`: the profile's engine is `{}`", kinds[0]);
            return Err(wrong(
                "it chooses among versions of the same engine; `orch ab A B` compares two profiles",
                text,
            ));
        }
        Ok(format!("engine.version==={}", version.trim()))
    };
    Ok([one(was)?, one(now)?])
}

/// Says, before anything is started, how the commands differ.
pub(super) fn announce(one: &Loaded, other: &Loaded) -> Result<(), Failure> {
    let (was, now) = (command(one)?, command(other)?);
    let (Some(was), Some(now)) = (was, now) else { return Ok(()) };
    let told = trial::upgrade([&was, &now], [&[], &[]]);
    for (flags, words) in [(&told.flags_gone, "no longer given"), (&told.flags_new, "given instead or anew")] {
        if !flags.is_empty() {
            out::note(format_args!("{words}: {}", flags.join(", ")));
        }
    }
    if told.flags_gone.is_empty() && told.flags_new.is_empty() {
        out::note("both versions are given the same flags");
    }
    Ok(())
}

/// The head's command, as `orch render` has it.
fn command(loaded: &Loaded) -> Result<Option<Vec<String>>, Failure> {
    let definition = planned::definition(&loaded.profile)?;
    let environment = super::render::environment(&loaded.profile)?;
    let assumed = render::assume(&loaded.profile, &definition, None, |_| environment.clone());
    let plan = assumed.ok().and_then(|assumed| render::plan(&loaded.profile, &definition, &assumed.facts).ok());
    Ok(plan.and_then(|plan| plan.ranks.into_iter().next()).map(|rank| rank.argv))
}

/// What the upgrade changed, from the records of both sides and what their servers said of themselves.
pub(super) fn of_records(was: &[Record], now: &[Record], store: &Store) -> Upgrade {
    let command = |records: &[Record]| records.first().map(|record| record.command.clone()).unwrap_or_default();
    let arguments = |records: &[Record]| -> Vec<BTreeMap<String, String>> {
        records.iter().filter_map(|record| trial::arguments(&log_head(record, store)?)).collect()
    };
    trial::upgrade([&command(was), &command(now)], [&arguments(was), &arguments(now)])
}

/// The beginning of a run's own server log; `None` where it has none, as a run on a server that another one started.
fn log_head(record: &Record, store: &Store) -> Option<String> {
    let id = record.id.parse().ok()?;
    let file = std::fs::File::open(store.run_path(&id).join("server.log")).ok()?;
    let mut bytes = Vec::new();
    file.take(HEAD_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// For people.
pub(super) fn text(upgrade: &Upgrade) -> String {
    let mut text = String::from("\nWhat the upgrade changes by itself\n");
    let mut line = |title: &str, all: &[String]| {
        if !all.is_empty() {
            text.push_str(&format!("  {title:<16}{}\n", all.join("\n                  ")));
        }
    };
    line("flags gone", &upgrade.flags_gone);
    line("flags new", &upgrade.flags_new);
    match &upgrade.moved_defaults {
        Some(moved) => {
            let none = "none".to_owned();
            let moved: Vec<String> = moved
                .iter()
                .map(|one| format!("{}: {}, was {}", one.argument, short(&one.now), short(&one.was)))
                .collect();
            line("defaults moved", if moved.is_empty() { std::slice::from_ref(&none) } else { &moved });
        }
        None => line("defaults moved", &["not known: a server does not tell its arguments".to_owned()]),
    }
    line("arguments gone", &upgrade.arguments_gone);
    let new: Vec<String> =
        upgrade.arguments_new.iter().map(|(argument, value)| format!("{argument}: {}", short(value))).collect();
    line("arguments new", &new);
    text
}

/// A value that fits on its line.
fn short(value: &str) -> String {
    const MOST: usize = 50;
    match value.chars().count() > MOST {
        true => value.chars().take(MOST - 1).chain(['…']).collect(),
        false => value.to_owned(),
    }
}
