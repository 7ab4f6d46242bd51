//! One request as one line, and the files that hold such lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Outcome, Timeline, TokenSource, request::ms};

/// A request, as `--requests-out` and `requests.jsonl.zst` have it. Times ending in `_ms` count from `sent`, but for
/// `queued_ms` and `connect_ms`, which are spans before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the metrics and of `Timeline`")]
pub struct Row {
    pub id: u64,
    pub step: String,
    pub outcome: Outcome,
    /// The words of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub http_status: Option<u16>,
    pub attempts: u32,
    pub input_tokens: Option<u64>,
    pub output_tokens: u64,
    pub reasoning_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub token_source: Option<TokenSource>,
    /// Whether the tokens of each chunk are known; `null` for a failure.
    pub tokens_exact: Option<bool>,
    pub chunks: u64,
    pub tokens_in_first_chunk: Option<u64>,
    pub finish_reason: Option<String>,
    pub connection_reused: bool,
    pub batched: bool,
    /// `null` for a failure.
    pub decode_rate_valid: Option<bool>,
    pub queued_ms: Option<f64>,
    pub connect_ms: Option<f64>,
    pub headers_ms: Option<f64>,
    pub first_chunk_ms: Option<f64>,
    pub first_any_ms: Option<f64>,
    pub first_content_ms: Option<f64>,
    pub last_ms: Option<f64>,
    pub done_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    /// The engine's own times, where it gives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<super::EngineTimings>,
    /// When each generating chunk came, when chunks are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_ms: Option<Vec<f64>>,
    /// Tokens of each; `null` when they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_tokens: Option<Option<Vec<u32>>>,
    /// When texts are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_text: Option<String>,
}

impl Row {
    /// The row of a request of `step`.
    pub fn of(timeline: &Timeline, step: &str, keep_chunks: bool) -> Self {
        let ok = timeline.is_ok();
        let (output_tokens, token_source) = timeline.output_tokens();
        let after = |moment| timeline.after_sent_ms(moment);
        Row {
            id: timeline.id,
            step: step.to_owned(),
            outcome: timeline.outcome,
            error: timeline.error.clone(),
            http_status: timeline.http_status,
            attempts: timeline.attempts,
            input_tokens: timeline.input_tokens(),
            output_tokens,
            reasoning_tokens: timeline.usage.and_then(|usage| usage.reasoning_tokens),
            cached_tokens: timeline.cached_tokens(),
            token_source,
            tokens_exact: ok.then(|| timeline.tokens_exact()),
            chunks: timeline.chunks.len() as u64,
            tokens_in_first_chunk: timeline.tokens_in_first_chunk().filter(|_| ok),
            finish_reason: timeline.finish_reason.clone(),
            connection_reused: timeline.connection_reused,
            batched: timeline.batched(),
            decode_rate_valid: ok.then(|| timeline.decode_rate_valid()),
            queued_ms: timeline.queued_ms(),
            connect_ms: timeline.connect.map(ms),
            headers_ms: after(timeline.headers),
            first_chunk_ms: after(timeline.first_chunk),
            first_any_ms: timeline.ttft_ms(),
            first_content_ms: timeline.ttft_content_ms(),
            last_ms: timeline.e2e_ms(),
            done_ms: after(timeline.done),
            tpot_ms: timeline.tpot_ms(),
            engine: timeline.engine,
            chunk_ms: keep_chunks.then(|| timeline.chunks.iter().filter_map(|chunk| after(Some(chunk.at))).collect()),
            chunk_tokens: keep_chunks.then(|| {
                let tokens: Option<Vec<_>> = timeline.chunks.iter().map(|chunk| chunk.tokens).collect();
                tokens.filter(|tokens| ok && !tokens.is_empty())
            }),
            text: timeline.text.clone(),
            reasoning_text: timeline.reasoning_text.clone(),
        }
    }
}

/// A file of rows or histograms cannot be written or read.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("cannot {act} {}: {source}", path.display())]
#[diagnostic(code(orch::measure::file))]
pub struct FileError {
    /// `write` or `read`.
    pub act: &'static str,
    /// Which.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl FileError {
    pub(super) fn write(path: &Path, source: io::Error) -> Self {
        FileError { act: "write", path: path.to_owned(), source }
    }

    fn read(path: &Path, source: io::Error) -> Self {
        FileError { act: "read", path: path.to_owned(), source }
    }
}

/// Writes rows. Each call's rows are in the file when it returns, so that a kill costs only those not yet given.
#[derive(Debug)]
pub struct RowWriter {
    file: File,
    path: PathBuf,
    compressed: bool,
}

/// The level of compression: rows are alike, so more would cost time and save little.
const LEVEL: i32 = 3;

impl RowWriter {
    /// `requests.jsonl.zst`: one zstd frame a call.
    pub fn compressed(path: &Path) -> Result<Self, FileError> {
        Self::create(path, true)
    }

    /// Goes on with a file that an interrupted run has left: the rows of the steps that are `done` are kept, those of a
    /// step that will be measured again are not. Makes the file where there is none.
    pub fn resumed(path: &Path, done: &[String]) -> Result<Self, FileError> {
        if done.is_empty() || !path.exists() {
            return Self::compressed(path);
        }
        let kept: Vec<Row> = read_rows(path)?.into_iter().filter(|row| done.contains(&row.step)).collect();
        let new = path.with_extension("new");
        let mut writer = Self::compressed(&new)?;
        writer.write(kept)?;
        std::fs::rename(&new, path).map_err(|source| FileError::write(path, source))?;
        Ok(RowWriter { path: path.to_owned(), ..writer })
    }

    /// Plain lines, for `--requests-out`.
    pub fn plain(path: &Path) -> Result<Self, FileError> {
        Self::create(path, false)
    }

    /// Plain lines to a stream that is open.
    pub fn printed(file: File) -> Self {
        RowWriter { file, path: PathBuf::from("standard output"), compressed: false }
    }

    fn create(path: &Path, compressed: bool) -> Result<Self, FileError> {
        let file = File::create(path).map_err(|source| FileError::write(path, source))?;
        Ok(RowWriter { file, path: path.to_owned(), compressed })
    }

    /// Appends rows.
    pub fn write(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<(), FileError> {
        let mut lines = Vec::new();
        let result = rows.into_iter().try_for_each(|row| {
            serde_json::to_writer(&mut lines, &row)?;
            lines.push(b'\n');
            Ok(())
        });
        let result = result.and_then(|()| match lines.is_empty() {
            true => Ok(()),
            false if self.compressed => self.file.write_all(&zstd::encode_all(lines.as_slice(), LEVEL)?),
            false => self.file.write_all(&lines),
        });
        result.map_err(|source| FileError::write(&self.path, source))
    }
}

/// Reads `requests.jsonl.zst` up to the last whole line. What a kill has torn off at the end is left out.
pub fn read_rows(path: &Path) -> Result<Vec<Row>, FileError> {
    let mut rows = Vec::new();
    each_row(path, |row| rows.push(row))?;
    Ok(rows)
}

/// The same, one row at a time: a file may hold more than memory does.
pub fn each_row(path: &Path, mut take: impl FnMut(Row)) -> Result<(), FileError> {
    let fail = |source| FileError::read(path, source);
    let file = File::open(path).map_err(fail)?;
    let mut lines = BufReader::new(zstd::Decoder::new(file).map_err(fail)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                take(serde_json::from_slice(&line).map_err(|error| fail(error.into()))?);
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(fail(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::measure::testing::ok;

    #[test]
    fn a_row_says_what_the_request_lived_through() {
        let mut timeline = ok(1000, 1050, 1100, 2);
        timeline.due = 990_000_000;
        timeline.headers = Some(1_010_000_000);
        let row = serde_json::to_value(Row::of(&timeline, "single", true)).unwrap();
        for (key, value) in [
            ("step", json!("single")),
            ("outcome", json!("ok")),
            ("input_tokens", json!(7)),
            ("output_tokens", json!(2)),
            ("token_source", json!("usage")),
            ("tokens_exact", json!(true)),
            ("tokens_in_first_chunk", json!(1)),
            ("reasoning_tokens", json!(null)),
            ("queued_ms", json!(10.0)),
            ("connect_ms", json!(null)),
            ("headers_ms", json!(10.0)),
            ("first_any_ms", json!(50.0)),
            ("last_ms", json!(100.0)),
            ("tpot_ms", json!(50.0)),
            ("chunk_ms", json!([50.0, 100.0])),
            ("chunk_tokens", json!([1, 1])),
        ] {
            assert_eq!(row[key], value, "{key}");
        }
        assert!(row.get("text").is_none() && row.get("error").is_none());
        timeline.chunks[0].tokens = None;
        let unknown = serde_json::to_value(Row::of(&timeline, "single", true)).unwrap();
        assert_eq!(unknown.get("chunk_tokens"), Some(&json!(null)));
    }

    #[test]
    fn a_failure_claims_nothing() {
        let timeline =
            Timeline { sent: Some(0), outcome: Outcome::RateLimited, http_status: Some(429), ..ok(0, 50, 60, 2) };
        let row = serde_json::to_value(Row::of(&timeline, "s", false)).unwrap();
        assert_eq!(
            (&row["outcome"], &row["token_source"], &row["tokens_exact"]),
            (&json!("rate_limited"), &json!(null), &json!(null))
        );
        assert_eq!(
            (&row["output_tokens"], &row["tpot_ms"], &row["decode_rate_valid"]),
            (&json!(2), &json!(null), &json!(null))
        );
        assert!(row.get("chunk_ms").is_none());
    }

    #[test]
    fn rows_are_there_after_a_kill_up_to_the_last_frame() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests.jsonl.zst");
        let row = |id| Row::of(&Timeline { id, ..ok(0, 50, 60, 2) }, "s", true);
        let mut writer = RowWriter::compressed(&path).unwrap();
        writer.write((0..50).map(row)).unwrap();
        let first_frame = std::fs::metadata(&path).unwrap().len() as usize;
        writer.write([]).unwrap();
        writer.write((50..100).map(row)).unwrap();
        let all = read_rows(&path).unwrap();
        assert_eq!(all, (0..100).map(row).collect::<Vec<_>>());
        let bytes = std::fs::read(&path).unwrap();
        for cut in [bytes.len() - 1, bytes.len() - 20, first_frame + 3, first_frame] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let kept = read_rows(&path).unwrap();
            assert!(kept.len() >= 50 && kept[..] == all[..kept.len()], "{} rows of a file cut at {cut}", kept.len());
        }
        std::fs::write(&path, "no zstd at all, but long enough to be looked at").unwrap();
        assert!(read_rows(&path).is_err());
    }

    #[test]
    fn plain_rows_are_lines_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let mut writer = RowWriter::plain(&path).unwrap();
        writer.write([Row::of(&ok(0, 50, 60, 2), "s", false)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let row: Row = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(row, Row::of(&ok(0, 50, 60, 2), "s", false));
        assert!(RowWriter::plain(&folder.path().join("no/such/folder")).is_err());
    }
}
