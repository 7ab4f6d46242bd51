//! Whether production served a request in the last minutes. What cannot be known counts as in use.
//!
//! Two witnesses are asked. Its log over the window: an access line of a request that may be work says that it is in use;
//! that there is none says something only if the log has access lines at all. And its counters at `/metrics`: requests
//! that run now, and totals, which are remembered between looks. Where there are totals they must have stood still for the
//! whole window, whatever the log says.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::deployments::{read_json, write_json};
use super::error::DeployError;
use super::launcher::blocking;
use super::production::{Production, What};
use super::undo;
use crate::launch::{LaunchError, WorkFolder, docker};

/// How long a page may take.
const PAGE: Duration = Duration::from_secs(5);

/// What is known of its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It served nothing in the window; what shows that.
    Yes(String),
    /// It serves, or did; what shows that.
    No(String),
    /// Nobody can tell; why.
    Unknown(String),
}

/// What was seen in one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// The log over the window; `None` where it cannot be read.
    pub log: Option<String>,
    /// Requests that run or wait now.
    pub running: Option<f64>,
    /// All requests and tokens so far.
    pub total: Option<f64>,
    /// For how long the total has been what it is, as far as it was looked at.
    pub still: Option<Duration>,
    /// Whether the total has changed since a look within the window.
    pub changed: bool,
}

impl Look {
    /// What follows, for a window.
    pub fn judge(&self, window: Duration) -> Idle {
        let minutes = format!("{} min", window.as_secs().div_ceil(60));
        if let Some(running) = self.running.filter(|running| *running > 0.0) {
            return Idle::No(format!("{running} requests run or wait there now"));
        }
        let log = self.log.as_deref().map(of_log);
        if let Some(Log::Served(count, line)) = &log {
            return Idle::No(format!("its log has {count} requests in the last {minutes}, the last one `{line}`"));
        }
        if self.changed {
            return Idle::No(format!("its counters have changed in the last {minutes}"));
        }
        if let (Some(_), Some(still)) = (self.total, self.still)
            && still >= window
        {
            return Idle::Yes(format!("its counters have stood still for {} min", still.as_secs() / 60));
        }
        match (self.total, log) {
            (Some(_), _) => Idle::Unknown(format!(
                "its counters are known to have stood still for {} s of {minutes}; ask again then",
                self.still.unwrap_or_default().as_secs()
            )),
            (None, Some(Log::OnlyOthers(count))) => {
                Idle::Yes(format!("its log has no generating request among {count} in the last {minutes}"))
            }
            (None, Some(Log::Silent | Log::Served(..))) => {
                Idle::Unknown("its log has no access line at all, and it has no counters".to_owned())
            }
            (None, None) => Idle::Unknown("neither its log nor its counters can be read".to_owned()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Log {
    /// So many requests that may be work, and the last line.
    Served(usize, String),
    /// Access lines, and none of a request that may be work.
    OnlyOthers(usize),
    /// No access line.
    Silent,
}

/// What is posted to without asking for work: the last part of its path. Engines have so many addresses that do work, and
/// get new ones, that whatever is not known here counts as use.
const NO_WORK: &[&str] = &[
    "tokenize",
    "detokenize",
    "apply-template",
    "flush_cache",
    "reset_prefix_cache",
    "reset_mm_cache",
    "reset_encoder_cache",
];

fn of_log(text: &str) -> Log {
    static ACCESS: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r#"\b(GET|HEAD|OPTIONS|POST|PUT|PATCH|DELETE|WebSocket) (/[^\s"?]*)"#).ok());
    let Some(access) = ACCESS.as_ref() else { return Log::Silent };
    let (mut served, mut others, mut last) = (0, 0, "");
    for line in text.lines() {
        let Some(found) = access.captures(line) else { continue };
        let path = found.get(2).map_or("", |path| path.as_str());
        let end = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let looks_only = matches!(&found[1], "GET" | "HEAD" | "OPTIONS");
        if !looks_only && !NO_WORK.contains(&end) {
            (served, last) = (served + 1, line);
        } else {
            others += 1;
        }
    }
    match (served, others) {
        (0, 0) => Log::Silent,
        (0, others) => Log::OnlyOthers(others),
        (served, _) => Log::Served(served, last.trim().chars().take(120).collect()),
    }
}

/// Totals that grow with each request, and gauges of what is there now, as engines name them.
const TOTALS: &[&str] = &[
    "vllm:request_success_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "sglang:num_requests_total",
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
];
const GAUGES: &[&str] = &[
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
];

/// The sums of the totals and of the gauges; `None` where there is none of them.
fn counters(page: &str) -> (Option<f64>, Option<f64>) {
    let sum = |names: &[&str]| {
        let values: Vec<f64> = page
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let name = line.split(['{', ' ']).next()?;
                let value = line.rsplit_once(' ')?.1.parse::<f64>().ok()?;
                names.contains(&name).then_some(value)
            })
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    };
    (sum(TOTALS), sum(GAUGES))
}

/// A total as it was last seen to change.
#[derive(Serialize, Deserialize)]
struct Remembered {
    total: f64,
    since: Timestamp,
    /// The last look.
    at: Timestamp,
}

/// Looks at production now, and remembers its totals for the next look.
pub async fn look(production: &Production, window: Duration, work: &WorkFolder) -> Result<Look, DeployError> {
    let mut look = Look { log: log(production, window).await, ..Look::default() };
    if let Some(page) = metrics(&production.url).await {
        (look.total, look.running) = counters(&page);
    }
    if let Some(total) = look.total {
        let (still, changed) = remember(work, &production.shown(), total, window)?;
        (look.still, look.changed) = (Some(still), changed);
    }
    Ok(look)
}

async fn log(production: &Production, window: Duration) -> Option<String> {
    let seconds = window.as_secs().max(1);
    match production.what.clone() {
        What::Unit { name, manager } => blocking(move || manager.log_of_the_last(&name, seconds)).await.ok(),
        What::Container { name } => {
            let read = move || {
                let output = docker::docker(&["logs", "--since", &format!("{seconds}s"), &name])?;
                match output.status.success() {
                    true => Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
                    false => Err(LaunchError::Docker { what: "logs".to_owned(), why: String::new() }),
                }
            };
            blocking(read).await.ok()
        }
        What::Command { .. } => None,
    }
}

async fn metrics(url: &str) -> Option<String> {
    let client = reqwest::Client::builder().no_proxy().timeout(PAGE).build().ok()?;
    let answer = client.get(format!("{url}/metrics")).send().await.ok()?;
    if answer.status() == 200 { answer.text().await.ok() } else { None }
}

/// For how long the total has been this one, as far as was looked; and whether it was another one within the window.
fn remember(work: &WorkFolder, what: &str, total: f64, window: Duration) -> Result<(Duration, bool), DeployError> {
    let path = undo::folder(work)?.join("looks");
    let mut known: BTreeMap<String, Remembered> = read_json(&path)?.unwrap_or_default();
    let now = Timestamp::now();
    let ago = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
    let (since, changed) = match known.get(what) {
        Some(before) if before.total == total => (before.since, false),
        // A server that was started anew counts from zero: that is another total too, and nobody knows who asked it.
        Some(before) => (now, ago(before.at) <= window),
        None => (now, false),
    };
    known.insert(what.to_owned(), Remembered { total, since, at: now });
    write_json(&path, &known)?;
    Ok((ago(since), changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(600);
    const HEALTH: &str = r#"INFO:     127.0.0.1:5123 - "GET /health HTTP/1.1" 200 OK"#;
    const CHAT: &str = r#"INFO:     10.0.0.7:5123 - "POST /v1/chat/completions HTTP/1.1" 200 OK"#;

    fn of(log: Option<&str>, total: Option<f64>, still_s: u64, running: Option<f64>) -> Idle {
        let still = total.map(|_| Duration::from_secs(still_s));
        Look { log: log.map(str::to_owned), running, total, still, changed: false }.judge(WINDOW)
    }

    #[test]
    fn one_witness_of_use_is_enough_and_silence_is_none_of_idleness() {
        assert!(
            matches!(of(Some(HEALTH), Some(9.0), 9000, Some(2.0)), Idle::No(why) if why.starts_with("2 requests run"))
        );
        assert!(matches!(of(Some(CHAT), Some(9.0), 9000, Some(0.0)), Idle::No(why) if why.contains("10.0.0.7")));
        assert!(matches!(of(None, Some(9.0), 600, Some(0.0)), Idle::Yes(_)));
        assert!(matches!(of(None, Some(9.0), 599, Some(0.0)), Idle::Unknown(_)));
        assert!(matches!(of(Some(HEALTH), None, 0, None), Idle::Yes(_)));
        for silent in ["", "Decode batch, #running-req: 0"] {
            assert!(matches!(of(Some(silent), None, 0, None), Idle::Unknown(_)), "{silent}");
        }
        assert!(matches!(of(None, None, 0, None), Idle::Unknown(_)));
    }

    #[test]
    fn whatever_is_posted_is_use_unless_it_is_known_to_be_no_work() {
        let line = |what: &str| format!("INFO:     10.0.0.7:5123 - \"{what} HTTP/1.1\" 200 OK");
        for path in [
            "/v1/chat/completions",
            "/v1/audio/transcriptions",
            "/invocations",
            "/classify",
            "/pooling",
            "/encode",
            "/v1/embed/",
            "/api/chat",
            "/not/invented?yet=1",
        ] {
            let log = line(&format!("POST {path}"));
            assert!(matches!(of(Some(&log), None, 0, None), Idle::No(_)), "{log}");
        }
        assert!(matches!(of(Some(&line("PUT /generate")), None, 0, None), Idle::No(_)));
        let socket = r#"INFO:     10.0.0.7:5123 - "WebSocket /v1/realtime" [accepted]"#;
        assert!(matches!(of(Some(socket), None, 0, None), Idle::No(_)));
        for what in
            ["POST /tokenize", "POST /v1/detokenize", "POST /flush_cache", "GET /v1/models", "GET /health_generate"]
        {
            assert!(matches!(of(Some(&line(what)), None, 0, None), Idle::Yes(_)), "{what}");
        }
        // Work that the log does not show, for example of a protocol of its own, moves the totals.
        assert!(matches!(of(Some(HEALTH), Some(9.0), 599, Some(0.0)), Idle::Unknown(_)));
        assert!(matches!(of(Some(HEALTH), Some(9.0), 600, Some(0.0)), Idle::Yes(_)));
    }

    #[test]
    fn engines_counters_are_found_and_others_are_not() {
        let page = "# HELP vllm:num_requests_running n\nvllm:num_requests_running{model=\"m\"} 1.0\n\
                    vllm:request_success_total{finished_reason=\"stop\"} 3.0\nvllm:request_success_total{finished_reason=\"length\"} 4\n\
                    process_cpu_seconds_total 12.5\n";
        assert_eq!(counters(page), (Some(7.0), Some(1.0)));
        assert_eq!(counters("process_cpu_seconds_total 12.5\n"), (None, None));
    }
}
