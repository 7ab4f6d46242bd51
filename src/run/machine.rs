//! What the server's machine reads while a run goes on: noted beside the journal, for the steps and for whoever looks later.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::clock::{Clock, Nanos};
use crate::event::{Emit, EmitError, Event, Scope};
use crate::measure::{Machine, Reading};
use crate::record::Journal;

/// The file of a run's folder that has every reading: a line of JSON each, `at`, `since_start_ns`, `values`; zstd, a frame
/// a reading.
const FILE: &str = "telemetry.jsonl.zst";

/// The level of compression of [`FILE`]. A frame holds one short line, so there is little to gain.
const LEVEL: i32 = 1;

/// Readings of the machine, as they come. Telemetry that is emitted here goes to the journal, and is noted.
#[derive(Debug)]
pub struct Readings {
    journal: Journal,
    clock: Clock,
    path: PathBuf,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    machine: Machine,
    /// Opened at the first reading: a run without a server of its own has no such file.
    file: Option<File>,
}

#[derive(Serialize)]
struct Line<'a> {
    at: jiff::Timestamp,
    since_start_ns: Nanos,
    values: &'a BTreeMap<String, f64>,
}

impl Readings {
    /// Of the run with this folder. Nothing is written yet.
    pub fn new(journal: &Journal, folder: &Path, clock: &Clock) -> Self {
        let (journal, clock, path) = (journal.clone(), clock.clone(), folder.join(FILE));
        Readings { journal, clock, path, noted: Mutex::default() }
    }

    /// How many GPUs the server has, where it has any.
    pub(super) fn of_gpus(&self, gpus: usize) {
        self.noted().machine.gpus = Some(gpus).filter(|gpus| *gpus > 0);
    }

    /// All that was read so far.
    pub(super) fn machine(&self) -> Machine {
        self.noted().machine.clone()
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, values: &BTreeMap<String, f64>) -> Result<(), EmitError> {
        let mut noted = self.noted();
        let since_start_ns = self.clock.nanos();
        let reading = reading(since_start_ns, values, noted.machine.gpus);
        noted.machine.readings.push(reading);
        let line = Line { at: self.clock.now(), since_start_ns, values };
        self.write(&mut noted, &line).map_err(|source| EmitError { path: self.path.clone(), source })
    }

    fn write(&self, noted: &mut Noted, line: &Line<'_>) -> std::io::Result<()> {
        let file = match &mut noted.file {
            Some(file) => file,
            empty => empty.insert(go_on_with(&self.path)?),
        };
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        file.write_all(&zstd::encode_all(text.as_slice(), LEVEL)?)
    }
}

impl Emit for Readings {
    fn emit(&self, scope: Scope, event: Event) -> Result<(), EmitError> {
        if let Event::Telemetry { values } = &event {
            self.note(values)?;
        }
        self.journal.emit(scope, event)
    }
}

/// The file of an earlier attempt of the same run is kept, up to what a kill has torn off its end.
fn go_on_with(path: &Path) -> std::io::Result<File> {
    if !path.exists() {
        return OpenOptions::new().append(true).create(true).open(path);
    }
    let whole = whole_lines(File::open(path)?);
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().append(true).create(true).open(&new)?;
    file.set_len(0)?;
    if !whole.is_empty() {
        file.write_all(&zstd::encode_all(whole.as_slice(), LEVEL)?)?;
    }
    std::fs::rename(&new, path)?;
    Ok(file)
}

fn whole_lines(file: File) -> Vec<u8> {
    let (mut whole, mut line) = (Vec::new(), Vec::new());
    let Ok(decoder) = zstd::Decoder::new(file) else { return whole };
    let mut lines = BufReader::new(decoder);
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) && line.ends_with(b"\n") {
        whole.append(&mut line);
    }
    whole
}

/// The sums over the server's own devices. A sum that leaves one out would be no sum.
fn reading(at: Nanos, values: &BTreeMap<String, f64>, gpus: Option<usize>) -> Reading {
    let sum = |ending: &str| {
        let of_gpu = |key: &str| key.strip_prefix("gpu").is_some_and(|rest| rest.ends_with(ending));
        let each: Vec<f64> = values.iter().filter(|(key, _)| of_gpu(key)).map(|(_, value)| *value).collect();
        (Some(each.len()) == gpus).then(|| each.iter().sum())
    };
    let memory_bytes = match gpus {
        Some(_) => sum("_memory_bytes"),
        None => values.get("resident_bytes").copied(),
    };
    Reading { at, memory_bytes, power_w: sum("_power_w") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(each: &[(&str, f64)]) -> BTreeMap<String, f64> {
        each.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    }

    #[test]
    fn of_several_gpus_either_all_are_read_or_none() {
        let two = values(&[
            ("gpu0_memory_bytes", 1e9),
            ("gpu1_memory_bytes", 2e9),
            ("gpu0_power_w", 100.0),
            ("resident_bytes", 5.0),
        ]);
        let read = reading(7, &two, Some(2));
        assert_eq!(read, Reading { at: 7, memory_bytes: Some(3e9), power_w: None });
        assert_eq!(reading(7, &two, Some(3)).memory_bytes, None);
        let none = reading(7, &two, None);
        assert_eq!((none.memory_bytes, none.power_w), (Some(5.0), None), "a server on a processor");
    }

    #[test]
    fn a_file_that_a_kill_has_torn_is_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let frame = |text: &str| zstd::encode_all(text.as_bytes(), LEVEL).unwrap();
        let mut bytes = [frame("{\"a\":1}\n"), frame("{\"a\":2}\n"), frame("{\"a\":3}\n")].concat();
        bytes.truncate(bytes.len() - 3);
        std::fs::write(&path, bytes).unwrap();
        let mut file = go_on_with(&path).unwrap();
        file.write_all(&frame("{\"a\":4}\n")).unwrap();
        let text = String::from_utf8(zstd::decode_all(File::open(&path).unwrap()).unwrap()).unwrap();
        assert!(
            text == "{\"a\":1}\n{\"a\":2}\n{\"a\":4}\n" || text == "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n{\"a\":4}\n",
            "{text}"
        );
        assert!(!path.with_extension("new").exists());
    }
}
