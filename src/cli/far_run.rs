//! `orch run -H HOST`: the run is laid down on the host, started there so that it outlives the connection, watched from
//! here, and its record brought back.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use serde_json::json;

use super::displace::DisplaceArgs;
use super::far::{self, There};
use super::run::{Tell, ending};
use super::screen::{Screen, Stream};
use super::shown::Shown;
use super::viewer::{End, Viewer, Watched};
use super::wishes::Wishes;
use super::{Exit, Failure, Global, Outcome, out, records, secrets};
use crate::host::{Host, Mode, Words, runtime};
use crate::launch::WorkFolder;
use crate::profile::Loaded;
use crate::record::history::PastStarts;
use crate::record::model::{Group, HostInfo, Record};
use crate::record::{RunId, Store};
use crate::remote::beside::{Look, Started, Where};
use crate::remote::{Door, FarRun, Job, JobId, Line, Named, Pulled, RemoteError, carry, judged_by, pull, remember};
use crate::report::live::{Usual, View};

/// What is asked for beside the profile.
pub(super) struct Asked<'a> {
    pub(super) quick: bool,
    pub(super) against: Option<&'a str>,
    pub(super) displace: &'a DisplaceArgs,
    pub(super) keep: bool,
    pub(super) attach: Option<&'a str>,
    pub(super) resume: Option<&'a str>,
    pub(super) fail_fast: bool,
    pub(super) group: Option<&'a Group>,
}

/// Runs it there, from the profile to the record.
pub(super) fn run(host: &str, loaded: Option<&Loaded>, asked: &Asked<'_>, tell: &Tell, global: &Global) -> Outcome {
    let there = There::of(host, global)?;
    let store = records::store_with_others(global)?;
    let against = asked.against.map(|run| store.find(run)).transpose().map_err(records::failure)?;
    // Before anything is put anywhere: a secret that is missing is found out here.
    let secrets = loaded.map(|loaded| secrets::of(&loaded.profile)).transpose()?.unwrap_or_default();
    let runtime = runtime::on_threads(2).map_err(Failure::start)?;
    runtime.block_on(async {
        let wishes = Wishes::listen().map_err(Failure::start)?;
        let line = Line::open(there.door.clone()).await.map_err(far::failure)?;
        let begun = begin(&there, line, loaded, asked, against.as_ref(), &secrets, &store, tell).await?;
        let Begun { line, job, info } = begun;
        let past = match loaded {
            Some(loaded) => PastStarts::of(&store, &loaded.profile.series, &loaded.profile.name, Some(&info)),
            None => PastStarts::default(),
        };
        let watch = Watching { there: &there, watched: Watched::Job(job), past, store: &store, tell, global };
        watch.until_the_end(line, wishes).await
    })
}

/// A job that was started.
struct Begun {
    line: Line<Named>,
    job: String,
    info: HostInfo,
}

#[expect(clippy::too_many_arguments, reason = "each is one thing that a job is made of")]
async fn begin(
    there: &There,
    mut line: Line<Named>,
    loaded: Option<&Loaded>,
    asked: &Asked<'_>,
    against: Option<&RunId>,
    secrets: &BTreeMap<String, String>,
    store: &Store,
    tell: &Tell,
) -> Result<Begun, Failure> {
    let (far, id) = (&there.far, JobId::new());
    let host = line.host();
    let words = ["where", "--job", id.as_str()];
    let at: Where = far.ask(&host, "make room for a job", &words, Bytes::new()).await.map_err(far::failure)?;
    let folder = at.job.clone().unwrap_or_default();
    let mut job = Job::new(words_of(asked, against, loaded.is_some(), tell)?);
    let mut series = loaded.map(|loaded| loaded.profile.series.clone());
    if let Some(loaded) = loaded {
        let carried = carry(&loaded.yaml, &at.files).map_err(far::failure)?;
        job.profile = Some(carried.yaml);
        for (path, bytes) in carried.files {
            put_new(&host, &path, bytes).await.map_err(far::failure)?;
        }
    } else if let Some(run) = asked.resume.or(asked.attach).filter(|text| !text.contains("://")) {
        series = Some(series_of(there, &host, run).await?);
    }
    if let Some(series) = &series {
        (job.baselines, job.records) = judged_by(store, series, far.name(), against).map_err(records::failure)?;
    }
    if asked.displace.asked() {
        let production = far.settings().production.clone().ok_or_else(|| {
            let help = format!("write `{}: {{production: …}}` into hosts.yaml (docs/deploy.md)", far.name());
            Failure::new(Exit::Usage, miette::miette!(help = help, "nothing says what production is on {}", far.name()))
        })?;
        job.hosts = Some(json!({ crate::deploy::LOCAL: { "production": production } }));
    }
    let packed = job.pack().map_err(Failure::own)?;
    let path = folder.join("job.zst");
    host.put(&path, packed, Mode::PRIVATE).await.map_err(|error| far::failure(error.into()))?;
    // Through a pipe there, from this one here: no value is ever a word of a command or in a file.
    let secrets = serde_json::to_vec(secrets).map_err(Failure::own)?;
    let words = ["beside", "start", "--job", id.as_str()].map(str::to_owned);
    let said = far.orch_activated(&host, &words, secrets.into()).await.map_err(far::failure)?;
    let started: Started = far.read("start the run", &said).map_err(far::failure)?;
    if let Some(warning) = &started.warning {
        out::note(format_args!("warning: {warning}"));
    }
    drop(host);
    survives(&mut line, there, &id).await?;
    let go = line.host().put(&folder.join("go"), Bytes::new(), Mode::PRIVATE).await;
    go.map_err(|error| far::failure(error.into()))?;
    Ok(Begun { line, job: id.as_str().to_owned(), info: at.host })
}

/// That the keeper outlives the connection it was started over: that one is given up, and another one looks.
async fn survives(line: &mut Line<Named>, there: &There, id: &JobId) -> Result<(), Failure> {
    line.renew().await.map_err(far::failure)?;
    let words = ["look", "--job", id.as_str()];
    let look: Look = there.far.ask(&line.host(), "look at a run", &words, Bytes::new()).await.map_err(far::failure)?;
    match look.running || look.exit.is_some() {
        true => Ok(()),
        false => Err(far::failure(RemoteError::NotSurvived { host: there.far.name().to_owned() })),
    }
}

/// The words of the run there.
fn words_of(
    asked: &Asked<'_>,
    against: Option<&RunId>,
    has_profile: bool,
    tell: &Tell,
) -> Result<Vec<String>, Failure> {
    let mut words = vec!["run".to_owned()];
    words.extend(has_profile.then(|| "{job}/profile.yaml".to_owned()));
    words.extend(["--job".to_owned(), "{job}".to_owned()]);
    let valued = [
        ("--against", against.map(|id| id.to_string())),
        ("--attach", asked.attach.map(str::to_owned)),
        ("--resume", asked.resume.map(str::to_owned)),
        ("--group", asked.group.map(serde_json::to_string).transpose().map_err(Failure::own)?),
        ("--hosts", asked.displace.asked().then(|| "{job}/hosts.yaml".to_owned())),
    ];
    for (flag, value) in valued {
        words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    let flags = [
        ("--quick", asked.quick),
        ("--keep", asked.keep),
        ("--strict", tell.strict),
        ("--fail-fast", asked.fail_fast),
        ("--force-displace", asked.displace.forced()),
        ("--displace", asked.displace.asked() && !asked.displace.forced()),
    ];
    words.extend(flags.into_iter().filter(|(_, asked)| *asked).map(|(flag, _)| flag.to_owned()));
    Ok(words)
}

/// Puts a file there, unless it is there: its name is its content.
pub(super) async fn put_new<H: Host>(host: &H, path: &PathBuf, bytes: Bytes) -> Result<(), RemoteError> {
    let words = Words::new(["test".to_owned(), "-f".to_owned(), path.display().to_string()])?;
    if !host.run(&words, Bytes::new()).await?.ok() {
        host.put(path, bytes, Mode::PRIVATE).await?;
    }
    Ok(())
}

/// The series of a run that is there.
async fn series_of<H: Host>(there: &There, host: &H, run: &str) -> Result<String, Failure> {
    let look = look_at(there, host, run).await?;
    let none = || far::failure(RemoteError::NoSuchRun { host: there.far.name().to_owned(), run: run.to_owned() });
    let path = look.run.ok_or_else(none)?.folder.join("run.json");
    let text = read(host, &path).await.map_err(far::failure)?;
    let record: serde_json::Value = serde_json::from_slice(&text).map_err(Failure::own)?;
    Ok(record["series"].as_str().unwrap_or_default().to_owned())
}

async fn read<H: Host>(host: &H, path: &PathBuf) -> Result<Vec<u8>, RemoteError> {
    use futures_util::TryStreamExt;
    let blocks: Vec<Bytes> = host.read(path, 0).await?.try_collect().await?;
    Ok(blocks.concat())
}

/// How a run there is doing.
pub(super) async fn look_at<H: Host>(there: &There, host: &H, run: &str) -> Result<Look, Failure> {
    let words = ["beside", "look", "--run", run].map(str::to_owned);
    let said = there.far.orch(host, &words, Bytes::new()).await.map_err(far::failure)?;
    if said.code == Some(Exit::Usage as i32) {
        return Err(far::failure(RemoteError::NoSuchRun { host: there.far.name().to_owned(), run: run.to_owned() }));
    }
    there.far.read("look at a run", &said).map_err(far::failure)
}

/// The same of one that is known to be there.
pub(super) async fn look_again<H: Host>(there: &There, host: &H, run: &str) -> Result<Look, RemoteError> {
    there.far.ask(host, "look at a run", &["look", "--run", run], Bytes::new()).await
}

/// A run that is watched to its end, and brought back.
pub(super) struct Watching<'a> {
    pub(super) there: &'a There,
    pub(super) watched: Watched,
    pub(super) past: PastStarts,
    pub(super) store: &'a Store,
    pub(super) tell: &'a Tell,
    pub(super) global: &'a Global,
}

impl Watching<'_> {
    /// Shows it, brings its record back and shows how it ended.
    pub(super) async fn until_the_end(self, line: Line<Named>, wishes: Wishes) -> Outcome {
        let Watching { there, watched, past, store, tell, global } = self;
        let name = there.far.name();
        let screen = Screen::new(if tell.json || tell.events { Stream::Err } else { Stream::Out });
        let mut shown = Shown::new(View::new(screen.width(), Usual::of(past), tell.verbose), tell.events);
        let mut begun: Option<RunId> = None;
        let mut viewer = Viewer::new(line, &there.far, watched, &screen, wishes);
        let noted = |id: &RunId| {
            begun = Some(id.clone());
            note(id, name, global);
        };
        let end = viewer.watch(&mut shown, &mut { noted }).await;
        screen.end();
        let look = match end? {
            End::Over(look) => look,
            End::Left => {
                let short = begun.map_or_else(|| "latest".to_owned(), |id| id.short());
                out::note(format!("the run on {name} goes on: orch attach {short} -H {name}"));
                return Ok(Exit::Done);
            }
            End::Dropped => {
                let short = begun.map_or_else(|| "latest".to_owned(), |id| id.short());
                out::note(format!("the run on {name} was told to end: orch attach {short} -H {name}"));
                return Ok(Exit::Interrupted);
            }
        };
        let Some(id) = begun else { return without_run(name, &look) };
        let mut line = viewer.into_line();
        let (record, _) = bring(there, &mut line, store, &id, &look, global).await?;
        let exit = look.exit.and_then(Exit::of_code);
        let exit = ending(&record, &id.short(), exit, tell)?;
        records::meet(store);
        Ok(exit)
    }
}

/// A run that came to no record: what it said is all there is.
fn without_run(name: &str, look: &Look) -> Outcome {
    let said = look.said.as_deref().map(str::trim).filter(|said| !said.is_empty());
    if look.exit == Some(Exit::Done as i32) {
        out::note(said.unwrap_or("there was nothing to do"));
        return Ok(Exit::Done);
    }
    let exit = look.exit.and_then(Exit::of_code).unwrap_or(Exit::NotLaunched);
    let report = miette::miette!("on {name} the run did not begin:\n{}", said.unwrap_or("it said nothing"));
    Err(Failure::new(exit, report))
}

/// Remembers where a run is, for whoever comes back. Without it nothing is lost but that.
fn note(id: &RunId, host: &str, global: &Global) {
    let Ok(work) = WorkFolder::find() else { return };
    let hosts = global.hosts.as_ref().and_then(|path| std::path::absolute(path).ok());
    let run = FarRun { run: id.to_string(), host: host.to_owned(), hosts };
    if !crate::remote::known_runs(work.root()).contains(&run) {
        let _ = remember(work.root(), &run);
    }
}

/// Brings the record of a run that has ended, and takes its job away there.
pub(super) async fn bring<D: Door>(
    there: &There,
    line: &mut Line<D>,
    store: &Store,
    id: &RunId,
    look: &Look,
    global: &Global,
) -> Result<(Record, Pulled), Failure> {
    let far = &there.far;
    let Some(run) = &look.run else {
        return Err(far::failure(RemoteError::NoSuchRun { host: far.name().to_owned(), run: id.to_string() }));
    };
    let pulled = pull(line, far, store, id, &run.folder, &mut far::tell).await.map_err(|error| {
        let help = format!("its record is kept there: orch pull {} -H {}", id.short(), far.name());
        let exit = far::failure(error);
        Failure::new(exit.exit, miette::miette!(help = help, "{}", exit.report))
    })?;
    if let Ok(work) = WorkFolder::find() {
        let _ = work.remember_run(id.as_str(), &store.run_path(id));
    }
    note(id, far.name(), global);
    if let Some(job) = &look.job {
        // What cannot be taken away now, `orch clean` finds.
        let _ = far.ask::<_, bool>(&line.host(), "end a job", &["end", "--job", job], Bytes::new()).await;
    }
    Ok((store.record(id).map_err(records::failure)?, pulled))
}

/// Whether a run was brought, or was here.
pub(super) fn word(pulled: Pulled) -> &'static str {
    match pulled {
        Pulled::New => "brought",
        Pulled::There => "here already",
    }
}
