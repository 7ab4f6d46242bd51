//! A model in a folder of this machine: whether all of it is there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::super::PreflightError;
use super::Staged;

/// Looks through a file or a folder. A folder whose index names files that are not there, or that hold less than it says,
/// is no model.
pub(in crate::preflight) fn look(key: &'static str, asked: &str, path: &Path) -> Result<Staged, PreflightError> {
    let missing = |why: String| PreflightError::ModelMissing {
        key,
        model: asked.to_owned(),
        why,
        help: "copy it again: a copy was interrupted, or is still going on".to_owned(),
    };
    let (files, bytes) =
        sizes(path, 0).map_err(|error| missing(format!("{} cannot be read: {error}", path.display())))?;
    let index = path.join("model.safetensors.index.json");
    let checked = index.is_file();
    if checked {
        whole(path, &index).map_err(missing)?;
    }
    Ok(Staged {
        key,
        asked: asked.to_owned(),
        path: path.to_owned(),
        commit: commit(path),
        files,
        bytes,
        fetched: false,
        checked,
    })
}

/// The commit, where the folder is one of the hub's cache.
fn commit(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let of_cache = path.parent()?.file_name()? == "snapshots";
    (of_cache && name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| name.to_owned())
}

/// Files and bytes, links followed: the hub's cache is made of them.
fn sizes(path: &Path, depth: usize) -> io::Result<(u64, u64)> {
    let meta = fs::metadata(path)?;
    if !meta.is_dir() {
        return Ok((1, meta.len()));
    }
    let mut sum = (0, 0);
    // A link may lead back up.
    if depth < 16 {
        for entry in fs::read_dir(path)? {
            let (files, bytes) = sizes(&entry?.path(), depth + 1)?;
            sum = (sum.0 + files, sum.1 + bytes);
        }
    }
    Ok(sum)
}

/// That every file which the index names is there, and all together hold what it says.
fn whole(folder: &Path, index: &Path) -> Result<(), String> {
    let text = fs::read_to_string(index).map_err(|error| format!("{} cannot be read: {error}", index.display()))?;
    let json: Value =
        serde_json::from_str(&text).map_err(|error| format!("{} is no JSON: {error}", index.display()))?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let names: BTreeSet<&str> = map.into_iter().flat_map(|map| map.values()).filter_map(Value::as_str).collect();
    let mut bytes = 0;
    for name in &names {
        let length = fs::metadata(folder.join(name)).map(|meta| meta.len()).unwrap_or(0);
        if length == 0 {
            return Err(format!("{} names {name}, which is not there or is empty", index.display()));
        }
        bytes += length;
    }
    let total = json.pointer("/metadata/total_size").and_then(Value::as_u64);
    match total {
        Some(total) if bytes < total => {
            Err(format!("its weights are {total} bytes by {}, and its files hold {bytes}", index.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_whole_or_it_is_told_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let index = r#"{"metadata": {"total_size": 8}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}}"#;
        fs::write(path.join("model.safetensors.index.json"), index).unwrap();
        fs::write(path.join("1.safetensors"), "12345").unwrap();
        let error = look("model", "./m", path).unwrap_err().to_string();
        assert!(error.ends_with("names 2.safetensors, which is not there or is empty"), "{error}");
        fs::write(path.join("2.safetensors"), "12").unwrap();
        let error = look("model", "./m", path).unwrap_err().to_string();
        assert!(error.contains("its weights are 8 bytes by") && error.ends_with("its files hold 7"), "{error}");
        fs::write(path.join("2.safetensors"), "123").unwrap();
        let staged = look("model", "./m", path).unwrap();
        assert_eq!(
            (staged.files, staged.bytes, staged.checked, staged.fetched),
            (3, 8 + index.len() as u64, true, false)
        );
    }
}
