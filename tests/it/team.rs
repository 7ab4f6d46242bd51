//! A team shares its records in a PostgreSQL database: nothing is lost and nothing doubled, whoever is away or killed.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::built::{Built, Ended, ended, run};
use crate::postgres::Postgres;
use crate::support::{Home, free_port};

const ANNS: &str = "20261121-220000-qwen-mtp3-0a01";
const BOBS: &str = "20261122-220000-qwen-mtp3-0b01";

/// Somebody with a results folder of their own.
struct Person {
    folder: tempfile::TempDir,
    store: String,
}

impl Person {
    fn new(store: &str) -> Self {
        Person { folder: tempfile::tempdir().unwrap(), store: store.to_owned() }
    }

    fn results(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orch"));
        command.arg("--results").arg(self.results()).args(words).env("ORCH_STORE", &self.store);
        // Whoever runs the tests may have passwords and certificates of their own.
        for name in ["ORCH_RESULTS", "PGPASSWORD", "PGPASSFILE", "SSL_CERT_FILE", "SSL_CERT_DIR"] {
            command.env_remove(name);
        }
        command.env("NO_COLOR", "1").env("HOME", self.results());
        command
    }

    fn orch(&self, words: &[&str]) -> Ended {
        ended(&mut self.command(words))
    }

    /// The ids that `orch list` shows, with who recorded them.
    #[track_caller]
    fn listed(&self) -> Vec<(String, bool)> {
        let told = self.orch(&["list", "--all", "--json"]);
        assert_eq!((told.code, told.err.as_str()), (0, ""), "{}", told.err);
        let json = told.json();
        let rows = json.as_array().unwrap().iter();
        rows.map(|row| (row["id"].as_str().unwrap().to_owned(), row.get("writer").is_some())).collect()
    }
}

fn good(id: &str, decode: f64) -> Built {
    run(id).step("single", 1, decode)
}

fn own(id: &str) -> (String, bool) {
    (id.to_owned(), false)
}

fn others(id: &str) -> (String, bool) {
    (id.to_owned(), true)
}

#[test]
fn two_people_see_each_others_runs_and_judge_by_each_others_baseline() {
    let Some(postgres) = Postgres::start() else { return };
    let ann = Person::new(&postgres.database("team"));
    let bob = Person::new(&postgres.over_socket("team"));
    good(ANNS, 70.9).keep(ann.results());
    let set = ann.orch(&["baseline", "set", "--why", "first"]);
    assert_eq!((set.code, set.err.as_str()), (0, ""));
    assert_eq!(postgres.sql("team", "SELECT count(*) FROM orch_baselines"), "1", "what is set is sent at once");
    good(BOBS, 60.0).keep(bob.results());
    let judged = bob.orch(&["compare", "latest", "--json"]);
    assert_eq!(judged.code, 6, "{}{}", judged.out, judged.err);
    assert_eq!(judged.json()["against"], json!([ANNS]));
    assert_eq!(bob.listed(), [own(BOBS), others(ANNS)]);
    assert_eq!(ann.listed(), [others(BOBS), own(ANNS)]);
    let shown = ann.orch(&["show", "r0b01"]).out;
    assert!(shown.contains("\nrecorded by ") && shown.contains('@'), "{shown}");
    assert!(ann.orch(&["list"]).out.lines().next().unwrap().ends_with("by"));
    assert_eq!(ann.orch(&["show", "latest", "--json"]).json()["id"], ANNS, "the newest is the newest of one's own");
    let history = ann.orch(&["history", "qwen36-27b", "--metric", "decode_tokens_per_s_per_user", "--format", "json"]);
    assert_eq!(history.json()[0]["points"].as_array().unwrap().len(), 2);
    // Bob ends the baseline, and Ann's next comparison knows.
    assert_eq!(bob.orch(&["baseline", "expire", "qwen36-27b", "--why", "new driver"]).code, 0);
    let judged = ann.orch(&["compare", "r0b01"]);
    assert!(judged.code == 0 && judged.out.contains("new driver"), "{}{}", judged.out, judged.err);
    assert_eq!(postgres.sql("team", "SELECT count(*), count(DISTINCT id) FROM orch_runs"), "2|2");
    assert_eq!(postgres.sql("team", "SELECT count(*), count(DISTINCT id) FROM orch_baselines"), "2|2");
    // Without the store everything that came stays readable.
    let alone = crate::built::orch(ann.results(), &["list", "--json"]);
    assert_eq!(alone.json().as_array().unwrap().len(), 2);
}

#[test]
fn a_run_is_recorded_while_the_store_is_away_and_sent_once_when_it_is_back() {
    let Some(mut postgres) = Postgres::start() else { return };
    let store = postgres.database("team");
    let home = Home::new();
    let orch = |words: &[&str]| {
        let mut command = home.orch(words);
        ended(command.env("ORCH_STORE", &store).env("HOME", home.results()).env_remove("PGPASSWORD"))
    };
    let profile = home.write(
        "profiles/quick.yaml",
        "engine: {kind: sim, as: sglang, scenario: {speed: {ttft: 1ms, step: 1ms}}}\nmodel: {path: m, served_name: m}\n\
         bench: {only: {use: chat-short, concurrency: 4, requests: 16, warmup: 1}}\n",
    );
    let profile = profile.to_string_lossy();
    let start = || orch(&["run", &profile, "--set", &format!("port={}", free_port())]);
    let there = |postgres: &Postgres| postgres.sql("team", "SELECT count(*), count(DISTINCT id) FROM orch_runs");
    // On a busy machine its numbers may not be valid; it is recorded all the same.
    let measured = |ended: &Ended| ended.code == 0 || ended.code == 5;
    let first = start();
    assert!(measured(&first) && !first.err.contains("store"), "{}{}", first.out, first.err);
    assert_eq!(there(&postgres), "1|1", "a run is sent when it has ended");
    postgres.down();
    let second = start();
    assert!(measured(&second), "{}{}", second.out, second.err);
    assert_eq!(second.err.matches("is away").count(), 1, "{}", second.err);
    assert!(second.err.contains("; 1 run waits here to be sent"), "{}", second.err);
    let listed = orch(&["list", "--json"]);
    assert!(listed.code == 0 && listed.err.contains("1 run waits"), "{}", listed.err);
    assert_eq!(listed.json().as_array().unwrap().len(), 2);
    postgres.up();
    for _ in 0..3 {
        let listed = orch(&["list", "--json"]);
        assert_eq!((listed.code, listed.err.as_str()), (0, ""));
        assert_eq!(there(&postgres), "2|2");
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

fn night(number: u32) -> Built {
    good(&format!("2026{:02}{:02}-220000-qwen-mtp3-{number:04x}", 1 + number / 28, 1 + number % 28), 70.0)
}

#[test]
fn who_is_killed_while_sending_sends_nothing_twice() {
    let Some(postgres) = Postgres::start() else { return };
    let ann = Person::new(&postgres.database("team"));
    let bob = Person::new(&postgres.over_socket("team"));
    let there = || postgres.sql("team", "SELECT count(*), count(DISTINCT id) FROM orch_runs");
    for number in 0..20 {
        night(number).keep(ann.results());
    }
    // At every moment that a few tries come by, the commit and what is noted of it among them.
    for wait in 0..12 {
        let mut child = ann.command(&["list"]).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait * 8));
        let _ = child.kill();
        child.wait().unwrap();
        if wait % 3 == 0 {
            night(20 + u32::try_from(wait).unwrap()).keep(ann.results());
        }
    }
    assert_eq!(ann.listed().len(), 24);
    assert_eq!(there(), "24|24");
    // Killed right after the commit: all of it is there, and nothing here says so.
    std::fs::remove_dir_all(ann.results().join("team")).unwrap();
    let before = ann.folder.path().join("before");
    night(40).keep(ann.results());
    copy(&ann.results().join("runs"), &before);
    assert_eq!(ann.listed().len(), 25);
    let sent = std::fs::read_dir(ann.results().join("team")).unwrap().map(|entry| entry.unwrap().path());
    let sent = sent.map(|path| path.join("sent.jsonl")).find(|path| path.is_file()).unwrap();
    std::fs::write(&sent, "{\"run\":\"half a li").unwrap();
    assert_eq!(ann.listed().len(), 25);
    assert_eq!(there(), "25|25");
    // The one who reads is killed too.
    for wait in 0..8 {
        let mut child = bob.command(&["list"]).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait * 10));
        let _ = child.kill();
        child.wait().unwrap();
    }
    let listed = bob.listed();
    assert_eq!(listed.len(), 25);
    assert!(listed.iter().all(|(_, by_others)| *by_others));
    assert_eq!(there(), "25|25", "what came from others is not sent back");
}

#[test]
fn those_who_write_at_once_miss_nothing_of_each_other() {
    let Some(postgres) = Postgres::start() else { return };
    let store = postgres.database("team");
    let people: Vec<Person> = (0..3).map(|_| Person::new(&store)).collect();
    std::thread::scope(|scope| {
        for (place, person) in people.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..8 {
                    night(100 * u32::try_from(place).unwrap() + number).keep(person.results());
                    let told = person.orch(&["list", "--json"]);
                    assert_eq!((told.code, told.err.as_str()), (0, ""));
                }
            });
        }
    });
    for person in &people {
        assert_eq!(person.listed().len(), 24);
    }
    assert_eq!(postgres.sql("team", "SELECT count(*), count(DISTINCT seq) FROM orch_runs"), "24|24");
}

#[test]
fn a_verdict_that_changes_replaces_what_was_sent_and_nobody_elses() {
    let Some(postgres) = Postgres::start() else { return };
    let ann = Person::new(&postgres.database("team"));
    let bob = Person::new(&postgres.over_socket("team"));
    good(ANNS, 70.9).keep(ann.results());
    ann.listed();
    bob.listed();
    // As `repeat` does when more starts have told more.
    good(ANNS, 70.9)
        .with(|record| record.verdict.kind = orch::record::model::VerdictKind::Regressed)
        .keep(ann.results());
    ann.listed();
    let verdict = |person: &Person| person.orch(&["show", "r0a01", "--json"]).json()["verdict"]["kind"].clone();
    assert_eq!(verdict(&bob), "regressed");
    assert_eq!(postgres.sql("team", "SELECT count(*) FROM orch_runs"), "1");
    // Two that are called the same and are not: both stay, and both who wrote them are told.
    let carol = Person::new(&ann.store);
    good(ANNS, 55.5).keep(carol.results());
    let told = carol.orch(&["list", "--json"]);
    assert!(told.code == 0 && told.err.contains("is not the one that the store has under this id"), "{}", told.err);
    let decode = |person: &Person| {
        let record = person.orch(&["show", "r0a01", "--json"]).json();
        record["steps"][0]["metrics"]["decode_tokens_per_s_per_user"].as_f64().unwrap()
    };
    assert_eq!((decode(&ann), decode(&bob), decode(&carol)), (70.9, 70.9, 55.5));
    assert_eq!(postgres.sql("team", "SELECT count(*) FROM orch_runs"), "1");
}

#[test]
fn the_index_is_made_anew_here_and_there() {
    let Some(postgres) = Postgres::start() else { return };
    let ann = Person::new(&postgres.database("team"));
    let bob = Person::new(&postgres.over_socket("team"));
    for number in 0..3 {
        night(number).keep(ann.results());
    }
    assert_eq!(ann.orch(&["baseline", "set"]).code, 0);
    ann.listed();
    night(7).keep(bob.results());
    bob.listed();
    ann.listed();
    // A database that was put back to an earlier state, and a folder that lost what came.
    postgres
        .sql("team", "DELETE FROM orch_runs WHERE seq = (SELECT min(seq) FROM orch_runs); DELETE FROM orch_baselines");
    std::fs::remove_dir_all(ann.results().join("runs/20260108-220000-qwen-mtp3-0007")).unwrap();
    let made = ann.orch(&["index"]);
    assert_eq!(made.code, 0, "{}{}", made.out, made.err);
    assert!(made.out.starts_with("4 runs in the index of "), "{}", made.out);
    assert!(
        made.out.contains("1 run and 1 line of baselines sent")
            && made.out.contains("1 run and 0 lines of baselines came")
    );
    assert_eq!(postgres.sql("team", "SELECT count(*) FROM orch_runs"), "4");
    assert_eq!(postgres.sql("team", "SELECT count(*) FROM orch_baselines"), "1");
    let again = ann.orch(&["index"]);
    assert!(again.out.contains("0 runs and 0 lines of baselines sent"), "{}", again.out);
    assert_eq!(bob.listed().len(), 4);
    // Another database behind the same address.
    postgres.sql("postgres", "DROP DATABASE team");
    postgres.sql("postgres", "CREATE DATABASE team");
    ann.listed();
    assert_eq!(postgres.sql("team", "SELECT count(*) FROM orch_runs"), "3", "of one's own");
}

#[test]
fn what_a_stranger_puts_into_the_database_is_refused_by_name() {
    let Some(postgres) = Postgres::start() else { return };
    let ann = Person::new(&postgres.database("team"));
    good(ANNS, 70.9).keep(ann.results());
    ann.listed();
    let bob = Person::new(&postgres.over_socket("team"));
    good(BOBS, 60.0).keep(bob.results());
    bob.listed();
    let put = |id: &str, record: &str| {
        let values = format!("'{id}', nextval('orch_seq'), E'eve@\\x1b[2Jbox', '00', {record}");
        postgres.sql("team", &format!("INSERT INTO orch_runs (id, seq, writer, hash, record) VALUES ({values})"));
    };
    put("../../evil", "'{}'");
    put("/tmp/evil", "'{}'");
    put("20261123-220000-qwen-mtp3-0e01", "'{\"schema\": 1, \"id\"'");
    put("20261123-220000-qwen-mtp3-0e02", "'{\"schema\": 99}'");
    put("20261123-220000-qwen-mtp3-0e03", "repeat('x', 20000000)");
    let from_bobs =
        format!("(SELECT replace(record, 'qwen36-27b', 'q\\u001b[2Jq') FROM orch_runs WHERE id = '{BOBS}')");
    put("20261123-220000-qwen-mtp3-0e04", &format!("replace({from_bobs}, '{BOBS}', '20261123-220000-qwen-mtp3-0e04')"));
    let baseline = "'b1', nextval('orch_seq'), 'eve@box', '{\"v\":1,\"runs\":[\"../../x\"]}'";
    postgres.sql("team", &format!("INSERT INTO orch_baselines (id, seq, writer, line) VALUES ({baseline})"));
    let told = ann.orch(&["list"]);
    assert_eq!(told.code, 0);
    for id in ["`../../evil`", "`/tmp/evil`", "0e01", "0e02", "0e03", "`b1`"] {
        assert_eq!(told.err.matches(id).count(), 1, "{id}: {}", told.err);
    }
    let shown = ann.orch(&["show", "r0e04"]);
    for text in [&told.out, &told.err, &shown.out, &shown.err, &ann.orch(&["history", "q"]).err] {
        assert!(!text.contains('\x1b'), "{text}");
    }
    assert_eq!(ann.listed().len(), 3, "told once, and what can be read is there");
    let kept = std::fs::read_dir(ann.results().join("runs")).unwrap().count();
    assert_eq!((kept, Path::new("/tmp/evil").exists()), (3, false));
}

#[test]
fn a_store_of_a_newer_orch_is_left_alone() {
    let Some(postgres) = Postgres::start() else { return };
    let ann = Person::new(&postgres.database("team"));
    ann.listed();
    postgres.sql("team", "UPDATE orch_store SET version = 2");
    good(ANNS, 70.9).keep(ann.results());
    let told = ann.orch(&["list", "--json"]);
    assert!(told.code == 0 && told.json().as_array().unwrap().len() == 1, "{}", told.err);
    assert!(told.err.contains("has version 2 of its tables, and this orch knows 1"), "{}", told.err);
    assert!(told.err.contains("1 run waits here"), "{}", told.err);
    assert_eq!(ann.orch(&["index"]).code, 1);
    assert_eq!(postgres.sql("team", "SELECT count(*) FROM orch_runs"), "0");
    // An id that would lead elsewhere becomes no folder.
    postgres.sql("team", "UPDATE orch_store SET version = 1, id = '../../../tmp/evil'");
    let told = ann.orch(&["list"]);
    assert!(told.code == 0 && told.err.contains("no version and id of orch's"), "{}", told.err);
}

#[test]
fn whoever_may_only_read_still_does() {
    let Some(postgres) = Postgres::start() else { return };
    let ann = Person::new(&postgres.database("team"));
    good(ANNS, 70.9).keep(ann.results());
    ann.listed();
    postgres.sql("team", "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader");
    let bob = Person::new(&ann.store.replace("orch@", "reader@"));
    good(BOBS, 60.0).keep(bob.results());
    let told = bob.orch(&["list", "--json"]);
    assert_eq!((told.code, told.json().as_array().unwrap().len()), (0, 2), "{}", told.err);
    assert!(told.err.contains("does not take runs: permission denied"), "{}", told.err);
}

#[test]
fn a_password_is_found_where_postgres_programs_find_it_and_shown_nowhere() {
    let Some(postgres) = Postgres::start_with(&["-A", "scram-sha-256"], "") else { return };
    let ann = Person::new(&postgres.database("team"));
    let without = ann.orch(&["list"]);
    assert!(without.code == 0 && without.err.contains("is away"), "{}", without.err);
    let with = |command: &mut Command| ended(command);
    let right = with(ann.command(&["list", "--json"]).env("PGPASSWORD", "s3cret-of-ours"));
    assert_eq!((right.code, right.err.as_str()), (0, ""));
    let file = ann.results().join(".pgpass");
    std::fs::write(&file, format!("127.0.0.1:{}:*:orch:s3cret-of-ours\n", postgres.port())).unwrap();
    let open = ann.orch(&["list"]);
    assert!(open.code == 2 && open.err.contains("others can read the password"), "{}", open.err);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    ann.listed();
    let in_address = ann.store.replace("orch@", "orch:s3cret-of-theirs@");
    for words in [["list", "-v"], ["index", "-v"]] {
        let wrong = with(ann.command(&words).env("ORCH_STORE", &in_address));
        assert!(wrong.err.contains("password authentication"), "{}", wrong.err);
        assert!(!wrong.err.contains("s3cret") && !wrong.out.contains("s3cret"), "{}", wrong.err);
    }
    let right = in_address.replace("of-theirs", "of-ours");
    let right = with(ann.command(&["list", "--json"]).env("ORCH_STORE", right));
    assert_eq!((right.code, right.err.as_str()), (0, ""));
}

#[test]
fn tls_is_verified_wherever_there_is_any() {
    let Some(mut postgres) = Postgres::start() else { return };
    let plain = Person::new(&format!("{}?sslmode=require", postgres.database("team")));
    let told = plain.orch(&["list"]);
    assert!(told.code == 0 && told.err.contains("does not support TLS"), "{}", told.err);
    postgres.down();
    for name in ["server.pem", "server.key"] {
        std::fs::copy(format!("tests/data/tls/{name}"), postgres.path(name)).unwrap();
        postgres.own(&postgres.path(name));
    }
    let more = format!(
        "ssl=on ssl_cert_file={} ssl_key_file={}",
        postgres.path("server.pem").display(),
        postgres.path("server.key").display()
    );
    postgres.set(&more);
    postgres.up();
    let told = plain.orch(&["list"]);
    assert!(told.code == 0 && told.err.contains("certificate"), "{}", told.err);
    let trusting = ended(plain.command(&["list", "--json"]).env("SSL_CERT_FILE", "tests/data/tls/ca.pem"));
    assert_eq!((trusting.code, trusting.err.as_str()), (0, ""));
    let without = Person::new(&plain.store.replace("require", "disable"));
    without.listed();
}

#[test]
fn a_database_that_says_nothing_holds_nobody_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let ann = Person::new(&format!("postgres://orch@127.0.0.1:{port}/team?connect_timeout=1"));
    good(ANNS, 70.9).keep(ann.results());
    let since = Instant::now();
    let told = ann.orch(&["list", "--json"]);
    assert!(since.elapsed() < Duration::from_secs(5));
    assert!(told.code == 0 && told.err.contains("no answer within 1 s; 1 run waits here"), "{}", told.err);
    assert_eq!(told.json().as_array().unwrap().len(), 1);
}

#[test]
fn what_is_no_store_is_an_error_before_anything_is_done() {
    let ann = Person::new("");
    good(ANNS, 70.9).keep(ann.results());
    ann.listed();
    for (store, named) in [("mysql://ann:s3cret@db/x", "`mysql://…`"), ("results.sqlite", "`results.sqlite`")] {
        for words in [&["list"][..], &["run", "sim-demo"], &["index"], &["compare", "latest"], &["baseline", "list"]] {
            let told = ended(ann.command(words).env("ORCH_STORE", store));
            assert_eq!(told.code, 2, "{words:?}: {}", told.err);
            assert!(told.err.contains(named) && told.err.contains("postgres://USER@HOST/DATABASE"), "{}", told.err);
            assert!(!told.err.contains("s3cret"), "{}", told.err);
        }
    }
    assert_eq!(std::fs::read_dir(ann.results().join("runs")).unwrap().count(), 1);
    let told = ended(ann.command(&["ps"]).env("ORCH_STORE", "mysql://db/x"));
    assert_eq!(told.code, 0, "what needs no records works: {}", told.err);
}
