use super::*;
use crate::record::fold;
use crate::record::fold::tests::{entries, story};

fn key() -> Key {
    let record = fold(entries(story())).record;
    Key::of(&record, &record.steps[0])
}

fn line(action: Action, key: Key, runs: &[&str]) -> Line {
    let at = "2026-11-29T15:15:03Z".parse().unwrap();
    let runs = runs.iter().map(|&run| run.to_owned()).collect();
    Line { v: VERSION, id: "b1".into(), at, by: "ann@box".into(), action, key, runs, why: None }
}

#[test]
fn the_last_line_of_a_key_holds() {
    let other = Key { host: "elsewhere".into(), ..key() };
    let lines = vec![
        line(Action::Set, key(), &["a"]),
        line(Action::Set, other.clone(), &["b"]),
        line(Action::Promote, key(), &["c"]),
        line(Action::Expire, other.clone(), &[]),
    ];
    let baselines = Baselines { lines };
    assert_eq!(baselines.current(&key()).map(|line| line.runs.clone()), Some(vec!["c".to_owned()]));
    assert_eq!(baselines.current(&other).map(|line| line.action), Some(Action::Expire));
    assert_eq!(baselines.current(&Key { step: "none".into(), ..key() }), None);
    let holding: Vec<Action> = baselines.currents().iter().map(|line| line.action).collect();
    assert_eq!(holding, [Action::Promote, Action::Expire]);
}

#[test]
fn everything_that_makes_results_comparable_is_part_of_the_key() {
    let changes: [fn(&mut Key); 8] = [
        |key| key.series.push('x'),
        |key| key.step.push('x'),
        |key| key.workload.push('x'),
        |key| key.hardware.push('x'),
        |key| key.host.push('x'),
        |key| key.load.requests = Some(25),
        |key| key.load.duration_s = Some(60.0),
        |key| key.load.arrival = crate::render::Arrival::Closed { concurrency: 2 },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = key();
        change(&mut changed);
        assert!(!changed.same(&key()), "change {index}");
    }
    let mut warmer = key();
    warmer.load.warmup = Some(9);
    assert!(warmer.same(&key()), "what goes before is not counted");
}

#[test]
fn lines_are_as_the_contract_says_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new").join("baselines.jsonl");
    append(&path, &[line(Action::Set, key(), &["a"])]).unwrap();
    insta::assert_snapshot!(std::fs::read_to_string(&path).unwrap(), @r#"{"v":1,"id":"b1","at":"2026-11-29T15:15:03Z","by":"ann@box","action":"set","series":"demos","step":"single","workload":"sha256:aa","load":{"arrival":{"closed":{"concurrency":1}},"requests":24,"duration_s":null,"warmup":null},"hardware":"2x RTX A6000","host":"box","runs":["a"],"why":null}"#);
    assert_eq!(Baselines::read(&path).unwrap().lines, [line(Action::Set, key(), &["a"])]);
    assert_eq!(Baselines::read(&folder.path().join("none")).unwrap().lines, []);
}

#[test]
fn a_last_line_without_its_newline_counts_if_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("baselines.jsonl");
    append(&path, &[line(Action::Set, key(), &["a"])]).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    // As an editor may leave it.
    std::fs::write(&path, text.trim_end()).unwrap();
    assert_eq!(Baselines::read(&path).unwrap().lines.len(), 1);
    append(&path, &[line(Action::Clear, key(), &[])]).unwrap();
    let actions: Vec<Action> = Baselines::read(&path).unwrap().lines.iter().map(|line| line.action).collect();
    assert_eq!(actions, [Action::Set, Action::Clear]);
    // As a kill may leave it, at any byte.
    for cut in 1..text.len() - 1 {
        std::fs::write(&path, format!("{text}{}", &text[..cut])).unwrap();
        append(&path, &[line(Action::Clear, key(), &[])]).unwrap();
        let read = Baselines::read(&path).unwrap();
        let expected: &[Action] = if cut == text.len() - 1 {
            &[Action::Set, Action::Set, Action::Clear]
        } else {
            &[Action::Set, Action::Clear]
        };
        assert_eq!(read.lines.iter().map(|line| line.action).collect::<Vec<_>>(), expected, "cut at {cut}");
    }
}
