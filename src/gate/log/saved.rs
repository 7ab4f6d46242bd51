//! A saved log, wherever it comes from: a file, a compressed one, a pipe.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::order::{Order, newest_first};
use super::whole::{self, read_all};
use super::{Bulk, LogGrammar, Startup};

/// So much of a log is looked at to know whose it is.
const HEAD_BYTES: u64 = 256 << 10;
/// The first bytes of a zstd frame,
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// and of what gzip has written.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// A log that can be read once.
pub struct SavedLog {
    head: Vec<u8>,
    rest: Box<dyn Read>,
    /// The file itself, if its bytes are the log's.
    file: Option<File>,
}

impl std::fmt::Debug for SavedLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedLog").field("head_bytes", &self.head.len()).finish_non_exhaustive()
    }
}

impl SavedLog {
    /// A file, also one that gzip or zstd has compressed, whatever its name.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let kind = file.metadata()?;
        if kind.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
        }
        // What is no file on a disk (a pipe by name) can be read but once.
        if !kind.is_file() {
            return SavedLog::stream(file);
        }
        let mut magic = Vec::new();
        (&file).take(ZSTD.len() as u64).read_to_end(&mut magic)?;
        file.seek(SeekFrom::Start(0))?;
        if magic.starts_with(ZSTD) || magic.starts_with(GZIP) {
            return SavedLog::stream(file);
        }
        let own = file.try_clone()?;
        Ok(SavedLog { file: Some(own), ..SavedLog::of(file)? })
    }

    /// What comes through a pipe, also compressed. It is unpacked as it is read, so that its size does not matter.
    pub fn stream(log: impl Read + 'static) -> io::Result<Self> {
        let mut log = BufReader::with_capacity(64 << 10, log);
        let magic = log.fill_buf()?;
        if magic.starts_with(ZSTD) {
            SavedLog::of(zstd::Decoder::with_buffer(log)?)
        } else if magic.starts_with(GZIP) {
            // A log that was appended to in compressed form is several members.
            SavedLog::of(MultiGzDecoder::new(log))
        } else {
            SavedLog::of(log)
        }
    }

    fn of(mut log: impl Read + 'static) -> io::Result<Self> {
        let mut head = Vec::new();
        log.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        Ok(SavedLog { head, rest: Box::new(log), file: None })
    }

    /// Its beginning, as text.
    pub fn head(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }

    /// The last clock at or before a line, in seconds of a day; `None` where its lines tell none.
    pub fn clock_at(self, line_no: u64) -> io::Result<Option<u64>> {
        whole::clock_at(io::Cursor::new(self.head).chain(self.rest), line_no)
    }

    /// Reads it to its end. Without an order, its clocks tell which it is.
    pub fn fold(self, grammar: &LogGrammar, order: Option<Order>) -> io::Result<Startup> {
        let order = order.unwrap_or_else(|| Order::of(&self.head()));
        let SavedLog { head, mut rest, file } = self;
        match order {
            Order::OldestFirst => read_all(io::Cursor::new(head).chain(rest), grammar),
            Order::NewestFirst => {
                let mut file = match file {
                    Some(file) => file,
                    None => {
                        let mut file = tempfile::tempfile()?;
                        file.write_all(&head)?;
                        io::copy(&mut rest, &mut file)?;
                        file
                    }
                };
                let mut bulk = Bulk::new(grammar);
                newest_first(&mut file, |piece| bulk.take(&piece))?;
                Ok(bulk.finish())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::log::{FailureRule, LogRules};

    fn grammar() -> LogGrammar {
        let rule = FailureRule { kind: "oom".into(), pattern: "out of memory".into(), ..FailureRule::default() };
        LogGrammar::new(&LogRules { failures: vec![rule], ..LogRules::default() }).unwrap()
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        packed.finish().unwrap()
    }

    fn line_no(saved: SavedLog) -> Option<u64> {
        saved.fold(&grammar(), None).unwrap().root().map(|root| root.line_no)
    }

    #[test]
    fn a_compressed_log_is_read_as_what_is_in_it_whatever_its_name() {
        let text = "loading\n".repeat(99) + "CUDA out of memory\n";
        let appended = [gzip(&"loading\n".repeat(99)), gzip("CUDA out of memory\n")].concat();
        let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", gzip(&text)), ("b.gz", appended), ("c.zst", zstd), ("d", text.clone().into_bytes())]
        {
            let path = folder.path().join(name);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(line_no(SavedLog::open(&path).unwrap()), Some(100), "{name}");
            assert_eq!(line_no(SavedLog::stream(io::Cursor::new(bytes)).unwrap()), Some(100), "{name} through a pipe");
        }
    }

    #[test]
    fn the_clock_of_a_line_is_the_last_one_up_to_it() {
        let text = "[2026-11-01 09:00:01] loading\nno clock\n[2026-11-01 09:00:07] later\n";
        let at = |line_no| SavedLog::stream(io::Cursor::new(text)).unwrap().clock_at(line_no).unwrap();
        assert_eq!((at(0), at(2), at(3)), (None, Some(9 * 3600 + 1), Some(9 * 3600 + 7)));
    }

    #[test]
    fn a_compressed_log_that_is_cut_off_is_an_error_and_no_panic() {
        let cut = gzip(&"loading\n".repeat(9999));
        let saved = SavedLog::stream(io::Cursor::new(cut[..cut.len() / 2].to_vec()));
        assert!(saved.and_then(|saved| saved.fold(&grammar(), None)).is_err());
    }
}
