//! `orch check`: reads profiles and says all that is wrong with them.

use miette::Diagnostic;
use serde::Serialize;

use crate::engine::{EngineError, kind_word};
use crate::profile::{self, FaultReport, Profile, ProfileError, QuestionsError, Request};

use crate::render::Warning;

use super::{Exit, Failure, Global, Outcome, out, planned};

/// Reads profiles and says all that is wrong with them, every fault at once
///
/// A profile must read well, and its engine must be able to do what it asks for: flags that orch gives itself, and
/// settings that the engine has no word for, are faults too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  orch check profiles/*.yaml\n  orch check smollm2 --set max_running_requests=8")]
pub(crate) struct CheckArgs {
    /// Names of profiles, or paths of files
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<String>,
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
    /// Whether all profiles are right.
    ok: bool,
    profiles: Vec<Checked>,
    faults: Vec<ProfileFault>,
}

/// A profile that was looked at. Everything but `profile` and `ok` is `null` when it has faults.
#[derive(Serialize)]
struct Checked {
    /// As it was asked for.
    profile: String,
    ok: bool,
    name: Option<String>,
    series: Option<String>,
    engine: Option<profile::EngineKind>,
    /// Whether its flags and settings were held against the engine; not when this build has no definition of it.
    engine_checked: Option<bool>,
    /// What a person should know; it is right all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Warning>,
}

#[derive(Serialize)]
struct ProfileFault {
    profile: String,
    #[serde(flatten)]
    fault: FaultReport,
}

/// A profile that is right, as far as could be told.
struct Right {
    profile: Profile,
    engine_checked: bool,
    warnings: Vec<Warning>,
}

/// What is wrong.
enum Wrong {
    Profile(ProfileError),
    /// The files of its engine, so that nothing can be said of the profile.
    Engine(EngineError),
    /// The file of its known answers.
    Questions(QuestionsError),
}

pub(crate) fn run(args: CheckArgs, _global: &Global) -> Outcome {
    let CheckArgs { profiles, set, json } = args;
    let results = profiles.into_iter().map(|asked| {
        let result = check(&asked, &set);
        if let Ok(Right { profile, engine_checked, warnings }) = &result {
            if !engine_checked {
                out::note(unchecked(&asked, profile));
            }
            for warning in warnings {
                out::note(format_args!("warning: {asked}: {}", warning.text));
            }
        }
        (asked, result)
    });
    if json { print_json(results) } else { Ok(print_lines(results)) }
}

fn check(asked: &str, set: &[String]) -> Result<Right, Wrong> {
    let folders = profile::default_folders();
    let request = Request { profile: asked, set, folders: &folders, env: &profile::process_env };
    let loaded = profile::load(&request).map_err(Wrong::Profile)?;
    if let Some(quality) = &loaded.profile.quality {
        profile::read_questions(&quality.file).map_err(Wrong::Questions)?;
    }
    let (engine_checked, warnings) = match planned::find_definition(&loaded.profile) {
        Ok(definition) => {
            planned::plan_faults(&loaded, &definition).map_err(Wrong::Profile)?;
            (true, planned::warnings(&loaded.profile, &definition))
        }
        Err(EngineError::Missing { .. }) => (false, Vec::new()),
        Err(error) => return Err(Wrong::Engine(error)),
    };
    Ok(Right { profile: loaded.profile, engine_checked, warnings })
}

fn unchecked(asked: &str, profile: &Profile) -> String {
    let kind = kind_word(profile.engine.kind);
    format!("note: {asked}: flags and settings not checked, as this build of orch has no definition of {kind}")
}

fn print_lines(results: impl Iterator<Item = (String, Result<Right, Wrong>)>) -> Exit {
    let mut exit = Exit::Done;
    for (_, result) in results {
        let report: miette::Report = match result {
            Ok(right) => {
                out::line(format_args!("ok  {}", summary(&right.profile)));
                continue;
            }
            Err(Wrong::Profile(error)) => error.into(),
            Err(Wrong::Engine(error)) => error.into(),
            Err(Wrong::Questions(error)) => error.into(),
        };
        out::complain(&report);
        exit = Exit::Usage;
    }
    exit
}

/// `qwen-mtp3  sglang >=0.5.9, Qwen/Qwen3.6-27B, 3 measurements`
fn summary(profile: &Profile) -> String {
    let version = profile.engine.version.as_ref().map_or_else(String::new, |version| format!(" {version}"));
    let measurements = match profile.bench.len() {
        1 => "1 measurement".to_owned(),
        several => format!("{several} measurements"),
    };
    format!("{}  {}{version}, {}, {measurements}", profile.name, profile.engine.kind, profile.model.path)
}

fn print_json(results: impl Iterator<Item = (String, Result<Right, Wrong>)>) -> Outcome {
    let mut report = Report { ok: true, profiles: Vec::new(), faults: Vec::new() };
    for (asked, result) in results {
        let mut checked = Checked {
            profile: asked.clone(),
            ok: result.is_ok(),
            name: None,
            series: None,
            engine: None,
            engine_checked: None,
            warnings: Vec::new(),
        };
        let faults = match result {
            Ok(Right { profile, engine_checked, warnings }) => {
                checked.warnings = warnings;
                checked.name = Some(profile.name);
                checked.series = Some(profile.series);
                checked.engine = Some(profile.engine.kind);
                checked.engine_checked = Some(engine_checked);
                Vec::new()
            }
            Err(Wrong::Profile(error)) => error.faults().collect(),
            Err(Wrong::Engine(error)) => engine_faults(&error),
            Err(Wrong::Questions(error)) => engine_faults(&error),
        };
        report.ok &= checked.ok;
        report.faults.extend(faults.into_iter().map(|fault| ProfileFault { profile: asked.clone(), fault }));
        report.profiles.push(checked);
    }
    let text = serde_json::to_string_pretty(&report).map_err(Failure::own)?;
    out::line(text);
    Ok(if report.ok { Exit::Done } else { Exit::Usage })
}

/// What is wrong with an engine's files, fault by fault.
fn engine_faults(error: &dyn Diagnostic) -> Vec<FaultReport> {
    if let Some(related) = error.related() {
        return related.flat_map(engine_faults).collect();
    }
    let label = error.labels().and_then(|mut labels| labels.next());
    let place = error.source_code().zip(label).and_then(|(text, label)| text.read_span(label.inner(), 0, 0).ok());
    vec![FaultReport {
        file: place.as_ref().and_then(|place| place.name().map(str::to_owned)),
        line: place.as_ref().map(|place| place.line() + 1),
        // Known in bytes only.
        column: None,
        code: error.code().map_or_else(String::new, |code| code.to_string()),
        message: error.to_string(),
        help: error.help().map(|help| help.to_string()),
    }]
}
