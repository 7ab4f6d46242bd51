//! What a host is given to do: the words of a command, and all that they need of this machine, in one file.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::baselines;

/// Version of the file's shape.
pub(super) const VERSION: u32 = 1;
/// The file of a job, in its folder.
pub(super) const FILE: &str = "job.zst";

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The version of the shape of its file.
    pub v: u32,
    /// The words of the command; `{job}` in one is the job's folder.
    pub words: Vec<String>,
    /// The resolved profile, which becomes `profile.yaml` in the job's folder.
    pub profile: Option<String>,
    /// What becomes `hosts.yaml` there: the production that may make room.
    pub hosts: Option<Value>,
    /// The baselines of the series as they are here.
    pub baselines: Vec<baselines::Line>,
    /// The records that a verdict is made from.
    pub records: Vec<Record>,
}

/// A record that goes along.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The run.
    pub id: String,
    /// Its `run.json`.
    pub record: Value,
}

/// What a job is called: the name of its folder under `jobs/` of the work folder there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId(String);

impl JobId {
    /// One that nothing had before.
    pub fn new() -> Self {
        JobId(format!("{:016x}", rand::random::<u64>()))
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its folder.
    pub fn folder(&self, work: &Path) -> PathBuf {
        folder_of(work).join(&self.0)
    }
}

impl Default for JobId {
    fn default() -> Self {
        Self::new()
    }
}

impl std::str::FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // It becomes the name of a folder.
        match text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            true => Ok(JobId(text.to_owned())),
            false => Err(format!("`{text}` is not a job")),
        }
    }
}

/// Where jobs are.
pub(super) fn folder_of(work: &Path) -> PathBuf {
    work.join("jobs")
}

impl Job {
    /// A job that needs nothing but its words.
    pub fn new(words: Vec<String>) -> Self {
        Job { v: VERSION, words, profile: None, hosts: None, baselines: Vec::new(), records: Vec::new() }
    }

    /// As it travels.
    pub fn pack(&self) -> std::io::Result<Bytes> {
        Ok(zstd::encode_all(serde_json::to_vec(self)?.as_slice(), 3)?.into())
    }

    /// Read back.
    pub fn unpack(bytes: &[u8]) -> std::io::Result<Self> {
        let job: Job = serde_json::from_slice(&zstd::decode_all(bytes)?)?;
        match job.v {
            VERSION => Ok(job),
            other => Err(std::io::Error::other(format!("it is of version {other}, and this orch reads {VERSION}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_arrives_as_it_was() {
        let record = Record { id: "r1".to_owned(), record: json!({"a": [1.25, null]}) };
        let words = vec!["run".to_owned(), "{job}/profile.yaml".to_owned()];
        let job = Job { profile: Some("a: é".to_owned()), records: vec![record], ..Job::new(words) };
        assert_eq!(Job::unpack(&job.pack().unwrap()).unwrap(), job);
        let newer = Job { v: 2, ..job };
        let error = Job::unpack(&newer.pack().unwrap()).unwrap_err().to_string();
        assert_eq!(error, "it is of version 2, and this orch reads 1");
        assert!(Job::unpack(b"no job").is_err());
    }

    #[test]
    fn what_could_leave_the_folder_is_no_job() {
        let id = JobId::new();
        assert_eq!(id.as_str().parse(), Ok(id));
        for text in ["", "../../0123456789ab", "0123456789ABCDEF", "0123456789abcdef0"] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
