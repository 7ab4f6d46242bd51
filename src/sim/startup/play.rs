//! Puts moments into the words of a start, and writes them at their times.

use std::time::Duration;

use jiff::civil::DateTime;

use super::{Beat, Level, Milestone, Model, What, Who};
use crate::sim::Played;

/// When something is written.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// By the clock on the wall.
    pub local: DateTime,
    /// Since the process began.
    pub since: Duration,
}

/// Who has which pid.
#[derive(Clone, Debug, Default)]
pub struct Pids {
    /// The process that answers HTTP.
    pub main: u32,
    /// vLLM's engine process.
    pub engine: u32,
    /// The workers, by rank.
    pub ranks: Vec<u32>,
}

/// Writes in the manner of the played engine.
#[derive(Clone, Debug)]
pub struct Printer {
    played: Played,
    ranks: u32,
    pids: Pids,
}

impl Printer {
    /// For a start, or a server that runs.
    pub fn new(model: &Model, pids: Pids) -> Self {
        Printer { played: model.played, ranks: model.ranks, pids }
    }

    /// The bytes of a beat; nothing for a milestone.
    pub fn bytes(&self, beat: &Beat, stamp: &Stamp) -> Vec<u8> {
        let text = match &beat.what {
            What::Reached(_) => return Vec::new(),
            What::Plain(text) => format!("{text}\n"),
            What::Bar(text, last) => format!("\r{text}{}", if *last { "\n" } else { "" }),
            What::Record(level, text) => self.record(beat.who, *level, text, stamp),
        };
        text.replace("{pid}", &self.pids.main.to_string()).into_bytes()
    }

    /// A record with its prefix and its end of line.
    pub fn record(&self, who: Who, level: Level, text: &str, stamp: &Stamp) -> String {
        match self.played {
            Played::Sglang => {
                let tag = match who {
                    Who::Rank(rank) if self.ranks > 1 => format!(" TP{rank}"),
                    _ => String::new(),
                };
                format!("[{}{tag}] {text}\n", stamp.local.strftime("%Y-%m-%d %H:%M:%S"))
            }
            Played::Vllm => {
                let level = match level {
                    Level::Info => "INFO",
                    Level::Warning => "WARNING",
                    Level::Error => "ERROR",
                };
                let (name, pid) = self.process(who);
                let at = stamp.local.strftime("%m-%d %H:%M:%S");
                let place = place(text);
                // Each line of a text has the whole prefix.
                text.lines().map(|line| format!("({name} pid={pid}) {level} {at} [{place}] {line}\n")).collect()
            }
            Played::Llamacpp => {
                let letter = match level {
                    Level::Info => 'I',
                    Level::Warning => 'W',
                    Level::Error => 'E',
                };
                let since = stamp.since;
                let (ms, us) = (since.subsec_millis(), since.subsec_micros() % 1000);
                let (minutes, seconds) = (since.as_secs() / 60, since.as_secs() % 60);
                format!("{minutes}.{seconds:02}.{ms:03}.{us:03} {letter} {text}\n")
            }
        }
    }

    fn process(&self, who: Who) -> (String, u32) {
        match who {
            Who::Main => ("APIServer".to_owned(), self.pids.main),
            Who::Engine => ("EngineCore".to_owned(), self.pids.engine),
            Who::Rank(_) if self.ranks < 2 => ("EngineCore".to_owned(), self.pids.engine),
            Who::Rank(rank) => {
                (format!("Worker_TP{rank}"), self.pids.ranks.get(rank as usize).copied().unwrap_or(self.pids.engine))
            }
        }
    }
}

/// The file and line that vLLM prints before its words. They move with every release, and nothing may hang on them.
fn place(text: &str) -> &'static str {
    let places = [
        ("vLLM API server version", "api_server.py:1977"),
        ("non-default args", "api_utils.py:286"),
        ("Resolved architecture", "model.py:733"),
        ("Using max model len", "model.py:2152"),
        ("Initializing a V1 LLM engine", "core.py:133"),
        ("Starting to load model", "gpu_model_runner.py:4978"),
        ("Loading weights took", "default_loader.py:501"),
        ("Model loading took", "gpu_model_runner.py:5088"),
        ("GPU KV cache size", "kv_cache_utils.py:2327"),
        ("init engine", "core.py:402"),
        ("Engine 0", "loggers.py:335"),
        ("SpecDecoding metrics", "metrics.py:120"),
        ("WorkerProc", "multiproc_executor.py:941"),
        ("Route:", "launcher.py:195"),
    ];
    places.iter().find(|(start, _)| text.starts_with(start)).map_or("gpu_worker.py:772", |(_, place)| place)
}

impl Stamp {
    /// This moment, for a process that began then.
    pub fn now(began: tokio::time::Instant) -> Self {
        Stamp { local: jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::now()), since: began.elapsed() }
    }
}

/// Plays beats: writes each at its time, and tells the milestones.
pub async fn play<E>(
    beats: &[Beat],
    printer: &Printer,
    began: tokio::time::Instant,
    mut write: impl FnMut(&[u8]),
    mut reached: impl AsyncFnMut(Milestone) -> Result<(), E>,
) -> Result<(), E> {
    for beat in beats {
        tokio::time::sleep_until(began + beat.at).await;
        match beat.what {
            What::Reached(milestone) => reached(milestone).await?,
            _ => write(&printer.bytes(beat, &Stamp::now(began))),
        }
    }
    Ok(())
}
