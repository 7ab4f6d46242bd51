//! From observations to the state of a start-up. Time comes with each piece, so that an old log folds to the same state as
//! a live one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use super::{Again, LogGrammar, Observation, Piece, Seen};
use crate::clock::Nanos;

/// The phase before the log says anything.
const LAUNCH: &str = "launch";
/// The phase after which there is none.
const SERVING: &str = "serving";
/// How many of the last lines are kept.
const LAST_WORDS: usize = 15;
/// How much of each of them.
const LAST_WORDS_CHARS: usize = 400;
/// How many failures are kept: a server that repeats one for hours costs no more memory.
const MOST_FAILURES: usize = 50;
/// Between two reports of one bar.
const BAR_PAUSE: Nanos = 500_000_000;

/// What a piece of the log changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A phase began.
    Began {
        /// Which.
        phase: String,
    },
    /// A phase went on.
    Progress {
        /// Which.
        phase: String,
        /// So many are done,
        done: f64,
        /// of so many, if known.
        total: Option<f64>,
        /// What is counted.
        unit: String,
    },
    /// A phase ended.
    Ended {
        /// Which.
        phase: String,
        /// How long it took, in seconds.
        s: f64,
    },
    /// Something is known, or known otherwise than before.
    Fact {
        /// Under which key.
        key: String,
        /// What.
        value: Value,
        /// Of which rank, if the record says.
        rank: Option<u32>,
    },
    /// A line that looks like a failure; the first of its kind.
    Failure(Failure),
}

/// A line that looks like a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its kind in the log vocabulary.
    pub kind: String,
    /// Whether it only reports another one.
    pub wraps: bool,
    /// The line.
    pub line: String,
    /// Its number, from 1.
    pub line_no: u64,
    /// Which rank said it, if it says.
    pub rank: Option<u32>,
    /// The phase it fell into.
    pub phase: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Whether trying again can help: `never`, `maybe`, `later`.
    pub retry: Option<String>,
}

/// A phase that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How long it took, in seconds.
    pub s: f64,
}

/// The state of a start-up, as its log tells it.
#[derive(Clone, Debug)]
pub struct Startup {
    began: Nanos,
    open: Vec<Open>,
    phases: Vec<Phase>,
    /// When the last phase ended: a phase of which only the end is told began then.
    boundary: Nanos,
    ranks: BTreeSet<u32>,
    /// Phases by the ranks that have ended them: what comes in the same words afterwards is another phase.
    done: BTreeSet<(String, Option<u32>)>,
    /// Each rank's own; of those that say no rank, under 0.
    facts_by_rank: BTreeMap<(String, u32), Value>,
    /// Where ranks differ, the lowest counts.
    facts: BTreeMap<String, Value>,
    failures: Vec<Failure>,
    last_words: VecDeque<(u64, String)>,
    last_at: Nanos,
}

/// A phase that is going on.
#[derive(Clone, Debug)]
struct Open {
    name: String,
    began: Nanos,
    begun_by: BTreeSet<u32>,
    ended_by: BTreeSet<u32>,
    reported: Option<(Nanos, f64)>,
}

impl Open {
    fn new(name: &str, began: Nanos) -> Self {
        Open { name: name.to_owned(), began, begun_by: BTreeSet::new(), ended_by: BTreeSet::new(), reported: None }
    }
}

impl Startup {
    /// A start-up that began at a moment, in phase `launch`.
    pub fn new(began: Nanos) -> Self {
        Startup {
            began,
            open: vec![Open::new(LAUNCH, began)],
            phases: Vec::new(),
            boundary: began,
            ranks: BTreeSet::new(),
            done: BTreeSet::new(),
            facts_by_rank: BTreeMap::new(),
            facts: BTreeMap::new(),
            failures: Vec::new(),
            last_words: VecDeque::new(),
            last_at: began,
        }
    }

    /// The phase it is in: the one that began last, or, between two, the one that ended last.
    pub fn phase(&self) -> &str {
        let last = self.phases.last().map_or(LAUNCH, |phase| phase.name.as_str());
        self.open.last().map_or(last, |open| open.name.as_str())
    }

    /// The phases that are over, in the order of their ends.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// What the log has told.
    pub fn facts(&self) -> &BTreeMap<String, Value> {
        &self.facts
    }

    /// The line that looks like the cause: the first failure that does not only report another one.
    pub fn root(&self) -> Option<&Failure> {
        self.failures.iter().find(|failure| !failure.wraps)
    }

    /// The last lines that hold something, oldest first; of a progress bar only its last state.
    pub fn last_words(&self) -> Vec<String> {
        self.last_words.iter().map(|(_, text)| text.clone()).collect()
    }

    /// When the log last grew by more than a heartbeat.
    pub fn last_at(&self) -> Nanos {
        self.last_at
    }

    /// Takes the next piece, which was there at `now`.
    pub fn take(&mut self, grammar: &LogGrammar, piece: &Piece, now: Nanos) -> Vec<Change> {
        let piece = &*grammar.masked(piece);
        let seen = grammar.read(piece);
        // The answer to our own probe, say: it would push out the words that matter, and is no sign of progress.
        let only_heartbeat = !seen.is_empty() && seen.iter().all(|seen| seen.what == Observation::Heartbeat);
        if !only_heartbeat {
            self.last_at = now;
            self.remember(piece);
        }
        let mut changes = Vec::new();
        // The facts of a record that ends a phase belong to that phase: it is closed after them.
        let mut ends: Vec<(String, Option<u32>)> = Vec::new();
        let mut again: Option<&Again> = None;
        for Seen { rank, what } in seen {
            self.ranks.extend(rank);
            match what {
                Observation::Heartbeat => {}
                Observation::Begin { phase, by_rank } => {
                    self.end_all(&mut ends, now, &mut changes);
                    again = self.again(grammar, &phase, rank.filter(|_| by_rank));
                    match again {
                        Some(again) if self.is_over(&again.phase) => {}
                        _ => {
                            let phase = again.map_or(phase.as_str(), |again| again.phase.as_str());
                            self.begin(grammar, phase, rank, now, &mut changes);
                        }
                    }
                }
                Observation::End { phase, by_rank } => {
                    let rank = rank.filter(|_| by_rank);
                    again = self.again(grammar, &phase, rank);
                    // The second phase ends with the beginning of the one after it.
                    if again.is_none() {
                        self.open_late(grammar, &phase, rank, now, &mut changes);
                        ends.push((phase, rank));
                    }
                }
                Observation::Bar { phase, done, total, unit } => {
                    let second = grammar.again(&phase).map(|again| again.phase.as_str());
                    let second = second.filter(|second| self.open.iter().any(|open| open.name == *second));
                    // The last state of a bar often comes after the line that ends its phase.
                    let phase = match second {
                        Some(second) => second,
                        None if self.is_over(&phase) => continue,
                        None => &phase,
                    };
                    self.begin(grammar, phase, rank, now, &mut changes);
                    self.progress(phase, done, total, unit, now, &mut changes);
                }
                Observation::Fact { key, value } => {
                    if let Some(key) = again.map_or(Some(key.clone()), |again| renamed(again, key)) {
                        self.fact(key, value, rank, &mut changes);
                    }
                }
                Observation::Failure { rules } => self.fail(grammar, &rules, rank, piece, &mut changes),
            }
        }
        self.end_all(&mut ends, now, &mut changes);
        changes
    }

    /// What a phase is for a rank that has been through it.
    fn again<'g>(&self, grammar: &'g LogGrammar, phase: &str, rank: Option<u32>) -> Option<&'g Again> {
        let again = grammar.again(phase)?;
        self.done.contains(&(phase.to_owned(), rank)).then_some(again)
    }

    fn end_all(&mut self, ends: &mut Vec<(String, Option<u32>)>, now: Nanos, changes: &mut Vec<Change>) {
        for (phase, rank) in ends.drain(..) {
            self.end(&phase, rank, now, changes);
            self.done.insert((phase, rank));
        }
    }

    fn fact(&mut self, key: String, value: Value, rank: Option<u32>, changes: &mut Vec<Change>) {
        let own = (key.clone(), rank.unwrap_or(0));
        if self.facts_by_rank.get(&own) == Some(&value) {
            return;
        }
        self.facts_by_rank.insert(own, value.clone());
        let lowest = self.facts_by_rank.range((key.clone(), 0)..).next();
        if lowest.is_some_and(|((_, lowest), _)| *lowest == rank.unwrap_or(0)) {
            self.facts.insert(key.clone(), value.clone());
        }
        changes.push(Change::Fact { key, value, rank });
    }

    /// The start-up is over: what is still open has ended.
    pub fn finish(&mut self, now: Nanos) -> Vec<Change> {
        let mut changes = Vec::new();
        while !self.open.is_empty() {
            self.close(0, now, &mut changes);
        }
        changes
    }

    /// What looked like a failure until now was survived; hands it out. The next one is looked for anew.
    pub fn survived(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }

    /// Seconds since the start-up began.
    pub fn elapsed_s(&self, now: Nanos) -> f64 {
        seconds(now.saturating_sub(self.began))
    }

    fn is_over(&self, phase: &str) -> bool {
        self.phases.iter().any(|over| over.name == phase) && !self.open.iter().any(|open| open.name == phase)
    }

    fn remember(&mut self, piece: &Piece) {
        let text = piece.text.trim();
        if text.is_empty() {
            return;
        }
        let text = match text.char_indices().nth(LAST_WORDS_CHARS) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text.to_owned(),
        };
        if self.last_words.back().is_some_and(|(line, _)| *line == piece.line_no) {
            self.last_words.pop_back();
        }
        self.last_words.push_back((piece.line_no, text));
        if self.last_words.len() > LAST_WORDS {
            self.last_words.pop_front();
        }
    }

    fn begin(&mut self, grammar: &LogGrammar, phase: &str, rank: Option<u32>, now: Nanos, changes: &mut Vec<Change>) {
        if let Some(open) = self.open.iter_mut().find(|open| open.name == phase) {
            open.begun_by.extend(rank);
            return;
        }
        // Who serves has started: what comes in the words of a phase is something else, such as an answer to a probe.
        if self.open.iter().any(|open| open.name == SERVING) {
            return;
        }
        // A later phase has begun, so the earlier ones are over, whether or not every rank has said so.
        let place = grammar.phase_place(phase);
        while let Some(earlier) = self.open.iter().position(|open| grammar.phase_place(&open.name) < place) {
            self.close(earlier, now, changes);
        }
        let mut open = Open::new(phase, now);
        open.begun_by.extend(rank);
        self.open.push(open);
        changes.push(Change::Began { phase: phase.to_owned() });
    }

    /// Sees to it that a phase whose end is told is open, unless it is over: of some only the end is told.
    fn open_late(
        &mut self,
        grammar: &LogGrammar,
        phase: &str,
        rank: Option<u32>,
        now: Nanos,
        changes: &mut Vec<Change>,
    ) {
        let is_open = self.open.iter().any(|open| open.name == phase);
        // Another end of a phase that is over begins nothing.
        if is_open || self.is_over(phase) {
            return;
        }
        let began = self.boundary;
        self.begin(grammar, phase, rank, now, changes);
        if let Some(open) = self.open.last_mut().filter(|open| open.name == phase) {
            open.began = began;
        }
    }

    fn end(&mut self, phase: &str, rank: Option<u32>, now: Nanos, changes: &mut Vec<Change>) {
        let Some(number) = self.open.iter().position(|open| open.name == phase) else { return };
        let open = &mut self.open[number];
        open.ended_by.extend(rank);
        let all = rank.is_none() || self.ranks.iter().all(|rank| open.ended_by.contains(rank));
        if all {
            self.close(number, now, changes);
        }
    }

    fn close(&mut self, number: usize, now: Nanos, changes: &mut Vec<Change>) {
        let open = self.open.remove(number);
        let s = seconds(now.saturating_sub(open.began));
        self.boundary = now;
        self.phases.push(Phase { name: open.name.clone(), s });
        changes.push(Change::Ended { phase: open.name, s });
    }

    fn progress(
        &mut self,
        phase: &str,
        done: f64,
        total: Option<f64>,
        unit: String,
        now: Nanos,
        changes: &mut Vec<Change>,
    ) {
        let Some(open) = self.open.iter_mut().find(|open| open.name == phase) else { return };
        let full = total == Some(done);
        let due = match open.reported {
            None => true,
            Some((_, before)) if before == done => false,
            Some((at, _)) => full || now.saturating_sub(at) >= BAR_PAUSE,
        };
        if due {
            open.reported = Some((now, done));
            changes.push(Change::Progress { phase: phase.to_owned(), done, total, unit });
        }
    }

    fn fail(
        &mut self,
        grammar: &LogGrammar,
        rules: &[usize],
        rank: Option<u32>,
        piece: &Piece,
        changes: &mut Vec<Change>,
    ) {
        let phase = self.phase().to_owned();
        let holds = |rule: &&super::FailureRule| rule.phase.as_ref().is_none_or(|only| *only == phase);
        let Some(rule) = rules.iter().filter_map(|rule| grammar.failure(*rule)).find(holds) else { return };
        let failure = Failure {
            kind: rule.kind.clone(),
            wraps: rule.wraps,
            line: piece.text.clone(),
            line_no: piece.line_no,
            rank,
            phase: phase.clone(),
            remedy: rule.remedy.as_ref().map(|remedy| self.fill(remedy, grammar.settings())),
            retry: rule.retry.clone(),
        };
        let first = !self.failures.iter().any(|known| known.kind == failure.kind && known.wraps == failure.wraps);
        if self.failures.len() < MOST_FAILURES {
            self.failures.push(failure.clone());
        }
        if first {
            changes.push(Change::Failure(failure));
        }
    }

    /// Puts facts and settings in the place of their names in braces. A name that is neither stays as it is.
    fn fill(&self, remedy: &str, settings: &BTreeMap<String, String>) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let facts = self.facts.iter().map(|(key, value)| (key, text(value)));
        let settings = settings.iter().map(|(key, value)| (key, value.clone()));
        facts.chain(settings).fold(remedy.to_owned(), |text, (key, value)| text.replace(&format!("{{{key}}}"), &value))
    }
}

/// What a fact is called the second time; `None` where it is left aside.
fn renamed(again: &Again, key: String) -> Option<String> {
    match again.facts.get(&key) {
        Some(name) => name.clone(),
        None => Some(key),
    }
}

fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gate::log::{BarRule, FailureRule, LogRules, PhaseRule};

    const S: Nanos = 1_000_000_000;

    fn phase(phase: &str, begin: Option<&str>, end: Option<&str>) -> PhaseRule {
        PhaseRule {
            phase: phase.into(),
            begin: begin.map(Into::into),
            end: end.map(Into::into),
            scope: Some("rank".into()),
            patience: None,
            again: None,
        }
    }

    fn failure(kind: &str, pattern: &str, phase: Option<&str>, wraps: bool) -> FailureRule {
        FailureRule {
            kind: kind.into(),
            pattern: pattern.into(),
            phase: phase.map(Into::into),
            wraps,
            retry: Some("never".into()),
            remedy: Some("{need} at {memory.fraction}, {other}".into()),
            seen: Vec::new(),
        }
    }

    fn rules() -> LogRules {
        LogRules {
            rank: Some(r"TP(\d+)".into()),
            phases: vec![
                phase("weights", Some("load begin"), Some("load end")),
                phase("kv_pool", None, Some("pool of (?<kv_tokens>\\d+)")),
                phase("graph_capture", Some("capture begin"), Some("capture end")),
            ],
            heartbeat: vec!["GET /health".into()],
            bars: vec![BarRule { pattern: "shards".into(), unit: "shards".into(), phase: "weights".into() }],
            failures: vec![
                failure("oom_weights", "out of memory.*allocate (?<need>[\\d.]+)", Some("weights"), false),
                failure("oom_capture", "out of memory.*allocate (?<need>[\\d.]+)", Some("graph_capture"), false),
                failure("killed", "child failed", None, true),
            ],
            ..LogRules::default()
        }
    }

    fn grammar() -> LogGrammar {
        LogGrammar::new(&rules())
            .unwrap()
            .with_settings(BTreeMap::from([("memory.fraction".to_owned(), "0.88".to_owned())]))
    }

    /// Folds lines that come at these seconds.
    fn fold(lines: &[(u64, &str)]) -> (Startup, Vec<Change>) {
        let (grammar, mut startup) = (grammar(), Startup::new(0));
        let mut changes = Vec::new();
        for (number, (at, text)) in lines.iter().enumerate() {
            let piece = Piece { line_no: number as u64 + 1, text: (*text).to_owned(), cut: false };
            changes.extend(startup.take(&grammar, &piece, at * S));
        }
        (startup, changes)
    }

    fn began(phase: &str) -> Change {
        Change::Began { phase: phase.into() }
    }

    fn ended(phase: &str, s: f64) -> Change {
        Change::Ended { phase: phase.into(), s }
    }

    #[test]
    fn a_phase_lasts_until_its_last_rank_is_done() {
        let (startup, changes) = fold(&[
            (4, "TP1 load begin"),
            (5, "TP0 load begin"),
            (9, "TP0 load end"),
            (12, "TP1 load end"),
            (13, "TP0 pool of 4096"),
            (13, "TP1 pool of 4096"),
            (14, "TP0 capture begin"),
        ]);
        let fact = |rank| Change::Fact { key: "kv_tokens".into(), value: json!(4096), rank: Some(rank) };
        let expected = [
            ended("launch", 4.0),
            began("weights"),
            ended("weights", 8.0),
            began("kv_pool"),
            fact(0),
            fact(1),
            ended("kv_pool", 1.0),
            began("graph_capture"),
        ];
        assert_eq!(changes, expected);
        assert_eq!(startup.phase(), "graph_capture");
    }

    #[test]
    fn the_same_words_a_second_time_are_the_draft() {
        let mut rules = rules();
        rules.phases[0].again = Some(Again {
            phase: "draft_weights".into(),
            facts: BTreeMap::from([("weights_gb".to_owned(), Some("draft_weights_gb".to_owned()))]),
        });
        rules.phases[0].end = Some(r"load end (?<weights_gb>[\d.]+)".into());
        rules.phases.push(phase("draft_weights", None, None));
        let grammar = LogGrammar::new(&rules).unwrap();
        let mut startup = Startup::new(0);
        let lines = [
            "TP0 load begin",
            "TP1 load begin",
            "TP1 load end 7.5",
            "TP0 load end 7.0",
            "TP0 load begin",
            "TP0 load end 0.5",
            "TP1 load begin",
            "TP1 load end 0.6",
        ];
        for (number, text) in lines.into_iter().enumerate() {
            let number = number as u64 + 1;
            startup.take(&grammar, &Piece { line_no: number, text: text.to_owned(), cut: false }, number * S);
        }
        assert_eq!(startup.phase(), "draft_weights");
        let over: Vec<_> = startup.phases().iter().map(|phase| (phase.name.as_str(), phase.s)).collect();
        assert_eq!(over, [("launch", 1.0), ("weights", 3.0)]);
        assert_eq!(startup.facts()["weights_gb"], json!(7.0), "the lowest rank's");
        assert_eq!(startup.facts()["draft_weights_gb"], json!(0.5));
    }

    #[test]
    fn a_later_phase_ends_those_before_it() {
        let (mut startup, changes) =
            fold(&[(1, "TP0 load begin"), (2, "TP1 load begin"), (5, "TP0 load end"), (6, "TP0 capture begin")]);
        assert_eq!(changes[2..], [ended("weights", 5.0), began("graph_capture")]);
        assert_eq!(startup.finish(10 * S), [ended("graph_capture", 4.0)]);
        assert_eq!(startup.phases().len(), 3);
    }

    #[test]
    fn a_bar_is_reported_when_it_moved_and_not_too_often() {
        let (grammar, mut startup) = (grammar(), Startup::new(0));
        let mut reported = Vec::new();
        for (at_ms, text) in
            [(0, "shards 1/4"), (100, "shards 1/4"), (200, "shards 2/4"), (900, "shards 3/4"), (950, "shards 4/4")]
        {
            let piece = Piece { line_no: 1, text: text.into(), cut: false };
            for change in startup.take(&grammar, &piece, at_ms * 1_000_000) {
                if let Change::Progress { done, total, .. } = change {
                    reported.push((done, total));
                }
            }
        }
        assert_eq!(reported, [(1.0, Some(4.0)), (3.0, Some(4.0)), (4.0, Some(4.0))]);
        assert_eq!(startup.last_words(), ["shards 4/4"], "a bar is one line");
    }

    #[test]
    fn the_root_is_the_first_line_that_is_not_a_consequence() {
        let (startup, changes) = fold(&[
            (1, "TP0 load begin"),
            (2, "a child failed"),
            (3, "TP1 out of memory: tried to allocate 1.18 GiB"),
            (4, "TP0 out of memory: tried to allocate 2.00 GiB"),
            (5, "the child failed"),
        ]);
        let root = startup.root().unwrap();
        assert_eq!((root.kind.as_str(), root.line_no, root.rank), ("oom_weights", 3, Some(1)));
        assert_eq!(root.remedy.as_deref(), Some("1.18 at 0.88, {other}"));
        let told: Vec<&str> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Failure(failure) => Some(failure.kind.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(told, ["killed", "oom_weights"], "each kind once");
    }

    #[test]
    fn a_failure_of_one_phase_is_none_in_another() {
        let (startup, _) = fold(&[(1, "out of memory: tried to allocate 1 GiB")]);
        assert_eq!(startup.root(), None);
        let (startup, _) = fold(&[(1, "TP0 capture begin"), (2, "out of memory: tried to allocate 1 GiB")]);
        assert_eq!(startup.root().unwrap().kind, "oom_capture");
    }

    #[test]
    fn a_heartbeat_is_neither_a_last_word_nor_progress() {
        let (startup, _) = fold(&[(3, "TP0 load begin"), (4, "GET /health 503"), (5, "GET /health 503")]);
        assert_eq!((startup.last_words(), startup.last_at()), (vec!["TP0 load begin".to_owned()], 3 * S));
    }

    #[test]
    fn only_the_last_words_are_kept() {
        let lines: Vec<(u64, String)> = (0..100).map(|number| (number, format!("line {number}"))).collect();
        let lines: Vec<(u64, &str)> = lines.iter().map(|(at, text)| (*at, text.as_str())).collect();
        let (startup, _) = fold(&lines);
        assert_eq!(startup.last_words().len(), LAST_WORDS);
        assert_eq!((startup.last_words()[0].as_str(), startup.last_at()), ("line 85", 99 * S));
    }
}
