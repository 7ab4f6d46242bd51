//! Logs of a server that served for long: the right answer, as if every line were read, in little memory.

use std::io::{Cursor, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use orch::diagnose::{Context, diagnose};
use orch::engine::kind_word;
use orch::gate::log::{Bulk, SavedLog, Splitter, Startup, newest_first, read_all, read_each};
use orch::gate::starting::Starting;
use orch::gate::{Conduct, LogGrammar};
use orch::profile::EngineKind;

use crate::made_log::{self, Engine};
use crate::support::Home;

/// So much serving stands before and after a short log.
const AROUND_BYTES: u64 = 40_000;
/// A long log, and how much memory its reader may take.
const LONG_BYTES: u64 = 30_000_000;
const MOST_RSS_KIB: u64 = 64 << 10;

/// Whoever reads the logs of an engine.
struct Reader {
    engine: Engine,
    kind: EngineKind,
    grammar: LogGrammar,
    /// Serving that nothing ends.
    serving: Vec<u8>,
}

impl Reader {
    fn of(engine: Engine) -> Self {
        let kind = match engine {
            Engine::Sglang => EngineKind::Sglang,
            Engine::Vllm => EngineKind::Vllm,
            Engine::Llamacpp => EngineKind::Llamacpp,
        };
        let grammar = LogGrammar::new(&orch::engine::definition(kind, &[]).unwrap().log).unwrap();
        let text = String::from_utf8(serving(engine)).unwrap();
        // Without the last lines, in which the made server fails.
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let serving = lines[..lines.len() - 8].concat().into_bytes();
        Reader { engine, kind, grammar, serving }
    }

    fn all() -> Vec<Self> {
        Engine::ALL.into_iter().map(Reader::of).collect()
    }

    /// All that is said of a log, as text.
    fn said(&self, startup: &Startup) -> String {
        let diagnosis = diagnose(startup, &self.grammar, Some(kind_word(self.kind)), &Context::default());
        let failures: Vec<_> = startup.failures().iter().map(|failure| (&failure.kind, failure.line_no)).collect();
        format!(
            "{}\n{:?}\n{failures:?}\n{:?}\n{:?}\n{:?}\n{:?}",
            serde_json::to_string_pretty(&diagnosis).unwrap(),
            diagnosis.consequences,
            startup.ranks(),
            startup.phases(),
            diagnosis.memory,
            startup.last_words()
        )
    }

    /// Holds the quick ways of reading a log, at once and as it grows, against that in which every line is read.
    #[track_caller]
    fn assert_alike(&self, name: &str, log: &[u8]) {
        let quick = read_all(log, &self.grammar).unwrap();
        let each = read_each(log, &self.grammar).unwrap();
        assert_eq!(self.said(&quick), self.said(&each), "{name}");
        let conduct = Conduct::default();
        let (mut starting, mut splitter) = (Starting::new(&conduct, &self.grammar, 0), Splitter::default());
        for block in log.chunks(4001) {
            splitter.feed(block, |piece| drop(starting.take(&piece, 0)));
        }
        splitter.finish(|piece| drop(starting.take(&piece, 0)));
        starting.catch_up(0);
        assert_eq!(self.said(starting.startup()), self.said(&each), "{name}, as it grows");
    }
}

fn serving(engine: Engine) -> Vec<u8> {
    let mut log = Vec::new();
    made_log::write(engine, AROUND_BYTES, &mut log).unwrap();
    log
}

#[test]
fn a_log_of_hours_is_read_as_if_every_line_were() {
    for reader in Reader::all() {
        reader.assert_alike("made", &serving(reader.engine));
        reader.assert_alike("made, healthy", &reader.serving);
    }
}

#[test]
fn made_variants_are_read_alike_alone_and_after_hours_of_serving() {
    let text = std::fs::read_to_string("tests/data/logs/variants.yaml").unwrap();
    let all: Vec<serde_json::Value> = serde_yaml::from_str(&text).unwrap();
    let readers = Reader::all();
    for (number, one) in all.iter().enumerate() {
        let log = one["log"].as_str().unwrap().as_bytes();
        let reader = readers.iter().find(|reader| one["engine"] == reader.engine.word()).unwrap();
        reader.assert_alike(&format!("variant {number}"), log);
        reader.assert_alike(&format!("variant {number} after serving"), &[&reader.serving, log].concat());
    }
}

#[test]
fn every_log_of_the_corpus_is_read_alike_alone_and_within_hours_of_serving() {
    let root = std::env::var_os("ORCH_CORPUS").map_or_else(|| "../shared/corpus".into(), std::path::PathBuf::from);
    if !root.is_dir() {
        crate::support::skipped(&format!("{} is not there", root.display()));
        return;
    }
    let readers = Reader::all();
    for path in ["logs", "real"].iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap().flatten()) {
        let path = path.path();
        if path.extension().is_none_or(|end| end != "log") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let log = std::fs::read(&path).unwrap();
        for reader in &readers {
            let own = match reader.engine {
                Engine::Sglang => name.starts_with("sg"),
                Engine::Vllm => name.starts_with("vllm"),
                Engine::Llamacpp => name.starts_with("lc") || name.starts_with("llama"),
            };
            if own || name.starts_with("any") {
                let serving = &reader.serving;
                reader.assert_alike(&name, &log);
                reader.assert_alike(&format!("{name} within serving"), &[serving.as_slice(), &log, serving].concat());
                reader.assert_alike(&format!("{name} after serving"), &[serving.as_slice(), &log].concat());
            }
        }
    }
}

#[test]
fn a_log_turned_around_is_read_alike() {
    for reader in Reader::all() {
        let text = String::from_utf8(serving(reader.engine)).unwrap();
        let turned: String = text.lines().rev().flat_map(|line| [line, "\n"]).collect();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, turned.as_bytes()).unwrap();
        let mut bulk = Bulk::new(&reader.grammar);
        newest_first(&mut file, |piece| bulk.take(&piece)).unwrap();
        let (turned, straight) = (bulk.finish(), read_all(text.as_bytes(), &reader.grammar).unwrap());
        let root = |startup: &Startup| startup.root().map(|root| (root.kind.clone(), root.line.clone()));
        assert_eq!((root(&turned), turned.facts()), (root(&straight), straight.facts()), "{:?}", reader.engine);
        let line = |startup: &Startup| startup.root().unwrap().line_no;
        assert_eq!(line(&turned), text.lines().count() as u64 + 1 - line(&straight), "{:?}", reader.engine);
    }
}

/// A made log that is never there as a whole.
struct Streamed(std::sync::mpsc::Receiver<Vec<u8>>, Cursor<Vec<u8>>);

impl Read for Streamed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.1.position() as usize == self.1.get_ref().len() {
            let Ok(block) = self.0.recv() else { return Ok(0) };
            self.1 = Cursor::new(block);
        }
        self.1.read(into)
    }
}

#[test]
fn what_comes_through_a_pipe_for_hours_takes_no_more_memory() {
    struct Sent(std::sync::mpsc::SyncSender<Vec<u8>>);
    impl std::io::Write for Sent {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(std::io::Error::other)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (sent, came) = std::sync::mpsc::sync_channel(4);
    let made = std::thread::spawn(move || {
        made_log::write(Engine::Sglang, LONG_BYTES / 3, std::io::BufWriter::with_capacity(64 << 10, Sent(sent)))
    });
    let reader = Reader::of(Engine::Sglang);
    let saved = SavedLog::stream(Streamed(came, Cursor::default())).unwrap();
    let startup = saved.fold(&reader.grammar, None).unwrap();
    let cause = made.join().unwrap().unwrap();
    let root = startup.root().unwrap();
    assert_eq!((root.kind.as_str(), root.line_no), ("oom_runtime", cause), "{}", root.line);
}

#[test]
fn orch_diagnose_explains_a_long_log_in_little_memory_packed_or_not() {
    let home = Home::new();
    for (engine, bytes) in
        [(Engine::Sglang, LONG_BYTES), (Engine::Vllm, LONG_BYTES / 5), (Engine::Llamacpp, LONG_BYTES / 5)]
    {
        let path = home.path("server.log");
        let file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
        let cause = made_log::write(engine, bytes, file).unwrap();
        assert_diagnosed(&home, &path, engine, cause);
        if engine == Engine::Vllm {
            let packed = home.path("server.log.gz");
            let into = std::fs::File::create(&packed).unwrap();
            let mut encoder = flate2::write::GzEncoder::new(into, flate2::Compression::fast());
            std::io::copy(&mut std::fs::File::open(&path).unwrap(), &mut encoder).unwrap();
            encoder.finish().unwrap();
            assert_diagnosed(&home, &packed, engine, cause);
        }
    }
}

/// Holds the answer about a log against what was made, and the memory of the process that gave it against its bound.
#[track_caller]
fn assert_diagnosed(home: &Home, path: &Path, engine: Engine, cause: u64) {
    let mut command = home.orch(&["diagnose", path.to_str().unwrap(), "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Without the program's own pages, of which a build for debugging has many.
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
        peak_kib = peak_kib.max(line.unwrap_or(0_u64));
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let told: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(told["engine"], engine.word());
    assert_eq!(told["failure_kind"], engine.ends_in(), "{told:#}");
    assert_eq!(told["root_cause_line_no"], cause, "{told:#}");
    assert_eq!(told["phase"], "serving");
    assert!(peak_kib <= MOST_RSS_KIB, "{peak_kib} KiB for {}", path.display());
}
