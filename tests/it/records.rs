//! A person looks at what is kept: lists, single runs, and what is left of those that did not end well.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use orch::clock::Clock;
use orch::event::{Emit, Event, Scope};
use orch::record::model::{Failure, HostInfo, OrchInfo, Reason, RunKind, Verdict, VerdictKind};
use orch::record::{Journal, NewRun, Store, fold, journal};
use orch::render::Warning;
use serde_json::{Value, json};

use crate::built::{Ended, ended, orch, run};

const GOOD: &str = "20261121-220000-qwen-mtp3-0412";

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/records").join(folder)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

fn verdict(kind: VerdictKind, reasons: Vec<Reason>) -> Verdict {
    Verdict { kind, reasons, cause: None }
}

/// Runs of every sort, some of which cannot be read.
fn mixed() -> tempfile::TempDir {
    let results = tempfile::tempdir().unwrap();
    let runs = results.path().join("runs");
    run(GOOD)
        .step("single", 1, 70.9)
        .with(|record| record.verdict = verdict(VerdictKind::Ok, vec![]))
        .keep(results.path());
    run("20261122-220000-qwen-mtp1-0413")
        .step("single", 1, 37.8)
        .step("ladder@16", 16, 43.0)
        .setting("name", json!("qwen-mtp1"))
        .with(|record| record.verdict = verdict(VerdictKind::Regressed, vec![]))
        .keep(results.path());
    failed().keep(results.path());
    run("20261124-220000-other-0415")
        .with(|record| {
            record.series = "other".into();
            record.profile = json!({"name": "other"});
            record.host.name = "big8".into();
            record.engine.as_mut().unwrap().kind = "vllm".into();
        })
        .keep(results.path());
    let broken = |id: &str, text: Option<&str>| {
        fs::create_dir_all(runs.join(id)).unwrap();
        if let Some(text) = text {
            fs::write(runs.join(id).join("run.json"), text).unwrap();
        }
    };
    broken("20261125-220000-torn-0416", Some("{\"schema\":1,\"metrics_version\":1,\"id\":\"2026"));
    broken("20261126-220000-newer-0417", Some("{\"schema\":7,\"all\":\"new\"}"));
    broken("20261127-220000-empty-0418", None);
    results
}

fn failed() -> crate::built::Built {
    run("20261123-220000-qwen-mtp3-0414").with(|record| {
        record.complete = false;
        record.verdict =
            verdict(VerdictKind::Failed, vec![Reason::new("oom_draft", "out of GPU memory while loading the draft")]);
        record.failure = Some(Failure {
            stage: "gate".into(),
            kind: "oom_draft".into(),
            text: "out of GPU memory while loading the draft".into(),
            line: Some("torch.OutOfMemoryError: CUDA out of memory.\u{1b}[31m".into()),
            line_no: Some(287),
            remedy: Some("lower `memory.fraction` from 0.96; 0.88 is known to start here".into()),
            last_words: Vec::new(),
            start: None,
        });
        record.startup.as_mut().unwrap().ready_s = None;
        record.warnings = vec![Warning::new("pcie", "GPU 1 runs PCIe x8, was x16")];
    })
}

#[test]
fn records_of_the_first_format_still_open() {
    let results = tempfile::tempdir().unwrap();
    copy(&data("v1"), results.path());
    let kept: Value =
        serde_json::from_slice(&fs::read(data("v1/runs/20261129-151503-demo-0a4f/run.json")).unwrap()).unwrap();
    let shown = orch(results.path(), &["show", "r0a4f", "--json"]);
    assert_eq!(shown.json(), kept);
    // The record is the fold of the journal beside it.
    let reading = journal::read(&data("v1/runs/20261129-151503-demo-0a4f/journal.jsonl")).unwrap();
    assert_eq!(serde_json::to_value(fold(reading.entries()).record).unwrap(), kept);
    let compared = orch(results.path(), &["compare", "r0a4f", "--json"]).json();
    assert_eq!(compared["verdict"]["kind"], "ok");
    // A run that was killed: its journal, torn as it is, tells more than the record that was written at its beginning.
    let killed = orch(results.path(), &["show", "r0b51", "--json"]).json();
    assert_eq!((&killed["complete"], &killed["verdict"]["kind"]), (&json!(false), &json!("failed")));
    assert_eq!((&killed["steps"][0]["name"], &killed["startup"]["ready_s"]), (&json!("single"), &json!(41.2)));
    let listed = orch(results.path(), &["list", "--json"]).json();
    let rows: Vec<_> =
        listed.as_array().unwrap().iter().map(|row| (&row["short"], &row["verdict"], &row["steps"])).collect();
    assert_eq!(rows, [(&json!("r0b51"), &json!("failed"), &json!(1)), (&json!("r0a4f"), &json!("ok"), &json!(2))]);
}

#[test]
fn a_list_shows_every_run_newest_first_and_drops_none() {
    let results = mixed();
    fs::write(results.path().join("runs/notes.txt"), "mine").unwrap();
    fs::write(results.path().join("runs/.hidden"), "").unwrap();
    let listed = orch(results.path(), &["list"]);
    assert_eq!(listed.code, 0);
    let place = results.path().display().to_string();
    insta::assert_snapshot!(listed.out.replace(&place, "results"));
    insta::assert_snapshot!(
        listed.err.replace(&place, "results"),
        @"note: not a run, and passed by: notes.txt in results/runs"
    );
    assert!(listed.out.lines().take(8).all(|line| line.chars().count() <= 80), "{}", listed.out);
}

#[test]
fn a_list_is_narrowed_down() {
    let results = mixed();
    let shorts = |words: &[&str]| -> Vec<String> {
        let rows = orch(results.path(), &[&["list", "--json"], words].concat()).json();
        rows.as_array().unwrap().iter().map(|row| row["short"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(shorts(&[]), ["r0418", "r0417", "r0416", "r0415", "r0414", "r0413", "r0412"]);
    assert_eq!(shorts(&["--series", "qwen36-27b"]), ["r0414", "r0413", "r0412"]);
    assert_eq!(shorts(&["--verdict", "regressed"]), ["r0413"]);
    assert_eq!(shorts(&["--host", "big8"]), ["r0415"]);
    assert_eq!(shorts(&["--engine", "vllm", "--series", "other"]), ["r0415"]);
    assert_eq!(shorts(&["--series", "qwen36-27b", "--limit", "2"]), ["r0414", "r0413"]);
    assert_eq!(shorts(&["--series", "none"]), Vec::<String>::new());
    let told = orch(results.path(), &["list", "--verdict", "ok"]).err;
    assert!(told.contains("3 unreadable runs cannot be filtered"), "{told}");
    assert_eq!(orch(results.path(), &["list", "--verdict", "good"]).code, 2);
}

#[test]
fn a_run_is_shown_with_its_verdict_first() {
    let results = mixed();
    run("20261128-220000-qwen-mtp3-0419")
        .step("single", 1, 70.9)
        .step("ladder@8", 8, 48.3)
        .with(|record| {
            record.verdict.reasons = vec![Reason::new("no_baseline", "no baseline is set for the series `qwen36-27b`")]
        })
        .with(|record| record.steps[1].counts.failed = 2)
        .keep(results.path());
    let shown = |words: &[&str]| {
        let ended = orch(results.path(), words);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
        ended.out.replace(&results.path().display().to_string(), "results")
    };
    insta::assert_snapshot!(shown(&["show", "r0419"]));
    insta::assert_snapshot!(shown(&["show", "r0414"]));
    assert_eq!(shown(&["show", GOOD]), shown(&["show", "r0412"]));
}

#[test]
fn what_cannot_be_shown_is_an_error_that_says_where() {
    let results = mixed();
    let refused = |id: &str| {
        let ended = orch(results.path(), &["show", id]);
        (ended.code, ended.err.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    for (id, code, why) in [
        ("r0416", 1, "is damaged: EOF while parsing"),
        ("r0417", 1, "has schema 7, and this orch reads schema 1"),
        ("r0418", 1, "holds no record"),
        ("rffff", 2, "no run `rffff` in"),
        ("20261121-220000-gone-0412", 2, "no run `20261121-220000-gone-0412` in"),
        ("../../etc/passwd", 2, "`../../etc/passwd` is not the id of a run"),
        ("20261121-220000-../../../etc-0412", 2, "is not the id of a run"),
        ("", 2, "`` is not the id of a run"),
    ] {
        let (found, text) = refused(id);
        let text = text.replace("│ ", "");
        assert!(found == code && text.contains(why), "{id}: {found} {text}");
    }
}

#[test]
fn a_short_name_of_two_runs_is_refused_with_both() {
    let results = tempfile::tempdir().unwrap();
    run("20261121-220000-a-0412").keep(results.path());
    run("20261122-220000-b-0412").keep(results.path());
    let refused = orch(results.path(), &["show", "r0412"]);
    assert_eq!(refused.code, 2);
    insta::assert_snapshot!(refused.err, @r"
    orch::record::ambiguous

      × `r0412` is the short name of 2 runs
      help: give one of the ids:
              20261121-220000-a-0412
              20261122-220000-b-0412
    ");
    assert_eq!(orch(results.path(), &["show", "20261121-220000-a-0412"]).code, 0);
}

#[test]
fn latest_is_the_newest_to_the_fraction_of_a_second() {
    let results = tempfile::tempdir().unwrap();
    let at = |id: &str, time: &str| {
        run(id).with(|record| record.started_at = time.parse().unwrap()).keep(results.path());
    };
    at("20261121-220000-b-0001", "2026-11-21T22:00:00.9Z");
    at("20261121-220000-a-0003", "2026-11-21T22:00:00.95Z");
    at("20261121-220000-c-0002", "2026-11-21T22:00:00.1Z");
    at("20261120-220000-d-0009", "2026-11-20T22:00:00Z");
    assert_eq!(orch(results.path(), &["show", "latest", "--json"]).json()["id"], "20261121-220000-a-0003");
    assert_eq!(orch(results.path(), &["list", "--json", "--limit", "1"]).json()[0]["short"], "r0003");
}

#[test]
fn a_folder_without_runs_is_no_fault_unless_one_is_asked_for() {
    let parent = tempfile::tempdir().unwrap();
    let missing = parent.path().join("missing");
    let listed = orch(&missing, &["list", "--json"]);
    assert_eq!((listed.code, listed.json()), (0, json!([])));
    assert!(orch(&missing, &["list"]).err.contains("no such runs in"));
    let shown = orch(&missing, &["show"]);
    assert!(shown.code == 2 && shown.err.contains("no runs in"), "{}", shown.err);
    assert!(!missing.exists(), "reading makes nothing");
    fs::write(&missing, "a file").unwrap();
    let refused = orch(&missing, &["list"]);
    assert!(refused.code == 2 && refused.err.contains("is not a folder"), "{}", refused.err);
}

/// Runs `orch` as somebody who may only read: root may do everything, so that it becomes nobody first.
fn reading_only(results: &Path, words: &[&str]) -> Ended {
    let program = tempfile::tempdir().unwrap();
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let orch = program.path().join("orch");
    // By a program of its own: a file that this process has open for writing, or a child that another test forks at that
    // moment, cannot be executed.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_orch")).arg(&orch).status().unwrap().success());
    let mut command = Command::new(&orch);
    command.arg("--results").arg(results).args(words).env("NO_COLOR", "1").env_remove("ORCH_RESULTS").current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    ended(&mut command)
}

#[test]
fn results_that_may_only_be_read_are_listed_and_compared_all_the_same() {
    let results = mixed();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(results.path(), 0o555);
    let listed = reading_only(results.path(), &["list", "--json"]);
    assert_eq!((listed.code, listed.json().as_array().unwrap().len()), (0, 7), "{}", listed.err);
    assert!(listed.err.contains("cannot be kept") && listed.err.contains("built in memory"), "{}", listed.err);
    assert!(!results.path().join("index.sqlite").exists());
    let compared = reading_only(results.path(), &["compare", "r0412", "r0413"]);
    assert_eq!(compared.code, 0, "{}", compared.err);
    let refused = reading_only(results.path(), &["baseline", "set", "r0412"]);
    assert!(
        refused.code == 1 && refused.err.contains("cannot write the baselines"),
        "{} {}",
        refused.code,
        refused.err
    );
    // An index that is there already is used, and what changed since is read beside it.
    mode(results.path(), 0o755);
    assert_eq!(orch(results.path(), &["list"]).code, 0);
    run("20261128-220000-qwen-mtp3-0419").keep(results.path());
    mode(results.path(), 0o555);
    let again = reading_only(results.path(), &["list", "--json"]);
    assert_eq!((again.code, again.json()[0]["short"].as_str()), (0, Some("r0419")), "{}", again.err);
    mode(results.path(), 0o755);
}

#[test]
fn the_index_is_built_anew_whenever_it_does_not_fit() {
    let results = mixed();
    let index = results.path().join("index.sqlite");
    let listed = || {
        let ended = orch(results.path(), &["list", "--json"]);
        assert_eq!(ended.code, 0, "{}", ended.err);
        (ended.json(), ended.err)
    };
    let (whole, _) = listed();
    let good = fs::read(&index).unwrap();
    let damages: [(&str, Vec<u8>); 4] = [
        ("empty", vec![]),
        ("garbage", b"this was never a database, though it is long enough to be one".repeat(100)),
        ("half", good[..good.len() / 2].to_vec()),
        ("holes", good.iter().enumerate().map(|(at, byte)| if at > 4096 { 0xa5 } else { *byte }).collect()),
    ];
    for (name, bytes) in damages {
        fs::write(&index, bytes).unwrap();
        assert_eq!(listed(), (whole.clone(), String::new()), "{name}");
        assert_eq!(listed(), (whole.clone(), String::new()), "{name}, again");
    }
    let other = rusqlite::Connection::open(&index).unwrap();
    other.execute_batch("DROP TABLE steps; PRAGMA user_version = 99").unwrap();
    drop(other);
    assert_eq!(listed().0, whole);
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    let (rows, notes) = listed();
    assert!(rows == whole && notes.contains("built in memory"), "{notes}");
}

#[test]
fn the_index_follows_the_folders() {
    let results = mixed();
    let verdicts = || -> Vec<(String, Value)> {
        let rows = orch(results.path(), &["list", "--json", "--series", "qwen36-27b"]).json();
        let rows = rows.as_array().unwrap();
        rows.iter().map(|row| (row["short"].as_str().unwrap().to_owned(), row["verdict"].clone())).collect()
    };
    assert_eq!(verdicts()[2], ("r0412".into(), json!("ok")));
    let size = |id: &str| fs::metadata(results.path().join("runs").join(id).join("run.json")).unwrap().len();
    let before = size(GOOD);
    run(GOOD)
        .step("single", 1, 71.9)
        .with(|record| record.verdict = verdict(VerdictKind::Improved, vec![]))
        .keep(results.path());
    assert_ne!(size(GOOD), before);
    assert_eq!(verdicts()[2], ("r0412".into(), json!("improved")));
    fs::remove_dir_all(results.path().join("runs").join(GOOD)).unwrap();
    assert_eq!(verdicts().len(), 2);
    // What could not be read is looked at again once it has changed.
    fs::remove_dir_all(results.path().join("runs/20261125-220000-torn-0416")).unwrap();
    run("20261125-220000-torn-0416").keep(results.path());
    assert_eq!(verdicts()[0].0, "r0416");
}

#[test]
fn many_orchs_at_once_share_an_index() {
    let results = mixed();
    let listers: Vec<_> = (0..8)
        .map(|_| {
            let results = results.path().to_owned();
            std::thread::spawn(move || orch(&results, &["list", "--json"]))
        })
        .collect();
    for lister in listers {
        let ended = lister.join().unwrap();
        assert_eq!((ended.code, ended.json().as_array().unwrap().len(), ended.err.as_str()), (0, 7, ""));
    }
}

fn new_run(name: &str) -> NewRun {
    NewRun {
        name: name.into(),
        series: name.into(),
        profile: json!({"name": name}),
        yaml: format!("name: {name}\n"),
        orch: OrchInfo { version: "0.1.0".into(), commit: None },
        host: HostInfo { name: "box".into(), hardware: "8 cores".into() },
        kind: RunKind::Run,
        group: None,
        asked: orch::record::model::Asked::default(),
    }
}

#[test]
fn a_run_has_a_true_record_from_its_first_moment() {
    let results = tempfile::tempdir().unwrap();
    let store = Store::open(results.path()).unwrap();
    let clock = Clock::manual("2026-11-29T15:15:03.25Z".parse().unwrap());
    let folder = store.create(&new_run("demo"), &clock).unwrap();
    folder.write_command(&["llama-server".into(), "--model".into(), "a b".into()]).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let kept: Value = serde_json::from_str(&read("run.json")).unwrap();
    assert_eq!((&kept["complete"], &kept["verdict"]["kind"]), (&json!(false), &json!("failed")));
    assert_eq!(kept["verdict"]["reasons"][0]["id"], "interrupted");
    assert_eq!(
        (read("profile.yaml").as_str(), read("command.txt").as_str()),
        ("name: demo\n", "llama-server --model 'a b'\n")
    );
    assert!(folder.id().as_str().starts_with("20261129-151503-demo-"), "{}", folder.id());

    // While it is written it runs; once its writer is gone, it was interrupted.
    let id = folder.id().clone();
    let row = || orch(results.path(), &["list", "--json"]).json()[0].clone();
    assert_eq!((row()["running"].clone(), row()["verdict"].clone()), (json!(true), json!("failed")));
    assert!(orch(results.path(), &["list"]).out.contains("running"));
    assert!(orch(results.path(), &["show", id.as_str()]).out.contains("RUNNING"));
    folder.journal.emit(Scope::Run, Event::LeaseTaken { lease: "measure".into() }).unwrap();
    drop(folder);
    assert_eq!(row()["running"], false);
    assert!(orch(results.path(), &["show", id.as_str()]).out.contains("FAILED"));
    let again = store.reopen(&id, &clock).unwrap();
    assert_eq!(again.journal.state().leases, ["measure"]);
}

#[test]
fn runs_that_begin_at_once_never_share_a_folder() {
    let results = tempfile::tempdir().unwrap();
    let store = Store::open(results.path()).unwrap();
    let clock = Clock::manual("2026-11-29T15:15:03Z".parse().unwrap());
    let makers: Vec<_> = (0..8)
        .map(|_| {
            let (store, clock) = (store.clone(), clock.clone());
            std::thread::spawn(move || {
                (0..10).map(|_| store.create(&new_run("same"), &clock).unwrap()).collect::<Vec<_>>()
            })
        })
        .collect();
    let folders: Vec<_> = makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect();
    let mut ids: Vec<_> = folders.iter().map(|folder| folder.id().clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 80);
    assert_eq!(store.scan().unwrap().ids.len(), 80);
}

#[test]
fn a_run_that_cannot_begin_leaves_no_folder_behind() {
    let results = tempfile::tempdir().unwrap();
    fs::write(results.path().join("runs"), "in the way").unwrap();
    let store = Store::open(results.path()).unwrap();
    let error = store.create(&new_run("demo"), &Clock::system()).unwrap_err();
    assert!(error.to_string().contains("runs"), "{error}");
}

#[test]
fn a_writer_that_is_killed_leaves_a_true_record_and_the_run_can_be_gone_on_with() {
    if let Some(results) = std::env::var_os("ORCH_TEST_KILLED").map(PathBuf::from) {
        let folder = Store::open(&results).unwrap().create(&new_run("demo"), &Clock::system()).unwrap();
        for number in 0.. {
            let value = json!(number);
            folder.journal.emit(Scope::Run, Event::Fact { key: "number".into(), value }).unwrap();
            folder.save().unwrap();
        }
    }
    for bytes in [1_000, 3_000, 7_000, 20_000] {
        let results = tempfile::tempdir().unwrap();
        let test = "records::a_writer_that_is_killed_leaves_a_true_record_and_the_run_can_be_gone_on_with";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env("ORCH_TEST_KILLED", results.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let store = Store::open(results.path()).unwrap();
        let journal = loop {
            let id = store.scan().unwrap().ids.pop();
            let journal = id.map(|id| store.run_path(&id).join("journal.jsonl"));
            match journal {
                Some(journal) if fs::metadata(&journal).is_ok_and(|found| found.len() > bytes) => break journal,
                _ => assert!(child.try_wait().unwrap().is_none(), "the writer ended by itself"),
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let shown = orch(results.path(), &["show", "--json"]).json();
        assert_eq!((&shown["complete"], &shown["verdict"]["reasons"][0]["id"]), (&json!(false), &json!("interrupted")));
        let lines = journal::read(&journal).unwrap().lines.len();
        // The first line begins the run; the others count from 0.
        assert_eq!(shown["startup"]["facts"]["number"], lines - 2);
        let id = store.find("latest").unwrap();
        assert!(!store.is_running(&id));
        let again = store.reopen(&id, &Clock::system()).unwrap();
        again.journal.emit(Scope::Run, Event::Warning(Warning::new("test", "on"))).unwrap();
        again.save().unwrap();
        assert_eq!(again.journal.state().last_seq, Some(lines as u64));
    }
}

/// Runs one test of this program again as a child that may write files of 8 blocks at most: a disk that gets full.
fn on_a_full_disk(test: &str, folder: &Path) -> Ended {
    let script = "trap '' XFSZ; ulimit -S -f 8; exec \"$0\" --exact \"$1\" --nocapture";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(test).env("ORCH_TEST_FULL_DISK", folder);
    ended(&mut command)
}

#[test]
fn a_full_disk_is_an_error_and_the_journal_stays_readable() {
    let Some(folder) = std::env::var_os("ORCH_TEST_FULL_DISK").map(PathBuf::from) else {
        let folder = tempfile::tempdir().unwrap();
        let child = on_a_full_disk("records::a_full_disk_is_an_error_and_the_journal_stays_readable", folder.path());
        assert!(child.code == 0 && child.out.contains("1 passed"), "{}{}", child.out, child.err);
        assert!(folder.path().join("done").exists(), "the child did its part");
        return;
    };
    let path = folder.join("journal.jsonl");
    let journal = Journal::create(&path, "20261129-151503-demo-0a4f", Clock::system()).unwrap();
    let line = || Event::Warning(Warning::new("test", "x".repeat(100)));
    let mut written = 0;
    let error = loop {
        match journal.emit(Scope::Run, line()) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.path, path);
    assert!(error.to_string().contains("journal.jsonl"), "{error}");
    let whole = |lines: usize| {
        let reading = journal::read(&path).unwrap();
        assert_eq!((reading.lines.len(), reading.torn), (lines, false));
    };
    assert!(written > 5);
    whole(written);
    // Still full: still an error, and still whole lines only. Then there is room again, and it goes on without a gap.
    journal.emit(Scope::Run, line()).unwrap_err();
    whole(written);
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE, hard, hard).unwrap();
    journal.emit(Scope::Run, line()).unwrap();
    whole(written + 1);
    fs::write(folder.join("done"), "").unwrap();
}

#[test]
fn a_full_disk_takes_no_baseline_and_no_record_away() {
    let results = tempfile::tempdir().unwrap();
    run(GOOD).step("single", 1, 70.9).keep(results.path());
    assert_eq!(orch(results.path(), &["baseline", "set", "r0412"]).code, 0);
    let before = fs::read(results.path().join("baselines.jsonl")).unwrap();
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" --results \"$1\" baseline set r0412";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_orch")]).arg(results.path());
    let full = ended(&mut command);
    assert!(full.code == 1 && full.err.contains("cannot write the baselines"), "{} {}", full.code, full.err);
    assert_eq!(fs::read(results.path().join("baselines.jsonl")).unwrap(), before);
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" --results \"$1\" list --json";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_orch")]).arg(results.path());
    let listed = ended(&mut command);
    assert_eq!((listed.code, listed.json().as_array().unwrap().len()), (0, 1), "{}", listed.err);
}
