//! `orch render`: the command that would be run, without looking at any host.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use super::{Exit, Failure, Global, Outcome, out, planned};
use crate::engine::{self, Version};
use crate::launch::{WorkFolder, systemd};
use crate::preflight::install;
use crate::profile::{self, InstallVariant, Profile, Request};
use crate::render::{self, Facts, File, PlannedEngine, Rank};
use crate::run;

/// Prints the command that would start the server, as an expert would type it
///
/// Looks at no host: the engine's version, the port and the first variant of `engine.install` are assumed. What is worth
/// knowing is said on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch render smollm2
  orch render smollm2 --set max_running_requests=8
  orch render smollm2 --engine-version b11549 --format argv
  orch render smollm2 --format unit > orch-smollm2.service

Exit codes: 0 rendered; 2 usage, or the profile asks for what the engine does not have")]
pub(crate) struct RenderArgs {
    /// Name of a profile, or the path of its file
    profile: String,
    /// Sets a key above all files; the value is YAML, and `null` removes the key
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Renders for this version of the engine
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<String>,
    /// How it is printed
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For a shell, one flag a line
    Shell,
    /// A JSON array of words
    Argv,
    /// Engine, words, environment, files and the facts that were assumed
    Json,
    /// The systemd unit that `orch up --as unit` installs
    Unit,
    /// The `docker run` of a profile with `launch.via.docker`, one flag a line
    Docker,
}

/// `--format json`.
#[derive(Serialize)]
struct Rendered<'a> {
    engine: &'a PlannedEngine,
    argv: &'a [String],
    env: &'a std::collections::BTreeMap<String, String>,
    files: &'a [File],
    /// All of them, where there are several nodes; the rest is the head's.
    #[serde(skip_serializing_if = "<[Rank]>::is_empty")]
    ranks: &'a [Rank],
    facts: &'a Facts,
}

pub(crate) fn run(args: RenderArgs, _global: &Global) -> Outcome {
    let RenderArgs { profile: asked, set, engine_version, format } = args;
    let folders = profile::default_folders();
    let request = Request { profile: &asked, set: &set, folders: &folders, env: &profile::process_env };
    let loaded = profile::load(&request).map_err(|error| Failure::new(Exit::Usage, error))?;
    let profile = &loaded.profile;
    let definition = planned::definition(profile)?;
    let refused = |faults| Failure::new(Exit::Usage, planned::at_their_places(&loaded, faults));
    let version = engine_version.map(Version);
    let environment = environment(profile)?;
    let assumed = render::assume(profile, &definition, version.as_ref(), |_| environment.clone())
        .map_err(|fault| refused(vec![fault]))?;
    // The command does not depend on what will be measured.
    let profile = &Profile { bench: Default::default(), ..profile.clone() };
    let plan = render::plan(profile, &definition, &assumed.facts).map_err(refused)?;
    for warning in assumed.warnings.iter().chain(&plan.warnings) {
        out::note(format_args!("warning: {}", warning.text));
    }
    // The head is first.
    let Some(rank) = plan.ranks.first() else { return Ok(Exit::Own) };
    let several = plan.ranks.len() > 1;
    if several && !matches!(format, Format::Shell | Format::Json) {
        out::note(format_args!("only the head's, {}: `--format json` has those of all nodes", rank.node));
    }
    match format {
        Format::Shell if several => {
            let blocks = plan.ranks.iter().map(|rank| {
                let role = if rank.head { ", the head" } else { "" };
                format!("# {}{role}\n{}", rank.node, shell(rank))
            });
            out::line(blocks.collect::<Vec<_>>().join("\n\n"));
        }
        Format::Shell => out::line(shell(rank)),
        Format::Argv => out::line(serde_json::to_string_pretty(&rank.argv).map_err(Failure::own)?),
        Format::Json => {
            let Rank { argv, env, files, .. } = rank;
            let ranks = if several { plan.ranks.as_slice() } else { &[] };
            let rendered = Rendered { engine: &plan.engine, argv, env, files, ranks, facts: &assumed.facts };
            out::line(serde_json::to_string_pretty(&rendered).map_err(Failure::own)?);
        }
        Format::Unit => out::text(unit(profile, &plan, rank)?),
        Format::Docker => {
            let Some(container) = run::container_of(profile, &assumed.facts, &plan) else {
                let fault = render::Fault::new("no_image", "launch.via", "a container needs an image")
                    .help("set `launch: {via: {docker: {image: …}}}`");
                return Err(refused(vec![fault]));
            };
            let argv = render::docker::words(rank, &container);
            out::line(shell(&Rank { argv, env: Default::default(), secrets: Vec::new(), ..rank.clone() }));
        }
    }
    Ok(Exit::Done)
}

/// The unit, held against systemd's own reader where there is one.
fn unit(profile: &Profile, plan: &render::Plan, rank: &Rank) -> Result<String, Failure> {
    let template =
        engine::unit_template(&engine::default_folders()).map_err(|error| Failure::new(Exit::Usage, error))?;
    let folder = std::env::current_dir().map_err(Failure::own)?;
    let work = WorkFolder::place().map_err(|error| Failure::new(Exit::NotLaunched, error))?;
    let spec = render::unit::Unit {
        name: &profile.name,
        profile: &profile.name,
        series: &profile.series,
        folder: &folder,
        env: Default::default(),
        secrets: (!rank.secrets.is_empty()).then(|| work.join("deployments").join(&profile.name).join("secrets.env")),
        stop: &plan.stop,
        of_user: !nix::unistd::geteuid().is_root(),
    };
    let text = render::unit::unit(&template, rank, &spec).map_err(|error| Failure::new(Exit::Usage, error))?;
    match systemd::verify(&render::unit::unit_name(&profile.name), &text) {
        Some(Err(said)) => out::note(format_args!("warning: systemd-analyze verify says: {said}")),
        Some(Ok(())) => {}
        None => out::note("not held against systemd's own reader: `systemd-analyze` is not here"),
    }
    Ok(text)
}

/// Where the first variant would be installed: the same place that a run takes. Nothing is looked at or made.
pub(crate) fn environment(profile: &Profile) -> Result<Option<PathBuf>, Failure> {
    let install = render::installable(profile);
    let first: Option<&InstallVariant> = install.as_ref().and_then(|install| install.variants.first());
    let Some(variant) = first else { return Ok(None) };
    let envs = WorkFolder::place().map_err(|error| Failure::new(Exit::NotLaunched, error))?.join("envs");
    let patches = install::Patch::read(&profile.engine.patches).map_err(|error| Failure::new(Exit::Usage, error))?;
    let launchers = |name: &str| engine::file(profile.engine.kind, name, &engine::default_folders());
    let place =
        install::place(variant, &patches, &envs, &launchers).map_err(|error| Failure::new(Exit::Usage, error))?;
    // What is built on the host has its place there; only the host can say which.
    Ok(Some(place.unwrap_or_else(|| envs.join("BUILT-HERE"))))
}

/// The command for a shell: its environment, its program, and each flag with its values on a line of its own.
fn shell(rank: &Rank) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (name, value) in &rank.env {
        lines.push(format!("{name}={}", engine::quote(value)));
    }
    // Values of secrets are the launcher's affair; here they are only named.
    for name in &rank.secrets {
        lines.push(format!("{name}=\"${name}\""));
    }
    let mut indent = "";
    for (place, word) in rank.argv.iter().enumerate() {
        let is_flag = word.starts_with('-') && word.parse::<f64>().is_err();
        let quoted = engine::quote(word);
        match lines.last_mut() {
            Some(line) if place > 0 && !is_flag => {
                line.push(' ');
                line.push_str(&quoted);
            }
            _ => lines.push(format!("{indent}{quoted}")),
        }
        indent = "  ";
    }
    lines.join(" \\\n")
}
