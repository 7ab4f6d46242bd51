//! `orch drift`: what a profile asks for against what is there.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::drift::{self, Asked, Comparison, Difference};
use crate::engine::{Definition, Requirement, Version};
use crate::import::{self, Beside, Draft, Launch};
use crate::profile::{self, Loaded, Profile, Request, Via};
use crate::render;

use super::sources::Source;
use super::{Exit, Failure, Global, Outcome, out, planned, server_pages, sources};

/// Compares what a profile asks for with a unit, a process or a running server, and says what differs
///
/// Each difference is told in the profile's words. What cannot be compared is said too: it is not taken to be equal.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch drift qwen-mtp3 --unit /etc/systemd/system/sglang-qwen.service
  orch drift qwen-mtp3 --url http://gpu-3:30000
  orch drift qwen-mtp3 --pid 4711 --json
  orch drift qwen-mtp3                        the unit that `orch up qwen-mtp3 --as unit` installed

Exit codes: 0 no difference; 8 something differs; 2 usage; 3 no server that orch knows answers there")]
pub(crate) struct DriftArgs {
    /// Name of a profile, or the path of its file
    profile: String,
    /// A systemd unit (by path, or by name where systemd keeps it), or a script
    #[arg(long, value_name = "FILE")]
    unit: Option<PathBuf>,
    /// A server that runs
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A process of this machine
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// Sets a key above all files; the value is YAML, and `null` removes the key
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Prints the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result for machines.
#[derive(Serialize)]
struct Report {
    profile: String,
    differs: bool,
    compared: Vec<Compared>,
}

/// One comparison.
#[derive(Serialize)]
struct Compared {
    /// `unit`, `process` or `server`.
    with: &'static str,
    /// Which.
    name: String,
    #[serde(flatten)]
    comparison: Comparison,
}

pub(crate) fn run(args: DriftArgs, _global: &Global) -> Outcome {
    let DriftArgs { profile: asked, unit, url, pid, set, json } = args;
    let folders = profile::default_folders();
    let request = Request { profile: &asked, set: &set, folders: &folders, env: &profile::process_env };
    let loaded = profile::load(&request).map_err(|error| Failure::new(Exit::Usage, error))?;
    let profile = &loaded.profile;
    let definition = planned::definition(profile)?;
    let draft = draft(&loaded, &definition)?;
    let asked = Asked { profile, draft: &draft, definition: &definition };
    let unit = match (unit, &url, pid) {
        (None, None, None) => Some(PathBuf::from(render::unit::unit_name(&profile.name))),
        (unit, ..) => unit,
    };
    let mut compared = Vec::new();
    for (with, source) in
        unit.map(|path| ("unit", Source::File(path))).into_iter().chain(pid.map(|pid| ("process", Source::Pid(pid))))
    {
        let found = source.draft(None)?;
        compared.push(Compared { with, name: source.name(), comparison: drift::compare(&asked, &found) });
    }
    if let Some(url) = url {
        let comparison = server(&asked, &url)?;
        compared.push(Compared { with: "server", name: import::hide(&url), comparison });
    }
    let differs = compared.iter().any(|each| !each.comparison.differences.is_empty());
    let report = Report { profile: profile.name.clone(), differs, compared };
    if json {
        out::line(serde_json::to_string_pretty(&report).map_err(Failure::own)?);
    } else {
        say(&report);
    }
    Ok(if differs { Exit::Differs } else { Exit::Done })
}

/// The profile's own command, read as one that was found.
fn draft(loaded: &Loaded, definition: &Definition) -> Result<Draft, Failure> {
    let profile = &Profile { bench: Default::default(), ..loaded.profile.clone() };
    let refused = |faults| Failure::new(Exit::Usage, planned::at_their_places(loaded, faults));
    let environment = super::render::environment(profile)?;
    let assumed =
        render::assume(profile, definition, None, |_| environment.clone()).map_err(|fault| refused(vec![fault]))?;
    let plan = render::plan(profile, definition, &assumed.facts).map_err(refused)?;
    let Some(rank) = plan.ranks.into_iter().next() else { return Err(refused(Vec::new())) };
    let launch = Launch { words: rank.argv, env: rank.env.into_iter().collect(), ..Launch::default() };
    let version =
        loaded.profile.engine.version.as_ref().and_then(|text| text.parse::<Requirement>().ok()?.exact().cloned());
    let beside = Beside { definitions: &sources::definition, is_set: &|_| false, version };
    let mut draft = import::import(vec![launch], &profile.name, &beside).map_err(sources::refused)?;
    if let Via::Docker { image, options } = &profile.launch.via {
        draft.container = Some((image.clone(), options.clone()));
    }
    Ok(draft)
}

/// What the server says of itself: its own command where it keeps it, and the values that are read back.
fn server(asked: &Asked<'_>, url: &str) -> Result<Comparison, Failure> {
    let server = server_pages::ask(url)?;
    let mut comparison = Comparison::default();
    if server.definition.kind != asked.profile.engine.played() {
        let kind = |kind: crate::profile::EngineKind| Value::from(kind.word());
        comparison.differences.push(Difference {
            key: "engine.kind".to_owned(),
            asked: kind(asked.profile.engine.kind),
            has: kind(server.definition.kind),
        });
        comparison.not_compared.push("everything else: the words of two engines cannot be compared".to_owned());
        return Ok(comparison);
    }
    version(asked, server.version.as_ref(), &mut comparison);
    let profile = serde_json::to_value(asked.profile).map_err(Failure::own)?;
    let told = server_pages::effective(&server, &profile)?;
    let mut seen = BTreeSet::new();
    drift::compare_values(&told, &mut comparison, &mut seen);
    if let Some(model) = server_pages::model(&server) {
        seen.insert("model.path".to_owned());
        let wanted = asked.draft.settings.get("model.path").cloned();
        if wanted != Some(Value::from(model.clone())) {
            comparison.differences.push(Difference {
                key: "model.path".to_owned(),
                asked: wanted.unwrap_or_default(),
                has: model.into(),
            });
        }
    }
    let launch = server.info.as_ref().and_then(|info| import::server::launch(info, &server.definition));
    let beside = Beside { definitions: &sources::definition, is_set: &|_| false, version: server.version.clone() };
    let found = launch.and_then(|launch| import::import(vec![launch], "the server", &beside).ok());
    drift::compare_told(asked, found.as_ref(), server.info.as_ref(), &mut seen, &mut comparison);
    Ok(comparison)
}

fn version(asked: &Asked<'_>, has: Option<&Version>, comparison: &mut Comparison) {
    let Some(condition) = &asked.profile.engine.version else { return };
    let wanted = condition.parse::<Requirement>().ok();
    match has {
        None => comparison.not_compared.push("`engine.version`: the server does not tell".to_owned()),
        Some(version) if wanted.is_some_and(|wanted| wanted.allows(version)) => comparison.same += 1,
        Some(version) => comparison.differences.push(Difference {
            key: "engine.version".to_owned(),
            asked: Value::from(condition.as_str()),
            has: Value::from(version.0.as_str()),
        }),
    }
}

fn say(report: &Report) {
    let width = report
        .compared
        .iter()
        .flat_map(|each| &each.comparison.differences)
        .map(|each| each.key.len())
        .max()
        .unwrap_or(0);
    for Compared { with, name, comparison } in &report.compared {
        for Difference { key, asked, has } in &comparison.differences {
            let has = if has.is_null() { "does not have it".to_owned() } else { format!("has {}", shown(has)) };
            let asked = if asked.is_null() { "not asked".to_owned() } else { format!("asked {}", shown(asked)) };
            out::line(format_args!("{key:width$}  {asked}, {with} {has}"));
        }
        for what in &comparison.not_compared {
            out::note(format_args!("not compared: {what}"));
        }
        if comparison.differences.is_empty() {
            out::line(format_args!(
                "no difference between {} and {name}: {} keys are the same",
                report.profile, comparison.same
            ));
        }
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    import::hide(&text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
