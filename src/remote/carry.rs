//! What a run needs of this machine to go on without it: the files that its profile names, and the past that its verdict is
//! made from.
//!
//! The judgement happens beside the server, and must be the one that would be made here. So what it looks at goes along:
//! the series' baselines, the records that they name, and the newest runs of the series on that host, by which one knows
//! how much starts vary and how long they take. A run there is judged by these alone, whatever else the host has recorded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::RemoteError;
use super::job::Record;
use crate::record::baselines::Line;
use crate::record::index::Filter;
use crate::record::{RunId, Store, StoreError};

/// As many as the judgement and the usual durations look at.
const RECORDS: u32 = 60;

/// A profile that needs nothing of this machine any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Carried {
    /// Its text, with the paths that its files have there.
    pub yaml: String,
    /// The files by their paths there.
    pub files: Vec<(PathBuf, Bytes)>,
}

/// Takes a resolved profile apart into what travels. `folder` is where files are kept on the host.
pub fn carry(yaml: &str, folder: &Path) -> Result<Carried, RemoteError> {
    let broken = |why: String| RemoteError::File {
        what: "carry",
        path: PathBuf::from("profile.yaml"),
        source: std::io::Error::other(why),
    };
    let mut profile: Value = serde_yaml::from_str(yaml).map_err(|error| broken(error.to_string()))?;
    let mut files = Vec::new();
    // There it is this machine that is meant, which is what the absence of the key says.
    if let Some(map) = profile.as_object_mut() {
        map.shift_remove("host");
    }
    for place in places(&mut profile) {
        take(place, folder, &mut files)?;
    }
    let yaml = serde_yaml::to_string(&profile).map_err(|error| broken(error.to_string()))?;
    Ok(Carried { yaml, files })
}

/// The values that name files of whoever wrote the profile. A model, a tokenizer and a program are the host's own.
fn places(profile: &mut Value) -> Vec<&mut Value> {
    let Some(map) = profile.as_object_mut() else { return Vec::new() };
    let mut places = Vec::new();
    for (key, value) in map {
        match key.as_str() {
            "quality" => places.extend(value.get_mut("file")),
            "engine" => places.extend(value.get_mut("patches").and_then(Value::as_array_mut).into_iter().flatten()),
            "bench" => {
                let benches = value.as_object_mut().into_iter().flatten();
                for (_, bench) in benches {
                    let Some(bench) = bench.as_object_mut() else { continue };
                    for (key, value) in bench {
                        match (key.as_str(), value) {
                            ("prompts", Value::Array(all)) => places.extend(all),
                            ("prompts", one) => places.push(one),
                            ("trace", trace) => places.extend(trace.get_mut("file")),
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    places
}

/// Reads the file that a value names, and puts its path there in its place. What is built in goes by its name.
fn take(place: &mut Value, folder: &Path, files: &mut Vec<(PathBuf, Bytes)>) -> Result<(), RemoteError> {
    let Some(text) = place.as_str() else { return Ok(()) };
    if text.starts_with("builtin/") {
        return Ok(());
    }
    let path = PathBuf::from(text);
    let bytes =
        std::fs::read(&path).map_err(|source| RemoteError::File { what: "read", path: path.clone(), source })?;
    let sum: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // By its content, so that the same file has the same path in every run.
    let there = folder.join(format!("{sum}-{name}"));
    *place = Value::String(there.display().to_string());
    if files.iter().all(|(known, _)| *known != there) {
        files.push((there, bytes.into()));
    }
    Ok(())
}

/// What a run of `series` on the host of that name is judged by, and the run `against`.
pub fn judged_by(
    store: &Store,
    series: &str,
    host: &str,
    against: Option<&RunId>,
) -> Result<(Vec<Line>, Vec<Record>), StoreError> {
    let lines: Vec<Line> = store.baselines()?.lines.into_iter().filter(|line| line.key.series == series).collect();
    let mut wanted: BTreeSet<String> = against.iter().map(|id| id.to_string()).collect();
    wanted.extend(lines.iter().flat_map(|line| line.runs.iter().cloned()));
    let filter = Filter {
        series: Some(series.to_owned()),
        host: Some(host.to_owned()),
        limit: Some(RECORDS),
        ..Filter::default()
    };
    wanted.extend(store.list(&filter)?.rows.into_iter().map(|row| row.id));
    let records = wanted.into_iter().filter_map(|id| {
        let path = store.run_path(&id.parse().ok()?).join("run.json");
        // One that cannot be read does not count here either.
        let record = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(Record { id, record })
    });
    Ok((lines, records.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_profile_go_along_and_the_hosts_own_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (prompts, patch) = (file("a b.jsonl", "{}"), file("one.patch", "+"));
        let yaml = format!(
            "host: ct129\nmodel: {{path: /models/x}}\nquality: {{file: '{prompts}'}}\nengine: {{patches: ['{patch}']}}\n\
             bench: {{single: {{prompts: [builtin/chat, '{prompts}']}}, traced: {{trace: {{file: '{patch}'}}}}}}\n"
        );
        let carried = carry(&yaml, Path::new("/srv/files")).unwrap();
        let profile: Value = serde_yaml::from_str(&carried.yaml).unwrap();
        assert_eq!((profile.get("host"), &profile["model"]["path"]), (None, &Value::from("/models/x")));
        assert_eq!(carried.files.len(), 2, "each once");
        let there = profile["quality"]["file"].as_str().unwrap();
        assert!(there.starts_with("/srv/files/") && there.ends_with("-a b.jsonl"), "{there}");
        assert_eq!(profile["bench"]["single"]["prompts"], serde_json::json!(["builtin/chat", there]));
        assert_eq!(profile["engine"]["patches"][0], profile["bench"]["traced"]["trace"]["file"]);
        let names: Vec<&Path> = carried.files.iter().map(|(path, _)| path.as_path()).collect();
        assert!(names.contains(&Path::new(there)), "{names:?}");
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let error = carry("quality: {file: /no/such.jsonl}", Path::new("/w")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /no/such.jsonl: "), "{error}");
    }
}
