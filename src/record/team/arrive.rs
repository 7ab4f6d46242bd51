//! What came from a store, held against what a record and a baseline are, and put beside our own. Whoever may write to the
//! database may write anything: it is data, and none of it becomes a path, a command or a line that is not read first.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use super::remote::Incoming;
use crate::record::baselines::{self, Line};
use crate::record::id::RunId;
use crate::record::model::{Record, SCHEMA, Writer};
use crate::record::store::Store;

/// What became of a run that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It is among the records now, in this folder, or its record is the new one. It lasts when [`settle`] has been called.
    Taken(PathBuf),
    /// It is there as it is, or is this folder's own.
    There,
}

/// Why one was not taken: a fault of what came, or of this machine.
#[derive(Debug)]
pub(super) enum NotTaken {
    Refused(String),
    Io(io::Error),
}

/// Puts a run among the records of `store`, with who recorded it.
pub(super) fn run(store: &Store, run: &Incoming) -> Result<Arrived, NotTaken> {
    let refused = |why: String| NotTaken::Refused(format!("`{}` of {}: {why}", cut(&run.id), cut(&run.writer)));
    let id: RunId = run.id.parse().map_err(|_| refused("this is not the id of a run".to_owned()))?;
    let folder = store.run_path(&id);
    let bytes = fs::read(folder.join("run.json")).unwrap_or_default();
    let here = serde_json::from_slice::<Value>(&bytes).ok();
    let is_own = match &here {
        Some(here) => here.get("writer").is_none_or(Value::is_null),
        // A run of our own has a journal; what came and a power cut took has nothing.
        None => folder.join("journal.jsonl").exists() || bytes.iter().any(|byte| *byte != 0),
    };
    // What was recorded here is never replaced by what others say of it.
    if is_own {
        return Ok(Arrived::There);
    }
    let text = run.record.as_ref().ok_or_else(|| refused("its record is too large".to_owned()))?;
    let record = checked(text, &id, &run.writer).map_err(refused)?;
    if here.as_ref() == Some(&record) {
        return Ok(Arrived::There);
    }
    let text = serde_json::to_string_pretty(&record).map_err(|error| NotTaken::Io(error.into()))? + "\n";
    write(&folder, &id, &text).map_err(NotTaken::Io)?;
    Ok(Arrived::Taken(folder))
}

/// The record in `text`, if it is one of this run that has ended; who recorded it is as the store says.
fn checked(text: &str, id: &RunId, writer: &str) -> Result<Value, String> {
    let damaged = |error: serde_json::Error| format!("its record cannot be read: {error}");
    let mut value: Value = serde_json::from_str(text).map_err(damaged)?;
    let schema = value.get("schema").cloned().unwrap_or_default();
    if schema != SCHEMA {
        return Err(format!("its record has schema {}, and this orch reads {SCHEMA}", cut(&schema.to_string())));
    }
    let writer = serde_json::to_value(Writer::of(writer)).map_err(damaged)?;
    value.as_object_mut().ok_or("its record is not one")?.insert("writer".to_owned(), writer);
    let record = Record::deserialize(&value).map_err(damaged)?;
    if record.id != id.as_str() {
        return Err(format!("its record is that of `{}`", cut(&record.id)));
    }
    if record.ended_at.is_none() {
        return Err("its record has no end".to_owned());
    }
    Ok(value)
}

/// Puts a record into the folder of its run, which is made if it is not there. A kill leaves all of it, or nothing.
fn write(folder: &Path, id: &RunId, record: &str) -> io::Result<()> {
    if folder.is_dir() {
        let new = folder.join("run.json.new");
        fs::write(&new, record)?;
        return fs::rename(&new, folder.join("run.json"));
    }
    let new = folder.with_file_name(format!(".{id}.team"));
    fs::create_dir_all(&new)?;
    fs::write(new.join("run.json"), record)?;
    fs::rename(&new, folder)
}

/// Has what came on disk: each of a few by itself, many at once, which a disk does far faster.
pub(super) fn settle(folders: &[PathBuf], runs: &Path) -> io::Result<()> {
    match folders.len() {
        0 => Ok(()),
        1..=FEW => {
            for folder in folders {
                File::open(folder.join("run.json"))?.sync_all()?;
                File::open(folder)?.sync_all()?;
            }
            File::open(runs)?.sync_all()
        }
        _ => Ok(nix::unistd::syncfs(File::open(runs)?)?),
    }
}

const FEW: usize = 8;

/// A line of baselines, if it is one, with this id, and not dated ahead of `now`: the last one of a key holds, and a clock
/// that is wrong would let its line hold for as long as it is.
pub(super) fn baseline(id: &str, text: Option<&str>, now: Timestamp) -> Result<Line, String> {
    let refused = |why: String| format!("the baseline `{}`: {why}", cut(id));
    let text = text.ok_or_else(|| refused("its line is too large".to_owned()))?;
    let line = baselines::line(text.as_bytes()).map_err(|why| refused(cut(&why)))?;
    if line.id != id {
        return Err(refused(format!("its line is that of `{}`", cut(&line.id))));
    }
    if line.at.duration_since(now) > AHEAD {
        return Err(refused(format!("it is dated {}, which is not yet", line.at)));
    }
    Ok(line)
}

/// How far the clocks of a team may be apart.
const AHEAD: SignedDuration = SignedDuration::from_hours(1);

/// A stranger's word, no longer than fits on a line.
fn cut(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::fold;
    use crate::record::samples::{entries, story};

    const ID: &str = "20261129-151503-demo-0a4f";

    fn record() -> Value {
        serde_json::to_value(fold(entries(story())).record).unwrap()
    }

    fn incoming(id: &str, record: impl ToString) -> Incoming {
        let record = Some(record.to_string());
        Incoming { id: id.into(), seq: 1, writer: "ann@box".into(), record }
    }

    #[test]
    fn a_run_of_another_is_one_like_our_own_but_for_its_writer() {
        let results = tempfile::tempdir().unwrap();
        let store = Store::open(results.path()).unwrap();
        let id: RunId = ID.parse().unwrap();
        let taken = Arrived::Taken(store.run_path(&id));
        assert_eq!(run(&store, &incoming(ID, record())).unwrap(), taken);
        let kept = store.record(&id).unwrap();
        assert_eq!(kept.writer, Some(Writer { host: "box".into(), user: "ann".into() }));
        assert_eq!(Record { writer: None, ..kept }, fold(entries(story())).record);
        assert_eq!(run(&store, &incoming(ID, record())).unwrap(), Arrived::There);
        let mut changed = record();
        changed["series"] = json!("other");
        assert_eq!(run(&store, &incoming(ID, changed)).unwrap(), taken);
        assert_eq!(store.record(&id).unwrap().series, "other");
        assert!(store.scan().unwrap().foreign.is_empty());
        // As a power cut may leave it.
        for left in [&b""[..], &[0; 512]] {
            fs::write(store.run_path(&id).join("run.json"), left).unwrap();
            assert_eq!(run(&store, &incoming(ID, record())).unwrap(), taken);
            assert!(store.record(&id).is_ok());
        }
        let many = vec![store.run_path(&id); FEW + 1];
        settle(&many[..1], &store.runs()).unwrap();
        settle(&many, &store.runs()).unwrap();
    }

    #[test]
    fn what_was_recorded_here_stays_whatever_comes() {
        let results = tempfile::tempdir().unwrap();
        let store = Store::open(results.path()).unwrap();
        let path = store.run_path(&ID.parse().unwrap());
        fs::create_dir_all(&path).unwrap();
        for own in [record().to_string(), "not a record".to_owned()] {
            fs::write(path.join("run.json"), &own).unwrap();
            let mut other = record();
            other["series"] = json!("other");
            assert_eq!(run(&store, &incoming(ID, other)).unwrap(), Arrived::There);
            assert_eq!(fs::read_to_string(path.join("run.json")).unwrap(), own);
        }
    }

    #[test]
    fn what_is_no_run_is_refused_and_written_nowhere() {
        let results = tempfile::tempdir().unwrap();
        let store = Store::open(&results.path().join("inner/results")).unwrap();
        let with = |key: &str, value: Value| {
            let mut record = record();
            record[key] = value;
            record.to_string()
        };
        let all = [
            ("../20261129-151503-demo-0a4f", record().to_string(), "not the id of a run"),
            ("20261129-151503-../../x-0a4f", record().to_string(), "not the id of a run"),
            (ID, "{\"schema\": 1,".into(), "cannot be read"),
            (ID, "[1]".into(), "has schema null"),
            (ID, with("schema", json!(2)), "has schema 2, and this orch reads 1"),
            (ID, with("id", json!("20261129-151503-demo-0a4e")), "is that of"),
            (ID, with("ended_at", Value::Null), "has no end"),
            (ID, with("steps", json!(5)), "cannot be read"),
            (ID, "[".repeat(100_000), "cannot be read"),
        ];
        for (id, record, expected) in all {
            match run(&store, &incoming(id, record)) {
                Err(NotTaken::Refused(why)) => assert!(why.contains(expected), "{why}"),
                other => panic!("{id}: {other:?}"),
            }
        }
        let too_large = Incoming { record: None, ..incoming(ID, "") };
        assert!(matches!(run(&store, &too_large), Err(NotTaken::Refused(why)) if why.contains("too large")));
        assert_eq!(fs::read_dir(results.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_baseline_must_be_one_and_not_of_tomorrow() {
        let now: Timestamp = "2026-11-29T15:15:03Z".parse().unwrap();
        let line = |at: &str| {
            json!({
                "v": 1, "id": "b01", "at": at, "by": "ann@box", "action": "set", "series": "demos", "step": "single",
                "workload": "sha256:aa", "hardware": "x", "host": "box", "runs": [ID], "why": null,
                "load": {"arrival": {"closed": {"concurrency": 1}}, "requests": 24, "duration_s": null, "warmup": null},
            })
            .to_string()
        };
        let told = |id: &str, text: Option<&str>| baseline(id, text, now).err().unwrap_or_default();
        assert_eq!(told("b01", Some(&line("2026-11-29T15:15:03Z"))), "");
        assert_eq!(told("b01", Some(&line("2026-11-29T16:00:00Z"))), "", "clocks differ");
        assert!(told("b01", Some(&line("2027-11-29T15:15:03Z"))).contains("not yet"));
        assert!(told("b02", Some(&line("2026-11-29T15:15:03Z"))).contains("that of `b01`"));
        assert!(told("b01", Some("{}")).contains("the baseline `b01`: "));
        assert!(told("b01", None).contains("too large"));
        assert!(told(&"x".repeat(500), None).len() < 200);
    }
}
