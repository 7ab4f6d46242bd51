use std::io;

use serde_json::json;

use super::*;
use crate::event::Event;
use crate::record::fold;
use crate::record::fold::tests::{RUN, entries, story};
use crate::render::Warning;

fn clock() -> Clock {
    Clock::manual("2026-11-29T15:15:03Z".parse().unwrap())
}

fn warning(text: &str) -> Event {
    Event::Warning(Warning::new("test", text))
}

fn written(path: &Path) -> Vec<u8> {
    let journal = Journal::create(path, RUN, clock()).unwrap();
    for (scope, event) in story() {
        journal.emit(scope, event).unwrap();
    }
    std::fs::read(path).unwrap()
}

#[test]
fn a_line_is_what_the_contract_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let clock = clock();
    let journal = Journal::create(&path, RUN, clock.clone()).unwrap();
    journal.emit(Scope::Run, Event::WarmupBegan {}).unwrap();
    clock.advance(std::time::Duration::from_millis(1500));
    let progress =
        Event::PhaseProgress { phase: "weights".into(), done: 3.0, total: Some(11.0), unit: "shards".into() };
    journal.emit(Scope::Rank(1), progress).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    insta::assert_snapshot!(text, @r#"
    {"v":1,"seq":0,"at":"2026-11-29T15:15:03Z","since_start_ns":0,"run":"20261129-151503-demo-0a4f","scope":"run","event":"warmup_began","data":{}}
    {"v":1,"seq":1,"at":"2026-11-29T15:15:04.5Z","since_start_ns":1500000000,"run":"20261129-151503-demo-0a4f","scope":"rank:1","event":"phase_progress","data":{"phase":"weights","done":3.0,"total":11.0,"unit":"shards"}}
    "#);
}

#[test]
fn what_was_written_is_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let bytes = written(&path);
    let reading = parse(&bytes, &path).unwrap();
    assert_eq!((reading.whole, reading.torn, reading.lines.len()), (bytes.len() as u64, false, story().len()));
    let read: Vec<_> = reading.entries().map(|entry| (entry.seq, entry.scope, entry.event)).collect();
    let told: Vec<_> = entries(story()).into_iter().map(|entry| (entry.seq, entry.scope, entry.event)).collect();
    assert_eq!(read, told);
}

/// The writer may be killed after any byte. What is read back is a true prefix of what was written.
#[test]
fn a_journal_that_was_cut_at_any_byte_is_a_true_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let bytes = written(&path);
    let all: Vec<Entry> = parse(&bytes, &path).unwrap().entries().collect();
    let ends: Vec<usize> = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    let states: Vec<_> = (0..=all.len()).map(|count| fold(all[..count].iter().cloned())).collect();
    for cut in 0..=bytes.len() {
        let reading = parse(&bytes[..cut], &path).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let whole_lines = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(reading.lines.len(), whole_lines, "cut at {cut}");
        assert_eq!(reading.torn, cut > 0 && !ends.contains(&cut), "cut at {cut}");
        assert_eq!(fold(reading.entries()), states[whole_lines], "cut at {cut}");
    }
}

#[test]
fn a_journal_that_was_cut_is_gone_on_with_from_its_last_whole_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let bytes = written(&path);
    for cut in (0..bytes.len()).step_by(97) {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let whole_lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        let journal = Journal::reopen(&path, RUN, clock()).unwrap();
        assert_eq!(journal.state().last_seq, (whole_lines as u64).checked_sub(1));
        journal.emit(Scope::Run, warning("again")).unwrap();
        let reading = read(&path).unwrap();
        assert_eq!((reading.lines.len(), reading.torn), (whole_lines + 1, false), "cut at {cut}");
    }
}

#[test]
fn lines_of_a_newer_build_pass_by_and_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let line = |seq: u64, event: &str, data: serde_json::Value| {
        format!(
            "{}\n",
            json!({"v": 1, "seq": seq, "at": "2026-11-29T15:15:03Z", "since_start_ns": 0, "run": RUN, "scope": "run",
                   "event": event, "data": data})
        )
    };
    let text = line(0, "warmup_began", json!({"since": "v9"}))
        + &line(1, "teleported", json!({"to": [1, 2]}))
        + &line(2, "lease_taken", json!({"lease": "measure"}));
    let reading = parse(text.as_bytes(), &path).unwrap();
    assert!(
        matches!(&reading.lines[1], Line::Unknown { seq: 1, kind, raw, .. } if kind == "teleported" && raw["data"]["to"][1] == 2)
    );
    assert_eq!(fold(reading.entries()).leases, ["measure"]);
    std::fs::write(&path, text).unwrap();
    let journal = Journal::reopen(&path, RUN, clock()).unwrap();
    journal.emit(Scope::Run, warning("on")).unwrap();
    assert_eq!(journal.state().last_seq, Some(3));
    assert_eq!(read(&path).unwrap().lines.len(), 4);
}

#[test]
fn damage_in_the_middle_is_an_error_that_names_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let text = String::from_utf8(written(&path)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let error = |changed: Vec<String>| {
        let text = changed.join("\n") + "\n";
        match parse(text.as_bytes(), &path) {
            Err(JournalError::Line { line, reason, .. }) => (line, reason),
            other => panic!("{other:?}"),
        }
    };
    let with = |at: usize, line: String| {
        let mut changed: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        changed[at] = line;
        changed
    };
    assert_eq!(error(with(2, "not json".into())).0, 3);
    assert_eq!(error(with(3, String::new())).0, 4);
    let mut gap: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    gap.remove(4);
    assert_eq!(error(gap), (5, "its `seq` is 5, and 4 is due".into()));
    let wrong = lines[3].replace("\"lease\"", "\"lessee\"");
    assert_eq!(error(with(3, wrong)).0, 4);
    let newer = lines[3].replace("\"v\":1", "\"v\":2");
    let (line, reason) = error(with(3, newer));
    assert!(line == 4 && reason.contains("a newer orch wrote it"), "{reason}");
}

#[test]
fn one_orch_at_a_time_writes_a_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let journal = Journal::create(&path, RUN, clock()).unwrap();
    journal.emit(Scope::Run, warning("mine")).unwrap();
    assert!(is_written(&path).unwrap());
    assert!(matches!(Journal::reopen(&path, RUN, clock()), Err(JournalError::InUse { .. })));
    assert!(matches!(Journal::create(&path, RUN, clock()), Err(JournalError::Open { .. })));
    drop(journal);
    assert!(!is_written(&path).unwrap());
    assert_eq!(Journal::reopen(&path, RUN, clock()).unwrap().state().last_seq, Some(0));
}

#[test]
fn what_json_has_no_word_for_never_spoils_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let journal = Journal::create(&path, RUN, clock()).unwrap();
    let values = [("ok".to_owned(), 1.0), ("nan".to_owned(), f64::NAN), ("inf".to_owned(), f64::INFINITY)].into();
    journal.emit(Scope::Run, Event::Telemetry { values }).unwrap();
    // A time that is no number cannot be left out, so that the line is refused, and the journal goes on without it.
    let error = journal.emit(Scope::Run, Event::MemoryReturned { s: f64::NAN }).unwrap_err();
    assert_eq!(error.path, path);
    journal.emit(Scope::Run, warning("on")).unwrap();
    let read: Vec<Event> = read(&path).unwrap().entries().map(|entry| entry.event).collect();
    assert_eq!(read, [Event::Telemetry { values: [("ok".to_owned(), 1.0)].into() }, warning("on")]);
}

#[test]
fn a_journal_that_cannot_be_made_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("journal.jsonl");
    let error = Journal::create(&path, RUN, clock()).unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert!(matches!(error, JournalError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound));
}

#[tokio::test]
async fn listeners_hear_every_line_in_order_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::create(&folder.path().join("journal.jsonl"), RUN, clock()).unwrap();
    let mut listener = journal.subscribe();
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let journal = journal.clone();
            std::thread::spawn(move || (0..50).for_each(|_| journal.emit(Scope::Run, warning("w")).unwrap()))
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    drop(journal);
    let mut heard = Vec::new();
    while let Some(next) = listener.next().await {
        match next {
            Heard::Entry(entry) => heard.push(entry.seq),
            Heard::Missed(missed) => panic!("missed {missed}"),
        }
    }
    assert_eq!(heard, (0..200).collect::<Vec<_>>());
}

#[test]
fn a_listener_that_lags_is_told_what_it_missed_and_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let journal = Journal::create(&path, RUN, clock()).unwrap();
    let mut slow = journal.subscribe();
    let count = BEHIND as u64 + 10;
    for _ in 0..count {
        journal.emit(Scope::Run, Event::installing("log")).unwrap();
    }
    assert_eq!(slow.try_next(), Some(Heard::Missed(10)));
    assert!(matches!(slow.try_next(), Some(Heard::Entry(entry)) if entry.seq == 10));
    assert_eq!(read(&path).unwrap().lines.len() as u64, count);
}

proptest::proptest! {
    /// A record that was read back is compared with others, so that no number may change on the way.
    #[test]
    fn numbers_come_back_as_they_were(value in proptest::num::f64::NORMAL) {
        let text = serde_json::to_string(&value).unwrap();
        proptest::prop_assert_eq!(serde_json::from_str::<f64>(&text).unwrap(), value);
    }
}

/// The wall clock is set back an hour between a kill and the resume: the order is that of the lines, and times that are
/// measured are those of the run's own clock.
#[test]
fn a_clock_that_was_set_back_loses_nothing_and_orders_nothing_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let (before, after): (Vec<_>, Vec<_>) = story().into_iter().enumerate().partition(|(at, _)| *at < 20);
    let first = Journal::create(&path, RUN, clock()).unwrap();
    for (_, (scope, event)) in before {
        first.emit(scope, event).unwrap();
    }
    drop(first);
    let back = Clock::manual("2026-11-29T14:15:03Z".parse().unwrap());
    let second = Journal::reopen(&path, RUN, back).unwrap();
    for (_, (scope, event)) in after {
        second.emit(scope, event).unwrap();
    }
    drop(second);
    let read: Vec<_> = read(&path).unwrap().entries().collect();
    let sequence: Vec<u64> = read.iter().map(|entry| entry.seq).collect();
    assert_eq!(sequence, (0..story().len() as u64).collect::<Vec<_>>());
    let (stepped, straight) = (fold(read).record, fold(entries(story())).record);
    assert!(stepped.ended_at.unwrap() < stepped.started_at, "stamps are told as they were");
    let same = |record: crate::record::Record| crate::record::Record {
        started_at: straight.started_at,
        ended_at: straight.ended_at,
        ..record
    };
    assert_eq!(same(stepped), same(straight.clone()));
}
