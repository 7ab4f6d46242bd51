//! `orch watch`: a server that is there, as an expert would read it, without a profile and without writing a byte.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::screen::{LIVE_INTERVAL, Screen, Stream};
use super::{Exit, Failure, Global, Outcome, out};
use crate::clock::Clock;
use crate::engine::{Definition, kind_word};
use crate::event::{Entry, VERSION};
use crate::gate::starting::Said;
use crate::profile::EngineKind;
use crate::record::Store;
use crate::record::history::{PastStart, PastStarts};
use crate::report::live::{Usual, View};
use crate::report::text::{cut_middle, seconds, short_id, wrap};
use crate::watch::{self, Found, Page, Told, Watched, Watching};

/// Watches servers that are there: their phase, how far it is, signs of life, and whether they answer
///
/// Without a target it looks at this machine: for whoever listens, holds a GPU, or is an engine with an open log. Nothing
/// is written, and of a server nothing is asked but which models it has. A single server is followed until it serves; of
/// several there is a summary each.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch watch                            the servers of this machine
  orch watch --once --json              the same for a program
  orch watch /var/log/sglang.log        a log that somebody writes
  orch watch http://127.0.0.1:30000     an address: whether it answers

Exit codes: 0 it could be looked at; 1 it could not; 2 usage")]
pub(crate) struct WatchArgs {
    /// This machine's name, a log, or an address. Other hosts are not looked at yet
    #[arg(value_name = "HOST|LOG|URL")]
    target: Option<String>,
    /// Says what there is now, and follows nothing
    #[arg(long)]
    once: bool,
    /// What there is now as a JSON array
    #[arg(long)]
    json: bool,
    /// The engine that wrote the log, where that cannot be told
    #[arg(long, value_name = "KIND", value_parser = ["sglang", "vllm", "llamacpp"])]
    engine: Option<String>,
}

/// What is looked at.
enum Target {
    Here,
    Log(PathBuf),
    Url(String),
}

impl WatchArgs {
    /// Whether it says what there is now, and ends.
    pub(crate) fn ends(&self) -> bool {
        self.once || self.json
    }
}

pub(crate) fn run(args: WatchArgs, global: &Global) -> Outcome {
    let WatchArgs { target, once, json, engine } = args;
    let target = target_of(target)?;
    let engine = engine.as_deref().and_then(|word| KINDS.into_iter().find(|kind| kind_word(*kind) == word));
    let runtime = crate::host::runtime::on_this_thread().map_err(Failure::start)?;
    let screen = Screen::new(Stream::Out);
    let servers = match target {
        Target::Url(url) => return runtime.block_on(address(&url, json)),
        Target::Log(path) => vec![of_log(&path, engine)?],
        Target::Here => watch::find().map_err(Failure::own)?.into_iter().map(Server::of).collect(),
    };
    if json {
        let shown = servers.into_iter().map(|server| runtime.block_on(server.json(global)));
        let all: Vec<Value> = shown.collect::<Result<_, _>>()?;
        out::line(serde_json::to_string_pretty(&all).map_err(Failure::own)?);
        return Ok(Exit::Done);
    }
    match servers.as_slice() {
        [] => out::line(
            "no server is seen here: nothing that listens is an engine that orch knows, and nobody who listens holds a GPU",
        ),
        [one] if !once => runtime.block_on(one.follow(&screen, global))?,
        several => several.iter().try_for_each(|server| runtime.block_on(server.summary(&screen, global)))?,
    }
    Ok(Exit::Done)
}

fn target_of(target: Option<String>) -> Result<Target, Failure> {
    let Some(text) = target else { return Ok(Target::Here) };
    if text.contains("://") {
        return Ok(Target::Url(text.trim_end_matches('/').trim_end_matches("/v1").to_owned()));
    }
    if Path::new(&text).is_file() {
        return Ok(Target::Log(text.into()));
    }
    let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    if text == "localhost" || Some(&text) == own.as_ref() {
        return Ok(Target::Here);
    }
    let help = format!("on that host, `orch watch` shows its servers: ssh {text} orch watch");
    let report = miette::miette!(
        help = help,
        "`{text}` is neither a log that is there, nor an address, nor this machine; other hosts cannot be watched from here yet"
    );
    Err(Failure::new(Exit::Usage, report))
}

/// Somebody's server, or its log alone.
struct Server {
    found: Option<Found>,
    log: Option<PathBuf>,
    definition: Option<Definition>,
}

impl Server {
    fn of(found: Found) -> Self {
        let kind = found.engine.is_some().then(|| watch::engine_of(&found.command)).flatten();
        let definition = kind.and_then(|kind| watch::definition(kind, &found.command));
        Server { log: found.log.clone(), found: Some(found), definition }
    }

    /// Where it answers.
    fn url(&self) -> Option<String> {
        let port = self.found.as_ref()?.ports.first()?;
        Some(format!("http://127.0.0.1:{port}"))
    }

    /// How starts of the same command went before, by the records that are here.
    fn past(&self, global: &Global) -> PastStarts {
        let Some(found) = &self.found else { return PastStarts::default() };
        let own = without_port(&found.command);
        let Ok(store) = Store::open(&global.results) else { return PastStarts::default() };
        let mut ids = store.scan().map(|found| found.ids).unwrap_or_default();
        ids.sort_by_key(|id| std::cmp::Reverse(id.began_at()));
        let records = ids.into_iter().take(RECORDS).filter_map(|id| store.record(&id).ok());
        let alike = records.filter(|record| without_port(&record.command) == own);
        PastStarts(alike.filter_map(|record| PastStart::of(&record)).collect())
    }

    fn watching(&self, clock: &Clock, past: PastStarts) -> Result<Option<Watching>, Failure> {
        let Some(definition) = &self.definition else { return Ok(None) };
        let processes = self.found.as_ref().map(|found| found.processes.clone()).unwrap_or_default();
        let watching = Watching::new(definition, self.log.as_deref(), processes, past, clock.clone());
        watching.map(Some).map_err(|error| Failure::new(Exit::Own, error))
    }

    /// A clock that began with the server, where it is known when that was.
    fn clock(&self) -> Clock {
        let now = Timestamp::now();
        let since = self.found.as_ref().and_then(|found| found.since).unwrap_or(now);
        let clock = Clock::manual(since);
        clock.advance(Duration::try_from(now.duration_since(since)).unwrap_or_default());
        clock
    }

    /// What it is: its first lines.
    fn head(&self, past: &PastStarts, width: usize) -> Vec<String> {
        let Some(found) = &self.found else {
            return self.log.iter().map(|log| cut_middle(&log.display().to_string(), width)).collect();
        };
        let mut parts = vec![found.engine.clone().unwrap_or_else(|| "unknown engine".to_owned())];
        parts.push(format!("pid {}", found.pid));
        parts.extend(found.ports.iter().map(|port| format!("port {port}")));
        if !found.gpus.is_empty() {
            parts.push(format!("GPU {}", found.gpus.join(", ")));
        }
        let up = found.since.map(|since| (Timestamp::now() - since).as_secs_f64());
        parts.extend(up.map(|s| format!("up {}", seconds(s))));
        let mut lines = vec![format!("{}   (found by {})", parts.join("  "), found.by.join(", "))];
        lines.push(format!("  {}", cut_middle(&shell_words::join(&found.command), width.saturating_sub(2))));
        lines.push(match &found.log {
            Some(log) => format!("  log {}", cut_middle(&log.display().to_string(), width.saturating_sub(6))),
            None => "  its log is no file that is seen from here: a pipe, a terminal, or a container's".to_owned(),
        });
        if let (Some(usual), Some(since), Some(newest)) = (past.ready_s(None, None), found.since, past.0.first())
            && let Ok(span) = jiff::SignedDuration::try_from_secs_f64(usual)
            && since + span > Timestamp::now()
        {
            let at = jiff::tz::TimeZone::system().to_datetime(since + span).strftime("%H:%M").to_string();
            lines.push(format!("  done at about {at}, as {} was", short_id(&newest.run)));
        }
        lines
    }

    /// The offer to make a profile of it.
    fn offer(&self) -> Option<String> {
        let pid = self.found.as_ref()?.pid;
        Some(format!("  a profile of it: orch import --pid {pid}"))
    }

    async fn pages(&self) -> Vec<Page> {
        match self.url() {
            Some(url) => watch::pages(&url).await,
            None => Vec::new(),
        }
    }

    async fn json(&self, global: &Global) -> Result<Value, Failure> {
        let clock = self.clock();
        let mut shown = serde_json::to_value(&self.found).map_err(Failure::own)?;
        if shown.is_null() {
            shown = json!({"log": self.log});
        }
        let told = match self.watching(&clock, self.past(global))? {
            Some(watching) => {
                let mut watched = watching.begin(0);
                watched.more().await.map_err(|error| Failure::new(Exit::Own, error))?;
                Some(self.dated(watched.told()))
            }
            None => None,
        };
        shown["told"] = serde_json::to_value(told).map_err(Failure::own)?;
        shown["pages"] = serde_json::to_value(self.pages().await).map_err(Failure::own)?;
        Ok(shown)
    }

    /// What a first look tells of silence is the age of the log.
    fn dated(&self, told: Told) -> Told {
        Told { silent_s: self.log_age().as_secs_f64(), stalled: false, ..told }
    }

    fn log_age(&self) -> Duration {
        let changed = self.log.as_ref().and_then(|log| std::fs::metadata(log).ok()?.modified().ok());
        changed.and_then(|at| at.elapsed().ok()).unwrap_or_default()
    }

    /// What there is now.
    async fn summary(&self, screen: &Screen, global: &Global) -> Result<(), Failure> {
        let past = self.past(global);
        self.head(&past, screen.width()).iter().for_each(|line| screen.line(line));
        let clock = self.clock();
        if let Some(watching) = self.watching(&clock, past.clone())? {
            let mut watched = watching.begin(0);
            let mut shown = Shown::new(&clock, past, screen.width());
            shown.replay(&mut watched, self.log_age()).await?;
            shown.now(&watched).iter().for_each(|line| screen.line(line));
        }
        self.pages().await.iter().for_each(|page| screen.line(&format!("  GET {} {}", page.path, page.answer)));
        self.offer().iter().for_each(|line| screen.line(line));
        screen.line("");
        Ok(())
    }

    /// Follows it until it serves, ends, or nobody wants to see more.
    async fn follow(&self, screen: &Screen, global: &Global) -> Result<(), Failure> {
        let past = self.past(global);
        self.head(&past, screen.width()).iter().for_each(|line| screen.line(line));
        let clock = self.clock();
        let Some(watching) = self.watching(&clock, past.clone())? else {
            self.pages().await.iter().for_each(|page| screen.line(&format!("  GET {} {}", page.path, page.answer)));
            self.offer().iter().for_each(|line| screen.line(line));
            return Ok(());
        };
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::start)?;
        let mut watched = watching.begin(0);
        let mut shown = Shown::new(&clock, past, screen.width());
        shown.replay(&mut watched, self.log_age()).await?;
        let mut tick = tokio::time::interval(LIVE_INTERVAL);
        let mut last = Instant::now();
        loop {
            if watched.told().phase == "serving" || watched.is_gone() {
                break;
            }
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = tick.tick() => {}
            }
            clock.advance(std::mem::replace(&mut last, Instant::now()).elapsed());
            for line in shown.more(&mut watched).await? {
                screen.line(&line);
            }
            screen.live(shown.view.live(clock.nanos()));
        }
        screen.end();
        shown.now(&watched).iter().for_each(|line| screen.line(line));
        if watched.is_gone() {
            screen.line("  its processes have ended");
        }
        self.pages().await.iter().for_each(|page| screen.line(&format!("  GET {} {}", page.path, page.answer)));
        self.offer().iter().for_each(|line| screen.line(line));
        Ok(())
    }
}

/// The engines whose logs are read.
const KINDS: [EngineKind; 3] = [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp];
/// So many of the newest records are looked at for starts of the same command.
const RECORDS: usize = 50;

/// What was shown of a server.
struct Shown<'a> {
    clock: &'a Clock,
    view: View,
    seq: u64,
    width: usize,
}

impl<'a> Shown<'a> {
    fn new(clock: &'a Clock, past: PastStarts, width: usize) -> Self {
        Shown { clock, view: View::new(width, Usual::of(past), false), seq: 0, width }
    }

    /// Takes in what happened before anybody looked: when, nobody knows.
    async fn replay(&mut self, watched: &mut Watched<'_>, log_age: Duration) -> Result<(), Failure> {
        self.more(watched).await?;
        self.view.replayed(self.clock.nanos(), u64::try_from(log_age.as_nanos()).unwrap_or(u64::MAX));
        Ok(())
    }

    /// Reads on, and gives the lines that are final.
    async fn more(&mut self, watched: &mut Watched<'_>) -> Result<Vec<String>, Failure> {
        let said: Said = watched.more().await.map_err(|error| Failure::new(Exit::Own, error))?;
        let now = self.clock.nanos();
        let mut lines = Vec::new();
        for (scope, event) in said {
            let (seq, at, run) = (self.seq, Timestamp::now(), String::new());
            self.seq += 1;
            lines.extend(self.view.see(&Entry { v: VERSION, seq, at, since_start_ns: now, run, scope, event }));
        }
        Ok(lines)
    }

    /// How it stands.
    fn now(&self, watched: &Watched<'_>) -> Vec<String> {
        let told = watched.told();
        let mut lines = Vec::new();
        if told.phase == "serving" {
            lines.push(" ok  serving    its log says that it serves".to_owned());
        } else if let Some(text) = self.view.live(self.clock.nanos()) {
            lines.extend(text.lines().map(str::to_owned));
        }
        if let (Some((number, line)), Some(kind)) = (&told.root, &told.failure_kind) {
            lines.extend(wrap(&format!("{kind}, line {number}: {line}"), " XX  log        ", self.width));
            lines.extend(told.remedy.iter().flat_map(|remedy| wrap(remedy, "     do         ", self.width)));
        }
        lines
    }
}

/// The words of a command without its port, which is another one each time.
fn without_port(words: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut skip = false;
    for word in words {
        if !std::mem::take(&mut skip) && !word.starts_with("--port=") {
            match word.as_str() {
                "--port" => skip = true,
                _ => kept.push(word.clone()),
            }
        }
    }
    kept
}

/// Whether something answers at an address.
async fn address(url: &str, json: bool) -> Outcome {
    if reqwest::Url::parse(url).is_err() {
        return Err(Failure::new(Exit::Usage, miette::miette!("`{url}` is no address")));
    }
    let pages = watch::pages(url).await;
    if json {
        out::line(serde_json::to_string_pretty(&json!([{"url": url, "pages": pages}])).map_err(Failure::own)?);
        return Ok(Exit::Done);
    }
    out::line(url);
    for page in &pages {
        out::line(format_args!("  GET {} {}", page.path, page.answer));
    }
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    if pages.iter().any(|page| page.answer == "200") {
        out::line(format_args!("  it answers; whether it generates shows `orch bench --url {url}`"));
        out::line(format_args!("  a profile of it: orch import {place}"));
    }
    Ok(Exit::Done)
}

/// A log that lies here, and the engine that wrote it.
fn of_log(path: &Path, engine: Option<EngineKind>) -> Result<Server, Failure> {
    let definition = match engine {
        Some(kind) => crate::engine::definition(kind, &crate::engine::default_folders())
            .map_err(|error| Failure::new(Exit::Usage, error))?,
        None => best(path).ok_or_else(|| {
            let help = "say which engine wrote it by `--engine sglang`, `vllm` or `llamacpp`";
            Failure::new(
                Exit::Usage,
                miette::miette!(help = help, "{} is of no engine that orch knows", path.display()),
            )
        })?,
    };
    let log = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Ok(Server { found: None, log: Some(log), definition: Some(definition) })
}

/// The definition that understands the most of a log: by the phases that it finds, then by the facts.
fn best(path: &Path) -> Option<Definition> {
    let read = |kind: EngineKind| {
        let definition = crate::engine::definition(kind, &crate::engine::default_folders()).ok()?;
        let grammar = crate::gate::LogGrammar::new(&definition.log).ok()?;
        let startup = crate::gate::log::read(path, &grammar, None).ok()?.startup;
        let score = (startup.phases().len(), startup.facts().len());
        (score > (1, 0) || startup.phase() != "launch").then_some((score, definition))
    };
    KINDS.into_iter().filter_map(read).max_by_key(|(score, _)| *score).map(|(_, definition)| definition)
}
