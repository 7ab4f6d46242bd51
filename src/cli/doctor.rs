//! `orch doctor`: whether a machine is fit for a run.

use std::time::Instant;

use bytes::Bytes;

use super::far::{self, There};
use super::far_run::put_new;
use super::screen::{Screen, Stream};
use super::{Exit, Failure, Global, Outcome, elsewhere, out, planned};
use crate::host::{Host, Mode, runtime};
use crate::launch::WorkFolder;
use crate::preflight::doctor::{self, Asked, Finding, LastTime, Skew};
use crate::profile::{self, Loaded, Request};
use crate::remote::JobId;
use crate::remote::beside::Where;
use crate::report::text::{Mark, wrap};

/// Tells whether a machine is fit for a run, before it is blamed or trusted
///
/// It looks at the GPUs (who uses them, their links, widths, errors, heat), clocks, disks, memory, limits, leases, servers
/// that were left, locks of compilers, and the environment; with a profile also at its GPUs, port, engine and model. Each
/// finding says what was found, why it matters and what to do. Nothing is changed, and no question to a driver is waited
/// for longer than 20 s.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch doctor                          this machine
  orch doctor ct129                    a host of hosts.yaml
  orch doctor --profile qwen-mtp3      and whether this profile would start here
  orch doctor --json | jq '.[] | select(.blocking)'

Exit codes: 0 nothing blocks a run; 8 something does; 3 the host cannot be reached; 1 it could not be looked at")]
pub(crate) struct DoctorArgs {
    /// The host; this machine unless told, as with `-H`
    #[arg(value_name = "HOST")]
    host: Option<String>,
    /// A profile that is to run there
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Sets a key of the profile, as `orch run` does
    #[arg(long, value_name = "PATH=VALUE", requires = "profile")]
    set: Vec<String>,
    /// The findings as a JSON array
    #[arg(long)]
    json: bool,
    /// How far the clock here is ahead of the asker's, and how long the asking took
    #[arg(long, hide = true, value_name = "AHEAD,RTT", allow_hyphen_values = true, value_parser = skew)]
    skew_ms: Option<Skew>,
}

fn skew(text: &str) -> Result<Skew, String> {
    let read = || {
        let (ahead, rtt) = text.split_once(',')?;
        Some(Skew { ahead_ms: ahead.parse().ok()?, rtt_ms: rtt.parse().ok()? })
    };
    read().ok_or_else(|| "two numbers of milliseconds".to_owned())
}

pub(crate) fn run(args: DoctorArgs, global: &Global) -> Outcome {
    let DoctorArgs { host, profile, set, json, skew_ms } = args;
    let global = Global { on: host.or_else(|| global.on.clone()), ..global.clone() };
    let loaded = profile.map(|asked| load(&asked, &set)).transpose()?;
    match far::asked(&global) {
        Some(host) => elsewhere(host, loaded.as_ref(), json, &global),
        None => here(loaded.as_ref(), json, skew_ms, &global),
    }
}

fn load(asked: &str, set: &[String]) -> Result<Loaded, Failure> {
    let folders = profile::default_folders();
    let request = Request { profile: asked, set, folders: &folders, env: &profile::process_env };
    profile::load(&request).map_err(|error| Failure::new(Exit::Usage, error))
}

fn here(loaded: Option<&Loaded>, json: bool, skew: Option<Skew>, global: &Global) -> Outcome {
    let work = WorkFolder::find().map_err(|error| Failure::new(Exit::Own, error))?;
    let definition = loaded.map(|loaded| planned::definition(&loaded.profile)).transpose()?;
    let profile = loaded.map(|loaded| &loaded.profile).zip(definition.as_ref());
    let runtime = runtime::on_this_thread().map_err(Failure::start)?;
    let asked = Asked { results: &global.results, profile, skew };
    let facts = runtime.block_on(doctor::collect(&work, &asked)).map_err(|error| Failure::new(Exit::Own, error))?;
    let findings = doctor::examine(&facts);
    // What is known by now is no news the next time. Where it cannot be kept, it is told again.
    let _ = LastTime::read(work.root()).with(&facts).write(work.root());
    tell(&findings, json)?;
    Ok(if findings.iter().any(|finding| finding.blocking) { Exit::Differs } else { Exit::Done })
}

fn tell(findings: &[Finding], json: bool) -> Result<(), Failure> {
    if json {
        out::line(serde_json::to_string_pretty(findings).map_err(Failure::own)?);
        return Ok(());
    }
    let screen = Screen::new(Stream::Out);
    for finding in findings {
        let mark = if finding.blocking { Mark::Bad } else { Mark::Warn };
        for line in wrap(&finding.what, &format!(" {}  {}: ", mark.text(), finding.id), screen.width()) {
            screen.line(&line);
        }
        for (word, text) in [("why", &finding.why), ("do", &finding.remedy)] {
            for line in wrap(text, &format!("     {word:<4} "), screen.width()) {
                screen.line(&line);
            }
        }
    }
    let blocking = findings.iter().filter(|finding| finding.blocking).count();
    screen.line(&match (findings.len(), blocking) {
        (0, _) => "nothing stands against a run here".to_owned(),
        (all, 0) => format!("{all} to know of, and nothing blocks a run"),
        (all, blocking) => format!("{blocking} of {all} block a run"),
    });
    Ok(())
}

/// The same on another host, with what only can be seen from here: how the clocks differ.
fn elsewhere(host: &str, loaded: Option<&Loaded>, json: bool, global: &Global) -> Outcome {
    let there = There::of(host, global)?;
    let far = &there.far;
    let runtime = runtime::on_this_thread().map_err(Failure::start)?;
    runtime.block_on(async {
        let open = there.open().await?;
        let job = JobId::new();
        let place: &[&str] = if loaded.is_some() { &["where", "--job", job.as_str()] } else { &["where"] };
        // The first may have to put the program there; the second tells the time.
        let at = ask(&there, &open, place).await?;
        let (before, began) = (jiff::Timestamp::now().as_millisecond(), Instant::now());
        let now_ms = ask(&there, &open, &["where"]).await?.now_ms;
        let rtt_ms = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let ahead_ms = now_ms - before - rtt_ms / 2;
        let mut words = vec!["doctor".to_owned(), format!("--skew-ms={ahead_ms},{rtt_ms}")];
        words.extend(json.then(|| "--json".to_owned()));
        let Some((loaded, folder)) = loaded.zip(at.job) else { return elsewhere::pass_on(&there, &open, &words).await };
        let carried = crate::remote::carry(&loaded.yaml, &at.files).map_err(far::failure)?;
        for (path, bytes) in carried.files {
            put_new(&open, &path, bytes).await.map_err(far::failure)?;
        }
        let path = folder.join("profile.yaml");
        let put = open.put(&path, carried.yaml.into(), Mode::PRIVATE).await;
        put.map_err(|error| far::failure(error.into()))?;
        words.extend(["--profile".to_owned(), path.display().to_string()]);
        let outcome = elsewhere::pass_on(&there, &open, &words).await;
        let end: Result<bool, _> = far.ask(&open, "end a job", &["end", "--job", job.as_str()], Bytes::new()).await;
        // What it found is worth more than that a file could not be taken away.
        drop(end);
        outcome
    })
}

async fn ask<H: Host>(there: &There, host: &H, words: &[&str]) -> Result<Where, Failure> {
    there.far.ask(host, "look at its clock", words, Bytes::new()).await.map_err(far::failure)
}
