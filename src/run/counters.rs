//! Reading the engine's own counters around a step and its gauges during it, with bounds on everything. What cannot be
//! read is absent: no step fails for it, and the generating endpoint is never asked.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use regex::Regex;

use crate::clock::Clock;
use crate::engine::{self, Definition};
use crate::load::Target;
use crate::measure::counters::{AcceptanceLines, Counter, CounterRules, Page, Reading, Window};
use crate::measure::{Measured, Seen, TokenSource};
use crate::profile::{EngineKind, Profile};

/// A connection to the page may take so long,
const CONNECT: Duration = Duration::from_secs(2);
/// and the page so long. An engine that works on a long step answers after it.
const PAGE: Duration = Duration::from_secs(10);
/// A page may not be longer than this.
const PAGE_BYTES: usize = 8 << 20;
/// How often the gauges are read while the load is on,
const PERIOD: Duration = Duration::from_secs(1);
/// and how much longer than a reading the pause after it is: reading must not become work of the server's.
const PAUSES: u32 = 20;
/// After the last answer the counters are read until two readings agree: some engines count a request a little later.
const SETTLE: Duration = Duration::from_millis(150);
const READINGS_AFTER: u32 = 4;
/// So much of the log of a step is read for what it says of acceptance.
const LOG_BYTES: u64 = 64 << 20;

/// Where the engine's own words are found.
#[derive(Debug, Default)]
pub struct Sources {
    /// Rules to read the page by, the likeliest first; empty: nothing is read.
    rules: Vec<CounterRules>,
    /// The page's path.
    path: String,
    /// The server's log, and what in it tells of acceptance.
    log: Option<(PathBuf, Vec<Regex>)>,
    /// Whether the server was told to speculate.
    speculates: bool,
    /// The path that counts the tokens of a text.
    tokenize: Option<String>,
    /// Whether all this is a guess, the endpoint being somebody's.
    guessed: bool,
}

impl Sources {
    /// Those of a server that a profile started, by its engine's definition. With `instrument: off` none.
    pub fn of_run(profile: &Profile, definition: &Definition, server_log: &Path) -> Self {
        let speculates = profile.speculative.is_some();
        if !profile.instrument {
            return Sources { speculates, ..Sources::default() };
        }
        let own = Some(definition.counters.clone()).filter(|rules| !rules.is_empty());
        let patterns: Vec<Regex> =
            definition.log.serving.acceptance.iter().filter_map(|pattern| Regex::new(pattern).ok()).collect();
        Sources {
            rules: own.into_iter().chain(builtin()).collect(),
            path: definition.endpoints.metrics.clone().unwrap_or_else(|| "/metrics".to_owned()),
            log: (!patterns.is_empty()).then(|| (server_log.to_owned(), patterns)),
            speculates,
            tokenize: definition.endpoints.tokenize.clone(),
            guessed: false,
        }
    }

    /// Those of an endpoint that is not known: the page shows whose it is.
    pub fn of_endpoint() -> Self {
        Sources {
            rules: builtin().collect(),
            path: "/metrics".to_owned(),
            log: None,
            speculates: false,
            tokenize: Some("/tokenize".to_owned()),
            guessed: true,
        }
    }
}

/// The rules of the engines that the program knows.
fn builtin() -> impl Iterator<Item = CounterRules> {
    const KINDS: [EngineKind; 4] = [EngineKind::Sglang, EngineKind::Vllm, EngineKind::Llamacpp, EngineKind::Trtllm];
    KINDS.into_iter().filter_map(|kind| engine::definition(kind, &[]).ok()).map(|known| known.facts.counters)
}

/// Watches the engine over one step.
pub(super) struct Watch<'a> {
    sources: &'a Sources,
    clock: &'a Clock,
    page: Option<Paged>,
    /// The rules that the first page was read by, and that page.
    before: Option<(&'a CounterRules, Reading)>,
    during: Vec<Reading>,
    log_from: Option<u64>,
}

/// What the load itself has seen to its end, where it knows that to the last token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    requests: u64,
    tokens: u64,
}

impl Answered {
    /// `None` where a request failed, or the server did not say how many tokens it generated.
    pub(super) fn of(measured: &Measured) -> Option<Self> {
        let tokens = measured.timelines.iter().map(|timeline| match timeline.output_tokens() {
            (tokens, Some(TokenSource::Usage | TokenSource::Engine)) => Some(tokens),
            _ => None,
        });
        Some(Answered { requests: measured.timelines.len() as u64, tokens: tokens.sum::<Option<u64>>()? })
    }

    /// Whether the counters have moved by exactly this between two readings.
    fn are_on(self, before: &Reading, after: &Reading, rules: &CounterRules) -> bool {
        let counted = |counter| Some(after.value(counter, rules)? - before.value(counter, rules).unwrap_or(0.0));
        counted(Counter::OutputTokens) == Some(self.tokens as f64)
            && counted(Counter::Requests).is_none_or(|requests| requests == self.requests as f64)
    }
}

/// A client for the page, and its address.
struct Paged {
    client: reqwest::Client,
    url: String,
    headers: Vec<(String, String)>,
}

impl<'a> Watch<'a> {
    /// Prepares to watch. Asks nothing yet.
    pub(super) fn new(sources: &'a Sources, target: &Target, clock: &'a Clock) -> Self {
        let page = (!sources.rules.is_empty()).then(|| Paged::new(target, &sources.path)).flatten();
        Watch { sources, clock, page, before: None, during: Vec::new(), log_from: None }
    }

    /// Reads the counters when nothing is in flight. A page that is not there, or not an engine's, is not asked again.
    pub(super) async fn before(&mut self) {
        self.log_from = self.sources.log.as_ref().and_then(|(path, _)| Some(std::fs::metadata(path).ok()?.len()));
        let Some(page) = &self.page else { return };
        let (at, read) = (self.clock.nanos(), page.read().await);
        let took = self.clock.nanos() - at;
        self.before = read.and_then(|page| {
            let rules = whose(&self.sources.rules, &page)?;
            Some((rules, Reading::of(page, rules, at, took)?))
        });
    }

    /// The path that counts the tokens of a text, where there may be one. A server that is not known is asked only if its
    /// page is an engine's, or it `tells` otherwise that it is one: to others a text may be a request like any other.
    pub(super) fn tokenize(&self, tells: bool) -> Option<&'a str> {
        let sources = self.sources;
        sources.tokenize.as_deref().filter(|_| !sources.guessed || tells || self.before.is_some())
    }

    /// Does the work, and meanwhile reads the gauges once a second.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            let next = async {
                let reading = self.read().await;
                let pause = match &reading {
                    Some(reading) => PERIOD.max(Duration::from_nanos(reading.took) * PAUSES),
                    None => PERIOD * PAUSES,
                };
                (reading, pause)
            };
            let (reading, pause) = tokio::select! {
                done = &mut work => return done,
                next = next => next,
            };
            self.during.extend(reading);
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads the counters after the last answer, and says what was seen. A page that has counted all that has `answered`
    /// is not waited for.
    pub(super) async fn after(mut self, answered: Option<Answered>) -> Seen {
        let mut after = self.read().await;
        for _ in 1..READINGS_AFTER {
            let Some((rules, before)) = &self.before else { break };
            let has_all = answered.zip(after.as_ref()).is_some_and(|(all, after)| all.are_on(before, after, rules));
            if has_all {
                break;
            }
            tokio::time::sleep(SETTLE).await;
            let again = self.read().await;
            let count = |reading: &Option<Reading>| {
                reading.as_ref().and_then(|found| found.value(Counter::OutputTokens, rules))
            };
            let settled = count(&again) == count(&after);
            after = again.or(after);
            if settled {
                break;
            }
        }
        let during = std::mem::take(&mut self.during);
        let counters = self
            .before
            .as_ref()
            .zip(after)
            .map(|((rules, before), after)| Window::between(before, &during, &after, rules));
        Seen {
            counters,
            acceptance_lines: self.acceptance_lines().await,
            speculates: self.sources.speculates,
            ..Seen::default()
        }
    }

    async fn read(&self) -> Option<Reading> {
        let (page, (rules, _)) = (self.page.as_ref()?, self.before.as_ref()?);
        let (at, read) = (self.clock.nanos(), page.read().await);
        Reading::of(read?, rules, at, self.clock.nanos() - at)
    }

    /// What the log of the step says, the file being read elsewhere than on this thread.
    async fn acceptance_lines(&self) -> Option<AcceptanceLines> {
        let ((path, patterns), from) = (self.sources.log.clone()?, self.log_from?);
        tokio::task::spawn_blocking(move || {
            let mut file = std::fs::File::open(path).ok()?;
            file.seek(std::io::SeekFrom::Start(from)).ok()?;
            let mut bytes = Vec::new();
            file.take(LOG_BYTES).read_to_end(&mut bytes).ok()?;
            AcceptanceLines::read(String::from_utf8_lossy(&bytes).lines(), &patterns)
        })
        .await
        .ok()?
    }
}

/// The rules that know the most of a page; the first of those that know as much.
fn whose<'a>(rules: &'a [CounterRules], page: &Page) -> Option<&'a CounterRules> {
    let known = rules.iter().map(|rules| (rules.known_on(page), rules)).filter(|(known, _)| *known > 0);
    known.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, rules)| rules)
}

impl Paged {
    fn new(target: &Target, path: &str) -> Option<Self> {
        let endpoint = target.endpoint().ok()?;
        // Of several servers one page would be a part, and not all that was counted.
        if !target.more.is_empty() {
            return None;
        }
        let mut builder = reqwest::Client::builder();
        if let Some(path) = &endpoint.unix {
            builder = builder.unix_socket(path.as_path());
        }
        if let Some(pem) = endpoint.net.ca.as_ref().and_then(|path| std::fs::read(path).ok()) {
            builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(&pem).ok()?);
        }
        if !endpoint.tls {
            // Reading the system's certificates takes a while, and without TLS none is ever looked at.
            builder = builder.tls_certs_only([]);
        }
        // A proxy of the environment must not stand between: the engine's own page is asked for without one.
        let client = builder
            .no_proxy()
            .tls_danger_accept_invalid_certs(endpoint.net.insecure)
            .connect_timeout(CONNECT)
            .timeout(PAGE)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .ok()?;
        let url = match &endpoint.unix {
            Some(_) => format!("http://localhost{path}"),
            None => endpoint.url(path),
        };
        Some(Paged { client, url, headers: target.headers.clone() })
    }

    /// The page, if there is one.
    async fn read(&self) -> Option<Page> {
        let request =
            self.headers.iter().fold(self.client.get(&self.url), |request, (name, value)| request.header(name, value));
        let response = request.send().await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        let mut body = Vec::new();
        let mut blocks = response.bytes_stream();
        while let Some(block) = blocks.next().await {
            body.extend_from_slice(&block.ok()?);
            if body.len() > PAGE_BYTES {
                return None;
            }
        }
        Some(Page::read(&String::from_utf8_lossy(&body)))
    }
}
