use super::*;
use crate::record::fold;
use crate::record::fold::tests::{entries, story};

fn keep(store: &Store, id: &str, change: impl FnOnce(&mut Record)) -> Record {
    let mut record = fold(entries(story())).record;
    record.id = id.to_owned();
    record.started_at = id.parse::<RunId>().unwrap().began_at().unwrap();
    change(&mut record);
    let folder = store.run_path(&id.parse().unwrap());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("run.json"), serde_json::to_vec(&record).unwrap()).unwrap();
    record
}

#[test]
fn candidates_are_the_runs_that_measured_the_same() {
    let results = tempfile::tempdir().unwrap();
    let store = Store::open(results.path()).unwrap();
    let own = keep(&store, "20261129-151503-demo-0001", |_| ());
    keep(&store, "20261127-151503-demo-0002", |_| ());
    keep(&store, "20261128-151503-demo-0003", |record| record.steps[0].load.warmup = Some(9));
    let others: [fn(&mut Record); 11] = [
        |record| record.series = "other".into(),
        |record| record.host.name = "other".into(),
        |record| record.host.hardware = "other".into(),
        |record| record.metrics_version += 1,
        |record| record.engine.as_mut().unwrap().simulated = true,
        |record| record.complete = false,
        |record| record.verdict.kind = VerdictKind::Invalid,
        |record| record.steps[1].valid = false,
        |record| record.steps[1].workload = "sha256:bb".into(),
        |record| record.steps[1].load.requests = Some(96),
        |record| drop(record.steps.pop()),
    ];
    for (index, change) in others.into_iter().enumerate() {
        keep(&store, &format!("20261129-151503-demo-01{index:02x}"), change);
    }
    let candidates: Vec<String> = store.candidates(&own).unwrap().iter().map(RunId::short).collect();
    assert_eq!(candidates, ["r0003", "r0002"]);
}

#[test]
fn a_folder_that_did_not_change_is_not_read_again() {
    let results = tempfile::tempdir().unwrap();
    let store = Store::open(results.path()).unwrap();
    keep(&store, "20261129-151503-demo-0001", |_| ());
    let verdicts =
        || -> Vec<_> { store.list(&Filter::default()).unwrap().rows.iter().map(|row| row.verdict).collect() };
    assert_eq!(verdicts(), [Some(VerdictKind::Ok)]);
    let other = Connection::open(results.path().join("index.sqlite")).unwrap();
    other.execute("UPDATE runs SET verdict = 'improved'", []).unwrap();
    assert_eq!(verdicts(), [Some(VerdictKind::Improved)]);
    keep(&store, "20261129-151503-demo-0001", |record| record.verdict.kind = VerdictKind::Regressed);
    assert_eq!(verdicts(), [Some(VerdictKind::Regressed)]);
}

#[test]
fn an_index_that_another_orch_holds_for_a_moment_is_waited_for() {
    let results = tempfile::tempdir().unwrap();
    let store = Store::open(results.path()).unwrap();
    keep(&store, "20261129-151503-demo-0001", |_| ());
    store.list(&Filter::default()).unwrap();
    let other = Connection::open(results.path().join("index.sqlite")).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let waiting = std::thread::spawn({
        let store = store.clone();
        move || store.list(&Filter::default()).unwrap()
    });
    std::thread::sleep(std::time::Duration::from_millis(30));
    other.execute_batch("COMMIT").unwrap();
    let listing = waiting.join().unwrap();
    assert_eq!((listing.rows.len(), listing.notes.len()), (1, 0));
}
