//! `orch fetch`: puts what a profile needs onto this machine, so that a run needs no network.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::engine::EngineFacts;
use crate::event::{Emit, EmitError, Event, Scope};
use crate::launch::WorkFolder;
use crate::preflight::{self, Found, PreflightError, Staged};
use crate::profile::{self, EngineKind, Profile, Request};
use crate::units;

use super::{Exit, Failure, Global, Outcome, out};

/// Installs the engine that a profile asks for, brings its model, draft and tokenizer here, and says what is where; the second time it needs no network
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  orch fetch profiles/smollm2.yaml\n  orch fetch smollm2 --json")]
pub(crate) struct FetchArgs {
    /// Name of a profile, or path of a file
    #[arg(value_name = "PROFILE")]
    profile: String,
    /// Sets a key above all files; the value is YAML, and `null` removes the key
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Prints the result as JSON
    #[arg(long)]
    json: bool,
}

/// What is where.
#[derive(Serialize)]
struct Fetched {
    profile: String,
    engine: EngineKind,
    version: String,
    executable: Option<String>,
    model: String,
    /// `null` when the engine looks the model up itself.
    model_path: Option<PathBuf>,
    environment: Option<Environment>,
    /// What the server loads, and where it is; what its engine looks up by itself is not there.
    staged: Vec<Staged>,
}

#[derive(Serialize)]
struct Environment {
    path: PathBuf,
    packages: Vec<String>,
    /// Patches that are applied to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    patches: Vec<String>,
    /// Counted from 1.
    variant: usize,
    /// Whether it was made just now.
    made: bool,
    bytes: u64,
}

pub(crate) fn run(args: FetchArgs, _global: &Global) -> Outcome {
    let FetchArgs { profile, set, json } = args;
    let folders = profile::default_folders();
    let request = Request { profile: &profile, set: &set, folders: &folders, env: &profile::process_env };
    let profile = profile::load(&request).map_err(|error| Failure::new(Exit::Usage, error))?.profile;
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::NotLaunched, error))?;
    let runtime = crate::host::runtime::on_this_thread().map_err(own)?;
    let began = Instant::now();
    let screen = Screen::new();
    let definition = super::planned::definition(&profile)?;
    let found = runtime.block_on(interruptible(&profile, &definition.facts, &work, &screen));
    screen.clear();
    let found = match found.map_err(own)? {
        Ended::Done(found) => found.map_err(|error| Failure::new(exit(&error), *error))?,
        // Dropping what was going on has ended the installer.
        Ended::Signal(exit) => {
            out::note("interrupted; what was begun does not count and is made anew next time");
            return Ok(exit);
        }
    };
    let fetched = describe(&profile, *found).map_err(own)?;
    if json {
        out::line(serde_json::to_string_pretty(&fetched).map_err(own)?);
    } else {
        say(&fetched, began.elapsed());
    }
    Ok(Exit::Done)
}

enum Ended {
    Done(Result<Box<Found>, Box<PreflightError>>),
    Signal(Exit),
}

async fn interruptible(
    profile: &Profile,
    engine: &EngineFacts,
    work: &WorkFolder,
    screen: &Screen,
) -> std::io::Result<Ended> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let envs = work.envs();
    Ok(tokio::select! {
        found = preflight::look_without_port(profile, engine, &envs, screen) => {
            Ended::Done(found.map(Box::new).map_err(Box::new))
        }
        _ = interrupt.recv() => Ended::Signal(Exit::Interrupted),
        _ = terminate.recv() => Ended::Signal(Exit::Terminated),
    })
}

fn exit(error: &PreflightError) -> Exit {
    match error {
        PreflightError::Journal(_) => Exit::Own,
        _ => Exit::NotLaunched,
    }
}

fn own(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Own, miette::miette!("{error}"))
}

fn describe(profile: &Profile, found: Found) -> std::io::Result<Fetched> {
    let environment = match found.environment {
        Some(environment) => Some(Environment {
            bytes: size_bytes(&environment.path, &mut BTreeSet::new())?,
            path: environment.path,
            packages: environment.packages,
            patches: environment.patches,
            variant: environment.variant + 1,
            made: environment.made,
        }),
        None => None,
    };
    Ok(Fetched {
        profile: profile.name.clone(),
        engine: profile.engine.kind,
        version: found.version.to_string(),
        executable: found.executable,
        model: profile.model.path.clone(),
        model_path: found.model,
        environment,
        staged: found.staged,
    })
}

fn say(fetched: &Fetched, took: Duration) {
    out::line(format_args!("engine       {} {}", fetched.engine, fetched.version));
    if let Some(executable) = &fetched.executable {
        out::line(format_args!("program      {executable}"));
    }
    match &fetched.model_path {
        Some(path) => out::line(format_args!("model        {}", path.display())),
        None if fetched.staged.is_empty() => {
            out::line(format_args!("model        {}, looked up by the engine", fetched.model));
        }
        None => {}
    }
    for staged in &fetched.staged {
        let what = match staged.key {
            "model" if fetched.model_path.is_some() => "  holds",
            "model" => "model",
            "speculative.model" => "draft",
            _ => "tokenizer",
        };
        out::line(format_args!("{what:<13}{staged}"));
    }
    match &fetched.environment {
        Some(environment) => {
            let made =
                if environment.made { format!("installed in {} s", took.as_secs()) } else { "was there".to_owned() };
            let size = units::bytes_text(environment.bytes);
            out::line(format_args!("packages     {}", environment.packages.join(", ")));
            if !environment.patches.is_empty() {
                out::line(format_args!("patches      {}", environment.patches.join(", ")));
            }
            out::line(format_args!("environment  {}  {size}, {made}", environment.path.display()));
        }
        None => out::line("environment  none: the profile has no `engine.install`"),
    }
}

/// What a folder takes on the disk. A file that has several names counts once.
fn size_bytes(folder: &Path, seen: &mut BTreeSet<(u64, u64)>) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if meta.is_dir() {
            bytes += size_bytes(&entry.path(), seen)?;
        } else if meta.nlink() == 1 || seen.insert((meta.dev(), meta.ino())) {
            bytes += meta.blocks() * 512;
        }
    }
    Ok(bytes)
}

/// Shows on standard error what goes on: one line that changes on a terminal, else a line whenever something else is
/// done.
struct Screen {
    bar: Option<ProgressBar>,
    last: Mutex<String>,
}

impl Screen {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Screen { bar, last: Mutex::default() }
    }

    fn sign(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
            return;
        }
        // Without the seconds.
        let doing = what.rsplit_once(", ").map_or(what, |(doing, _)| doing);
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *last != doing {
            out::note(doing);
            doing.clone_into(&mut last);
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Emit for Screen {
    fn emit(&self, _scope: Scope, event: Event) -> Result<(), EmitError> {
        match event {
            Event::SignOfLife { what, .. } => self.sign(&what),
            Event::Warning(warning) => match &self.bar {
                Some(bar) => bar.suspend(|| out::note(format_args!("warning: {}", warning.text))),
                None => out::note(format_args!("warning: {}", warning.text)),
            },
            // The result says it in the end.
            _ => {}
        }
        Ok(())
    }
}
