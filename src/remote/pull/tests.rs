use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::stream;
use serde_json::json;

use super::*;
use crate::host::{Address, BoxedIo, ByteStream, HostError, HostPath, Local, Mode, Output, Words};
use crate::record::samples::{entries, story};
use crate::remote::beside;
use crate::remote::{Program, Settings};

const ID: &str = "20261129-151503-demo-0a4f";

/// This machine over a line that breaks in the middle of a file, so many times.
#[derive(Clone)]
struct Breaking(Arc<AtomicU32>);

fn lost() -> HostError {
    HostError::Lost { host: "far".to_owned(), why: "reset".to_owned() }
}

impl Host for Breaking {
    async fn run(&self, words: &Words, stdin: Bytes) -> Result<Output, HostError> {
        Local.run(words, stdin).await
    }

    async fn put(&self, path: &HostPath, content: Bytes, mode: Mode) -> Result<(), HostError> {
        Local.put(path, content, mode).await
    }

    async fn read(&self, path: &HostPath, from: u64) -> Result<ByteStream, HostError> {
        let breaks = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let mut blocks = Local.read(path, from).await?;
        if !breaks {
            return Ok(blocks);
        }
        let first = blocks.next().await.transpose()?.unwrap_or_default();
        let half = first.slice(..first.len() / 2);
        Ok(Box::pin(stream::iter([Ok(half), Err(lost())])))
    }

    async fn connect(&self, to: &Address) -> Result<BoxedIo, HostError> {
        Local.connect(to).await
    }
}

impl Door for Breaking {
    type Host = Breaking;

    async fn open(&self) -> Result<Breaking, RemoteError> {
        Ok(self.clone())
    }
}

/// A host with one run, here a store without any.
struct Place {
    folder: tempfile::TempDir,
    far: Far,
    store: Store,
    id: RunId,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("there").join(ID);
        fs::create_dir_all(run.join("workloads")).unwrap();
        let record = crate::record::fold(entries(story())).record;
        fs::write(run.join("run.json"), serde_json::to_vec(&record).unwrap()).unwrap();
        fs::write(run.join("journal.jsonl"), "a line\n".repeat(1000)).unwrap();
        fs::write(run.join("workloads/w"), "").unwrap();
        let program = folder.path().join("program");
        let text = format!(
            "#!/bin/sh\ncase $1 in --version) echo orch 1 ;; *) cat '{}/listing' ;; esac\n",
            folder.path().display()
        );
        fs::write(&program, text).unwrap();
        let program = Program::runner(&program, "orch 1").unwrap().passing_for(std::env::consts::ARCH);
        let work = folder.path().join("work").display().to_string();
        let far = Far::new("far", Settings { work: Some(work), ..Settings::default() }, program);
        let store = Store::open(&folder.path().join("results")).unwrap();
        let place = Place { folder, far, store, id: ID.parse().unwrap() };
        place.list(&beside::files(&place.there()).unwrap());
        place
    }

    fn there(&self) -> PathBuf {
        self.folder.path().join("there").join(ID)
    }

    fn list(&self, files: &[ListedFile]) {
        fs::write(self.folder.path().join("listing"), serde_json::to_vec(files).unwrap()).unwrap();
    }

    async fn pull(&self, breaks: u32) -> (Result<Pulled, String>, usize) {
        let mut line = Line::open(Breaking(Arc::new(AtomicU32::new(breaks)))).await.unwrap();
        let mut told = 0;
        let mut tell = |_| told += 1;
        let pulled = pull(&mut line, &self.far, &self.store, &self.id, &self.there(), &mut tell).await;
        (pulled.map_err(|error| error.to_string()), told)
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("results/runs")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[tokio::test]
async fn a_line_that_breaks_in_the_middle_costs_nothing() {
    let place = Place::new();
    assert_eq!(place.pull(5).await, (Ok(Pulled::New), 10), "lost and back, five times");
    let here = place.store.run_path(&place.id);
    assert_eq!(beside::files(&here).unwrap(), beside::files(&place.there()).unwrap());
    assert_eq!(place.left(), [ID]);
    assert_eq!(place.pull(0).await, (Ok(Pulled::There), 0));
}

#[tokio::test]
async fn what_arrives_damaged_or_leads_elsewhere_is_not_kept() {
    let place = Place::new();
    let mut files = beside::files(&place.there()).unwrap();
    files[0].sha256 = "0".repeat(64);
    place.list(&files);
    let (pulled, _) = place.pull(0).await;
    assert!(pulled.unwrap_err().starts_with("what arrived on far is not what was sent: its SHA-256 is "));
    for path in ["../outside", "/etc/passwd", "a/../../b"] {
        files[0].path = path.into();
        place.list(&files);
        let (pulled, _) = place.pull(0).await;
        let error = pulled.unwrap_err();
        assert!(error.ends_with("it leads out of the run's folder"), "{path}: {error}");
    }
    assert_eq!(place.left(), [""; 0]);
}

#[tokio::test]
async fn a_run_that_has_gone_on_takes_the_place_of_its_first_part() {
    let place = Place::new();
    let here = place.store.run_path(&place.id);
    fs::create_dir_all(&here).unwrap();
    let mut first = serde_json::to_value(crate::record::fold(entries(story())).record).unwrap();
    first["complete"] = json!(false);
    fs::write(here.join("run.json"), first.to_string()).unwrap();
    fs::write(here.join("journal.jsonl"), "a line\n").unwrap();
    assert_eq!(place.pull(0).await.0, Ok(Pulled::New));
    assert_eq!(beside::files(&here).unwrap(), beside::files(&place.there()).unwrap());
    assert_eq!(place.left(), [ID]);
    // One that is interrupted still is the same as before.
    fs::write(place.there().join("run.json"), first.to_string()).unwrap();
    fs::write(here.join("run.json"), first.to_string()).unwrap();
    place.list(&beside::files(&place.there()).unwrap());
    assert_eq!(place.pull(0).await.0, Ok(Pulled::There));
}
