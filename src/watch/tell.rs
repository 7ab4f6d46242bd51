//! What there is to tell of a server: its phase and how far it is, signs of life, and whether it answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::{Clock, Nanos};
use crate::engine::Definition;
use crate::gate::life::look::{self, Where};
use crate::gate::log::{GrammarError, Piece, Splitter};
use crate::gate::starting::{Said, Starting};
use crate::gate::{Conduct, LogGrammar, Patience};
use crate::host::{Follow, HostError, Local};
use crate::launch::Process;
use crate::record::history::PastStarts;

/// What a page of a server answers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Page {
    /// The path.
    pub path: String,
    /// `200`, `503`, `refused`.
    pub answer: String,
}

/// Asks the one page that costs no server anything: which models it has. The health page of some generates a token.
pub async fn pages(base_url: &str) -> Vec<Page> {
    let paths = ["/v1/models".to_owned()];
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build();
    let Ok(client) = client else { return Vec::new() };
    let mut pages = Vec::new();
    for path in paths {
        let answer = match client.get(format!("{}{path}", base_url.trim_end_matches('/'))).send().await {
            Ok(response) => response.status().as_u16().to_string(),
            Err(error) if error.is_timeout() => "no answer".to_owned(),
            Err(_) => "refused".to_owned(),
        };
        pages.push(Page { path, answer });
    }
    pages
}

/// What is told of a server, beside what is said while it goes on.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Told {
    /// The phase of its start, or `serving`.
    pub phase: String,
    /// The line that looks like the cause of a failure, with its number.
    pub root: Option<(u64, String)>,
    /// The kind of that failure.
    pub failure_kind: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// What its log has told.
    pub facts: std::collections::BTreeMap<String, serde_json::Value>,
    /// Its last line.
    pub last_line: Option<String>,
    /// Since when there was no sign of life, in seconds; only of what was seen while it was watched.
    pub silent_s: f64,
    /// Whether that is longer than its phase is given.
    pub stalled: bool,
}

/// How a server's log is read.
pub struct Watching {
    conduct: Conduct,
    grammar: LogGrammar,
    clock: Clock,
    log: Option<PathBuf>,
    processes: Vec<Process>,
}

impl Watching {
    /// A server whose log lies there, read by this definition.
    pub fn new(
        definition: &Definition,
        log: Option<&Path>,
        processes: Vec<Process>,
        past: PastStarts,
        clock: Clock,
    ) -> Result<Self, GrammarError> {
        let conduct = Conduct {
            patience: Patience::new(&Default::default(), past, &definition.log),
            worker: definition.log.worker.as_deref().and_then(|pattern| regex::Regex::new(pattern).ok()),
            ..Conduct::default()
        };
        let grammar = LogGrammar::new(&definition.log)?;
        Ok(Watching { conduct, grammar, clock, log: log.map(Path::to_owned), processes })
    }

    /// Begins to watch a server that was launched at a moment of the clock.
    pub fn begin(&self, launched: Nanos) -> Watched<'_> {
        let follow = self.log.clone().map(|log| Follow::new(Local, log, 0));
        let starting = Starting::new(&self.conduct, &self.grammar, launched);
        Watched { watching: self, starting, splitter: Splitter::default(), follow }
    }
}

/// A server that is watched.
pub struct Watched<'w> {
    watching: &'w Watching,
    starting: Starting<'w>,
    splitter: Splitter,
    follow: Option<Follow<Local>>,
}

impl Watched<'_> {
    /// Reads what was added to the log and looks at its processes; gives what is said of it.
    pub async fn more(&mut self) -> Result<Said, HostError> {
        let now = self.watching.clock.nanos();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut said = Vec::new();
        let Watched { follow, splitter, starting, .. } = self;
        if let Some(follow) = follow {
            follow
                .more(|block| {
                    splitter.feed(block, |piece| pieces.push(piece));
                    for piece in pieces.drain(..) {
                        said.extend(starting.take(&piece, now));
                    }
                })
                .await?;
        }
        let at = Where {
            processes: Some(self.watching.processes.clone()),
            log: self.watching.log.clone().unwrap_or_default(),
            ..Where::default()
        };
        if let Ok(look) = tokio::task::spawn_blocking(move || look::look(&at)).await {
            said.extend(self.starting.look(&look, now));
        }
        if let Some(end) = self.splitter.open_end() {
            self.starting.stands(&end);
        }
        said.extend(self.starting.tick(now).0);
        Ok(said)
    }

    /// Whether its main process, or all that is known of it, is gone.
    pub fn is_gone(&self) -> bool {
        !self.watching.processes.is_empty() && self.watching.processes.iter().all(|process| !process.lives())
    }

    /// What is known of it.
    pub fn told(&self) -> Told {
        let now = self.watching.clock.nanos();
        let startup = self.starting.startup();
        let root = startup.root();
        Told {
            phase: startup.phase().to_owned(),
            root: root.map(|root| (root.line_no, root.line.trim().to_owned())),
            failure_kind: root.map(|root| root.kind.clone()),
            remedy: root.and_then(|root| root.remedy.clone()),
            facts: startup.facts().clone(),
            last_line: startup.last_words().pop(),
            silent_s: now.saturating_sub(self.starting.life().last_at()) as f64 / 1e9,
            stalled: self.starting.is_stalled(),
        }
    }
}
