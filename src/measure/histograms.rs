//! `histograms.hlog`: each distribution of each step as an HdrHistogram, in the format that its usual viewers read.
//!
//! Histograms may be merged, percentiles never. They hold three significant digits; exact quantiles come from the
//! requests' own rows.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::Measured;
use super::rows::FileError;
use super::summary::samples;

/// Values are kept in thousandths of the metric's unit: microseconds for milliseconds.
const SCALE: f64 = 1000.0;
/// Significant decimal digits.
const DIGITS: u8 = 3;

/// Writes the log of a run.
#[derive(Debug)]
pub struct HistogramLog {
    path: PathBuf,
    file: std::fs::File,
    /// When the run began, and what its clock then said.
    start: SystemTime,
    /// From the beginning of the log to moment 0 of the clock whose moments come.
    offset: Duration,
}

impl HistogramLog {
    /// Begins a log. `start` is the wall-clock time of moment 0 of the clock whose moments the steps hold.
    pub fn create(path: &Path, start: SystemTime) -> Result<Self, FileError> {
        let write = || {
            let mut file = std::fs::File::create(path)?;
            let mut header = Vec::new();
            let mut serializer = V2DeflateSerializer::new();
            let mut builder = builder();
            builder.add_comment("[Logged by orch; values in thousandths of the unit of the metric in the tag]");
            builder.with_start_time(start).begin_log_with(&mut header, &mut serializer)?;
            file.write_all(&header)?;
            Ok(file)
        };
        let file = write().map_err(|source| FileError::write(path, source))?;
        Ok(HistogramLog { path: path.to_owned(), file, start, offset: Duration::ZERO })
    }

    /// Goes on with the log of an interrupted run: the entries of the steps that are `done` are kept. Begins one where
    /// there is none. `start` is the moment 0 of the clock that goes on.
    pub fn resumed(path: &Path, start: SystemTime, done: &[String]) -> Result<Self, FileError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) if !done.is_empty() => text,
            _ => return Self::create(path, start),
        };
        let new = path.with_extension("new");
        let began = began(&text).unwrap_or(start);
        let mut log = Self::create(&new, began)?;
        let kept: String = text.split_inclusive('\n').filter(|line| is_of(line, done)).collect();
        let write = log.file.write_all(kept.as_bytes()).and_then(|()| std::fs::rename(&new, path));
        write.map_err(|source| FileError::write(path, source))?;
        log.path = path.to_owned();
        // A wall clock that was set back in between would give entries before the beginning.
        log.offset = start.duration_since(began).unwrap_or_default();
        Ok(log)
    }

    /// When moment 0 was.
    pub fn start(&self) -> SystemTime {
        self.start
    }

    /// Adds a step: one entry a metric, tagged `step/metric`.
    pub fn add(&mut self, step: &str, measured: &Measured) -> Result<(), FileError> {
        let lines = lines(step, measured, self.offset).map_err(|source| FileError::write(&self.path, source))?;
        self.file.write_all(&lines).map_err(|source| FileError::write(&self.path, source))
    }
}

/// When a log says that it began.
fn began(text: &str) -> Option<SystemTime> {
    let (_, rest) = text.split_once("[StartTime: ")?;
    let seconds: f64 = rest.split_whitespace().next()?.parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
}

/// Whether a whole line is an entry of one of these steps: its tag begins with the step's name.
fn is_of(line: &str, done: &[String]) -> bool {
    let tag = line.strip_prefix("Tag=").and_then(|rest| rest.split(',').next());
    let step = tag.and_then(|tag| tag.rsplit_once('/')).map(|(step, _)| step);
    line.ends_with('\n') && step.is_some_and(|step| done.iter().any(|done| in_tag(done) == step))
}

/// A tag holds none of these.
fn in_tag(text: &str) -> String {
    text.replace([',', ' ', '\n', '\r'], "_")
}

fn builder() -> IntervalLogWriterBuilder {
    let mut builder = IntervalLogWriterBuilder::new();
    builder.with_max_value_divisor(SCALE);
    builder
}

/// The entries of a step.
fn lines(step: &str, measured: &Measured, offset: Duration) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut writer = builder().begin_log_with(&mut text, &mut serializer)?;
    let start = offset + Duration::from_nanos(measured.began);
    let length = Duration::from_nanos(measured.ended.saturating_sub(measured.began));
    for (id, samples) in samples(measured) {
        let Some(histogram) = histogram(&samples)? else { continue };
        let tag = in_tag(&format!("{step}/{id}"));
        writer.write_histogram(&histogram, start, length, Tag::new(&tag)).map_err(std::io::Error::other)?;
    }
    // The writer repeats its header; the file has it once.
    let text: Vec<u8> =
        text.split_inclusive(|byte| *byte == b'\n').filter(|line| line[0] != b'#').flatten().copied().collect();
    Ok(text)
}

/// The histogram of samples in a metric's unit; `None` without samples.
pub fn histogram(samples: &[f64]) -> std::io::Result<Option<Histogram<u64>>> {
    if samples.is_empty() {
        return Ok(None);
    }
    let mut histogram = Histogram::new(DIGITS).map_err(std::io::Error::other)?;
    for sample in samples {
        histogram.record((sample * SCALE).round().max(0.0) as u64).map_err(std::io::Error::other)?;
    }
    Ok(Some(histogram))
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::measure::testing::ok;

    /// Standard base64.
    fn decode(text: &str) -> Vec<u8> {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
        for byte in text.bytes().filter(|byte| *byte != b'=') {
            let six = ALPHABET.iter().position(|letter| *letter == byte).unwrap();
            bits = bits << 6 | six as u32;
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
            }
        }
        bytes
    }

    #[test]
    fn the_log_reads_back_by_the_format_s_own_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("histograms.hlog");
        let mut log = HistogramLog::create(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
        let measured = Measured {
            timelines: (0..100).map(|n| ok(0, 100 + n, 1000, 2)).collect(),
            began: 2_000_000_000,
            ended: 5_500_000_000,
            ..Measured::default()
        };
        log.add("single", &measured).unwrap();
        log.add("ladder@8", &measured).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes).matches("StartTime").count(), 1);
        let mut seen = Vec::new();
        for entry in IntervalLogIterator::new(&bytes) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            assert_eq!((interval.start_timestamp().as_millis(), interval.duration().as_millis()), (2000, 3500));
            let tag = interval.tag().unwrap().as_str().to_owned();
            if tag.ends_with("/ttft_ms") {
                let histogram: Histogram<u64> =
                    Deserializer::new().deserialize(&mut decode(interval.encoded_histogram()).as_slice()).unwrap();
                assert_eq!(histogram.len(), 100);
                let p50 = histogram.value_at_quantile(0.5) as f64 / SCALE;
                assert!((p50 - 149.0).abs() / 149.0 < 0.001, "{p50}");
            }
            seen.push(tag);
        }
        assert!(seen.contains(&"single/ttft_ms".to_owned()) && seen.contains(&"ladder@8/e2e_ms".to_owned()));
        assert!(!seen.contains(&"single/connect_ms".to_owned()), "what has no sample has no histogram");
    }

    #[test]
    fn histograms_merge() {
        let mut one = histogram(&[1.0, 2.0]).unwrap().unwrap();
        one.add(histogram(&[0.0, 3.0]).unwrap().unwrap()).unwrap();
        assert_eq!((one.len(), one.min(), one.max()), (4, 0, 3001));
    }
}
