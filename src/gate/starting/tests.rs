use regex::Regex;

use super::*;
use crate::engine::{BarRule, FailureRule, LogRules, PhaseRule};
use crate::gate::Patience;
use crate::gate::life::Seen;
use crate::gate::log::Piece;
use crate::record::history::{PastStart, PastStarts};

const S: Nanos = 1_000_000_000;

fn grammar() -> LogGrammar {
    let failure = |kind: &str, pattern: &str, wraps| FailureRule {
        kind: kind.into(),
        pattern: pattern.into(),
        wraps,
        ..FailureRule::default()
    };
    let phase = |name: &str, begin: &str| PhaseRule {
        phase: name.into(),
        begin: Some(begin.into()),
        patience: Some("1m".into()),
        ..PhaseRule::default()
    };
    let rules = LogRules {
        heartbeat: vec!["GET /health".into()],
        phases: vec![phase("weights", "loading"), phase("graph_capture", "capturing")],
        bars: vec![
            BarRule { pattern: "shards".into(), unit: "shards".into(), phase: "weights".into(), within: false },
            BarRule { pattern: "batches".into(), unit: "graphs".into(), phase: "graph_capture".into(), within: false },
        ],
        failures: vec![failure("oom_capture", "out of memory", false), failure("unknown", "child failed", true)],
        facts: vec!["took (?<weights_gb>[\\d.]+) GB".into()],
        ..LogRules::default()
    };
    LogGrammar::new(&rules).unwrap()
}

fn conduct() -> Conduct {
    let rules = LogRules {
        phases: ["launch", "weights", "graph_capture"]
            .map(|phase| PhaseRule { phase: phase.into(), patience: Some("1m".into()), ..PhaseRule::default() })
            .into(),
        ..LogRules::default()
    };
    Conduct {
        patience: Patience::new(&BTreeMap::new(), PastStarts::default(), &rules),
        worker: Some(Regex::new(r"^rank(\d)").unwrap()),
        ..Conduct::default()
    }
}

fn piece(text: &str) -> Piece {
    Piece { line_no: 1, text: text.into(), cut: false }
}

fn kinds(said: &Said) -> Vec<String> {
    said.iter().map(|(_, event)| serde_json::to_value(event).unwrap()["event"].as_str().unwrap().to_owned()).collect()
}

fn ranks(living: &[u32]) -> Look {
    let seen = |rank: &u32| Seen { pid: 100 + rank, start_ticks: 1, title: format!("rank{rank}"), ..Seen::default() };
    Look { processes: Some(living.iter().map(seen).collect()), ..Look::default() }
}

#[test]
fn silence_is_told_and_taken_back_and_never_ends_a_start() {
    let (conduct, grammar) = (conduct(), grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    start.take(&piece("loading"), S);
    assert_eq!(kinds(&start.tick(S).0), ["sign_of_life"]);
    for s in 2..61 {
        assert_eq!(start.tick(s * S), (Vec::new(), None));
    }
    let (said, end) = start.tick(61 * S);
    assert_eq!((kinds(&said), end), (vec!["stalled".to_owned()], None));
    let Event::Stalled { phase, silent_s, usual_s, evidence, limit_s } = &said[0].1 else { panic!("{said:?}") };
    assert_eq!((phase.as_str(), *silent_s, *usual_s, *limit_s), ("weights", 60.0, None, 1200.0));
    assert_eq!(evidence[..], ["log silent 60 s"]);
    assert!(start.tick(62 * S).0.is_empty(), "not again at once");
    // What answers probes is no sign.
    start.take(&piece("GET /health 503"), 70 * S);
    assert!(start.tick(70 * S).0.is_empty());
    assert!(start.is_stalled());
    start.take(&piece("shards 1/4"), 80 * S);
    assert_eq!(kinds(&start.tick(80 * S).0), ["sign_of_life"]);
    assert!(!start.is_stalled());
    // To the limit, and not before.
    assert!((81..1200).all(|s| start.tick(s * S).1.is_none()));
    assert_eq!(start.tick(1200 * S).1, Some(End::TimedOut));
}

#[test]
fn a_bar_that_is_drawn_again_where_it_was_is_no_sign() {
    let (conduct, grammar) = (conduct(), grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    let mut sign = |text: &str, s: u64| {
        start.take(&piece(text), s * S);
        let (said, _) = start.tick(s * S);
        said.iter().find_map(|(_, event)| match event {
            Event::SignOfLife { signs, .. } => Some(signs.clone()),
            _ => None,
        })
    };
    assert_eq!(sign("shards:  9% 1/11 [00:10<01:40]", 2), Some(vec![Sign::Bar]));
    assert_eq!(sign("shards:  9% 1/11 [00:12<02:00]", 4), None);
    assert_eq!(sign("shards: 18% 2/11 [00:20<01:30]", 6), Some(vec![Sign::Bar]));
    assert_eq!(sign("batches (bs=8 avail_mem=5.1 GB): 1/23", 8), Some(vec![Sign::Graph]));
    assert_eq!(sign("batches (bs=8 avail_mem=5.1 GB): 1/23", 10), None);
    assert_eq!(sign("a line with 50% in it", 12), Some(vec![Sign::Line]));
}

#[test]
fn a_line_that_looks_fatal_waits_for_the_engines_own_word() {
    let (conduct, grammar) = (conduct(), grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    start.take(&piece("out of memory"), S);
    assert_eq!(start.tick(2 * S).1, None);
    assert_eq!(start.tick(100 * S).1, None);
    start.take(&piece("a child failed"), 100 * S);
    assert_eq!(start.tick(100 * S).1, None, "it may end by itself");
    assert_eq!(start.tick(101 * S).1, Some(End::Confirmed));
}

#[test]
fn an_engine_that_goes_on_has_not_failed() {
    let (conduct, grammar) = (conduct(), grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    start.take(&piece("out of memory"), S);
    start.take(&piece("a child failed"), S);
    start.take(&piece("capturing"), S + S / 2);
    assert_eq!(start.tick(10 * S).1, None);
}

#[test]
fn the_memory_that_a_bar_shows_is_of_the_graph_that_it_stands_at() {
    let mut rules = LogRules {
        bars: vec![BarRule {
            pattern: "batches".into(),
            unit: "graphs".into(),
            phase: "graph_capture".into(),
            ..BarRule::default()
        }],
        facts: vec!["avail_mem=(?<avail_mem_gb>[\\d.]+)".into()],
        ..LogRules::default()
    };
    rules.phases =
        vec![PhaseRule { phase: "graph_capture".into(), begin: Some("capturing".into()), ..PhaseRule::default() }];
    let grammar = LogGrammar::new(&rules).unwrap();
    let conduct = conduct();
    let mut start = Starting::new(&conduct, &grammar, 0);
    let mut places = Vec::new();
    let mut done = 0.0;
    // Faster than bars are told.
    for (ms, text) in [
        (0, "batches (avail_mem=5.14 GB): 0/3"),
        (100, "batches (avail_mem=5.14 GB): 1/3"),
        (101, "batches (avail_mem=5.10 GB): 1/3"),
        (200, "batches (avail_mem=5.10 GB): 2/3"),
        (201, "batches (avail_mem=5.04 GB): 2/3"),
    ] {
        for (_, event) in start.take(&piece(text), S + ms * 1_000_000) {
            match event {
                Event::PhaseProgress { done: now, .. } => done = now,
                Event::Fact { value, .. } => places.push((done, value.as_f64().unwrap())),
                _ => {}
            }
        }
    }
    assert_eq!(places, [(0.0, 5.14), (1.0, 5.10), (2.0, 5.04)]);
}

#[test]
fn to_fail_fast_is_to_wait_for_nothing() {
    let (conduct, grammar) = (Conduct { fail_fast: true, ..conduct() }, grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    start.take(&piece("out of memory"), S);
    assert_eq!(start.tick(S).1, Some(End::FailFast));
}

#[test]
fn a_dead_rank_ends_a_start_if_a_line_says_why() {
    let (conduct, grammar) = (conduct(), grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    start.look(&ranks(&[0, 1]), S);
    start.look(&ranks(&[0]), 5 * S);
    assert_eq!(start.tick(50 * S).1, None, "nobody knows why");
    start.take(&piece("out of memory"), 51 * S);
    assert_eq!(start.tick(51 * S).1, None);
    let Some(End::DeadRank(worker)) = start.tick(52 * S).1 else { panic!() };
    assert_eq!((worker.rank, worker.pid), (Some(1), 101));
}

#[test]
fn a_download_does_not_count_unless_a_person_set_the_limit() {
    for (is_auto, expected) in [(true, 1200 + 100), (false, 1200)] {
        let (conduct, grammar) = (Conduct { limit_is_auto: is_auto, ..conduct() }, grammar());
        let mut start = Starting::new(&conduct, &grammar, 0);
        for s in 0..=100 {
            let written = Some(s * (40 << 20));
            let main = Seen {
                pid: 1,
                written_bytes: written,
                read_bytes: Some(0),
                read_anywhere_bytes: Some(0),
                ..Seen::default()
            };
            start.look(&Look { processes: Some(vec![main]), ..Look::default() }, s * S);
        }
        assert_eq!(start.deadline(), expected * S);
    }
}

#[test]
fn a_start_that_lives_is_not_ended_by_a_limit_that_nobody_set_until_three_have_passed() {
    let grammar = grammar();
    for (is_auto, expected) in [(true, 3600), (false, 1200)] {
        let conduct = Conduct { limit_is_auto: is_auto, ..conduct() };
        let mut start = Starting::new(&conduct, &grammar, 0);
        let ended = (0..10_000).find(|s| {
            start.take(&piece(&format!("shards {s}/9999")), s * S);
            start.tick(s * S).1 == Some(End::TimedOut)
        });
        assert_eq!(ended, Some(expected));
    }
}

#[test]
fn what_was_cold_is_told_once_it_is_known() {
    let grammar = grammar();
    let read = |read: u64| {
        let main = Seen {
            pid: 1,
            name: "python3".into(),
            read_bytes: Some(read),
            read_anywhere_bytes: Some(0),
            ..Seen::default()
        };
        Look { processes: Some(vec![main]), ..Look::default() }
    };
    for (bytes, word) in [(1_900_000_000, "cold"), (90_000_000, "warm")] {
        let conduct = Conduct { weights_bytes: Some(2_000_000_000), ..conduct() };
        let mut start = Starting::new(&conduct, &grammar, 0);
        assert!(start.look(&read(0), S).is_empty());
        start.take(&piece("loading"), S);
        assert!(start.look(&read(bytes), 2 * S).is_empty(), "they are not loaded yet");
        start.take(&piece("capturing"), 3 * S);
        let said = start.look(&read(bytes), 4 * S);
        let fact = Event::Fact { key: "weights_cache".into(), value: json!(word) };
        assert_eq!(said, [(Scope::Run, fact)]);
        let said = start.ready(9 * S);
        let fact = Event::Fact { key: "jit_cache".into(), value: json!("warm") };
        assert_eq!(said.last(), Some(&(Scope::Run, fact)));
    }
}

#[test]
fn what_a_phase_usually_takes_is_its_patience() {
    let past = PastStart { phases: BTreeMap::from([("weights".to_owned(), 20.0)]), ..PastStart::default() };
    let patience = Patience::new(&BTreeMap::new(), PastStarts(vec![past]), &LogRules::default());
    let (conduct, grammar) = (Conduct { patience, ..Conduct::default() }, grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    start.take(&piece("loading"), S);
    start.tick(S);
    assert!(start.tick(60 * S).0.is_empty());
    let (said, _) = start.tick(61 * S);
    assert!(matches!(said[0].1, Event::Stalled { usual_s: Some(20.0), .. }), "{said:?}");
}

#[test]
fn a_rank_that_never_started_is_named_in_the_silence() {
    let (conduct, grammar) = (Conduct { ranks: Some(4), ..conduct() }, grammar());
    let mut start = Starting::new(&conduct, &grammar, 0);
    assert_eq!(start.looks_like(S), None, "before any worker is there nothing is known of the others");
    start.take(&piece("loading"), S);
    start.look(&ranks(&[0, 2]), S);
    start.tick(S);
    let told = start.tick(62 * S).0;
    let Event::Stalled { evidence, .. } = &told[0].1 else { panic!("{told:?}") };
    assert_eq!(evidence[0], "ranks 1, 3 never started");
    assert_eq!(start.looks_like(62 * S), Some("rank_missing"));
    // One that comes late was only late.
    start.look(&ranks(&[0, 1, 2, 3]), 63 * S);
    start.tick(63 * S);
    assert_eq!(start.looks_like(63 * S), None);
}

/// What a server that serves says of itself all the time is read once a second; what matters is read at once, after it.
#[test]
fn what_a_server_says_again_and_again_waits_and_its_cause_does_not() {
    let rules = LogRules {
        phases: vec![PhaseRule { phase: "serving".into(), begin: Some("ready".into()), ..PhaseRule::default() }],
        facts: vec![r"running: (?<running>\d+)".into()],
        heartbeat: vec!["GET /health".into()],
        failures: vec![FailureRule { kind: "net".into(), pattern: "cannot reach".into(), ..FailureRule::default() }],
        ..LogRules::default()
    };
    let (conduct, grammar) = (Conduct::default(), LogGrammar::new(&rules).unwrap());
    let mut start = Starting::new(&conduct, &grammar, 0);
    let running = |start: &Starting<'_>| start.startup().facts().get("running").and_then(Value::as_u64);
    start.take(&piece("running: 1"), S);
    assert_eq!(running(&start), Some(1), "until it serves each line is read");
    start.take(&piece("ready"), S);
    for n in 2..1000 {
        assert!(start.take(&piece(&format!("running: {n}")), 2 * S).is_empty());
    }
    start.tick(2 * S);
    assert_eq!((running(&start), start.life().last_at()), (Some(1), 2 * S), "a line is a sign when it comes");
    start.tick(3 * S);
    assert_eq!(running(&start), Some(999));
    start.take(&piece("GET /health"), 9 * S);
    assert_eq!(start.life().last_at(), 2 * S, "a heartbeat is none");
    start.take(&piece("running: 5"), 10 * S);
    start.take(&piece("cannot reach"), 10 * S);
    assert_eq!((running(&start), start.startup().root().map(|root| root.kind.as_str())), (Some(5), Some("net")));
}
