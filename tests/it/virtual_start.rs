//! Starts of the simulated engine in virtual time: its script is pure and so is what judges it, so that an hour is told in a
//! moment. What the machine would show beside the log is made by the story.

use std::sync::Mutex;
use std::time::Duration;

use orch::clock::Nanos;
use orch::engine;
use orch::event::{Entry, Event, Scope, VERSION};
use orch::gate::life::{Look, Seen};
use orch::gate::log::{Piece, Splitter, Startup};
use orch::gate::starting::{End, Said, Starting};
use orch::gate::{Conduct, LogGrammar};
use orch::profile::EngineKind;
use orch::record::history::PastStarts;
use orch::report::live::{Usual, View};
use orch::sim::startup::{Beat, Ending, Model, Pids, Printer, Script, Stamp, What, Who, script_of};
use orch::sim::{Played, Scenario};

pub(crate) const S: Nanos = 1_000_000_000;
/// The pid of the main process.
const MAIN: u32 = 100;
/// That of the first rank.
const RANK: u32 = 110;

/// How a start came out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It serves.
    Ready,
    /// The main process ended.
    Exited,
    /// A rule ended it.
    Ended(End),
}

/// A start that was told.
pub(crate) struct Told {
    pub(crate) outcome: Outcome,
    /// After the launch.
    pub(crate) at: Nanos,
    pub(crate) events: Vec<(Nanos, Scope, Event)>,
    pub(crate) startup: Startup,
    /// What of it was on the screen, with the moment; live lines only where they were asked for.
    pub(crate) screen: Vec<(Nanos, String)>,
}

impl Told {
    /// When something was said first.
    pub(crate) fn when(&self, is: impl Fn(&Event) -> bool) -> Option<Nanos> {
        self.events.iter().find(|(_, _, event)| is(event)).map(|(at, ..)| *at)
    }

    pub(crate) fn stalls(&self) -> Vec<(Nanos, String, Vec<String>)> {
        let stall = |(at, _, event): &(Nanos, Scope, Event)| match event {
            Event::Stalled { phase, evidence, .. } => Some((*at, phase.clone(), evidence.clone())),
            _ => None,
        };
        self.events.iter().filter_map(stall).collect()
    }

    /// The text of the screen at a moment: what was drawn last before it.
    pub(crate) fn live_at(&self, at: Nanos) -> String {
        self.screen
            .iter()
            .take_while(|(drawn, _)| *drawn <= at)
            .last()
            .map(|(_, text)| text.clone())
            .unwrap_or_default()
    }
}

/// A start in the making; the story changes what it is about.
pub(crate) struct Start {
    pub(crate) model: Model,
    pub(crate) script: Script,
    pub(crate) conduct: Conduct,
    pub(crate) past: PastStarts,
    grammar: LogGrammar,
}

fn kind(played: Played) -> EngineKind {
    match played {
        Played::Sglang => EngineKind::Sglang,
        Played::Vllm => EngineKind::Vllm,
        Played::Llamacpp => EngineKind::Llamacpp,
    }
}

/// A grammar holds hundreds of patterns: each is compiled once.
fn grammar(played: Played) -> LogGrammar {
    static KNOWN: Mutex<Vec<(Played, LogGrammar)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap();
    if let Some((_, grammar)) = known.iter().find(|(kind, _)| *kind == played) {
        return grammar.clone();
    }
    let grammar = LogGrammar::new(&engine::definition(kind(played), &[]).unwrap().log).unwrap();
    known.push((played, grammar.clone()));
    grammar
}

impl Start {
    /// The start of a scenario, judged as a run would do it that has no history.
    pub(crate) fn of(scenario: &str) -> Self {
        let scenario = Scenario::parse("story.yaml", scenario).unwrap();
        Start::with(Model::of(&scenario, 30000))
    }

    pub(crate) fn with(model: Model) -> Self {
        let definition = engine::definition(kind(model.played), &[]).unwrap();
        let grammar = grammar(model.played);
        let conduct = Conduct {
            patience: orch::gate::Patience::new(&Default::default(), PastStarts::default(), &definition.log),
            worker: definition.log.worker.as_deref().map(|pattern| regex::Regex::new(pattern).unwrap()),
            ..Conduct::default()
        };
        Start { script: script_of(&model), model, conduct, past: PastStarts::default(), grammar }
    }

    /// Judged by how starts went before.
    pub(crate) fn after(mut self, past: PastStarts) -> Self {
        let definition = engine::definition(kind(self.model.played), &[]).unwrap();
        self.conduct.patience = orch::gate::Patience::new(&Default::default(), past.clone(), &definition.log);
        self.conduct.limit = orch::gate::auto_limit(past.slowest_usual_s());
        self.past = past;
        self
    }

    /// One more line in the log.
    pub(crate) fn say(&mut self, at: Duration, who: Who, text: &str) {
        self.script.beats.push(Beat { at, who, what: What::Plain(text.to_owned()) });
        self.script.beats.sort_by_key(|beat| beat.at);
    }

    /// The processes of the engine, as a look shows them; those of these ranks are gone.
    pub(crate) fn processes(&self, without: &[u32]) -> Vec<Seen> {
        let process = |pid: u32, name: &str, title: String| Seen {
            pid,
            start_ticks: u64::from(pid),
            name: name.to_owned(),
            title,
            read_bytes: Some(0),
            read_anywhere_bytes: Some(0),
            written_bytes: Some(0),
        };
        let title = |rank: u32| match self.model.played {
            Played::Sglang => format!("sglang::scheduler_TP{rank}"),
            Played::Vllm => format!("VLLM::Worker_TP{rank}"),
            Played::Llamacpp => format!("llama-server {rank}"),
        };
        let ranks = (0..self.model.ranks).filter(|rank| !without.contains(rank));
        let main = process(MAIN, "python3", "main".to_owned());
        std::iter::once(main).chain(ranks.map(|rank| process(RANK + rank, "python3", title(rank)))).collect()
    }

    /// What the machine shows where nothing but the log happens.
    pub(crate) fn quiet(&self) -> Look {
        Look { processes: Some(self.processes(&[])), ..Look::default() }
    }

    /// Tells it to its end. `world` shows the machine at a moment after the launch.
    pub(crate) fn tell(&self, world: impl Fn(Nanos) -> Look) -> Told {
        self.tell_drawn(world, None)
    }

    /// [`Start::tell`], drawing the live lines every so often.
    pub(crate) fn tell_drawn(&self, world: impl Fn(Nanos) -> Look, draw: Option<Duration>) -> Told {
        let printer = Printer::new(&self.model, Pids { main: MAIN, engine: 105, ranks: (RANK..RANK + 64).collect() });
        let stamp = |since: Duration| {
            let local = jiff::civil::date(2026, 11, 1).at(9, 0, 0, 0);
            Stamp { local: local.checked_add(jiff::SignedDuration::try_from(since).unwrap()).unwrap(), since }
        };
        let mut starting = Starting::new(&self.conduct, &self.grammar, 0);
        let mut splitter = Splitter::default();
        let mut out =
            Out { view: View::new(80, Usual::of(self.past.clone()), false), events: Vec::new(), screen: Vec::new() };
        out.say(0, vec![(Scope::Run, Event::Launching { server: "s".into(), command: Vec::new() })]);
        out.say(0, starting.began());
        let mut beats = self.script.beats.iter().peekable();
        let last = self.script.beats.last().map_or(0, |beat| nanos(beat.at));
        let (step, mut now) = (S / 10, 0);
        let (outcome, at) = loop {
            let mut pieces: Vec<Piece> = Vec::new();
            while let Some(beat) = beats.next_if(|beat| nanos(beat.at) <= now) {
                splitter.feed(&printer.bytes(beat, &stamp(beat.at)), |piece| pieces.push(piece));
            }
            for piece in &pieces {
                out.say(now, starting.take(piece, now));
            }
            if now.is_multiple_of(S) {
                out.say(now, starting.look(&world(now), now));
            }
            if let Some(end) = splitter.open_end() {
                starting.stands(&end);
            }
            let (said, end) = starting.tick(now);
            out.say(now, said);
            if draw.is_some_and(|every| now.is_multiple_of(nanos(every)))
                && let Some(text) = out.view.live(now)
            {
                out.screen.push((now, text));
            }
            if now >= last {
                match self.script.ending {
                    Ending::Serves => {
                        out.say(now, starting.ready(now));
                        break (Outcome::Ready, now);
                    }
                    Ending::Exits(_) | Ending::Signal(_) => break (Outcome::Exited, now),
                    Ending::Hangs => {}
                }
            }
            if let Some(end) = end {
                break (Outcome::Ended(end), now);
            }
            now += step;
            assert!(now < 24 * 3600 * S, "it has no end");
        };
        Told { outcome, at, startup: starting.startup().clone(), events: out.events, screen: out.screen }
    }
}

/// What is said, and shown.
struct Out {
    view: View,
    events: Vec<(Nanos, Scope, Event)>,
    screen: Vec<(Nanos, String)>,
}

impl Out {
    fn say(&mut self, at: Nanos, said: Said) {
        for (scope, event) in said {
            let entry = Entry {
                v: VERSION,
                seq: self.events.len() as u64,
                at: jiff::Timestamp::from_second(1_795_965_303).unwrap(),
                since_start_ns: at,
                run: "20261129-151503-story-0a4f".into(),
                scope: scope.clone(),
                event: event.clone(),
            };
            self.screen.extend(self.view.see(&entry).into_iter().map(|line| (at, line)));
            self.events.push((at, scope, event));
        }
    }
}

pub(crate) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap()
}
